#!/bin/sh
# test_time_budget.sh LOCKSTEP TESTS - train.time_budget: the number of steps that it fixes is recorded, and a resumed run keeps it; a run
# with a time budget has the bits of one with train.steps=NUMBER, in every kind of layout. No times are compared.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=2 --data.seq_len=16 --train.global_batch=6 --train.eval_batches=1
      --train.eval_every=4 --launch.threads=1 --precision.compute=fp32 --run.measure_peak=off --log.tensorboard=false"
tiny=$(echo $tiny)  # one line, for the table below
ample=100000  # seconds: train.steps decides

train() { timeout 300 "$lockstep" train "$@" >out.txt 2>err.txt || bad "train $*: $(cat err.txt)"; }
newest() { ls "$1/checkpoints" | tail -n 1 | sed 's/step_0*//'; }
# Losses, learning rates and validation losses of all steps.
course() { json step loss grad_norm lr tokens_seen val_loss <"$1/metrics.jsonl"; }
same_course() { [ -n "$(course "$1")" ] && [ "$(course "$1")" = "$(course "$2")" ] || bad "$2 has not the metrics of $1"; }

# ---- refused ----
expect 2 "train.time_budget does nothing here: train.steps=0" train $tiny --train.steps=0 --train.time_budget=60
expect 2 "train.time_budget: -1 is out of range" train $tiny --train.time_budget=-1
expect 2 "optim.warmup=20 is longer than the schedule of 10 steps" train $tiny --train.steps=10 --optim.warmup=20 --train.time_budget=60
expect 2 "train.time_budget" parity --a "" --b "parallel.dp=2" --train.time_budget=60
expect 1 "train.time_budget=1e-06 s: too short for one step: start-up took" train $tiny --train.time_budget=1e-6 --run.dir=short
expect 1 "train.time_budget=1e-06 s: too short for one step: start-up took" train -n 2 $tiny --train.time_budget=1e-6 --run.dir=short2
[ ! -e short/checkpoints/step_00000000 ] || bad "the trial's checkpoint stays"

# ---- time decides: enough seconds for four steps on any machine ----
# The first budgets are short because every step saves a checkpoint, and four are enough.
steps=0
for budget in 0.25 0.5 1 2 4 8 16 32 64; do
    rm -rf timed
    timeout 300 "$lockstep" train $tiny --train.time_budget=$budget --checkpoint.every=1 --checkpoint.keep=1000000 --run.dir=timed \
        >out.txt 2>err.txt
    [ -e timed/checkpoints ] && steps=$(newest timed) || steps=0
    steps=${steps:-0}
    [ $steps -lt 4 ] || break
done
[ $steps -ge 4 ] || { bad "no four steps in $budget s: $(cat out.txt err.txt)"; exit 1; }
cp out.txt timed.txt
said=$(sed -n "s/^train.time_budget=$budget s: \([0-9,]*\) steps of .*/\1/p" timed.txt | tr -d ,)
[ "$said" = "$steps" ] || bad "says '$said' steps, made $steps: $(head -n 9 timed.txt)"
grep -q "info: train.time_budget=$budget s: " timed/log/rank_0000.log || bad "the log does not say the number of steps"
grep -q "^  steps: $steps\$" timed/config.yaml || bad "config.yaml does not have steps: $steps"
grep -q "^  schedule_steps: $steps\$" timed/config.yaml || bad "config.yaml does not have schedule_steps: $steps"
[ "$(wc -l <timed/metrics.jsonl)" -eq "$steps" ] || bad "$(wc -l <timed/metrics.jsonl) lines of metrics for $steps steps"
[ "$(ls timed/checkpoints | wc -l)" -eq "$steps" ] || bad "$(ls timed/checkpoints | wc -l) checkpoints of $steps steps"
recorded=$(json state.budget_steps state.budget_seconds <"timed/checkpoints/$(ls timed/checkpoints | tail -n 1)/manifest.json")
[ "$recorded" = "$steps $budget" ] || [ "$recorded" = "$steps $budget.0" ] || bad "the checkpoint has the number '$recorded'"

train $tiny --train.steps="$steps" --run.dir=plain
same_bits timed plain
same_course timed plain
train --config timed/config.yaml --train.time_budget=0 --run.dir=given
same_bits timed given

# Half of it again, by the same command and by the config that the run stored.
cp -r timed again
for step in $(seq $((steps / 2 + 1)) "$steps"); do rm -r "again/checkpoints/$(printf step_%08d "$step")"; done
cp -r again config
train $tiny --train.time_budget=$budget --run.dir=again
grep -q "^train.time_budget=$budget s: .* steps, fixed when the run began\$" out.txt ||
    bad "the resumed run does not say the number: $(cat out.txt)"
