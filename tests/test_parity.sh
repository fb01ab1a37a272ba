#!/bin/sh
# test_parity.sh LOCKSTEP TESTS - compares layouts by `lockstep parity`: ranks, ZeRO stages, accumulation, models and types, then every
# flag. LOCKSTEP_MATRIX=full: all cells, and 20 steps of each language model.
#
# A batch norm covers one micro-batch of all ranks, so an image model with accumulation is compared with other layouts of the same ranks and
# micro-batches; it is compared with one rank only without accumulation.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"
full=0
[ "${LOCKSTEP_MATRIX:-}" = full ] && full=1

small="--data.seq_len=6 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny --model.width=32 --model.heads=2 --model.ffn=48 --model.vocab=67 $small"
untied="--model.preset=llama-tiny --model.width=32 --model.ffn=40 --model.vocab=67 --model.tied=false $small"
tied="--model.preset=llama-tiny --model.width=32 --model.ffn=40 --model.vocab=67 --model.tied=true $small"
image="--model.preset=resnet-tiny --launch.threads=1"
sgd="--optim.name=sgd --optim.lr=0.1 --optim.momentum=0.5"
fp32="--precision.compute=fp32"

# refused CODE WORDS ARGUMENTS...
refused() {
    code=$1 words=$2
    shift 2
    "$lockstep" parity "$@" >out.txt 2>err.txt
    got=$?
    [ $got -eq "$code" ] || bad "exit $got, not $code: $*: $(cat err.txt)"
    [ "$(wc -l <err.txt)" -eq 1 ] && grep -q '^lockstep parity: ' err.txt || bad "not one line: $*: $(cat err.txt)"
    grep -qF -e "$words" err.txt || bad "no '$words' from: $*: $(cat err.txt)"
}

# ---- ranks x ZeRO stage x accumulation x model x type ----
matrix() {
    models=$1 types=$2 ranks=$3 zeros=$4 accumulations=$5 steps=$6
    for model in $models; do for type in $types; do for dp in $ranks; do for accumulate in $accumulations; do
        a="parallel.dp=1 train.accumulate=$accumulate"
        [ $model = image ] && [ "$accumulate" -gt 1 ] && a="parallel.dp=$dp train.accumulate=$accumulate"
        for zero in $zeros; do
            [ $dp -eq 1 ] && [ "$zero" -gt 0 ] && continue
            equal "$a" "parallel.dp=$dp parallel.zero=$zero train.accumulate=$accumulate" $(options $model) $sgd --steps $steps \
                --optim.lr=$([ $model = image ] && echo 0.003 ||
                    echo 0.1) --precision.compute=$type --train.global_batch=$((2 * dp * accumulate))
        done
    done; done; done; done
}

if [ $full -eq 1 ]; then
    matrix "gpt2 untied tied" "fp32 bf16" "1 2 3 4 8" "0 1 2 3" "1 2 4" 20
    matrix image "fp32 bf16" "1 2 3 4 8" "0 1 2 3" "1 2 4" 3
else
    matrix "gpt2 untied tied image" fp32 2 "0 1 2 3" 2 3
    matrix "tied image" fp32 3 "0 1 2 3" 1 3
    matrix gpt2 fp32 "4 8" "1 3" 1 3
    matrix "untied image" bf16 2 "0 2 3" 2 3
    matrix "gpt2 tied image" fp32 2 3 1 20
    matrix untied fp32 3 2 4 20
fi

# Steps are compared separately, so the bounds of the twentieth step are as narrow as those of the first.
for dp in 2 3; do equal "" "parallel.dp=$dp parallel.zero=3" $image $fp32 --optim.name=adamw --train.global_batch=8 --steps 20; done

# ---- switches ----
zeros="0 1 2 3"
for zero in $zeros; do
    z="parallel.zero=$zero"
    two="parallel.dp=2 $z"
    [ $zero -lt 3 ] && equal "" "parallel.dp=2 $z parallel.bucket=4KiB parallel.first_bucket=1KiB" $gpt2 $fp32 $sgd --train.global_batch=4
    equal "" "$two parallel.overlap=false" $untied $fp32 $sgd --train.global_batch=4
    equal "" "$two precision.reduce=bf16" $tied $fp32 $sgd --train.global_batch=4
    equal "" "parallel.dp=3 $z" $gpt2 $fp32 $sgd --train.global_batch=7     # 2, 2 and 3 samples
    equal "" "$two train.accumulate=4" $gpt2 $fp32 $sgd --train.global_batch=7
    equal "" "$two" $image $fp32 $sgd --train.global_batch=7
    equal "" "$two" $gpt2 $fp32 $sgd --train.global_batch=4 --model.dropout=0.2 --model.attention_dropout=0.3
    equal "$two parallel.sync_batch_norm=false" "parallel.dp=2 parallel.sync_batch_norm=false" $image $fp32 $sgd --train.global_batch=4
    for offload in cpu file; do equal "" "$two optim.offload=$offload" $gpt2 $fp32 --optim.name=adamw --train.global_batch=4; done
    for mode in selective full every:2 budget:560KiB; do
        equal "" "$two recompute.mode=$mode" $untied $fp32 $sgd --train.global_batch=4
    done
    for optimizer in sgd adam adamw lamb lars; do
        equal "" "$two" $gpt2 $fp32 --optim.name=$optimizer --optim.clip=0.1 --train.global_batch=4
    done
    equal "" "$two" $gpt2 --precision.compute=bf16 --precision.master=false $sgd --train.global_batch=4
