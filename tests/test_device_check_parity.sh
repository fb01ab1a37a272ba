#!/bin/sh
# test_device_check_parity.sh LOCKSTEP TESTS - the layouts of the parity suite on the checking device: for every pair of layouts that its
# scripts generate, loss, gradients, norm, weights and optimizer state of each step have the bits of the cpu; checkpoints that one device
# saves are resumed by the other under another layout. The pairs of a script have different seeds. A failure prints the command that
# repeats it.
#
# By default some pairs of each script under one seed; LOCKSTEP_MATRIX=full: all that the scripts have then, every 20th of them under 20
# seeds.
set -u
LOCKSTEP_DEVICE=check
export LOCKSTEP_DEVICE
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failures=0 seeds=

while read -r script part; do
    [ "${LOCKSTEP_MATRIX:-}" = full ] && part=1/1
    "$2/$script" "$1" "$2" $part >"$out" </dev/null || failures=$((failures + 1))
    cat "$out"
    its=$(sed -n 's/.*, seeds //p' "$out") pairs=$(sed -n "s/^$script: \([0-9]*\) of .*/\1/p" "$out") more=0
    [ "${LOCKSTEP_MATRIX:-}" = full ] && more=$((pairs / 20 * 19))
    [ -n "$its" ] || { echo "FAILED: $script compared nothing"; failures=$((failures + 1)); }
    [ "$(echo $its | wc -w)" -eq $((pairs + more)) ] ||
        { echo "FAILED: $script: $(echo $its | wc -w) seeds for $pairs pairs, not $((pairs + more))"; failures=$((failures + 1)); }
    seeds="$seeds $its"
done <<'END_SCRIPTS'
test_parity.sh 5/31
test_parity_mesh.sh 2/9
test_parity_options.sh 4/17
test_parity_random.sh 8/9
test_parity_checkpoint.sh 4/7
END_SCRIPTS

different=$(printf '%s\n' $seeds | sort -u | wc -l)
[ "$different" -ge 20 ] || { echo "FAILED: $different different seeds, not 20"; failures=$((failures + 1)); }
exit $((failures > 0))