same_bits timed again
same_course timed again
train --config config/config.yaml --run.dir=config
same_bits timed config
same_course timed config

# ---- the run ended, and another budget ----
expect 1 "has a budget of $budget, which fixed its number of steps at $steps" train $tiny --train.time_budget=5000 --run.dir=timed
expect 1 "train.steps=2: the time budget of" train $tiny --train.time_budget=$budget --train.steps=2 --run.dir=timed
expect 1 "was trained without a time budget, up to step $steps" train $tiny --train.time_budget=60 --run.dir=plain
resume=$(sed -n 's/^resume *//p' timed.txt)
cp -r timed longer
(eval "$resume --run.dir=longer") >out.txt 2>err.txt || bad "'$resume': $(cat err.txt)"
[ "$(newest longer)" -eq $((2 * steps)) ] || bad "'$resume' ends at step $(newest longer)"

# ---- the trial leaves no trace, in any layout: train.steps decides, so runs have the same number of steps on any machine ----
"$lockstep" ckpt export plain --to hf >out.txt || bad "the export"
words="--data.text=text.txt --data.seq_len=16 --train.eval_batches=1 --launch.threads=1 --precision.compute=fp32 --run.measure_peak=off"
cells=0
while IFS='|' read -r options; do
    cells=$((cells + 1))
    train $options --train.steps=5 --run.dir=a$cells
    train $options --train.steps=5 --train.time_budget=$ample --run.dir=b$cells
    grep -q "^train.time_budget=$ample s: all of train.steps: 5 steps of " out.txt ||
        bad "$options: does not say the number: $(cat out.txt)"
    same_bits a$cells b$cells
    same_course a$cells b$cells
    [ "$(ls b$cells/checkpoints)" = step_00000005 ] || bad "$options: $(ls b$cells/checkpoints)"
done <<CELLS
$tiny --optim.schedule=wsd --optim.warmup=1
$tiny --optim.name=sgd --precision.compute=bf16
$tiny --optim.name=lamb --optim.offload=file
$tiny --model.dropout=0.2 --model.preset=gpt2-tiny
$words --model.hf=hf --data.tokenizer=hf --train.global_batch=4
$words --model.preset=mixtral-tiny --model.router_bias_rate=0.1 --train.global_batch=4
--model.preset=resnet-tiny --train.micro_batch=4 --train.eval_batches=1 --launch.threads=1 --run.measure_peak=off
-n 2 $tiny --parallel.zero=1 --precision.compute=bf16
-n 2 $tiny --parallel.zero=3
-n 2 $tiny --parallel.zero=3 --parallel.reshard_after_forward=false --optim.offload=cpu
-n 2 $tiny --parallel.pp=2
-n 2 $tiny --parallel.tp=2 --parallel.sp=true
CELLS
[ $cells -eq 12 ] || bad "$cells layouts"

# ---- a signal in the trial, or after it: the run ends normally and can be resumed to the same bits ----
slow="$tiny --model.width=256 --data.seq_len=64"
for n in 1 2; do
    "$lockstep" train -n $n $slow --train.time_budget=$ample --run.dir=stop$n >out.txt 2>err.txt &
    launcher=$!
    until [ -e stop$n/checkpoints/step_00000000 ] || ! kill -0 $launcher 2>/dev/null; do :; done
    kill -TERM $launcher
    wait $launcher || bad "stopped by a signal: exit $?: $(cat err.txt)"
    launcher=
    if [ "$(newest stop$n)" = "" ]; then  # step_00000000 without its zeros
        grep -q "SIGTERM: saving a checkpoint at step 0, then exiting" err.txt || bad "stopped in the trial: $(cat err.txt)"
        train -n $n $slow --train.time_budget=$ample --train.steps=3 --run.dir=stop$n
        train -n $n $slow --train.steps=3 --run.dir=straight$n
        same_bits straight$n stop$n
        same_course straight$n stop$n
    else
        say "-n $n: the trial ended before the signal came"
    fi
done

# ---- plan ----
expect 0 "as many steps as fit into train.time_budget=90 s: 'train' measures that" plan --model.preset=llama-tiny --train.time_budget=90
expect 0 "fit into train.time_budget=90 s, at most 70:" plan --model.preset=llama-tiny --train.time_budget=90 --train.steps=70

say "$steps steps in $budget s, $cells layouts"
[ $failures -eq 0 ] || { say "$failures failed"; exit 1; }
