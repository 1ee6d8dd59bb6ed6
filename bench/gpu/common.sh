# shellcheck shell=sh disable=SC2034
# common.sh - what the scripts of bench/gpu share; sourced by them.
#
# Variables: here (this folder), root (the repository), out (where results go: $OUT, else gpu-results),
# build (the build folder), rc (0 until a step fails: later steps still run, and the script ends with it).

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${OUT:-$root/gpu-results}
mkdir -p "$out"
rc=0

die() { echo "$(basename "$0"): $*" >&2; exit 1; }
usage() { sed -n "$1s/^# \{0,1\}//p" "$0" >&2; exit 2; }

# use_build DIR [DEPS]: programs and, where carry.sh made one, an Open MPI
use_build() {
    build=$(cd "$1" 2>/dev/null && pwd) || die "no build folder '$1'"
    hvtrain=${HVTRAIN:-$build/hvtrain}
    [ -x "$hvtrain" ] || die "no program $hvtrain"
    deps=${DEPS:-$root/.dev}
    if [ -x "$deps/mpi/bin/mpirun" ]; then
        PATH=$deps/mpi/bin:$PATH
    fi
    export PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
}

# step NAME COMMAND...: run, keep the output in $out/NAME.txt, say how it ended and after how many seconds
step() {
    step_name=$1
    shift
    step_began=$(date +%s)
    if "$@" >"$out/$step_name.txt" 2>&1; then step_rc=0; else step_rc=$?; fi
    case $step_rc in
    0) step_word=ok ;;
    77) step_word=skipped ;;
    *) step_word="FAILED ($step_rc)"; rc=1 ;;
    esac
    echo "$step_name: $step_word, $(($(date +%s) - step_began)) s"
    printf '{"step": "%s", "rc": %d, "seconds": %d}\n' "$step_name" "$step_rc" \
        $(($(date +%s) - step_began)) >>"$out/steps.jsonl"
    [ "$step_rc" -eq 0 ] || [ "$step_rc" -eq 77 ] || tail -n 15 "$out/$step_name.txt"
    return 0
}

# ranks N COMMAND...: on N ranks of this host, all of them on one GPU. NCCL refuses a second rank with the
# same GPU on one host, so each rank is made to look like a host of its own; lo carries what they exchange.
ranks() {
    n=$1
    shift
    NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 \
        mpirun --bind-to none -np "$n" "$@"
}
