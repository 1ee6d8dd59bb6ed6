# launch.sh - sourced by the tests that start hvtrain as its users do: test_hosts.sh, test_slurm.sh.
# A truth is a line "ok   name" or "FAIL name: why"; `finish` gives the exit code.
# shellcheck shell=sh
failed=0
ok() { echo "ok   $1"; }
fail() {
    echo "FAIL $1: $2"
    failed=1
}
skip() { # the whole test
    echo "skip: $*"
    exit 77
}
finish() { exit $failed; }

# A short training run on four shards: eight updates, the last of each epoch on short batches.
train_args="--model resnet20 --data synth --samples 200 --batch 16 --shards 4 --epochs 2 --threads 1 --print-freq 1"

# The hash in a log's "end" record; nothing when the run did not come to its end.
weights_of() {
    sed -n '/"record": *"end", *"status": *"done"/s/.*"weights": *"\([0-9a-f]\{16\}\)".*/\1/p' "$1" 2>/dev/null
}
# A string or number of a log's "start" record.
start_of() { # LOG FIELD
    sed -n '/"record": *"start"/{s/"options":.*//;s/.*"'"$2"'": *"\{0,1\}\([^",}]*\).*/\1/p}' "$1" 2>/dev/null
}

same_weights() { # NAME WANTED LOG OUTPUT
    got=$(weights_of "$3")
    if [ -n "$2" ] && [ "$got" = "$2" ]; then
        ok "$1"
    else
        fail "$1" "weights '$got', one process ended with '$2'"
        [ ! -f "$4" ] || sed 's/^/    | /' "$4"
    fi
}
