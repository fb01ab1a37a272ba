#!/bin/sh
# test_budget.sh LOCKSTEP TESTS - recompute.mode=budget:SIZE on meshes: all ranks of a stage choose the number of blocks that trying every
# number gives, the budget is kept, what is measured is what was planned, and the losses are those of a run that recomputes nothing.
lockstep=$1
. "$2/script.sh"
layers=3
model="--model.layers=$layers --train.global_batch=4 --data.val_fraction=0 --run.device=cpu --precision.compute=fp32
    --data.text=text.txt"

# activations RANKS RANK OPTIONS...: planned bytes of a rank
activations() {
    n=$1 r=$2
    shift 2
    "$lockstep" plan -n "$n" $model "$@" --rank "$r" --json >plan.json 2>err.txt || { bad "plan -n $n $*: $(cat err.txt)"; return; }
    json memory.activations <plan.json
}

# most RANKS BEGIN END OPTIONS...: the largest of the ranks BEGIN to END - 1
most() {
    m=$1 b=$2 e=$3 largest=0
    shift 3
    while [ "$b" -lt "$e" ]; do
        bytes=$(activations "$m" "$b" "$@")
        [ "$bytes" -gt $largest ] && largest=$bytes
        b=$((b + 1))
    done
    echo $largest
}

# kept RANKS STAGES OPTIONS...: a budget between those of two numbers of blocks
kept() {
    n=$1 stages=$2 of=$(($1 / $2))
    shift 2
    k=0
    while [ $k -le $layers ]; do
        s=0
        while [ $s -lt "$stages" ]; do
            eval "need_${s}_$k=$(most "$n" $((s * of)) $((s * of + of)) "$@" --recompute.mode=first:$k)"
            s=$((s + 1))
        done
        k=$((k + 1))
    done
    [ "$need_0_1" -lt "$need_0_0" ] || { bad "$*: recomputing a block saves nothing: $need_0_0 $need_0_1"; return; }
    budget=$(((need_0_0 + need_0_1) / 2))
    "$lockstep" train -q -n "$n" $model "$@" --train.steps=2 --run.measure_peak=off --log.per_rank=true \
        --recompute.mode=budget:$budget --run.dir=budget$runs >out.txt 2>err.txt || { bad "train -n $n $*: $(cat err.txt)"; return; }
    "$lockstep" train -q -n "$n" $model "$@" --train.steps=2 --run.measure_peak=off --run.dir=plain$runs \
        >out.txt 2>err.txt || { bad "train -n $n $*: $(cat err.txt)"; return; }
    a=$(tail -n 1 budget$runs/metrics.jsonl | json loss) b=$(tail -n 1 plain$runs/metrics.jsonl | json loss)
    [ "$a" = "$b" ] || bad "$*: loss $a, without recomputation $b"
    r=0
    while [ $r -lt "$n" ]; do
        s=$((r / of)) k=0
        while eval "[ \$need_${s}_$k -gt $budget ]"; do k=$((k + 1)); done
        want=$(activations "$n" $r "$@" --recompute.mode=first:$k)
        planned=$(activations "$n" $r "$@" --recompute.mode=budget:$budget)
        got=$(tail -n 1 "$(printf 'budget%d/metrics.rank_%04d.jsonl' $runs $r)" | json memory.activations)
        [ "$planned" = "$want" ] && [ "$got" = "$want" ] && [ "$got" -le $budget ] ||
            bad "$*: rank $r, budget $budget: $k blocks need $want bytes, $planned planned, $got measured"
        r=$((r + 1))
    done
    runs=$((runs + 1))
}
runs=0
gpt2="--model.preset=gpt2-tiny --data.seq_len=32"

kept 3 1 $gpt2 --parallel.tp=3 --train.micro_batch=2 --model.ffn=101
kept 2 1 $gpt2 --parallel.cp=2 --data.seq_len=29 --train.micro_batch=2
kept 2 2 $gpt2 --parallel.pp=2 --train.accumulate=4
kept 2 1 --model.preset=mixtral-tiny --data.seq_len=16 --parallel.ep=2 --model.experts=5 --train.micro_batch=2
kept 4 1 $gpt2 --parallel.tp=2 --parallel.zero=3 --train.micro_batch=2
[ $runs -eq 5 ] || bad "$runs of 5 layouts were compared"
[ $failures -eq 0 ] && say "budget: $runs layouts"
[ $failures -eq 0 ]
