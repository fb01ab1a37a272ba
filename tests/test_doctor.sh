#!/bin/sh
# test_doctor.sh LOCKSTEP TESTS - `doctor` on single-rank runs that are running, finished, stopped by a signal, failed or killed; and
# the host of each rank in logs and metrics.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 --train.micro_batch=2 --train.global_batch=4
      --train.eval_every=0 --train.eval_batches=2 --launch.threads=1"
host=$(uname -n)

# reports RUN PATTERN...: what `doctor` prints about the run has these lines.
reports() {
    run=$1
    shift
    "$lockstep" doctor $run >out.txt 2>err.txt || bad "doctor $run: $(cat err.txt)"
    for pattern; do grep -q "$pattern" out.txt || bad "doctor $run: no '$pattern' in: $(cat out.txt)"; done
}

"$lockstep" train $tiny --train.steps=5 --optim.warmup=1 --run.dir=well >out.txt 2>err.txt || bad "train: $(cat err.txt)"
reports well "^rank 0  finished, process [0-9]* on $host, step 5 of 5$" "^finished at step 5 of 5, exit 0$"
"$lockstep" doctor well --json | has outcome "finished at step 5 of 5, exit 0" ||
    bad "doctor --json: $("$lockstep" doctor well --json)"

"$lockstep" train $tiny --train.steps=1000000 --run.dir=long >out.txt 2>err.txt &
launcher=$!
wait_lines long/metrics.jsonl 3
reports long "^rank 0  running, process $launcher on $host, [a-z]* for [0-9.]* s, step [0-9]* of 1000000, [0-9]* tokens/s, \
last step [0-9.]* s ago$" "^the run has not ended"
kill -STOP $launcher
wait_until is_stopped $launcher
reports long "^rank 0  stopped, process $launcher"
kill -CONT $launcher
kill -TERM $launcher
wait $launcher || bad "SIGTERM: $(cat err.txt)"
launcher=
reports long "^stopped by SIGTERM at step [0-9]* of 1000000, exit 0$"

"$lockstep" train $tiny --train.steps=1000000 --run.dir=killed >out.txt 2>err.txt &
launcher=$!
wait_lines killed/metrics.jsonl 3
kill -KILL $launcher
wait $launcher
launcher=
reports killed "^rank 0  dead, process [0-9]* on $host, step [0-9]* of 1000000, last seen [a-z]*$" \
    "^rank 0 ended without a report [ai][tn] step [0-9]*: killed, or the machine was restarted$"

"$lockstep" train $tiny --train.steps=5 --optim.warmup=1 --debug.fail_write=1 --run.dir=failed >out.txt 2>err.txt &&
    bad "a full disk: exit 0"
reports failed "^rank 0  failed, process" "^failed at step 5: step 5 is not saved: .*; exit 1$"

# A start that is refused does not change the report about the run in the folder.
"$lockstep" train -n 2 $tiny --train.steps=5 --optim.warmup=1 --checkpoint.resume=none --run.dir=well >out.txt 2>err.txt &&
    bad "a used folder is taken"
reports well "^finished at step 5 of 5, exit 0$"

# ---- hosts ----
"$lockstep" train -n 2 $tiny --train.steps=3 --optim.warmup=1 --log.per_rank=true --run.dir=hosts >out.txt 2>err.txt ||
    bad "two ranks: $(cat err.txt)"
for file in metrics metrics.rank_0001; do
    [ "$(head -n 1 hosts/$file.jsonl | json step run.hosts)" = "1 [$host,$host]" ] ||
        bad "$file.jsonl: $(head -n 1 hosts/$file.jsonl)"
    [ "$(json run <hosts/$file.jsonl | grep -cvx none)" -eq 1 ] || bad "$file.jsonl names hosts more than once"
done
for rank in 0 1; do
    head -n 1 hosts/log/rank_000$rank.log | grep -q "info: rank $rank on $host, process [0-9]*, cores [0-9,-]*$" ||
        bad "log of rank $rank: $(head -n 1 hosts/log/rank_000$rank.log)"
done
reports hosts "^rank 1  finished, process [0-9]* on $host, step 3 of 3, [0-9]* calls$" "^finished at step 3 of 3, exit 0$"

[ $failures -eq 0 ] && say "test_doctor: all good"
exit $((failures > 0))
