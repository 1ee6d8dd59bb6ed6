#!/bin/sh
# run_tcp.sh N PROGRAM [ARG ...]: run a test on N ranks of this host without MPI, as torchrun would start them.
n=$1
shift
export WORLD_SIZE="$n" MASTER_ADDR=127.0.0.1 HVT_JOB_SECRET="$$" LOCAL_WORLD_SIZE="$n"
MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_PORT
ranks=
for rank in $(seq 0 $((n - 1))); do
    RANK=$rank "$@" &
    ranks="$ranks $!"
done
code=0
for pid in $ranks; do
    wait "$pid" || { c=$?; [ "$code" != 0 ] && [ "$code" != 77 ] || code=$c; }
done
exit $code
