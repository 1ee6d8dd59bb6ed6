#!/bin/sh
# check_layers.sh [ROOT]: hold every #include of the tree under ROOT against tests/tree/layers.txt, look for files
# that include each other in a circle, and hold the places where HVT_HAVE_... is tested against the three files that
# may. Prints each breach; exit 1 if any.
set -u
root=${1:-$(dirname "$0")/../..}
cd "$root" || exit 1
table=tests/tree/layers.txt
breaches=$(mktemp) || exit 1
used=$(mktemp) || exit 1
found=$(mktemp) || exit 1
trap 'rm -f "$breaches" "$used" "$found"' EXIT
set -f # wildcards are for case, not for the file system

breach() { printf '%s\n' "$*" >>"$breaches"; }

# "file line header" with the header resolved to a path from the root, or <in brackets>
includes() {
    find include src cuda tests bench -name '*.[ch]' -o -name '*.cu' 2>/dev/null | sort |
        xargs awk '
            function exists(path,  line, ok) { ok = (getline line < path) >= 0; close(path); return ok }
            /^[ \t]*#[ \t]*include[ \t]*"/ {
                split($0, part, "\""); header = part[2]
                folder = FILENAME; sub(/[^\/]*$/, "", folder)
                if (exists(folder header)) header = folder header
                else if (exists("include/" header)) header = "include/" header
                else if (exists("src/" header)) header = "src/" header
                else if (exists("tests/support/" header)) header = "tests/support/" header
                else if (header != "config.h" && header != "commit.h") header = "?" header # made by Meson
                while (sub(/[^\/]+\/\.\.\//, "", header)) { }
                print FILENAME, FNR, header
            }
            /^[ \t]*#[ \t]*include[ \t]*</ {
                match($0, /<[^>]*>/); print FILENAME, FNR, substr($0, RSTART, RLENGTH)
            }
            FNR == 1 { print FILENAME, 0, "-" }   # so that a file without includes needs its line, too
        '
}

rule_for() { # FILE: sets $rule (its number) and $may (its headers)
    rule=0
    while IFS= read -r line; do
        rule=$((rule + 1))
        case $line in '#'* | '') continue ;; esac
        files=${line%%:*}
        for pattern in $files; do
            # shellcheck disable=SC2254
            case $1 in $pattern)
                may=${line#*:}
                echo "$rule" >>"$used"
                return 0
                ;;
            esac
        done
    done <"$table"
    return 1
}

restricted=$(grep -v '^#' $table | grep -o '<[a-z].*>') # system headers that the table names
includes >"$found"
last=
while read -r file number header; do
    if [ "$file" != "$last" ]; then
        last=$file
        rule_for "$file" || {
            breach "$file: no line of $table says what it may include"
            may=*
        }
    fi
    case $header in
    -) continue ;;
    '?'*)
        breach "$file:$number: \"${header#?}\" is found neither beside it nor in include/, src/ or tests/support/"
        continue
        ;;
    '<'*) case $restricted in *"$header"*) ;; *) continue ;; esac ;;
    esac
    allowed=no
    for pattern in $may; do
        # shellcheck disable=SC2254
        case $header in $pattern) allowed=yes ;; esac
    done
    [ $allowed = yes ] || breach "$file:$number: may not include $header; it may:${may:- nothing}"
done <"$found"

# Within a room all may be allowed, but there, too, one file comes before the other. A .c and the .h of its name are
# one. tsort names the files of a circle line by line.
awk '$1 ~ "^(include|src|cuda)/" && $3 ~ "/" { sub(/\.[a-z]+$/, "", $1); sub(/\.[a-z]+$/, "", $3); print $1, $3 }' "$found" |
    LC_ALL=C tsort 2>&1 >/dev/null |
    awk '/loop/ { circle++; next } { of[circle] = of[circle] " " $NF }
         END { for (i = 1; i <= circle; i++) print "these include each other in a circle:" of[i] }' >>"$breaches"

number=0
while IFS= read -r line; do
    number=$((number + 1))
    case $line in '#'* | '') continue ;; esac
    grep -qx "$number" "$used" || breach "$table:$number: matches no file: ${line%%:*}"
done <"$table"

# What was built in is asked in three places, so that the rest cannot depend on it.
set +f
for file in $(grep -rlE 'HVT_HAVE_(MPI|CUDA)' include src | grep '\.[ch]$'); do
    case $file in
    src/device/device.c | src/comm/comm.c | src/world/world.c) ;;
    *) breach "$file: tests HVT_HAVE_MPI or HVT_HAVE_CUDA; only device.c, comm.c and world.c may" ;;
    esac
done

[ -s "$breaches" ] || exit 0
sort "$breaches"
exit 1
