#!/bin/sh
# test_cuda_stub.sh LOCKSTEP TESTS - run.device=cuda on a stub of the CUDA runtime (tests/cuda_stub/stub.h): layouts, whose collectives go
# through the host, checkpoints, texts and evaluations have the bits of the cpu if the cpu's kernels run there, in whatever order the
# streams are drained; impossible settings are refused in one line; a run in which a call fails ends with one line and the right exit code.
#
# By default one seed per row and some of the calls; LOCKSTEP_MATRIX=full: 20 seeds, more rows, every call.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub

# name | ranks | options; those below "more" only in the full matrix
cat >rows.txt <<'END_ROWS'
dropout | 1 | @gpt2 --model.dropout=0.1 --model.attention_dropout=0.1 --precision.compute=bf16 --recompute.mode=full
images | 1 | @image
tensor | 2 | @llama --parallel.tp=2 --parallel.sp
ring | 2 | @llama --parallel.cp=2
zero2 | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=cpu
zero3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --precision.compute=bf16
parameters | 1 | @llama --parallel.offload_parameters=file --optim.offload=file
interleaved | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.vpp=2
all | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=1
more
experts | 1 | @mixtral --optim.clip=0.5
zero1 | 2 | @gpt2 --parallel.dp=2 --parallel.zero=1 --precision.compute=bf16
file | 2 | @llama --parallel.dp=2 --parallel.zero=3 --optim.offload=file
expert_ranks | 2 | @qwen --parallel.dp=2 --parallel.ep=2
pipeline | 2 | @llama --parallel.pp=2
zero_bubble | 2 | @llama --parallel.pp=2 --parallel.schedule=zb-h1
finite | 2 | @llama --parallel.pp=2 --debug.check_finite
heads | 2 | @llama --parallel.cp=2 --parallel.cp_method=all_to_all
chunks | 2 | @llama --parallel.tp=2 --parallel.tp_chunks=2
hybrid | 4 | @llama --parallel.dp=4 --parallel.replicate=2 --parallel.zero=3
mesh | 4 | @llama --parallel.pp=2 --parallel.tp=2 --parallel.sp
context | 4 | @qwen --parallel.dp=2 --parallel.cp=2 --parallel.ep=4 --parallel.zero=3
END_ROWS

stub() { LOCKSTEP_CUDA_STUB="kernels=cpu $*" && export LOCKSTEP_CUDA_STUB; }
on_device() {
    stub seed=$seed
    [ $count -eq 1 ] || set -- "$@" --launch.comm=host
    train "$@" --run.device=cuda
}
each_row same_on_device <rows.txt

# ---- resumed on cuda from a checkpoint of the cpu, and on the cpu from one of cuda ----
row=$(row_options zero3)
mkdir -p back/checkpoints again/checkpoints
cp -r cpu_zero3/checkpoints/step_00000002 again/checkpoints
cp -r device_zero3/checkpoints/step_00000002 back/checkpoints
train -n 2 $tiny $row --run.dir=again --run.device=cuda
train -n 2 $tiny $row --run.dir=back --run.device=cpu
same_bits cpu_zero3/checkpoints/step_00000003 again/checkpoints/step_00000003
same_bits cpu_zero3/checkpoints/step_00000003 back/checkpoints/step_00000003

# ---- the other commands ----
for device in cpu cuda; do
    "$lockstep" generate cpu_dropout --prompt=a --tokens=8 --launch.threads=1 --precision.compute=bf16 --run.device=$device \
        >text_$device.txt 2>&1 || bad "generate: $(cat text_$device.txt)"
    "$lockstep" eval -n 2 cpu_zero3 --data.text=text.txt --launch.threads=1 --precision.compute=fp32 --run.device=$device --json \
        >eval_$device.txt 2>&1 || bad "eval: $(cat eval_$device.txt)"
