# two_hosts.sh - sourced by tests of two hosts, before anything else and with their arguments: starts them again inside
# namespaces (as --inside ...). Two hosts are two network namespaces with names of their own and a virtual cable between
# them. All of it lives in a mount, process and (when not root) user namespace of the test, so that nothing can be left
# behind: the last process to leave takes everything along. The test's arguments, HVTRAIN ROOT, become variables, and its
# folder is a new one.
# shellcheck shell=sh
if [ "${1:-}" != --inside ]; then
    command -v unshare >/dev/null && command -v nsenter >/dev/null || { echo "skip: no unshare"; exit 77; }
    PATH=$PATH:/usr/sbin:/sbin
    command -v ip >/dev/null || { echo "skip: no ip (Debian: iproute2)"; exit 77; }
    flags="--mount --net --uts --pid --ipc --fork --kill-child --mount-proc"
    [ "$(id -u)" = 0 ] || flags="--user --map-root-user $flags"
    unshare $flags true 2>/dev/null || { echo "skip: namespaces cannot be had here"; exit 77; }
    exec unshare $flags "$0" --inside "$@"
fi
hvtrain=$(readlink -f "$2") root=$3
. "$root/tests/support/launch.sh"
PATH=$PATH:/usr/sbin:/sbin
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1

lay_cable() {
    printf '127.0.0.1 localhost\n10.0.7.1 node1\n10.0.7.2 node2\n' >hosts &&
        mount --bind hosts /etc/hosts &&
        hostname node1 &&
        ip link set lo up || return 1
    unshare --net --uts sh -c 'hostname node2 && : >up && exec sleep 3600' &
    other=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -f up ] && break
        sleep 0.2
    done
    ip link add veth1 type veth peer name veth2 netns $other &&
        ip addr add 10.0.7.1/24 dev veth1 && ip link set veth1 up &&
        on_node2 ip addr add 10.0.7.2/24 dev veth2 && on_node2 ip link set veth2 up &&
        on_node2 ip link set lo up
}
on_node2() { nsenter -t "$other" --net --uts "$@"; }
