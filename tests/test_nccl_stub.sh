#!/bin/sh
# test_nccl_stub.sh LOCKSTEP TESTS - run.device=cuda with collectives by NCCL, on the stubs of the CUDA runtime and of NCCL
# (tests/cuda_stub/stub_nccl.h): layouts have the bits of the cpu; a rank that is killed, stopped or stuck is named in one line; calls of
# NCCL that fail end the run with one line and the right exit code; launch.comm does what it says, and the report names its choice; the
# operands of sums are registered with NCCL.
#
# By default one seed per row and some of the calls; LOCKSTEP_MATRIX=full: 20 seeds, more rows, every call.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub

# name | ranks | options; those below "more" only in the full matrix
cat >rows.txt <<'END_ROWS'
tensor | 2 | @llama --parallel.tp=2 --parallel.sp
ring | 3 | @llama --parallel.cp=3
zero2 | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=cpu
zero3 | 3 | @llama --parallel.dp=3 --parallel.zero=3 --precision.compute=bf16 --train.global_batch=6
interleaved | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.vpp=2
stages | 4 | @llama --model.layers=4 --parallel.pp=4
all | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=1
more
data | 2 | @llama --parallel.dp=2
expert_ranks | 2 | @qwen --parallel.dp=2 --parallel.ep=2
zero_bubble | 2 | @llama --parallel.pp=2 --parallel.schedule=zb-h1
heads | 2 | @llama --parallel.cp=2 --parallel.cp_method=all_to_all
hybrid | 4 | @llama --parallel.dp=4 --parallel.replicate=2 --parallel.zero=3
mesh | 4 | @llama --parallel.pp=2 --parallel.tp=2 --parallel.sp
context | 4 | @qwen --parallel.dp=2 --parallel.cp=2 --parallel.ep=4 --parallel.zero=3
END_ROWS

stub() { LOCKSTEP_CUDA_STUB="kernels=cpu nccl=$PWD $*" && export LOCKSTEP_CUDA_STUB; }
says() { grep -q "^collectives $1" out.txt || bad "the report does not say 'collectives $1': $(cat out.txt)"; }
no_files() { [ -z "$(ls nccl_stub_* 2>/dev/null)" ] || bad "$1 left files of communicators"; rm -f nccl_stub_*; }
# In-place sums in memory that is registered with NCCL: of tensors over tp, of gradients over dp if they are sharded.
in_place() {
    case $row in
    tensor | zero2 | zero3) [ "$(sort -n -k 4 calls.txt | tail -n 1 | cut -d ' ' -f 4)" -gt 0 ] || bad "$row: NCCL copies all operands" ;;
    esac
    rm -f calls.txt
}
on_device() {
    stub seed=$seed calls=$PWD/calls.txt
    train "$@" --run.device=cuda
    says "NCCL 2.28.9, which took [0-9.]* MiB of the GPU's memory$"
    in_place
    no_files $row
}
each_row same_on_device <rows.txt

# ---- the choice of the way ----
two=$(echo $tiny $(expand "@llama --parallel.dp=2"))
stub seed=1
train -n 2 $two --run.dir=host --run.device=cuda --launch.comm=host
says "through the host: set by launch.comm$"
expect 2 "launch.comm does nothing here: it applies only to ranks on GPUs, and run.device is cpu" \
    train -n 2 $two --run.device=cpu --launch.comm=nccl
expect 2 "launch.comm does nothing here: a single rank does not communicate" train $tiny $llama --run.device=cuda --launch.comm=nccl


# ---- several ranks on one GPU ----
stub gpus=1
train -n 2 $two --run.dir=shared --run.device=cuda --launch.share_gpus
shared="CUDA IPC, which took 2.00 MiB of the GPU's memory: ranks share a GPU, which NCCL 2.28.9 refuses"
says "$shared$"
same_bits host/checkpoints/step_00000003 shared/checkpoints/step_00000003
expect 2 "launch.comm=nccl cannot be used: ranks share a GPU, which NCCL 2.28.9 refuses; use launch.comm=auto" \
    train -n 2 $two --run.dir=refused --run.device=cuda --launch.share_gpus --launch.comm=nccl
