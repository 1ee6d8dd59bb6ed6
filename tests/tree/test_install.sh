#!/bin/sh
# test_install.sh BUILD ROOT COMPILER...: what `meson install` puts in place, static, shared or both, is enough
# to compile and link the installed examples by pkg-config and by CMake, and to run them; the library defines no name
# but its own, and names no library that it was not linked with.
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
program=$(find "$tmp/root" -name hvtrain -type f)
doc=$(find "$tmp/root" -path '*/share/doc/hvtrain')
links_work() { # between the pages, up to what only the source tree has
    (cd "$doc/docs" && grep -oh ']([^)# ]*\.\(md\|svg\))' *.md | sed 's/](\(.*\))/\1/' | grep -v '^\.\./bench/' | sort -u |
        while IFS= read -r page; do [ -e "$page" ] || echo "no $page"; done) | tee "$tmp/broken"
    [ ! -s "$tmp/broken" ]
}
step the_pages_are_installed test -s "$doc/README.md" -a -s "$doc/LICENSE" -a -s "$doc/docs/guide.md" \
    -a -s "$doc/hostfiles/slurm.sbatch"
step links_between_them_work links_work
pc=$(find "$tmp/root" -name hvt.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
sed -i "s|^prefix=.*|prefix=$tmp/root$prefix|" "$pc" # where it lies until it is moved into place
export PKG_CONFIG_PATH="$(dirname "$pc")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
libraries_of() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[lib\(.*\)\.so.*\]/\1/p'; }
only_what_was_linked_is_named() {
    libraries_of "$program" >"$tmp/linked"
    for word in $(pkg-config --static --libs hvt); do
        case $word in
        -lhvt | -lm | -lrt | -ldl) ;;
        -l*) grep -qx -e "${word#-l}" "$tmp/linked" || { echo "$word is not in hvtrain"; return 1; } ;;
        esac
    done
}
step only_what_was_linked_is_named only_what_was_linked_is_named
features_are_those_of_the_program() {
    for pair in mpi:mpi pt2:zip; do
        linked=no
        libraries_of "$program" | grep -qx "${pair#*:}" && linked=yes
        told=$(pkg-config --variable="${pair%:*}" hvt)
        [ "$told" = $linked ] || { echo "${pair%:*}=$told, but of lib${pair#*:}: $linked"; return 1; }
    done
    grep -q "^#define HVT_HAVE_CUDA $(pkg-config --variable=cuda hvt | sed 's/yes/1/; s/no/0/')$" "$build/config.h" &&
        grep -qxF "#define HVT_ISAS(X) $(pkg-config --variable=isa hvt | sed "s/[a-z0-9_]\+/X(&)/g")" "$build/config.h" || {
        grep -e CUDA -e ISAS "$build/config.h"
        return 1
    }
}
step features_are_those_of_the_program features_are_those_of_the_program
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

cat >"$tmp/version.c" <<'END'
#include <hvt/hvt.h>
#include <stdio.h>
#if !HVT_VERSION_AT_LEAST(HVT_VERSION_MAJOR, HVT_VERSION_MINOR, HVT_VERSION_PATCH) || \
    HVT_VERSION_AT_LEAST(HVT_VERSION_MAJOR, HVT_VERSION_MINOR, HVT_VERSION_PATCH + 1) || \
    HVT_VERSION_AT_LEAST(HVT_VERSION_MAJOR, HVT_VERSION_MINOR + 1, 0) || \
    HVT_VERSION_AT_LEAST(HVT_VERSION_MAJOR + 1, 0, 0) || !HVT_VERSION_AT_LEAST(0, 0, 99)
#error "HVT_VERSION_AT_LEAST() is wrong"
#endif
int main(void)
{
    printf("%s %s %d.%d.%d\n", hvt_version(), HVT_VERSION, HVT_VERSION_MAJOR, HVT_VERSION_MINOR, HVT_VERSION_PATCH);
    return 0;
}
END
examples_compile() { # NAME COMPILER... with the words of pkg-config as the last argument
    into=$1 words=$2
    shift 2
    mkdir -p "$tmp/$into"
    for source in "$doc"/examples/*.c "$tmp/version.c"; do # $words is a list of words
        "$@" -std=c17 -Wall -Wextra -Werror "$source" -o "$tmp/$into/$(basename "$source" .c)" $words || return 1
    done
}
versions_agree() { # FOLDER
    version=$(pkg-config --modversion hvt)
    told=$("$tmp/$1/version") || return 1
    echo "pkg-config: $version; the program: $told"
    [ "$told" = "$version $version $version" ] && "$program" --version | grep -qF "$version" &&
        grep -q "^hvtrain ($version)" "$root/debian/changelog"
}
asserts_are_off_in_releases() { # other builds, as CI's under sanitizers, have them
    kind=$(meson introspect --buildoptions "$build" | python3 -c 'import json, sys
print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == "buildtype"))') || return 1
    echo "a build of type $kind; if it is older than this test: meson configure $build -Db_ndebug=if-release"
    nm "$program" | grep -q __assert_fail && asserts=yes || asserts=no
    case $kind in
    release | plain) [ $asserts = no ] ;;
    *) [ $asserts = yes ] ;;
    esac
}
step asserts_are_off_in_releases asserts_are_off_in_releases
learns() { # FOLDER: the loss of the example falls
    "$tmp/$1/training_loop" >"$tmp/losses" 2>&1 || { cat "$tmp/losses"; return 1; }
    first=$(sed -n 's/^epoch 1: loss \([0-9.]*\),.*/\1/p' "$tmp/losses")
    last=$(sed -n 's/^epoch 3: loss \([0-9.]*\),.*/\1/p' "$tmp/losses")
    echo "the loss went from '$first' to '$last'"
    [ "$(printf '%s\n' "${first:-0}" "${last:-9}" | sort -g | tail -n 1)" = "$first" ]
}

