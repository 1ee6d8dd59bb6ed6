#!/bin/sh
# test_hosts.sh HVTRAIN ROOT: mpirun with the files of hostfiles/ on two hosts (two_hosts.sh); where ssh would be, a
# script enters the other one.
set -u
. "$(dirname "$0")/../support/two_hosts.sh"

# ---- two hosts --------------------------------------------------------------------------------------------
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

rank_of_node2() { # the process of one
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" = "$hvtrain" ] &&
            [ "$(readlink "$process/ns/net")" = "$(readlink "/proc/$other/ns/net")" ] && echo "${process#/proc/}"
    done | tail -n 1
}

# ---- what must be true ------------------------------------------------------------------------------------
"$hvtrain" $train_args --log alone.log >alone.out 2>&1 || {
    fail a_process_alone_trains "exit $?: $(cat alone.out)"
    finish
}
alone=$(weights_of alone.log)

here localhost 4 $train_args --log localhost.log >localhost.out 2>&1
same_weights four_slots_of_localhost_end_with_the_same_weights "$alone" localhost.log localhost.out

both 4 $train_args --verbose --log both.log >both.out 2>&1
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

both 4 check --stall-abort 100s --threads 1 >check.out 2>&1
code=$?
if [ $code = 0 ] && grep -q '^ok    launcher  4 ranks on 2 hosts, 2 each, as launched' check.out &&
    grep -q '^ok    network   the hosts share 10.0.7.0/24 (veth1' check.out &&
    grep -q '^ok    clocks    hosts agree within [0-9.]* ms' check.out &&
    grep -q 'sums      comm hier: 64 bytes in [0-9.]* us; 8 MiB in [0-9.]* ms' check.out && grep -q '^ready' check.out
then
    ok a_check_of_two_hosts_counts_them_and_sums_over_both
else
    fail a_check_of_two_hosts_counts_them_and_sums_over_both "exit $code: $(cat check.out)"
fi

timeout 60 mpirun --allow-run-as-root --mca plm_rsh_agent "$tmp/rsh" --mca oob_tcp_if_include 10.0.7.0/24 \
    --hostfile "$root/hostfiles/two-nodes.example" -np 5 "$hvtrain" --steps 1 >five.out 2>&1
if [ $? -ne 0 ] && grep -q "not enough slots" five.out; then
    ok five_ranks_do_not_fit_four_slots
else
    fail five_ranks_do_not_fit_four_slots "$(cat five.out)"
fi

# A rank of the other host is slow, and this host does nothing but wait, for longer than --stall-abort.
stuck=$(dirname "$hvtrain")/tests/train/stuck
if [ -x "$stuck" ]; then
    (
        export HVT_TEST_SLOW=3:500
        timeout 120 mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$tmp/rsh" \
            --mca btl_tcp_if_include 10.0.7.0/24 --mca oob_tcp_if_include 10.0.7.0/24 --mca mpi_yield_when_idle 1 \
            -x HVT_TEST_SLOW --hostfile "$root/hostfiles/two-nodes.example" -np 4 "$stuck" $train_args \
            --size 8 --limit 64 --steps 1 --stall-warn 1s --stall-abort 2s >slow.out 2>&1
    )
    code=$?
    if [ $code = 0 ] && grep -q 'warning: ranks\{0,1\} .*(node1) ha.* waited' slow.out; then
        ok a_slow_rank_of_another_host_is_waited_for
    else
        fail a_slow_rank_of_another_host_is_waited_for "exit $code: $(cat slow.out)"
    fi
fi

# A second cable that loses every packet: the other end's hardware address is a wrong one. Open MPI would wait for
# longer than a test may.
ip link add docker0 type veth peer name docker1 netns $other &&
    ip addr add 172.17.0.1/24 dev docker0 && ip link set docker0 up &&
    on_node2 ip addr add 172.17.0.2/24 dev docker1 && on_node2 ip link set docker1 up &&
    ip neigh replace 172.17.0.2 lladdr 02:00:00:00:00:99 dev docker0 nud permanent &&
    on_node2 ip neigh replace 172.17.0.1 lladdr 02:00:00:00:00:98 dev docker1 nud permanent
