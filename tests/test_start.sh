#!/bin/sh
# test_start.sh LOCKSTEP TESTS - a run before its first step: the peak that MFU refers to is measured once and cached.
lockstep=$1
. "$2/script.sh"
XDG_CACHE_HOME=$work/cache
export XDG_CACHE_HOME
tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 --train.micro_batch=2 --train.steps=2
    --train.eval_batches=1 --launch.threads=1 --precision.compute=fp32"

# train CODE OPTIONS...: leaves out.txt and err.txt
train() {
    wanted=$1
    shift
    "$lockstep" train $tiny "$@" >out.txt 2>err.txt
    code=$?
    [ $code -eq "$wanted" ] || bad "train $*: exit $code instead of $wanted: $(cat out.txt err.txt)"
}

# ---- the peak: one measurement per machine ----

train 0 --run.dir=first
grep -q "peak: .* measured now, $work/cache/lockstep/peak-" first/log/rank_0000.log ||
    bad "the first start does not measure: $(cat first/log/*)"
grep -q "^peak .* cached in $work/cache/lockstep/peak-" out.txt || bad "the report does not say where the peak is cached: $(cat out.txt)"
grep -q " at .* GFLOP/s (measured now)" out.txt || bad "no speed at the start: $(cat out.txt)"
train 0 --run.dir=second
grep -q "peak: .* cached, $work/cache" second/log/rank_0000.log || bad "the second start measures: $(cat second/log/*)"
grep -q "measured now" second/log/rank_0000.log out.txt && bad "the second start measures: $(cat second/log/* out.txt)"
peak() { sed -n 's/.*peak: \([0-9.]*\) GFLOP.*/\1/p' "$1/log/rank_0000.log"; }
[ -n "$(peak first)" ] && [ "$(peak first)" = "$(peak second)" ] || bad "another peak: $(peak first), $(peak second)"
# The matrices of the measurement do not count against the memory limit: 80 MiB of them, and a run of some MiB.
train 0 --run.dir=again --run.measure_peak=again --run.memory_limit=16MiB
grep -q "measured now" again/log/rank_0000.log || bad "--run.measure_peak=again does not measure"
train 0 --run.dir=off --run.measure_peak=off
grep -q "MFU\|GFLOP/s\|mfu" out.txt && bad "--run.measure_peak=off: $(cat out.txt)"
has mfu null <off/metrics.jsonl || bad "--run.measure_peak=off: $(cat off/metrics.jsonl)"
for file in cache/lockstep/peak-*; do echo garbage >"$file"; done
train 0 --run.dir=damaged
grep -q "the cache was not used: .*not JSON" damaged/log/rank_0000.log || bad "a damaged cache: $(cat damaged/log/*)"
[ -s err.txt ] && bad "a damaged cache is no warning: $(cat err.txt)"
train 0 --run.dir=whole
grep -q ", cached" whole/log/rank_0000.log || bad "a damaged cache is not replaced: $(cat whole/log/*)"

# Layouts on the same processors have the same peak, measured on all of them whatever the ranks are bound to.
if [ "$(sed -n 's/.* on [0-9]* of \([0-9]*\) processors.*/\1/p' first/log/rank_0000.log)" -ge 2 ]; then
    "$lockstep" train $tiny -n 2 --run.dir=ranks >out.txt 2>err.txt || bad "two ranks: $(cat err.txt)"
    "$lockstep" train $tiny --launch.threads=2 --run.dir=threads >out.txt 2>err.txt || bad "two threads: $(cat err.txt)"
    grep -q " 2 of " ranks/log/rank_0000.log && [ "$(peak ranks)" = "$(peak threads)" ] ||
        bad "peaks differ: $(cat ranks/log/* threads/log/*)"
fi

# ---- the folders are tried before anything is trained ----

# refused WORDS OPTIONS...: one line with these words, exit code 1, and no step
refused() {
    words=$1
    shift
    train 1 --run.measure_peak=off "$@"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$*: not one line: $(cat err.txt)"
    grep -q "$words" err.txt || bad "$*: no '$words': $(cat err.txt)"
    grep -q "step .*loss" out.txt && bad "$*: it trained first: $(cat out.txt)"
}
echo x >file
refused "checkpoint.dir: file: cannot make the folder" --run.dir=probed --checkpoint.dir=file/inner/deep
refused "checkpoint.dir: .*/proc/nothing" --run.dir=probed --checkpoint.dir=/proc/nothing
refused "run.dir: .*file" --run.dir=file/run
refused "checkpoint.dir: " --run.dir=probed --checkpoint.dir=/proc/nothing -n 2
refused "checkpoint.dir: /sys/kernel/.*: cannot" --run.dir=probed --checkpoint.dir=/sys/kernel
[ ! -d probed/checkpoints ] || bad "the probe leaves folders: $(ls -R probed)"
train 0 --run.dir=elsewhere --checkpoint.dir=far/away/checkpoints --run.measure_peak=off
[ -d far/away/checkpoints/step_00000002 ] || bad "nothing is saved in checkpoint.dir"
find . -name 'probe.*' | grep -q . && bad "the probe leaves files: $(find . -name 'probe.*')"

# Too little space: a file system of 64 KiB, where one may be mounted.
mkdir small
if mount -t tmpfs -o size=64k tmpfs small 2>/dev/null; then
    refused "checkpoint.dir: .*not enough space for a checkpoint: .* needed, 64.0 KiB free" --run.dir=probed \
        --checkpoint.dir=small/new/checkpoints
    [ -z "$(ls -A small)" ] || bad "the probe leaves folders: $(ls -AR small)"
    umount small
else
    say "skipped: no file system may be mounted here, so none is too small"
fi

# ---- out of memory: a failure of any allocation of the start ends the run ----

nth=1
while [ $nth -le 60 ]; do
    rm -rf starved
    "$lockstep" train $tiny --run.dir=starved --debug.fail_alloc=$nth >out.txt 2>err.txt
    [ $? -eq 1 ] || bad "allocation $nth of the start fails and is not reported: $(cat err.txt)"
    grep -q "memory" err.txt || bad "allocation $nth of the start fails: $(cat err.txt)"
    nth=$((nth + 1))
done

[ $failures -eq 0 ] && say "start: all is well"
[ $failures -eq 0 ]
