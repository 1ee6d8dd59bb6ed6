#!/bin/sh
# build.sh - build hvtrain for the GPU of this host, and write down what the host is made of.
#
# usage: bench/gpu/build.sh [-a ARCHS] [-d DEPS] BUILD
#
#   -a ARCHS  compute capabilities without the dot, by commas [this host's GPU, else 90]
#   -d DEPS   what carry.sh gathered [.dev]; a host that has Open MPI and jansson needs none
#
# The toolkit is the one of nvcc in PATH, $CUDA_HOME or /usr/local/cuda; cuDNN, NCCL and cuBLAS may also
# come from Python's wheels. An existing BUILD is brought up to date. Facts go to $OUT/facts.txt.

set -eu
# shellcheck source=bench/gpu/common.sh
. "$(dirname "$0")/common.sh"

archs=
while getopts a:d: opt; do
    case $opt in
    a) archs=$OPTARG ;;
    d) DEPS=$OPTARG ;;
    *) usage 2,11 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || usage 2,11
deps=${DEPS:-$root/.dev}
build=$1

if [ -d "$deps" ]; then
    deps=$(cd "$deps" && pwd)
    [ ! -d "$deps/mpi/bin" ] || PATH=$deps/mpi/bin:$PATH
    command -v pkg-config >/dev/null || PATH=$deps/tools/bin:$PATH
    PKG_CONFIG_PATH=$deps/tools/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export PATH PKG_CONFIG_PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
for dir in "${CUDA_HOME:-}" /usr/local/cuda; do
    command -v nvcc >/dev/null || [ ! -x "$dir/bin/nvcc" ] || PATH=$dir/bin:$PATH
done
nvcc=$(command -v nvcc) || die "no nvcc in PATH, \$CUDA_HOME or /usr/local/cuda"
if command -v meson >/dev/null; then meson=meson; else meson="python3 -m mesonbuild.mesonmain"; fi
$meson --version >/dev/null 2>&1 || die "no meson, neither as a program nor for python3"

[ -n "$archs" ] || archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u |
    paste -s -d , -) || :
# every folder below a site-packages/nvidia that could be a prefix
wheels=$(python3 - <<'END' 2>/dev/null || :
import nvidia, os
print(",".join(os.path.join(p, d) for p in nvidia.__path__ for d in sorted(os.listdir(p))
               if os.path.isdir(os.path.join(p, d, "lib"))))
END
)

{
    date -u
    uname -a
    nvidia-smi 2>&1 || :
    "$nvcc" --version | tail -n 2
    cc --version | head -n 1
    $meson --version
    mpirun --version 2>&1 | head -n 1 || :
    python3 -c 'import torch; print("torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(),
        "NCCL", torch.cuda.nccl.version())' 2>&1 | tail -n 1
    echo "wheels: $wheels"
    git -C "$root" describe --always --dirty 2>/dev/null || :
} >"$out/facts.txt" 2>&1

if [ -d "$build/meson-info" ]; then again=--reconfigure; else again=; fi
# shellcheck disable=SC2086
$meson setup "$build" "$root" $again -Dgpu=enabled "-Dgpu_arch=${archs:-90}" "-Dgpu_prefixes=$wheels" \
    >"$out/setup.txt" 2>&1 || { tail -n 20 "$out/setup.txt"; die "meson setup failed"; }
$meson compile -C "$build" >"$out/compile.txt" 2>&1 || { tail -n 30 "$out/compile.txt"; die "the build failed"; }
"$build/hvtrain" --version
grep -E '^ *(MPI|device cuda) *:' "$out/setup.txt" || :
