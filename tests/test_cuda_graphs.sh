#!/bin/sh
# test_cuda_graphs.sh LOCKSTEP TESTS - CUDA graphs on the stub of the CUDA runtime, with the kernels of the device on the emulator: a run
# with graphs has the bits of one without, over every step that records or launches one; dynamic instructions are not in a graph; a
# capture that fails ends the run with one line.
#
# By default one seed per row; LOCKSTEP_MATRIX=full: twenty, and more rows.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub
export LOCKSTEP_CUDA_STUB=

text="--data.text=text.txt --data.seq_len=8"
base="--train.steps=4 --train.global_batch=2 --train.micro_batch=1 --optim.warmup=2 --launch.threads=1 --run.measure_peak=off
      --log.tensorboard=false --data.val_fraction=0 --run.device=cuda"
small="$text --model.layers=1 --model.width=8 --model.heads=2 --model.ffn=16"
gpt2="$small --model.preset=gpt2-tiny"
llama="$small --model.preset=llama-tiny --model.kv_heads=2 --precision.compute=fp32"
mixtral="$text --model.preset=mixtral-tiny --model.layers=1 --model.width=8 --model.heads=2 --model.kv_heads=2 --precision.compute=fp32"
for name in base small gpt2 llama mixtral; do eval "$name=\$(echo \$$name)"; done

# name | ranks | options; those below "more" only in the full matrix. dense and mixed accumulate over two micro-batches.
cat >rows.txt <<'END_ROWS'
dense | 1 | @gpt2 --precision.compute=fp32 --model.layers=2
mixed | 1 | @gpt2 --precision.compute=bf16 --model.dropout=0.1 --recompute.mode=full
experts | 1 | @mixtral
data | 2 | @gpt2 --precision.compute=fp32 --train.global_batch=4 --parallel.dp=2
tensor | 2 | @llama --parallel.tp=2
pipeline | 2 | @llama --model.layers=2 --parallel.pp=2 --train.global_batch=4
zero3 | 2 | @llama --parallel.dp=2 --parallel.zero=3 --precision.compute=bf16
expert_ranks | 2 | @mixtral --parallel.dp=2 --parallel.ep=2
more
images | 1 | --model.preset=resnet-tiny --precision.compute=fp32 --train.steps=3
sequence | 2 | @llama --parallel.tp=2 --parallel.sp
ring | 2 | @llama --parallel.cp=2
offload | 2 | @llama --parallel.dp=2 --parallel.zero=2 --optim.offload=cpu
zero_bubble | 2 | @llama --model.layers=2 --parallel.pp=2 --train.global_batch=4 --parallel.schedule=zb-h1
END_ROWS

course() { json step loss grad_norm lr tokens_seen <"$1/metrics.jsonl"; }
# Of the rank that has the fewest: 1 all, 5 captures, 6 launches of graphs, 7 queries. The launcher's process uses no stream.
calls() { grep -v '^[0-9]* 0 ' "$1" | cut -d ' ' -f "$2" | sort -n | head -n 1; }

# A command for each_row: the row's runs with and without graphs have the same metrics and the same bits.
same_with_graphs() {
    name=$1 ranks=$2
    shift 2
    for n in $(seq $seeds); do
        seed=$((seed + 1))
        for graphs in off on; do
            rm -rf ${name}_$graphs calls_$graphs.txt
            mkdir nccl_$seed$graphs
            LOCKSTEP_CUDA_STUB="seed=$seed calls=$PWD/calls_$graphs.txt nccl=$PWD/nccl_$seed$graphs"
            train -n $ranks $base "$@" --run.dir=${name}_$graphs --run.cuda_graphs=$graphs
            cp out.txt out_$graphs.txt
        done
        same_course ${name}_off ${name}_on
        same_bits ${name}_off/checkpoints/step_* ${name}_on/checkpoints/step_*
        captures=$(calls calls_on.txt 5) launches=$(calls calls_on.txt 6)
        [ "$captures" -gt 1 ] && [ "$launches" -gt "$captures" ] || bad "$name: $captures captures, $launches launches of graphs"
        [ "$(calls calls_off.txt 5)$(calls calls_off.txt 6)" = 00 ] || bad "$name: graphs with run.cuda_graphs=off"
    done
    say "$name: $captures captures, $launches launches of graphs; $(calls calls_on.txt 1) calls, $(calls calls_off.txt 1) without"
    sed -n 's/^graphs *//p' out_on.txt
}
each_row same_with_graphs <rows.txt

# ---- the part of a step that graphs cover ----
dense=$(row_options dense)
LOCKSTEP_CUDA_STUB=
rm -rf said
train $base $dense --run.dir=said
# All except the clipping factor, after which the norm is checked: forward, backward, before the factor, after it.
grep -Eq '^graphs  *4 CUDA graphs launch ([0-9]+) of [0-9]+ instructions' out.txt || bad "dense: $(grep '^graphs' out.txt)"
sed -n 's/^graphs  *4 CUDA graphs launch \([0-9]*\) of \([0-9]*\) .*/\1 \2/p' out.txt | while read -r taken all; do
    [ "$taken" -eq $((all - 1)) ] || echo "of $all instructions $taken are in graphs" >taken.txt
done
[ ! -f taken.txt ] || bad "dense: $(cat taken.txt)"

