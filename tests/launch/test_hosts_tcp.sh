#!/bin/sh
# test_hosts_tcp.sh HVTRAIN ROOT: two hosts without mpirun, by IPv4 and IPv6; a rank that is killed on the other host, and
# a cable that is pulled.
set -u
. "$(dirname "$0")/../support/two_hosts.sh"
lay_cable || skip "no virtual cable (veth) here"
ip addr add fd00:7::1/64 dev veth1 nodad 2>/dev/null && on_node2 ip addr add fd00:7::2/64 dev veth2 nodad 2>/dev/null
v6=$?

start() { # NAME WHERE RANKS ARG...: the upper half of the ranks on node2; sets ranks to their processes
    name=$1 where=$2 size=$3 ranks=
    shift 3
    for rank in $(seq 0 $((size - 1))); do
        host="nsenter -t $other --net --uts" # becomes the rank itself
        [ $((2 * rank)) -ge "$size" ] || host=
        $host "$hvtrain" $train_args --init-method "$where" --rank "$rank" --world-size "$size" --log "$name.log" "$@" \
            >"$name.$rank" 2>&1 &
        ranks="$ranks $!"
    done
}
await() { # sets codes
    codes=
    (sleep 60 && kill -9 $ranks) 2>/dev/null & # a job that hangs
    guard=$!
    for pid in $ranks; do
        wait "$pid"
        codes="$codes $?"
    done
    kill $guard 2>/dev/null
}
await_training() { # NAME
    for _ in $(seq 600); do
        grep -q '"step"' "$1.log" 2>/dev/null && return
        sleep 0.05
    done
}

"$hvtrain" $train_args --log alone.log >alone.out 2>&1
alone=$(weights_of alone.log)

port=23456
for case in "v4 tcp://10.0.7.1:$port" "v6 tcp://[fd00:7::1]:$port" "name tcp://node1:$port" "interface tcp://10.0.7.1:$port" \
    "file file://$tmp/meet"; do
    name=${case%% *} where=${case#* } more=
    [ "$name" != v6 ] || [ $v6 = 0 ] || continue
    if [ "$name" = interface ]; then
        ranks=
        "$hvtrain" $train_args --init-method "$where" --rank 0 --world-size 2 --interface veth1 --log $name.log >$name.0 2>&1 &
        ranks=$!
        on_node2 "$hvtrain" $train_args --init-method "$where" --rank 1 --world-size 2 --interface veth2 --log $name.log \
            >$name.1 2>&1 &
        ranks="$ranks $!"
    else
        start $name "$where" 4 --verbose
    fi
    await
    same_weights "two_hosts_meet_by_$name" "$alone" $name.log $name.0
done
if [ "$(start_of v4.log comm)" = hier ] && grep -q 'rank 2 *node2' v4.0; then
    ok ranks_of_a_host_share_memory
else
    fail ranks_of_a_host_share_memory "comm '$(start_of v4.log comm)': $(cat v4.0)"
fi
start tcp "tcp://10.0.7.1:$port" 2 --comm tcp
await
same_weights messages_alone_end_with_the_same_weights "$alone" tcp.log tcp.0

# One rank of the other host is killed: the others name it and end.
start killed "tcp://10.0.7.1:$port" 4 --epochs 10000
await_training killed
began=$(date +%s)
kill -9 "${ranks##* }"
await
took=$(($(date +%s) - began))
if [ "$codes" = " 1 1 1 137" ] && [ $took -lt 10 ] && grep -q 'rank 3 (node2) has ended' killed.0 killed.1 killed.2; then
    ok a_rank_killed_on_the_other_host_is_named_and_ends_the_job
else
    fail a_rank_killed_on_the_other_host_is_named_and_ends_the_job "exit $codes after $took s: $(tail -n 2 killed.?)"
fi

# The cable is pulled.
start pulled "tcp://10.0.7.1:$port" 2 --epochs 10000 --stall-warn 1s --stall-abort 4s
await_training pulled
began=$(date +%s)
ip link set veth1 down
await
took=$(($(date +%s) - began))
case $codes in
*" 0"* | *" 124"*) good=no ;;
*) good=yes ;;
esac
if [ $good = yes ] && [ $took -lt 30 ] && grep -q 'rank 1 (node2)' pulled.0 && grep -q 'rank 0 (node1)' pulled.1; then
    ok a_pulled_cable_ends_both_sides_within_stall_abort
else
    fail a_pulled_cable_ends_both_sides_within_stall_abort "exit $codes after $took s: $(tail -n 3 pulled.?)"
fi
kill "$other"
finish
