#!/bin/sh
# test_lab.sh LOCKSTEP TESTS - `lockstep lab`: the list, one lab, its sizes, JSON, and what is refused.
lockstep=$1
. "$2/script.sh"
export XDG_CACHE_HOME="$PWD/cache"
unset LAB_JSON

"$lockstep" lab >list.txt 2>err.txt || bad "lab: $(cat err.txt)"
grep -q '^P2   -  *-  *bubble (P-1)/(M+P-1)' list.txt || bad "P2 is not in the list, or was measured: $(grep ^P2 list.txt)"
"$lockstep" lab P2 >out.txt 2>err.txt || bad "lab P2: $(cat err.txt)"
grep -q '^P2: holds' out.txt && grep -q '^P3: holds' out.txt || bad "no verdicts: $(cat out.txt)"
"$lockstep" lab >list.txt || bad "lab: exit $?"
grep -qE '^P2   holds, 20[0-9-]{8}  *[0-9.]+ s  *bubble' list.txt || bad "P2 is not remembered: $(grep ^P2 list.txt)"
"$lockstep" lab s2 >/dev/null || bad "lab s2: exit $?"
"$lockstep" lab >list.txt || bad "lab: exit $?"
grep -qE '^P3   holds, 20' list.txt && grep -qE '^S2   corrected, 20' list.txt ||
    bad "one lab forgot the other: $(grep -E '^(P3|S2)' list.txt)"

# Labs that end at the same time remember all their verdicts.
for lab in b1 b2 c4 e1 m1 p1 p4 s3; do "$lockstep" lab $lab >/dev/null & done
wait
"$lockstep" lab >list.txt
[ "$(grep -cE '^(B1|B2|C4|E1|M1|P1|P4|S3) .*, 20[0-9-]{8} ' list.txt)" -eq 8 ] || bad "of 8 labs at once: $(grep ', 20' list.txt)"

# Rows as JSON, and nothing else; other sizes give other rows, and are not remembered.
"$lockstep" lab p4 --json >rows.json 2>err.txt || bad "lab --json: $(cat err.txt)"
grep -qv '^{"claim":"P4",.*"verdict":"[a-z ]*"}$' rows.json && bad "not a row: $(grep -v '^{"claim":"P4"' rows.json | head -2)"
[ "$(wc -l <rows.json)" -ge 10 ] || bad "few rows: $(cat rows.json)"
rm -r cache
"$lockstep" lab p4 --stages 8 --micro-batches=24 --json >larger.json 2>err.txt || bad "sizes: $(cat err.txt)"
cmp -s rows.json larger.json && bad "sizes make no difference"
"$lockstep" lab --json >list.json || bad "lab --json: exit $?"
grep '"claim":"P4"' list.json | grep -q '"verdict":"","in_part":false,"date":"","seconds":null,.*{"name":"stages",.*"value":4,"low":2,' ||
    bad "the sizes of P4: $(grep '"P4"' list.json)"

# The sizes of the labs are the command's flags.
grep -o '{"name":"[a-z-]*"' list.json | sort -u | sed 's/.*:"\(.*\)"/--\1/' >sizes.txt
"$lockstep" lab --help | grep -oE '^  --[a-z-]+ N' | grep -oE -- '--[a-z-]+' | sort -u >flags.txt
cmp -s sizes.txt flags.txt || bad "sizes that no flag sets, or flags without a lab: $(diff sizes.txt flags.txt)"

"$lockstep" lab never-stored --json >rows.json 2>err.txt || bad "lab never-stored: $(cat err.txt)"
grep -q '"program":"r7_never_stored"' rows.json || bad "a lab by a part of its name: $(head -1 rows.json)"

expect 2 "there is no lab 'p2_buble'; did you mean 'p2_bubble'?" lab p2_buble
expect 2 "there is no lab 'xyz'; 'lockstep lab' lists them" lab xyz
expect 2 "lab p4_interleaving has no --width; it has --stages, --micro-batches" lab p4 --width 3
expect 2 "lab b1_two_gradients has no --ranks; it has no sizes" lab b1 --ranks 3
expect 2 "lab p4_interleaving: --stages=1 is out of range: 2 to 64" lab p4 --stages 1
expect 2 "--stages is a size of a lab; name one" lab --stages 4

[ $failures -eq 0 ] || exit 1
say "labs are listed, run, sized and remembered"
