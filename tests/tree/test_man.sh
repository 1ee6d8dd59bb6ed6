#!/bin/sh
# test_man.sh HVTRAIN: the manual page names every option of --help, and nothing that formats manual pages
# complains about it.
set -u
hvtrain=$1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
page=$tmp/hvtrain.1
failed=0
"$hvtrain" --help=man >"$page" || exit 1

formatted=
formats() { # NAME COMMAND...: it succeeds, says nothing, and what it prints is kept
    name=$1
    shift
    command -v "$1" >/dev/null || return 0
    if "$@" >"$tmp/text" 2>"$tmp/said" && [ ! -s "$tmp/said" ]; then
        echo "ok   $name"
    else
        echo "FAIL $name: $*"
        head -n 20 "$tmp/said"
        failed=1
    fi
    formatted=yes
}
LC_ALL=C.UTF-8
export LC_ALL
formats mandoc_accepts_the_page mandoc -T lint -W error "$page"
formats man_formats_the_page man --warnings -l "$page"
formats groff_formats_the_page groff -ww -man -T ascii -P -c -P -b -P -u -P -o "$page"
[ -n "$formatted" ] || {
    echo "skip: neither mandoc nor man nor groff"
    exit 77
}
[ -s "$tmp/text" ] || exit $failed # mandoc alone
for flag in $("$hvtrain" --help all | grep -o '^  --[a-z0-9-]*'); do
    grep -q -e "^ *$flag\b" "$tmp/text" || {
        echo "FAIL $flag is not in the manual page"
        failed=1
    }
done
exit $failed
