#!/bin/sh
# test_bench_machine.sh LOCKSTEP TESTS - `bench machine` writes a machine file with curves of kernels and collectives, from which `bench
# train --predict` says what it then measures: bytes exactly, and the seconds that `plan` says. How long something took depends on what else
# the machine did meanwhile: what was measured within a command is no longer than the command, and no shorter than its FLOPs take at 10
# TFLOP/s, which no core computes.
lockstep=$1
. "$2/script.sh"
model="--model.preset=llama-tiny --data.seq_len=64 --train.micro_batch=2 --launch.threads=1 --bench.steps=3 --bench.warmup=1"

# Seconds since the last call.
clock=$(date +%s%N)
elapsed() {
    before=$clock clock=$(date +%s%N)
    awk -v ns=$((clock - before)) 'BEGIN { printf "%.9g", ns / 1e9 }'
}

"$lockstep" bench machine -n 2 $model --bench.steps=1 --bench.warmup=0 --out this.yaml >out.txt 2>err.txt ||
    bad "bench machine: $(cat err.txt)"
elapsed >seconds.txt
tr ' ' '\n' <this.yaml | grep -E '^[0-9.e+]+:[0-9.e+-]+$' >curves.txt
awk -F : -v most="$(cat seconds.txt)" '!($2 + 0 > 0 && $2 + 0 <= most + 0) { bad = 1 } END { exit bad || NR < 50 }' curves.txt ||
    bad "curves measured in $(cat seconds.txt) s: $(tr '\n' ' ' <curves.txt)"
sed -n 's/^  linear-f32: //p' this.yaml | tr ' ' '\n' | awk -F : 'NF == 2 && $2 < $1 / 1e13 { exit 1 }' ||
    bad "faster than 10 TFLOP/s: $(grep linear-f32 this.yaml)"
for words in "^processor:" "^  fp32: " "^kernels:" "^  attention-f32: " "^  adam-f32: " "^collectives:" "^  all_reduce-2: " \
    "^  send-2: "; do
    grep -q "$words" this.yaml || bad "the file lacks '$words': $(cut -c1-80 this.yaml)"
done
[ ! -s out.txt ] || bad "with --out it prints: $(cat out.txt)"

# Every instruction of these steps has a curve: without the file's entries for other ops, the plan is the same.
"$lockstep" plan --machine ./this.yaml -n 2 --parallel.zero=1 --model.preset=llama-tiny --data.seq_len=64 --precision.compute=fp32 \
    --json >plan.json 2>err.txt || bad "plan: $(cat err.txt)"
sed -E 's/^  (matmul|attention|memory_bound): .*/  \1: 0.01/' this.yaml >other.yaml
cmp -s this.yaml other.yaml && bad "sed changed nothing"
"$lockstep" plan --machine ./other.yaml -n 2 --parallel.zero=1 --model.preset=llama-tiny --data.seq_len=64 --precision.compute=fp32 \
    --json >plan2.json 2>err.txt || bad "plan: $(cat err.txt)"
[ "$(json seconds.step <plan.json)" = "$(json seconds.step <plan2.json)" ] || bad "an instruction has no curve: $(cat plan2.json)"

for options in "--parallel.zero=1" "--parallel.tp=2" "--parallel.pp=2 --train.accumulate=2"; do
    elapsed >/dev/null
    "$lockstep" bench train -n 2 $model $options --precision.compute=fp32 --predict ./this.yaml --json >out.json 2>err.txt ||
        bad "bench train $options: $(cat err.txt)"
    elapsed >seconds.txt
    tail -n 1 out.json >predicted.json
    [ "$(json predicted_bytes <predicted.json)" = "$(json measured_bytes <predicted.json)" ] || bad "$options: bytes: $(cat predicted.json)"
    "$lockstep" plan --machine ./this.yaml -n 2 --model.preset=llama-tiny --data.seq_len=64 --train.micro_batch=2 $options \
        --precision.compute=fp32 --json >plan.json 2>err.txt || bad "plan $options: $(cat err.txt)"
    awk -v a="$(json predicted_seconds <predicted.json)" -v b="$(json seconds.step <plan.json)" \
        'BEGIN { exit !(a > 0 && b > 0 && a < 1.001 * b && b < 1.001 * a) }' || bad "$options: other than the plan: $(cat predicted.json)"
    awk -v s="$(json measured_seconds <predicted.json)" -v most="$(cat seconds.txt)" -v flops="$(head -n 1 out.json | json model_flops)" \
        'BEGIN { exit !(flops > 0 && s >= flops / 1e13 && s <= most + 0) }' || bad "$options: measured seconds: $(cat predicted.json)"
done
"$lockstep" bench train -n 2 $model --predict ./this.yaml >out.txt 2>err.txt || bad "bench train --predict: $(cat err.txt)"
for words in "^prediction  on " "^  step  " "^  kernels  " "^  memory of rank 0 "; do
    grep -q "$words" out.txt || bad "the table lacks '$words': $(cat out.txt)"
done

# Curves that cannot be read.
sed 's/^  adam-f32: .*/  adam-f32: 1e6/' this.yaml >bad.yaml
expect 2 "is not a pair of numbers above 0" plan --machine ./bad.yaml --model.preset=llama-tiny
sed 's/^  adam-f32: .*/  adam-f32: 1e6:1e-3 1e5:1e-4/' this.yaml >bad.yaml
expect 2 "size 1e5 is not above the one before it" plan --machine ./bad.yaml --model.preset=llama-tiny
expect 2 "it is not one of" bench train --model.preset=llama-tiny --predict nowhere

# A model whose seconds cannot be predicted is refused before anything is timed.
expect 2 "it needs offload.bandwidth" bench train $model --precision.compute=fp32 --predict ./this.yaml --optim.offload=cpu

[ $failures -eq 0 ]
