#!/bin/sh
# test_cuda_module.sh LOCKSTEP TESTS - the CUDA module that nvcc built, on a machine without a GPU: it loads, one line says why it cannot be
# used, and run.device=auto chooses the cpu.
set -u
lockstep=$1
. "$2/script.sh"
[ -f "$(dirname "$lockstep")/lockstep_cuda.so" ] || { echo "skipped: no CUDA toolkit was found when lockstep was configured"; exit 77; }
[ ! -e /dev/nvidiactl ] || { echo "skipped: this machine has a GPU"; exit 77; }
unset LOCKSTEP_CUDA_MODULE CUDA_VISIBLE_DEVICES

tiny="--data.text=text.txt --data.seq_len=16 --model.preset=gpt2-tiny --train.steps=1 --train.global_batch=2 --launch.threads=1
      --run.measure_peak=off --log.tensorboard=false --run.dir=run"
tiny=$(echo $tiny)
for ranks in 1 2; do
    expect 2 "run.device=cuda: there is no NVIDIA driver on this machine (libcuda.so.1 is not found); run.device=cpu uses the processor" \
        train -n $ranks $tiny --run.device=cuda
done
expect 2 "run.device=cuda: there is no NVIDIA driver" generate run --prompt=a --run.device=cuda
expect 0 "device      cpu: there is no NVIDIA driver on this machine" train $tiny
"$lockstep" train $tiny --run.dir=cpu --run.device=cpu >out.txt 2>&1 || bad "$(cat out.txt)"
grep -q '^device' out.txt && bad "run.device=cpu says something of devices: $(cat out.txt)"

[ $failures -eq 0 ] || exit 1
