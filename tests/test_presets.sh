#!/bin/sh
# test_presets.sh LOCKSTEP - every -tiny preset trains at its defaults, and the commands that `train` prints at the end work as printed.
set -u
lockstep=$1
. "$2/script.sh"

presets=$("$lockstep" help models | grep -o '[a-z0-9.-]*-tiny' | sort -u)
[ "$(echo "$presets" | wc -l)" -ge 5 ] || bad "too few -tiny presets: $presets"
for preset in $presets; do
    text=--data.text=text.txt
    [ "$preset" = resnet-tiny ] && text=
    # shellcheck disable=SC2086
    "$lockstep" train $text --model.preset="$preset" --train.steps=2 --train.global_batch=2 --train.eval_batches=1 --run.dir="$preset" \
        --launch.threads=1 >out.txt 2>err.txt || { bad "$preset does not train at its defaults: $(cat err.txt)"; continue; }
    resume=$(sed -n 's/^resume *//p' out.txt) sample=$(sed -n 's/^sample *//p' out.txt)
    sh -c "$resume" >again.txt 2>err.txt || bad "$preset: $resume: $(cat err.txt)"
    grep -q "step 4 of 4" again.txt || bad "$preset: $resume: $(cat again.txt)"
    if [ "$preset" = resnet-tiny ]; then
        [ -z "$sample" ] || bad "an image model has no text to sample: $sample"
        continue
    fi
    # A model of two steps may draw the end of the text at any place; another seed draws something else.
    for seed in "" "--seed 2" "--seed 3" "--seed 4" "--seed 5"; do
        sh -c "$sample $seed" >sample.txt 2>err.txt || bad "$preset: $sample $seed: $(cat err.txt)"
        grep -qa '^In the' sample.txt || bad "$preset: $sample $seed printed '$(cat sample.txt)'"
        [ "$(wc -c <sample.txt)" -gt 20 ] && break
    done
    [ "$(wc -c <sample.txt)" -gt 20 ] || bad "$preset: $sample printed '$(cat sample.txt)', and no more with other seeds"
done

# Another family with a preset: its head size is computed again.
"$lockstep" train --data.text=text.txt --model.preset=qwen3-tiny --model.architecture=gpt2 --data.seq_len=16 --train.steps=1 \
    --train.global_batch=1 \
    --train.eval_batches=1 --run.dir=other --launch.threads=1 >out.txt 2>err.txt || bad "GPT-2 of qwen3-tiny's sizes: $(cat err.txt)"

# By default, as many tokens are generated as fit: more are refused, a full prompt too, and a prompt of one token fewer leaves room for one.
generate() { "$lockstep" generate gpt2-tiny "$@" >out.txt 2>err.txt; }
full=$(printf '%064d' 0)
generate --prompt "In the" --tokens 100 && bad "100 tokens fit 64 positions"
grep -q "generate at most 58" err.txt || bad "what fits: $(cat err.txt)"
generate --prompt "$full" && bad "a prompt of 64 tokens leaves room"
grep -q "leaves no position" err.txt || bad "a full prompt: $(cat err.txt)"
generate --prompt "${full%0}" || bad "a prompt of 63 tokens: $(cat err.txt)"

# data.seq_len: the smaller of 256 and the model's positions; a given value is used unchanged.
seq_len() { "$lockstep" train --data.text=text.txt "$@" --print-config | sed -n 's/^ *seq_len: \([0-9-]*\).*/\1/p'; }
[ "$(seq_len --model.preset=gpt2-tiny)" = 64 ] || bad "gpt2-tiny: data.seq_len is $(seq_len --model.preset=gpt2-tiny)"
[ "$(seq_len)" = 256 ] || bad "data.seq_len is $(seq_len)"
[ "$(seq_len --model.preset=gpt2-tiny --data.seq_len=32)" = 32 ] || bad "data.seq_len=32 is not taken"
[ "$(seq_len --model.max_positions=100)" = 100 ] || bad "model.max_positions=100: data.seq_len is $(seq_len --model.max_positions=100)"

# A token file without a tokenizer has no text: the sample command starts from an id.
"$lockstep" data prepare tokens.bin --data.text=text.txt >out.txt 2>err.txt || bad "data prepare: $(cat err.txt)"
"$lockstep" train --data.tokens=tokens.bin --model.vocab=257 --model.preset=llama-tiny --train.steps=1 --train.global_batch=1 \
    --train.eval_batches=1 --run.dir=ids >out.txt 2>err.txt || bad "train on ids: $(cat err.txt)"
sample=$(sed -n 's/^sample *//p' out.txt)
sh -c "$sample" >sample.txt 2>err.txt || bad "$sample: $(cat err.txt)"

# The trace of a resumed run is a second file next to the first one.
traced="--data.text=text.txt --model.preset=llama-tiny --train.global_batch=1 --train.eval_every=0 --train.eval_batches=1
        --log.trace=true --run.dir=traced"
# shellcheck disable=SC2086
"$lockstep" train $traced --train.steps=2 >out.txt 2>err.txt || bad "traced: $(cat err.txt)"
cp traced/trace.json first.json
# shellcheck disable=SC2086
"$lockstep" train $traced --train.steps=3 --train.schedule_steps=3 >out.txt 2>err.txt || bad "traced and resumed: $(cat err.txt)"
cmp -s traced/trace.json first.json || bad "the resumed run changed trace.json"
tr '\n' ' ' <traced/trace_step_00000002.json | has 'traceEvents[].ph' X || bad "no trace of the resumed run: $(ls traced)"
[ $failures -eq 0 ]
