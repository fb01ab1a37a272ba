#!/bin/sh
# run.sh [--seconds N] [--only "STEP ..."] [--tiny] [RESULTS] - tests lockstep on this machine's GPU, in at most N seconds (570), and
# writes the results to the folder RESULTS (results/ beside this script).
#
# The most important steps come first. Each has a share of the time, scaled by --seconds, and may also use the time that earlier steps left
# over. A step that fails does not stop the others; one that runs out of time is stopped, and one without time left is listed as such.
#
#   machine     the GPU, the driver, the processor, the libraries found; a step on one rank and on two ranks of the GPU
#   kernels     every CUDA kernel against its reference, small cases
#   goldens     ten steps of small models and the optimizers against numbers that PyTorch wrote
#   parity      cpu and cuda compute the same step, for each model and type
#   layouts     2 and 4 ranks on the GPU compute the step of one rank
#   comm        collectives of 2 ranks on the GPU: results and times
#   gemm        matmuls by shape and type
#   curve       a run on real text: losses on cuda and on the cpu
#   memcheck    one case of each kernel's test under compute-sanitizer's memcheck
#   racecheck   the same under its racecheck
#   bench       training steps compared with PyTorch's (bench/gpu.py): speed, MFU, memory
#   profile     where the time of a step goes, by operation
#   all_cases   every case of the kernel tests, in the remaining time
#
# RESULTS has summary.txt (a line per step: verdict, seconds, the last line of its log), summary.json (name, rc, seconds, verdict, said),
# logs/STEP.txt, curve.json, bench.json, and results.tar.gz with all of them. The exit code is 1 if a step failed or was
# stopped. --tiny: the smallest sizes, to test this script.
set -u
here=$(cd "$(dirname "$0")" && pwd)
seconds=570 only= tiny= out=$here/results step=
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --tiny) tiny=1 && shift ;;
    --step) step=$2 && shift 2 ;; # a function of this script, called by step(), which can stop it
    -*) echo "run.sh: unknown option $1; use --seconds N, --only \"STEP ...\" or --tiny" >&2 && exit 2 ;;
    *) out=$1 && shift ;;
    esac
done
case $seconds in '' | *[!0-9]*) echo "run.sh: --seconds is not a number: '$seconds'" >&2 && exit 2 ;; esac

# ---- the steps ----

# Runs a command of lockstep; the log has its line.
shown() { echo "== $*" && "$@"; }

machine() {
    cat "$here/version.txt"
    lscpu | grep -E 'Model name|^CPU\(s\)'
    python3 -c 'import sys; print("python", sys.version.split()[0], sys.prefix)'
    python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)' 2>&1 | tail -n 1
    for tool in compute-sanitizer nvcc; do command -v $tool || echo "$tool was not found"; done
    nvidia-smi || { echo "nvidia-smi failed" && return 1; }
    for ranks in 1 2; do
        share=
        [ $ranks -eq 1 ] || share="--train.global_batch=4 --launch.share_gpus"
        rm -rf "$work/run"
        shown lockstep train -n $ranks $share $model --data.text="$here/text.txt" --train.steps=1 --train.eval_every=0 \
            --log.tensorboard=false --run.measure_peak=off --run.device=cuda --run.dir="$work/run" || return 1
    done
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
}

kernels() {
    [ -z "$tiny" ] || export LOCKSTEP_OP=layer_norm
    test_gpu_kernels
}

all_cases() {
    LOCKSTEP_MATRIX=full
    export LOCKSTEP_MATRIX
    kernels
}

goldens() { LOCKSTEP_DEVICE=cuda LOCKSTEP_TESTS=$here/tests test_golden ${tiny:+sgd}; }

# compare ARGUMENTS...: runs `lockstep parity` with them; the last line has the counts.
good=0 bad=0
compare() {
    if shown lockstep parity "$@"; then good=$((good + 1)); else bad=$((bad + 1)); fi
    echo "$good equal, $bad different or refused"
}

parity() {
    models="gpt2-tiny llama-tiny qwen3-tiny mixtral-tiny"
    for type in fp32 bf16; do
        [ -z "$tiny" ] || models=gpt2-tiny
        for model in $models; do
            compare --a run.device=cpu --b run.device=cuda --model.preset=$model --precision.compute=$type $sizes
        done
    done
    [ $bad -eq 0 ]
}

# Ranks on one GPU: collectives through its memory, and for the first layout of each number of ranks also through the host.
layouts() {
    layouts_by ipc $tiny
    layouts_by host 1
    [ $bad -eq 0 ]
}

