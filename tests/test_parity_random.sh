#!/bin/sh
# test_parity_random.sh LOCKSTEP TESTS - compares random layouts of random models, optimizers and types (parity_cases.awk) by `lockstep
# parity`, which must not report a difference between correct layouts. By default 40 cases; LOCKSTEP_MATRIX=full: 1,000, on up to 8 ranks.
# Prints the largest error / bound. LOCKSTEP_SEED: seed of the cases.
set -u
lockstep=$1
tests=$(cd "$2" && pwd)
. "$2/script.sh"
count=40 most=4
[ "${LOCKSTEP_MATRIX:-}" = full ] && count=1000 most=8
seed=${LOCKSTEP_SEED:-1}

awk -v seed="$seed" -v count=$count -v most=$most -f "$tests/parity_cases.awk" >cases.txt
nearest=0
while IFS='|' read -r a b options; do
    in_part || continue
    if on_check; then
        pair_on_check "$a" "$b" $options --launch.threads=1
        continue
    fi
    "$lockstep" parity --a "$a" --b "$b" $options --launch.threads=1 --json >out.txt 2>err.txt ||
        { bad "case $cells of seed $seed: --a '$a' --b '$b' $options: $(cat err.txt)"; continue; }
    has equal true <out.txt && [ "$(json compared <out.txt)" -gt 0 ] || bad "case $cells: does not say so: $(cat out.txt)"
    # Only estimated bounds: those of updates are strict and often reached.
    nearest=$(json largest.loss.of_allowed largest.gradient.of_allowed largest.statistic.of_allowed <out.txt |
        awk -v most="$nearest" '{ for (i = 1; i <= NF; i++) if ($i + 0 > most) most = $i + 0 } END { print most }')
done <cases.txt
all_pairs $count
end_on_check

[ $failures -eq 0 ] && say "random layouts: $cells of seed $seed equal; the largest error is $nearest of its bound"
exit $((failures > 0))
