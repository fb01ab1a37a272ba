#!/bin/sh
# test_experts_rows.sh LOCKSTEP TESTS - the rows for which an ep rank has room: with a capacity, as many as its experts accept; with
# parallel.receive_factor, a multiple of an even load. Within that room a step is that of a single rank; if more rows arrive, the run ends
# on all ranks with an error that names the factor that is needed.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"

# 16 experts, 2 of them per token, 2 samples of 20 tokens
model="--model.preset=mixtral-tiny --model.layers=2 --model.experts=16 --data.seq_len=20 --launch.threads=1 --precision.compute=fp32"
sgd="--optim.name=sgd --optim.lr=0.1 --train.global_batch=8"

# room ROWS OPTIONS...: the exchange of rows in the forward has that many rows at the end
room() {
    rows=$1
    shift
    "$lockstep" plan --print-program $model --train.micro_batch=2 --train.accumulate=1 "$@" >program.txt 2>err.txt ||
        bad "plan $*: $(cat err.txt)"
    got=$(awk '$2 == "communicate" && $3 == "all_to_all" { sub(/,.*/, "", $8); sub(/.*\[/, "", $8); print $8; exit }' program.txt)
    [ "$got" = "$rows" ] || bad "plan $*: room for $got rows, expected $rows"
}
room 320 --parallel.dp=4 --parallel.ep=4                                   # 4 ranks, 40 tokens, 2 experts each
room 80 --parallel.dp=4 --parallel.ep=4 --parallel.receive_factor=1        # 4 * 40 * 2 rows for 16 experts, of which 4 are here
room 128 --parallel.dp=4 --parallel.ep=4 --parallel.receive_factor=1.6
room 320 --parallel.dp=4 --parallel.ep=4 --parallel.receive_factor=100
room 160 --parallel.dp=4 --parallel.ep=4 --model.capacity=2                # 4 experts take 5 tokens of each of 8 samples
room 40 --parallel.cp=4 --parallel.ep=4 --model.capacity=2                 # whose slices are on the 4 ranks: 2 samples
room 80 --parallel.dp=2 --parallel.cp=2 --parallel.ep=4 --model.capacity=2 # 4 samples
room 32 --parallel.cp=4 --parallel.ep=4 --model.capacity=2 --parallel.receive_factor=1.6
room 16 --parallel.dp=2 --parallel.cp=3 --parallel.ep=2 --model.capacity=0.3 --rank 0 # 8 experts take a token of each of 2 samples
room 32 --parallel.dp=2 --parallel.cp=3 --parallel.ep=2 --model.capacity=0.3 --rank 2 # rank 3 has other samples

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
