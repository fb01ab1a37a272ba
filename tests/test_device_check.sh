#!/bin/sh
# test_device_check.sh LOCKSTEP TESTS - a run on the checking device has the bits of a run on the cpu, in every kind of layout and in
# whatever order its queues are drained: losses, norms, learning rates, parameters and optimizer state. A NaN is found there, too. An
# access by the host, or two unordered operations on the same bytes, would end the run.
#
# By default two seeds per row, others for each; LOCKSTEP_MATRIX=full: 20 seeds for each row, and more rows. A failure prints the seed and
# the command that repeats it.
set -u
lockstep=$1
few_seeds=2
. "$2/script.sh"
. "$2/device_rows.sh"

# name | ranks | options; those below "more" only in the full matrix
cat >rows.txt <<'END_ROWS'
dropout | 1 | @gpt2 --model.dropout=0.1 --model.attention_dropout=0.1 --precision.compute=bf16
recompute | 1 | @llama --recompute.mode=full --optim.name=lamb
experts | 1 | @mixtral --optim.clip=0.5
images | 1 | @image --optim.name=lars
replicas | 2 | @llama --parallel.dp=2
zero1 | 2 | @gpt2 --parallel.dp=2 --parallel.zero=1 --precision.compute=bf16
zero2 | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=cpu
zero3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=cpu
file | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=file
parameters | 1 | @llama --parallel.offload_parameters=file --optim.offload=cpu
parameters3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --parallel.offload_parameters=cpu --optim.offload=file
tensor | 2 | @gpt2 --parallel.tp=2
sequence | 2 | @llama --parallel.tp=2 --parallel.sp
ring | 2 | @llama --parallel.cp=2
heads | 2 | @llama --parallel.cp=2 --parallel.cp_method=all_to_all
expert_ranks | 2 | @qwen --parallel.dp=2 --parallel.ep=2
gpipe | 2 | @llama --parallel.pp=2 --parallel.schedule=gpipe
pipeline | 2 | @llama --parallel.pp=2
interleaved | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.vpp=2
zero_bubble | 2 | @llama --parallel.pp=2 --parallel.schedule=zb-h1
v_schedule | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.schedule=zb-v
sharded_zero_bubble | 4 | @llama --parallel.pp=2 --parallel.zero=3 --parallel.fsdp_unit=model --parallel.schedule=zb-h1
all | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=1
more
sgd | 1 | @llama --optim.name=sgd
selective | 1 | @gpt2 --recompute.mode=selective
finite | 2 | @llama --parallel.pp=2 --debug.check_finite
chunks | 2 | @llama --parallel.tp=2 --parallel.tp_chunks=2
hybrid | 4 | @llama --parallel.dp=4 --parallel.replicate=2 --parallel.zero=3
mesh | 4 | @llama --parallel.pp=2 --parallel.tp=2 --parallel.sp
context | 4 | @qwen --parallel.dp=2 --parallel.cp=2 --parallel.ep=4 --parallel.zero=3
END_ROWS

on_device() { train "$@" --run.device=check --debug.device_seed=$seed; }
each_row same_on_device <rows.txt

# ---- a NaN is found on the checking device, and the message is that of the cpu ----
# stops_at_nan ERRORS OPTIONS...: the run with the options $nan and OPTIONS stops; its message goes to the file ERRORS.
stops_at_nan() {
    errors=$1
    shift
    gradient=model.layers.1.mlp.up_proj.weight
    "$lockstep" train -n 2 $tiny $nan --run.dir=nan --debug.non_finite=2:1:1:$gradient.grad "$@" >out.txt 2>"$errors" &&
        bad "$nan $*: a NaN is nothing"
    rm -rf nan
    grep -q "of the gradient of '$gradient' is NaN" "$errors" || bad "$nan $*: $(cat "$errors")"
}
nan_as_cpu() {
    stops_at_nan err_check.txt --run.device=check --debug.device_seed=$seed
    cmp -s err_cpu.txt err_check.txt || bad "$nan: $(cat err_cpu.txt err_check.txt)"
}
nan_on_device() {
    row=$1
    shift 2
    nan="$*"
    stops_at_nan err_cpu.txt --run.device=cpu
    under_seeds nan_as_cpu $row
}
each_row nan_on_device <<'END_ROWS'
nan_replicas | 2 | @llama --parallel.dp=2
nan_pipeline | 2 | @llama --parallel.pp=2
END_ROWS

# ---- options of the checking device are refused on other devices ----
expect 2 "debug.device_seed does nothing here: it applies only to run.device=check" train $tiny $llama --debug.device_seed=1

[ $failures -eq 0 ] || exit 1
