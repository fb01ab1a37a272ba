#!/bin/sh
# test_signals.sh LOCKSTEP TESTS - signals that users send: Ctrl-C, a closed terminal, a signal before the first step; and a file size
# limit. Every wait is for an event.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 --train.micro_batch=2 --train.global_batch=4
      --optim.warmup=5 --train.eval_every=0 --train.eval_batches=2 --launch.threads=1"
answer="finishing this step and saving a checkpoint, then exiting; a second SIGINT or SIGTERM exits at once, without saving"

# ended NAME: $launcher ended with 0 after signal NAME, which was answered once, and $run is saved at its last step.
ended() {
    wait $launcher
    got=$?
    launcher=
    [ $got -eq 0 ] || bad "$run: $1: exit $got: $(cat err.txt)"
    [ "$(grep -c "$1: $answer" err.txt)" -eq 1 ] || bad "$run: $1 is not answered once: $(cat err.txt)"
    grep -q "stopped by $1" out.txt || bad "$run: $1 is not in the report: $(cat out.txt)"
    last=$(tail -n 1 $run/metrics.jsonl 2>/dev/null | json step 2>/dev/null)
    [ -f "$run/checkpoints/step_$(printf %08d "${last:-0}")/manifest.json" ] ||
        bad "$run: step ${last:-0} is not saved: $(ls $run/checkpoints)"
}

for n in 1 3; do
    for name in HUP INT TERM; do
        run=sig$name$n
        # SIGINT is ignored in background jobs of a script, as here: the run handles it all the same. SIGHUP is ignored under nohup.
        env --default-signal=HUP "$lockstep" train -n $n $tiny --train.steps=1000000 --run.dir=$run >out.txt 2>err.txt &
        launcher=$!
        wait_lines $run/metrics.jsonl 3
        kill -$name $launcher
        [ $name = HUP ] && kill -$name $launcher  # as a closing terminal does
        ended SIG$name
    done
done

# Under nohup SIGHUP stays ignored.
run=nohup
nohup "$lockstep" train $tiny --train.steps=1000000 --run.dir=$run >out.txt 2>err.txt &
launcher=$!
wait_lines $run/metrics.jsonl 3
kill -HUP $launcher
wait_lines $run/metrics.jsonl $(($(wc -l <$run/metrics.jsonl) + 10))
kill -TERM $launcher
ended SIGTERM

# A signal during start-up, here while rank 0 waits for a reader of its log: the run saves what it began with, and leaves before
# its first step. A process that handles SIGTERM (bit 14 of SigCgt) has passed its start.
handles() { cgt=$(sed -n 's/^SigCgt:[[:space:]]*//p' /proc/$1/status 2>/dev/null) && [ $((0x${cgt:-0} & 0x4000)) -ne 0 ]; }
for n in 1 2; do
    run=early$n
    mkdir -p $run/log
    mkfifo $run/log/rank_0000.log
    "$lockstep" train -n $n $tiny --train.steps=1000000 --run.dir=$run >out.txt 2>err.txt &
    launcher=$!
    for i in $(seq 3000); do
        all=$launcher ready=0
        [ $n -gt 1 ] && all=$(ranks)
        for one in $all; do handles "$one" && ready=$((ready + 1)); done
        [ $ready -eq $n ] && break
        sleep 0.02
    done
    [ $ready -eq $n ] || bad "$run: $ready ranks handle SIGTERM"
    kill -TERM $launcher
    cat $run/log/rank_0000.log >/dev/null &
    ended SIGTERM
    wait
    [ ! -s $run/metrics.jsonl ] || bad "$run: made steps: $(cat $run/metrics.jsonl)"
done

# A limit on file sizes acts like a full disk: the checkpoint's tensors do not fit, the log and the metrics do.
(ulimit -f 100; exec "$lockstep" train $tiny --train.steps=6 --run.dir=limit) >out.txt 2>err.txt
got=$?
[ $got -eq 1 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -q "cannot write .*: File too large" err.txt ||
    bad "file size limit: exit $got: $(cat err.txt)"
[ -z "$(ls limit/checkpoints)" ] || bad "file size limit: half of a checkpoint is left: $(ls limit/checkpoints)"

[ $failures -eq 0 ] && say "test_signals: all good"
exit $((failures > 0))
