#!/bin/sh
# test_netns.sh LOCKSTEP TESTS - a run of two ranks over MPI across two network namespaces: all values are right, a failure is reported in
# both, and nothing is left behind. Skipped, with the reason, where namespaces are not allowed.
set -u
folder=$(cd "$(dirname "$1")" && pwd)
netns=$(cd "$2/.." && pwd)/bench/netns.sh
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS OMP_NUM_THREADS=1
out=$(mktemp)
trap 'rm -f "$out"' EXIT

if [ ! -f "$folder/lockstep_openmpi.so" ]; then
    echo "netns: skipped: lockstep_openmpi.so was not built, for there was no mpicc.openmpi"
    exit 77
fi

bad() { echo "FAILED: $*: $(cat "$out")"; exit 1; }

# run COMMAND...: runs it across the namespaces; none of them is left afterwards.
run() {
    timeout -k 10 300 "$netns" --rate 1gbit "$@" >"$out" 2>&1 &
    script=$!
    wait $script
    code=$?
    [ $code -eq 77 ] && { cat "$out"; exit 77; }
    ip netns list 2>/dev/null | grep -q "^lockstep-.*-[ab]" && [ -z "${before:-}" ] && bad "a namespace is left: $(ip netns list)"
    return $code
}

PATH=$PATH:/usr/sbin:/sbin
before=$(ip netns list 2>/dev/null | grep "^lockstep-")  # of somebody else's run
run -- "$folder/test_comm" --mpi || bad "exit $?"
grep -q "2 ranks" "$out" || bad "no word of 2 ranks"
run -- "$folder/test_mpi" fail && bad "a failure is not one"
grep -q "^test: rank 0: rank 1 has had enough" "$out" && grep -q "^test: rank 1: rank 1 has had enough" "$out" ||
    bad "not both ranks say who failed"
run -- sh -c 'kill -9 $$'
[ $? -ne 0 ] || bad "a killed rank is not seen"
echo "netns: two ranks over TCP between two namespaces"
