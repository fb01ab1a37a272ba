#!/bin/sh
# run.sh [--seconds N] [--only "STEP ..."] [--tiny] [RESULTS] - tests lockstep on this machine's GPU, in at most N seconds (570), and
# writes the results to the folder RESULTS (results/ beside this script).
#
# The most important steps come first. Each has a share of the time, scaled to --seconds and the chosen steps, and may also use the time
# that earlier steps left over. A step that fails does not stop the others, nor does a command of a step; what hangs is stopped. A step
# without time left is listed as such.
#
#   machine     the GPU, the driver, the processor; a step on one rank and on two ranks of the GPU; the files of the libraries loaded
#   profile     real models: the time of a step, and where it goes, by operation
#   kernels     every CUDA kernel against its reference, small cases, each op in a process of its own
#   goldens     ten steps of small models and the optimizers against numbers that PyTorch wrote
#   parity      cpu and cuda compute the same step, for each model and type
#   layouts     2 and 4 ranks on the GPU compute the step of one rank
#   bench       training steps compared with PyTorch's (bench/gpu.py): speed, MFU, memory
#   memcheck    lockstep's own kernels under compute-sanitizer's memcheck, the largest small cases
#   curve       a run on real text: losses on cuda and on the cpu
#   racecheck   as memcheck, under its racecheck
#   comm        collectives of 2 ranks on the GPU: results and times
#   gemm        matmuls by shape and type
#   all_cases   every case of the kernel tests, in the remaining time
#
# RESULTS has three files. They are replaced while the steps run, so that a run that is ended leaves what it has found.
#   summary.txt     a line per step: verdict, seconds, the last line of its log; below it warnings and, if it did not pass, what its log
#                   says about that
#   summary.json    of each step name, rc, seconds, verdict, said
#   results.tar.gz  these two; logs/STEP.txt; logs/STEP/OP.txt of steps that test kernels; curve.json; bench.json; gpu.csv: clock, power,
#                   temperature and memory of the GPU in each second; torch.txt: the version of PyTorch
#
# Libraries of NVIDIA in the environment of the first python3 on the path are preferred to those of the system, so that lockstep and PyTorch
# use the same. The exit code is 1 if a step failed or was stopped. --tiny: the smallest sizes, to test this script.
set -u
here=$(cd "$(dirname "$0")" && pwd)
seconds=570 only= tiny= out=$here/results step=
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --tiny) tiny=1 && shift ;;
    --step) step=$2 && shift 2 ;; # a function of this script with its arguments, called by step(), which can stop it; RESULTS: its work
    -*) echo "run.sh: unknown option $1; use --seconds N, --only \"STEP ...\" or --tiny" >&2 && exit 2 ;;
    *) out=$1 && shift ;;
    esac
done
case $seconds in '' | *[!0-9]*) echo "run.sh: --seconds is not a number: '$seconds'" >&2 && exit 2 ;; esac

# ---- the steps ----

# limited COMMAND...: stops it after two thirds of the seconds that the step has left (whole=1: all of them), so that one that hangs leaves
# time for the others. It is asked to end first, and can say what it was doing.
whole=${LOCKSTEP_WHOLE:-} limited_child=
limited() {
    limit=$((LOCKSTEP_STEP_END - $(date +%s) - 4))
    [ -n "$whole" ] || limit=$((limit * 2 / 3))
    [ $limit -ge 1 ] || { echo "no time is left for it" && return 124; }
    timeout -k 2 $limit "$@" &
    limited_child=$!
    wait $limited_child
    limited_code=$?
    limited_child=
    case $limited_code in 124 | 137) echo "stopped after $limit s" ;; esac
    return $limited_code
}

# The same; the log has the command's line.
shown() { echo "== $*" && limited "$@"; }

