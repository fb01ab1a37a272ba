#!/bin/sh
# test_gpu_bundle.sh LOCKSTEP TESTS - run.sh of the GPU bundle (tools/gpu_bundle_run.sh) on the stub of the CUDA runtime, with the smallest
# sizes: every step's commands are right and its verdict is in both summaries; commands and kernels that fail, crash or hang are named and
# do not stop the others; a run that is ended leaves what it has found; steps without time left are listed.
set -u
lockstep=$1
. "$2/script.sh"
. "$2/device_rows.sh"
use_cuda_stub
LOCKSTEP_CUDA_STUB=gpus=1
export LOCKSTEP_CUDA_STUB
steps="machine profile kernels goldens parity layouts bench memcheck curve racecheck comm gemm all_cases"
build=${lockstep%/*}

"$2/../tools/gpu_bundle.sh" --link "$build" "$work/bundle" || bad "the bundle was not packed"
# Training, of which the steps need no more than that it runs, has the cpu's kernels, which are faster than emulated ones.
rm bundle/bin/lockstep
cat >bundle/bin/lockstep <<END
#!/bin/sh
case "\$*" in *--profile* | *"bench gemm "*) ;; *) LOCKSTEP_CUDA_STUB="\$LOCKSTEP_CUDA_STUB kernels=cpu" ;; esac
exec $lockstep "\$@"
END
chmod +x bundle/bin/lockstep
# Programs that a machine with a GPU has in addition. A python3 without torch, even if this machine's has it. A compute-sanitizer that must
# see kernels launched, and of which racecheck finds something in one op.
mkdir tools nowhere
cat >tools/nvidia-smi <<'END'
#!/bin/sh
case "$*" in *-lms*) echo 100; exec sleep 600 ;; *memory.total*) echo "stub GPU 0, 580.00, 1024 MiB" ;; *) echo "stub GPU 0" ;; esac
END
cat >tools/compute-sanitizer <<END
#!/bin/sh
[ "\$1 \$3 \$5 \$7 \$8" = "--tool --error-exitcode --print-limit --report-api-errors no" ] || exit 2
tool=\$2 code=\$4 trace=$work/launches.\$\$
shift 8
LOCKSTEP_CUDA_STUB="gpus=1 trace=\$trace" "\$@" || exit
grep -q '^a launch\$' \$trace || { echo "no kernel was launched"; exit 3; }
[ "\$tool \$LOCKSTEP_OP" != "racecheck softmax" ] || { echo "RACECHECK SUMMARY: 1 hazard"; exit \$code; }
echo "ERROR SUMMARY: 0 errors"
END
cat >tools/python3 <<END
#!/bin/sh
exec $(command -v python3 || echo false) -S "\$@"
END
chmod +x tools/*
PATH=$work/tools:$PATH
export PATH

values() { tr -d '\n' <"$1" | json "$2"; } # of JSON over several lines
unpack() { mkdir "$1/all" && tar -C "$1/all" -xzf "$1/results.tar.gz" || bad "$1: results.tar.gz is not whole"; }
# A copy of the bundle in FOLDER, whose PROGRAM is the script on standard input.
bundle_with() { # FOLDER PROGRAM
    cp -R bundle "$1"
    rm "$1/bin/$2"
    cat >"$1/bin/$2"
    chmod +x "$1/bin/$2"
}

# In folders with a space in their names, and with OP, which must not be replaced by the name of an op.
mv bundle "OP bundle"
mkdir "OP tmp"
TMPDIR="$work/OP tmp" sh "OP bundle/run.sh" --tiny --seconds 30000 results >out.txt 2>&1
code=$?
mv "OP bundle" bundle
[ $code -eq 1 ] || bad "exit code $code: $(cat out.txt)"
[ "$(ls -A results | tr '\n' ' ')" = "results.tar.gz summary.json summary.txt " ] || bad "results: $(ls -A results)"
[ -z "$(ls -A tmp)" ] || bad "run.sh leaves its work: $(ls -A tmp)"
unpack results
cmp -s results/summary.txt results/all/summary.txt || bad "the archive has another summary"
for step in $steps; do
    verdict=passed
    [ $step != racecheck ] || verdict=failed
    grep -q "^$step  *$verdict " results/summary.txt ||
        bad "$step: $(grep "^$step " results/summary.txt): $(tail -n 20 results/all/logs/$step.txt)"
done
[ "$(values results/summary.json 'steps[].name' | tr '\n' ' ')" = "$steps " ] || bad "summary.json: $(cat results/summary.json)"
[ "$(values results/summary.json gpu)" = "stub GPU 0" ] || bad "summary.json: $(cat results/summary.json)"
[ "$(values results/summary.json 'steps[].rc' | grep -vcx 0)" -eq 1 ] || bad "summary.json: $(cat results/summary.json)"
grep -q "^    softmax: exit code 9: RACECHECK SUMMARY: 1 hazard" results/summary.txt || bad "racecheck: $(cat results/summary.txt)"

# ---- output of the steps ----
said() { grep -q "$2" results/all/logs/$1.txt || bad "$1 does not say '$2': $(cat results/all/logs/$1.txt)"; }
said machine "^collectives CUDA IPC, which took .*: NCCL was not found"
said machine "^/.*/lockstep_cuda_stub.so"
said machine "^stub GPU 0, 580.00, 1024 MiB"
said profile "^linear_dw_bias .*cublaslt"
[ "$(grep -c "^step .* s$" results/all/logs/profile.txt)" -eq 1 ] || bad "profile: no step as it runs: $(cat results/all/logs/profile.txt)"
for step in kernels all_cases; do
    said $step "^layer_norm: 1 kernels, [0-9]* cases"
    said $step "^2 ops; failed: none"
done
said goldens "PASSED.* 1 test"
said parity "^2 equal, 0 different"
said layouts "^4 equal, 0 different"
said layouts "parallel.pp=2 parallel.dp=2 parallel.ep=2"
said memcheck "^softmax: ERROR SUMMARY: 0 errors"
said racecheck "^layer_norm: ERROR SUMMARY: 0 errors"
said racecheck "^2 ops; failed: softmax"
said comm "reduce_scatter of 2 ranks over CUDA IPC"
said comm "sendrecv of 2 ranks over shm, staged through the host"
said gemm "cublaslt .* cuda "
said curve "^fp32: 2 steps, last loss [0-9.]* on cpu, [0-9.]* on cuda"
[ "$(values results/all/curve.json 'bf16.step[]' | wc -w)" -gt 0 ] || bad "curve.json: $(cat results/all/curve.json)"
said bench "skipped: ModuleNotFoundError: No module named 'torch'"
[ "$(values results/all/bench.json 'rows[].status' | tr '\n' ' ')" = "ok skipped ok ok skipped ok " ] ||
    bad "bench.json: $(cat results/all/bench.json)"
grep -q 100 results/all/gpu.csv || bad "gpu.csv: $(cat results/all/gpu.csv)"
[ -e results/all/logs/kernels/softmax.txt ] || bad "an op has no log: $(find results/all)"

# ---- what crashes and hangs ----
# A kernel crashes, one of an op whose cases take long: its case is named, and the other op passes.
bundle_with crashing test_gpu_kernels <<END
#!/bin/sh
[ "\${LOCKSTEP_OP:-}" = layer_norm ] || exec $build/test_gpu_kernels "\$@"
LOCKSTEP_OP=attention_grad LOCKSTEP_CUDA_STUB="gpus=1 trace=$work/crash.txt" $build/test_gpu_kernels &
until grep -q '^a launch\$' $work/crash.txt; do sleep 0.01; done 2>/dev/null
kill -ABRT \$!
wait \$!
END
sh crashing/run.sh --tiny --only kernels --seconds 30000 crashed >out.txt 2>&1 && bad "a crash passes: $(cat out.txt)"
unpack crashed
grep -q "^layer_norm: exit code 134: the process ended during attention_grad .* by c" crashed/all/logs/kernels.txt &&
    grep -q "^softmax: 1 kernels" crashed/all/logs/kernels.txt && grep -q "^    layer_norm: exit code 134" crashed/summary.txt ||
    bad "a kernel crashes: $(cat crashed/summary.txt crashed/all/logs/kernels.txt crashed/all/logs/kernels/layer_norm.txt)"

# A collective hangs, and does not end when it is asked to. The other collectives run, and the next step has its own half of the time. No
# time passes, and a command reaches its limit when it hangs.
bundle_with hanging lockstep <<END
#!/bin/sh
case "\$*" in
*"--op all_reduce "*--launch.comm=ipc*)
    trap '' TERM
    echo \$\$ >$work/hanging.txt
    echo "in a collective"
    while :; do sleep 1; done
    ;;
