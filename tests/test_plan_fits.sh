#!/bin/sh
# test_plan_fits.sh LOCKSTEP TESTS - `plan` and `train` agree on what fits: `train` runs, saves and resumes within exactly the bytes that
# `plan` prints; with one byte less both refuse, with the same suggestions; and `train` runs within the limit with each suggestion.
# LOCKSTEP_MATRIX=full: all layouts.
lockstep=$1
. "$2/script.sh"
full=${LOCKSTEP_MATRIX:-}
runs=0
cat text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt text.txt >long.txt
cat long.txt long.txt long.txt >longer.txt

bytes() { json "memory.$2" <"$1"; }
planned() { json 'what_fits[].options' <"$1"; }
trained() { sed 's/.*; what fits: //; s/ ([0-9.]* [A-Za-z]*)//g; s/, or /\n/g' "$1"; }

# trains DIR LIMIT OPTIONS...: two steps.
trains() {
    dir=$1 limit=$2
    shift 2
    "$lockstep" train -q "$@" --run.measure_peak=off --run.memory_limit=$limit --run.dir=$dir >out.txt 2>err.txt
}

# refused LIMIT OPTIONS...: plan and train suggest the same, and train runs with each suggestion that needs no more ranks than this
# machine can start in a test.
refused() {
    limit=$1
    shift
    "$lockstep" plan "$@" --run.memory_limit=$limit --json >plan.json 2>err.txt ||
        { bad "plan $* --run.memory_limit=$limit: $(cat err.txt)"; return; }
    has fits false <plan.json || bad "plan $* --run.memory_limit=$limit: fits"
    trains refused $limit "$@" --train.steps=2 && bad "train $* --run.memory_limit=$limit: runs, and plan says that it does not fit"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "train $* --run.memory_limit=$limit: more than one line: $(cat err.txt)"
    planned plan.json >planned.txt
    if grep -q "what fits: --" err.txt; then trained err.txt >trained.txt; else : >trained.txt; fi
    cmp -s planned.txt trained.txt || bad "$* --run.memory_limit=$limit: plan suggests: $(cat planned.txt); train suggests: $(cat err.txt)"
    while read -r fix; do
        ranks=$(echo "$fix" | sed -n 's/.*--launch.ranks=\([0-9]*\).*/\1/p')
        [ "${ranks:-1}" -gt 8 ] && continue
        rm -rf fixed
        trains fixed $limit "$@" $fix --train.steps=2 || bad "train $* --run.memory_limit=$limit $fix: $(cat err.txt)"
        runs=$((runs + 1))
    done <planned.txt
}

# exactly OPTIONS...
exactly() {
    "$lockstep" plan "$@" --json >plan.json 2>err.txt || { bad "plan $*: $(cat err.txt)"; return; }
    limit=$(($(bytes plan.json total) + $(bytes plan.json other) + $(bytes plan.json data)))
    [ $limit -gt $(($(bytes plan.json reading) + 100000)) ] || bad "$*: reading takes more than the step"
    rm -rf exact
    trains exact $limit "$@" --train.steps=2 || bad "train $* --run.memory_limit=$limit, which plan says is enough: $(cat err.txt)"
    trains exact $limit "$@" --train.steps=4 || bad "resume $* --run.memory_limit=$limit, which plan says is enough: $(cat err.txt)"
    runs=$((runs + 2))
    refused $((limit - 1)) "$@"
}

llama="--model.preset=llama-tiny --precision.compute=fp32"
exactly long.txt $llama -n 2
exactly text.txt $llama -n 4 --parallel.pp=2 --parallel.zero=1
exactly text.txt --model.preset=mixtral-tiny -n 2 --parallel.ep=2
exactly long.txt --data.tokenizer=bpe --data.vocab_size=400 $llama
exactly --model.preset=resnet-tiny -n 2
# A sample is printed when the memory of the steps is free again, on one rank and on several.
for options in "" "-n 2 --parallel.zero=3"; do
    exactly text.txt $llama $options
    enough=$((limit + 1)) # refused() left the largest that is not
    rm -rf sampled
    trains sampled $enough text.txt $llama $options --train.steps=2 --sample "In the" || bad "--sample, $enough $options: $(cat err.txt)"
    grep -aq "In the" out.txt && [ "$(wc -c <out.txt)" -gt 20 ] || bad "--sample, $enough $options: no sample is printed: $(cat out.txt)"
    runs=$((runs + 1))
done
if [ "$full" = full ]; then
    for options in "-n 2 --parallel.zero=3" "-n 4 --parallel.pp=2 --parallel.tp=2 --data.seq_len=16" \
        "-n 4 --parallel.cp=2 --parallel.tp=2 --data.seq_len=32" \
                   "--train.accumulate=4 --data.seq_len=16 --train.micro_batch=1" "--data.val_fraction=0" "--optim.offload=cpu" \
                       "-n 2 --optim.offload=file" \
                   "-n 2 --parallel.cp=2 --parallel.cp_method=all_to_all" \
                       "-n 3 --parallel.pp=3 --model.layers=3 --parallel.schedule=zb-h1" \
                   "--launch.threads=2 --model.layers=1 --train.micro_batch=1 --data.seq_len=8"; do
        exactly text.txt $llama $options
    done
fi

# Arbitrary limits: the suggestions run.
refused 5MiB longer.txt --model.preset=llama-tiny -n 2
refused 4MiB long.txt $llama -n 2
if [ "$full" = full ]; then
    for limit in 3MiB 4500KiB 6MiB; do
        refused $limit text.txt $llama --train.micro_batch=16
        refused $limit long.txt $llama -n 3
        refused $limit longer.txt --model.preset=gpt2-tiny -n 2
    done
fi

# ---- memory that runs out while the text is read: one line for all ranks, about the text ----
for n in 1 2 3; do
    trains reading 600KiB longer.txt $llama -n $n --train.steps=2 && bad "-n $n: read in 600 KiB"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "-n $n: more than one line: $(cat err.txt)"
    grep -q "longer.txt: out of memory: .*; raise run.memory_limit, or encode the text once with 'lockstep data prepare'" err.txt ||
        bad "-n $n: $(cat err.txt)"
done
"$lockstep" plan longer.txt $llama --run.memory_limit=600KiB >out.txt 2>err.txt
grep -q "^what fits   raise run.memory_limit, or encode the text once with 'lockstep data prepare'" out.txt ||
    bad "plan: $(cat out.txt err.txt)"

[ $runs -ge 40 ] || bad "only $runs runs"
[ $failures -eq 0 ] && say "plan: $runs runs fit where plan says so"
[ $failures -eq 0 ]
