#!/bin/sh
# test_compare.sh LOCKSTEP TESTS - `compare`: its figures are those of `plan`, for layouts that compute the same samples.
lockstep=$1
. "$2/script.sh"
model="--model.preset=llama3-8b --model.layers=8 --data.seq_len=1024"

"$lockstep" compare "parallel.zero=3" "parallel.tp=4 --parallel.sp" "parallel.pp=2 parallel.dp=4" -n 8 $model --machine h100-dgx --json \
    >compare.json 2>err.txt || bad "compare: $(cat err.txt)"
[ "$(json 'layouts[].ranks' <compare.json | tr '\n' ' ')" = "8 8 8 " ] || bad "ranks: $(json 'layouts[].ranks' <compare.json)"
# All layouts get the largest of their default numbers of samples: here the pipeline's.
"$lockstep" plan -n 8 --parallel.pp=2 --parallel.dp=4 $model --machine h100-dgx --json >plan.json 2>err.txt || bad "plan: $(cat err.txt)"
samples=$(($(json tokens_per_step <plan.json) / 1024))
i=0
for options in "--parallel.zero=3" "--parallel.tp=4 --parallel.sp" "--parallel.pp=2 --parallel.dp=4"; do
    "$lockstep" plan -n 8 $options $model --machine h100-dgx --train.global_batch=$samples --json >plan.json 2>err.txt ||
        bad "plan $options: $(cat err.txt)"
    for pair in memory:memory.total step:seconds.step parameters:memory.parameters activations:memory.activations fits:fits; do
        ours=$(json "layouts[$i].${pair%%:*}" <compare.json | sed 's/^1$/true/; s/^0$/false/; s/^1\.0$/true/; s/^0\.0$/false/')
        plans=$(json "${pair#*:}" <plan.json)
        [ "$ours" = "$plans" ] || awk -v a="$ours" -v b="$plans" 'BEGIN { exit !(a == b && a + 0 > 0) }' ||
            bad "$options: ${pair%%:*} is $ours, the plan says $plans"
    done
    i=$((i + 1))
done

# The table; without a machine there are no seconds.
"$lockstep" compare "recompute.mode=none" "recompute.mode=full" $model >table.txt 2>err.txt || bad "compare: $(cat err.txt)"
for words in "^a  recompute.mode=none: 1 rank," "^b  recompute.mode=full" "splits     nothing" "^memory of a rank"; do
    grep -q "$words" table.txt || bad "the table lacks '$words': $(cat table.txt)"
done
grep -q "^step" table.txt && bad "there are seconds without a machine"

# Each layout has its own threads and instruction set, as in a plan.
"$lockstep" compare "parallel.tp=2" "parallel.tp=2 launch.threads=3" "parallel.tp=2 launch.threads=2 run.isa=any" -n 2 $model \
    --train.global_batch=16 --json >compare.json 2>err.txt || bad "compare: $(cat err.txt)"
i=0
for options in "" "--launch.threads=3" "--launch.threads=2 --run.isa=any"; do
    "$lockstep" plan -n 2 --parallel.tp=2 $options $model --train.global_batch=16 --json >plan.json 2>err.txt || bad "plan: $(cat err.txt)"
    ours=$(json "layouts[$i].memory" <compare.json) plans=$(json memory.total <plan.json)
    awk -v a="$ours" -v b="$plans" 'BEGIN { exit !(a == b && a + 0 > 0) }' || bad "'$options': $ours bytes, the plan says $plans"
    i=$((i + 1))
done

"$lockstep" compare "recompute.mode=none" "recompute.mode=full" $model --run.memory_limit=1GiB >table.txt 2>err.txt
grep -q "^it fits  *no  *no" table.txt || bad "run.memory_limit: $(cat table.txt)"

# Offloaded bytes have separate rows.
"$lockstep" compare "parallel.zero=1" "parallel.zero=1 optim.offload=cpu" -n 2 $model --train.global_batch=16 --machine h100-dgx \
    >table.txt 2>err.txt || bad "compare: $(cat err.txt)"
for words in "^offloaded  *0 B  *[1-9]" "^loading and saving  *0 s  *[0-9.]*[1-9]" "(zero 1), optimizer state in host memory"; do
    grep -q "$words" table.txt || bad "the table lacks '$words': $(cat table.txt)"
done

# Bad input.
expect 2 "no data are read" compare "parallel.dp=2" "parallel.tp=2" $model --data.text=text.txt
expect 2 "it needs offload.read" compare "parallel.dp=2" "parallel.tp=2" $model --optim.offload=file --machine mi300x
expect 2 "compare" compare "parallel.dp=2"
expect 2 "'parallel.tp=3'" compare "parallel.tp=3" "parallel.dp=8" -n 8 $model
expect 2 "parallel.tq" compare "parallel.tq=3" "parallel.dp=8" $model
expect 2 "it is not one of" compare "parallel.dp=2" "parallel.tp=2" $model --machine none

[ $failures -eq 0 ]
