#!/bin/sh
# test_cuda_train.sh LOCKSTEP TESTS - runs whose kernels are the CUDA kernels on the emulator (run.device=cuda on the stub of the CUDA
# runtime): each instruction of these runs has a CUDA kernel, and the losses equal the cpu's except for rounding.
#
# By default some rows; LOCKSTEP_MATRIX=full: all.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub

base="--train.steps=2 --train.global_batch=2 --train.micro_batch=1 --optim.warmup=0 --launch.threads=1 --run.measure_peak=off
      --log.tensorboard=false"
small="--model.layers=1 --model.width=16 --model.heads=2 --model.ffn=32"
gpt2="$text $small --model.preset=gpt2-tiny"
llama="$text $small --model.preset=llama-tiny"
mixtral="$text --model.preset=mixtral-tiny --model.layers=1"

# name | ranks | options; those below "more" only in the full matrix
cat >rows.txt <<'END_ROWS'
dropout | 1 | @gpt2 --model.dropout=0.1 --model.attention_dropout=0.1 --precision.compute=bf16 --recompute.mode=full
experts | 1 | @mixtral --precision.compute=fp32 --model.width=16 --model.heads=2 --model.kv_heads=2
ring | 2 | @llama --precision.compute=fp32 --parallel.cp=2
files | 1 | @llama --precision.compute=fp32 --optim.offload=file --parallel.offload_parameters=file
zero3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --precision.compute=bf16
more
images | 1 | --precision.compute=fp32 --model.preset=resnet-tiny
gpt2 | 1 | @gpt2 --precision.compute=fp32
heads | 1 | @llama --precision.compute=fp32 --model.kv_heads=1 --optim.clip=0.5
qwen | 1 | @text --precision.compute=fp32 --model.preset=qwen3-moe-tiny --model.layers=1
lamb | 1 | @gpt2 --precision.compute=fp32 --optim.name=lamb
lars | 1 | @gpt2 --precision.compute=fp32 --optim.name=lars
tensor | 2 | @llama --precision.compute=fp32 --parallel.tp=2 --parallel.sp
expert_ranks | 2 | @mixtral --precision.compute=fp32 --parallel.dp=2 --parallel.ep=2
END_ROWS

same_but_for_rounding() {
    name=$1 count=$2
    shift 2
    for device in cpu cuda; do
        train -n $count $base "$@" --run.dir=${device}_$name --run.device=$device
        json loss grad_norm <${device}_$name/metrics.jsonl >$device.txt
    done
    # The tensor cores' attention rounds probabilities to bf16, which changes each by up to 2^-8, and so its gradients.
    case $* in *compute=bf16*) norm=1e-3 ;; *) norm=1e-4 ;; esac
    [ "$(wc -l <cpu.txt)" -ge 2 ] || bad "$name: no metrics"
    paste cpu.txt cuda.txt | awk -v norm=$norm '
        function far(a, b, most) { return !((a > b ? a - b : b - a) <= most * a) }
        far($1, $3, 1e-4) || far($2, $4, norm) { exit 1 }' ||
        bad "$name: loss and gradient norm of the cpu: $(cat cpu.txt); of the CUDA kernels: $(cat cuda.txt)"
    say "$name: $(tail -1 cuda.txt)"
}
each_row same_but_for_rounding <rows.txt

[ $failures -eq 0 ]
