#!/bin/sh
# test_eval.sh LOCKSTEP TESTS - `eval` gives the validation loss that training gave, under every layout, and its perplexity and bits per
# byte.
set -u
lockstep=$1
. "$2/script.sh"

field() { json "$1" <out.txt; }
# near A B BOUND: |A - B| <= BOUND
near() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(d <= e && -d <= e && a != "" && b != "") }'; }

tiny="--model.preset=llama-tiny --model.layers=2 --data.seq_len=16 --train.micro_batch=2 --optim.warmup=2 --launch.threads=1
      --precision.compute=fp32"
expect 0 "step 6 of 6" train text.txt $tiny --run.dir=run --train.steps=6 --train.eval_every=3 --checkpoint.every=3
at3=$(sed -n 3p run/metrics.jsonl | json val_loss)
at6=$(sed -n 6p run/metrics.jsonl | json val_loss)

# ---- the run's validation loss, whatever the layout ----
expect_json loss "" eval run --json --launch.threads=1
[ "$(field loss)" = "$at6" ] || bad "eval says $(field loss), training said $at6"
near "$(field perplexity)" "$(awk -v x="$at6" 'BEGIN { printf "%.12g", exp(x) }')" 1e-6 || bad "perplexity: $(cat out.txt)"
near "$(field bits_per_byte)" "$(awk -v x="$at6" 'BEGIN { printf "%.12g", x / log(2) }')" 1e-9 ||
    bad "a byte is a token here: $(cat out.txt)"
expect_json loss "" eval run --checkpoint 3 --json --launch.threads=1
[ "$(field loss)" = "$at3" ] || bad "step 3: eval says $(field loss), training said $at3"
for layout in "-n 2" "-n 2 --parallel.zero=3" "-n 2 --parallel.tp=2 --parallel.sp" "-n 2 --parallel.cp=2" "-n 2 --parallel.pp=2" \
              "-n 4 --parallel.tp=2 --parallel.pp=2"; do
    expect_json loss "" eval run $layout --json --launch.threads=1
    near "$(field loss)" "$at6" 1e-5 || bad "$layout: $(field loss), training said $at6"
done
expect 0 "loss        $(printf %.4f "$at6") nats per token" eval run
grep -q "^perplexity  " out.txt && grep -q "^bits/byte   " out.txt || bad "not all figures: $(cat out.txt)"
expect 0 "dp 1 (zero 0) x tp 2" eval run -n 2 --parallel.tp=2

# ---- other data; a model of Hugging Face's kind ----
head -n 50 text.txt >part.txt
tokens=$(wc -c <part.txt)
expect_json loss "" eval run --data.text=part.txt --json
[ "$(($(field tokens) + $(field tokens_left_over) + 1))" -eq "$tokens" ] || bad "not all of $tokens tokens: $(cat out.txt)"
whole=$(field loss)
expect_json loss "" eval run part.txt --json
[ "$(field loss)" = "$whole" ] || bad "a plain argument is another text: $(field loss), not $whole"
expect 0 "hf: exported" ckpt export run --to hf
expect_json loss "" eval hf --data.text=part.txt --data.seq_len=16 --precision.compute=fp32 --json
near "$(field loss)" "$whole" 1e-6 || bad "exported: $(field loss), not $whole"
expect 2 "does not say what data to evaluate on; give --data.text=FILE" eval hf

# ---- images ----
expect 0 "step 2 of 2" train --model.preset=resnet-tiny --run.dir=pictures --train.steps=2 --train.micro_batch=4 --train.eval_batches=2 \
    --launch.threads=1
expect 0 "nats per picture" eval pictures --launch.threads=1
grep -q perplexity out.txt && bad "a perplexity of pictures: $(cat out.txt)"
expect 2 "a model that is not a transformer supports only parallel.dp" eval pictures -n 2 --parallel.tp=2
expect 2 "is evaluated on drawn pictures, not on data.text" eval pictures part.txt
expect 2 "--sample does nothing here" train --model.preset=resnet-tiny --run.dir=sampled --sample "In the"
expect 2 "train.eval_batches does nothing here" train --model.preset=resnet-tiny --run.dir=none --data.val_fraction=0 --train.eval_batches=2
expect 0 "step 1 of 1" train --model.preset=resnet-tiny --run.dir=none --train.steps=1 \
    --train.micro_batch=4 --data.val_fraction=0 --launch.threads=1
grep -q val_loss none/metrics.jsonl && bad "data.val_fraction=0, but pictures are validated on: $(cat none/metrics.jsonl)"

# ---- no progress line if the output is not a terminal ----
expect 0 "perplexity" eval run
grep -q "$(printf '\r')" out.txt && bad "a progress line in a file: $(cat out.txt)"

# ---- refused ----
expect 2 "run has no checkpoint of step 9; lockstep ckpt list run" eval run --checkpoint 9
expect 2 "the model has 128 positions; use 128 or less" eval run --data.seq_len=999
expect 2 "parallel.zero=1 does nothing here" eval run -n 2 --parallel.zero=1
expect 2 "model.heads=4 cannot be sharded over parallel.tp=8" eval run -n 8 --parallel.tp=8
expect 2 "does nothing in 'eval'" eval run --optim.lr=1
expect 1 "no checkpoint here" eval tmp
expect 1 "text.txt is a file, not a model; the model's folder comes first: lockstep eval MODEL text.txt" eval text.txt
expect 1 "text.txt: is a file; expected the folder of a run or of a checkpoint" generate text.txt
expect 2 "run is a run's folder, not a text; name a file" eval run run
expect 1 "absent.txt: cannot open" eval run absent.txt
expect 1 "absent.txt: cannot open" eval run --data.text=absent.txt

[ $failures -eq 0 ] || exit 1
say "eval: all as expected"
