#!/bin/sh
# netns.sh - two "machines" on one: two network namespaces connected by a veth pair, with an optional rate and delay; Open MPI's mpirun
# runs a command across them, over TCP. Everything is removed at the end, however it ends.
#
# usage: bench/netns.sh [--rate RATE] [--delay TIME] [-n RANKS] [--pin] -- COMMAND...
#     --rate RATE    rate of each direction, in tc's syntax: 1gbit, 200mbit (token bucket, tbf)
#     --delay TIME   delay of each direction, in tc's syntax: 500us, 2ms (netem)
#     -n RANKS       divided evenly between the two; default 2
#     --pin          the first namespace has the first half of the cores, the second the rest
#     COMMAND        what every rank runs; its standard output and error are this script's
# exit codes: mpirun's; 77, with the reason, if namespaces, tc or Open MPI are not available
# examples:
#     bench/netns.sh --rate 1gbit -- build/lockstep bench comm
#     bench/netns.sh --rate 200mbit --delay 1ms -n 4 -- build/lockstep train --data.text=text.txt --model.preset=gpt2-tiny
#
# Needs root for the network namespaces. All traffic stays on the veth pair, whose ends, 10.77.0.1 and 10.77.0.2, exist only in these two
# namespaces. mpirun runs in the first; an rsh agent enters the second.
set -u

usage() { sed -n 's/^# \{0,1\}//; 5,15p' "$0" >&2; exit 2; }
skip() { echo "netns: skipped: $*"; exit 77; }

rate= delay= ranks=2 pin=
while [ $# -gt 0 ]; do
    case $1 in
    --rate) [ $# -gt 1 ] || usage; rate=$2; shift 2 ;;
    --delay) [ $# -gt 1 ] || usage; delay=$2; shift 2 ;;
    -n) [ $# -gt 1 ] || usage; ranks=$2; shift 2 ;;
    --pin) pin=yes; shift ;;
    --) shift; break ;;
    *) usage ;;
    esac
done
[ $# -gt 0 ] || usage
[ "$ranks" -gt 0 ] 2>/dev/null && [ $((ranks % 2)) -eq 0 ] || { echo "netns: -n $ranks: an even number is needed" >&2; exit 2; }

PATH=$PATH:/usr/sbin:/sbin
command -v ip >/dev/null && command -v tc >/dev/null || skip "no ip or tc (package iproute2)"
command -v mpirun.openmpi >/dev/null || skip "no mpirun.openmpi (package openmpi-bin)"
a=lockstep-$$-a b=lockstep-$$-b
work=$(mktemp -d)
mpirun=

down() {
    trap - EXIT INT TERM HUP
    [ -z "$mpirun" ] || { kill "$mpirun" && wait "$mpirun"; } 2>/dev/null
    for space in $a $b; do  # what still runs there, then the namespace; the veth pair goes with it
        ip netns pids $space 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del $space 2>/dev/null
    done
    rm -rf "$work"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

reason=$({ ip netns add $a && ip netns add $b; } 2>&1) || skip "no network namespaces here: $reason"
reason=$({ ip link add "ls$$" netns $a type veth peer name "ls$$" netns $b; } 2>&1) || skip "no veth pair here: $reason"
number=1
for space in $a $b; do
    # One that does not guess a rate from the pauses of processes that compute (BBR sends at a twentieth of the link then).
    ip netns exec $space sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
        ip netns exec $space sysctl -qw net.ipv4.tcp_congestion_control=reno 2>/dev/null
    ip -n $space addr add 10.77.0.$number/24 dev "ls$$" && ip -n $space link set "ls$$" up && ip -n $space link set lo up || exit 1
    number=$((number + 1))
    parent=root
    if [ -n "$delay" ]; then
        reason=$(tc -n $space qdisc add dev "ls$$" root handle 1: netem delay "$delay" limit 100000 2>&1) || skip "no delay here: $reason"
        parent="parent 1:1"
    fi
    if [ -n "$rate" ]; then
        reason=$(tc -n $space qdisc add dev "ls$$" $parent handle 2: tbf rate "$rate" burst 256kb latency 50ms 2>&1) ||
            skip "no rate limit here: $reason"
    fi
done

# mpirun calls the agent as: AGENT HOST COMMAND...; HOST is the second namespace.
cores=$(nproc)
half=$((cores / 2))
first= second=
[ -z "$pin" ] || [ "$half" -eq 0 ] || { first="taskset -c 0-$((half - 1))"; second="taskset -c $half-$((cores - 1))"; }
cat >"$work/agent" <<AGENT
#!/bin/sh
shift
exec ip netns exec $b $second /bin/sh -c "\$*"
AGENT
chmod +x "$work/agent"
echo "10.77.0.1 slots=$((ranks / 2))
10.77.0.2 slots=$((ranks / 2))" >"$work/hosts"

# Daemons and messages by the pair's network, never by shared memory; binding is taskset's.
ip netns exec $a $first env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash \
    mpirun.openmpi --hostfile "$work/hosts" -n "$ranks" --map-by slot --bind-to none --oversubscribe \
    --leave-session-attached --mca plm_rsh_agent "$work/agent" --mca orte_keep_fqdn_hostnames true --mca oob_tcp_if_include 10.77.0.0/24 \
    --mca btl self,tcp --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 "$@" &
mpirun=$!
wait $mpirun
code=$?
mpirun=
exit $code
