#!/bin/sh
# test_slurm_ends.sh HVTRAIN ROOT: how jobs of hostfiles/slurm.sbatch end, on a real SLURM of four nodes: each way that a
# task can end, and each way and kind of job by which SLURM ends and requeues one. All jobs run at the same time.
set -u
hvtrain=$(readlink -f "$1") root=$2
. "$root/tests/support/launch.sh"
nodes="a b c d"
cpus=16
partitions="PartitionName=low Nodes=c MaxTime=INFINITE State=UP
PartitionName=grace Nodes=c MaxTime=INFINITE State=UP GraceTime=30
PartitionName=high Nodes=c MaxTime=INFINITE State=UP PriorityTier=9
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE"
. "$root/tests/support/slurm.sh"

long="$train_args --size 8 --epochs 1000000 --eval-freq 0 --quiet"

# A program "hvtrain" of which rank 1 ends as the file `way` says, while the others wait for it in MPI_Init.
cat >stub <<'STUB'
#!/bin/sh
way=$(cat way)
case $way:$SLURM_PROCID in
saves-nothing:*) trap '' TERM; exit 75 ;;
starts-nothing:*) exit 0 ;; # as srun where SLURM cannot start tasks
stays:*) trap '' TERM USR1; while :; do sleep 1; done ;;
killed-later:1) # once there is a checkpoint
    (until [ -e run/last.safetensors ]; do sleep 0.2; done; kill -KILL $$) & ;;
signal-*:1) kill -s "${way#signal-}" $$; sleep 60 ;;
code-*:1) exit "${way#code-}" ;;
esac
exec ../program "$@"
STUB
chmod +x stub
ln -s "$hvtrain" program

submit() { # NAME ARGUMENTS-OF-SBATCH... -- ARGUMENTS-OF-HVTRAIN: sets NAME's job
    name=$1
    shift
    mkdir "$name"
    if [ -n "$way" ]; then
        ln -s ../stub "$name/hvtrain"
        echo "$way" >"$name/way"
    elif [ "$name" != missing-program ]; then
        ln -s "$hvtrain" "$name/hvtrain"
    fi
    options=
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # words
    (cd "$name" && sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --output=out $options \
        "$root/hostfiles/slurm.sbatch" "$@" >job) || cat "$name/job"
}
job_of() {
    cat "$1/job"
}
field() { # NAME FIELD: of its job
    scontrol show job "$(job_of "$1")" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1
}
until_true() { # SECONDS COMMAND...
    tries=$((10 * $1))
    shift
    while [ $tries -gt 0 ] && ! "$@"; do
        tries=$((tries - 1))
        sleep 0.1
    done
}
saved() {
    [ -e "$1"/hvtrain-*/last.safetensors ]
}
over() {
    case $(field "$1" JobState) in
    PENDING | RUNNING | COMPLETING) return 1 ;;
    esac
}
requeued() {
    [ "$(field "$1" Restarts) $(field "$1" JobState)" = "1 PENDING" ]
}
check_failed() { # NAME PATTERN: FAILED, not requeued, and a line says why
    until_true 150 over "$1"
    if [ "$(field "$1" JobState) $(field "$1" Restarts)" = "FAILED 0" ] && grep -q "ends here as failed: .*$2" "$1/out"
    then
        ok "$1_ends_as_failed"
    else
        fail "$1_ends_as_failed" "$(field "$1" JobState), restarts $(field "$1" Restarts): $(tail -n 8 "$1/out")"
    fi
}
check_requeued() { # NAME
    until_true 60 requeued "$1"
    if requeued "$1" && saved "$1" && ! grep -q "as failed" "$1/out"; then
        ok "$1_is_requeued"
    else
        fail "$1_is_requeued" "$(field "$1" JobState), restarts $(field "$1" Restarts): $(tail -n 8 "$1/out")"
    fi
}

