#!/bin/sh
# test_slurm.sh HVTRAIN ROOT: a real SLURM of one node, made of Debian's packages, with keys, sockets, ports
# and state of its own in a temporary folder: srun, the wrong --mpi, a run alone inside an allocation,
# mpirun inside one, and sbatch with hostfiles/slurm.sbatch, requeued, asked to end, cancelled. Its daemons stop when the
# test does.
set -u
hvtrain=$(readlink -f "$1") root=$2
. "$root/tests/support/launch.sh"
. "$root/tests/support/slurm.sh"

our_processes() { # hvtrain's, of this cluster
    for process in /proc/[0-9]*; do
        read -r comm 2>/dev/null <"$process/comm" && [ "$comm" = hvtrain ] &&
            [ "$(readlink "$process/exe")" = "$hvtrain" ] && [ "$(readlink "$process/cwd")" = "$tmp" ] &&
            echo "${process#/proc/}"
    done
}
task() { # N: the process of task N, of which there is one
    for process in $(our_processes); do
        tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -q "^SLURM_PROCID=$1\$" && echo "$process"
    done
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
timeout 60 srun --mpi=pmix -n 3 "$hvtrain" $train_args --shards 2 --log bad.log >bad.out 2>&1
code=$?
took=$(($(date +%s) - began))
if [ $code -ne 0 ] && [ $took -lt 15 ] && [ "$(grep -c -e '--shards' bad.out)" = 1 ]; then
    ok two_shards_are_too_few_for_three_tasks_said_once
else
    fail two_shards_are_too_few_for_three_tasks_said_once "exit $code after $took s: $(cat bad.out)"
fi

# One task is stopped: the others name it, give up, and srun ends it, too.
timeout 120 srun --mpi=pmix --kill-on-bad-exit=1 -n 3 "$hvtrain" $train_args --shards 3 --epochs 100000 \
    --stall-warn 500ms --stall-abort 2s --log stopped.log >stopped.out 2>&1 &
job=$!
for _ in $(seq 600); do
    grep -q '"step"' stopped.log 2>/dev/null && break
    sleep 0.1
done
victim=$(task 1)
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

timeout 60 srun --mpi=pmix -n 4 "$hvtrain" check --stall-abort 50s --threads 1 >check.out 2>&1
code=$?
timeout 60 salloc -n 4 "$hvtrain" check --threads 1 >check-alone.out 2>&1
if [ $code = 0 ] && grep -q '^ok    launcher  4 ranks on 1 host .*, as launched' check.out && grep -q '^ready' check.out &&
    grep -q '^warn  launcher  one process .* in a SLURM job of 4 tasks' check-alone.out
then
    ok a_check_by_srun_is_ready_and_one_without_it_says_so
else
    fail a_check_by_srun_is_ready_and_one_without_it_says_so "exit $code: $(cat check.out check-alone.out)"
fi

# The batch script as it is; the options of a smaller job stand in front of it, as its first lines say.
ln -s "$hvtrain" hvtrain
timeout 120 sbatch --wait --nodes=1 --ntasks-per-node=4 --cpus-per-task=1 --output=sbatch.out \
    "$root/hostfiles/slurm.sbatch" $train_args --log sbatch.log >submit.out 2>&1 || cat submit.out
same_weights the_batch_script_ends_with_the_same_weights "$alone" sbatch.log sbatch.out

# SLURM takes the job off its node after its first checkpoint, and starts the same script again: it goes on.
long="$train_args --size 8 --epochs 90"
"$hvtrain" $long --log long.log >long.out 2>&1
job=$(sbatch --parsable --nodes=1 --ntasks-per-node=4 --cpus-per-task=1 --output=requeued.out \
    "$root/hostfiles/slurm.sbatch" $long --log requeued.log)
until_saved() {
    for _ in $(seq 600); do
        [ -f "hvtrain-$job/last.safetensors" ] && break
        sleep 0.1
    done
}
until_saved
scontrol requeue "$job"
until_over "$job"
same_weights a_job_that_is_requeued_goes_on "$(weights_of long.log)" requeued.log requeued.out
if [ "$(grep -c '"record": *"start"' requeued.log)" = 2 ]; then
    ok its_log_has_both_starts
else
    fail its_log_has_both_starts "$(grep -c '"record": *"start"' requeued.log) records"
fi

# SIGUSR1 to all tasks, as --signal sends it before the time limit: they save within an epoch, and the script has the
# job requeued. The second time SIGTERM reaches one task alone, and the third time srun's step.
job=$(sbatch --parsable --nodes=1 --ntasks-per-node=4 --cpus-per-task=1 --output=asked.out \
    "$root/hostfiles/slurm.sbatch" $long --log asked.log)
until_started() { # N: for the Nth time
    for _ in $(seq 600); do
        [ "$(grep -c '"record": *"start"' asked.log)" = "$1" ] && break
        start_pending "$job"
        sleep 0.1
    done
}
until_saved
scancel --signal=USR1 "$job"
until_started 2
one=
for _ in $(seq 100); do
    one=$(task 2)
    [ -z "$one" ] || break
    sleep 0.05
done
[ -z "$one" ] || kill -TERM "$one"
until_started 3
scancel --signal=TERM "$(squeue -h -s -j "$job" -o %i | grep '[.][0-9]*$')"
until_over "$job"
same_weights a_job_that_is_asked_to_end_requeues_itself_and_goes_on "$(weights_of long.log)" asked.log asked.out
if [ "$(grep -c '"status": *"preempted"' asked.log)" = 3 ] && grep -q '"signal": *"SIGUSR1"' asked.log &&
    [ "$(grep -c '"signal": *"SIGTERM"' asked.log)" = 2 ] && [ "$(grep -c '"record": *"start"' asked.log)" = 4 ]
then
    ok each_time_it_saved_and_said_so
else
    fail each_time_it_saved_and_said_so "$(grep -e '"record": *"start"' -e '"record": *"end"' asked.log | cut -c1-150)"
fi
left="$(our_processes) $(ls "hvtrain-$job" | grep -v -E '^(gen-[0-9]{6}(\.momentum)?|last|best)\.safetensors$')"
if [ "$left" = " " ]; then
    ok and_left_nothing_behind
else
    fail and_left_nothing_behind "$left"
fi

# A job that is cancelled saves, and stays cancelled.
job=$(sbatch --parsable --nodes=1 --ntasks-per-node=4 --cpus-per-task=1 --output=cancelled.out \
    "$root/hostfiles/slurm.sbatch" $long --epochs 100000 --log cancelled.log)
until_saved
scancel "$job"
for _ in $(seq 300); do
    [ -z "$(squeue -h -j "$job" -o %T 2>/dev/null)" ] && break
    sleep 0.1
done
if [ -z "$(squeue -h -j "$job" -o %T 2>/dev/null)" ] && grep -q '"status": *"preempted"' cancelled.log; then
    ok a_job_that_is_cancelled_saves_and_stays_cancelled
else
    fail a_job_that_is_cancelled_saves_and_stays_cancelled "$(squeue -h -j "$job"; tail -n 1 cancelled.log; cat cancelled.out)"
fi

# SLURM's own limit, a minute: hvtrain ends before it by itself.
timeout 120 srun --mpi=pmix --time=1 -n 2 "$hvtrain" $train_args --shards 2 --epochs 100000 --save limit \
    --log limit.log >limit.out 2>&1
code=$?
if [ $code = 143 ] && grep -q '"status": *"preempted"' limit.log && grep -q "SLURM's limit" limit.out; then
    ok a_run_ends_before_slurms_limit
elif ! timeout 60 srun -n 1 printenv SLURM_JOB_END_TIME >/dev/null 2>&1; then
    echo "skip a_run_ends_before_slurms_limit: this SLURM does not tell it"
else
    fail a_run_ends_before_slurms_limit "exit $code: $(tail -n 3 limit.out)"
fi
finish
