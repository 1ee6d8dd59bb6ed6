#!/bin/sh
# test_headers.sh c|c++ ROOT BUILD COMPILER...: every header of include/hvt alone, then all together, must compile
# without a warning as C17 or C++17. Skips (77) where the compiler is not there.
lang=$1 root=$2 build=$3
shift 3
case $lang in
c) std="-x c -std=c17 -Wstrict-prototypes" ;;
c++) std="-x c++ -std=c++17" ;;
esac
command -v "$1" >/dev/null && printf 'int x;\n' | "$@" $std -w -fsyntax-only - 2>/dev/null || {
    echo "no $lang compiler: $*"
    exit 77
}

failed=0
compile() { # NAME FLAG...
    name=$1
    shift
    if "$@" -pedantic-errors -Wall -Wextra -Wshadow -Wundef -Werror -fsyntax-only -I"$root/include" -I"$build/include" \
        "$root/tests/tree/header_test.c"; then
        echo "ok   $name as $lang"
    else
        echo "FAIL $name as $lang"
        failed=1
    fi
}
for header in "$root"/include/hvt/*.h "$build"/include/hvt/version.h; do
    name=hvt/$(basename "$header")
    compile "$name" "$@" $std "-DHVT_HEADER=\"$name\""
    [ "$name" = hvt/hvt.h ] || grep -q "#include \"$name\"" "$root/include/hvt/hvt.h" || {
        echo "FAIL hvt/hvt.h does not include $name"
        failed=1
    }
done
compile "all of hvt/hvt.h" "$@" $std
"$@" $std -S -o - -I"$root/include" -I"$build/include" "$root/tests/tree/header_test.c" | grep '_Z[0-9]*hvt_' && {
    echo "FAIL these functions have C++ names: their header lacks extern \"C\""
    failed=1
}
exit $failed
