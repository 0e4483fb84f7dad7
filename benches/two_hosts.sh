#!/usr/bin/env bash
# Runs a command as two ranks of MPI on two "hosts": network namespaces of this machine, joined by a cable of a given rate.
#
#   benches/two_hosts.sh RATE COMMAND…      RATE as `tc` has it, such as 1gbit or 100mbit, or `none`: as fast as the kernel is
#   benches/two_hosts.sh 100mbit target/release/mt train --config configs/quickstart.toml --threads 1 --set train.accumulate=2
#
# Needs root, Open MPI, iproute2 (Debian: openmpi-bin iproute2).
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;; esac
[ $# -gt 1 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
rate=$1
shift
work=$(mktemp -d)
cleanup() {
    for host in mt-host0 mt-host1; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns delete "$host" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT

ip netns add mt-host0
ip netns add mt-host1
ip link add mt-cable0 netns mt-host0 type veth peer name mt-cable1 netns mt-host1
for number in 0 1; do
    host=mt-host$number cable=mt-cable$number
    ip -n "$host" link set lo up
    ip -n "$host" address add "10.213.0.$((number + 1))/24" dev "$cable"
    ip -n "$host" link set "$cable" up
    # Packets as large as those on a real cable.
    ip netns exec "$host" ethtool -K "$cable" tso off gso off >/dev/null 2>&1 || true
    [ "$rate" = none ] || tc -n "$host" qdisc add dev "$cable" root tbf rate "$rate" burst 128kb latency 50ms
done

# How mpirun starts its daemon on the other host: it gives the address and the command.
cat >"$work/agent" <<'AGENT'
#!/bin/sh
shift
exec ip netns exec mt-host1 unshare --uts sh -c "hostname mt-host1; $*"
AGENT
chmod +x "$work/agent"

mpi=(mpirun --host 10.213.0.1,10.213.0.2 --map-by node --bind-to none
    --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1
    --mca btl tcp,self --mca btl_tcp_if_include 10.213.0.0/24 --mca oob_tcp_if_include 10.213.0.0/24
    --mca mpi_yield_when_idle 1)
[ "$(id -u)" -ne 0 ] || mpi+=(--allow-run-as-root)
ip netns exec mt-host0 unshare --uts sh -c 'hostname mt-host0; exec "$@"' sh "${mpi[@]}" "$@"