done
for zero in 1 2 3; do
    equal "" "parallel.dp=4 parallel.zero=$zero parallel.replicate=2" $gpt2 $fp32 $sgd --train.global_batch=8
    equal "" "parallel.dp=4 parallel.zero=$zero parallel.replicate=2" $tied $fp32 --optim.name=lamb --train.global_batch=6
done
equal "" "parallel.dp=2 parallel.zero=3 parallel.reshard_after_forward=false" $tied $fp32 $sgd --train.global_batch=4
equal "" "parallel.dp=2 parallel.zero=3 parallel.fsdp_unit=layers:2 parallel.prefetch=3" $tied $fp32 $sgd --train.global_batch=4
equal "" "parallel.dp=3 parallel.zero=3 parallel.fsdp_unit=model parallel.prefetch=0" $gpt2 $fp32 $sgd --train.global_batch=6
for zero in 2 3; do
    equal "" "parallel.dp=2 parallel.zero=$zero parallel.unsharded_accumulation train.accumulate=2" $gpt2 $fp32 $sgd --train.global_batch=8
done
equal "optim.offload=file" "optim.offload=cpu" $gpt2 $fp32 --train.global_batch=2
equal "parallel.dp=2 parallel.zero=2" "parallel.dp=3 parallel.zero=3" $untied $fp32 --train.global_batch=6 --steps 20

all_pairs 132 502
end_on_check

# ---- one layout twice has the same bits ----
for layout in "parallel.dp=1" "parallel.dp=3 parallel.zero=0" "parallel.dp=2 parallel.zero=1 precision.reduce=bf16" \
              "parallel.dp=4 parallel.zero=2 parallel.replicate=2" "parallel.dp=3 parallel.zero=3 train.accumulate=2"; do
    for type in fp32 bf16; do
        cells=$((cells + 1))
        "$lockstep" parity --a "$layout" --b "$layout" $gpt2 --precision.compute=$type --train.global_batch=9 --steps 5 --json \
            >out.txt 2>err.txt || bad "$layout twice: $(cat err.txt)"
        read -r compared same <<EOF
$(json compared same_bits <out.txt)
EOF
        [ "${compared:-0}" -gt 0 ] && [ "$same" = "$compared" ] || bad "$layout twice has other bits: $(cat out.txt)"
    done
done

# ---- both sides get the same global batch, even if their defaults differ ----
equal "parallel.dp=1" "parallel.dp=2 parallel.zero=3" $gpt2 $fp32
equal "parallel.dp=1" "parallel.dp=2 parallel.zero=3" $image $fp32
equal "train.accumulate=4" "--parallel.dp=2   --train.accumulate=2" $gpt2 $fp32 --train.global_batch=8
equal "train.micro_batch=2" "parallel.dp=2" $gpt2 $fp32
equal "train.global_batch=6" "parallel.dp=2" $gpt2 $fp32
refused 2 "--b is missing" --a "parallel.dp=1"
refused 2 "--b: unknown option 'parallel.zeor'; did you mean 'parallel.zero'?" --a "" --b "parallel.dp=2 parallel.zeor=1"
refused 2 "--b: '2' is not an option" --a "" --b "parallel.dp 2"
refused 2 "--a: '--json' is not an option" --a "--json" --b "parallel.dp=2"
refused 2 "train.global_batch is 4 in --a and 8 in --b" --a "train.global_batch=4" --b "train.global_batch=8 parallel.dp=2"
refused 2 "--b: parallel.zero does nothing here" --a "" --b "parallel.zero=1"
refused 2 "unexpected argument" --a "" --b "" x
refused 2 "is not a multiple of parallel.replicate=3" --a "" --b "parallel.dp=4 parallel.zero=1 parallel.replicate=3"
refused 2 "model.layers is 2 in --a and 1 in --b; both sides must train the same model" --a "" --b "model.layers=1" $gpt2 $fp32
refused 2 'model.preset is "gpt2-tiny" in --a and "llama-tiny" in --b' --a "model.preset=gpt2-tiny" --b "model.preset=llama-tiny" $small
refused 1 "the layouts differ first in step 0, weight of 'wte.weight' (initialization)" --a "" --b "parallel.dp=2 train.seed=3" $gpt2 $fp32
refused 1 "the layouts differ first in step 0, weight of 'wte.weight' (optimizer)" --a "" --b "optim.lr=0.01" $gpt2 $fp32
refused 1 "the layouts differ first in step 0, state of 'wte.weight/m' (optimizer)" --a "" --b "optim.beta1=0.8" $gpt2 $fp32 \
    --optim.lr=1e-12
grep -q "^equal" out.txt && bad "says equal and differs: $(cat out.txt)"
refused 2 "the model has 128 positions" --a "" --b "parallel.dp=2" $untied --data.seq_len=4096
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 refused 2 "it was started by" --a "" --b ""

