#!/bin/sh
# test_plan.sh LOCKSTEP TESTS - `plan` prints what `train` measures: bytes by category, for the largest rank and for each, with the default
# threads and types; if a step does not fit, it suggests settings that do.
lockstep=$1
. "$2/script.sh"
tiny="--model.preset=llama-tiny --model.layers=3 --data.seq_len=32 --train.micro_batch=2 --train.steps=2 --train.eval_batches=1
    --data.text=text.txt --run.measure_peak=off"

# value FILE SECTION KEY, top FILE KEY: of a line of JSON
value() { json "$2.$3" <"$1"; }
top() { json "$2" <"$1"; }

categories="parameters gradients optimizer activations communication offload"
compared=0

# agree RANKS OPTIONS...: each rank's plan is what it measures, and the plan without --rank is the largest rank's
agree() {
    n=$1
    shift
    name=run$compared
    [ "$n" -gt 1 ] && per_rank=--log.per_rank=true || per_rank=
    "$lockstep" train -q -n "$n" $tiny "$@" $per_rank --run.dir="$name" >out.txt 2>err.txt ||
        { bad "train -n $n $*: $(cat err.txt)"; return; }
    "$lockstep" plan -n "$n" $tiny_plan "$@" --json >largest.json 2>err.txt || { bad "plan -n $n $*: $(cat err.txt)"; return; }
    r=0 most=0
    while [ $r -lt "$n" ]; do
        "$lockstep" plan -n "$n" $tiny_plan "$@" --rank $r --json >planned.json
        [ "$n" -gt 1 ] && measured=$(printf '%s/metrics.rank_%04d.jsonl' "$name" $r) || measured=$name/metrics.jsonl
        tail -n 1 "$measured" >measured.json
        for part in $categories; do
            [ "$(value planned.json memory $part)" = "$(value measured.json memory $part)" ] ||
                bad "-n $n $*: rank $r $part: $(value planned.json memory $part) planned, $(value measured.json memory $part) measured"
        done
        total=$(value planned.json memory total)
        [ "$total" -gt $most ] && most=$total
        [ $r -eq "$(top largest.json rank)" ] && [ "$total" -ne "$(value largest.json memory total)" ] &&
            bad "-n $n $*: rank $r: another total"
        r=$((r + 1))
    done
    [ "$(value largest.json memory total)" -eq $most ] || bad \
        "-n $n $*: largest of $most bytes, but planned $(value largest.json memory total)"
    compared=$((compared + 1))
}
# plan has no options of a run
tiny_plan=$(echo $tiny | sed 's/--train.eval_batches=1//; s/--run.measure_peak=off//')

agree 1
agree 2
agree 3
agree 2 --parallel.zero=1 --train.accumulate=2
agree 3 --parallel.zero=3
agree 2 --parallel.zero=3 --parallel.fsdp_unit=layers:2 --parallel.prefetch=2
agree 2 --parallel.zero=3 --parallel.fsdp_unit=model --parallel.prefetch=0
agree 2 --parallel.pp=2
agree 4 --parallel.pp=2 --parallel.zero=2 --parallel.schedule=zb-h1 --train.accumulate=4
agree 4 --parallel.pp=2 --parallel.zero=3 --parallel.schedule=zb-h1 --parallel.fsdp_unit=model --train.accumulate=4
agree 4 --parallel.pp=2 --parallel.zero=3 --parallel.schedule=zb-v --parallel.vpp=2 --model.layers=5 --train.accumulate=4
agree 3 --parallel.tp=3 --parallel.sp=true --model.heads=4 --model.kv_heads=4 --model.ffn=101
agree 2 --parallel.cp=2 --data.seq_len=29
agree 3 --parallel.zero=2 --model.vocab=263 --recompute.mode=selective
agree 2 --parallel.ep=2 --model.preset=mixtral-tiny --model.experts=5
agree 2 --parallel.ep=2 --model.preset=mixtral-tiny --model.experts=5 --parallel.receive_factor=1.9
agree 4 --parallel.ep=4 --parallel.cp=2 --model.preset=mixtral-tiny --model.capacity=0.8
agree 2 --precision.compute=bf16 --parallel.zero=1

# ---- what the plan assumes is printed ----

