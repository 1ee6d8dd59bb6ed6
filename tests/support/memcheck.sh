#!/bin/sh
# memcheck.sh BUILD [RANKS NAME PROGRAM ARG ...]: tests and short runs of hvtrain under valgrind's memcheck, two
# at a time. Tests see by HVT_TEST_MEMCHECK that they should be short. Valgrind's processor has AVX2 and not
# AVX-512, so instruction sets up to avx2 are checked, and of the others the kernels that tests/emulated turns
# into plain C. The other tests of device and model run under MSan and ASan, which together see what memcheck
# sees in them. Prints a line for each, and what memcheck found; exits with 1 if anything failed. With more
# arguments it runs that one program alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
logs=$build/memcheck
export HVT_TEST_MEMCHECK=1
# libjpeg-turbo's vector code loads bytes beyond rows, and memcheck takes its results for undefined.
export JSIMD_FORCENONE=1

# RANKS NAME COMMAND; 0 ranks: without mpirun. The longest first.
list() {
    once="--data synth --classes 10 --samples 8 --batch 4 --steps 1 --epochs 1 --lr 0.000001 --threads 1 --quiet"
    cat <<END
0 resnet18-f32-portable hvtrain $once --isa portable --model resnet18 --size 32
0 resnet18-bf16-avx2 hvtrain $once --isa avx2 --model resnet18 --stem cifar --size 8 --amp bf16
0 resnet20-f32-avx2 hvtrain $once --isa avx2
0 mobilenet-f32-avx2 hvtrain $once --isa avx2 --model mobilenet_v2 --size 8
0 resnet20-bf16-portable hvtrain $once --isa portable --amp bf16 --size 8
2 resnet20-np2 hvtrain $once --isa avx2 --amp bf16 --size 8
END
    for name in device half optim options checkpoint train image damage; do
        echo "0 $name tests/test_$name"
    done
    echo "0 powersgd tests/test_powersgd"
    echo "2 sharded-np2 tests/test_sharded"
    # Some of 3 ranks and some of 4: a tree of 3 is not whole.
    echo "4 conform-np4 tests/test_conform"
    echo "1 collective-np1 tests/test_collective"
    echo "1 fuse-np1 tests/test_fuse"
    echo "3 fuse-np3 tests/test_fuse"
    echo "1 comm-np1 tests/test_comm"
    echo "2 messages-np2 tests/test_messages"
}

one() { # RANKS NAME PROGRAM ARG...
    ranks=$1 name=$2 program=$build/$3
    shift 3
    set -- valgrind -q --error-exitcode=9 --suppressions="$here/memcheck.supp" "$program" "$@"
    if [ "$ranks" != 0 ]; then
        set -- env LD_PRELOAD="$build/tests/libnaps.so" "$here/run_ranks.sh" "$ranks" "$@"
    fi
    began=$(date +%s) code=0
    timeout 900 "$@" >"$logs/$name.log" 2>&1 || code=$?
    took=$(($(date +%s) - began))
    if [ $code = 0 ] || [ $code = 77 ]; then
        echo "ok   memcheck $name, $took s"
    else
        echo "FAIL memcheck $name, exit code $code, $took s"
        grep -vE '^(ok|skip)' "$logs/$name.log" | tail -n 60
        return 1
    fi
}

if [ $# -gt 1 ]; then
    shift
    one "$@"
    exit
fi
rm -rf "$logs"
mkdir -p "$logs"
if ! command -v mpirun >/dev/null || ! ldd "$build/hvtrain" | grep libmpi >/dev/null; then
    list | grep '^0 '
else
    list
fi | xargs -P 2 -L 1 "$here/memcheck.sh" "$build"
