#!/bin/sh
# test_in_backward.sh LOCKSTEP TESTS - optim.in_backward: a run has the bits of one without it, on one rank and on several, gradients take
# no extra bytes, the planned bytes are those measured, a resumed run has the same bits, and updates stop before the first gradient
# that is not finite.
set -u
lockstep=$1
. "$2/script.sh"

common="--data.text=text.txt --data.seq_len=16 --train.micro_batch=2 --train.accumulate=1 --train.steps=4 --train.eval_every=0
        --train.eval_batches=1 --optim.warmup=1 --optim.clip=0 --launch.threads=1 --checkpoint.every=2 --checkpoint.keep=9"
last=step_00000004

# same NAME OPTIONS...: the runs NAME.plain and NAME.moved have the same bits, losses, and norms (up to the order of a sum in double).
same() {
    name=$1
    shift
    for kind in plain moved; do
        with=
        [ $kind = plain ] || with=--optim.in_backward
        "$lockstep" train $common "$@" $with --run.dir=$name.$kind >out.txt 2>err.txt || bad "$name: $kind: $(cat err.txt)"
        json step loss <$name.$kind/metrics.jsonl >$name.$kind.losses
        json grad_norm <$name.$kind/metrics.jsonl >$name.$kind.norms
    done
    rows=$(sed -n '/^memory /,/other/p' out.txt | awk 'NF == 5 && ($2 $3 != $4 $5 || $1 == "gradients") { print $1 $2 $3 }')
    [ "$rows" = "gradients0B" ] || bad "$name: gradients are not 0 B, or planned and measured differ: $(cat out.txt)"
    same_bits $name.plain/checkpoints/$last $name.moved/checkpoints/$last
    [ -s $name.plain.losses ] || bad "$name: no losses"
    cmp -s $name.plain.losses $name.moved.losses || bad "$name: losses: $(cat $name.moved.losses)"
    paste $name.plain.norms $name.moved.norms |
        awk '{ n++; d = $1 - $2; if (d < 0) d = -d; if (!($1 > 0) || d > 1e-6 * $1) exit 1 } END { if (n != 4) exit 1 }' ||
        bad "$name: norms: $(paste $name.plain.norms $name.moved.norms)"
}

same adamw --model.preset=gpt2-tiny --precision.compute=fp32
same dropout --model.preset=gpt2-tiny --precision.compute=bf16 --model.dropout=0.1 --recompute.mode=full
same sgd --model.preset=llama-tiny --precision.compute=fp32 --optim.name=sgd --recompute.mode=selective
same lamb --model.preset=llama-tiny --precision.compute=bf16 --optim.name=lamb
same lars --model.preset=qwen3-tiny --precision.compute=fp32 --optim.name=lars
same rounding --model.preset=llama-tiny --precision.compute=bf16 --precision.master=false --precision.stochastic_rounding
same experts --model.preset=mixtral-tiny --precision.compute=fp32 --model.router_bias_rate=0.01
same clipped --model.preset=gpt2-tiny --precision.compute=fp32 --optim.clip=0.5 --optim.clip_by=previous
same grads --model.preset=llama-tiny --precision.compute=bf16 --precision.grads=bf16

# On ranks: a unit is reduced, updated and freed. Buckets of 64 KiB, so that there are several.
buckets="--parallel.bucket=64KiB --parallel.first_bucket=16KiB"
for zero in 0 1 2 3; do
    [ $zero -eq 3 ] && buckets=
    same zero$zero -n 2 --model.preset=gpt2-tiny --precision.compute=fp32 --parallel.zero=$zero $buckets
    same bf16_zero$zero -n 2 --model.preset=llama-tiny --precision.compute=bf16 --parallel.zero=$zero $buckets --optim.clip=0.5 \
        --optim.clip_by=previous --precision.grads=bf16
done
buckets="--parallel.bucket=64KiB --parallel.first_bucket=16KiB"
same waits -n 2 --model.preset=gpt2-tiny --precision.compute=fp32 --parallel.zero=1 $buckets --parallel.overlap=false
same rounded -n 2 --model.preset=gpt2-tiny --precision.compute=fp32 --parallel.zero=0 $buckets --precision.reduce=bf16
same hybrid -n 4 --model.preset=gpt2-tiny --precision.compute=fp32 --parallel.zero=3 --parallel.replicate=2
same lamb0 -n 2 --model.preset=llama-tiny --precision.compute=fp32 --optim.name=lamb --parallel.zero=0 $buckets
same tp -n 2 --model.preset=llama-tiny --precision.compute=fp32 --parallel.tp=2 --parallel.sp
same mesh -n 4 --model.preset=gpt2-tiny --precision.compute=fp32 --parallel.tp=2 --parallel.zero=2 $buckets --recompute.mode=selective
same cp -n 2 --model.preset=llama-tiny --precision.compute=fp32 --parallel.cp=2 --parallel.zero=1 $buckets
same ep -n 2 --model.preset=mixtral-tiny --precision.compute=fp32 --parallel.ep=2 --model.router_bias_rate=0.01 $buckets

# Resumed from the checkpoint in the middle.
cp -r adamw.moved resumed
rm -rf resumed/checkpoints/$last
"$lockstep" train -q $common --model.preset=gpt2-tiny --precision.compute=fp32 --optim.in_backward --run.dir=resumed >out.txt 2>err.txt ||
    bad "resumed: $(cat err.txt)"
same_bits adamw.plain/checkpoints/$last resumed/checkpoints/$last

# A value that is not finite: in forward it stops every update; in a gradient of the first layer it stops that one and those after it.
stopped() {
    words=$1
    shift
    rm -rf run
    "$lockstep" train -q $common --train.steps=6 --checkpoint.every=1 --model.preset=llama-tiny --precision.compute=fp32 \
        --optim.in_backward --run.dir=run "$@" >out.txt 2>err.txt
    code=$?
    [ $code -eq 1 ] || bad "exit $code, not 1: $*"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$(wc -l <err.txt) lines: $*: $(cat err.txt)"
    for word in "$words" "only parameters whose gradients came before it were updated, the checkpoint of step 3 is intact"; do
        grep -qF -e "$word" err.txt || bad "no '$word' from $*: $(cat err.txt)"
    done
    [ "$(ls run/checkpoints | tail -n 1)" = step_00000003 ] || bad "$*: the newest checkpoint is $(ls run/checkpoints | tail -n 1)"
}
stopped "step 4: the loss is NaN" --debug.non_finite=4:0:0:model.layers.1.mlp.up_proj.weight
stopped "step 4: the gradient norm is NaN; first: " --debug.non_finite=4:0:0:model.layers.0.mlp.up_proj.weight.grad

[ $failures -eq 0 ]