plan() {
    wanted=$1 words=$2
    shift 2
    "$lockstep" plan "$@" >out.txt 2>err.txt
    code=$?
    [ $code -eq "$wanted" ] || bad "plan $*: exit $code instead of $wanted: $(cat err.txt)"
    grep -q -e "$words" out.txt err.txt || bad "plan $*: no '$words': $(cat out.txt err.txt)"
}
plan 0 "largest: rank 2 (pp 1, dp 0)" --model.preset=llama-tiny --data.seq_len=32 --parallel.pp=2 --parallel.dp=2 --parallel.zero=1 \
    --model.vocab=4099
plan 0 "this is rank 2 (pp 1, dp 0)" --model.preset=llama-tiny --data.seq_len=32 --parallel.pp=2 --parallel.dp=2 --rank 2
plan 0 "precision.compute=auto on this processor" --model.preset=llama-tiny --data.seq_len=32 --parallel.dp=2
plan 0 "8 ranks on each machine, all like this one" --model.preset=llama-tiny --data.seq_len=32 --parallel.dp=64 --machine 8
"$lockstep" plan --model.preset=llama-tiny --data.seq_len=32 --parallel.dp=2 --precision.compute=fp32 | grep -q "auto" &&
    bad "a chosen dtype is no assumption"

# ---- the limit is a rank's share ----

limit() { "$lockstep" plan --model.preset=llama-tiny --data.seq_len=32 --json "$@" | json limit; }
one=$(limit) eight=$(limit --parallel.dp=8) machines=$(limit --parallel.dp=8 --machine 1)
if [ "$one" -gt 0 ]; then
    [ $((eight * 4)) -lt "$one" ] && [ $((eight * 16)) -gt "$one" ] || bad "one of 8 ranks may hold $eight of $one bytes"
    [ $((machines * 2)) -gt "$one" ] || bad "a rank with a machine of its own may hold $machines of $one bytes"
fi
[ "$(limit --parallel.dp=8 --run.memory_limit=5MiB)" = 5242880 ] || bad "run.memory_limit is each rank's"

# ---- what fits ----

plan 0 "what fits .*--recompute.mode=full" --model.preset=llama-tiny --model.layers=8 --data.seq_len=64 --train.micro_batch=1 \
    --run.memory_limit=11MiB --precision.compute=fp32
plan 0 "more machines" --model.preset=llama3-8b --data.seq_len=64 --train.micro_batch=1 --run.memory_limit=30GiB --precision.compute=bf16
plan 0 "none of the changes that were tried is enough" --model.preset=llama-tiny --data.seq_len=32 --run.memory_limit=1KiB

# A plan that is given what fits, fits.
"$lockstep" plan --model.preset=llama-tiny --data.seq_len=64 --parallel.dp=2 --run.memory_limit=4MiB --precision.compute=fp32 --json \
    >out.txt
fix=$(json 'what_fits[0].options' <out.txt)
[ "$fix" != none ] || bad "nothing fits: $(cat out.txt)"
expect_json fits true plan --model.preset=llama-tiny --data.seq_len=64 --parallel.dp=2 --run.memory_limit=4MiB --precision.compute=fp32 \
    --json $fix

# ---- train refuses the same, in one line for all ranks ----

for n in 1 2 3; do
    "$lockstep" train -n $n $tiny --train.micro_batch=16 --precision.compute=fp32 --run.memory_limit=6MiB --run.dir=oom$n >out.txt 2>err.txt
    code=$?
    [ $code -eq 1 ] || bad "-n $n: out of memory: exit $code: $(cat err.txt)"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "-n $n: more than one line: $(cat err.txt)"
    grep -q "out of memory: .*limit is 6.00 MiB (run.memory_limit).*what fits: --" err.txt ||
        bad "-n $n: does not say what fits: $(cat err.txt)"
done
fix=$(sed -n 's/.*what fits: \(--[^(]*\) (.*/\1/p' err.txt)
"$lockstep" train -q -n 3 $tiny --train.micro_batch=16 --precision.compute=fp32 --run.memory_limit=6MiB --run.dir=fixed $fix >out.txt \
    2>err.txt ||
    bad "what fits does not: $fix: $(cat err.txt)"

[ $failures -eq 0 ] && say "plan: $compared layouts are as they were measured"
[ $failures -eq 0 ]
