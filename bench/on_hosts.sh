#!/bin/sh
# on_hosts.sh HOSTS RATE DELAY COMMAND...: mpirun COMMAND with one rank on each of HOSTS emulated hosts, network
# namespaces of this machine on one switch; each sends at RATE (1gbit) at most, and a packet takes DELAY (100us)
# from host to host. tc shapes: netem, or, where the kernel lacks it, tbf without a delay (said on stderr). Its bucket
# holds 200 us of the rate, and one packet of TCP's segmentation offload at least: with 64 KB it would cut those up,
# and a cable of 10 Gbit/s carries 2.
# All of it ends with the command. Needs root or user namespaces, iproute2 and util-linux.
set -eu
wrong() {
    echo "on_hosts.sh: $1" >&2
    exit 2
}
if [ "${1:-}" != --inside ]; then
    [ $# -ge 4 ] || wrong "usage: on_hosts.sh HOSTS RATE DELAY COMMAND..., such as on_hosts.sh 2 1gbit 100us hostname"
    expr "$1" : '[1-9][0-9]*$' >/dev/null || wrong "HOSTS is a whole number, got '$1'"
    expr "$2" : '[1-9][0-9]*[gmk]bit$' >/dev/null || wrong "RATE is a whole number of gbit, mbit or kbit, got '$2'"
    expr "$3" : '[0-9][0-9]*[mu]*s*$' >/dev/null || wrong "DELAY is a whole number of us or ms, got '$3'"
    for tool in unshare nsenter ip tc mpirun; do
        PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null ||
            wrong "there is no $tool here; Debian: apt-get install util-linux iproute2 openmpi-bin"
    done
    flags="--mount --net --uts --pid --ipc --fork --kill-child --mount-proc"
    [ "$(id -u)" = 0 ] || flags="--user --map-root-user $flags"
    exec unshare $flags "$0" --inside "$@"
fi
hosts=$2 rate=$3 delay=$4
shift 4
PATH=$PATH:/usr/sbin:/sbin
bucket=70
case $rate in
*gbit) [ "${rate%gbit}" -lt 3 ] || bucket=$((${rate%gbit} * 25)) ;;
esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

ip link set lo up
ip link add name switch type bridge
ip link set switch up
ip addr add 10.0.9.254/24 dev switch
echo "127.0.0.1 localhost" >"$tmp/hosts"
: >"$tmp/list"
for i in $(seq "$hosts"); do
    unshare --net --uts sh -c "hostname host$i && : >$tmp/up$i && exec sleep 3600" &
    echo $! >"$tmp/host$i"
    while [ ! -f "$tmp/up$i" ]; do sleep 0.05; done
    on() { nsenter -t "$(cat "$tmp/host$i")" --net --uts "$@"; }
    ip link add name port$i type veth peer name eth0 netns "$(cat "$tmp/host$i")"
    ip link set port$i master switch up
    on ip link set lo up
    on ip addr add 10.0.9.$i/24 dev eth0
    on ip link set eth0 up
    on tc qdisc add dev eth0 root netem rate "$rate" delay "$delay" limit 100000 2>/dev/null || {
        echo "on_hosts.sh: no netem here; the delay is what the machine takes" >&2
        on tc qdisc add dev eth0 root tbf rate "$rate" burst ${bucket}kb latency 50ms
    }
    echo "10.0.9.$i host$i" >>"$tmp/hosts"
    echo "host$i slots=1" >>"$tmp/list"
done
mount --bind "$tmp/hosts" /etc/hosts
printf '#!/bin/sh\nhost=$1\nshift\nexec nsenter -t "$(cat %s/$host)" --net --uts sh -c "$*"\n' "$tmp" >"$tmp/rsh"
chmod +x "$tmp/rsh"
mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$tmp/rsh" --mca btl self,tcp \
    --mca btl_tcp_if_include 10.0.9.0/24 --mca oob_tcp_if_include 10.0.9.0/24 --mca mpi_yield_when_idle 1 \
    --hostfile "$tmp/list" -np "$hosts" "$@"
