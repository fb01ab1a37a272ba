#!/bin/sh
# test_onednn_module.sh LOCKSTEP TESTS - the oneDNN module: programs do not depend on oneDNN, a run that does not need it does not load it,
# and without a usable module oneDNN's rows accept nothing; if that costs speed (AMX), one line says why. A build without oneDNN has no such
# rows, and its command names none.
set -u
lockstep=$1
. "$2/script.sh"
build=${lockstep%/*}
module=$build/lockstep_onednn.so
gemm="bench gemm --m 64 --n 64 --k 64 --launch.threads=1"
kernels() { "$@" $gemm --json 2>err.txt | json '[].kernel' | sort -u | tr '\n' ' '; }

# Without oneDNN in the build no command shows it: not a module that lies beside the command, and no column.
if grep -qx 'ONEDNN:BOOL=OFF' "$build/CMakeCache.txt"; then
    expect 0 "onednn      this lockstep was built without it" version
    mkdir beside
    cp "$lockstep" beside/
    echo "another's" >beside/lockstep_onednn.so
    [ "$(beside/lockstep version --json | json onednn)" = none ] || bad "version names a module: $(beside/lockstep version --json)"
    expect 0 "" $gemm
    grep -q onednn out.txt && bad "bench gemm has a column for oneDNN: $(cat out.txt)"
    [ "$(sed -n 2p out.txt | wc -w)" -eq 5 ] || bad "bench gemm has other columns than m, n, k, f32 and bf16: $(cat out.txt)"
    kernels "$lockstep" | grep -q '[a-z]' || bad "bench gemm timed nothing: $(cat err.txt)"
    exit $((failures > 0))
fi
[ -f "$module" ] || { echo "skipped: oneDNN is not installed, so its module was not built"; exit 77; }

for program in "$lockstep" "$build/liblockstep.so"; do
    ldd "$program" | grep -E 'dnnl|gomp' && bad "$program depends on oneDNN"
done
ldd "$module" | grep -q libdnnl || bad "the module does not depend on oneDNN"
isa=$("$lockstep" version --json | json isa)
[ "$("$lockstep" version --json | json onednn)" = "$module" ] || bad "version: $("$lockstep" version --json)"

kernels "$lockstep" | grep -q onednn || bad "bench gemm does not use the module: $("$lockstep" $gemm)"

# A step whose matmuls are all computed by our tiles does not need oneDNN.
steps="train --data.text=text.txt --data.seq_len=16 --model.preset=gpt2-tiny --train.steps=1 --train.global_batch=2 --launch.threads=1
       --run.measure_peak=off --log.tensorboard=false --run.device=cpu --run.dir=run"
if [ "$isa" != any ] && [ "$isa" != amx ]; then
    LD_DEBUG=files LD_DEBUG_OUTPUT=loaded "$lockstep" $(echo $steps) >out.txt 2>&1 || bad "train: $(cat out.txt)"
    grep -q libjansson loaded.* || bad "the loader said nothing"
    grep -l dnnl loaded.* && bad "train loaded oneDNN"
fi

# WORDS: the line's words about a folder's module.
absent() {
    (cd "$1" && ./test_onednn_threads absent) >out.txt 2>err.txt ||
        bad "$1: rows of oneDNN accept calls, or it failed: $(cat out.txt err.txt)"
    [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF "$2" err.txt || bad "$1: not one line that says '$2': $(cat err.txt)"
    case $(kernels "$1/lockstep") in *onednn*|'') bad "$1: bench gemm: $(cat err.txt)" ;; esac
}
for folder in none broken other; do
    mkdir $folder
    cp "$lockstep" "$build/test_onednn_threads" $folder/
done
absent none "(AMX): lockstep_onednn.so is neither in $work/none nor in "
[ "$isa" = amx ] || [ ! -s err.txt ] || bad "bench gemm without the module, and without AMX, says: $(cat err.txt)"
echo "not a library" >broken/lockstep_onednn.so
absent broken "(AMX): $work/broken/lockstep_onednn.so: file too short; install oneDNN 2 (Debian: libdnnl2)"
if [ -f "$build/lockstep_cuda_stub.so" ]; then
    cp "$build/lockstep_cuda_stub.so" other/lockstep_onednn.so
    absent other "oneDNN is not used: $work/other/lockstep_onednn.so belongs to another version of lockstep; build both together"
fi

[ $failures -eq 0 ] || exit 1
