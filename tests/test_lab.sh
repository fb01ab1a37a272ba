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

# Labs that end at the same time store all their verdicts.
for lab in b1 b2 c4 e1 m1 p1 p4 s3; do "$lockstep" lab $lab >/dev/null & done
wait
"$lockstep" lab >list.txt
[ "$(grep -cE '^(B1|B2|C4|E1|M1|P1|P4|S3) .*, 20[0-9-]{8} ' list.txt)" -eq 8 ] || bad "of 8 labs at once: $(grep ', 20' list.txt)"

# Rows as JSON, and nothing else; other sizes give other rows, which are not stored.
"$lockstep" lab p4 --json >rows.json 2>err.txt || bad "lab --json: $(cat err.txt)"
json claim verdict <rows.json >verdicts.txt 2>err.txt || bad "not JSON: $(cat err.txt)"
grep -qvxE 'P4 (holds|corrected|not measurable here|does not hold)' verdicts.txt && bad "not rows of P4: $(cat verdicts.txt)"
[ "$(wc -l <rows.json)" -ge 10 ] || bad "few rows: $(cat rows.json)"
rm -r cache
"$lockstep" lab p4 --stages 8 --micro-batches=24 --json >larger.json 2>err.txt || bad "sizes: $(cat err.txt)"
cmp -s rows.json larger.json && bad "sizes make no difference"
"$lockstep" lab --json >list.json || bad "lab --json: exit $?"
json claim verdict in_part date seconds 'sizes[].name' 'sizes[].value' 'sizes[].low' <list.json >sizes.txt # no verdict, no date
grep -qxF "P4  false  null stages 4 2" sizes.txt || bad "the sizes of P4: $(grep ^P4 sizes.txt)"

# The sizes of the labs are the command's flags.
json 'sizes[].name' <list.json | sort -u | sed 's/^/--/' >sizes.txt
"$lockstep" lab --help | grep -oE '^  --[a-z-]+ N' | grep -oE -- '--[a-z-]+' | sort -u >flags.txt
cmp -s sizes.txt flags.txt || bad "sizes that no flag sets, or flags without a lab: $(diff sizes.txt flags.txt)"

# Labs that train the user's model pass options on; other labs refuse them, and other sections are refused.
"$lockstep" lab d8 --ranks 3 --steps 3 --model.preset=gpt2-tiny --model.layers=3 --data.seq_len=16 --optim.name=sgd --json >rows.json \
    2>err.txt || bad "lab d8 on a GPT-2: $(cat err.txt)"
json claimed measured verdict what <rows.json | grep -q '^2 2 holds server, 3 ranks: rank 0 sends, in models a step$' ||
    bad "lab d8 on a GPT-2: $(cat rows.json)"
"$lockstep" lab d8 --ranks 2 --steps 2 --model.preset=resnet-tiny --data.text= --json >rows.json 2>err.txt ||
    bad "lab d8 on a model of pictures: $(cat err.txt)"
printf 'abcdefghijklmnopqrstuvwxyz%.0s' $(seq 200) >letters.txt
"$lockstep" lab d9 --ranks 3 --updates 32 --batch 1 --data.text=letters.txt --model.preset=gpt2-tiny --optim.name=adamw --optim.lr=0.001 \
    --json >rows.json 2>err.txt || bad "lab d9 on a GPT-2: $(cat err.txt)"
json claimed measured what <rows.json | grep -q '^2 2 3 workers in turn: ' || bad "lab d9 on a GPT-2: $(cat rows.json)"
expect 2 "lab d8_central sets parallel.zero itself; of train's options it takes the sections model data optim" lab d8 --parallel.zero=1
expect 2 "unknown option 'model.layrs'; did you mean 'model.layers'?" lab d8 --model.layrs=3
expect 2 "lab d8_central: --model.layers needs a value: --model.layers=VALUE" lab d8 --model.layers
expect 2 "lab p2_bubble takes no options of train such as --model.layers=3" lab p2 --model.layers=3
expect 2 "'d8' and 'p2': name one lab" lab d8 p2
expect 2 "--model.layers=3 is an option of a lab; name one" lab --model.layers=3
"$lockstep" lab d8 --data.text=no-such-file.txt >out.txt 2>err.txt && bad "lab d8 ends well without its text"
grep -q 'no-such-file.txt: cannot open' err.txt || bad "lab d8 does not say that its text is missing: $(cat err.txt)"

# A lab's files are in a separate folder, which it removes.
mkdir room
TMPDIR=$PWD/room "$lockstep" lab s6 >/dev/null 2>err.txt || bad "lab s6: $(cat err.txt)"
rmdir room || bad "lab s6 left files: $(ls -R room)"
TMPDIR=$PWD/missing "$lockstep" lab s6 >out.txt 2>err.txt && bad "lab s6 does not write to TMPDIR"

# Every lab has the same verdict with other sizes as with its default ones.
for lab in "b1 --batch 64 --width 100 --outputs 7" "f1 --ranks 3 --layers 1 --width 48" "f9 --ranks 3" "z1 --layers 7 --width 48"; do
    "$lockstep" lab $lab >out.txt 2>err.txt || bad "lab $lab: $(grep 'does not hold' out.txt) $(cat err.txt)"
done

"$lockstep" lab never-stored --json >rows.json 2>err.txt || bad "lab never-stored: $(cat err.txt)"
has program r7_never_stored <rows.json || bad "a lab by a part of its name: $(head -1 rows.json)"

expect 2 "there is no lab 'p2_buble'; did you mean 'p2_bubble'?" lab p2_buble
expect 2 "there is no lab 'xyz'; 'lockstep lab' lists them" lab xyz
expect 2 "lab p4_interleaving has no --width; it has --stages, --micro-batches" lab p4 --width 3
expect 2 "lab b1_two_gradients has no --ranks; it has --batch, --width, --outputs" lab b1 --ranks 3
expect 2 "lab p4_interleaving: --stages=1 is out of range: 2 to 64" lab p4 --stages 1
expect 2 "--stages is a size of a lab; name one" lab --stages 4
expect 2 "lab p2_bubble: a rank has one stage, so --ranks=4 and --stages=8 contradict each other" lab p2 --ranks 4 --stages 8
expect 2 "lab b1_two_gradients has no --ranks" lab b1 --ranks 4

# A pipeline has a stage on each rank.
"$lockstep" lab p2 --ranks 4 --micro-batches 6 --json >ranks.json 2>err.txt || bad "--ranks of a pipeline: $(cat err.txt)"
"$lockstep" lab p2 --stages 4 --micro-batches 6 --json >stages.json 2>err.txt || bad "--stages: $(cat err.txt)"
has what "P = 4, M = 6" <ranks.json || bad "--ranks 4 does not make four stages: $(head -3 ranks.json)"
[ -s ranks.json ] && cmp -s ranks.json stages.json || bad "--ranks is not --stages: $(diff ranks.json stages.json | head -3)"

[ $failures -eq 0 ] || exit 1
say "labs are listed, run, sized and remembered"
