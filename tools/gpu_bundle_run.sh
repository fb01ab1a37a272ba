#!/bin/sh
# run.sh [RESULTS] - tests lockstep on this machine's GPU and writes the results to the folder RESULTS (results/ beside this script).
#
# The most important steps run first, each with its own time limit; all take at most ten minutes (LOCKSTEP_SECONDS). RESULTS/summary.txt has
# a line per step: passed, failed or skipped, its seconds, and which file to read. The exit code is 1 if a step failed.
#
#   machine     the GPU, the driver, the processor
#   kernels     every CUDA kernel against its reference, small cases
#   parity      cpu and cuda compute the same step, for each model and type
#   curve       a run on real text: losses on cuda compared with those on the cpu
#   memcheck    the kernel tests under compute-sanitizer's memcheck
#   racecheck   and under its racecheck
#   all_cases   every case of the kernel tests
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" = --step ]; then  # a function of this script, called by step(), which can stop it
    stepping=1 out=$LOCKSTEP_RESULTS
    shift
else
    stepping=0 out=${1:-$here/results}
    mkdir -p "$out" || exit 1
    out=$(cd "$out" && pwd)
    : >"$out/summary.txt"
fi
limit=${LOCKSTEP_SECONDS:-600}
begin=$(date +%s)
failed=0
LOCKSTEP_RESULTS=$out
XDG_CACHE_HOME=$out/cache
PATH=$here/bin:/usr/local/cuda/bin:$PATH
export LOCKSTEP_RESULTS XDG_CACHE_HOME PATH

left() { echo $((limit - ($(date +%s) - begin))); }

say() { printf '%-10s %-8s %4s s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$out/summary.txt"; }

# step NAME SECONDS FUNCTION...: its output goes to NAME.txt. Exit code 77: skipped, and the last line says why.
step() {
    name=$1 most=$2
    shift 2
    [ "$(left)" -lt "$most" ] && most=$(left)
    if [ "$most" -lt 5 ]; then
        say "$name" skipped 0 "no time was left"
        return
    fi
    at=$(date +%s)
    timeout "$most" sh "$here/run.sh" --step "$@" >"$out/$name.txt" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - at))
    case $code in
    0) say "$name" passed $took "$(tail -n 1 "$out/$name.txt")" ;;
    77) say "$name" skipped $took "$(tail -n 1 "$out/$name.txt")" ;;
    124) say "$name" failed $took "stopped after $most s: $name.txt" && failed=1 ;;
    *) say "$name" failed $took "exit code $code: $(tail -n 1 "$out/$name.txt")" && failed=1 ;;
    esac
}

machine() {
    cat "$here/version.txt"
    lscpu | grep -E 'Model name|^CPU\(s\)'
    nvidia-smi || { echo "nvidia-smi failed"; return 1; }
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
}

# Every line of parity says which sides it compared; the last one counts.
parity() {
    good=0 bad=0
    for type in fp32 bf16; do
        for model in gpt2-tiny llama-tiny qwen3-tiny mixtral-tiny; do
            echo "== $model in $type"
            if lockstep parity --a run.device=cpu --b run.device=cuda --model.preset=$model --precision.compute=$type \
                --train.global_batch=4 --data.seq_len=64; then
                good=$((good + 1))
            else
                bad=$((bad + 1))
            fi
        done
    done
    echo "$good equal, $bad different or refused"
    [ $bad -eq 0 ]
}

curve() {
    for device in cpu cuda; do
        rm -rf "$out/run-$device"
        lockstep train --run.device=$device --run.dir="$out/run-$device" --data.text="$here/text.txt" --train.steps=100 \
            --model.preset=gpt2-tiny --data.seq_len=64 --train.eval_every=0 --log.tensorboard=false || return 1
    done
    for device in cpu cuda; do
        sed -n 's/.*"step": *\([0-9]*\).*"loss": *\([0-9.]*\).*/\1 \2/p' "$out/run-$device/metrics.jsonl" >"$out/losses-$device.txt"
        rm -rf "$out/run-$device/checkpoints"
    done
    join "$out/losses-cpu.txt" "$out/losses-cuda.txt" 2>/dev/null | awk '
        { d = $2 - $3; if (d < 0) d = -d; d /= $2; if (d > most) { most = d; at = $1 } n++ }
        END { printf "%d steps; the losses differ by at most %.2g of the loss, in step %d\n", n, most, at; exit n < 100 || most > 0.01 }'
}

# Under a tool of compute-sanitizer, cases of the small ops alone: it is a hundred times slower.
sanitizer() {
    command -v compute-sanitizer >/dev/null || { echo "skipped: compute-sanitizer is not on the path"; return 77; }
    for op in layer_norm rms_norm softmax embedding_dw; do
        LOCKSTEP_OP=$op compute-sanitizer --tool "$1" --error-exitcode 9 "$here/bin/test_gpu_kernels" || return $?
    done
}

all_cases() { LOCKSTEP_MATRIX=full test_gpu_kernels; }

kernels() { test_gpu_kernels; }

if [ $stepping = 1 ]; then
    "$@"
    exit
fi
step machine 20 machine
step kernels 120 kernels
step parity 120 parity
step curve 120 curve
step memcheck 100 sanitizer memcheck
step racecheck 60 sanitizer racecheck
step all_cases 120 all_cases
echo "results are in $out"
exit $failed
