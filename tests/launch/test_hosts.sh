#!/bin/sh
# test_hosts.sh HVTRAIN ROOT: mpirun with the files of hostfiles/. Two hosts are two network namespaces with
# names of their own and a virtual cable between them; where ssh would be, a script enters the other one.
# All of it lives in a mount, process and (when not root) user namespace of this test, so that nothing can be
# left behind: the last process to leave takes everything along.
set -u
if [ "${1:-}" != --inside ]; then
    command -v unshare >/dev/null && command -v nsenter >/dev/null || { echo "skip: no unshare"; exit 77; }
    PATH=$PATH:/usr/sbin:/sbin
    command -v ip >/dev/null || { echo "skip: no ip (Debian: iproute2)"; exit 77; }
    flags="--mount --net --uts --pid --ipc --fork --kill-child --mount-proc"
    [ "$(id -u)" = 0 ] || flags="--user --map-root-user $flags"
    unshare $flags true 2>/dev/null || { echo "skip: namespaces cannot be had here"; exit 77; }
    exec unshare $flags "$0" --inside "$@"
fi
hvtrain=$(readlink -f "$2") root=$3
. "$root/tests/support/launch.sh"
PATH=$PATH:/usr/sbin:/sbin
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1

# ---- two hosts --------------------------------------------------------------------------------------------
lay_cable() {
    printf '127.0.0.1 localhost\n10.0.7.1 node1\n10.0.7.2 node2\n' >hosts &&
        mount --bind hosts /etc/hosts &&
        hostname node1 &&
        ip link set lo up || return 1
    unshare --net --uts sh -c 'hostname node2 && : >up && exec sleep 3600' &
    other=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -f up ] && break
        sleep 0.2
    done
    ip link add veth1 type veth peer name veth2 netns $other &&
        ip addr add 10.0.7.1/24 dev veth1 && ip link set veth1 up &&
        on_node2 ip addr add 10.0.7.2/24 dev veth2 && on_node2 ip link set veth2 up &&
        on_node2 ip link set lo up
}
on_node2() { nsenter -t "$other" --net --uts "$@"; }
lay_cable || skip "no virtual cable (veth) here"
printf '#!/bin/sh\nshift\nexec nsenter -t %s --net --uts sh -c "$*"\n' "$other" >rsh
chmod +x rsh

here() { # FILE RANKS ARG...: this host alone, its slots from a host file
    file=$1 ranks=$2
    shift 2
    timeout 120 mpirun --allow-run-as-root --bind-to none --mca btl self,vader \
        --hostfile "$root/hostfiles/$file" -np "$ranks" "$hvtrain" "$@"
}
both() { # RANKS ARG...
    ranks=$1
    shift
    timeout 120 mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$tmp/rsh" \
        --mca btl_tcp_if_include 10.0.7.0/24 --mca oob_tcp_if_include 10.0.7.0/24 \
        --mca mpi_yield_when_idle 1 \
        --hostfile "$root/hostfiles/two-nodes.example" -np "$ranks" "$hvtrain" "$@"
}

# ---- what must be true ------------------------------------------------------------------------------------
"$hvtrain" $train_args --log alone.log >alone.out 2>&1 || {
    fail a_process_alone_trains "exit $?: $(cat alone.out)"
    finish
}
alone=$(weights_of alone.log)

here localhost 4 $train_args --log localhost.log >localhost.out 2>&1
same_weights four_slots_of_localhost_end_with_the_same_weights "$alone" localhost.log localhost.out

both 4 $train_args --log both.log >both.out 2>&1
same_weights two_hosts_end_with_the_same_weights "$alone" both.log both.out
if grep -q node1 both.out && grep -q node2 both.out; then
    ok both_hosts_are_in_the_table_of_ranks
else
    fail both_hosts_are_in_the_table_of_ranks "$(cat both.out)"
fi
if [ "$(start_of both.log comm)" = hier ]; then
    ok auto_is_hier_on_hosts_with_two_ranks_each
else
    fail auto_is_hier_on_hosts_with_two_ranks_each "comm is '$(start_of both.log comm)'"
fi
both 4 $train_args --comm mpi --log mpi.log >mpi.out 2>&1
same_weights messages_alone_end_with_the_same_weights "$alone" mpi.log mpi.out

timeout 60 mpirun --allow-run-as-root --mca plm_rsh_agent "$tmp/rsh" --mca oob_tcp_if_include 10.0.7.0/24 \
    --hostfile "$root/hostfiles/two-nodes.example" -np 5 "$hvtrain" --steps 1 >five.out 2>&1
if [ $? -ne 0 ] && grep -q "not enough slots" five.out; then
    ok five_ranks_do_not_fit_four_slots
else
    fail five_ranks_do_not_fit_four_slots "$(cat five.out)"
fi

# One rank of the other host is killed in the middle of a long run: the job ends within seconds.
both 4 $train_args --epochs 1000 --log killed.log >killed.out 2>&1 &
job=$!
for _ in $(seq 300); do
    grep -q '"step"' killed.log 2>/dev/null && break
    sleep 0.1
done
began=$(date +%s)
victim=
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/exe")" = "$hvtrain" ] &&
        [ "$(readlink "$process/ns/net")" = "$(readlink "/proc/$other/ns/net")" ] && victim=${process#/proc/}
done
if [ -n "$victim" ]; then
    kill -9 "$victim"
    wait $job
    code=$?
    took=$(($(date +%s) - began))
    if [ $code -ne 0 ] && [ $took -lt 20 ]; then
        ok a_rank_killed_on_the_other_host_ends_the_job
    else
        fail a_rank_killed_on_the_other_host_ends_the_job "exit $code after $took s"
    fi
else
    fail a_rank_killed_on_the_other_host_ends_the_job "it never trained: $(cat killed.out)"
    kill $job
fi
kill "$other"
finish
