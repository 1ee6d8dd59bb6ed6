#!/bin/sh
# test_quickstart.sh ROOT: what ./quickstart asks of apt, and what it says where there is none. Runs
# `quickstart deps` with a PATH of our own, on which tools are there or not, and apt-get and sudo write down
# how they were called instead of doing it.
set -u
root=$1
. "$root/tests/support/launch.sh"
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

tools() { # DIR NAME...: the real ones
    dir=$1
    shift
    mkdir -p "$tmp/$dir"
    for name in "$@"; do
        ln -sf "$(command -v "$name")" "$tmp/$dir/$name"
    done
}
stub() { # DIR NAME BODY
    mkdir -p "$tmp/$1"
    printf '#!/bin/sh\n%s\n' "$3" >"$tmp/$1/$2"
    chmod +x "$tmp/$1/$2"
}
tools base sh dirname sed tr sort head cat grep wc env
for tool in mpirun ninja; do stub all $tool 'exit 0'; done
stub all cc 'exit 0'
stub all meson 'echo 1.0.1'
stub all pkg-config 'exit 0'
stub root id 'echo 0'
stub user id 'echo 1000'
stub apt apt-get "echo apt-get \"\$@\" >>$tmp/calls"
stub sudo sudo "[ \"\$1\" = -n ] && exit 0; echo sudo >>$tmp/calls; exec \"\$@\""
stub nosudo sudo 'exit 1'

deps() { # DIR...: run with these on PATH; sets code, out, calls
    path=
    for dir in "$@"; do path=$path$tmp/$dir:; done
    : >"$tmp/calls"
    out=$(cd "$root" && env -i PATH="$path$tmp/base" HOME="$tmp" ./quickstart deps 2>&1 </dev/null)
    code=$?
    calls=$(cat "$tmp/calls")
}
expect() { # NAME CODE CALLS PART-OF-OUTPUT
    case $out in *"$4"*) said=yes ;; *) said=no ;; esac
    if [ "$code" = "$2" ] && [ "$calls" = "$3" ] && [ $said = yes ]; then
        ok "$1"
    else
        fail "$1" "exit $code, calls '$calls', output: $out"
    fi
}

install="apt-get install -y -qq --no-install-recommends"
deps root apt all
expect nothing_is_asked_of_apt_when_all_is_there 0 "" "everything needed is here"

rm "$tmp/all/ninja"
deps root apt all
expect only_what_is_missing_is_asked_for 1 "apt-get update -qq
$install ninja-build" "still missing:
    Ninja"
deps user apt sudo all
expect others_than_root_ask_through_sudo 1 "sudo
apt-get update -qq
sudo
$install ninja-build" "+ sudo apt-get update"
deps user apt nosudo all
expect without_sudo_it_says_how_to_go_on 1 "" "pip install --user meson ninja"
deps user all
expect without_apt_it_says_how_to_go_on 1 "" "module load"
stub apt apt-get "echo apt-get \"\$@\" >>$tmp/calls; $(command -v ln) -sf /bin/true $tmp/all/ninja"
deps root apt all
expect it_goes_on_once_apt_has_helped 0 "apt-get update -qq
$install ninja-build" "everything needed is here"
stub all meson 'echo 0.61.2'
deps user all
expect an_old_meson_is_not_enough 1 "" "Meson 1.0 or newer"
finish
