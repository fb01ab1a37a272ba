#!/bin/sh
# test_gpu_bundle.sh LOCKSTEP TESTS - run.sh of the GPU bundle (tools/gpu_bundle_run.sh) on the stub of the CUDA runtime, with the smallest
# sizes: every step's commands are right and its verdict is in both summaries; a failed step does not stop the others; steps without time
# left are listed.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub
LOCKSTEP_CUDA_STUB=gpus=1
export LOCKSTEP_CUDA_STUB
steps="machine kernels goldens parity layouts comm gemm curve memcheck racecheck bench profile all_cases"

"$2/../tools/gpu_bundle.sh" --link "${lockstep%/*}" "$work/bundle" || bad "the bundle was not packed"
# Programs that a machine with a GPU has in addition. A python3 without torch, even if this machine's has it.
mkdir tools nowhere
cat >tools/nvidia-smi <<'END'
#!/bin/sh
case "$*" in *-lms*) echo 100; exec sleep 600 ;; *memory.total*) echo "stub GPU 0, 580.00, 1024 MiB" ;; *) echo "stub GPU 0" ;; esac
END
cat >tools/compute-sanitizer <<'END'
#!/bin/sh
[ "$1 $3 $5" = "--tool --error-exitcode --print-limit" ] || exit 2
[ "$2" != racecheck ] || { echo "RACECHECK SUMMARY: 1 hazard"; exit $4; }
shift 6
"$@"
END
cat >tools/python3 <<END
#!/bin/sh
exec $(command -v python3 || echo false) -S "\$@"
END
chmod +x tools/*
PATH=$work/tools:$PATH
export PATH

values() { tr -d '\n' <"$1" | json "$2"; } # of JSON over several lines

sh bundle/run.sh --tiny --seconds 30000 results >out.txt 2>&1
code=$?
[ $code -eq 1 ] || bad "exit code $code: $(cat out.txt)"
for step in $steps; do
    verdict=passed
    [ $step != racecheck ] || verdict=failed
    grep -q "^$step  *$verdict " results/summary.txt ||
        bad "$step: $(grep "^$step " results/summary.txt): $(tail -n 20 results/logs/$step.txt)"
done
[ "$(values results/summary.json 'steps[].name' | tr '\n' ' ')" = "$steps " ] || bad "summary.json: $(cat results/summary.json)"
[ "$(values results/summary.json gpu)" = "stub GPU 0" ] || bad "summary.json: $(cat results/summary.json)"
[ "$(values results/summary.json 'steps[].rc' | grep -cx 9)" -eq 1 ] || bad "summary.json has no rc 9: $(cat results/summary.json)"

# ---- verdicts and output of the steps ----
said() { grep -q "$2" results/logs/$1.txt || bad "$1 does not say '$2': $(cat results/logs/$1.txt)"; }
said machine "^collectives CUDA IPC, which took .*: NCCL was not found"
said goldens "PASSED.* 1 test"
said parity "^2 equal, 0 different"
said layouts "^4 equal, 0 different"
said layouts "parallel.pp=2 parallel.dp=2 parallel.ep=2"
said comm "reduce_scatter of 2 ranks over CUDA IPC"
said comm "sendrecv of 2 ranks over shm, staged through the host"
said gemm "cublaslt .* cuda "
said curve "^fp32: 2 steps, last loss [0-9.]* on cpu, [0-9.]* on cuda"
[ "$(values results/curve.json 'bf16.step[]' | wc -w)" -gt 0 ] || bad "curve.json: $(cat results/curve.json)"
said bench "skipped: ModuleNotFoundError: No module named 'torch'"
[ "$(values results/bench.json 'rows[].status' | tr '\n' ' ')" = "ok skipped ok ok skipped ok " ] ||
    bad "bench.json: $(cat results/bench.json)"
said profile "^linear_dw_bias .*cublaslt"
tar -tzf results/results.tar.gz | grep -q logs/goldens.txt || bad "results.tar.gz lacks a log"
[ ! -e results/work ] || bad "run.sh leaves its work"

# ---- no time, and no GPU ----
sh bundle/run.sh --tiny --seconds 4 late >out.txt 2>&1 || bad "without time: exit code $?: $(cat out.txt)"
[ "$(grep -c 'no time' late/summary.txt)" -eq 13 ] || bad "without time: $(cat late/summary.txt)"
LOCKSTEP_CUDA_STUB=gpus=0
sh bundle/run.sh --only "kernels bench" none >out.txt 2>&1 || bad "without a GPU: exit code $?: $(cat out.txt)"
[ "$(grep -c 'skipped.*there is no GPU' none/summary.txt)" -eq 2 ] || bad "without a GPU: $(cat none/summary.txt)"

[ $failures -eq 0 ]