machine() {
    failed=0
    cat "$here/version.txt"
    limited nvidia-smi || { echo "nvidia-smi failed" && failed=1; }
    lscpu | grep -E 'Model name|^CPU\(s\)'
    grep MemTotal /proc/meminfo
    ldd --version 2>&1 | head -n 1
    for tool in compute-sanitizer nvcc python3; do command -v $tool || echo "$tool was not found"; done
    for ranks in 1 2; do
        share=
        [ $ranks -eq 1 ] || share="--train.global_batch=4 --launch.share_gpus --launch.timeout=20"
        rm -rf "$work/run"
        shown lockstep train -n $ranks $share $model --data.text="$here/text.txt" --train.steps=1 --train.eval_every=0 \
            --log.tensorboard=false --run.measure_peak=off --run.device=cuda --run.dir="$work/run" || failed=1
    done
    echo "== libraries"
    rm -f "$work"/loaded.*
    limited env LD_DEBUG=files LD_DEBUG_OUTPUT="$work/loaded" lockstep bench train $model --precision.compute=bf16 --run.device=cuda \
        --run.measure_peak=off --bench.steps=1 --bench.warmup=0 >/dev/null 2>&1
    cat "$work"/loaded.* 2>/dev/null | sed -n 's/.*calling init: //p' | grep -E 'cublas|cudnn|nvrtc|nccl|libcuda|stdc|lockstep' | sort -u
    [ $failed -ne 0 ] || limited nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    return $failed
}

# by_op [TOOL...]: the tests of kernels under the tool, each op in a process of its own: one that fails or hangs hides no other. They print
# their lines as they end.
by_op() {
    limited test_gpu_kernels --ops >"$work/ops.txt" 2>"$work/ops.err" || { code=$? && cat "$work/ops.txt" "$work/ops.err" && return $code; }
    [ -z "$tiny" ] || printf '%s\n' layer_norm softmax >"$work/ops.txt"
    processes=$(nproc)
    : >"$work/failed.txt"
    mkdir -p "$work/results/logs/$LOCKSTEP_STEP"
    LOCKSTEP_TOOL=$*
    export LOCKSTEP_TOOL
    xargs -P $((processes < 8 ? processes : 8)) -n 1 sh -c 'exec sh "$0/run.sh" --step "one_op $2" "$1"' "$here" "$work" <"$work/ops.txt"
    code=$?
    echo "$(wc -l <"$work/ops.txt") ops; failed: $(sort "$work/failed.txt" | tr '\n' ' ' | grep . || echo none)"
    return $code
}

one_op() { # OP
    log=$work/results/logs/$LOCKSTEP_STEP/$1.txt
    LOCKSTEP_OP=$1
    export LOCKSTEP_OP
    limited $LOCKSTEP_TOOL "$here/bin/test_gpu_kernels" >"$log" 2>&1
    code=$?
    if [ $code -eq 0 ]; then
        echo "$1: $(tail -n 1 "$log")"
        grep -aE "$warnings" "$log" | sort -u | head -n 3 | cut -c 1-250
        return 0
    fi
    echo $1 >>"$work/failed.txt"
    echo "$1: exit code $code: $(grep -aE "$telling" "$log" | head -n 3 | cut -c 1-250 | tr '\n' ';')"
    return 1
}

kernels() { by_op; }

all_cases() {
    LOCKSTEP_WHOLE=1 LOCKSTEP_MATRIX=full
    export LOCKSTEP_WHOLE LOCKSTEP_MATRIX
    by_op
}

goldens() {
    whole=1
    LOCKSTEP_DEVICE=cuda LOCKSTEP_TESTS=$here/tests
    export LOCKSTEP_DEVICE LOCKSTEP_TESTS
    limited test_golden ${tiny:+sgd}
}

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
        compare --a run.device=cuda --b "run.device=cuda launch.share_gpus=true launch.timeout=20 launch.comm=$1 $layout" \
            --model.preset=$model --precision.compute=$type $sizes </dev/null
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
    failed=0
    for by in ipc host; do
        for op in all_reduce reduce_scatter all_to_all sendrecv; do
            shown lockstep bench comm -n 2 --op $op --run.device=cuda --launch.share_gpus --launch.comm=$by --launch.timeout=20 -b 1K \
                -f 64 -e $([ -z "$tiny" ] && echo 64M || echo 4K) --iterations $([ -z "$tiny" ] && echo 20 || echo 2) || failed=1
        done
    done
    return $failed
}

# Shapes of GPT-2 124M and Llama 3.2 1B, then the usual ones.
gemm() {
    failed=0
    for shape in "--m 32768 --n 3072 --k 768" "--m 8192 --n 8192 --k 2048" ""; do
        [ -z "$tiny" ] || shape="--m 8 --n 24 --k 16"
        shown lockstep bench gemm --run.device=cuda $shape || failed=1
    done
    return $failed
}

# curve_of NAME MOST STEPS OPTIONS...: the losses of both devices, in curve_NAME.txt; they may differ by at most MOST of the loss.
curve_of() {
    name=$1 most=$2 steps=$3
    shift 3
    for device in cuda cpu; do
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
    done | awk '{ printf "%s%s", NR == 1 ? "{" : ",\n ", $0 } END { print NR ? "}" : "{}" }' >"$work/results/curve.json"
    return $failed
}

