#!/bin/sh
# test_layers.sh ROOT: the tree keeps the layer rules, and check_layers.py sees each kind of breach when one
# is put into a copy of the tree.
set -u
root=$1
failed=0

if "$root/tests/tree/check_layers.py" "$root"; then
    echo "ok   the tree keeps its layers"
else
    echo "FAIL the tree keeps its layers"
    failed=1
fi

copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT
fresh() {
    rm -rf "${copy:?}"/*
    for part in include src cuda tests bench; do
        [ ! -d "$root/$part" ] || cp -R "$root/$part" "$copy/"
    done
}
seen() { # NAME, what the complaint must hold
    if out=$("$root/tests/tree/check_layers.py" "$copy"); then
        echo "FAIL $1: not seen"
        failed=1
    elif ! printf '%s\n' "$out" | grep -q "$2"; then
        echo "FAIL $1: the complaint does not say '$2': $out"
        failed=1
    else
        echo "ok   $1"
    fi
    fresh
}

fresh
echo '#include "hvt/comm.h"' >>"$copy/src/base/log.c"
seen an_upward_include_is_seen 'src/base/log.c:[0-9]*: may not include include/hvt/comm.h'
echo ' #  include "../device/host.h"' >>"$copy/src/optim/optim.c"
seen a_way_round_through_dots_is_seen 'src/optim/optim.c:[0-9]*: may not include src/device/host.h'
echo '#include <mpi.h>' >>"$copy/src/optim/distopt.c"
seen mpi_outside_comm_is_seen 'src/optim/distopt.c:[0-9]*: may not include <mpi.h>'
echo '#include "nowhere.h"' >>"$copy/src/base/log.c"
seen a_missing_header_is_seen 'nowhere.h'
mkdir "$copy/src/utils" && echo 'int x;' >"$copy/src/utils/x.c"
seen a_file_of_no_room_is_seen 'src/utils/x.c: no line'
mv "$copy/src/hvtrain.c" "$copy/src/train/"
seen a_rule_without_a_file_is_seen 'matches no file: src/hvtrain.c'
echo '#include "there.h"' >"$copy/src/base/here.h"
echo '#include "here.h"' >"$copy/src/base/there.h"
seen headers_that_include_each_other_are_seen 'circle:.* src/base/here'
: >"$copy/src/base/here.h"
: >"$copy/src/base/there.h"
echo '#include "there.h"' >"$copy/src/base/here.c"
echo '#include "here.h"' >"$copy/src/base/there.c"
seen files_that_include_each_others_headers_are_seen 'circle:.* src/base/there'
printf '#if HVT_HAVE_MPI\n#endif\n' >>"$copy/src/optim/optim.c"
seen a_build_switch_in_a_wrong_place_is_seen 'src/optim/optim.c: tests HVT_HAVE_MPI'
exit $failed