# ---- all jobs ---------------------------------------------------------------------------------------------
way=stays submit time-limit -w a --time=1 -- $long
way=
submit preempted -w c -p low -- $long
submit preempted-with-grace -w c -p grace -- $long
submit node-failure -w d -- $long
submit without-requeue -w b --no-requeue -- $long
submit without-auto -w b -- $train_args --size 8 --epochs 1000000 --eval-freq 0 --save run
submit whole-job -w b -- $long
submit array -w b --array=3,7 --ntasks-per-node=1 -- $long
submit missing-program -w a -- $long
way=saves-nothing submit saves-nothing -w a -- $long
way=starts-nothing submit starts-nothing -w a -- $long
way=killed-later submit killed-later -w a -- $long --save run --resume auto
ways="code-0 code-1 code-2 code-75 code-126 code-127 code-143 code-255"
for signal in HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM; do
    ways="$ways signal-$signal"
done
for way in $ways; do
    submit "$way" -w a -- $long
done
way=
submit check -w a -- check --threads 1 --stall-abort 60s
submit heterogeneous -w a : --ntasks=1 -w b -- $long

# ---- what SLURM ends --------------------------------------------------------------------------------------
for name in preempted preempted-with-grace node-failure without-requeue without-auto whole-job; do
    until_true 60 saved $name
done
sbatch --output=high.out -p high -w c --exclusive --wrap 'sleep 5' >/dev/null
scontrol update NodeName=d State=DOWN Reason=test
scancel --signal=USR1 "$(job_of without-requeue)"
scancel --signal=USR1 "$(job_of without-auto)"
scancel --batch --signal=USR1 "$(job_of whole-job)" # the script alone: it stays
scancel --full --signal=USR1 "$(job_of whole-job)"
check_requeued preempted
check_requeued preempted-with-grace
check_requeued node-failure
check_requeued whole-job
check_failed without-requeue "cannot be requeued; .*--save hvtrain-$(job_of without-requeue) --resume auto"
check_failed without-auto "without --resume auto"
if grep -q "limit  *SLURM's limit is in \(1h\|5[0-9]m\)" without-auto/out; then
    ok a_job_knows_its_time_limit
else
    fail a_job_knows_its_time_limit "$(grep -a limit without-auto/out)"
fi

# A task of an array: the one whose number is the array's, which stands for all of them elsewhere.
array=$(job_of array)
both() {
    [ -e "array/hvtrain-${array}_3/last.safetensors" ] && [ -e "array/hvtrain-${array}_7/last.safetensors" ]
}
states() {
    squeue -h -r -j "$array" -o '%i %T' | sort | sed 's/.*_//' | tr '\n' ' '
}
until_true 60 both
scancel --signal=USR1 "${array}_7"
one_waits() {
    [ "$(states)" = "3 RUNNING 7 PENDING " ]
}
until_true 30 one_waits
sleep 1
if one_waits; then
    ok a_task_of_an_array_is_requeued_alone
else
    fail a_task_of_an_array_is_requeued_alone "$(states); $(tail -n 5 array/out)"
fi

# ---- a check by the script ----
until_true 90 over check
if [ "$(field check JobState)" = COMPLETED ] && grep -q '^ready' check/out && [ ! -e check/hvtrain-"$(job_of check)" ]; then
    ok a_check_by_the_script_is_a_check
else
    fail a_check_by_the_script_is_a_check "$(field check JobState): $(cat check/out)"
fi

# ---- how a task ends --------------------------------------------------------------------------------------
check_failed heterogeneous "heterogeneous"
check_failed missing-program "srun ended with 2 "
check_failed saves-nothing "before it could save anything new"
check_failed starts-nothing "srun ended with 0, but hvtrain has saved nothing"
check_failed killed-later "srun ended with "
for way in $ways; do
    check_failed "$way" "srun ended with "
done
until_true 150 over time-limit
if [ "$(field time-limit JobState) $(field time-limit Restarts)" = "TIMEOUT 0" ]; then
    ok a_time_limit_that_is_ignored_is_no_reason_to_start_again
else
    fail a_time_limit_that_is_ignored_is_no_reason_to_start_again "$(field time-limit JobState): $(cat time-limit/out)"
fi

# Both scripts end in the same way.
from='/^# Requeue the job only/,$p'
ends=$(sed -n "$from" "$root/hostfiles/slurm.sbatch")
if [ -n "$ends" ] && [ "$ends" = "$(sed -n "$from" "$root/hostfiles/slurm-gpu.sbatch")" ]; then
    ok the_script_for_GPUs_judges_alike
else
    fail the_script_for_GPUs_judges_alike "the last lines differ"
fi
finish