layouts_by() { # launch.comm, set: only the first layouts
    counted=
    while IFS='|' read -r ranks model type layout; do
        [ -z "${2:-}" ] || [ "$counted" != "$ranks" ] || continue
        counted=$ranks
        compare --a run.device=cuda --b "run.device=cuda launch.share_gpus=true launch.comm=$1 $layout" --model.preset=$model \
            --precision.compute=$type $sizes </dev/null
    done <<'END_LAYOUTS'
2|llama-tiny|fp32|parallel.tp=2 parallel.sp=true
2|gpt2-tiny|bf16|parallel.dp=2 parallel.zero=3
2|gpt2-tiny|fp32|parallel.dp=2 parallel.zero=1
2|llama-tiny|fp32|parallel.pp=2
2|llama-tiny|bf16|parallel.cp=2
2|mixtral-tiny|fp32|parallel.dp=2 parallel.ep=2
4|mixtral-tiny|fp32|parallel.pp=2 parallel.dp=2 parallel.ep=2 parallel.zero=1
4|llama-tiny|fp32|parallel.dp=2 parallel.tp=2 parallel.zero=2
4|llama-tiny|bf16|parallel.pp=2 parallel.tp=2
4|gpt2-tiny|bf16|parallel.dp=4 parallel.zero=3
END_LAYOUTS
}

# Two ranks on the GPU; every element is checked.
comm() {
    for by in ipc host; do
        for op in all_reduce reduce_scatter all_to_all sendrecv; do
            shown lockstep bench comm -n 2 --op $op --run.device=cuda --launch.share_gpus --launch.comm=$by -b 1K -f 64 \
                -e $([ -z "$tiny" ] && echo 64M || echo 4K) --iterations $([ -z "$tiny" ] && echo 20 || echo 2) || return 1
        done
    done
}

gemm() { shown lockstep bench gemm --run.device=cuda ${tiny:+--m 8 --n 24 --k 16}; }

# curve_of NAME MOST STEPS OPTIONS...: the losses of both devices, in curve_NAME.txt; they may differ by at most MOST of the loss.
curve_of() {
    name=$1 most=$2 steps=$3
    shift 3
    for device in cpu cuda; do
        rm -rf "$work/run"
        shown lockstep train --run.device=$device --run.dir="$work/run" --data.text="$here/text.txt" --train.steps=$steps \
            --train.eval_every=0 --log.tensorboard=false --run.measure_peak=off "$@" || return 1
        json_get step loss <"$work/run/metrics.jsonl" >"$work/$device.txt" || return 1
    done
    awk 'NR == FNR { cpu[$1] = $2; next } $1 in cpu { print $1, cpu[$1], $2 }' "$work/cpu.txt" "$work/cuda.txt" >"$work/curve_$name.txt"
    awk -v name=$name -v steps=$steps -v most=$most '
        { d = $2 - $3; if (d < 0) d = -d; d /= $2; if (d > far) { far = d; at = $1 } n++; last = $2 " on cpu, " $3 " on cuda" }
        END { printf "%s: %d steps, last loss %s; they differ by at most %.2g of the loss, in step %d\n", name, n, last, far, at
              exit n != steps || far > most }' "$work/curve_$name.txt"
}

curve() {
    [ -n "$tiny" ] && set -- 2 "$model" "$model" || set -- 100 --model.preset=llama-demo --model.preset=gpt2-tiny
    curve_of fp32 0.01 $1 $2 --precision.compute=fp32
    failed=$?
    curve_of bf16 0.05 $1 $3 --precision.compute=bf16 || failed=1
    for name in fp32 bf16; do
        [ ! -s "$work/curve_$name.txt" ] || awk -v name=$name '
            { step = step c $1; cpu = cpu c $2; cuda = cuda c $3; c = "," }
            END { printf "\"%s\": {\"step\": [%s], \"cpu\": [%s], \"cuda\": [%s]}\n", name, step, cpu, cuda }' "$work/curve_$name.txt"
    done | awk '{ printf "%s%s", NR == 1 ? "{" : ",\n ", $0 } END { print "}" }' >"$out/curve.json"
    return $failed
}

sanitizer() {
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on the path" && return 77; }
    LOCKSTEP_CASES=1
    export LOCKSTEP_CASES
    [ -z "$tiny" ] || export LOCKSTEP_OP=layer_norm
    shown compute-sanitizer --tool $1 --error-exitcode 9 --print-limit 20 "$here/bin/test_gpu_kernels"
}
memcheck() { sanitizer memcheck; }
racecheck() { sanitizer racecheck; }

bench() {
    command -v python3 >/dev/null || { echo "python3 is not on the path" && return 77; }
    [ -n "$tiny" ] && set -- --cases gpt2-tiny llama-tiny --steps 1 --warmup 1
    shown python3 "$here/bench/gpu.py" --lockstep "$here/bin/lockstep" --python "$(command -v python3)" --json "$out/bench.json" \
        --seconds $((LOCKSTEP_STEP_SECONDS - 5)) "$@"
}

