# slurm.sh - sourced after launch.sh by tests/launch/test_slurm*.sh: a real SLURM, made of Debian's packages, with keys,
# sockets, ports and state of its own in a temporary folder, which becomes the working folder. Its daemons stop when the
# test does. Before: hvtrain, the program, as an absolute path; nodes, names of the nodes, which are all this host
# ("": one of the host's name); cpus, of each (4); partitions, more of them, and how they preempt each other.
# shellcheck shell=sh
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
slurmds=
stop() {
    trap '' INT TERM
    [ -z "$slurmctld" ] || timeout 10 scancel --user="$(id -un)" 2>/dev/null
    for daemon in $slurmds $slurmctld $munged; do
        kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    done
    rm -rf "$tmp"
}
trap stop EXIT
trap 'exit 130' INT TERM
cd "$tmp" || exit 1
mkdir state

# ---- the cluster ------------------------------------------------------------------------------------------
me=$(id -un)
host=$(uname -n | cut -d. -f1)
nodes=${nodes:-$host}
# shellcheck disable=SC2046,SC2086 # words
set -- $(python3 -c '
import socket, sys
s = [socket.socket() for _ in sys.argv]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))' $nodes)
cat >slurm.conf <<CONF
ClusterName=hvt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$1
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
SlurmdSpoolDir=$tmp/spool-%n
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd-%n.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdLogFile=$tmp/slurmd-%n.log
SlurmdParameters=config_overrides
# PMIx names its folders in /tmp by the numbers of user, job and step: another cluster of this host needs other jobs.
FirstJobId=$(($$ % 30000 * 1000 + 1))
SchedulerParameters=bf_interval=1,sched_interval=1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
${partitions-}
CONF
for node in $nodes; do
    shift
    mkdir "spool-$node"
    echo "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$1 CPUs=${cpus:-4} State=UNKNOWN" >>slurm.conf
done
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
for node in $nodes; do
    slurmd -D -N "$node" >"slurmd-$node.out" 2>&1 &
    slurmds="$slurmds $!"
done
up() { # all of them
    [ "$(sinfo -h -N -p main -o %T 2>/dev/null | grep -c idle)" = "$(echo "$nodes" | wc -w)" ]
}
for _ in $(seq 150); do
    up && break
    sleep 0.1
done
up || {
    tail -n 5 munged.out slurmctld.log
    cat slurmd-*.out
    skip "the cluster does not come up"
}

state() { # JOB: nothing when it is over
    squeue -h -j "$1" -o %T 2>/dev/null
}
# SLURM lets a requeued job wait for two minutes; here for a moment, in which what is left of it before comes to its end.
start_pending() { # JOB
    if [ "$(state "$1")" = PENDING ]; then
        sleep 7
        scontrol update JobId="$1" StartTime=now 2>/dev/null
        for _ in $(seq 100); do
            [ "$(state "$1")" = PENDING ] || break
            sleep 0.1
        done
    fi
}
until_over() { # JOB
    for _ in $(seq 900); do
        start_pending "$1"
        [ -n "$(state "$1")" ] || break
        sleep 0.1
    done
}

