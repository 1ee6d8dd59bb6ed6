#!/bin/sh
# soak_cables.sh HVTRAIN ROOT COUNT: the cable between two hosts without mpirun is pulled at so many random moments,
# before, while and after the ranks meet, on either side. Every rank must end soon, with an error that names a cause.
set -u
count=${3:-}
[ "$1" != --inside ] || count=$4
. "$(dirname "$0")/../support/two_hosts.sh"
lay_cable || skip "no virtual cable (veth) here"
train="--model resnet20 --data synth --samples 64 --size 16 --batch 8 --epochs 100000 --threads 1 --quiet --stall-warn 1s
    --stall-abort 2s"
causes='has ended\|giving up\|gives up\|has given up\|did not join\|did not reach\|does not reach\|before the job started'

for event in $(seq "$count"); do
    # shellcheck disable=SC2046
    set -- $(awk -v seed="$event" 'BEGIN {
        srand(seed)
        print 2 + int(3 * rand()), rand() < 0.5 ? "auto" : "tcp", rand() * rand() * 3, rand() < 0.5 ? "on_node2" : "", "x" }')
    ranks='' wrong=''
    for rank in $(seq 0 $(($1 - 1))); do
        host="nsenter -t $other --net --uts" # becomes the rank itself
        [ $((2 * rank)) -ge "$1" ] || host=
        $host "$hvtrain" $train --comm "$2" --init-method tcp://10.0.7.1:23456 --rank "$rank" --world-size "$1" \
            >"rank$rank" 2>&1 &
        ranks="$ranks $!"
    done
    sleep "$3"
    if [ "$4" = on_node2 ]; then end='on_node2 ip link set veth2'; else end='ip link set veth1'; fi
    $end down
    began=$(date +%s)
    (sleep 30 && kill -9 $ranks) 2>/dev/null & # a job that hangs
    guard=$!
    rank=0
    for pid in $ranks; do
        wait "$pid"
        code=$?
        if [ $code = 0 ] || [ $code = 137 ] || ! grep -q "$causes" rank$rank; then
            wrong="$wrong rank $rank: exit $code: $(tail -n 1 rank$rank)."
        fi
        rank=$((rank + 1))
    done
    kill $guard 2>/dev/null
    took=$(($(date +%s) - began))
    [ $took -lt 15 ] || wrong="$wrong it took $took s."
    [ -z "$wrong" ] || fail "event_$event" "$1 ranks, comm $2, '$end down' after $3 s:$wrong"
    $end up
done
[ $failed = 1 ] || ok "every_job_ends_and_names_a_cause_after_each_of_${count}_pulled_cables"
kill "$other"
finish
