#!/bin/sh
# test_faults.sh LOCKSTEP TESTS - injected faults of data parallelism (--debug.fault): `lockstep parity` detects each fault in every layout
# where it changes something, and names the first tensor, step and direction that differ.
set -u
lockstep=$1
. "$2/script.sh"
detected=0

common="--optim.name=sgd --optim.lr=0.1 --precision.compute=fp32 --train.global_batch=6 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny --data.seq_len=6"
llama="--model.preset=llama-tiny --data.seq_len=6"
image="--model.preset=resnet-tiny"

# detects FAULT LAYOUT OPTIONS WORDS...: parity exits with 1, and the line that names the first difference contains all the words.
detects() {
    fault=$1 layout=$2 options=$3 a= widest_element=
    # With the same micro-batches on both sides bounds are narrower (parity_bounds.h). A batch norm needs all samples of a step.
    case "$layout:$options" in
    *resnet* | *reduce*) ;;
    "parallel.dp=2 "*) a=train.micro_batch=3 widest_element=1e-6 ;;
    "parallel.dp=3 "*) a=train.micro_batch=2 widest_element=1e-6 ;;
    esac
    shift 3
    "$lockstep" parity --a "$a" --b "$layout debug.fault=$fault" $options $common --json >out.txt 2>err.txt
    got=$?
    [ $got -eq 1 ] || bad "$fault in '$layout' $options: exit $got: $(cat out.txt err.txt)"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$fault in '$layout' $options: not one line: $(cat err.txt)"
    for words in "$@"; do
        grep -qF -e "$words" err.txt || bad "$fault in '$layout' $options: not '$words': $(cat err.txt)"
    done
    has equal false <out.txt || bad "$fault in '$layout' $options: says equal"
    found_within "$fault in '$layout' $options"
    detected=$((detected + 1))
}

# The named tensor is the first weight in the store, or for skip_bucket and twice the weight of the last or first bucket in backward.
for zero in 0 1 2 3; do
    buckets="parallel.bucket=4KiB parallel.first_bucket=1KiB"
    [ $zero -eq 3 ] && buckets=
    two="parallel.dp=2 parallel.zero=$zero $buckets"
    three="parallel.dp=3 parallel.zero=$zero $buckets"

    detects average "$two" "$gpt2" "step 0, gradient of 'wte.weight' (backward)" "5.00e-01 of its scale"
    detects average "$three" "$llama" "step 0, gradient of 'model.embed_tokens.weight' (backward)" "6.67e-01 of its scale"
    detects skip_bucket "$two" "$gpt2" "step 0, gradient of 'wte.weight' (backward)"
    detects skip_bucket "$three" "$llama" "step 0, gradient of 'model.embed_tokens.weight' (backward)"
    detects skip_bucket "$two" "$image" "step 0, gradient of 'conv1.weight' (backward)"
    detects twice "$two" "$llama" "step 0, gradient of 'lm_head.weight' (backward)"
    detects twice "$three" "$image" "step 0, gradient of 'fc.weight' (backward)"
    [ $zero -gt 0 ] && detects local_norm "$two" "$llama" "step 0, norm of 'norm' (backward)"
    # One element is not updated: the last of the tensor or, if updates are sharded, of a rank's shard.
    detects boundary "$two" "$gpt2" "step 0, weight of 'wte.weight' (optimizer)" \
        "$([ $zero -eq 0 ] && echo 'in element 16383,' || echo 'in element 8191,')"
    detects boundary "$two" "$llama" "step 0, weight of 'model.embed_tokens.weight' (optimizer)" \
        "$([ $zero -eq 0 ] && echo 'in element 16383,' || echo 'in element 8191,')"
    detects mean_of_means "$two" "$gpt2" "step 0, loss of 'loss' (forward)"
    detects mean_of_means "$three" "$image" "step 0, loss of 'loss' (forward)"
    initial=copies
    [ $zero -eq 3 ] && initial=weight
    detects seed "$two" "$llama" "step 0, $initial of 'model.embed_tokens.weight' (initialization)"
    detects seed "$three" "$image" "step 0, $initial of 'conv1.weight' (initialization)"
done
detects twice "parallel.dp=4 parallel.zero=2 parallel.replicate=2" "$llama" "step 0, gradient of "
detects boundary "parallel.dp=2 parallel.zero=2 optim.offload=cpu" "$llama" "step 0, weight of 'model.embed_tokens.weight' (optimizer)"
widest=1e-3  # contributions are rounded to bf16
detects average "parallel.dp=2 precision.reduce=bf16" "$gpt2" "step 0, gradient of 'wte.weight' (backward)"
detects twice "parallel.dp=2 parallel.zero=1 precision.reduce=bf16" "$llama" "step 0, gradient of 'model.embed_tokens.weight' (backward)"

# The same result as JSON.
"$lockstep" parity --a "" --b "parallel.dp=2 debug.fault=average" $gpt2 $common --json >out.txt 2>err.txt && bad "--json: exit 0"
[ "$(json equal first.kind first.direction first.step first.name <out.txt)" = "false gradient backward 0 wte.weight" ] ||
    bad "--json: $(cat out.txt)"

# A fault that has no effect in the layout is refused before anything runs.
refused() {
    words=$1
    shift
    "$lockstep" "$@" >out.txt 2>err.txt
    got=$?
    [ $got -eq 2 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF -e "$words" err.txt || bad "exit $got: $*: $(cat err.txt)"
}
refused "'typo' is not one of none|average|skip_bucket|twice|local_norm|boundary|mean_of_means|seed" \
    parity --a "" --b "parallel.dp=2 debug.fault=typo" $gpt2
refused "'typo' is not one of none|average|" train -n 2 --debug.fault=typo $gpt2
refused "debug.fault does nothing here" parity --a "" --b "debug.fault=twice" $gpt2
refused "debug.fault does nothing here" parity --a "" --b "parallel.dp=2 debug.fault=local_norm" $gpt2
# The option's old name is accepted, and messages use the new name.
refused "debug.fault does nothing here" parity --a "" --b "debug.plant=twice" $gpt2
"$lockstep" help --debug.plant | grep -q 'also accepted as --debug.plant' || bad "help --debug.plant: $("$lockstep" help --debug.plant)"

# `help faults` describes every choice of the option, and then the parts that debug.slow slows down.
"$lockstep" help --debug.fault | sed -n 's/^ *--debug.fault=none|//p' | tr '|' '\n' | sort >choices.txt
"$lockstep" help faults | sed -n '/^--debug.slow/q; s/^\([a-z_]*\)   *[a-z].*/\1/p' | sort >described.txt
[ "$(wc -l <choices.txt)" -ge 28 ] && cmp -s choices.txt described.txt || bad "help faults: $(diff choices.txt described.txt)"

[ $failures -eq 0 ] && say "injected: $detected faults found"
exit $((failures > 0))