sanitizer() {
    command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on the path" && return 77; }
    LOCKSTEP_OWN=1 LOCKSTEP_CASES=8
    export LOCKSTEP_OWN LOCKSTEP_CASES
    # lockstep looks at the status of each call itself; libraries ask the driver for functions that it may not have.
    by_op compute-sanitizer --tool $1 --error-exitcode 9 --print-limit 20 --report-api-errors no
}
memcheck() { sanitizer memcheck; }
racecheck() { sanitizer racecheck; }

bench() {
    command -v python3 >/dev/null || { echo "python3 is not on the path" && return 77; }
    whole=1
    [ -n "$tiny" ] && set -- --cases gpt2-tiny llama-tiny --steps 1 --warmup 1
    shown python3 "$here/bench/gpu.py" --lockstep "$here/bin/lockstep" --python "$(command -v python3)" \
        --json "$work/results/bench.json" --seconds $((LOCKSTEP_STEP_SECONDS - 8)) "$@"
}

# Each model first as it runs, because a profile launches operations one by one and waits for each.
profile() {
    failed=0
    [ -n "$tiny" ] && set -- "$model" || set -- "--model.preset=gpt2-124m --data.seq_len=1024 --train.micro_batch=32" \
        "--model.preset=llama3.2-1b --data.seq_len=4096 --train.micro_batch=4"
    for model; do
        for flag in "" --profile; do
            shown lockstep bench train $model --train.accumulate=1 --precision.compute=bf16 --optim.clip=0 --run.device=cuda \
                --run.measure_peak=off --bench.steps=3 --bench.warmup=3 $flag || failed=1
        done
    done
    return $failed
}

# ---- running them ----

# Lines of a log that tell why a step did not pass; of any step.
warnings="arning: |^cuda: |own kernel|kernel of its own"
telling='rror|ERROR|arning|FAIL|HAZARD|hazard|exit code|ended during|off by|differ|refused|stopped|not found|no time'
model="--model.preset=gpt2-tiny --data.seq_len=32 --train.micro_batch=2 --launch.threads=1"
sizes="--data.seq_len=64 --train.global_batch=4"
if [ -n "$tiny" ]; then
    model="$model --model.layers=1 --model.width=16 --model.heads=2"
    sizes="--data.seq_len=16 --train.global_batch=4 --model.layers=2 --model.width=16 --model.heads=2 --launch.threads=1"
fi
if [ -n "$step" ]; then
    work=$out
    trap '[ -z "$limited_child" ] || kill $limited_child; exit 1' TERM
    $step
    exit
fi

# Seconds that each step may take at least, in the order in which they run; together 570.
shares="machine 45|profile 60|kernels 60|goldens 40|parity 45|layouts 75|bench 140|memcheck 45|curve 20|racecheck 20|comm 10|gemm 10"
shares="$shares|all_cases 0"
for name in $only; do
    case "|$shares" in *"|$name "*) ;; *) echo "run.sh: --only: there is no step '$name'" >&2 && exit 2 ;; esac
done

mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
work=$(mktemp -d) || exit 1
mkdir -p "$work/results/logs"
begin=$(date +%s)
exit_code=0
: >"$work/steps.txt"
: >"$work/results/summary.txt"
XDG_CACHE_HOME=$work/cache
TORCHINDUCTOR_CACHE_DIR=$work/inductor
PATH=$here/bin:$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer
PYTHONUNBUFFERED=1
export XDG_CACHE_HOME TORCHINDUCTOR_CACHE_DIR PATH PYTHONUNBUFFERED
# The libraries of the environment of the first python3 on the path, also if that is a script; a driver that the loader does not know.
[ -n "${VIRTUAL_ENV:-}" ] || VIRTUAL_ENV=$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
for folder in "$VIRTUAL_ENV"/lib/python3*/site-packages/nvidia/*/lib; do
    [ ! -d "$folder" ] || LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1 && [ -e /usr/local/nvidia/lib64/libcuda.so.1 ]; then
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
[ -z "$LD_LIBRARY_PATH" ] && unset LD_LIBRARY_PATH || export LD_LIBRARY_PATH
export VIRTUAL_ENV

# archive NAME: makes results.tar.gz; logs may grow meanwhile. NAME: that of one of two processes that do so.
archive() {
    tar -C "$work/results" -czf "$out/.$1" . 2>/dev/null
    [ $? -gt 1 ] || mv "$out/.$1" "$out/results.tar.gz"
}

finish() {
    kill $helpers $child 2>/dev/null
    wait $archiver $child 2>/dev/null
    rm -f "$out/.live"
    archive last
    rm -rf "$work"
}

# Beside the steps: a client that stays, so that the driver initializes the GPU once; what takes long when its files are not in memory; the
# archive of the step that runs.
nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu,memory.used --format=csv,noheader -lms 1000 \
    >"$work/results/gpu.csv" 2>/dev/null </dev/null &
helpers=$!
python3 -c 'import sys; print("python", sys.version.split()[0], sys.prefix)
import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)' >"$work/results/torch.txt" 2>&1 </dev/null &
helpers="$helpers $!"
while sleep 5; do archive live; done >/dev/null 2>&1 </dev/null &
archiver=$!
helpers="$helpers $archiver"
child=
trap finish EXIT
trap 'exit 1' INT TERM HUP
gpu=$(timeout -k 2 20 nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)

# Seconds reserved for the steps after this one, of those that were chosen.
reserved_after() {
    echo "$shares" | tr '|' '\n' | awk -v name=$1 -v only=" $only " -v seconds=$seconds '
        only == "  " || index(only, " " $1 " ") { all += $2; if (after) sum += $2; if ($1 == name) after = 1 }
        END { print all ? int(sum * seconds / all) : 0 }'
}

json_text() { printf '%s' "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g'; }

write_summary() {
    {
        printf '{"version": "%s", "gpu": "%s", "seconds": %s, "limit": %s, "steps": [' "$(json_text "$(cat "$here/version.txt")")" \
            "$(json_text "$gpu")" $(($(date +%s) - begin)) $seconds
        awk '{ printf "%s\n  %s", NR == 1 ? "" : ",", $0 } END { print "\n]}" }' "$work/steps.txt"
    } >"$work/results/summary.json"
    for file in summary.txt summary.json; do cp "$work/results/$file" "$out/.$file" && mv "$out/.$file" "$out/$file"; done
    archive step
}

# say NAME VERDICT RC SECONDS TEXT [LINES LOG]
say() {
    {
        printf '%-10s %-8s %4s s  %s\n' "$1" "$2" "$4" "$5"
        [ -z "${6:-}" ] || grep -aE "$6" "$7" | head -n 20 | cut -c 1-300 | sed 's/^/    /'
    } | tee -a "$work/results/summary.txt"
    printf '{"name": "%s", "verdict": "%s", "rc": %s, "seconds": %s, "said": "%s"}\n' "$1" "$2" "$3" "$4" "$(json_text "$5")" \
        >>"$work/steps.txt"
    write_summary
}

# step NAME: the function of that name, in a process that can be stopped; its output is its log. Exit code 77: the last line says why it
# was skipped. What is started by limited() ends before the step must.
step() {
    case " $only " in "  " | *" $1 "*) ;; *) return ;; esac
    left=$((seconds - ($(date +%s) - begin)))
    most=$((left - $(reserved_after $1)))
    if [ $most -lt 5 ]; then
        say $1 "no time" null 0 "$left s were left"
        return
    fi
    at=$(date +%s) log=$work/results/logs/$1.txt
    LOCKSTEP_STEP=$1 LOCKSTEP_STEP_SECONDS=$most LOCKSTEP_STEP_END=$((at + most)) \
        timeout -s KILL $most sh "$here/run.sh" ${tiny:+--tiny} --step $1 "$work" >"$log" 2>&1 </dev/null &
    child=$!
    wait $child # which a signal ends
    code=$?
    child=
    took=$(($(date +%s) - at)) said=$(grep -a . "$log" | tail -n 1 | cut -c 1-300)
    case $code in
    0) say $1 passed 0 $took "$said" "$warnings" "$log" ;;
    77) say $1 skipped 77 $took "$said" ;;
    124 | 137) say $1 stopped $code $took "after $took s: $said" "$telling" "$log" ;;
    *) say $1 failed $code $took "$said" "$telling" "$log" ;;
    esac
    case $code in 0 | 77) ;; *) exit_code=1 ;; esac
}

for name in $(echo "$shares" | tr '|' '\n' | cut -d ' ' -f 1); do step $name; done
echo "$(($(date +%s) - begin)) s; the results are in $out"
exit $exit_code
