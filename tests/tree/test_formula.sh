#!/bin/sh
# test_formula.sh ROOT CC... -- CXX: the arithmetic that src/device shares with the kernels of a GPU compiles as
# C17 and as C++17, there with an HVT_FN of its own, and gives the same bits. Skips (77) without a C++ compiler.
root=$1
shift
cc=
while [ "$1" != -- ]; do
    cc="$cc $1"
    shift
done
cxx=$2
command -v "$cxx" >/dev/null && printf 'int x;\n' | "$cxx" -x c++ -std=c++17 -fsyntax-only - 2>/dev/null || {
    echo "no C++ compiler: $cxx"
    exit 77
}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

flags="-O2 -ffp-contract=off -fno-math-errno -pedantic-errors -Wall -Wextra -Wshadow -Werror"
paths="-I$root/include -I$root/src"
# shellcheck disable=SC2086
$cc -x c -std=c17 $flags $paths -o "$dir/c" "$root/tests/tree/formula_text.c" -lm &&
    "$cxx" -x c++ -std=c++17 '-DHVT_FN=inline __attribute__((noinline))' $flags $paths -o "$dir/c++" \
        "$root/tests/tree/formula_text.c" -lm || exit 1
"$dir/c" >"$dir/c.bits" && "$dir/c++" >"$dir/c++.bits" || exit 1
bytes=$(wc -c <"$dir/c.bits")
[ "$bytes" -gt 1000000 ] || {
    echo "only $bytes bytes of results"
    exit 1
}
cmp "$dir/c.bits" "$dir/c++.bits" && echo "$bytes bytes agree"