expect 2 "2 ranks on this machine, but it has 1 GPU; use launch.ranks=1, or launch.share_gpus=true" train -n 2 $two --run.device=cuda
train -n 2 $two --run.dir=shared_auto --launch.share_gpus
says "$shared$"
stub gpus=1 memory=64000000
expect 1 "the limit is 24.7 MiB (a rank's part of the GPU's memory)" \
    train -n 2 $two --model.width=1024 --run.device=cuda --launch.share_gpus
stub gpus=2 # each rank has a GPU of its own
train -n 2 $two --run.dir=apart --run.device=cuda --launch.share_gpus
says "NCCL 2.28.9, which"
expect 2 "launch.share_gpus does nothing here: it applies only to ranks on GPUs, and run.device is cpu" \
    train -n 2 $two --run.device=cpu --launch.share_gpus

# ---- where NCCL is found ----
found_in() { # folder of the library, setting of the environment, options
    mkdir -p $1 && : >$1/libnccl.so.2
    rm -rf found
    env $2 "$lockstep" train -n 2 $two ${3:-} --run.dir=found --run.device=cuda >out.txt 2>err.txt || bad "NCCL in $1: $(cat err.txt)"
    says "NCCL 2.28.9 of $1/libnccl.so.2, which"
}
mkdir -p base/bin venv/bin links
: >base/bin/python3.11 && chmod +x base/bin/python3.11
ln -s python3.11 base/bin/python3
ln -s $PWD/base/bin/python3 venv/bin/python3
ln -s $PWD/venv/bin/python3 links/python3
packages=lib/python3.11/site-packages/nvidia
stub library=$PWD/active
found_in $PWD/active/$packages/nccl/lib VIRTUAL_ENV=$PWD/active
stub library=$PWD/toolkit
found_in $PWD/toolkit/lib64 CUDA_HOME=$PWD/toolkit
stub library=$PWD/named
found_in $PWD/named A=1 --run.library_path=$PWD/elsewhere:$PWD/named
for folder in venv base; do
    rm -rf found venv/$packages
    stub library=$PWD/$folder
    mkdir -p $folder/$packages/nccl/lib && : >$folder/$packages/nccl/lib/libnccl.so.2
    PATH=$PWD/links:$PATH "$lockstep" train -n 2 $two --run.dir=found --run.device=cuda >out.txt 2>err.txt || bad "$(cat err.txt)"
    says "NCCL 2.28.9 of $PWD/$folder/bin/../$packages/nccl/lib/libnccl.so.2, which"
done

LOCKSTEP_CUDA_STUB=kernels=cpu
train -n 2 $two --run.dir=absent --run.device=cuda
says "CUDA IPC, which took 2.00 MiB of the GPU's memory: NCCL was not found (libnccl.so.2: not by the loader, in the CUDA toolkit, or in .*"
same_bits host/checkpoints/step_00000003 absent/checkpoints/step_00000003
expect 2 "launch.comm=nccl cannot be used: NCCL was not found" \
    train -n 2 $two --run.dir=refused --run.device=cuda --launch.comm=nccl

# ---- a rank that ends, is stopped, or hangs: while communicators are opened, and after some calls of a step ----
# A killed rank ends the run at once; a stopped one, and one that hangs, take the timeout, which begins when rank 1 does so: the clock
# waits for all others, and for rank 1 until then.
lost() { # how, which call, options, ranks, the line, the setting
    stub "${6:-nccl_end}=1:$1:$2"
    new_clock
    timeout 300 $clocked "$lockstep" train -n $4 $tiny $(expand "$3") --run.dir=lost --run.device=cuda \
        --launch.timeout=$([ $1 = kill ] && echo 60 || echo 2) >out.txt 2>err.txt
    code=$?
    [ $code -eq 3 ] && grep -q "$5" err.txt && [ "$(grep -c . err.txt)" -eq 1 ] ||
        bad "$1 at call $2 of $3: exit code $code, $(cat err.txt)"
    rm -rf lost nccl_stub_*
}
for at in 7 12; do
    lost kill $at "@llama --parallel.dp=2 --parallel.zero=3" 2 "rank 1 was killed by signal 9"
    lost stop $at "@llama --parallel.dp=2 --parallel.zero=3" 2 "rank 1 was stopped"
    # or the previous call is the last that the streams of the stub reached
    stuck="rank 1 \(did not call it within 2 s\|called it, but made no progress for 2 s\)"
    lost loop $at "@llama --parallel.dp=2 --parallel.zero=3" 2 "$stuck"
    lost loop $at "@llama --model.layers=4 --parallel.pp=4" 4 "rank 1 did not call"
    lost loop $at "@llama --parallel.tp=2 --parallel.dp=2" 4 "$stuck"
