#!/bin/sh
# test_offload.sh LOCKSTEP - parameters and gradients that are kept in host memory or in a file: the bits of a run without, in every layout;
# planned and measured bytes; runs that are resumed with and without; what is refused.
set -u
lockstep=$1
. "$2/script.sh"

common="--data.text=text.txt --data.seq_len=16 --train.global_batch=8 --train.steps=4 --train.eval_every=2 --train.eval_batches=1
        --optim.warmup=2 --launch.threads=1"
llama="--model.preset=llama-tiny --model.layers=3"
tied="$llama --model.tied=true"
mixtral="--model.preset=mixtral-tiny"
categories="memory.parameters memory.gradients memory.optimizer memory.activations memory.communication memory.offload"

# trained FOLDER OPTIONS...
trained() {
    to=$1
    shift
    rm -rf "$to"
    "$lockstep" train -q $common --run.dir="$to" "$@" >out.txt 2>err.txt || bad "$*: $(cat err.txt)"
}

# planned OPTIONS...: the last run measured the planned bytes: of memory, and those loaded and saved in a step.
planned() {
    [ -z "$uneven" ] || return
    "$lockstep" plan --json --data.val_fraction=0.1 --data.text=text.txt --data.seq_len=16 --train.global_batch=8 --launch.threads=1 "$@" \
        >plan.json 2>err.txt || bad "plan $*: $(cat err.txt)"
    for path in $categories; do
        plan=$(json $path <plan.json) most=$(json $path <moved/metrics.jsonl | sort -n | tail -n 1)
        [ "$plan" = "$most" ] || bad "$path: $plan planned, $most measured: $*"
    done
    for path in offload.loaded offload.saved; do
        plan=$(json $path <plan.json) steps=$(json $path <moved/metrics.jsonl | sort -u)
        [ "$plan" = "$steps" ] || bad "$path: $plan planned, measured $steps: $*"
    done
}

# same OPTIONS...: parameters and gradients elsewhere, with and without the optimizer state, change no bit. only: options that apply to
# offloaded parameters alone.
only= uneven=
same() {
    trained plain "$@"
    for offload in "cpu none" "file file" "cpu file"; do
        trained moved "$@" $only --parallel.offload_parameters=${offload% *} --optim.offload=${offload#* }
        same_bits plain/checkpoints/step_00000004 moved/checkpoints/step_00000004
        [ "$(json loss <plain/metrics.jsonl)" = "$(json loss <moved/metrics.jsonl)" ] || bad "$offload: other losses: $*"
        planned "$@" $only --parallel.offload_parameters=${offload% *} --optim.offload=${offload#* }
    done
    [ "$(json memory.parameters <moved/metrics.jsonl | sort -u)" != "$(json memory.parameters <plain/metrics.jsonl | sort -u)" ] ||
        bad "parameters stay in memory: $*"
}
same $llama
same $tied --train.micro_batch=2 --optim.name=lamb --precision.compute=fp32
only="--parallel.prefetch=3 --parallel.reshard_after_forward=false --parallel.fsdp_unit=layers:2"
same $llama --train.micro_batch=4 --optim.name=sgd --optim.momentum=0.9
only="--parallel.overlap=false"
same $llama --train.micro_batch=2 --precision.compute=bf16 --precision.master=false
only=
same -n 2 $llama --parallel.zero=3 --precision.compute=bf16 --precision.grads=bf16
same -n 2 $tied --parallel.zero=3 --train.micro_batch=2 --parallel.fsdp_unit=layers:2 --parallel.prefetch=0
same -n 2 $llama --parallel.tp=2 --parallel.sp --train.micro_batch=4
same -n 2 $tied --parallel.pp=2 --train.micro_batch=2
same -n 2 $mixtral --parallel.ep=2 --parallel.zero=3
if [ "${LOCKSTEP_MATRIX:-}" = full ]; then
    same -n 4 $llama --parallel.zero=3 --parallel.replicate=2 --train.micro_batch=1
    uneven=yes # 257 tokens: the rank with the most bytes has not the most of each kind
    same -n 4 $llama --parallel.tp=2 --parallel.zero=3
    uneven=
    same -n 4 $tied --parallel.pp=2 --parallel.zero=3 --train.micro_batch=2
    same -n 4 $mixtral --parallel.ep=2 --parallel.zero=3 --parallel.replicate=2
    same -n 2 $llama --parallel.cp=2 --parallel.zero=3
    same -n 2 $llama --parallel.pp=2 --parallel.schedule=zb-h1 --train.micro_batch=2
    same -n 4 $llama --parallel.pp=2 --parallel.schedule=zb-h1 --parallel.zero=3 --train.micro_batch=1
    same $llama --recompute.mode=full
fi

# ---- resumed with offload to another place ----
trained whole $llama
trained first $llama --train.steps=2 --train.schedule_steps=4
cp -r first second
# resumed FOLDER STEPS OPTIONS...
resumed() {
    folder=$1 steps=$2
    shift 2
    "$lockstep" train -q --config $folder/config.yaml --train.steps=$steps --train.schedule_steps=$steps --run.dir=$folder "$@" \
        >out.txt 2>err.txt || bad "resumed: $*: $(cat err.txt)"
}
resumed second 4 --parallel.offload_parameters=file --optim.offload=file
resumed first 4 -n 2 --parallel.zero=3 --parallel.offload_parameters=cpu
same_bits whole/checkpoints/step_00000004 second/checkpoints/step_00000004
resumed second 6 --parallel.offload_parameters=none --optim.offload=none
"$lockstep" generate second --prompt "In the" --tokens 4 >out.txt 2>err.txt || bad "generate: $(cat err.txt)"

# ---- no file is left ----
[ -z "$(find . -name '.lockstep_*')" ] || bad "files are left: $(find . -name '.lockstep_*')"

[ $failures -eq 0 ]
