#!/bin/sh
# Usage: test_solver.sh RUN_RANKS PYTHON PACKAGE SOLVER ...   The loss and the weights of the solver are the same in all
# languages and on 1, 2 and 3 ranks. A solver is a program or a script of Python; without NumPy the script is left out.
set -eu
run_ranks=$1
numpy=$("$2" -c 'import sys; sys.path.append(sys.argv[1]); import truths; print(truths.python_with("numpy", sys.argv[2]) or "")' \
    "$(dirname "$1")" "$3/../../..")
export PYTHONPATH="$3" PYTHONDONTWRITEBYTECODE=1
shift 3
here=$PWD
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd "$folder"
first=
for solver; do
    with=
    [ -e "$solver" ] || solver=$here/$solver
    case $solver in
    *.py)
        [ -n "$numpy" ] || { echo "no NumPy for $solver"; continue; }
        with=$numpy
        ;;
    esac
    for n in 1 2 3; do
        rm -f surrogate*
        line=$("$run_ranks" "$n" $with "$solver" | grep 'mean squared error')
        sum=$(tail -c 1000000 surrogate.safetensors | cksum)
        echo "$(basename "$solver") on $n ranks: $line, weights $sum"
        [ "${first:-$line $sum}" = "$line $sum" ]
        first="$line $sum"
    done
done
