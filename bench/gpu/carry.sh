#!/bin/sh
# carry.sh - gather what building needs and a GPU host may lack: Open MPI, jansson, pkgconf.
#
# usage: bench/gpu/carry.sh DEST
#
# Runs where Debian packages can be had (no root). DEST may be moved; build.sh finds everything below it:
# DEST/mpi (make-mpi-tree.sh), DEST/tools (jansson, static, and pkg-config). About 17 MiB.

set -eu

die() { echo "carry: $*" >&2; exit 1; }
[ $# -eq 1 ] || { sed -n '4,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dest=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

[ -d "$dest/mpi" ] || "$here/make-mpi-tree.sh" -d "$dest/mpi"

cd "$work"
apt-get -qq download libjansson-dev pkgconf-bin libpkgconf3 2>err || die "$(cat err)"
for deb in *.deb; do dpkg-deb -x "$deb" root; done
tools=$dest/tools
mkdir -p "$tools/include" "$tools/lib/pkgconfig" "$tools/bin" "$tools/libexec"
cp root/usr/include/jansson*.h "$tools/include"
find root -name 'jansson_config.h' -exec cp {} "$tools/include" \;
find root -name libjansson.a -exec cp {} "$tools/lib" \;
find root -name 'libpkgconf.so.3' -exec cp -L {} "$tools/lib" \;
cp root/usr/bin/pkgconf "$tools/libexec/pkgconf"
for lib in libjansson.a libpkgconf.so.3; do
    [ -s "$tools/lib/$lib" ] || die "the packages hold no $lib"
done
version=$(sed -n 's/^#define JANSSON_VERSION *"\(.*\)"/\1/p' "$tools/include/jansson.h")
cat >"$tools/lib/pkgconfig/jansson.pc" <<END
prefix=\${pcfiledir}/../..
Name: jansson
Description: JSON
Version: $version
Libs: -L\${prefix}/lib -ljansson
Cflags: -I\${prefix}/include
END
cat >"$tools/bin/pkg-config" <<'END'
#!/bin/sh
tools=$(cd "$(dirname "$0")/.." && pwd -P)
export LD_LIBRARY_PATH="$tools/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PKG_CONFIG_PATH="$tools/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
exec "$tools/libexec/pkgconf" "$@"
END
chmod +x "$tools/bin/pkg-config"
"$tools/bin/pkg-config" --modversion jansson
echo "$dest: $(du -sh "$dest" | cut -f1)"
