#!/bin/sh
# test_device_check.sh LOCKSTEP TESTS - a run on the checking device has the bits of a run on the cpu, in every kind of layout and in
# whatever order its queues are drained: losses, norms, learning rates, parameters and optimizer state. So do a resumed run, an evaluation
# and a generated text. An access by the host, or two unordered operations on the same bytes, would end the run.
#
# By default one seed per row, a different one for each; LOCKSTEP_MATRIX=full: 20 seeds for each row, and more rows.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"

# name | ranks | options; those below "more" only in the full matrix
cat >rows.txt <<'END_ROWS'
dropout | 1 | @gpt2 --model.dropout=0.1 --model.attention_dropout=0.1 --precision.compute=bf16
recompute | 1 | @llama --recompute.mode=full --optim.name=lamb
experts | 1 | @mixtral --optim.clip=0.5
images | 1 | @image --optim.name=lars
tensor | 2 | @llama --parallel.tp=2 --parallel.sp
ring | 2 | @llama --parallel.cp=2
zero1 | 2 | @gpt2 --parallel.dp=2 --parallel.zero=1 --precision.compute=bf16
zero2 | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=cpu
zero3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=cpu
file | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=file
parameters | 1 | @llama --parallel.offload_parameters=file --optim.offload=cpu
parameters3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --parallel.offload_parameters=cpu --optim.offload=file
expert_ranks | 2 | @qwen --parallel.dp=2 --parallel.ep=2
pipeline | 2 | @llama --parallel.pp=2
interleaved | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.vpp=2
zero_bubble | 2 | @llama --parallel.pp=2 --parallel.schedule=zb-h1
sharded_zero_bubble | 4 | @llama --parallel.pp=2 --parallel.zero=3 --parallel.fsdp_unit=model --parallel.schedule=zb-h1
all | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=1
more
sgd | 1 | @llama --optim.name=sgd
selective | 1 | @gpt2 --recompute.mode=selective
replicas | 2 | @llama --parallel.dp=2
finite | 2 | @llama --parallel.pp=2 --debug.check_finite
heads | 2 | @llama --parallel.cp=2 --parallel.cp_method=all_to_all
v_schedule | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.schedule=zb-v
chunks | 2 | @llama --parallel.tp=2 --parallel.tp_chunks=2
hybrid | 4 | @llama --parallel.dp=4 --parallel.replicate=2 --parallel.zero=3
mesh | 4 | @llama --parallel.pp=2 --parallel.tp=2 --parallel.sp
context | 4 | @qwen --parallel.dp=2 --parallel.cp=2 --parallel.ep=4 --parallel.zero=3
END_ROWS

on_device() { train "$@" --run.device=check --debug.device_seed=$seed; }
each_row same_on_device <rows.txt

# ---- resumed on the checking device from a checkpoint of the cpu, and the other way round ----
for name in zero3 pipeline; do
    row=$(row_options $name)
    mkdir -p back_$name/checkpoints again_$name/checkpoints
    cp -r cpu_$name/checkpoints/step_00000002 again_$name/checkpoints
    cp -r device_$name/checkpoints/step_00000002 back_$name/checkpoints
    train -n 2 $tiny $row --run.dir=again_$name --run.device=check --debug.device_seed=$seed
    train -n 2 $tiny $row --run.dir=back_$name
    same_bits cpu_$name/checkpoints/step_00000003 again_$name/checkpoints/step_00000003
    same_bits cpu_$name/checkpoints/step_00000003 back_$name/checkpoints/step_00000003
done

# ---- a text ----
for s in $(seq 2); do
    "$lockstep" generate cpu_dropout --prompt=a --tokens=8 --launch.threads=1 >here.txt 2>&1 || bad "generate: $(cat here.txt)"
    "$lockstep" generate cpu_dropout --prompt=a --tokens=8 --launch.threads=1 --run.device=check --debug.device_seed=$s >there.txt 2>&1
    cmp -s here.txt there.txt || bad "generated there: $(cat there.txt); here: $(cat here.txt)"
done

# ---- parity accepts it like any other option ----
for model in "$llama" "$mixtral" "$image"; do
    length=--data.seq_len=16
    [ "$model" = "$image" ] && length=
    "$lockstep" parity --a run.device=cpu --b run.device=check --launch.threads=1 $length ${model#$text} >out.txt 2>&1 ||
        bad "parity: $(cat out.txt)"
done

# ---- a NaN is found on the device, and reported as on the cpu ----
for layout in parallel.dp=2 parallel.pp=2; do
    for device in cpu check; do
        "$lockstep" train -n 2 $tiny $llama --$layout --run.device=$device --run.dir=nan_$device \
            --debug.non_finite=2:1:1:model.layers.1.mlp.up_proj.weight.grad >out.txt 2>err_$device.txt &&
            bad "$layout: a NaN is nothing on $device"
        rm -rf nan_$device
    done
    grep -q "of the gradient of 'model.layers.1.mlp.up_proj.weight' is NaN" err_check.txt || bad "$layout: $(cat err_check.txt)"
    cmp -s err_cpu.txt err_check.txt || bad "$layout: $(cat err_cpu.txt err_check.txt)"
done

# ---- evaluation ----
for device in cpu check; do
    "$lockstep" eval -n 2 cpu_zero3 --data.text=text.txt --launch.threads=1 --run.device=$device --json >eval_$device.txt 2>&1 ||
        bad "eval: $(cat eval_$device.txt)"
done
[ "$(json loss <eval_cpu.txt)" = "$(json loss <eval_check.txt)" ] || bad "eval: $(cat eval_cpu.txt eval_check.txt)"

# ---- options of the checking device are refused on other devices ----
expect 2 "debug.device_seed does nothing here: it applies only to run.device=check" train $tiny $llama --debug.device_seed=1

[ $failures -eq 0 ] || exit 1
