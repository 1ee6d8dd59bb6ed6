#!/bin/sh
# test_install.sh BUILD ROOT COMPILER...: what `meson install` puts in place, static, shared or both, is enough
# to compile, link and run tests/tree/example.c by pkg-config alone, and the library defines no name but its own.
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
step the_manual_page_is_installed grep -q '^.TH HVTRAIN 1' "$(find "$tmp/root" -path '*/man1/hvtrain.1')"
pc=$(find "$tmp/root" -name hvt.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
sed -i "s|^prefix=.*|prefix=$tmp/root$prefix|" "$pc" # where it lies until it is moved into place
export PKG_CONFIG_PATH="$(dirname "$pc")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
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
learns() { # NAME: did the example, whose output is there, get better?
    first=$(sed -n 's/^epoch 1: loss \([0-9.]*\),.*/\1/p' "$tmp/out")
    last=$(sed -n 's/^epoch 3: loss \([0-9.]*\),.*/\1/p' "$tmp/out")
    if [ "$(printf '%s\n' "${first:-0}" "${last:-9}" | sort -g | tail -n 1)" = "$first" ]; then
        echo "ok   $1"
    else
        echo "FAIL $1: loss went from '$first' to '$last'"
        exit 1
    fi
}

# As a program finds it: linked with libhvt.so, whose own needs it need not name; and with libhvt.a.
lib=$(dirname "$(dirname "$pc")")
if [ -e "$lib/libhvt.so" ]; then
    soname=$(readelf -d "$lib/libhvt.so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
    step the_soname_has_a_version test "$soname" != libhvt.so -a -e "$lib/$soname"
    step the_example_compiles_with_the_shared_library "$@" -std=c17 -Wall -Wextra -Werror \
        "$root/tests/tree/example.c" -o "$tmp/example-shared" $(pkg-config --cflags --libs hvt) # words, all of them
    step it_needs_the_shared_library sh -c "readelf -d '$tmp/example-shared' | grep -F '[$soname]'"
    step the_example_runs_with_the_shared_library env LD_LIBRARY_PATH="$lib" "$tmp/example-shared"
    learns the_example_learns_with_the_shared_library
fi
if [ -e "$lib/libhvt.a" ]; then
    step the_example_compiles "$@" -std=c17 -Wall -Wextra -Werror "$root/tests/tree/example.c" -o "$tmp/example" \
        $(pkg-config --static --cflags --libs hvt | sed 's/-lhvt\b/-l:libhvt.a/')
    step the_example_runs "$tmp/example"
    cat "$tmp/out"
    learns the_example_learns
fi
[ -e "$lib/libhvt.so" ] || [ -e "$lib/libhvt.a" ] || { echo "FAIL no library was installed"; exit 1; }
step the_program_runs_without_the_library env -u LD_LIBRARY_PATH "$(find "$tmp/root" -name hvtrain -type f)" --version
