#!/bin/sh
# test_non_finite.sh LOCKSTEP - a loss or a gradient that is not finite: one line names the step, the value and the rank, nothing is
# updated, and the checkpoint stays. LOCKSTEP_MATRIX=full: more layouts.
set -u
lockstep=$1
. "$2/script.sh"

common="--data.text=text.txt --model.preset=llama-tiny --data.seq_len=16 --train.global_batch=8 --train.accumulate=2 --train.steps=6
        --train.eval_every=0 --train.eval_batches=1
        --optim.warmup=2 --launch.threads=1 --precision.compute=fp32 --checkpoint.every=1 --checkpoint.keep=9"
weight=model.layers.1.mlp.up_proj.weight

# stopped WORDS OPTIONS...: exit 1, one line that has the words, checkpoint 3 the newest.
stopped() {
    words=$1
    shift
    rm -rf run
    "$lockstep" train -q $common --run.dir=run "$@" >out.txt 2>err.txt
    code=$?
    [ $code -eq 1 ] || bad "exit $code, not 1: $*"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$(wc -l <err.txt) lines: $*: $(cat err.txt)"
    grep -qF -e "$words" err.txt || bad "no '$words' from $*: $(cat err.txt)"
    [ "$(ls run/checkpoints | tail -n 1)" = step_00000003 ] || bad "$*: the newest checkpoint is $(ls run/checkpoints | tail -n 1)"
    [ "$(wc -l <run/metrics.jsonl)" -eq 3 ] || bad "$*: $(wc -l <run/metrics.jsonl) lines of metrics"
}

# A gradient that is NaN in step 4 on the last rank: the message names it; if that step is skipped, parameters and moments stay as
# after step 3.
layout() {
    name=$1 rank=$2
    shift 2
    stopped "step 4: the gradient norm is NaN; first: element " "$@" --debug.non_finite=4:$rank:1:$weight.grad
    for words in "of the gradient of '$weight' is NaN (linear_dw, wgrad" "block 'model.layers.1'" \
        "in micro-batch 2 of 2 on rank $rank; nothing was updated" \
                 "the checkpoint of step 3 is intact"; do
        grep -qF -e "$words" err.txt || bad "$name: no '$words': $(cat err.txt)"
    done
    rm -rf skip
    "$lockstep" train $common --run.dir=skip "$@" --train.non_finite=skip --debug.non_finite=4:$rank:1:$weight.grad >out.txt 2>err.txt ||
        bad "$name: skip: $(cat err.txt)"
    [ "$(grep -c 'step 4: the gradient norm is NaN: the update is skipped; first: ' err.txt)" -eq 1 ] ||
        bad "$name: skip says: $(cat err.txt)"
    [ "$(hashes run/checkpoints/step_00000003)" = "$(hashes skip/checkpoints/step_00000003)" ] || bad "$name: checkpoint 3 changed"
    [ "$(hashes skip/checkpoints/step_00000003)" = "$(hashes skip/checkpoints/step_00000004)" ] ||
        bad "$name: the lost step updated something"
    [ "$(hashes skip/checkpoints/step_00000004)" != "$(hashes skip/checkpoints/step_00000005)" ] ||
        bad "$name: no step is made after the lost one"
    [ "$(json step grad_norm skipped <skip/metrics.jsonl | grep -v ' none$')" = "4 null true" ] ||
        bad "$name: metrics: $(sed -n 4p skip/metrics.jsonl)"
    grep -q '^skipped     1 update because of values that are not finite; in the last one: element ' out.txt ||
        bad "$name: the report does not say what was skipped: $(cat out.txt)"
    "$lockstep" doctor skip >doctor.txt 2>&1
    grep -q "step 6 of 6, 1 update skipped" doctor.txt || bad "$name: doctor: $(cat doctor.txt)"
    "$lockstep" doctor skip --json | has 'ranks[].skipped' 1 || bad "$name: doctor --json has no skipped"
}
layout alone 0
layout dp 1 -n 2 --optim.clip=0
layout zero3 1 -n 2 --parallel.zero=3
layout tp 1 -n 2 --parallel.tp=2 --optim.name=lamb
layout pp 1 -n 2 --parallel.pp=2
layout offload 0 --parallel.offload_parameters=file --optim.offload=file
if [ "${LOCKSTEP_MATRIX:-}" = full ]; then
    layout zero1 1 -n 2 --parallel.zero=1
    layout zero2 0 -n 2 --parallel.zero=2 --optim.name=lars --optim.offload=file
    layout hybrid 2 -n 4 --parallel.zero=3 --parallel.replicate=2
    layout cp 1 -n 2 --parallel.cp=2 --parallel.zero=2
    layout sp 0 -n 2 --parallel.tp=2 --parallel.sp=true --optim.name=sgd
    layout mesh 5 -n 8 --parallel.pp=2 --parallel.tp=2 --parallel.dp=2 --parallel.zero=1
    layout recompute 0 --recompute.mode=full
    layout bf16 1 -n 2 --precision.compute=bf16 --precision.reduce=bf16