esac
echo "did \$*"
END
mkdir still
printf '#!/bin/sh\necho 1000\n' >still/date
cat >still/timeout <<END
#!/bin/sh
echo "\$*" >>$work/limits.txt
hangs=
case "\$*" in "-k "*"--op all_reduce "*--launch.comm=ipc*) hangs=1 ;; esac
shift 3
[ -n "\$hangs" ] || exec "\$@"
"\$@" &
until [ -s $work/hanging.txt ]; do sleep 0.01; done
kill -TERM \$!
kill -KILL \$!
wait \$!
exit 137
END
chmod +x still/*
PATH=$work/still:$PATH sh hanging/run.sh --tiny --only "comm gemm" --seconds 30 hung >out.txt 2>&1 && bad "a hanging command passes"
unpack hung
grep -q "^comm  *failed" hung/summary.txt && grep -q "^gemm  *passed" hung/summary.txt &&
    grep -q "^    stopped after 7 s" hung/summary.txt && [ "$(grep -c '^did bench comm' hung/all/logs/comm.txt)" -eq 7 ] ||
    bad "a command hangs: $(cat hung/summary.txt hung/all/logs/comm.txt)"
limits() { grep -c -e "^$1" limits.txt; }
[ "$(limits '-s KILL 15 .*--step comm') $(limits '-k 2 7 lockstep bench comm')" = "1 8" ] &&
    [ "$(limits '-s KILL 30 .*--step gemm') $(limits '-k 2 17 lockstep bench gemm')" = "1 3" ] || bad "limits: $(cat limits.txt)"
wait_until is_gone "$(cat hanging.txt)"

# A run that is ended leaves the log of the step that runs, and nothing else.
rm -f hanging.txt
sh hanging/run.sh --tiny --only "gemm comm" --seconds 30000 ended >out.txt 2>&1 &
run=$!
has_log() { tar -xOzf ended/results.tar.gz ./logs/comm.txt 2>/dev/null | grep -q "in a collective"; }
wait_until has_log
kill -TERM $run
wait $run
[ $? -eq 1 ] && has_log || bad "a run is ended: $(cat out.txt)"
wait_until is_gone "$(cat hanging.txt)"
[ -z "$(ls -A tmp)" ] && [ "$(ls -A ended | tr '\n' ' ')" = "results.tar.gz " ] || bad "a run that is ended leaves $(ls -A tmp ended)"

# What runs on lockstep's own kernels instead of a library's is in the summary.
LOCKSTEP_CUDA_STUB="gpus=1 cudnn=0 algorithms=0" sh bundle/run.sh --tiny --only "profile" --seconds 30000 own >out.txt 2>&1 ||
    bad "without cuDNN: exit code $?: $(cat out.txt)"
grep -q "^    cuda: libcudnn.so.9 was not found; attention and convolutions run on lockstep's own kernels" own/summary.txt &&
    grep -q "^    cuda: cuBLASLt .* has no algorithm for .*; lockstep's own kernel is used" own/summary.txt ||
    bad "own kernels are not in the summary: $(cat own/summary.txt)"
for algorithms in 0 1; do
    LOCKSTEP_CUDA_STUB="gpus=1 algorithms=$algorithms" "$lockstep" bench gemm --run.device=cuda --m 8 --n 24 --k 16 >out.txt 2>&1 ||
        bad "bench gemm: $(cat out.txt)"
    grep -q cublaslt out.txt
    [ $? -ne $algorithms ] || bad "bench gemm with algorithms=$algorithms names another kernel than the one that ran: $(cat out.txt)"
done
sh bundle/run.sh --tiny --only "gemm kernel" own2 >out.txt 2>&1
[ $? -eq 2 ] && grep -qx "run.sh: --only: there is no step 'kernel'" out.txt && ! [ -e own2 ] || bad "an unknown step: $(cat out.txt)"

# ---- no time, and no GPU ----
sh bundle/run.sh --tiny --seconds 4 late >out.txt 2>&1 || bad "without time: exit code $?: $(cat out.txt)"
[ "$(grep -c 'no time' late/summary.txt)" -eq 13 ] || bad "without time: $(cat late/summary.txt)"
LOCKSTEP_CUDA_STUB=gpus=0
sh bundle/run.sh --only "kernels bench" none >out.txt 2>&1 || bad "without a GPU: exit code $?: $(cat out.txt)"
[ "$(grep -c 'skipped.*there is no GPU' none/summary.txt)" -eq 2 ] || bad "without a GPU: $(cat none/summary.txt)"

[ $failures -eq 0 ]
