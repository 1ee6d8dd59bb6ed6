#!/bin/sh
# train.sh - CIFAR-10 to its accuracy on the GPU, in f32, bf16 and f16.
#
# usage: bench/gpu/train.sh [-e EPOCHS] [-m MODEL] [-l LIMIT] [-b BATCH] [-c] BUILD DATA
#
#   -e EPOCHS  of each run [30]
#   -m MODEL   [resnet20]
#   -l LIMIT   only the first LIMIT images of each split [all]
#   -b BATCH   the largest batch that is tried [262144]; 0: none is
#   -c         the same run on device cpu, too, for its accuracy
#
# DATA is the folder of CIFAR-10's binary files, or synth. For each type: accuracy after every epoch, epoch
# seconds, peak bytes of GPU memory, and the largest batch of a doubling row that fits. Logs and
# train.json in $OUT. Fails where a run does not end, or 16 bits lose more than 1.5 points to f32.

set -eu
# shellcheck source=bench/gpu/common.sh
. "$(dirname "$0")/common.sh"

epochs=30 model=resnet20 limit=all most=262144 cpu=no
while getopts e:m:l:b:c opt; do
    case $opt in
    e) epochs=$OPTARG ;;
    m) model=$OPTARG ;;
    l) limit=$OPTARG ;;
    b) most=$OPTARG ;;
    c) cpu=yes ;;
    *) usage 2,14 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 2 ] || usage 2,14
use_build "$1"
if [ "$2" = synth ]; then data="--data synth"; else data="--data cifar10 --data-dir $2"; fi
: >"$out/steps.jsonl"
recipe="--model $model $data --batch 128 --augment crop:4,flip --epochs $epochs --lr 0.1 --schedule cosine
    --weight-decay 1e-4 --print-freq 100"
[ "$limit" = all ] || recipe="$recipe --limit $limit"

for amp in f32 bf16 f16; do
    # shellcheck disable=SC2086
    step "train-$amp" "$hvtrain" --device cuda $recipe --amp $amp --log "$out/train-$amp.jsonl"
done
if [ $cpu = yes ]; then
    # shellcheck disable=SC2086
    step train-cpu "$hvtrain" --device cpu $recipe --log "$out/train-cpu.jsonl"
fi

# The largest batch of a doubling row that can be planned and trained for one update.
: >"$out/largest.txt"
for amp in f32 bf16 f16; do
    batch=256 fits=0
    while [ $batch -le "$most" ]; do
        if XDG_CACHE_HOME=$out/plans "$hvtrain" --device cuda --model "$model" --data synth --samples $batch --batch $batch --steps 1 \
            --eval-freq 0 --amp $amp --quiet on >"$out/last-batch.txt" 2>&1; then
            fits=$batch
        else
            grep -q 'no memory' "$out/last-batch.txt" || cat "$out/last-batch.txt"
            break
        fi
        batch=$((batch * 2))
    done
    echo "$amp $fits" | tee -a "$out/largest.txt"
done

set -- "$out"/train-*.jsonl
python3 "$here/summary.py" "$@" >"$out/train.json"
python3 - "$out/train.json" "$out/largest.txt" <<'END' || rc=1
import json, sys

runs = json.load(open(sys.argv[1]))
largest = dict(line.split() for line in open(sys.argv[2]))
top = {}
for r in runs:
    name = r["log"].rsplit("train-", 1)[1].removesuffix(".jsonl")
    if not r["ended"]:
        sys.exit(f"{name}: the run did not end")
    top[name] = r["top1"][-1]
    epoch = sorted(r["epoch_s"])[len(r["epoch_s"]) // 2]
    print(f"{name:5} top-1 {top[name]:6.2f} %  epoch {epoch:8.3f} s  {r['img_s'] or 0:9.0f} img/s  "
          f"peak {(r['device_peak'] or 0) / 2**20:8.0f} MiB  largest batch {largest.get(name, '-')}")
low = [n for n in ("bf16", "f16") if top[n] < top["f32"] - 1.5]
if low:
    sys.exit(f"{', '.join(low)}: more than 1.5 points below f32")
END
exit $rc
