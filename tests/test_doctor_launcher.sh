#!/bin/sh
# test_doctor_launcher.sh LOCKSTEP TESTS - `doctor` after the launcher was killed and while a rank is stopped: during start-up, between
# steps and during a save, under several layouts. No rank is blamed if all ranks ended with the launcher.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--data.text=text.txt --data.seq_len=16 --train.global_batch=8 --optim.warmup=5 --launch.threads=1
      --precision.compute=fp32 --train.steps=1000000 --checkpoint.keep=1 --run.measure_peak=off --train.eval_every=0
      --model.preset=llama-tiny --model.layers=2"
dp="--parallel.zero=0 -n 2"
tp="--parallel.tp=2 -n 4"
pp="--parallel.pp=2 --train.accumulate=2 -n 2"
startup=
steps=
saving="--checkpoint.every=1"

is_rank() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | grep -q '^RANK='; }

# reached PHASE: the run is in this phase. During start-up, rank 1 is a process and has no flight recorder yet.
reached() {
    case $1 in
    startup) victim=$(rank 1); [ -n "$victim" ] && is_rank "$victim" ;;
    saving) ls -d $run/checkpoints/step_*.tmp >/dev/null 2>&1 ;;
    steps) [ -f $run/metrics.jsonl ] && [ "$(wc -l <$run/metrics.jsonl)" -ge 3 ] ;;
    esac
}

# start LAYOUT PHASE: starts a run and waits until it reaches the phase.
start() {
    run=$1_$2_$3
    new_clock
    $clocked "$lockstep" train $(options $1) $tiny $(options $2) --launch.timeout=2 --run.dir=$run >out.txt 2>err.txt &
    launcher=$!
    until reached $2; do
        kill -0 $launcher 2>/dev/null || break
        case $2 in steps) sleep 0.01 ;; esac
    done
    pids=$(ranks)
    [ -n "$pids" ] || { bad "$run: no ranks: $(cat err.txt)"; exit 1; }
}

doctor() { $clocked "$lockstep" doctor $run >out.txt 2>err.txt; }
said() { cat out.txt err.txt | grep -q -e "$1" || bad "$run: no '$1' in: $(cat out.txt err.txt)"; }
not_said() { cat out.txt err.txt | grep -q -e "$1" && bad "$run: '$1' in: $(cat out.txt err.txt)"; }

# killed LAYOUT PHASE: the launcher is killed, and its ranks end with it.
killed() {
    start $1 $2 killed
    kill -KILL $launcher
    wait $launcher 2>/dev/null
    for pid in $pids; do
        wait_until is_gone $pid
    done
    gone=$launcher
    launcher=
    if doctor; then
        last=$(echo "$pids" | wc -l)
        said "^the launcher, process $gone, was killed [ai][tn] step [0-9]*, and ranks 0[,-].*$((last - 1)) ended with it$"
        said "^rank 1  dead, process [0-9]* on"
    else
        said "^lockstep doctor: $run: the launcher, process $gone, was killed before its ranks began to \
train; see $run/log$"
        [ $2 = startup ] || bad "$run: no ranks: $(cat err.txt)"
    fi
    not_said "never called\|had not called\|died in"
}

# stopped LAYOUT PHASE: rank 1 is stopped; `doctor` names it while it is stopped and after launch.timeout, which begins after that.
stopped() {
    start $1 $2 stopped
    victim=$(rank 1)
    kill -STOP $victim
    wait_until is_stopped $victim
    doctor || bad "$run: doctor: $(cat err.txt)"
    said "^rank 1  stopped, process $victim"
    said "^rank 1 is stopped by a signal (SIGSTOP, SIGTSTP) or a debugger; to continue: kill -CONT $victim$"
    grep -q '^rank 0  running\|^rank 0  starting' out.txt || bad "$run: rank 0 is: $(cat out.txt)"
    not_said "  dead\|is dead\|never started"
    next=$(sed -n '/^rank 1 is stopped by /{n;s/^ranks* \([0-9]*\).*/\1/p;}' out.txt)
    [ "${next:-1}" = 1 ] || bad "$run: another rank before rank 1: $(cat out.txt)"
    late 1
    wait $launcher
    launcher=
    if doctor; then
        said "^rank 0  failed"
        # a rank that is stopped during start-up may have no flight recorder, which has its process and step
        said "^rank 1  dead\\(, process $victim on [^ ]*\\)\\{0,1\\}, was stopped by signal 19 (Stopped (signal)), then killed"
        said "^failed [ai][tn] step [0-9]*: .*rank 1 was stopped by signal 19 (Stopped (signal))"
        not_said "rank 0 is dead\|rank 0 died"
    else
        said "^lockstep doctor: $run: no calls/rank_NNNN: the ranks ended before they began to train; see $run/log$"
        [ $2 = startup ] || bad "$run: no ranks: $(cat err.txt)"
    fi
}

for layout in dp tp pp; do
    for phase in startup steps saving; do killed $layout $phase; done
done
stopped dp startup
stopped dp saving
stopped tp steps
stopped pp steps

# ---- a new start in the folder of an old run: `doctor` reports the new ranks ----
run=again
"$lockstep" train -n 2 $tiny --train.steps=6 --run.dir=$run >out.txt 2>err.txt || bad "$run: $(cat err.txt)"
new_clock
LOCKSTEP_STOPPED_RANK=2 $clocked "$lockstep" train -n 3 $tiny --run.dir=$run >out.txt 2>err.txt &
launcher=$!
until victim=$(rank 2) && [ -n "$victim" ] && is_rank "$victim"; do kill -0 $launcher 2>/dev/null || break; done
wait_until is_stopped $victim
doctor || bad "$run: doctor: $(cat err.txt)"
said "^rank 0  starting, process $(rank 0)$"
said "^rank 2  stopped, process $victim$"
not_said "finished"
kill -KILL $launcher
wait $launcher 2>/dev/null
launcher=
doctor || bad "$run: doctor: $(cat err.txt)"
said "^finished at step 6 of 6, exit 0$"

# ---- a rank that cannot open its files: the other one, which has opened its own, records that it failed ----
run=unopened
"$lockstep" train -n 2 $tiny --train.steps=6 --run.dir=$run >out.txt 2>err.txt || bad "$run: $(cat err.txt)"
rm $run/log/rank_0001.log
mkdir $run/log/rank_0001.log
"$lockstep" train -n 2 $tiny --train.steps=6 --run.dir=$run >out.txt 2>err.txt && bad "$run: a folder in place of a log is accepted"
doctor || bad "$run: doctor: $(cat err.txt)"
said "^rank 0  failed"
said "^failed at step 0: rank 1: $run/log/rank_0001.log: cannot open the log for appending"

[ $failures -eq 0 ] && say "test_doctor_launcher: all good"
exit $((failures > 0))
