#!/bin/sh
# test_run_tools.sh LOCKSTEP TESTS - a text as a plain argument (`train TEXT`), `ckpt list` and `version`.
set -u
lockstep=$1
. "$2/script.sh"

tiny="--model.preset=llama-tiny --model.layers=2 --data.seq_len=16 --train.micro_batch=2 --optim.warmup=2 --launch.threads=1"

# ---- a text without its option ----
expect 0 "step 6 of 6" train text.txt $tiny --run.dir=run --train.steps=6 --checkpoint.every=3 --checkpoint.keep=9 --train.eval_every=3 \
    --train.eval_batches=2
grep -q 'text: "text.txt"' run/config.yaml || bad "config.yaml does not name the text: $(grep text: run/config.yaml)"
expect 0 "step 6 of 6" train -n 2 --parallel.tp=2 $tiny --run.dir=run2 --train.steps=6 --train.eval_batches=2 text.txt
printf 'data:\n  text: other.txt\n' >other.yaml
"$lockstep" train --config other.yaml text.txt --print-config | grep -q 'text: "text.txt" .*# command line' ||
    bad "the text does not beat the file's"
cp text.txt two.txt
expect 2 "'text.txt' and 'two.txt': data.text takes one" train text.txt two.txt
expect 2 "'text.txt' and --data.text are both given" train text.txt --data.text=two.txt
expect 2 "data.text and data.tokens are both given" train text.txt --data.tokens=x.bin
expect 2 "run is a run's folder, not a text; to resume it: lockstep train --config run/config.yaml" train run
expect 2 "run/checkpoints is a folder, not a text" train run/checkpoints
expect 2 "write --config run/config.yaml" train run/config.yaml
expect 1 "absent.txt: cannot open" train absent.txt --run.dir=bad
[ -e bad ] && bad "a run that cannot start leaves a folder"

# ---- ckpt list ----
expect 0 "val_loss" ckpt list run
[ "$(wc -l <out.txt)" -eq 3 ] || bad "not a head and two checkpoints: $(cat out.txt)"
loss=$(tail -n 1 run/metrics.jsonl | json loss)
tail -n 1 out.txt | grep -q "^ *6  20..-..-..T..:..:..Z .*  $(printf %.4f "$loss")  .* 1  complete  *dp 1" ||
    bad "step 6 is not as metrics.jsonl has it ($loss): $(cat out.txt)"
expect 0 "verified" ckpt list run/checkpoints --verify
expect 0 "tp 2" ckpt list run2
expect_json "[].step [].path [].complete [].verified" "3 run/checkpoints/step_00000003 true false" ckpt list run --json
json '[].saved' '[].bytes' <out.txt | grep -qE '^20..-..-..T..:..:..Z [1-9][0-9]*$' || bad "when it was saved, its bytes: $(cat out.txt)"
cp -r run damaged
file=$(ls damaged/checkpoints/step_00000006/parameters*)
head -c 100 "$file" >cut && cp cut "$file"
expect 1 "DAMAGED" ckpt list damaged
grep -q "1 of 2 checkpoints damaged; the newest intact one is damaged/checkpoints/step_00000003" out.txt err.txt ||
    bad "the intact one is not named: $(cat out.txt)"
grep -q "parameters.*100 bytes" out.txt || bad "the damage is not named: $(cat out.txt)"
grep -q "^ *3 .* complete " out.txt || bad "the complete one is not called complete: $(cat out.txt)"
expect 1 "" ckpt list damaged --json
json '[].complete' '[].verified' '[].damage' <out.txt | grep -q '^false false .*parameters' || bad "no damage: $(cat out.txt)"
expect 1 "absent: no such folder" ckpt list absent
expect 1 "no checkpoint here" ckpt list tmp

# ---- version ----
for words in version --version; do
    expect 0 "lockstep 0" $words
    grep -q "^compiler  " out.txt && grep -q "^kernels  " out.txt && grep -q "^mpi  " out.txt || bad "$words: $(cat out.txt)"
done
expect_json isa "" version --json

# ---- resumed past its steps ----
expect 0 "step 6, past train.steps=3; 0 steps" train --config run/config.yaml --train.steps=3

[ $failures -eq 0 ] || exit 1
say "run tools: all as expected"