# ---- a file of --write instead of --b; the drift of free runs, which has no verdict ----
"$lockstep" parity --write ours $gpt2 $fp32 --optim.name=adam --train.global_batch=4 || bad "--write"
"$lockstep" parity --a "parallel.dp=2" --against ours $gpt2 $fp32 --optim.name=adam --train.global_batch=4 >out.txt 2>err.txt &&
    grep -q "^equal" out.txt ||
    bad "--against: $(cat out.txt err.txt)"
refused 1 "give both the same --steps" --a "" --against ours --steps 2 $gpt2 $fp32 --optim.name=adam --train.global_batch=4
refused 1 "the two sides have different tensors" --a "" --against ours $gpt2 $fp32 --optim.name=adam --train.global_batch=4 --model.layers=1
head -c 1000 ours >truncated
refused 2 "data.seq_len is" --a "" --b data.seq_len=8 $gpt2 $fp32
refused 1 "truncated: truncated at byte" --a "" --against truncated $gpt2 $fp32
"$lockstep" parity --drift --a "" --b "parallel.dp=2" $gpt2 $fp32 --optim.name=adam --json >out.txt 2>err.txt &&
    [ "$(json 'drift[].step' <out.txt | tr '\n' ' ')" = "0 1 2 " ] || bad "--drift: $(cat out.txt err.txt)"
"$lockstep" parity --drift --a "" --b "parallel.dp=2 debug.fault=twice" $gpt2 $fp32 --json >out.txt 2>err.txt ||
    bad "--drift has a verdict: $(cat err.txt)"
drifts() { json "drift[].$1" <out.txt; }
drifts gradient | awk '$1 > 0.1 { found = 1 } END { exit !found }' ||
    bad "--drift does not show a gradient that is counted twice: $(cat out.txt)"

# Key biases, whose gradients are only rounding, are listed. All other gradients and weights differ by rounding in the first step, which
# starts from equal weights, and by little more in the next. With key biases the drift would be near 1 in every step.
for optimizer in sgd adam adamw lamb; do
    "$lockstep" parity --drift --a "" --b "parallel.tp=2" --model.preset=gpt2-tiny $small $fp32 --optim.name=$optimizer --steps 5 --json \
        >out.txt 2>err.txt ||
        bad "--drift, $optimizer: $(cat err.txt)"
    has gradient_is_rounding "[h.0.attn.k.bias,h.1.attn.k.bias]" <out.txt ||
        bad "--drift, $optimizer: key biases are not listed: $(cat out.txt)"
    { drifts gradient_name; drifts weight_name; } | grep -q 'attn.k.bias$' && bad "--drift, $optimizer: a key bias is named: $(cat out.txt)"
    { drifts gradient; drifts weight; } | awk '!($1 > 0 && $1 < (NR == 1 ? 2e-6 : 1e-4)) { wide = 1 } END { exit !(NR == 10 && !wide) }' ||
        bad "--drift, $optimizer: more than rounding: $(cat out.txt)"
done
"$lockstep" parity --drift --a "" --b "parallel.tp=2" --model.preset=gpt2-tiny $small $fp32 >out.txt 2>err.txt &&
    grep -q "^left out because the gradient is only rounding: 2 tensors, the first is h.0.attn.k.bias$" out.txt ||
        bad "--drift: $(cat out.txt err.txt)"
# Llama has no such bias. A gradient that is exactly zero, of an expert without tokens, is not left out.
for preset in llama-tiny mixtral-tiny; do
    "$lockstep" parity --drift --a "" --b "parallel.dp=2" --model.preset=$preset $small $fp32 --json >out.txt 2>err.txt &&
        has gradient_is_rounding "[]" <out.txt || bad "--drift, $preset: $(cat out.txt err.txt)"
done
refused 2 "--follow applies only to --write" --follow ours --a "" --b "parallel.dp=2" $gpt2
for flag in --a --b; do
    refused 2 "$flag does not apply to --write, which runs one side: give its layout as options" --write refused $flag parallel.dp=2 $gpt2
done
for flag in "--against ours" --checkpoint --drift --json; do
    refused 2 "${flag%% *} does not apply to --write, which compares nothing; leave it out" --write refused $flag $gpt2
done
[ ! -e refused ] || bad "a refused --write wrote its file"

# ---- a rank of a side is killed while it runs ----
"$lockstep" parity --a "parallel.dp=2" --b "" $gpt2 --steps 1000000 >out.txt 2>err.txt &
launcher=$!
for i in $(seq 3000); do
    ls tmp/*/a.tmp >/dev/null 2>&1 && break
    sleep 0.02
done
kill -KILL "$(rank 0)"
wait $launcher
ended=$?
launcher=
[ $ended -eq 3 ] && grep -q "^lockstep parity: rank [01] was killed by signal 9 (Killed)" err.txt || bad "a rank killed: $(cat err.txt)"
[ -z "$(ls -A tmp)" ] || bad "left behind: $(ls tmp)"

[ $failures -eq 0 ] && say "parity: $cells pairs of layouts"
exit $((failures > 0))
