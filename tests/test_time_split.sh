#!/bin/sh
# test_time_split.sh LOCKSTEP - how a step's seconds were spent: the parts add up to the step, in metrics.jsonl of the run and of each rank;
# on several ranks the step line and the final report show them.
set -u
lockstep=$1
. "$2/script.sh"

common="--data.text=text.txt --model.preset=llama-tiny --data.seq_len=64 --train.global_batch=8 --train.steps=4 --train.eval_every=0
        --train.eval_batches=1 --launch.threads=1"

# sums FILE: every line's parts are 0 or more and add up to step_seconds within a thousandth.
sums() {
    json step_seconds time.compute time.exposed time.bubble time.optimizer time.data time.other <"$1" | awk '
        /none/ { wrong = 1 }
        { sum = 0; for (i = 2; i <= NF; i++) { sum += $i; if ($i < 0) wrong = 1 } }
        NF != 7 || sum < 0.999 * $1 || sum > 1.001 * $1 { wrong = 1 }
        END { exit wrong || NR != 4 }' || bad "$1: the parts are not the step: $(tail -n 1 "$1")"
}
part() { tail -n 1 "$1" | json "time.$2"; }
positive() { part "$1" "$2" | awk '{ exit !($1 > 0) }' || bad "$1: $2 is $(part "$1" "$2")"; }
zero() { part "$1" "$2" | awk '{ exit !($1 == 0) }' || bad "$1: $2 is $(part "$1" "$2")"; }

train() { "$lockstep" train $common "$@" >out.txt 2>err.txt || bad "train $*: $(cat err.txt)"; }

train --run.dir=alone
sums alone/metrics.jsonl
positive alone/metrics.jsonl compute
positive alone/metrics.jsonl optimizer
zero alone/metrics.jsonl exposed
zero alone/metrics.jsonl bubble
train -n 2 --parallel.zero=1 --log.per_rank=true --run.dir=dp
for file in metrics metrics.rank_0000 metrics.rank_0001; do sums dp/$file.jsonl; done
positive dp/metrics.jsonl exposed
zero dp/metrics.jsonl bubble
shown='compute [0-9]*%  exposed comm [0-9]*%  optimizer [0-9]*%  data [0-9]*%  other [0-9]*%'
[ "$(grep -c "^ *$shown\$" out.txt)" -eq 2 ] || bad "the step lines of two ranks: $(cat out.txt)"
grep -q "^time  *$shown\$" out.txt || bad "the report of two ranks: $(cat out.txt)"
awk '/%  other/ && length > 100 { exit 1 }' out.txt || bad "more than 100 columns: $(cat out.txt)"
train -n 2 --parallel.pp=2 --train.accumulate=4 --log.per_rank=true --run.dir=pp
for file in metrics metrics.rank_0000 metrics.rank_0001; do sums pp/$file.jsonl; done
positive pp/metrics.jsonl bubble
grep -q '^time  *compute .*  bubble [0-9]*%  ' out.txt || bad "the report of a pipeline: $(cat out.txt)"
[ $failures -eq 0 ]
