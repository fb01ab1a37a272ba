#!/bin/sh
# test_cuda_graphs.sh LOCKSTEP TESTS - CUDA graphs on the stub of the CUDA runtime, with the kernels of the device on the emulator: a run
# with graphs has the bits of one without, over every step that records or launches one; what is dynamic has none; a capture that fails
# ends the run with one line.
#
# By default one seed a row; LOCKSTEP_MATRIX=full: five, and more rows.
set -u
lockstep=$1
. "$2/script.sh"
seeds=1 full=
[ "${LOCKSTEP_MATRIX:-}" = full ] && seeds=5 full=1
LOCKSTEP_CUDA_MODULE=$(dirname "$lockstep")/lockstep_cuda_stub.so
export LOCKSTEP_CUDA_MODULE
[ -f "$LOCKSTEP_CUDA_MODULE" ] || { echo "skipped: no C++ compiler was found, so the stub was not built"; exit 77; }
unset CUDA_VISIBLE_DEVICES
export LOCKSTEP_CUDA_STUB=

text="--data.text=text.txt --data.seq_len=8"
base="--train.steps=4 --train.global_batch=2 --train.micro_batch=1 --optim.warmup=2 --launch.threads=1 --run.measure_peak=off
      --log.tensorboard=false --data.val_fraction=0 --run.device=cuda"
small="$text --model.layers=1 --model.width=8 --model.heads=2 --model.ffn=16"
gpt2="$small --model.preset=gpt2-tiny"
llama="$small --model.preset=llama-tiny --model.kv_heads=2 --precision.compute=fp32"
mixtral="$text --model.preset=mixtral-tiny --model.layers=1 --model.width=8 --model.heads=2 --model.kv_heads=2 --precision.compute=fp32"
for name in base small gpt2 llama mixtral; do eval "$name=\$(echo \$$name)"; done

# name | ranks | options; those from "more" on in the full matrix alone. dense and mixed accumulate over two micro-batches.
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
expand() { for word in $1; do case $word in @*) options "${word#@}" ;; *) echo "$word" ;; esac; done; }
train() { timeout 300 "$lockstep" train "$@" >out.txt 2>err.txt || bad "train $*: $(cat err.txt)"; }
# Of the rank that has the fewest: 1 all, 5 captures, 6 launches of graphs, 7 questions. The launcher's process gives its stream nothing.
calls() { grep -v '^[0-9]* 0 ' "$1" | cut -d ' ' -f "$2" | sort -n | head -n 1; }

seed=0
while IFS='|' read -r name ranks row; do
    name=$(echo $name) ranks=$(echo $ranks)
    if [ "$name" = more ]; then
        [ -n "$full" ] && continue
        break
    fi
    row="$base $(expand "$row")"
    for n in $(seq $seeds); do
        seed=$((seed + 1))
        for graphs in off on; do
            rm -rf ${name}_$graphs calls_$graphs.txt
            mkdir nccl_$seed$graphs
            LOCKSTEP_CUDA_STUB="seed=$seed calls=$PWD/calls_$graphs.txt nccl=$PWD/nccl_$seed$graphs"
            train -n $ranks $row --run.dir=${name}_$graphs --run.cuda_graphs=$graphs
            cp out.txt out_$graphs.txt
        done
        [ -n "$(course ${name}_off)" ] && [ "$(course ${name}_off)" = "$(course ${name}_on)" ] || bad "$name: metrics with graphs differ"
        same_bits ${name}_off/checkpoints/step_* ${name}_on/checkpoints/step_*
        captures=$(calls calls_on.txt 5) launches=$(calls calls_on.txt 6)
        [ "$captures" -gt 1 ] && [ "$launches" -gt "$captures" ] || bad "$name: $captures captures, $launches launches of graphs"
        [ "$(calls calls_off.txt 5)$(calls calls_off.txt 6)" = 00 ] || bad "$name: graphs with run.cuda_graphs=off"
    done
    say "$name: $captures captures, $launches launches of graphs; $(calls calls_on.txt 1) calls, $(calls calls_off.txt 1) without"
    sed -n 's/^graphs *//p' out_on.txt
done <rows.txt

# ---- what a graph takes of a step ----
dense=$(expand "$(sed -n 's/^dense | 1 | //p' rows.txt)")
LOCKSTEP_CUDA_STUB=
rm -rf said
train $base $dense --run.dir=said
# All but the factor of the clipping, which is followed by the check of the norm: forward, backward, before it, after it.
grep -Eq '^graphs  *4 CUDA graphs launch ([0-9]+) of [0-9]+ instructions' out.txt || bad "dense: $(grep '^graphs' out.txt)"
sed -n 's/^graphs  *4 CUDA graphs launch \([0-9]*\) of \([0-9]*\) .*/\1 \2/p' out.txt | while read -r taken all; do
    [ "$taken" -eq $((all - 1)) ] || echo "of $all instructions $taken are in graphs" >taken.txt
done
[ ! -f taken.txt ] || bad "dense: $(cat taken.txt)"

# ---- how many calls of the runtime a step of four micro-batches makes, questions whether something has ended aside ----
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

# ---- where instructions are looked at one by one ----
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

# ---- a capture that is invalid, and calls and operations that fail: one line, exit code 3, or 1 for a lack of memory ----
rm -rf failed
LOCKSTEP_CUDA_STUB="capture_fail=2"
expect 3 "cudaStreamEndCapture: operation failed due to a previous error during capture (cudaErrorStreamCaptureInvalidated); \
run.cuda_graphs=off launches each kernel by itself" train $base $dense --run.dir=failed

least="$gpt2 --precision.compute=fp32 --train.steps=3 --checkpoint.every=0 --run.dir=failed"
failing() { # setting
    rm -rf failed
    LOCKSTEP_CUDA_STUB="$1" timeout 120 "$lockstep" train $base $least >out.txt 2>err.txt
    code=$?
    line=$(cat err.txt)
    case $line in
    *"device check:"* | *"cuda stub:"*) bad "$1: $line" ;;
    *"out of memory"*) want=1 ;;
    *"cuda: GPU 0 (stub GPU 0): "*) want=3 ;;
    "") want=0 ;;
    *) want=unknown ;;
    esac
    [ $code = $want ] && [ "$(wc -l <err.txt)" -le 1 ] || bad "$1: exit code $code, '$line'"
    [ -z "$line" ] || seen="$seen $(echo "$line" | sed -n 's/.*: \(cuda[A-Za-z]*\): .*/\1/p')"
}
rm -f calls.txt
seen=
failing "calls=$PWD/calls.txt"
operations=$(calls calls.txt 2)
# Each call of the first capture that is not a launch of a kernel, and some of those.
(LOCKSTEP_CUDA_STUB="trace=$PWD/trace.txt" && rm -rf failed && "$lockstep" train $base $least >out.txt 2>err.txt) || bad "$(cat err.txt)"
first() { grep -n -m 1 "^$1\$" trace.txt | cut -d : -f 1; }
captured="cudaStreamBeginCapture cudaStreamEndCapture cudaGraphInstantiate cudaGraphDestroy cudaGraphLaunch"
for name in $captured; do failing "fail=$(first $name)"; done
for n in $(seq $(($(first cudaStreamBeginCapture) + 1)) 12 $(first cudaStreamEndCapture)); do failing "fail=$n"; done
for n in $((operations / 2)) $((operations * 3 / 4)) $((operations * 9 / 10)); do failing fail_run=$n; done
for name in $captured; do
    case "$seen " in *" $name "*) ;; *) bad "$name never failed; what did:$seen" ;; esac
done

[ $failures -eq 0 ] || exit 1
