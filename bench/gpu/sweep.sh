#!/bin/sh
# sweep.sh - the fusion buffer on the GPU's path: bucket sizes x wires, on ranks that share one GPU.
#
# usage: bench/gpu/sweep.sh [-n RANKS] [-m MODEL] [-b BATCH] [-s STEPS] [-c COMMS] [-k BUCKETS] BUILD
#
#   -n RANKS    [2]
#   -m MODEL    [resnet50 with the cifar stem]
#   -b BATCH    per rank [64]
#   -s STEPS    updates of one run [60]
#   -c COMMS    ["nccl mpi"]; nccl over sockets on lo, mpi staged through host memory
#   -k BUCKETS  ["0 1MiB 2MiB 4MiB 8MiB 16MiB 25MiB 32MiB 64MiB all"]
#
# What one GPU can show: the cost of many small exchanges against the overlap lost by few large ones, where the
# link is the host. Every run must end with the weights of the first one with its comm and wire f32, bit
# for bit. Logs and sweep.json in $OUT.

set -eu
# shellcheck source=bench/gpu/common.sh
. "$(dirname "$0")/common.sh"

n=2 model="resnet50 --stem cifar" batch=64 steps=60 comms="nccl mpi"
buckets="0 1MiB 2MiB 4MiB 8MiB 16MiB 25MiB 32MiB 64MiB all"
while getopts n:m:b:s:c:k: opt; do
    case $opt in
    n) n=$OPTARG ;;
    m) model=$OPTARG ;;
    b) batch=$OPTARG ;;
    s) steps=$OPTARG ;;
    c) comms=$OPTARG ;;
    k) buckets=$OPTARG ;;
    *) usage 2,11 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage 2,11
use_build "$1"
: >"$out/steps.jsonl"

device=cuda # a GPU for each rank, else one for all
[ "$n" -le "$(nvidia-smi -L | wc -l)" ] || device=cuda:0
for comm in $comms; do
    for wire in f32 bf16; do
        for bucket in $buckets; do
            name=$comm-$wire-$bucket
            # shellcheck disable=SC2086
            step "sweep-$name" ranks "$n" "$hvtrain" --device $device --deterministic on \
                --model $model --data synth --samples $((batch * n * 8)) --batch "$batch" --epochs 1000 \
                --steps "$steps" --eval-freq 0 --print-freq 10 --comm "$comm" --compression $wire --bucket "$bucket" \
                --log "$out/sweep-$name.jsonl"
        done
    done
done
set -- "$out"/sweep-*.jsonl
python3 "$here/summary.py" "$@" >"$out/sweep.json"
python3 - "$out/sweep.json" <<'END' || rc=1
import json, sys

bad, first = [], {}
print(f"{'comm':6}{'wire':6}{'bucket':8}{'img/s':>9}")
for r in json.load(open(sys.argv[1])):
    if not r["ended"]:
        bad.append(r["log"])
        continue
    o = r["options"]
    print(f"{r['comm']:6}{r['wire']:6}{o['bucket']:8}{r['img_s'] or 0:9.0f}")
    if r["wire"] == "f32" and r["weights"] != first.setdefault(r["comm"], r["weights"]):
        bad.append(f"{r['log']}: other weights")
if bad:
    sys.exit("; ".join(bad))
END
exit $rc
