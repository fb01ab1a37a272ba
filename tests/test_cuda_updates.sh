#!/bin/sh
# test_cuda_updates.sh LOCKSTEP TESTS - updates and norms of many parameters in one launch, on the stub of the CUDA runtime with the
# kernels of the device on the emulator: the bits of a run whose instructions are launched one by one, and how many launches a step makes.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub
export LOCKSTEP_CUDA_STUB=

base="--train.steps=2 --train.global_batch=1 --train.micro_batch=1 --optim.warmup=0 --launch.threads=1 --run.measure_peak=off
      --log.tensorboard=false --data.val_fraction=0 --run.device=cuda --run.cuda_graphs=off"
text="--data.text=text.txt --data.seq_len=8"
small="$text --model.width=8 --model.heads=2 --model.ffn=16"
gpt2="$small --model.preset=gpt2-tiny --model.layers=1"
mixtral="$text --model.preset=mixtral-tiny --model.layers=1 --model.width=8 --model.heads=2 --model.kv_heads=2"

# name | ranks | options; those below "more" only in the full matrix
cat >rows.txt <<'END_ROWS'
momentum | 1 | @gpt2 --precision.compute=fp32 --optim.name=sgd --optim.momentum=0.9 --optim.nesterov=true
lamb | 1 | @gpt2 --precision.compute=bf16 --optim.name=lamb
lars | 1 | @gpt2 --precision.compute=fp32 --optim.name=lars --optim.clip=0.5
signs | 1 | @mixtral --precision.compute=bf16 --model.router_bias_rate=0.01
zero1 | 2 | @gpt2 --precision.compute=bf16 --parallel.dp=2 --parallel.zero=1 --train.global_batch=2
more
sgd | 1 | @gpt2 --precision.compute=bf16 --optim.name=sgd
adam | 1 | @gpt2 --precision.compute=fp32 --optim.name=adam
ddp | 2 | @gpt2 --precision.compute=fp32 --parallel.dp=2 --train.global_batch=2 --optim.name=lars
lamb_zero2 | 2 | @gpt2 --precision.compute=bf16 --parallel.dp=2 --parallel.zero=2 --train.global_batch=2 --optim.name=lamb
zero3 | 2 | @gpt2 --precision.compute=bf16 --parallel.dp=2 --parallel.zero=3 --train.global_batch=2
END_ROWS

# launches FILE: of kernels, from the trace of a run on one rank.
launches() { grep -c '^a launch$' "$1"; }

# Runtime calls of the process that makes the most, without queries whether something has ended.
made() { awk '$1 - $7 > most { most = $1 - $7 } END { print most }' "$1"; }

# A command for each_row. A run that writes a trace of its instructions launches each one separately.
same_by_one_launch() {
    name=$1 ranks=$2
    shift 2
    for singly in true false; do
        rm -rf ${name}_$singly
        mkdir nccl_$name$singly
        LOCKSTEP_CUDA_STUB="seed=3 calls=$PWD/calls_$singly.txt nccl=$PWD/nccl_$name$singly"
        rm -f calls_$singly.txt
        train -n $ranks $base "$@" --run.dir=${name}_$singly --log.trace=$singly
    done
    same_course ${name}_true ${name}_false
    same_bits ${name}_true/checkpoints/step_* ${name}_false/checkpoints/step_*
    one=$(made calls_true.txt) many=$(made calls_false.txt)
    [ "$many" -lt "$one" ] || bad "$name: $many calls, and $one with each instruction launched by itself"
    say "$name: $many calls, $one with each instruction launched by itself"
}
each_row same_by_one_launch <rows.txt

# ---- the launches of a step of GPT-2 with 12 layers ----
for singly in true false; do
    for steps in 1 2; do
        rm -rf run_$singly
        LOCKSTEP_CUDA_STUB="trace=$PWD/trace_$steps.txt"
        train $base $small --model.preset=gpt2-tiny --model.layers=12 --precision.compute=fp32 --train.steps=$steps --log.trace=$singly \
            --run.dir=run_$singly
    done
    eval "step_$singly=$(($(launches trace_2.txt) - $(launches trace_1.txt)))"
done
same_bits run_true/checkpoints/step_* run_false/checkpoints/step_*
# A step clears all gradients at once.
fills=$(($(grep -c '^cudaMemsetAsync$' trace_2.txt) - $(grep -c '^cudaMemsetAsync$' trace_1.txt)))
[ $fills -eq 1 ] || bad "a step makes $fills calls of cudaMemsetAsync"
parameters=$(grep -a -o '"dtype"' run_true/checkpoints/step_*/parameters_0000_of_0001.safetensors | wc -l)
# One by one: two launches for each parameter's squares, and its update. Together: one launch updates up to 35 parameters, and three sum the
# squares of up to 120.
least=$(((parameters + 34) / 35 + 3 * ((parameters + 119) / 120)))
say "a step of $parameters parameters makes $step_false launches, $step_true with each instruction launched by itself"
[ "$parameters" -gt 120 ] && [ $((step_true - step_false)) -eq $((3 * parameters - least)) ] ||
    bad "$parameters parameters: $step_false launches of a step, $step_true one by one; expected $((3 * parameters - least)) fewer"

[ $failures -eq 0 ]
