#!/bin/sh
# test_clip_previous.sh LOCKSTEP TESTS - optim.clip_by=previous: an update is clipped by the norm of the previous step. Layouts compute the
# update of a single rank, which parity compares with the rule in double; a resumed run has the same bits; updates in backward have the
# bits of updates after it.
set -u
lockstep=$1
. "$2/script.sh"

small="--data.seq_len=6 --launch.threads=1 --precision.compute=fp32 --optim.clip_by=previous --optim.clip=0.5"
tied="--model.preset=llama-tiny --model.width=32 --model.ffn=40 --model.vocab=67 --model.tied=true $small"
sgd="--optim.name=sgd --optim.lr=0.1"

equal "" "parallel.dp=2 parallel.zero=0" $tied $sgd --train.global_batch=4 --steps 4
equal "" "parallel.dp=2 parallel.zero=2 train.accumulate=2" $tied $sgd --train.global_batch=8 --steps 4
equal "" "parallel.dp=2 parallel.zero=3 parallel.tp=2" $tied --train.global_batch=8 --steps 4
equal "" "parallel.pp=2 parallel.tp=2" $tied $sgd --train.accumulate=4 --steps 4
equal "" "parallel.dp=2 parallel.method=server" $tied $sgd --train.global_batch=4 --steps 4

# The side that clips by its own norm computes a different update.
"$lockstep" parity --a "" --b "optim.clip_by=current" $tied $sgd --train.global_batch=4 --steps 2 >out.txt 2>err.txt
[ $? -eq 1 ] && grep -q "weight" out.txt || bad "the other norm was not found: $(cat out.txt err.txt)"

common="--data.text=text.txt --model.preset=gpt2-tiny --precision.compute=fp32 --data.seq_len=16 --train.micro_batch=2 --train.accumulate=1
        --train.steps=4 --train.eval_every=0 --train.eval_batches=1 --optim.warmup=1 --optim.name=sgd --launch.threads=1
        --checkpoint.every=1 --checkpoint.keep=9"

run() {
    name=$1
    shift
    "$lockstep" train $common "$@" --run.dir=$name >out.txt 2>err.txt || bad "$name: $(cat err.txt)"
    rows=$(sed -n '/^memory /,/other/p' out.txt | awk 'NF == 5 && $2 $3 != $4 $5')
    [ -z "$rows" ] || bad "$name: planned and measured differ: $rows"
}
differs() { [ "$(hashes "$1")" != "$(hashes "$2")" ] || bad "$1 and $2 have the same bits"; }

run unclipped --optim.clip=0
run current --optim.clip=0.5
run previous --optim.clip=0.5 --optim.clip_by=previous
run moved --optim.clip=0.5 --optim.clip_by=previous --optim.in_backward
json grad_norm <previous/metrics.jsonl | awk '!($1 > 0.5) { exit 1 }' || bad "no step is clipped: $(json grad_norm <previous/metrics.jsonl)"

# The first step is not clipped, the second by the first one's norm.
same_bits unclipped/checkpoints/step_00000001 previous/checkpoints/step_00000001
differs current/checkpoints/step_00000001 previous/checkpoints/step_00000001
differs unclipped/checkpoints/step_00000002 previous/checkpoints/step_00000002
same_bits previous/checkpoints/step_00000004 moved/checkpoints/step_00000004

# resumed NAME STEP: the run NAME from its checkpoint of STEP on has the bits of the run that never stopped.
resumed() {
    rm -rf resumed
    cp -r $1 resumed
    for step in $(seq $(($2 + 1)) 4); do rm -rf resumed/checkpoints/step_0000000$step; done
    "$lockstep" train -q --config resumed/config.yaml --run.dir=resumed >out.txt 2>err.txt || bad "resumed: $(cat err.txt)"
    same_bits $1/checkpoints/step_00000004 resumed/checkpoints/step_00000004
}
resumed previous 1
resumed previous 3
resumed moved 2

[ $failures -eq 0 ]
