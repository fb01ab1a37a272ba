#!/bin/sh
# test_plan_search.sh LOCKSTEP TESTS - `plan --machine NAME --search`: it keeps given options, its seconds are those of `plan`, and `train`
# accepts the config that it writes.
lockstep=$1
. "$2/script.sh"
tiny="--model.preset=llama-tiny --model.layers=4 --data.text=text.txt --data.seq_len=32 --train.global_batch=8"
big="--model.preset=llama3-8b --data.seq_len=2048 --train.global_batch=16"

# The winner's seconds are those of its plan.
"$lockstep" plan --machine h100-dgx --ranks 8 $big --parallel.cp=1 --recompute.mode=selective --search --json >found.json 2>err.txt ||
    bad "search: $(cat err.txt)"
options=$(json 'fastest[0].options' <found.json)
"$lockstep" plan --machine h100-dgx $big $options --recompute.mode=selective --json >plan.json 2>err.txt ||
    bad "plan $options: $(cat err.txt)"
[ "$(json 'fastest[0].seconds' <found.json)" = "$(json seconds.step <plan.json)" ] || bad "$options: search and plan differ in seconds"
[ "$(json memory.total <plan.json)" -le 84000000000 ] || bad "$options does not fit"
case $options in *cp=* | *recompute.mode=full* | *recompute.mode=none*) bad "what was given was not kept: $options" ;; esac
has 'fastest[].compiled' true <found.json || bad "no layout was compiled"

"$lockstep" plan --machine h100-dgx --ranks 8 $big --parallel.cp=1 --recompute.mode=selective --search --json --out json.yaml \
    >again.json 2>err.txt || bad "search --json --out: $(cat err.txt)"
"$lockstep" plan --machine h100-dgx --ranks 8 $big --parallel.cp=1 --recompute.mode=selective --search --html page.html \
    >out.txt 2>err.txt || bad "search --html: $(cat err.txt)"
[ "$(grep -c '<tr><td>' page.html)" = "$(json 'fastest[].compiled' <found.json | grep -c true)" ] || bad "the page has other rows"
grep -q '<circle cx=' page.html && grep -q '</html>' page.html || bad "the page has no scatter"
cmp -s found.json again.json || bad "--out changes what --json prints"
grep -q "ranks: 8 " json.yaml || bad "--json --out wrote no config"

# Given options are kept, even if that is slower.
fixed="--parallel.tp=2 --parallel.zero=2 --train.micro_batch=2"
"$lockstep" plan --machine h100-dgx -n 8 $big $fixed --search --json >kept.json 2>err.txt || bad "search with options: $(cat err.txt)"
for option in --parallel.tp=2 --train.micro_batch=2; do
    json 'fastest[0].options' <kept.json | grep -q -e "$option" || bad "$option was not kept"
done
json 'fastest[].options' <kept.json | grep -e zero= | grep -qv 'zero=2' && bad "parallel.zero=2 was not kept"

# The table, and a config that train accepts unchanged.
"$lockstep" plan --machine h100-dgx -n 2 $tiny --train.steps=2 --search --out best.yaml >table.txt 2>err.txt ||
    bad "search --out: $(cat err.txt)"
for words in "^memory " "^search .* layouts were checked" "^   1 " "^why " "^  dp alone" "^options     --launch.ranks=2" \
    "^written     best.yaml"; do
    grep -q "$words" table.txt || bad "the table lacks '$words': $(cat table.txt)"
done
"$lockstep" train --config best.yaml --run.dir=run >out.txt 2>err.txt || bad "train --config best.yaml: $(tail -3 err.txt)"
[ -f run/metrics.jsonl ] || bad "nothing was trained"
grep -q "ranks: 2 " best.yaml || bad "best.yaml is not for 2 ranks"
grep -q "isa: best " best.yaml || bad "best.yaml restricts the instruction set: $(grep isa: best.yaml)"

# A model that fits in no layout is offloaded to the host, unless that is excluded.
"$lockstep" plan --machine h100-dgx -n 1 $big --search >table.txt 2>err.txt || bad "search with offload: $(cat err.txt)"
grep -q "^options .*--optim.offload=cpu" table.txt || bad "nothing is offloaded: $(cat table.txt)"
grep -q "optimizer state in host memory" table.txt || bad "the table does not name what is offloaded: $(cat table.txt)"
expect 1 "the least is" plan --machine h100-dgx -n 1 $big --optim.offload=none --search
"$lockstep" plan --machine h100-dgx -n 1 $big --recompute.mode=full --json >plan.json 2>err.txt || bad "plan: $(cat err.txt)"
json 'what_fits[].options' <plan.json | grep -q -e "--optim.offload=cpu" || bad "offload is no remedy: $(cat plan.json)"

# Bad input.
expect 2 "add --machine NAME" plan -n 8 $big --search
expect 2 "add --machine NAME" plan --machine 4 -n 8 $big --search
expect 2 "add -n N" plan --machine h100-dgx $big --search
expect 2 "add --train.global_batch=N" plan --machine h100-dgx -n 8 --model.preset=llama3-8b --search
expect 2 "it follows from the layout" plan --machine h100-dgx -n 8 $big --train.accumulate=2 --search
expect 2 "is not divisible by the product of the given axes" plan --machine h100-dgx -n 8 $big --parallel.tp=3 --search
expect 2 "leave one of them out" plan --machine h100-dgx -n 8 --ranks 4 $big --search
expect 2 "needs --search" plan --machine h100-dgx -n 8 $big --out x.yaml
expect 2 "run it first" plan --machine h100-dgx -n 8 $big --search --rank 0
expect 2 "priced one by one" plan --machine h100-dgx -n 8 $big --parallel.zero=3 --parallel.fsdp_unit=layers:2 --search
expect 2 "at most one unit ahead" plan --machine h100-dgx -n 8 $big --parallel.zero=3 --parallel.prefetch=2 --search
expect 2 "cannot be priced from patterns" plan --machine h100-dgx -n 8 $big --train.micro_batch=2 --optim.in_backward --search
expect 2 "stages of every layout are balanced" plan --machine h100-dgx -n 8 $big --parallel.pp=2 --parallel.stages=16,16 --search
expect 2 "cannot be sharded over parallel.tp=64" plan --machine h100-dgx -n 64 $big --parallel.tp=64 --search
expect 2 "no layout of 64 ranks is possible" \
    plan --machine h100-dgx -n 64 $big --parallel.dp=1 --parallel.tp=1 --parallel.cp=1 --search
expect 1 "the least is" plan --machine h100-dgx -n 2 $big --model.preset=llama3-70b --train.micro_batch=8 --parallel.tp=2 --search
[ ! -e x.yaml ] || bad "x.yaml was written"

[ $failures -eq 0 ]