profile() {
    [ -n "$tiny" ] && set -- "$model" || set -- "--model.preset=gpt2-124m --data.seq_len=1024 --train.micro_batch=32" \
        "--model.preset=llama3.2-1b --data.seq_len=4096 --train.micro_batch=4"
    for model; do
        shown lockstep bench train $model --train.accumulate=1 --precision.compute=bf16 --run.device=cuda --run.measure_peak=off \
            --bench.steps=3 --bench.warmup=2 --profile || return 1
    done
}

# ---- running them ----

work=$out/work
model="--model.preset=gpt2-tiny --data.seq_len=32 --train.micro_batch=2 --launch.threads=1"
sizes="--data.seq_len=64 --train.global_batch=4"
if [ -n "$tiny" ]; then
    model="$model --model.layers=1 --model.width=16 --model.heads=2"
    sizes="--data.seq_len=16 --train.global_batch=4 --model.layers=2 --model.width=16 --model.heads=2 --launch.threads=1"
fi
if [ -n "$step" ]; then
    "$step"
    exit
fi

mkdir -p "$out/logs" "$work" || exit 1
out=$(cd "$out" && pwd) work=$out/work
begin=$(date +%s)
exit_code=0
: >"$work/steps.txt"
XDG_CACHE_HOME=$work/cache
TORCHINDUCTOR_CACHE_DIR=$work/inductor
PATH=$here/bin:$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer
PYTHONUNBUFFERED=1
export XDG_CACHE_HOME TORCHINDUCTOR_CACHE_DIR PATH PYTHONUNBUFFERED
# The libraries of the environment of the first python3 on the path, also if that is a script; a driver that the loader does not know.
[ -n "${VIRTUAL_ENV:-}" ] || VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)
export VIRTUAL_ENV
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1 && [ -e /usr/local/nvidia/lib64/libcuda.so.1 ]; then
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi

# Seconds that each step may take at least, even if all use theirs up; together 570.
shares="machine 15|kernels 50|goldens 40|parity 60|layouts 80|comm 15|gemm 15|curve 50|memcheck 45|racecheck 45|bench 125|profile 30"
shares="$shares|all_cases 0"
share_of() { echo "$shares" | tr '|' '\n' | awk -v name=$1 -v seconds=$seconds '$1 == name { print int($2 * seconds / 570) }'; }
# Seconds reserved for the steps after this one.
reserved_after() {
    echo "$shares" | tr '|' '\n' | awk -v name=$1 -v only=" $only " -v seconds=$seconds '
        after && (only == "  " || index(only, " " $1 " ")) { sum += int($2 * seconds / 570) }
        $1 == name { after = 1 }
        END { print sum + 0 }'
}

json_text() { printf '%s' "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g'; }

write_summary() {
    {
        printf '{"version": "%s", "gpu": "%s", "seconds": %s, "limit": %s, "steps": [' "$(json_text "$(cat "$here/version.txt")")" \
            "$(json_text "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)")" $(($(date +%s) - begin)) $seconds
        awk '{ printf "%s\n  %s", NR == 1 ? "" : ",", $0 } END { print "\n]}" }' "$work/steps.txt"
    } >"$out/summary.json"
    tar -C "$out" --exclude=./results.tar.gz --exclude=./work -czf "$work/results.tar.gz" . && mv "$work/results.tar.gz" "$out/"
}

# say NAME VERDICT RC SECONDS TEXT
say() {
    printf '%-10s %-8s %4s s  %s\n' "$1" "$2" "$4" "$5" | tee -a "$out/summary.txt"
    printf '{"name": "%s", "verdict": "%s", "rc": %s, "seconds": %s, "said": "%s"}\n' "$1" "$2" "$3" "$4" "$(json_text "$5")" \
        >>"$work/steps.txt"
    write_summary
}

# step NAME: the function of that name, in a process that can be stopped; its output is its log. Exit code 77: the last line says why it
# was skipped.
step() {
    case " $only " in "  " | *" $1 "*) ;; *) return ;; esac
    left=$((seconds - ($(date +%s) - begin)))
    most=$((left - $(reserved_after $1)))
    if [ $most -lt 5 ]; then
        say $1 "no time" null 0 "$left s were left"
        return
    fi
    at=$(date +%s) log=$out/logs/$1.txt
    LOCKSTEP_STEP_SECONDS=$most timeout -k 5 $most sh "$here/run.sh" ${tiny:+--tiny} --step $1 "$out" >"$log" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - at)) said=$(grep . "$log" | tail -n 1)
    case $code in
    0) say $1 passed 0 $took "$said" ;;
    77) say $1 skipped 77 $took "$said" ;;
    124 | 137) say $1 stopped $code $took "after $most s: $said" ;;
    *) say $1 failed $code $took "$said" ;;
    esac
    case $code in 0 | 77) ;; *) exit_code=1 ;; esac
}

: >"$out/summary.txt"
for name in $(echo "$shares" | tr '|' '\n' | cut -d ' ' -f 1); do step $name; done
rm -rf "$work"
echo "$(($(date +%s) - begin)) s; the results are in $out"
exit $exit_code
