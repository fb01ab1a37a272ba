#!/bin/sh
# test_ipc_stub.sh LOCKSTEP TESTS - run.device=cuda with collectives by CUDA IPC, on the stub of the CUDA runtime (tests/cuda_stub/stub.h):
# layouts whose ranks share a GPU, or have one each, have the bits of the cpu; a rank that is killed, stopped or stuck is named in one line;
# calls that fail end the run with one line and the right exit code; where CUDA IPC cannot be used the report says why; `bench comm` with
# operands on GPUs.
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
zero3 | 3 | @llama --parallel.dp=3 --parallel.zero=3 --precision.compute=bf16 --train.global_batch=6
stages | 4 | @llama --model.layers=4 --parallel.pp=4
all | 4 | @mixtral --parallel.pp=2 --parallel.dp=2 --parallel.ep=2 --parallel.zero=1
more
data | 2 | @llama --parallel.dp=2
zero2 | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=cpu
interleaved | 2 | @llama --model.layers=4 --parallel.pp=2 --parallel.vpp=2
expert_ranks | 2 | @qwen --parallel.dp=2 --parallel.ep=2
zero_bubble | 2 | @llama --parallel.pp=2 --parallel.schedule=zb-h1
heads | 2 | @llama --parallel.cp=2 --parallel.cp_method=all_to_all
hybrid | 4 | @llama --parallel.dp=4 --parallel.replicate=2 --parallel.zero=3
mesh | 4 | @llama --parallel.pp=2 --parallel.tp=2 --parallel.sp
context | 4 | @qwen --parallel.dp=2 --parallel.cp=2 --parallel.ep=4 --parallel.zero=3
END_ROWS

stub() { LOCKSTEP_CUDA_STUB="kernels=cpu $*" && export LOCKSTEP_CUDA_STUB; }
says() { grep -q "^collectives $1" out.txt || bad "the report does not say 'collectives $1': $(cat out.txt)"; }
# On one GPU and, under every other seed, on one for each rank.
on_device() {
    gpus=$((seed % 2 ? 1 : 8))
    stub gpus=$gpus seed=$seed
    train "$@" --run.device=cuda --launch.comm=ipc --launch.share_gpus
    says "CUDA IPC, which took [0-9.]* MiB of the GPU's memory$"
}
each_row same_on_device <rows.txt

# ---- CUDA IPC that cannot be used ----
two=$(echo $tiny $(expand "@llama --parallel.dp=2"))
refused() { # settings, why
    stub "$1"
    rm -rf refused
    train -n 2 $two --run.dir=refused --run.device=cuda
    says "through the host: NCCL was not found.*; $2$"
    expect 2 "launch.comm=ipc cannot be used: $2; use launch.comm=auto" \
        train -n 2 $two --run.dir=refused --run.device=cuda --launch.comm=ipc
}
refused ipc=0 "the driver has no CUDA IPC for this GPU"
refused peers=0 "CUDA IPC cannot be used: the GPU of rank 0 cannot access the memory of another rank's GPU"
stub gpus=1 peers=0
train -n 2 $two --run.dir=one_gpu --run.device=cuda --launch.share_gpus
says "CUDA IPC, which took 2.00 MiB of the GPU's memory: NCCL was not found"

# ---- ranks that mpirun started: on one machine, and as if on two ----
if command -v mpirun.openmpi >/dev/null; then
    cat >alone.sh <<'END'
OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_RANK exec "$@"
END
    by_mpirun() { # folder, command; Open MPI does not free all of its memory, which is not our leak
        folder=$1
        shift
        ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 \
            timeout 100 mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 2 "$@" \
            "$lockstep" train $two --run.dir=$folder --run.device=cuda >out.txt 2>err.txt || bad "mpirun: $(cat err.txt)"
        same_bits one_gpu/checkpoints/step_00000003 $folder/checkpoints/step_00000003
    }
    stub
    by_mpirun one_machine
    says "CUDA IPC, which took 2.00 MiB"
    by_mpirun two_machines sh alone.sh
    says "through the host: .*; the ranks are on several machines, and CUDA IPC needs one$"
else
    say "skipped: there is no mpirun.openmpi"
fi

# ---- bench comm: the operands are on the GPUs ----
stub
for op in all_reduce reduce_scatter all_gather broadcast all_to_all sendrecv; do
    for by in ipc host; do
        expect 0 "# Out of bounds values : 0 OK" bench comm -n 3 --op $op -b 4 -e 400000 -f 316 --iterations 2 --warmup 1 \
            --run.device=cuda --launch.comm=$by
        [ $by = ipc ] && over="CUDA IPC" || over="shm, staged through the host, algorithm by the comm table"
        grep -q "$op of 3 ranks over $over, comm memory of device cuda" out.txt || bad "bench comm: $(cat out.txt)"
    done