fi

# A loss: the op that made it NaN is named by the rank that ran it, whatever exchanges the value passed through.
first=model.layers.0.mlp.up_proj.weight
for on in "-n 2 --parallel.zero=3" "-n 2 --parallel.tp=2" "-n 2 --parallel.pp=2" "-n 2 --parallel.cp=2"; do
    stopped "step 4: the loss is NaN; first: element " $on --debug.non_finite=4:0:0:$first
    grep -qF "(linear of '$first', forward, block 'model.layers.0'" err.txt && grep -qF "in micro-batch 1 of 2 on rank 0;" err.txt ||
        bad "$on: $(cat err.txt)"
done

# The rank that names the value is killed as soon as it has: the error line still names the value, whichever process prints it.
for rank in 0 1; do
    rm -rf run
    "$lockstep" train -q $common -n 2 --parallel.zero=3 --run.dir=run --debug.non_finite=4:$rank:1:$weight.grad >out.txt 2>err.txt &
    launcher=$!
    for i in $(seq 100000); do
        grep -q "first: element" run/log/rank_000$rank.log 2>/dev/null && break
        kill -0 $launcher 2>/dev/null || break
    done
    victim=$(rank $rank)
    [ -z "$victim" ] || kill -KILL "$victim" 2>/dev/null
    wait $launcher
    code=$?
    launcher=
    [ $code -eq 1 ] && grep -q "^lockstep train: rank $rank: step 4: the gradient norm is NaN; first: element " err.txt ||
        bad "rank $rank killed: exit $code: $(cat err.txt)"
    "$lockstep" doctor run >out.txt || bad "doctor"
    grep -q "^failed in step 4: rank $rank: step 4: the gradient norm is NaN" out.txt || bad "doctor: $(tail -n 2 out.txt)"
done

# Under mpirun, too, one rank prints one line.
folder=$(dirname "$lockstep")
for kind in openmpi mpich; do
    command -v "mpirun.$kind" >/dev/null && [ -f "$folder/lockstep_$kind.so" ] || continue
    for rank in 0 1; do
        rm -rf run
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 timeout -k 5 120 "mpirun.$kind" -n \
            2 "$lockstep" train -q $common \
            --run.dir=run --debug.non_finite=4:$rank:1:$weight.grad >out.txt 2>err.txt && bad "$kind: exit 0"
        [ "$(cat out.txt err.txt | grep -c 'lockstep train: ')" -eq 1 ] &&
            grep -q "lockstep train: rank $rank: step 4: the gradient norm is NaN; first: element .* on rank $rank" out.txt err.txt ||
            bad "$kind, rank $rank: $(cat out.txt err.txt)"
    done
done

# Without a fault, from growing values: also in a parameter of a run, and at most ten steps are skipped.
"$lockstep" train $common --run.dir=grown --train.steps=40 --optim.lr=1e6 --optim.schedule=constant --train.non_finite=skip \
    --checkpoint.every=0 >out.txt 2>err.txt &&
    bad "a run that skips for ever ends well"
grep -q ", 11 steps in a row; first: element " err.txt || bad "a run that skips for ever: $(tail -n 1 err.txt)"
[ "$(grep -c 'the update is skipped' err.txt)" -eq 10 ] || bad "$(grep -c 'the update is skipped' err.txt) steps are skipped"

# Impossible settings are refused.
for fault in 4 4:0:1 0:0:0:x 4:1:0:x 4:0:2:x 4:0:0:; do
    "$lockstep" train $common --run.dir=refused --debug.non_finite=$fault >out.txt 2>err.txt
    [ $? -eq 2 ] || bad "--debug.non_finite=$fault: $(cat err.txt)"
done
unknown() {
    rm -rf refused
    "$lockstep" train $common --run.dir=refused "$@" >out.txt 2>err.txt
    [ $? -eq 2 ] && [ "$(wc -l <err.txt)" -eq 1 ] && [ ! -e refused ] || bad "$*: $(cat err.txt)"
}
unknown --debug.non_finite=4:0:0:model.layers.1.mlp.up_proj.wieght
grep -qF "no parameter 'model.layers.1.mlp.up_proj.wieght'; the nearest names are $weight, " err.txt || bad "$(cat err.txt)"
unknown --debug.non_finite=4:0:0:layers.1.mlp.up_proj.weight.grad
grep -qF "the nearest names are $weight, " err.txt || bad "$(cat err.txt)"
unknown -n 2 --parallel.pp=2 --debug.non_finite=4:0:0:$weight
grep -qF "rank 0 runs no op that reads or writes '$weight'; another stage of the pipeline does" err.txt || bad "$(cat err.txt)"
"$lockstep" train --model.preset=resnet-tiny --train.non_finite=skip --run.dir=refused >out.txt 2>err.txt
[ $? -eq 2 ] && grep -q "running statistics" err.txt || bad "skip with batch norms: $(cat err.txt)"
[ $failures -eq 0 ]