done

# rank 1 opens five communicators: two with one other rank each for activations, two for their gradients, and one of all ranks
pairs="@llama --model.layers=4 --parallel.pp=4"
for at in 1:pp 2:pp 3:pp_back 5:world; do
    lost kill ${at%:*} "$pairs" 4 "rank 1 was killed by signal 9" nccl_open
    lost stop ${at%:*} "$pairs" 4 "rank 1 was stopped" nccl_open
    lost loop ${at%:*} "$pairs" 4 "barrier #[0-9]* of ${at#*:}: rank 1 did not call it within 2 s" nccl_open
done
lost loop 2 "@llama --parallel.tp=2 --parallel.dp=2" 4 "rank 1 did not call it within 2 s" nccl_open
say "a rank does not open its communicator"

# ---- a rank that does not finalize its communicators: the other one waits for it no longer than the timeout ----
LOCKSTEP_CUDA_STUB="kernels=cpu nccl=$PWD nccl_close=1:loop:1"
new_clock
$clocked "$lockstep" train -n 2 $tiny $(expand "@llama --parallel.tp=2") --run.dir=lost --run.device=cuda \
    --launch.timeout=2 >out.txt 2>err.txt &
launcher=$!
for i in $(seq 3000); do
    [ -f lost/checkpoints/step_00000003/manifest.json ] && [ "$(ranks | wc -l)" -eq 1 ] && break
    sleep 0.02
done
[ "$(ranks | wc -l)" -eq 1 ] || bad "the rank beside one that does not finalize does not end: $(cat out.txt err.txt)"
kill -KILL $(ranks) $launcher
wait $launcher 2>/dev/null
launcher=
rm -rf lost nccl_stub_*

# ---- calls that fail ----
least="--train.steps=1 $text --data.seq_len=4 --model.preset=llama-tiny --model.layers=2 --model.width=8 --model.heads=1
       --model.ffn=8 --train.global_batch=2 --train.micro_batch=1 --run.measure_peak=off --launch.threads=1 --train.eval_every=0
       --data.val_fraction=0 --log.tensorboard=false --run.device=cuda"
least=$(echo $least)
# Calls that fail when communicators are closed change nothing; if NCCL cannot report its version, it is not used.
fails() { # setting, options
    stub "$1"
    failing 3 -n 2 $least $2
    [ $code -ne 0 ] || [ -f failed/checkpoints/step_00000001/manifest.json ] || bad "$1 $2: exit code 0, and nothing was saved"
    [ $code -ne 0 ] || grep -q "^collectives" out.txt || bad "$1 $2: $(cat out.txt)"
    rm -f nccl_stub_*
}
for options in "--parallel.dp=2 --parallel.zero=3" "--parallel.pp=2"; do
    rm -f calls.txt
    fails "calls=$PWD/calls.txt" "$options"
    calls=$(sort -n -k 3 calls.txt | tail -n 1 | cut -d ' ' -f 3)
    [ "$calls" -gt 30 ] || bad "a run of $calls calls of NCCL"
    step=$((calls / 12 + 1))
    [ -n "$full" ] && step=1
    for n in $(seq 12) $(seq 13 $step $calls); do fails nccl_fail=$n "$options"; done
    for n in 1 2 5 $(seq 9 $((3 * step)) $calls); do fails nccl_async=$n "$options"; done
    say "$calls calls of NCCL: $options"
done

# ---- a failed GPU is not reported as out of memory ----
for n in 1 2 3 5 8 13 21; do
    fails fail_run=$n "--parallel.dp=2 --parallel.zero=3"
    ! grep "out of memory" err.txt || bad "fail_run=$n: $(cat err.txt)"
done

# ---- an old library ----
stub nccl_version=21805
expect 2 "NCCL 2.18.5 cannot be used: it is older than 2.19; update it (run.library_path=FOLDER names the folder of another)" \
    train -n 2 $two --run.dir=old --run.device=cuda --launch.comm=nccl

[ $failures -eq 0 ] || exit 1
