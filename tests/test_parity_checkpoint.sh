#!/bin/sh
# test_parity_checkpoint.sh LOCKSTEP TESTS - a run that is saved under one layout is resumed under another: `lockstep parity --checkpoint`
# compares every loaded parameter and optimizer state bit by bit with the saved one, and the following steps as usual. The layouts are pairs
# of 12 layouts over all axes; models, optimizers and types alternate.
#
# By default every STRIDE-th pair; LOCKSTEP_MATRIX=full: all 132.
set -u
lockstep=$1
. "$2/script.sh"
stride=${LOCKSTEP_STRIDE:-6}
[ "${LOCKSTEP_MATRIX:-}" = full ] && stride=1

cat >layouts.txt <<'END'
parallel.dp=1
parallel.dp=3 parallel.zero=1
parallel.dp=4 parallel.zero=3
parallel.tp=2 parallel.sp
parallel.tp=4
parallel.dp=2 parallel.zero=2 parallel.tp=2
parallel.cp=3 parallel.zero=1
parallel.pp=2 parallel.tp=2 parallel.sp
parallel.pp=3 parallel.dp=2 parallel.zero=2 parallel.schedule=gpipe
parallel.pp=2 parallel.schedule=zb-v
parallel.dp=2 parallel.ep=2 parallel.zero=1 parallel.tp=2
parallel.dp=2 parallel.cp=2 parallel.ep=4 parallel.zero=3
END

shape="--model.layers=5 --model.width=32 --model.heads=8 --model.ffn=44 --model.vocab=67 --train.accumulate=2"
gpt2="--model.preset=gpt2-tiny $shape"
tied="--model.preset=llama-tiny $shape --model.kv_heads=4 --model.tied=true"
untied="--model.preset=llama-tiny $shape --model.kv_heads=2 --model.tied=false"
# One micro-batch per step, so that the router losses of all layouts are over the same tokens.
mixtral="--model.preset=mixtral-tiny --model.layers=4 --train.accumulate=1"
qwen="--model.preset=qwen3-moe-tiny --model.layers=4 --train.accumulate=1"
qwen3="--model.preset=qwen3-tiny $shape --model.kv_heads=4 --model.head_size=6"
sgd="--optim.name=sgd --optim.lr=0.1 --optim.momentum=0.5"
common="--data.seq_len=20 --train.global_batch=8 --launch.threads=1"

pick() { shift "$1"; echo "$1"; }

# resumes STATES A B OPTIONS...: b resumes a's checkpoint; each parameter has STATES optimizer states. With on_check one of the two, in
# turn, is on the checking device.
resumes() {
    in_part || return
    if on_check; then under_pair_seeds resume_pair "$@"; else resume_pair "$@"; fi
}
resume_pair() {
    states=$1 saver=$2 resumer=$3
    shift 3
    if on_check; then
        here="run.device=cpu" there="run.device=check debug.device_seed=$seed"
        [ $((equal_runs % 2)) -eq 0 ] || { swap=$here here=$there there=$swap; }
        saver="$saver $here" resumer="$resumer $there"
    fi
    pair="$lockstep parity --checkpoint --a '$saver' --b '$resumer' $* $common"
    "$lockstep" parity --checkpoint --json --a "$saver" --b "$resumer" "$@" $common >out.txt 2>err.txt ||
        bad "$pair: $(cat out.txt err.txt)"
    json steps tensors states <out.txt >numbers.txt
    read -r steps tensors compared <numbers.txt
    [ "$steps" = 2 ] && [ "$tensors" -gt 0 ] && [ "$compared" -eq $((tensors * (1 + states))) ] ||
        bad "$pair: $steps steps, $compared states of $tensors tensors: $(cat out.txt)"
    has equal true <out.txt || bad "$pair: does not say so: $(cat out.txt)"
    [ -z "$(ls -A tmp)" ] || bad "left behind: $(ls tmp)"
}

k=0
while read -r a; do
    while read -r b; do
        [ "$a" = "$b" ] && continue
        k=$((k + 1))
        [ $((k % stride)) -eq $((stride > 1)) ] || [ $stride -eq 1 ] || continue
        case "$a $b" in
        *parallel.ep*)
            if [ $((k / stride % 2)) -eq 0 ]; then resumes 1 "$a" "$b" $mixtral $sgd --precision.compute=fp32
            else resumes 2 "$a" "$b" $qwen --optim.name=adamw --precision.compute=fp32; fi ;;
        *)
            model=$(pick $((k % 4 + 1)) "$gpt2" "$tied" "$untied" "$qwen3")
            case $((k / stride % 4)) in
            0) resumes 1 "$a" "$b" $model $sgd --precision.compute=fp32 ;;
            1) resumes 2 "$a" "$b" $model --optim.name=adamw --precision.compute=fp32 ;;
            2) resumes 2 "$a" "$b" $model --optim.name=adamw --precision.compute=bf16 ;;  # the weights are the masters
            3) resumes 2 "$a" "$b" $model --optim.name=lamb --optim.clip=0.1 --precision.compute=fp32 ;;
            esac ;;
        esac
    done <layouts.txt
done <layouts.txt

# Offloaded states, dropout, which must continue its random numbers, weights without masters, and an optimizer without states.
resumes 2 "parallel.dp=2 parallel.zero=1 optim.offload=file" "parallel.tp=2 optim.offload=cpu" $gpt2 --optim.name=adamw \
    --precision.compute=fp32
resumes 1 "parallel.tp=2 parallel.sp" "parallel.cp=2" $gpt2 $sgd --precision.compute=fp32 --model.dropout=0.2 --model.attention_dropout=0.3
resumes 1 "parallel.pp=2" "parallel.dp=2 parallel.zero=3" $untied --optim.name=lars --precision.compute=bf16 --precision.master=false
resumes 0 "parallel.pp=2" "parallel.tp=2" $tied --optim.name=sgd --optim.momentum=0 --precision.compute=fp32

all_pairs $(((132 + stride - 1) / stride + 4)) # 12 layouts are resumed under the 11 others; the last four pairs
end_on_check

# ---- what is refused ----
refused() {
    code=$1 words=$2
    shift 2
    "$lockstep" parity "$@" $common >out.txt 2>err.txt
    got=$?
    [ $got -eq "$code" ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF -e "$words" err.txt || bad "exit $got: $*: $(cat err.txt)"
    [ -z "$(ls -A tmp)" ] || bad "left behind: $(ls tmp)"
}
refused 2 "precision.compute is fp32 in --a and bf16 in --b" --checkpoint --a "precision.compute=fp32" --b \
    "precision.compute=bf16 parallel.dp=2" $gpt2
refused 2 "--steps=1 leaves no step after the --checkpoint; use 2 or more" --checkpoint --steps 1 --a "" --b "parallel.dp=2" $gpt2
refused 2 "--save applies only to --write" --save here --a "" --b "parallel.dp=2" $gpt2
refused 2 "--load applies only to --write" --load here --a "" --b "parallel.dp=2" $gpt2
refused 1 "no optimizer state 'v' of 'wte.weight'" --checkpoint --a "optim.name=sgd optim.lr=1e-3" --b "parallel.dp=2" $gpt2 \
    --precision.compute=fp32
refused 2 "model.vocab is 67 in --a and 70 in --b; both sides must train the same model" --checkpoint --a "" --b \
    "parallel.tp=2 model.vocab=70" $gpt2 \
    --precision.compute=fp32

[ $failures -eq 0 ] && say "checkpoints of other layouts: $cells pairs"
exit $((failures > 0))
