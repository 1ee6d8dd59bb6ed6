#!/bin/sh
# test_slurm.sh HVTRAIN ROOT: a real SLURM of one node, made of Debian's packages, with keys, sockets, ports
# and state of its own in a temporary folder: srun, the wrong --mpi, a run alone inside an allocation,
# mpirun inside one, and sbatch with hostfiles/slurm.sbatch. Its daemons stop when the test does.
set -u
hvtrain=$(readlink -f "$1") root=$2
. "$root/tests/support/launch.sh"
PATH=$PATH:/usr/sbin:/sbin
for tool in munged slurmctld slurmd srun sbatch python3 timeout; do
    command -v $tool >/dev/null || skip "no $tool (Debian: slurm-wlm munge)"
done
case $(srun --mpi=list 2>&1; ls /usr/lib/*/slurm*/mpi_pmix* /usr/lib64/slurm/mpi_pmix* 2>/dev/null) in
*pmix*) ;;
*) skip "this SLURM has no PMIx plugin" ;;
esac

tmp=$(mktemp -d /tmp/hvt-slurm.XXXXXX) || exit 1 # short: socket paths are limited to 107 bytes
export SLURM_CONF="$tmp/slurm.conf"
munged=
slurmctld=
slurmd=
stop() {
    trap '' INT TERM
    [ -z "$slurmctld" ] || timeout 10 scancel --user="$(id -un)" 2>/dev/null
    for daemon in $slurmd $slurmctld $munged; do
        kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    done
    rm -rf "$tmp"
}
trap stop EXIT
trap 'exit 130' INT TERM
cd "$tmp" || exit 1
mkdir state spool

