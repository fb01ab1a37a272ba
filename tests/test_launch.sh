#!/bin/sh
# test_launch.sh LOCKSTEP TESTS - a training run under the launcher: ranks that are killed or stopped, signals, output, nothing left
# behind.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 --train.micro_batch=2 --train.global_batch=12
      --optim.warmup=5 --train.eval_every=0 --train.eval_batches=2 --launch.threads=1 --precision.compute=fp32
      --run.measure_peak=off"

# start RUN OPTIONS...: starts three ranks that train without end; returns after their first steps.
start() {
    run=$1
    shift
    new_clock
    $clocked "$lockstep" train -n 3 $tiny --train.steps=1000000 --run.dir="$run" "$@" >out.txt 2>err.txt &
    launcher=$!
    wait_lines "$run/metrics.jsonl" 3
}

# ended CODE LINE: checks the launcher's exit code and its one line on standard error, and that no process or file is left.
ended() {
    wait $launcher
    got=$?
    [ $got -eq "$1" ] || bad "$run: exit $got, not $1: $(cat err.txt)"
    case "$(tail -n 1 err.txt)" in "$2"*) ;; *) false ;; esac || bad "$run: not '$2' but: $(cat err.txt)"
    [ "$1" -eq 0 ] || [ "$(wc -l <err.txt)" -eq 1 ] || bad "$run: $(wc -l <err.txt) lines: $(cat err.txt)"
    gone
}

nothing_runs() {
    left=$(for file in $(grep -l "[r]un.dir=$run" /proc/[0-9]*/cmdline 2>/dev/null); do
        [ "$(readlink "${file%/cmdline}/cwd")" = "$(pwd -P)" ] && echo "$file"  # not another test's
    done)
    [ -z "$left" ]
}
gone() {
    wait_until nothing_runs || bad "$run left processes: $left"
    launcher=
    [ -z "$(ls -A "$TMPDIR")" ] || bad "$run left files: $(ls "$TMPDIR")"
    ls /dev/shm 2>/dev/null | grep -q lockstep && bad "$run left shared memory"
}

# ---- a successful run writes nothing to standard error ----
"$lockstep" train -n 2 $tiny --train.steps=8 --run.dir=well >out.txt 2>err.txt || bad "two ranks: $(cat err.txt)"
[ -s err.txt ] && bad "two ranks wrote: $(cat err.txt)"
[ "$(grep -c '^run ' out.txt)" -eq 2 ] || bad "not one report: $(cat out.txt)"
run=well
gone
"$lockstep" doctor well >out.txt || bad "doctor of a finished run"
grep -q "^finished at step 8 of 8, exit 0" out.txt || bad "doctor: $(cat out.txt)"

# ---- each rank killed ----
for victim in 0 1 2; do
    start "killed$victim"
    kill -KILL "$(rank $victim)"
    ended 3 "lockstep train: rank $victim was killed by signal 9 (Killed)"
    $clocked "$lockstep" doctor "killed$victim" >out.txt || bad "doctor of a killed run"
    grep -q "^rank $victim  dead" out.txt || bad "doctor: $(cat out.txt)"
    grep -q "^failed [ai][tn] step [0-9]*: rank $victim was killed by signal 9 (Killed); exit 3" out.txt || bad "doctor: $(cat out.txt)"
done

# ---- a stopped rank ----
start stopped --launch.timeout=2
victim=$(rank 1)
kill -STOP "$victim"
wait_until is_stopped "$victim"
$clocked "$lockstep" doctor stopped >out.txt || bad "doctor of a running run"
grep -q "^rank 1  stopped" out.txt || bad "doctor does not see the stop: $(cat out.txt)"
$clocked "$lockstep" doctor stopped --json --calls 1 | has 'ranks[].state' stopped || bad "doctor --json does not see the stop"
late 1
ended 3 "lockstep train: "
grep -q "rank 1 was stopped by signal 19" err.txt || bad "stopped: $(cat err.txt)"

# ---- signals ----
start saved
kill -USR1 $launcher
has_saved() { ls saved/checkpoints 2>/dev/null | grep -q .; }
wait_until has_saved
ls saved/checkpoints | grep -q step_ || bad "SIGUSR1 saved nothing"
kill -TERM $launcher
ended 0 ""
grep -q "^\[rank 0\] SIGTERM: saving" err.txt || bad "SIGTERM: $(cat err.txt)"
grep -q "SIGTERM: saving" saved/log/rank_0000.err || bad "the output of rank 0 is not in its log"

# ---- the launcher killed ----
start orphaned
kill -KILL $launcher
wait $launcher
gone

# ---- no descriptors left for the pipes of a later rank ----
(ulimit -n 8; exec timeout 60 "$lockstep" train -n 4 $tiny --train.steps=8 --run.dir=crowded) >out.txt 2>err.txt
code=$?
[ $code -eq 1 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -q "of 4: cannot open a pipe" err.txt ||
    bad "few descriptors: exit $code: $(cat err.txt)"
run=crowded
gone

# ---- an error on all ranks is printed once ----
"$lockstep" train -n 3 $tiny --data.text=absent.txt --train.steps=8 --run.dir=absent >out.txt 2>err.txt
code=$?
[ $code -eq 1 ] || [ $code -eq 2 ] || bad "a missing text: exit $code: $(cat err.txt)"
[ "$(wc -l <err.txt)" -eq 1 ] && grep -q "absent.txt" err.txt || bad "a missing text: $(cat err.txt)"
run=absent
gone

"$lockstep" doctor text.txt >out.txt 2>err.txt && bad "doctor of a file"
grep -q "lockstep doctor: text.txt: not a run folder" err.txt || bad "doctor of a file: $(cat err.txt)"

[ $failures -eq 0 ] && say "launch: all well"
exit $((failures > 0))
