#!/bin/sh
# test_bf16_gradients.sh LOCKSTEP TESTS - precision.grads=bf16: layouts compute the step of a single rank, gradients take half the bytes in
# memory and between ranks, the planned bytes are those measured, a resumed run has the same bits, and the losses stay close to those of
# fp32 gradients.
set -u
lockstep=$1
. "$2/script.sh"

bf16="--precision.compute=bf16 --precision.grads=bf16"
sgd="--optim.name=sgd --optim.lr=0.1 --optim.momentum=0.5"
small="--data.seq_len=6 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny --model.width=32 --model.heads=2 --model.ffn=48 --model.vocab=67 $small"
tied="--model.preset=llama-tiny --model.width=32 --model.ffn=40 --model.vocab=67 --model.tied=true $small"

equal "train.accumulate=2" "parallel.dp=2 parallel.zero=0" $gpt2 $bf16 $sgd --train.global_batch=4 --steps 2
for zero in 1 2 3; do
    equal "" "parallel.dp=2 parallel.zero=$zero train.accumulate=2" $tied $bf16 $sgd --train.global_batch=8 --steps 2
done
equal "" "parallel.dp=4 parallel.zero=3 parallel.replicate=2" $tied $bf16 $sgd --train.global_batch=8 --steps 2
equal "" "parallel.tp=2 parallel.pp=2 parallel.sp" $tied $bf16 $sgd --train.accumulate=4 --steps 2
equal "" "parallel.cp=2 parallel.pp=2 parallel.schedule=zb-h1" $tied $bf16 $sgd --train.accumulate=4 --steps 2
equal "" "parallel.dp=2 parallel.pp=2 parallel.zero=2 parallel.schedule=zb-h1" $tied $bf16 $sgd --train.accumulate=2 --steps 2
equal "" "parallel.dp=2 parallel.ep=2" --model.preset=mixtral-tiny --model.router_bias_rate=0.01 $small $bf16 $sgd --train.global_batch=4 \
    --steps 2
equal "" "parallel.dp=2" --model.preset=resnet-tiny --launch.threads=1 $bf16 $sgd --train.global_batch=4 --steps 2

# A wrong sum over ranks is found as with fp32 gradients.
"$lockstep" parity --a "" --b "parallel.dp=2 debug.fault=average" $tied $bf16 $sgd --train.global_batch=4 --steps 1 >out.txt 2>err.txt
[ $? -eq 1 ] || bad "the wrong average was not found: $(cat out.txt err.txt)"

# ---- runs ----
common="--data.text=text.txt --model.preset=llama-tiny --precision.compute=bf16 --data.seq_len=16 --train.micro_batch=2 --train.steps=4
        --train.eval_every=0 --train.eval_batches=1 --optim.warmup=1 --launch.threads=1 --checkpoint.every=2 --checkpoint.keep=9"

# halves NAME OPTIONS...: with bf16 gradients the planned bytes are those measured, half as many for gradients, with nearly equal losses.
halves() {
    name=$1
    shift
    for grads in fp32 bf16; do
        "$lockstep" train $common "$@" --precision.grads=$grads --run.dir=$name.$grads >$grads.txt 2>err.txt ||
            bad "$name: $grads: $(cat err.txt)"
        rows=$(sed -n '/^memory /,/other/p' $grads.txt | awk 'NF == 5 && $2 $3 != $4 $5')
        [ -z "$rows" ] || bad "$name: $grads: planned and measured differ: $rows"
    done
    sizes=$(for grads in fp32 bf16; do json memory.gradients <$name.$grads/metrics.jsonl | tail -n 1; done)
    [ "$(echo $sizes | awk '$1 > 0 && $1 == 2 * $2')" ] || bad "$name: bytes of gradients: $sizes"
    for grads in fp32 bf16; do json loss <$name.$grads/metrics.jsonl >$grads.losses; done
    paste fp32.losses bf16.losses |
        awk '{ n++; d = $1 - $2; if (d < 0) d = -d; if (!($1 > 0) || d > 1e-3 * $1) exit 1 } END { if (n != 4) exit 1 }' ||
        bad "$name: losses: $(paste fp32.losses bf16.losses)"
}

# comm NAME COLLECTIVE: bytes of that collective in the last step.
comm() { json "comm.$2.bytes" <$1/metrics.jsonl | tail -n 1; }

halves one --train.accumulate=2
halves ddp -n 2 --parallel.zero=0
halves sharded -n 2 --parallel.zero=2 --train.accumulate=2 --parallel.bucket=64KiB
halves fsdp -n 2 --parallel.zero=3 --optim.offload=cpu
halves mesh -n 4 --parallel.tp=2 --parallel.pp=2 --train.accumulate=2
halves server -n 2 --parallel.method=server
halves async -n 2 --parallel.method=async
fp32=$(comm sharded.fp32 reduce_scatter) bf16=$(comm sharded.bf16 reduce_scatter)
[ "${fp32:-0}" -gt 0 ] && [ "$fp32" -eq $((2 * bf16)) ] || bad "reduce_scatter: $fp32 bytes of fp32 gradients, $bf16 of bf16"

# Resumed from the checkpoint in the middle.
last=step_00000004
cp -r one.bf16 resumed
rm -rf resumed/checkpoints/$last
"$lockstep" train -q $common --train.accumulate=2 --precision.grads=bf16 --run.dir=resumed >out.txt 2>err.txt ||
    bad "resumed: $(cat err.txt)"
same_bits one.bf16/checkpoints/$last resumed/checkpoints/$last
hashes one.fp32/checkpoints/$last >fp32.hashes
hashes one.bf16/checkpoints/$last | cmp -s - fp32.hashes && bad "precision.grads changes no bit"

[ $failures -eq 0 ]
