#!/bin/sh
# test_blame.sh LOCKSTEP TESTS - the launcher's line names the rank that failed first, never a rank that failed as a consequence: one or two
# ranks are killed during start-up, between steps and during a save; a rank exits by itself; a rank runs out of memory.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--data.text=text.txt --data.seq_len=16 --train.global_batch=8 --optim.warmup=5 --launch.threads=1 --precision.compute=fp32
      --train.steps=1000000 --checkpoint.keep=1 --run.measure_peak=off --train.eval_every=0 --model.preset=llama-tiny --model.layers=2"
dp="--parallel.zero=1 -n 4"
tp="--parallel.tp=2 -n 4"
pp="--parallel.pp=2 --train.accumulate=2 -n 4"
startup=
steps=
saving="--checkpoint.every=1"

reached() {
    case $1 in
    startup) [ -n "$(rank 3)" ] ;;
    saving) ls -d $run/checkpoints/step_*.tmp >/dev/null 2>&1 ;;
    steps) [ -f $run/metrics.jsonl ] && [ "$(wc -l <$run/metrics.jsonl)" -ge 3 ] ;;
    esac
}

# start LAYOUT PHASE: starts a run and waits until it reaches the phase.
start() {
    "$lockstep" train $(options $1) $tiny $(options $2) --run.dir=$run >out.txt 2>err.txt &
    launcher=$!
    until reached $2; do
        kill -0 $launcher 2>/dev/null || return
        case $2 in steps) sleep 0.01 ;; esac
    done
}

# ended CODE PATTERN: checks the launcher's exit code and its one line on standard error.
ended() {
    wait $launcher
    got=$?
    launcher=
    [ $got -eq "$1" ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -q "$2" err.txt || bad "$run: exit $got, not $1 with '$2': $(cat err.txt)"
}

# signal NAME STATE PROCESSES: sends the signal and waits until all processes are in that state.
signal() {
    kill -$1 $3
    for pid in $3; do wait_until grep -q "^State:.$2" "/proc/$pid/status"; done
}

# limited LAYOUT: starts a run whose rank 2 has memory for its libraries (6 MB), but not for training (25 MB). If the limit comes too
# late, when everything has been allocated, another run is started.
limited() {
    for try in $(seq 20); do
        run=memory$1$try
        start $1 startup
        prlimit --pid "$(rank 2)" --data=12000000 || bad "$run: no limit"
        until [ -s err.txt ] || reached steps; do sleep 0.01; done
        reached steps || return 0
        kill $launcher
        wait $launcher
    done
    bad "$run: the limit always came too late"
    return 1
}

# killed LAYOUT PHASE RANKS LINE: kills these ranks at the same time.
killed() {
    run=$(echo "killed$1$2$3" | tr ' ' _)
    start $1 $2
    victims=
    for victim in $3; do victims="$victims $(rank $victim)"; done
    signal STOP T "$victims $launcher"  # so that no rank exits before it is killed, and the launcher sees all kills at the same time
    signal KILL Z "$victims"
    kill -CONT $launcher
    ended 3 "^lockstep train: $4 killed by signal 9 (Killed)$"
}

for layout in dp tp pp; do
    for phase in startup steps saving; do
        killed $layout $phase 2 "rank 2 was"
        killed $layout $phase "1 3" "ranks 1, 3 were"
    done
done

# ---- a rank that exits by itself: the launcher prints its report with the rank, and exits with its code ----
for layout in dp tp pp; do
    run=alone$layout
    mkdir -p $run/log/rank_0002.log
    start $layout startup
    ended 1 "^lockstep train: rank 2: .*log/rank_0002.log: cannot open the log"
done

# ---- a rank that runs out of memory during start-up: only its error is reported ----
if grep -q __asan_init "$lockstep"; then
    say "skipped: AddressSanitizer itself cannot be limited in memory"
elif command -v prlimit >/dev/null; then
    for layout in dp tp pp; do
        limited $layout && ended 1 "^lockstep train: rank 2: .*\\(memory\\|thread did not start\\)"  # whichever it allocates first
    done
fi

[ $failures -eq 0 ] && say "test_blame: all good"
exit $((failures > 0))
