#!/bin/sh
# test_faults.sh LOCKSTEP TESTS - injected faults (--debug.fault): `lockstep parity` finds each of them, in every layout where it
# changes something, and names the tensor, step and direction in which it shows first.
set -u
lockstep=$1
. "$2/script.sh"
seen=0

common="--optim.name=sgd --optim.lr=0.1 --precision.compute=fp32 --train.global_batch=6 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny --data.seq_len=6"
llama="--model.preset=llama-tiny --data.seq_len=6"
image="--model.preset=resnet-tiny"

# sees FAULT LAYOUT OPTIONS WORDS...: exit 1, and all the words in the one line that says what differs first.
sees() {
    fault=$1 layout=$2 options=$3 a= widest_element=
    # Against the same micro-batches bounds are narrower: parity_bounds.h. A batch norm sees all samples of a step.
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
    seen=$((seen + 1))
}

# The weight that the store lists first, the one after whose bucket nothing comes in backward, and the one whose comes first.
for zero in 0 1 2 3; do
    buckets="parallel.bucket=4KiB parallel.first_bucket=1KiB"
    [ $zero -eq 3 ] && buckets=
    two="parallel.dp=2 parallel.zero=$zero $buckets"
    three="parallel.dp=3 parallel.zero=$zero $buckets"

    sees average "$two" "$gpt2" "step 0, gradient of 'wte.weight' (backward)" "5.00e-01 of its scale"
    sees average "$three" "$llama" "step 0, gradient of 'model.embed_tokens.weight' (backward)" "6.67e-01 of its scale"
    sees skip_bucket "$two" "$gpt2" "step 0, gradient of 'wte.weight' (backward)"
    sees skip_bucket "$three" "$llama" "step 0, gradient of 'model.embed_tokens.weight' (backward)"
    sees skip_bucket "$two" "$image" "step 0, gradient of 'conv1.weight' (backward)"
    sees twice "$two" "$llama" "step 0, gradient of 'lm_head.weight' (backward)"
    sees twice "$three" "$image" "step 0, gradient of 'fc.weight' (backward)"
    [ $zero -gt 0 ] && sees local_norm "$two" "$llama" "step 0, norm of 'norm' (backward)"
    # One element is not updated: the last of the whole or, where updates are sharded, of a rank's part.
    sees boundary "$two" "$gpt2" "step 0, weight of 'wte.weight' (optimizer)" \
        "$([ $zero -eq 0 ] && echo 'in element 16383,' || echo 'in element 8191,')"
    sees boundary "$two" "$llama" "step 0, weight of 'model.embed_tokens.weight' (optimizer)" \
        "$([ $zero -eq 0 ] && echo 'in element 16383,' || echo 'in element 8191,')"
    sees mean_of_means "$two" "$gpt2" "step 0, loss of 'loss' (forward)"
    sees mean_of_means "$three" "$image" "step 0, loss of 'loss' (forward)"
    initial=copies
    [ $zero -eq 3 ] && initial=weight
    sees seed "$two" "$llama" "step 0, $initial of 'model.embed_tokens.weight' (initialization)"
    sees seed "$three" "$image" "step 0, $initial of 'conv1.weight' (initialization)"
done
sees twice "parallel.dp=4 parallel.zero=2 parallel.replicate=2" "$llama" "step 0, gradient of "
sees boundary "parallel.dp=2 parallel.zero=2 optim.offload=cpu" "$llama" "step 0, weight of 'model.embed_tokens.weight' (optimizer)"
widest=1e-3  # contributions are rounded to bf16
sees average "parallel.dp=2 precision.reduce=bf16" "$gpt2" "step 0, gradient of 'wte.weight' (backward)"
sees twice "parallel.dp=2 parallel.zero=1 precision.reduce=bf16" "$llama" "step 0, gradient of 'model.embed_tokens.weight' (backward)"

# The same in numbers for scripts.
"$lockstep" parity --a "" --b "parallel.dp=2 debug.fault=average" $gpt2 $common --json >out.txt 2>err.txt && bad "--json: exit 0"
[ "$(json equal first.kind first.direction first.step first.name <out.txt)" = "false gradient backward 0 wte.weight" ] ||
    bad "--json: $(cat out.txt)"

# A fault that changes nothing here is refused before anything runs.
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
# The option's old name is accepted, and what is said names the new one.
refused "debug.fault does nothing here" parity --a "" --b "debug.plant=twice" $gpt2
"$lockstep" help --debug.plant | grep -q 'also accepted as --debug.plant' || bad "help --debug.plant: $("$lockstep" help --debug.plant)"

# Help says of every choice what it does.
"$lockstep" help --debug.fault | sed -n 's/^ *--debug.fault=none|//p' | tr '|' '\n' | sort >choices.txt
"$lockstep" help faults | sed -n 's/^\([a-z_]*\)   *[a-z].*/\1/p' | sort >described.txt
[ "$(wc -l <choices.txt)" -ge 28 ] && cmp -s choices.txt described.txt || bad "help faults: $(diff choices.txt described.txt)"

[ $failures -eq 0 ] && say "injected: $seen faults found"
exit $((failures > 0))
