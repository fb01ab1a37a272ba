#!/bin/sh
# test_device_check_long.sh LOCKSTEP TESTS - a run of 300 steps, with evaluations and checkpoints, that trains on the checking device and is
# stopped and resumed in the middle in another order of its queues, equals the run that trains on the cpu without a stop: every byte of its
# checkpoints' tensors, every loss, norm and learning rate.
#
# By default one layout under one seed; LOCKSTEP_MATRIX=full: 20 seeds, and more layouts. A failure prints the seed and the command that
# repeats it.
set -u
lockstep=$1
first_seed=2000
. "$2/script.sh"
. "$2/device_rows.sh"

steps=300
long="--train.schedule_steps=$steps --train.global_batch=8 --train.micro_batch=2 --optim.warmup=5 --train.eval_every=75
      --train.eval_batches=1 --checkpoint.every=75 --checkpoint.keep=9 --launch.threads=1 --run.measure_peak=off --log.tensorboard=false"

# The two halves have different seeds.
long_as_cpu() {
    rm -rf device
    train -n $count $long "$@" --run.dir=device --train.steps=$((steps / 2)) --run.device=check --debug.device_seed=$seed
    train -n $count $long "$@" --run.dir=device --train.steps=$steps --run.device=check --debug.device_seed=$((seed + 500))
    [ -d device/checkpoints ] || return
    same_course cpu device
    for step in $((steps / 4)) $((steps / 2)) $((steps * 3 / 4)) $steps; do
        checkpoint=checkpoints/$(printf 'step_%08d' $step)
        same_bits cpu/$checkpoint device/$checkpoint
        for file in cpu/$checkpoint/*.safetensors; do
            cmp "$file" "device/$checkpoint/${file##*/}" >out.txt 2>&1 || bad "$(cat out.txt)"
        done
    done
}

# A command for each_row.
long_on_device() {
    row=$1 count=$2
    shift 2
    rm -rf cpu
    train -n $count $long "$@" --run.dir=cpu --train.steps=$steps --run.device=cpu
    [ "$(json loss <cpu/metrics.jsonl | grep -c '^[0-9]')" -ge $steps ] || bad "$row: not $steps losses"
    [ "$(json val_loss <cpu/metrics.jsonl | grep -c '^[0-9]')" -eq 4 ] || bad "$row: not 4 evaluations"
    under_seeds long_as_cpu $row "$@"
}

each_row long_on_device <<'END_ROWS'
experts_in_stages | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=3 --optim.clip=0.5
more
shards | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=cpu
sharded_zero_bubble | 4 | @gpt2 --parallel.pp=2 --parallel.zero=3 --parallel.schedule=zb-h1 --precision.compute=bf16
END_ROWS

[ $failures -eq 0 ] || exit 1
