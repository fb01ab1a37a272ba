#!/bin/sh
# test_sim.sh LOCKSTEP TESTS - `sim`: its step is the plan's, its accounts add up, the failures it writes are those it counts.
lockstep=$1
. "$2/script.sh"
model="--model.preset=llama3-8b --model.layers=8 --data.seq_len=1024 --train.micro_batch=1"
layout="-n 64 --parallel.tp=4 --parallel.pp=2 --parallel.zero=1 --train.accumulate=8"
near() {
    awk -v a="$1" -v b="$2" -v e="${4:-1e-9}" 'BEGIN { d = a - b; exit !(b != 0 && (d < 0 ? -d : d) <= e * (b < 0 ? -b : b)) }' ||
        bad "$3: $1 is not $2"
}
add() { printf '%s\n' "$@" | awk '{ sum += $1 } END { printf "%.12g", sum }'; }

# Without variation the step is the planned one, and its parts add up; the time adds up to the job's.
"$lockstep" sim --machine h100-dgx $layout $model --days 10 --json >sim.json 2>err.txt || bad "sim: $(cat err.txt)"
"$lockstep" plan --machine h100-dgx $layout $model --json >plan.json 2>err.txt || bad "plan: $(cat err.txt)"
of() { json "$1" <sim.json; }
near "$(of planned_seconds)" "$(json seconds.step <plan.json)" "the step that is planned"
near "$(of step_seconds)" "$(of planned_seconds)" "the step that is played" 0.02
near "$(add "$(of kernels)" "$(of exposed)" "$(of bubble)")" "$(of step_seconds)" "the parts of a step"
near "$(json share.training share.again share.checkpoints share.restarts share.nodes <sim.json | tr ' ' '\n' | awk '{ sum += $1 }
    END { printf "%.12g", sum }')" 1 "the parts of the time"
[ "$(of ranks_played)" -lt 64 ] || bad "64 equal ranks are $(of ranks_played) classes"

# A straggler slows the step, and a slower one slows it more; jitter simulates every rank; the same seed draws the same.
"$lockstep" sim --machine h100-dgx $layout $model --slow 1 --slower 1.5 --json >slow.json 2>err.txt || bad "sim --slow: $(cat err.txt)"
near "$(json step_seconds <slow.json)" "$(of step_seconds)" "one slow rank" 0.6
awk "BEGIN { exit !($(json step_seconds <slow.json) > 1.1 * $(of step_seconds)) }" || bad "one rank half as fast changes nothing"
for file in a b; do
    "$lockstep" sim --machine h100-dgx $layout $model --jitter 0.03 --steps 2 --seed 5 --json >$file.json 2>err.txt ||
        bad "sim --jitter: $(cat err.txt)"
done
cmp -s a.json b.json || bad "the same seed draws something else"
[ "$(json ranks_played <a.json)" = 64 ] || bad "with jitter $(json ranks_played <a.json) ranks are played"

# The events of the first job, without a machine or a model: as many stops as it counts, in order of time, and the steps at the end.
"$lockstep" sim --step-seconds 1.5 -n 16 --failures 0.02 --stall 4 --read 5 --detect 1 --restart 20 --repair 600 --spares 1 --days 0.5 \
    --runs 1 --events events.csv --json >sim.json 2>err.txt || bad "sim --step-seconds: $(cat err.txt)"
stops=$(grep -c ',stop,processor,' events.csv)
near "$(of failures)" "$stops" "stops in the table of events"
[ "$stops" -gt 2 ] || bad "no failures in $(wc -l <events.csv) lines"
awk -F, 'NR > 1 && $1 + 0 < last + 0 { exit 1 } { last = $1 }' events.csv || bad "events are not in their order"
near "$(of share.training)" "$(awk "BEGIN { printf \"%.9g\", $(of steps) * 1.5 / 43200 }")" "steps and the time that trains" 1e-4
[ "$(head -n 1 events.csv)" = "seconds,event,kind,steps" ] || bad "the table's columns: $(head -n 1 events.csv)"

# Traces: the simulated step's and the plan's open as JSON, with a rank of each stage.
"$lockstep" sim --machine h100-dgx $layout $model --trace sim.trace.json >out.txt 2>err.txt || bad "sim --trace: $(cat err.txt)"
"$lockstep" plan --machine h100-dgx $layout $model --trace plan.trace.json >out.txt 2>err.txt || bad "plan --trace: $(cat err.txt)"
for file in sim.trace.json plan.trace.json; do
    [ "$(json 'traceEvents[].args.name' <$file | grep -c '^rank [0-9]* (stage [01])$')" = 2 ] || bad "$file does not name 2 ranks"
    json 'traceEvents[].name' <$file | grep -qx "backward, chunk 0, micro-batch 7" || bad "$file lacks the last backward"
    json 'traceEvents[].name' <$file | grep -qx "reduce_scatter (dp)" || bad "$file lacks the gradients' reduction"
done

# Pages: the step's with a row of boxes for both stages.
"$lockstep" plan --machine h100-dgx $layout $model --html step.html >out.txt 2>err.txt || bad "plan --html: $(cat err.txt)"
for words in "stage 0, rank 0" "stage 1, rank 32" "<rect x=" "</html>"; do
    grep -q "$words" step.html || bad "the page lacks '$words'"
done

# The printed table.
"$lockstep" sim --machine h100-meta $layout $model --days 54 >table.txt 2>err.txt || bad "sim: $(cat err.txt)"
for words in "^job  *54 days on 64 H100" "^step " "^checkpoint " "by Daly's formula" "^failures " "^time  *training" "^result "; do
    grep -q "$words" table.txt || bad "the table lacks '$words': $(cat table.txt)"
done

# Bad input.
expect 2 "needs --machine NAME" sim -n 8 $model
expect 2 "machine 'mi300x' does not say how often processors fail; give --failures" sim --machine mi300x $layout $model
expect 2 "machine 'h100-aws' does not say how fast a checkpoint is written; give --stall" sim --machine h100-aws $layout $model
expect 2 "--step-seconds simulates no step; leave --jitter out" sim --step-seconds 1 -n 8 --jitter 0.1
expect 2 "--slow 65: there are 64 ranks" sim --machine h100-dgx $layout $model --slow 65
expect 2 "--days" sim --step-seconds 1 -n 8 --days 0
expect 2 "it needs offload.read" sim --machine mi300x $layout $model --optim.offload=file
expect 2 "does not hold: 6 = 1 * 1 * 1 * 4" sim --machine h100-dgx -n 6 $model --parallel.tp=4
expect 2 "it needs --machine NAME" plan $layout $model --trace t.json
expect 2 "--html t.html needs --machine NAME" plan $layout $model --html t.html

[ $failures -eq 0 ]
