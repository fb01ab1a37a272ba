#!/bin/sh
# test_cudnn_stub.sh LOCKSTEP TESTS - attention and convolutions by cuDNN, on its stub (tests/cuda_stub/stub_cudnn.h): its rows run, in
# parts if the score pairs of a gradient take too much memory; messages if cuDNN is missing, too old or has no engine; runs agree with the
# cpu and with our own kernels. test_cudnn_plans uses the real library.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub
kernels=$(dirname "$lockstep")/test_gpu_kernels

cases=10 # of each kernel
[ "${LOCKSTEP_MATRIX:-}" = full ] && cases=0

# of OP SETTINGS: compares the kernels of an op with the reference; err.txt has the messages, trace.txt the calls.
of() {
    cells=$((cells + 1))
    rm -f trace.txt
    LOCKSTEP_CASES=$cases LOCKSTEP_OP=$1 LOCKSTEP_CUDA_STUB="trace=trace.txt $2" "$kernels" >out.txt 2>err.txt ||
        bad "$1 with '$2': $(tail -n 20 err.txt out.txt)"
}
runs() { grep -c '^cudnnBackendExecute$' trace.txt; }
says() { cat out.txt err.txt | grep -c "$1"; }

for op in attention attention_grad conv2d conv2d_dx conv2d_dw; do
    of $op ""
    [ "$(runs)" -gt 2 ] || bad "$op: cuDNN ran $(runs) times"
    of $op cudnn_engines=0
    [ "$(runs)" -eq 0 ] && [ "$(says "cuDNN 9.19.0 has no engine for it within the limits; lockstep's own kernel is used")" -eq 1 ] ||
        bad "$op without engines: $(cat err.txt)"
done
# On Blackwell the gradient of attention is left to lockstep's own kernel, and nothing else is.
of attention_grad capability=10
[ "$(runs)" -eq 0 ] && [ "$(says "^cudnn of attention_grad: left to lockstep's own kernel on this GPU")" -eq 1 ] ||
    bad "attention_grad on Blackwell: $(cat out.txt)"
of attention capability=10
[ "$(runs)" -gt 2 ] || bad "attention on Blackwell: cuDNN ran $(runs) times"
# More proposals than are asked for, none of them allowed: the fallback's engine runs.
of conv2d cudnn_proposals=200
[ "$(runs)" -gt 2 ] || bad "many proposals: cuDNN ran $(runs) times"
[ $cases -eq 0 ] || cases=20
of attention_grad ""
whole=$(runs)
of attention_grad cudnn_pairs=131072
[ "$(runs)" -gt "$whole" ] || bad "attention_grad in parts: cuDNN ran $(runs) times"
# Runs: q, k and v as parts of one tensor, grouped heads, a ring, all layouts of one model; images.
base="--launch.threads=1 --train.global_batch=4"
small="$base --model.layers=2 --model.width=32 --model.heads=4 --model.ffn=24 --data.seq_len=16"
runs_of() { # A B OPTIONS: 1 if cuDNN ran
    cells=$((cells + 1))
    rm -f trace.txt
    LOCKSTEP_CUDA_STUB="trace=trace.txt seed=$cells" "$lockstep" parity --a "$1" --b "$2" $3 >out.txt 2>err.txt ||
        bad "parity '$1' '$2' $3: $(cat out.txt err.txt)"
}
cuda=run.device=cuda
bf16=--precision.compute=bf16
for mode in full none; do
    runs_of run.device=cpu "$cuda" "$small $bf16 --model.preset=llama-tiny --model.kv_heads=2 --recompute.mode=$mode"
    [ "$(runs)" -gt 0 ] || bad "llama: cuDNN did not run"
done
runs_of run.device=cpu "$cuda" "$small $bf16 --model.preset=gpt2-tiny"
[ "$(runs)" -gt 0 ] || bad "gpt2: cuDNN did not run"
runs_of "$cuda run.cudnn=false" "$cuda" "$small $bf16 --model.preset=qwen3-tiny --model.kv_heads=2"
[ "$(runs)" -gt 0 ] || bad "qwen3: cuDNN did not run"
runs_of "$cuda" "$cuda parallel.cp=2 parallel.cp_method=ring" "$small $bf16 --model.preset=llama-tiny --model.kv_heads=2"
runs_of "$cuda" "$cuda parallel.tp=2 parallel.dp=2" "$small $bf16 --model.preset=llama-tiny --model.kv_heads=2"
images="--launch.threads=1 --train.global_batch=2 --model.preset=resnet-tiny --steps 1"
runs_of run.device=cpu "$cuda" "$images --precision.compute=fp32"
[ "$(runs)" -gt 0 ] || bad "resnet-tiny: cuDNN did not run"
runs_of run.device=cpu "$cuda" "$images $bf16"
[ "$(runs)" -gt 0 ] || bad "resnet-tiny in bf16: cuDNN did not run"
runs_of "$cuda" "$cuda run.cudnn=false" "$small --precision.compute=fp32 --model.preset=gpt2-tiny" # fp32: attention is not cuDNN's
[ "$(runs)" -eq 0 ] || bad "fp32: cuDNN ran"

# The message without cuDNN, or with an old one, is printed once per run.
run="bench train $small $bf16 --model.preset=llama-tiny --run.device=cuda --run.measure_peak=off --bench.steps=2"
trained() { # SETTINGS
    cells=$((cells + 1))
    rm -f trace.txt
    LOCKSTEP_CUDA_STUB="trace=trace.txt $1" "$lockstep" $run >out.txt 2>err.txt
}
instead="attention and convolutions run on lockstep's own kernels, which are slower"
trained cudnn=0 || bad "without cuDNN: $(cat err.txt)"
[ "$(runs)" -eq 0 ] && [ "$(says "libcudnn.so.9 was not found; $instead")" -eq 1 ] || bad "without cuDNN: $(cat err.txt)"
trained cudnn_version=91500 || bad "an old cuDNN: $(cat err.txt)"
[ "$(runs)" -eq 0 ] && [ "$(says "is cuDNN 9.15.0, but 9.15.1 or a later one is needed; $instead (run.library_path=FOLDER ")" -eq 1 ] ||
    bad "an old cuDNN: $(cat err.txt)"

# cudnnCreate fails because a part of the library is missing: our kernels run, which is said once for each op, and it is not tried again.
trained cudnn_create=1008 || bad "without a part of cuDNN: $(cat err.txt)"
instead="cudnnCreate: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED; lockstep's own kernel is used"
[ "$(runs)" -eq 0 ] && [ "$(says "$instead")" -eq 2 ] && [ "$(says "cuda: attention: $instead")" -eq 1 ] &&
    [ "$(grep -c '^cudnnCreate$' trace.txt)" -eq 1 ] || bad "without a part of cuDNN: $(cat err.txt)"
trained cudnn_create=4000 && bad "cuDNN with an internal error: exit code 0"
grep -q "GPU 0 (stub GPU 0): cudnnCreate: CUDNN_STATUS_INTERNAL_ERROR" err.txt || bad "an internal error: $(cat err.txt)"

# On Blackwell the gradient of attention uses our kernel, without a message; forward uses cuDNN.
trained capability=10 || bad "on Blackwell: $(cat err.txt)"
forward=$(runs)
trained "" || bad "$run: $(cat err.txt)"
[ "$forward" -gt 0 ] && [ $((2 * forward)) -eq "$(runs)" ] && [ ! -s err.txt ] ||
    bad "on Blackwell cuDNN ran $forward times: $(cat err.txt)"

# A GPU that fails in a cuDNN call: the GPU's error line, exit code 3.
trained "" || bad "$run: $(cat err.txt)"
cp trace.txt calls.txt
for name in cudnnCreate cudnnBackendFinalize cudnnSetStream cudnnBackendExecute; do
    trained "fail=$(grep -n "^$name\$" calls.txt | head -1 | cut -d: -f1)"
    code=$? want=3
    [ $name != cudnnCreate ] || want=1 # of memory
    [ $code -eq $want ] && grep -q "GPU 0 (stub GPU 0): cudnn" err.txt || bad "$name fails: exit code $code: $(cat err.txt)"
done

[ $failures -eq 0 ] && say "cuDNN's rows: $cells checks"
exit $((failures > 0))