done
stub gpus=1
expect_json "[].device [].transport" "cuda CUDA IPC" bench comm -n 2 -b 64 -e 64 --iterations 2 --launch.share_gpus --memory plain --json
expect 2 "--tune applies only to run.device=cpu" bench comm -n 2 --tune --run.device=cuda --launch.share_gpus
expect 2 "--algorithm applies only to run.device=cpu" bench comm -n 2 --algorithm ring --run.device=cuda --launch.share_gpus
expect 2 "launch.comm does nothing here: it applies only to ranks on GPUs, and run.device is cpu" \
    bench comm -n 2 -b 64 -e 64 --run.device=cpu --launch.comm=ipc

# ---- a rank that ends, is stopped, or hangs: while groups are opened, and after some of what it tells the others ----
# A killed rank ends the run at once; a stopped one, and one that hangs, take the timeout, which begins when rank 1 does so: the clock
# waits for all others, and for rank 1 until then.
lost() { # how, which call, options, ranks, the line, the setting
    stub "$6=1:$1:$2"
    new_clock
    timeout 300 $clocked "$lockstep" train -n $4 $tiny $(expand "$3") --run.dir=lost --run.device=cuda --launch.comm=ipc \
        --launch.timeout=$([ $1 = kill ] && echo 60 || echo 4) >out.txt 2>err.txt
    code=$?
    [ $code -eq 3 ] && grep -q "$5" err.txt && [ "$(grep -c . err.txt)" -eq 1 ] ||
        bad "$1 at call $2 of $3, $6: exit code $code, $(cat err.txt)"
    rm -rf lost
}
stuck="rank 1 \(did not call .*within 4 s\|called it, but made no progress for 4 s\)"
for at in 9 40; do
    lost kill $at "@llama --parallel.dp=2 --parallel.zero=3" 2 "rank 1 was killed by signal 9" write_end
    lost stop $at "@llama --parallel.dp=2 --parallel.zero=3" 2 "rank 1 was stopped" write_end
    lost loop $at "@llama --parallel.dp=2 --parallel.zero=3" 2 "$stuck" write_end
    lost loop $at "@llama --model.layers=4 --parallel.pp=4" 4 "$stuck" write_end
    lost loop $at "@llama --parallel.tp=2 --parallel.dp=2" 4 "$stuck" write_end
done
lost kill 1 "@llama --parallel.tp=2 --parallel.dp=2" 4 "rank 1 was killed by signal 9" ipc_open
lost stop 2 "@llama --parallel.tp=2 --parallel.dp=2" 4 "rank 1 was stopped" ipc_open
in_barrier="barrier #[0-9]* of [a-z]*: all ranks called it, but it made no progress for 4 s"
lost loop 2 "@llama --parallel.tp=2 --parallel.dp=2" 4 "$in_barrier" ipc_open

# ---- a rank that does not end its groups: the other one waits for it no longer than the timeout ----
LOCKSTEP_CUDA_STUB="kernels=cpu ipc_close=1:loop:1"
new_clock
$clocked "$lockstep" train -n 2 $tiny $(expand "@llama --parallel.tp=2") --run.dir=lost --run.device=cuda \
    --launch.timeout=4 --launch.comm=ipc >out.txt 2>err.txt &
launcher=$!
for i in $(seq 3000); do
    [ -f lost/checkpoints/step_00000003/manifest.json ] && [ "$(ranks | wc -l)" -eq 1 ] && break
    sleep 0.02
done
[ "$(ranks | wc -l)" -eq 1 ] || bad "the rank beside one that does not end its groups does not end: $(cat out.txt err.txt)"
kill -KILL $(ranks) $launcher
wait $launcher 2>/dev/null
launcher=
rm -rf lost

# ---- calls that fail ----
least="--train.steps=1 $text --data.seq_len=4 --model.preset=llama-tiny --model.layers=2 --model.width=8 --model.heads=1
       --model.ffn=8 --train.global_batch=2 --train.micro_batch=1 --run.measure_peak=off --launch.threads=1 --train.eval_every=0
       --data.val_fraction=0 --log.tensorboard=false --run.device=cuda --launch.comm=ipc"
least=$(echo $least)
fails() { # setting, options
    stub "$1"
    failing "1 2 3" -n 2 $least $2
    [ $code -ne 0 ] || [ -f failed/checkpoints/step_00000001/manifest.json ] || bad "$1 $2: exit code 0, and nothing was saved"
}
for options in "--parallel.dp=2 --parallel.zero=3" "--parallel.pp=2"; do
    rm -f calls.txt
    fails "calls=$PWD/calls.txt" "$options"
    calls=$(sort -n calls.txt | tail -n 1 | cut -d ' ' -f 1)
    [ "$calls" -gt 300 ] || bad "a run of $calls calls"
    step=$((calls / 20 + 1))
    early=2
    [ -n "$full" ] && step=1 early=1
    for n in 8 9 10; do fails fail=$n "$options"; done # before a GPU is chosen, on both ranks
    for n in $(seq 11 $early 40) $(seq 41 $step $calls); do fails "fail_gpu=1 fail=$n" "$options"; done
    for n in 3 20 60; do fails "fail_gpu=1 fail_run=$n" "$options"; done
    say "$calls calls: $options"
done

[ $failures -eq 0 ] || exit 1
