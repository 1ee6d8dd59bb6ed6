#!/bin/sh
# test_linear.sh EXAMPLE [RUN_RANKS]: tests/coll/example_linear.c learns its line, and prints the same bits alone and on
# 1, 2, 4 and 8 ranks.
set -u
example=$1
run=${2:-}
failed=0
say() { # OK|FAIL SENTENCE [WHY]
    echo "$1 $2${3:+: $3}"
    [ "$1" = FAIL ] && failed=1
}

alone=$("$example") || say FAIL the_example_runs_alone "exit code $?"
# y2 = 3 x0 + ... + 0.5 x5 + 1
if echo "$alone" | awk '/^y2/ { near = ($3 - 3) ^ 2 + ($8 - 0.5) ^ 2 + ($11 - 1) ^ 2 < 1e-4 } END { exit !near }'; then
    say "ok  " the_line_is_learned
else
    say FAIL the_line_is_learned "$alone"
fi
for n in 1 2 4 8; do
    [ -n "$run" ] || continue
    here=$("$run" "$n" "$example")
    if [ "$here" = "$alone" ]; then
        say "ok  " "${n}_ranks_print_the_same_bits"
    else
        say FAIL "${n}_ranks_print_the_same_bits" "$here
not $alone"
    fi
done
# A world that cannot be opened is nobody's: the example says why, once, and ends.
said=$(SLURM_STEP_NUM_TASKS=2 "$example" 2>&1)
code=$?
lines=$(echo "$said" | wc -l)
if [ $code = 1 ] && [ "$lines" = 1 ] && case $said in "example_linear: "*) : ;; *) false ;; esac; then
    say "ok  " "a_world_that_cannot_be_opened_ends_the_example_with_a_line"
else
    say FAIL "a_world_that_cannot_be_opened_ends_the_example_with_a_line" "exit code $code: $said"
fi
exit $failed
