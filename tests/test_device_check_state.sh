#!/bin/sh
# test_device_check_state.sh LOCKSTEP TESTS - what outlives a run on the checking device has the bits of the cpu: a checkpoint that one of
# the two devices saves is resumed by the other, an evaluation has the same figures, a model generates the same texts with its key/value
# cache and gives a prompt the same logits.
#
# By default two seeds per layout, other ones for each and in test_device_check.sh; LOCKSTEP_MATRIX=full: 20 seeds for each, and more
# layouts. A failure prints the seed and the command that repeats it.
set -u
lockstep=$1
few_seeds=2 first_seed=1000
. "$2/script.sh"
. "$2/device_rows.sh"
head -n 20 text.txt >few.txt
printf '%s\n' a "Line 5 of a text" birds >prompts.txt

# resumed FOLDER OPTIONS...: a run that resumes the checkpoint of step 2 in FOLDER ends with the bits of the run on the cpu.
resumed() {
    from=$1
    shift
    rm -rf resumed
    mkdir -p resumed/checkpoints
    cp -r $from/checkpoints/step_00000002 resumed/checkpoints
    train -n $count $tiny $options --run.dir=resumed "$@"
    same_bits cpu/checkpoints/step_00000003 resumed/checkpoints/step_00000003
}

# figures DEVICE OPTIONS...: what each command that reads the checkpoint of the cpu finds on the device, in files named WHAT_DEVICE.txt.
figures() {
    figures=$1
    shift
    "$lockstep" eval -n $count cpu --data.text=few.txt --launch.threads=1 --json "$@" >eval_$figures.txt 2>&1 ||
        bad "eval $*: $(cat eval_$figures.txt)"
    for temperature in 0 0.8; do
        for prompt in --prompt=Line --prompts=prompts.txt; do
            "$lockstep" generate cpu $prompt --tokens=12 --temperature=$temperature --launch.threads=1 "$@" 2>err.txt ||
                say "generate $prompt $*: $(cat err.txt)"
        done
    done >text_$figures.txt
    "$lockstep" generate cpu --prompt=Line --logits=logits_$figures.txt --launch.threads=1 "$@" >out.txt 2>&1 ||
        bad "generate --logits $*: $(cat out.txt)"
}

state_as_cpu() {
    checking="--run.device=check --debug.device_seed=$seed"
    rm -rf device
    train -n $count $tiny $options --run.dir=device $checking
    [ -d device/checkpoints/step_00000002 ] || return
    same_bits cpu/checkpoints/step_00000002 device/checkpoints/step_00000002
    resumed cpu $checking
    resumed device --run.device=cpu
    figures check $checking
    for what in eval text logits; do
        cmp ${what}_cpu.txt ${what}_check.txt >out.txt 2>&1 || bad "$(cat out.txt)"
    done
}

# A command for each_row.
state_on_device() {
    row=$1 count=$2
    shift 2
    options=$*
    rm -rf cpu
    train -n $count $tiny $options --run.dir=cpu --run.device=cpu
    figures cpu --run.device=cpu
    under_seeds state_as_cpu $row
}

each_row state_on_device <<'END_ROWS'
zero3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=cpu
sequence | 2 | @gpt2 --parallel.tp=2 --parallel.sp --precision.compute=bf16
context | 2 | @llama --parallel.cp=2
pipeline | 2 | @llama --parallel.pp=2
expert_ranks | 2 | @qwen --parallel.dp=2 --parallel.ep=2
experts_in_stages | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=1
more
dropout | 1 | @gpt2 --model.dropout=0.1 --model.attention_dropout=0.1
zero1 | 2 | @gpt2 --parallel.dp=2 --parallel.zero=1 --precision.compute=bf16
zero2 | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=file
parameters | 2 | @llama --parallel.dp=2 --parallel.zero=3 --parallel.offload_parameters=file
interleaved | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.vpp=2
zero_bubble | 4 | @llama --parallel.pp=2 --parallel.zero=3 --parallel.schedule=zb-h1
v_schedule | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.schedule=zb-v
END_ROWS

[ $failures -eq 0 ] || exit 1