began=$(date +%s)
(
    export OMPI_MCA_orte_abort_timeout=5
    timeout 120 mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$tmp/rsh" \
        --mca btl_tcp_if_include 172.17.0.0/24 --mca oob_tcp_if_include 10.0.7.0/24 \
        --hostfile "$root/hostfiles/two-nodes.example" -np 4 "$hvtrain" $train_args \
        --stall-warn 1s --stall-abort 5s >lost.out 2>&1
)
code=$?
took=$(($(date +%s) - began))
if [ $code -ne 0 ] && [ $code -ne 124 ] && [ $took -lt 60 ] &&
    grep -q 'hvtrain: warning: rank 0 (node1) has waited .* veth1 10.0.7.1, docker0 172.17.0.1.*btl_tcp_if_include veth1 ' lost.out &&
    grep -q 'hvtrain: warning: rank 2 (node2) has waited .* veth2 10.0.7.2, docker1 172.17.0.2.*btl_tcp_if_include veth2 ' lost.out &&
    grep -q 'hvtrain: error: rank .* has waited .*: giving up' lost.out
then
    ok a_network_that_drops_packets_is_named_and_ends_the_job
else
    fail a_network_that_drops_packets_is_named_and_ends_the_job "exit $code after $took s: $(cat lost.out)"
fi
ip link del docker0

# One rank of the other host is killed in the middle of a long run: the job ends within seconds.
both 4 $train_args --epochs 1000 --log killed.log >killed.out 2>&1 &
job=$!
for _ in $(seq 300); do
    grep -q '"step"' killed.log 2>/dev/null && break
    sleep 0.1
done
began=$(date +%s)
victim=$(rank_of_node2)
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

# ---- from photographs to predictions ----------------------------------------------------------------------
# docs/guide.md tells this story: pictures in folders, pretrained weights with a new head, ended in the middle of
# an epoch, on other ranks to the end, predictions of pictures without labels.
picture() { { printf 'P6 40 30 255\n' && head -c 3600 /dev/urandom; } >"$1"; }
mkdir -p photos/dog photos/thing photos/wild new
for i in $(seq 17); do
    picture photos/dog/$i.ppm && picture photos/thing/$i.ppm && picture photos/wild/$i.ppm && picture new/$i.ppm
done
"$hvtrain" --model resnet18 --size 32 --samples 64 --batch 8 --steps 1 --threads 1 --save pre >pre.out 2>&1
tune="--data folder --data-dir photos --val-split 0.1 --size 32 --augment rrc,flip --model resnet18 --classes 3
      --init pre/last.safetensors --reset-head --freeze conv1,bn1,layer1,layer2,layer3 --batch 3 --shards 4 --epochs 8
      --threads 1 --eval-freq 4 --print-freq 1 --save-every 5steps"
"$hvtrain" $tune --save straight --log straight.log >straight.out 2>&1
both 4 $tune --save tuned --resume auto --log tuned.log >first.out 2>&1 &
job=$!
for _ in $(seq 600); do
    [ "$(grep -c '"step"' tuned.log 2>/dev/null)" -ge 6 ] 2>/dev/null && break
    sleep 0.05
done
kill -TERM "$(rank_of_node2)"
wait $job
if grep '"record": *"end"' tuned.log | grep -q '"status": *"preempted"'; then
    ok sigterm_to_one_rank_saves_on_two_hosts
else
    fail sigterm_to_one_rank_saves_on_two_hosts "$(tail -n 2 tuned.log) $(cat first.out)"
fi
(
    export OMPI_MCA_rmaps_base_mapping_policy=node
    both 2 $tune --save tuned --resume auto --log tuned.log >second.out 2>&1
)
same_weights a_rank_on_each_host_goes_on_to_the_same_weights "$(weights_of straight.log)" tuned.log second.out
both 4 --evaluate --resume tuned --data-dir new --predict new.csv >predict.out 2>&1
"$hvtrain" --evaluate --resume straight --data-dir new --predict one.csv >>predict.out 2>&1
if cmp -s new.csv one.csv && [ "$(wc -l <one.csv)" = 18 ] &&
    [ "$(awk -F, 'NR > 1 && $6 ~ /^(dog|thing|wild)$/' one.csv | wc -l)" = 17 ]
then
    ok new_pictures_get_the_names_of_classes
else
    fail new_pictures_get_the_names_of_classes "$(head -n 3 one.csv) $(tail -n 5 predict.out)"
fi
if why=$(cat first.out second.out predict.out new.csv |
    python3 "$root/tests/support/shown.py" "$root/docs/guide.md" "From fifty photographs to predictions" 2>&1)
then
    ok the_guide_shows_what_is_printed
else
    fail the_guide_shows_what_is_printed "$why"
fi
kill "$other"
finish