# Each graph takes 1 MiB of the stub's memory: it has a separate line, and allocations have that much less.
memory_lines() { sed -n '/^memory/,$s/^  \(CUDA [a-z]*\|NCCL\)  *\([0-9.]* [KMG]*iB\)$/\1 \2/p' out.txt | tr '\n' ' '; }
[ "$(memory_lines)" = "CUDA context 64.0 MiB CUDA graphs 4.00 MiB " ] || bad "dense: memory '$(memory_lines)': $(cat out.txt)"
limit=$((956 * 1024 * 1024))
grep -qF "CUDA graphs: they took 4194304 bytes of the GPU's memory; $limit are left for the run" said/log/rank_0000.log ||
    bad "dense: $(cat said/log/rank_0000.log)"
# On ranks they are those of the rank with the most.
mkdir nccl_memory
LOCKSTEP_CUDA_STUB="nccl=$PWD/nccl_memory calls=$PWD/calls_memory.txt"
rm -rf said
train -n 2 $base $(row_options pipeline) --run.dir=said
most=$(cut -d ' ' -f 5 calls_memory.txt | sort -n | tail -n 1)
case $(memory_lines) in
"CUDA context 64.0 MiB NCCL "[1-9]*" MiB CUDA graphs $most.0"*" MiB ") ;;
*) bad "pipeline, $most graphs: $(cat out.txt)" ;;
esac

# ---- the number of runtime calls in a step of four micro-batches, without queries whether something has ended ----
made() { echo $(($(calls "$1" 1) - $(calls "$1" 7))); }
for graphs in on off; do
    for steps in 3 7; do
        rm -rf said calls_$steps.txt
        LOCKSTEP_CUDA_STUB="seed=5 calls=$PWD/calls_$steps.txt"
        train $base $dense --train.steps=$steps --train.global_batch=4 --run.dir=said --run.cuda_graphs=$graphs
    done
    eval "step_$graphs=$((($(made calls_7.txt) - $(made calls_3.txt)) / 4))"
done
say "a step makes $step_on calls with graphs, $step_off without"
[ $((4 * step_on)) -lt $step_off ] || bad "a step makes $step_on calls with graphs, $step_off without"

# ---- no graphs if instructions are observed one by one ----
for option in log.trace debug.check_finite; do
    rm -rf said calls.txt
    LOCKSTEP_CUDA_STUB="calls=$PWD/calls.txt"
    train $base $dense --train.steps=3 --$option=true --run.dir=said
    grep -q "^graphs *none ($option needs each instruction launched by itself)" out.txt || bad "$option: $(grep '^graphs' out.txt)"
    [ "$(calls calls.txt 5)" = 0 ] || bad "$option: graphs were captured"
    expect 2 "run.cuda_graphs does nothing here: $option" train $base $dense --$option=true --run.cuda_graphs=on
done
LOCKSTEP_CUDA_STUB=
expect 2 "--profile: it needs each instruction launched by itself; use run.cuda_graphs=auto or off" \
    bench train --model.preset=llama-tiny --run.device=cuda --profile --run.cuda_graphs=on
expect 2 "run.cuda_graphs does nothing here: it applies only to run.device=cuda" \
    train $base $dense --run.device=cpu --run.cuda_graphs=on

# ---- an invalid capture, and calls and operations that fail: one line, exit code 3, or 1 if memory runs out ----
rm -rf failed
LOCKSTEP_CUDA_STUB="capture_fail=2"
expect 3 "cudaStreamEndCapture: operation failed due to a previous error during capture (cudaErrorStreamCaptureInvalidated); \
run.cuda_graphs=off launches each kernel by itself" train $base $dense --run.dir=failed

least="$gpt2 --precision.compute=fp32 --train.steps=3 --checkpoint.every=0"
fails() { # setting
    LOCKSTEP_CUDA_STUB=$1
    failing "1 3" $base $least
    case $line in *"cuda: GPU 0 (stub GPU 0): "* | *"out of memory"* | "") ;; *) bad "$1: $line" ;; esac
    [ -z "$line" ] || seen="$seen $(echo "$line" | sed -n 's/.*: \(cuda[A-Za-z]*\): .*/\1/p')"
}
rm -f calls.txt
seen=
fails "calls=$PWD/calls.txt"
operations=$(calls calls.txt 2)
# Each call of the first capture that is not a launch of a kernel, and some of those.
LOCKSTEP_CUDA_STUB="trace=$PWD/trace.txt"
rm -rf failed
train $base $least --run.dir=failed
first() { grep -n -m 1 "^$1\$" trace.txt | cut -d : -f 1; }
captured="cudaStreamBeginCapture cudaStreamEndCapture cudaGraphInstantiate cudaGraphDestroy cudaGraphLaunch"
for name in $captured; do fails "fail=$(first $name)"; done
for n in $(seq $(($(first cudaStreamBeginCapture) + 1)) 12 $(first cudaStreamEndCapture)); do fails "fail=$n"; done
for n in $((operations / 2)) $((operations * 3 / 4)) $((operations * 9 / 10)); do fails fail_run=$n; done
for name in $captured; do
    case "$seen " in *" $name "*) ;; *) bad "$name never failed; what did:$seen" ;; esac
done

[ $failures -eq 0 ] || exit 1
