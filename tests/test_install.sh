#!/bin/sh
# test_install.sh BUILD ROOT COMPILER...: what `meson install` puts in place is enough to compile, link and
# run tests/example.c by pkg-config alone, and the library defines no name but its own.
set -u
build=$1 root=$2
shift 2
command -v pkg-config >/dev/null || { echo "skip: no pkg-config"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
step() { # NAME COMMAND...
    name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        echo "ok   $name"
    else
        echo "FAIL $name: $*"
        cat "$tmp/out"
        exit 1
    fi
}

step it_installs meson install -C "$build" --no-rebuild --destdir "$tmp/root"
pc=$(find "$tmp/root" -name hvt.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
sed -i "s|^prefix=.*|prefix=$tmp/root$prefix|" "$pc" # where it lies until it is moved into place
export PKG_CONFIG_PATH="$(dirname "$pc")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
case $(find "$tmp/root" -name 'libhvt.*') in
*.so*) static= ;;
*) static=--static ;;
esac
every_global_name_begins_with_hvt() { # in an archive all globals of all objects meet those of the host program
    for library in $(find "$tmp/root" -name 'libhvt.a' -o -name 'libhvt.so'); do
        case $library in
        *.a) names=$(nm -g --defined-only "$library" 2>/dev/null) ;;
        *) names=$(nm -D --defined-only "$library") ;;
        esac
        printf '%s\n' "$names" | awk 'NF == 3 {all++} NF == 3 && $3 !~ /^hvt/ {print $3; other = 1}
                                      END {if (!all) print "no names at all"; exit other || !all}' || return 1
    done
}
step every_global_name_begins_with_hvt every_global_name_begins_with_hvt
# words, all of them
step the_example_compiles "$@" -std=c17 -Wall -Wextra -Werror "$root/tests/example.c" -o "$tmp/example" \
    $(pkg-config $static --cflags --libs hvt)
step the_example_runs "$tmp/example"
cat "$tmp/out"
first=$(sed -n 's/^epoch 1: loss \([0-9.]*\),.*/\1/p' "$tmp/out")
last=$(sed -n 's/^epoch 3: loss \([0-9.]*\),.*/\1/p' "$tmp/out")
if [ "$(printf '%s\n' "${first:-0}" "${last:-9}" | sort -g | tail -n 1)" = "$first" ]; then
    echo "ok   the_example_learns"
else
    echo "FAIL the_example_learns: loss went from '$first' to '$last'"
    exit 1
fi
