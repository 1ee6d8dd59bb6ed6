#!/bin/sh
# Usage: test_solver.sh RUN_RANKS PYTHON PACKAGE SOLVER ...   The loss and the weights of the solver are the same in all
# languages, on 1, 2, 3 and 5 ranks, and if it is stopped and continued on another number of ranks. A solver is a program or
# a script of Python. Skipped without PyTorch, which makes the network.
set -eu
run_ranks=$1
torch=$("$2" -c 'import sys; sys.path.append(sys.argv[1]); import truths; print(truths.python_with("torch, numpy", sys.argv[2]) or "")' \
    "$(dirname "$1")" "$3/../../..")
export PYTHONPATH="$3" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
unet=$(cd "$(dirname "$0")" && pwd)/unet.py
shift 3
[ -n "$torch" ] || { echo "no PyTorch to make a U-Net"; exit 77; }
here=$PWD
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd "$folder"
"$torch" "$unet"
first=

solve() { # [BEGIN END]: on $n ranks: the line that it prints, its weights and optimizer state
    line=$("$run_ranks" "$n" $with "$solver" "$@" | grep 'mean squared error')
    sum=$(cat surrogate*.safetensors | cksum)
}

same() { # WHAT
    echo "$(basename "$solver") $1: $line, weights $sum"
    [ "${first:=$line $sum}" = "$line $sum" ]
}

for solver; do
    with=
    [ -e "$solver" ] || solver=$here/$solver
    case $solver in
    *.py) with=$torch ;;
    esac
    for n in 1 2 3 5; do
        rm -f surrogate*
        solve
        same "on $n ranks"
    done
    rm surrogate*
    n=3
    solve 0 50
    n=2
    solve 50 100
    same "on 3 ranks, continued on 2"
done
