#!/bin/sh
# test_layout_rules.sh LOCKSTEP TESTS - layouts that a rule of ls_layout_check() rejects: train, plan and parity exit with code 2 and print
# the same line.
set -u
lockstep=$1
. "$2/script.sh"

# The line after "lockstep COMMAND: ", and in parity after "--b: "; $code: how the command ended.
line_of() {
    command=$1
    shift
    "$lockstep" $command "$@" >out.txt 2>err.txt
    code=$?
    sed "s/^lockstep $command: //; s/^--b: //" err.txt
}

# The rows of a table on standard input: LAYOUT | WORDS of the message. $1: whether parity has these options; the rest: the model.
rows=0
same_line() {
    in_parity=$1
    shift
    while IFS='|' read -r layout words; do
        rows=$((rows + 1))
        ranks=$(printf '%s\n' $layout | sed -n 's/^launch\.ranks=/-n /p')
        options=$(printf '%s\n' $layout | grep -v '^launch' | sed 's/^/--/')
        line_of plan "$@" $options $ranks >planned.txt
        [ $code -eq 2 ] || bad "plan: exit $code: $layout"
        planned=$(cat planned.txt)
        [ "$planned" ] && [ "${planned#*"$words"}" != "$planned" ] || bad "plan: no '$words': $layout: $planned"
        [ "$(wc -l <planned.txt)" -eq 1 ] || bad "plan: several lines: $layout: $planned"
        line_of train "$@" --data.text=text.txt --run.dir=bad --optim.clip=0 $options ${ranks:--n $(product $layout)} >trained.txt
        [ $code -eq 2 ] || bad "train: exit $code: $layout"
        [ "$(cat trained.txt)" = "$planned" ] || bad "train and plan: $layout: $(cat trained.txt) / $planned"
        [ $in_parity = yes ] || continue
        line_of parity "$@" --a "" --b "$layout" >compared.txt
        [ $code -eq 2 ] || bad "parity: exit $code: $layout"
        [ "$(cat compared.txt)" = "$planned" ] || bad "parity and plan: $layout: $(cat compared.txt) / $planned"
    done
}

# The ranks of a layout.
product() {
    product=1
    for option; do
        case $option in parallel.dp=* | parallel.tp=* | parallel.cp=* | parallel.pp=*) product=$((product * ${option#*=})) ;; esac
    done
    [ $product -le 131072 ] && say $product || say 2 # -n has a limit of its own
}

gpt2="--model.preset=gpt2-tiny --data.seq_len=16"
mixtral="--model.preset=mixtral-tiny --data.seq_len=16"
resnet="--model.preset=resnet-tiny"

same_line yes $gpt2 <<'END'
parallel.dp=1024 parallel.tp=256|are too many ranks; at most 131072 are possible
parallel.dp=4 parallel.zero=1 parallel.replicate=3|parallel.dp=4 is not a multiple of parallel.replicate=3
parallel.dp=2 parallel.replicate=2|parallel.replicate=2 does nothing here: parallel.zero=0 replicates everything
parallel.dp=2 parallel.zero=1 parallel.replicate=2|makes every rank a replica and shards nothing
parallel.dp=2 parallel.ep=2|parallel.ep=2 does nothing here: the model has no experts
parallel.dp=3 parallel.ep=2|parallel.ep=2 does not divide parallel.dp=3
parallel.dp=2 parallel.zero=2 parallel.offload_parameters=cpu|parallel.offload_parameters=cpu with parallel.zero=2 over 2
parallel.dp=2 parallel.method=server parallel.zero=1|parallel.zero=1 with parallel.method=server
parallel.dp=2 parallel.tp=2 parallel.method=dataparallel|parallel.tp=2 with parallel.method=dataparallel
parallel.tp=2 parallel.tp_chunks=17|parallel.tp_chunks
parallel.tp=64|cannot be sharded over parallel.tp=64: every rank needs at least one
parallel.cp=16|data.seq_len=16 is too short for parallel.cp=16 with two chunks per rank; use at least 32 tokens
parallel.cp=8 parallel.cp_method=all_to_all|parallel.cp_method=all_to_all with parallel.cp=8
parallel.cp=8 parallel.tp=4 parallel.sp=true|too few for parallel.sp over parallel.tp=4
precision.grads=bf16 precision.compute=fp32|precision.grads=bf16 with precision.compute=fp32
parallel.pp=5|model.layers=2 in parallel.pp=5 * parallel.vpp=1 stages: every stage needs at least one layer
parallel.pp=2 parallel.stages=1,2|parallel.stages=1,2: expected 2 numbers that add up to 2
parallel.pp=2 parallel.schedule=fast|parallel.schedule=fast does not exist
parallel.pp=2 parallel.schedule=forward|parallel.schedule=forward is for evaluation
parallel.pp=2 parallel.dp=2 parallel.zero=3 parallel.reshard_after_forward=false|parallel.reshard_after_forward=false with parallel.pp=2
END

same_line yes $mixtral <<'END'
parallel.dp=8 parallel.ep=8|model.experts=4 cannot be sharded over parallel.ep=8: every rank needs at least one
parallel.dp=2 parallel.ep=2 parallel.receive_factor=0.5|parallel.receive_factor=0.5 is out of range
END

same_line yes $resnet <<'END'
parallel.tp=2|parallel.tp=2: a model that is not a transformer supports only parallel.dp
END

same_line no $resnet <<'END'
parallel.dp=3 parallel.method=async|parallel.method=async with batch norms, whose statistics are those of all ranks at the same time
END

# ---- parity derives the ranks, does not compare stale gradients and has no updates in backward, whose gradients are gone ----
same_line no $gpt2 <<'END'
launch.ranks=6 parallel.tp=4|does not hold: 6 = 1 * 1 * 1 * 4; change parallel.pp, parallel.cp or parallel.tp, or match
launch.ranks=6 parallel.tp=2 parallel.dp=2|does not hold: 6 = 1 * 2 * 1 * 2; use --parallel.dp=3, or match the product with -n 4
parallel.dp=2 parallel.method=async precision.reduce=bf16|precision.reduce=bf16 with parallel.method=async
optim.in_backward=true parallel.pp=2|optim.in_backward=true with parallel.pp=2: a stage has several micro-batches in flight
optim.in_backward=true parallel.dp=2 parallel.method=server|optim.in_backward=true with parallel.method=server
optim.in_backward=true parallel.dp=2 parallel.zero=1 optim.name=lamb|optim.in_backward=true with optim.name=lamb
optim.in_backward=true parallel.tp=2 optim.name=lars|optim.in_backward=true with optim.name=lars
optim.in_backward=true train.accumulate=2|optim.in_backward=true with train.accumulate=2
optim.in_backward=true parallel.offload_parameters=cpu|optim.in_backward=true with parallel.offload_parameters
optim.in_backward=true optim.offload=cpu|optim.in_backward=true with optim.offload
END

same_line no $mixtral <<'END'
parallel.dp=3 parallel.method=async|parallel.method=async with experts, whose statistics are those of all ranks at the same time
END

[ -e bad ] && bad "a run that cannot start leaves a folder"
[ $failures -eq 0 ] || exit 1
say "$rows layouts, each refused by the same line"