# As a program finds it: linked with libhvt.so, whose own needs it need not name; and with libhvt.a.
lib=$(dirname "$(dirname "$pc")")
if [ -e "$lib/libhvt.so" ]; then
    export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    soname=$(readelf -d "$lib/libhvt.so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
    step the_soname_has_a_version test "$soname" != libhvt.so -a -e "$lib/$soname"
    step the_examples_compile_with_the_shared_library examples_compile shared "$(pkg-config --cflags --libs hvt)" "$@"
    step they_need_the_shared_library sh -c "readelf -d '$tmp/shared/training_loop' | grep -F '[$soname]'"
    step the_example_learns_with_the_shared_library learns shared
    step versions_agree_with_the_shared_library versions_agree shared
fi
if [ -e "$lib/libhvt.a" ]; then
    step the_examples_compile examples_compile static \
        "$(pkg-config --static --cflags --libs hvt | sed 's/-lhvt\b/-l:libhvt.a/')" "$@"
    step the_example_learns learns static
    step versions_agree versions_agree static
fi
[ -e "$lib/libhvt.so" ] || [ -e "$lib/libhvt.a" ] || { echo "FAIL no library was installed"; exit 1; }

fortran=$(find "$tmp/root" -name hvt-fortran.pc)
if [ -n "$fortran" ]; then
    sed -i "s|^prefix=.*|prefix=$tmp/root$prefix|" "$fortran"
    step the_fortran_solver_compiles sh -c "cd '$tmp' && mpifort '$doc/examples/solver.f90' -o '$tmp/solver' \
        $(pkg-config --static --cflags --libs hvt-fortran | tr '\n' ' ')"
    step the_fortran_solver_asks_for_its_network sh -c "cd '$tmp' && '$tmp/solver' 2>&1 | grep '^hvtrain: .*unet.pt2'"
    step it_compiles_against_the_build_folder sh -c "cd '$tmp' && mpifort '$doc/examples/solver.f90' -o '$tmp/solver' \
        $(PKG_CONFIG_PATH=$build/meson-uninstalled pkg-config --static --cflags --libs hvt-fortran | tr '\n' ' ')"
    step it_runs_against_the_build_folder sh -c "cd '$tmp' && LD_LIBRARY_PATH=$build '$tmp/solver' 2>&1 | grep '^hvtrain: .*unet.pt2'"
fi
uninstalled=$(PKG_CONFIG_PATH=$build/meson-uninstalled pkg-config --static --cflags --libs hvt)
step an_example_compiles_against_the_build_folder "$@" "$doc/examples/training_loop.c" -o "$tmp/uninstalled" $uninstalled

# CMake, by the lines that docs/install.md shows.
with_cmake() { # FOLDER SED-SCRIPT FLAG...: configure and compile
    mkdir -p "$tmp/$1"
    sed -n '/^```cmake$/,/^```$/{/^```/!p;}' "$root/docs/install.md" | sed "$2" >"$tmp/$1/CMakeLists.txt"
    cp "$doc/examples/training_loop.c" "$tmp/$1/train.c"
    folder=$tmp/$1
    shift 2
    cmake -S "$folder" -B "$folder/build" "-DCMAKE_PREFIX_PATH=$tmp/root$prefix" -DCMAKE_BUILD_TYPE=Release "$@" &&
        cmake --build "$folder/build"
}
refused_by_cmake() { # SED-SCRIPT
    rm -rf "$tmp/refused"
    with_cmake refused "$1" >"$tmp/refusal" 2>&1 && { echo "accepted"; return 1; }
    grep -q 'considered but not accepted' "$tmp/refusal" || { cat "$tmp/refusal"; return 1; }
}
if command -v cmake >/dev/null; then
    export CC="$*" # a compiler and its flags
    step cmake_finds_the_library with_cmake cmake ''
    step what_cmake_builds_runs "$tmp/cmake/build/train"
    [ ! -e "$lib/libhvt.so" ] || step cmake_prefers_the_shared_library \
        sh -c "readelf -d '$tmp/cmake/build/train' | grep -F '[$soname]'"
    [ ! -e "$lib/libhvt.a" ] || step cmake_links_the_static_library with_cmake cmake-static 's/hvt::hvt/hvt::static/'
    step cmake_refuses_a_newer_minor_version refused_by_cmake 's/hvt 0.1/hvt 0.2/'
    step cmake_refuses_an_older_minor_version refused_by_cmake 's/hvt 0.1/hvt 0.0/'
    step cmake_refuses_a_newer_patch refused_by_cmake 's/hvt 0.1/hvt 0.1.99/'
    step cmake_takes_a_range with_cmake range 's/hvt 0.1/hvt 0.0...0.2/; s/VERSION 3.13/VERSION 3.19/'
else
    echo "skip CMake's part: no cmake"
fi
step the_program_runs_without_the_library env -u LD_LIBRARY_PATH "$program" --version
