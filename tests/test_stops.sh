#!/bin/sh
# test_stops.sh LOCKSTEP TESTS - a rank that is stopped at some point of a run, in every phase, in all kinds of groups: launch.timeout
# after the stop the launcher must end with exit code 3 and one line that names that rank first. Only that rank can be late. If the rank is
# continued before that, the run continues. LOCKSTEP_MATRIX=full: every phase under every layout, each rank, three points each.
set -u
lockstep=$1
. "$2/script.sh"

timeout=2
tiny="--data.text=text.txt --data.seq_len=16 --train.global_batch=8 --optim.warmup=5 --launch.threads=1 --launch.timeout=$timeout
      --precision.compute=fp32 --train.steps=1000000 --checkpoint.keep=1 --run.measure_peak=off"
llama="--model.preset=llama-tiny --model.layers=2"
tp="$llama -n 4 --parallel.tp=2 --parallel.zero=1"
pp="$llama -n 4 --parallel.pp=2 --train.accumulate=2"
cp="$llama -n 4 --parallel.cp=2 --parallel.tp=2"
ep="--model.preset=mixtral-tiny --model.layers=2 -n 4 --parallel.ep=2 --parallel.zero=3"

startup="--train.eval_every=0"
saving="--train.eval_every=0 --checkpoint.every=1"
steps="--train.eval_every=0"
evaluating="--train.eval_every=1 --train.eval_batches=20"

handles() { cgt=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null) && [ $((0x${cgt:-0} & 0x4000)) -ne 0 ]; }

# reached PHASE N: an event of the phase has occurred; N of them if they repeat.
reached() {
    case $1 in
    startup) victim=$(rank $3); [ -n "$victim" ] && handles "$victim" ;;
    saving) ls -d $run/checkpoints/step_*.tmp >/dev/null 2>&1 ;;
    *) [ -f $run/metrics.jsonl ] && [ "$(wc -l <$run/metrics.jsonl)" -ge "$2" ] ;;
    esac
}

# stopped LAYOUT PHASE RANK N
trials=0
stopped() {
    trials=$((trials + 1))
    run=$1$2$3$4
    new_clock
    $clocked "$lockstep" train $(options $1) $tiny $(options $2) --run.dir=$run >out.txt 2>err.txt &
    launcher=$!
    until reached $2 $4 $3; do
        kill -0 $launcher 2>/dev/null || break
        [ $2 = saving ] || sleep 0.01
    done
    kill -STOP "$(rank $3)" || bad "$run: no rank to stop: $(cat err.txt)"
    late $3
    wait $launcher
    got=$?
    launcher=
    [ $got -eq 3 ] && [ "$(wc -l <err.txt)" -eq 1 ] || bad "$run: exit $got: $(cat err.txt)"
    first=$(sed 's/([^)]*)//g' err.txt | grep -o 'rank [0-9]*' | head -n 1)
    [ "$first" = "rank $3" ] || bad "$run: not rank $3 first: $(cat err.txt)"
    grep -q "rank $3 was stopped by signal 19" err.txt || bad "$run: does not say that rank $3 was stopped: $(cat err.txt)"
    grep -q "within $timeout s\|for $timeout s" err.txt || bad "$run: not after $timeout s: $(cat err.txt)"
}

if [ "${LOCKSTEP_MATRIX:-}" = full ]; then
    for layout in tp pp cp ep; do
        for phase in startup saving steps evaluating; do
            for rank in 0 1 2 3; do
                for n in 1 2 5; do stopped $layout $phase $rank $n; done
            done
        done
    done
else
    stopped pp startup 1 0
    stopped tp saving 2 0
    stopped ep steps 2 3
    stopped cp evaluating 3 1
fi

# ---- continued in time: the run continues as if nothing had happened ----
run=forgiven
new_clock
$clocked "$lockstep" train $tp $tiny $steps --run.dir=$run >out.txt 2>err.txt &
launcher=$!
wait_until reached steps 3
victim=$(rank 1)
kill -STOP "$victim"
wait_until is_stopped "$victim"
lines=$(wc -l <$run/metrics.jsonl)
kill -CONT "$victim"
wait_lines $run/metrics.jsonl $((lines + 3))
kill -TERM $launcher
wait $launcher || bad "$run: exit code: $(cat err.txt)"
launcher=

[ $failures -eq 0 ] && say "test_stops: all good, $trials stops"
exit $((failures > 0))
