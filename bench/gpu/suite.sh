#!/bin/sh
# suite.sh - is what the GPU computes right? Every test that has a device cuda, on the GPU of this host.
#
# usage: bench/gpu/suite.sh [-s] BUILD
#
#   -s  short: no compute-sanitizer
#
# Runs Meson's suites cuda and gpu: ops, models and goldens against ref; the whole program against ref on 1, 2
# and 4 ranks (all on this one GPU, by NCCL and by staged MPI), graph against eager bit for bit, f16 and bf16,
# checkpoints that change devices. Then two updates of a small net under each tool of compute-sanitizer.
# Output of each step in $OUT/STEP.txt, the list of steps in $OUT/steps.jsonl. Ends with 1 if one failed.

set -eu
# shellcheck source=bench/gpu/common.sh
. "$(dirname "$0")/common.sh"

sanitize=yes
while getopts s opt; do
    case $opt in
    s) sanitize=no ;;
    *) usage 2,7 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage 2,7
use_build "$1"
: >"$out/steps.jsonl"

if command -v meson >/dev/null; then meson=meson; else meson="python3 -m mesonbuild.mesonmain"; fi
for suite in cuda gpu; do
    # shellcheck disable=SC2086
    step "suite-$suite" $meson test -C "$build" --no-rebuild --print-errorlogs --suite "$suite"
    cp "$build/meson-logs/testlog.json" "$out/suite-$suite.json" 2>/dev/null || :
done

if [ $sanitize = yes ]; then
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            for amp in f32 f16; do
                step "sanitizer-$tool-$amp" timeout 300 env XDG_CACHE_HOME="$out/plans-$tool-$amp" compute-sanitizer --tool $tool --error-exitcode 9 \
                    "$hvtrain" --device cuda --model resnet20 --data synth --samples 16 --batch 8 --steps 2 \
                    --augment crop:4,flip --amp $amp --graph off
            done
        done
    else
        echo "no compute-sanitizer here"
    fi
fi
exit $rc