done
cmp -s text_cpu.txt text_cuda.txt || bad "generated there: $(cat text_cuda.txt); here: $(cat text_cpu.txt)"
[ "$(json loss <eval_cpu.txt)" = "$(json loss <eval_cuda.txt)" ] || bad "eval: $(cat eval_cpu.txt eval_cuda.txt)"
"$lockstep" parity --a run.device=cpu --b run.device=cuda --launch.threads=1 --data.seq_len=16 ${llama#$text} >out.txt 2>&1 ||
    bad "parity: $(cat out.txt)"

LOCKSTEP_CUDA_STUB=seed=1
expect 0 "y[m,n] = x[m,k] w[n,k]^T, device cuda: stub GPU 0; GFLOP/s and kernel" bench gemm --m 8 --n 24 --k 16 --run.device=cuda
expect_json '[].gflops' "" bench gemm --m 8 --n 24 --k 16 --run.device=cuda --json
[ "$(json '[].kernel' <out.txt | tr '\n' ' ')" = "cublaslt cuda cublaslt cuda " ] || bad "bench gemm: $(cat out.txt)"
expect_json '[].kernel' tiles bench gemm --m 8 --n 24 --k 16 --run.device=check --json
LOCKSTEP_CUDA_STUB=fail=40
expect 3 "cuda: GPU 0 (stub GPU 0): " bench gemm --m 8 --n 24 --k 16 --run.device=cuda
stub seed=1

# ---- with the CUDA kernels, which the emulator runs ----
own() {
    seed=$((seed + 1))
    LOCKSTEP_CUDA_STUB=seed=$seed timeout 300 "$lockstep" parity --a run.device=cpu --b "run.device=cuda $1" --model.layers=2 \
        --model.width=16 --model.heads=2 --data.seq_len=16 --train.micro_batch=1 --launch.threads=1 $2 >out.txt 2>&1 ||
        bad "parity with $1: $(cat out.txt)"
}
own "" "--model.preset=gpt2-tiny --precision.compute=fp32"
own "parallel.tp=2 parallel.sp=true" "--model.preset=llama-tiny --model.kv_heads=2 --precision.compute=fp32"
own "parallel.dp=2 parallel.zero=2" "--model.preset=gpt2-tiny --precision.compute=bf16 --model.dropout=0.1"
[ -z "$full" ] || own "parallel.pp=2 parallel.dp=2 parallel.ep=2 parallel.zero=1" \
    "--model.preset=mixtral-tiny --model.kv_heads=2 --precision.compute=fp32"

# ---- the ledger counts the same bytes on cuda as on the cpu ----
for category in parameters gradients optimizer activations communication; do
    [ "$(json memory.$category <cpu_zero3/metrics.jsonl)" = "$(json memory.$category <device_zero3/metrics.jsonl)" ] ||
        bad "$category: $(json memory.$category <cpu_zero3/metrics.jsonl | tail -1) bytes on the cpu, not so on cuda"
done
# The GPU's peak does not include what the run holds in the host's memory.
gpu=$(json memory.gpu_peak <device_zero3/metrics.jsonl | tail -1) all=$(json memory.peak <device_zero3/metrics.jsonl | tail -1)
[ "$gpu" -gt 0 ] && [ "$gpu" -lt "$all" ] || bad "peak on the GPU $gpu, of all memory $all"
[ "$(json memory.gpu_peak <cpu_zero3/metrics.jsonl | tail -1)" = none ] || bad "a run on the cpu has a peak on a GPU"

# The GPU's memory and the host's have separate limits: offloaded tensors and a save's buffers do not count against the GPU's.
model="--data.seq_len=16 --model.preset=llama-tiny --model.layers=12 --model.width=256 --model.heads=8 --precision.compute=fp32
       --train.global_batch=2 --train.micro_batch=1 --launch.threads=1"
model=$(echo $model)
large="$model --data.text=text.txt --train.steps=2 --train.eval_every=0 --run.measure_peak=off --log.tensorboard=false"
stub memory=178000000
for where in none cpu; do
    rm -rf said
    train $large --run.dir=said --run.device=cuda --optim.offload=$where
done
stub memory=150000000
expect 1 "MiB, the limit is 134 MiB (the GPU's memory); most is in communication" \
    train $large --run.dir=refused --run.device=cuda --optim.offload=cpu
expect 0 "it does not fit into the memory of a stub GPU 0" plan $model --run.device=cuda --optim.offload=cpu
stub seed=1
rm -rf said
train $(echo $tiny | sed 's/--run.measure_peak=off//') $gpt2 --run.dir=said --run.device=cuda
grep -q '^device      cuda: stub GPU 0, 1.00 GiB, of which 64.0 MiB were taken before the run' out.txt || bad "report: $(cat out.txt)"

# ---- what auto means ----
grep -q '^machine.*bf16' out.txt && ! grep -q '^mfu\|GFLOP/s' out.txt || bad "a GPU has bf16, and its peak is not known: $(cat out.txt)"

auto() { # settings, options, what the report says
    stub "$1"
    rm -rf said
    train $2 $tiny $gpt2 --run.dir=said
    grep -q "^device      $3" out.txt || bad "auto with $1: $(cat out.txt)"
}
auto gpus=1 "" 'cuda: stub GPU 0, 1.00 GiB'
auto gpus=0 "" 'cpu: there is no GPU on this machine'
auto driver=0 "" 'cpu: there is no NVIDIA driver on this machine'
auto gpus=1 "-n 2" 'cpu: 2 ranks would share 1 GPU'

# ---- impossible settings ----
not_here='; run.device=cpu uses the processor'
stub driver=0
expect 2 "run.device=cuda: there is no NVIDIA driver on this machine (libcuda.so.1 is not found)$not_here" \
    train $tiny $gpt2 --run.device=cuda
stub driver=12040
expect 2 "the NVIDIA driver is too old: it supports CUDA 12.4; this module needs a driver for CUDA 13.0" train $tiny $gpt2 --run.device=cuda
stub gpus=0
expect 2 "run.device=cuda: there is no GPU on this machine$not_here" train $tiny $gpt2 --run.device=cuda
stub gpus=2
expect 2 "3 ranks on this machine, but it has 2 GPUs; use launch.ranks=2, or launch.share_gpus=true" \
    train -n 3 $tiny $gpt2 --train.global_batch=6 --run.device=cuda
CUDA_VISIBLE_DEVICES=7 && export CUDA_VISIBLE_DEVICES
expect 2 "run.device=cuda: there is no GPU in CUDA_VISIBLE_DEVICES='7'" train $tiny $gpt2 --run.device=cuda
unset CUDA_VISIBLE_DEVICES
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1  # as mpirun would
export OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
expect 2 "run.tune_matmuls=true: the 2 ranks are on several machines" train $tiny $gpt2 --run.device=cuda --run.tune_matmuls
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
stub memory=8000000
expect 1 "out of memory: the step needs" train $tiny $gpt2 --model.width=256 --run.device=cuda
expect 1 "the GPU's memory" train $tiny $gpt2 --model.width=256 --run.device=cuda
expect 1 "out of memory on GPU 0 (stub GPU 0)" train $tiny $gpt2 --model.width=256 --run.memory_limit=1GiB --run.device=cuda
LOCKSTEP_CUDA_STUB=kernels=none
expect 2 "device 'cuda' has no kernel for these types and shapes; use run.device=cpu" train $tiny $gpt2 --run.device=cuda
built=$LOCKSTEP_CUDA_MODULE LOCKSTEP_CUDA_MODULE=$PWD/text.txt
expect 2 "run.device=cuda: $PWD/text.txt: " train $tiny $gpt2 --run.device=cuda
LOCKSTEP_CUDA_MODULE=$built

# ---- ranks of another launcher: each chooses its device ----
mixed_rank() { # rank
    [ $1 -eq 0 ] && set -- $of_0 || set -- $of_1
    CUDA_VISIBLE_DEVICES=$2 "$lockstep" train $tiny $gpt2 --run.dir=mixed --run.device=$1 --precision.compute=$3
}
mixed() { # device, GPU and type of rank 0, of rank 1, what is said: the device, also where the type differs with it
    of_0=$1 of_1=$2
    as_torchrun mixed_rank
    [ "$codes" = "2 2" ] || bad "mixed devices: exit codes $codes, $(cat err_0.txt err_1.txt)"
    grep -q "$3" err_0.txt || bad "mixed devices: $(cat err_0.txt)"
}
stub gpus=2
mixed "cpu 0 fp32" "cuda 1 bf16" "rank 1 is on device cuda, but rank 0 on cpu"
mixed "cuda 0 fp32" "cuda 0 fp32" "ranks 0 and 1 are on the same GPU"

# ---- a rank that is killed: the others end as on the cpu ----
rm -rf lost
"$lockstep" train -n 2 $tiny $gpt2 --train.steps=100000 --checkpoint.every=0 --train.eval_every=0 --run.dir=lost --run.device=cuda \
    >out.txt 2>err.txt &
launcher=$!
wait_lines lost/metrics.jsonl 2
kill -KILL "$(rank 1)"
wait $launcher
code=$?
launcher=
[ $code -eq 3 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -q 'rank 1' err.txt || bad "a killed rank: exit code $code, $(cat err.txt)"

# ---- calls that fail ----
least="--train.steps=1 $text --data.seq_len=4 --model.preset=gpt2-tiny --model.layers=1 --model.width=8 --model.heads=1 --model.ffn=8
       --train.global_batch=2 --train.micro_batch=1 --run.measure_peak=off --launch.threads=1 --train.eval_every=0 --data.val_fraction=0
       --log.tensorboard=false --run.device=cuda"
least=$(echo $least)
# Calls that fail after the last step was written change nothing.
fails() { # setting, ranks, options
    setting=$1 count=$2
    shift 2
    stub "$setting"
    failing "1 2 3" -n $count $least --parallel.dp=$count "$@"
    [ $code -ne 0 ] || [ -f failed/checkpoints/step_00000001/manifest.json ] ||
        bad "$setting with $count ranks: exit code 0, and nothing was saved"
}
fails "calls=$PWD/calls.txt" 1
read -r calls operations nccl <calls.txt
[ "$calls" -gt 500 ] && [ "$operations" -gt 100 ] || bad "a run of $calls calls and $operations operations"
step=$((calls / 60)) run_step=$((operations / 12)) first=40
[ -n "$full" ] && step=1 run_step=1
for n in $(seq $first) $(seq $((first + 1)) $step $calls); do fails fail=$n 1; done
for n in $(seq 1 $run_step $operations); do fails fail_run=$n 1; done
for n in 7 60 250 700; do fails fail=$n 2; done
# the error of one rank's GPU is the line of all ranks, whatever carries their collectives
for n in $(seq 300 200 2500); do fails "fail_gpu=1 fail=$n" 2 --launch.comm=host; done
say "$calls calls, $operations operations"

[ $failures -eq 0 ] || exit 1
