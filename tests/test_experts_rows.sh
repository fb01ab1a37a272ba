#!/bin/sh
# test_experts_rows.sh LOCKSTEP TESTS - within the rows for which a rank of ep has room (test_experts_program.c says how many) a step is
# that of a single rank; a run into which more rows arrive ends on all ranks and says how much is needed.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"

# 16 experts, 2 of them per token, 2 samples of 20 tokens
model="--model.preset=mixtral-tiny --model.layers=2 --model.experts=16 --data.seq_len=20 --launch.threads=1 --precision.compute=fp32"
sgd="--optim.name=sgd --optim.lr=0.1 --train.global_batch=8"

# ---- a step within the room ----
for words in "parallel.dp=4 parallel.ep=4" "parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.zero=3" \
             "parallel.cp=2 parallel.ep=2 parallel.pp=2 parallel.schedule=zb-h1" "parallel.cp=4 parallel.ep=4 recompute.mode=full"; do
    equal "" "$words parallel.receive_factor=2.5" $model $sgd --train.accumulate=2
    equal "" "$words" $model $sgd --train.accumulate=2 --model.capacity=0.9 --model.drop=probability
done
equal "" "parallel.dp=2 parallel.cp=3 parallel.ep=2" $model $sgd --train.accumulate=2 --model.capacity=0.9

# ---- more rows than there is room for ----
"$lockstep" train -q -n 4 --data.text=text.txt $model --parallel.ep=4 --parallel.receive_factor=1 --train.steps=2 \
    --train.micro_batch=2 --run.dir=full --run.measure_peak=off >out.txt 2>err.txt
[ $? -eq 1 ] || bad "a full buffer: the exit code is not 1: $(cat err.txt)"
says="layers\.[01]: [0-9]+ rows of tokens arrive for this rank's experts, but parallel.receive_factor=1 has room for 80;"
grep -qE "$says use [0-9.]+ or more, or 0" err.txt || bad "a full buffer: $(cat err.txt)"

[ $failures -eq 0 ] && say "rows of experts: $equal_runs layouts"
exit $((failures > 0))