# ---- the cluster ------------------------------------------------------------------------------------------
me=$(id -un)
host=$(uname -n | cut -d. -f1)
ports=$(python3 -c '
import socket
s = [socket.socket() for _ in range(2)]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')
cat >slurm.conf <<CONF
ClusterName=hvt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports% *}
SlurmdPort=${ports#* }
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$tmp/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdLogFile=$tmp/slurmd.log
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
# Nothing here uses control groups, but slurmd wants to know their kind, and gives up in a container where it
# cannot find out.
echo "CgroupPlugin=cgroup/v1" >cgroup.conf
dd if=/dev/urandom of=key bs=1024 count=1 2>/dev/null
chmod 600 key
munged --foreground --force --key-file="$tmp/key" --socket="$tmp/munge.socket" --num-threads=2 \
    --pid-file="$tmp/munged.pid" --log-file="$tmp/munged.log" --seed-file="$tmp/munged.seed" >munged.out 2>&1 &
munged=$!
for _ in $(seq 50); do
    [ -S munge.socket ] && break
    sleep 0.1
done
slurmctld -D >slurmctld.out 2>&1 &
slurmctld=$!
slurmd -D -N "$host" >slurmd.out 2>&1 &
slurmd=$!
for _ in $(seq 150); do
    sinfo -h -o %T 2>/dev/null | grep -q idle && break
    sleep 0.1
done
sinfo -h -o %T 2>/dev/null | grep -q idle || {
    tail -n 5 munged.out slurmctld.log slurmd.out
    skip "the cluster of one node does not come up"
}

# ---- what must be true ------------------------------------------------------------------------------------
"$hvtrain" $train_args --log alone.log >alone.out 2>&1 || {
    fail a_process_alone_trains "exit $?: $(cat alone.out)"
    finish
}
alone=$(weights_of alone.log)

timeout 120 srun --mpi=pmix -n 4 "$hvtrain" $train_args --log srun.log >srun.out 2>&1
same_weights four_tasks_of_srun_end_with_the_same_weights "$alone" srun.log srun.out
if [ "$(start_of srun.log ranks)" = 4 ]; then
    ok four_tasks_are_four_ranks
else
    fail four_tasks_are_four_ranks "the log says '$(start_of srun.log ranks)'"
fi

# Without PMIx every task would train alone and overwrite the others' files. Refused, and how to do better.
for wrong in none pmi2; do
    began=$(date +%s)
    timeout 60 srun --mpi=$wrong -n 2 "$hvtrain" $train_args --log wrong.log >wrong.out 2>&1
    code=$?
    took=$(($(date +%s) - began))
    if [ $code -ne 0 ] && [ $took -lt 15 ] && grep -q -e '--mpi=pmix' wrong.out && [ -z "$(weights_of wrong.log)" ]
    then
        ok "srun_--mpi=${wrong}_is_refused_with_the_fix"
    else
        fail "srun_--mpi=${wrong}_is_refused_with_the_fix" "exit $code after $took s: $(cat wrong.out)"
    fi
done

# One task fails: srun ends, its message is there once.
began=$(date +%s)
timeout 60 srun --mpi=pmix -n 3 "$hvtrain" $train_args --log bad.log >bad.out 2>&1
code=$?
took=$(($(date +%s) - began))
if [ $code -ne 0 ] && [ $took -lt 15 ] && [ "$(grep -c -e '--shards' bad.out)" = 1 ]; then
    ok three_tasks_do_not_divide_four_shards_said_once
else
    fail three_tasks_do_not_divide_four_shards_said_once "exit $code after $took s: $(cat bad.out)"
fi

# One task is stopped: the others name it, give up, and srun ends it, too.
timeout 120 srun --mpi=pmix --kill-on-bad-exit=1 -n 3 "$hvtrain" $train_args --shards 3 --epochs 100000 \
    --stall-warn 500ms --stall-abort 2s --log stopped.log >stopped.out 2>&1 &
job=$!
for _ in $(seq 600); do
    grep -q '"step"' stopped.log 2>/dev/null && break
    sleep 0.1
done
victim=
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/exe")" = "$hvtrain" ] &&
        tr '\0' '\n' <"$process/environ" | grep -q '^SLURM_PROCID=1$' && victim=${process#/proc/}
done
[ -z "$victim" ] || kill -STOP "$victim"
wait $job
code=$?
for _ in $(seq 100); do
    [ -n "$victim" ] && [ -d "/proc/$victim" ] || break
    sleep 0.1
done
if [ -n "$victim" ] && [ $code -ne 0 ] && [ $code -ne 124 ] && [ ! -d "/proc/$victim" ] &&
    grep -q 'for rank 1 (.* is stopped (SIGSTOP).*giving up' stopped.out
then
    ok a_stopped_task_is_named_and_srun_ends_it
else
    fail a_stopped_task_is_named_and_srun_ends_it "task '$victim', exit $code: $(cat stopped.out)"
    [ -z "$victim" ] || kill -KILL "$victim" 2>/dev/null
fi

# Inside an allocation of four tasks a run without srun is one process, and meant so.
timeout 60 salloc -n 4 "$hvtrain" $train_args --log salloc.log >salloc.out 2>&1
same_weights a_run_alone_inside_an_allocation_is_alone "$alone" salloc.log salloc.out
timeout 120 salloc -n 4 mpirun $([ "$(id -u)" != 0 ] || echo --allow-run-as-root) --bind-to none \
    "$hvtrain" $train_args --log mpirun.log >mpirun.out 2>&1
same_weights mpirun_inside_an_allocation_takes_its_tasks "$alone" mpirun.log mpirun.out

# The batch script as it is; the options of a smaller job stand in front of it, as its first lines say.
ln -s "$hvtrain" hvtrain
timeout 120 sbatch --wait --nodes=1 --ntasks-per-node=4 --cpus-per-task=1 --output=sbatch.out \
    "$root/hostfiles/slurm.sbatch" $train_args --log sbatch.log >submit.out 2>&1 || cat submit.out
same_weights the_batch_script_ends_with_the_same_weights "$alone" sbatch.log sbatch.out

# SLURM takes the job off its node after its first checkpoint, and starts the same script again: it goes on.
long="$train_args --size 8 --epochs 60"
"$hvtrain" $long --log long.log >long.out 2>&1
job=$(sbatch --parsable --nodes=1 --ntasks-per-node=4 --cpus-per-task=1 --output=requeued.out \
    "$root/hostfiles/slurm.sbatch" $long --log requeued.log)
for _ in $(seq 600); do
    [ -f "hvtrain-$job/last.safetensors" ] && break
    sleep 0.1
done
scontrol requeue "$job"
for _ in $(seq 900); do
    case $(squeue -h -j "$job" -o %T 2>/dev/null) in
    PENDING) scontrol update JobId="$job" StartTime=now 2>/dev/null ;; # it would wait for two minutes
    '') break ;;
    esac
    sleep 0.1
done
same_weights a_job_that_is_requeued_goes_on "$(weights_of long.log)" requeued.log requeued.out
if [ "$(grep -c '"record": *"start"' requeued.log)" = 2 ]; then
    ok its_log_has_both_starts
else
    fail its_log_has_both_starts "$(grep -c '"record": *"start"' requeued.log) records"
fi
finish
