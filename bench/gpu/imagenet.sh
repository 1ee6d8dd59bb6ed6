#!/bin/sh
# imagenet.sh - ResNet-50 at 224x224 beside PyTorch on the same GPU in the same minutes.
#
# usage: bench/gpu/imagenet.sh [-b BATCHES] [-s STEPS] [-n ROUNDS] [-l STEPS] [-z SIZE] [-d DEVICE] BUILD
#
#   -b BATCHES  ["32 256 400"]
#   -s STEPS    timed updates of one run [60], after 20 that are not
#   -n ROUNDS   of ours, eager, compiled, in turns [2]
#   -l STEPS    of the loss curves [300]; 0: none
#   -z SIZE     pixels of a side [224]
#   -d DEVICE   PyTorch's [cuda]; cpu: to try the script where there is no GPU
#
# Speed: training on drawn images (ours reads and normalises bytes in every step, PyTorch's lie ready on the
# GPU) in bf16: ours, PyTorch eager (AMP, channels last) and torch.compile. Median of the rounds. Loss: the same
# images in the same order from the same weights, at batch 64, ours and eager; the mean of each 50 steps must
# agree within 5 %. Raw output, imagenet.json and losses.json in $OUT.

set -eu
# shellcheck source=bench/gpu/common.sh
. "$(dirname "$0")/common.sh"

batches="32 256 400" steps=60 rounds=2 curve=300 size=224 device=cuda
while getopts b:s:n:l:z:d: opt; do
    case $opt in
    b) batches=$OPTARG ;;
    s) steps=$OPTARG ;;
    n) rounds=$OPTARG ;;
    l) curve=$OPTARG ;;
    z) size=$OPTARG ;;
    d) device=$OPTARG ;;
    *) usage 2,11 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage 2,11
use_build "$1"
: >"$out/steps.jsonl"
peer=$here/torch_peer.py
samples=4000
run="--device cuda --model resnet50 --classes 1000 --data synth --size $size --amp bf16 --eval-freq 0
    --last-batch drop --print-freq 10"

for round in $(seq "$rounds"); do
    for batch in $batches; do
        name=$batch-$round
        # shellcheck disable=SC2086
        step "ours-$name" "$hvtrain" $run --samples $samples --batch "$batch" --epochs 1000 \
            --steps $((steps + 20)) --log "$out/ours-$name.jsonl"
        for kind in eager compile; do
            step "$kind-$name" python3 "$peer" speed --kind $kind --batch "$batch" --steps "$steps" \
                --size "$size" --device "$device" --json "$out/$kind-$name.json"
        done
    done
done

if [ "$curve" -gt 0 ]; then
    n=$((curve * 64))
    [ $n -le 6400 ] || n=6400
    step draw "$build/bench/dump_synth" $n "$size" 1000 "$out/synth.bin"
    step weights python3 "$peer" weights --file "$out/start.safetensors"
    for amp in f32 bf16 f16; do
        # shellcheck disable=SC2086
        step "curve-ours-$amp" "$hvtrain" $run --amp $amp --samples $n --batch 64 --shuffle off --epochs 1000 \
            --steps "$curve" --lr 0.05 --init "$out/start.safetensors" --print-freq 1 \
            --log "$out/curve-ours-$amp.jsonl"
        step "curve-torch-$amp" python3 "$peer" curve --amp $amp --data "$out/synth.bin" --batch 64 \
            --steps "$curve" --lr 0.05 --init "$out/start.safetensors" --device "$device" --json "$out/curve-torch-$amp.json"
    done
    rm -f "$out/synth.bin" "$out/start.safetensors"
fi
python3 "$peer" compare --out "$out" --batches "$batches" --rounds "$rounds" || rc=1
exit $rc
