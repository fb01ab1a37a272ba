#!/bin/sh
# test_old_runs.sh LOCKSTEP TESTS - run folders written by earlier versions (tests/data/runs): each can be verified, exported, used by
# `generate` or `eval`, and resumed under its own and other layouts with the losses that the version that wrote it has on resuming.
#
# Commit 6e2d968 wrote the last four, whose config.yaml has options under the names of that time. Each ran 6 steps; the checkpoint of step 6
# was deleted, and that version then resumed from step 3 with the bits of its metrics.jsonl:
#   tokens="--data.tokens=ids.bin --data.format=nanogpt --data.seq_len=8 --data.val_fraction=0"
#   steps="--train.steps=6 --train.schedule_steps=6 --train.global_batch=4 --optim.lr=0.01 --optim.warmup=1 --checkpoint.every=3
#          --launch.threads=1 --log.tensorboard=false --run.isa=any"
#   tiny="--model.width=8 --model.heads=2 --model.vocab=16 --model.max_positions=16"
#   lockstep train -n 2 $tokens $steps $tiny --model.preset=mixtral-tiny --model.kv_heads=1 --model.layers=1 --model.experts=4
#       --model.expert_ffn=8 --model.balance=0.02 --precision.compute=bf16 --parallel.dp=2 --parallel.ep=2 --parallel.zero=3
#       --parallel.keep_gathered=true --parallel.accumulate_whole=true --train.accumulate=2 --launch.choices=choices.txt --run.dir=experts
#   lockstep train -n 4 $tokens $steps $tiny --model.preset=llama-tiny --model.kv_heads=2 --model.layers=2 --model.ffn=8 --model.tied=true
#       --optim.name=lars --optim.trust=0.02 --optim.lr=0.5 --parallel.pp=2 --parallel.cp=2 --parallel.context=all_to_all --parallel.zero=2
#       --parallel.accumulate_whole=true --train.accumulate=2 --run.dir=stages
#   lockstep train -n 2 $tokens $steps $tiny --model.preset=gpt2-tiny --model.layers=1 --model.ffn=8 --optim.name=sgd --optim.momentum=0.8
#       --optim.nesterov=true --parallel.tp=2 --parallel.split=2 --run.dir=chunks
#   lockstep train -n 2 $steps --model.preset=resnet-tiny --train.eval_batches=1 --optim.name=sgd --optim.momentum=0
#       --precision.compute=bf16 --precision.master=false --parallel.dp=2 --parallel.zero=1 --parallel.bucket=8KiB
#       --parallel.sync_batch_norm=false --run.dir=images
lockstep=$1
. "$2/script.sh"
data=$2/data/runs
cp "$data/ids.bin" "$data/choices.txt" .
resumes=0

# same RUN FOLDER: FOLDER still has the first three lines of RUN, then steps 4 to 6 with the losses and norms that RUN recorded, within
# $loss_within and $norm_within.
same() {
    json step loss grad_norm <"$data/$1/metrics.jsonl" >recorded.txt
    json step loss grad_norm <"$2/metrics.jsonl" >resumed.txt
    head -n 3 "$data/$1/metrics.jsonl" >before.txt
    head -n 3 "$2/metrics.jsonl" | cmp -s - before.txt || bad "$1: the lines of steps 1 to 3 have changed"
    awk -v name="$2" -v loss_within=$loss_within -v norm_within=$norm_within '
        function off(x, y) { return x - y < 0 ? y - x : x - y }
        NR == FNR { loss[$1] = $2; norm[$1] = $3; next }
        $1 > 3 {
            n++
            if ($1 != n + 3 || $2 !~ /^[0-9.e-]+$/ || off($2, loss[$1]) > loss_within || off($3, norm[$1]) > norm_within) {
                print name ": step " $1 ": loss " $2 ", norm " $3 ", recorded " loss[$1] " and " norm[$1]; bad = 1
            }
        }
        END { if (n != 3) print name ": " n + 0 " steps resumed, 3 expected"; exit bad || n != 3 }' recorded.txt resumed.txt >same.txt ||
        bad "$(cat same.txt)"
}

# resumed RUN OPTIONS...: a copy of the run as it was after step 3, started again as its config.yaml says and with these options.
resumed() {
    run=$1
    shift
    rm -rf copy
    cp -r "$data/$run" copy
    chmod -R u+w copy
    head -n 3 "$data/$run/metrics.jsonl" >copy/metrics.jsonl
    resumes=$((resumes + 1))
    if "$lockstep" train --config copy/config.yaml --run.dir=copy "$@" >out.txt 2>&1; then same "$run" copy; \
        else bad "$run $*: $(cat out.txt)"; fi
}

verified() { "$lockstep" ckpt verify "$data/$1" >out.txt 2>&1 || bad "$1: ckpt verify: $(cat out.txt)"; }

exported() {
    "$lockstep" ckpt export "$data/$1" --to "hf-$1" >out.txt 2>&1 || bad "$1: ckpt export: $(cat out.txt)"
    "$lockstep" generate "$data/$1" --ids 1,2,3 --tokens 5 >out.txt 2>&1 || bad "$1: generate: $(cat out.txt)"
    "$lockstep" generate "hf-$1" --ids 1,2,3 --tokens 5 >hf.txt 2>&1 || bad "$1: generate from its export: $(cat hf.txt)"
    cmp -s out.txt hf.txt || bad "$1: generates '$(cat out.txt)', its export '$(cat hf.txt)'"
}

alone="--launch.ranks=1 --parallel.dp=1 --parallel.tp=1 --parallel.pp=1 --parallel.cp=1 --parallel.ep=1 --parallel.zero=0"
loss_within=1e-5 norm_within=1e-5
for run in one ranks; do
    verified $run
    exported $run
    resumed $run
    resumed $run $alone --train.micro_batch=4
    resumed $run --launch.ranks=2 --parallel.tp=1 --parallel.dp=2 --parallel.zero=3
done
for run in stages chunks; do
    verified $run
    exported $run
    resumed $run
    resumed $run $alone
done
# In bf16 sums of another order differ by more.
loss_within=1e-4 norm_within=4e-3
verified experts
"$lockstep" generate "$data/experts" --ids 1,2,3 --tokens 5 >out.txt 2>&1 || bad "experts: generate: $(cat out.txt)"
expect 1 "no bias on scores (router_bias_rate 0.02)" ckpt export "$data/experts" --to hf-experts
resumed experts
resumed experts $alone --train.accumulate=4
verified images
resumed images # its config.yaml has data.seq_len=256, the default of that time, which an image model does not read
expect 2 "data.seq_len does nothing here: an image model has no sequences" train --config copy/config.yaml --run.dir=copy --data.seq_len=256
"$lockstep" eval copy --launch.ranks=1 --json >out.txt 2>&1 || bad "images: eval: $(cat out.txt)"
[ "$(json loss <out.txt | grep -c '^[0-9]')" -eq 1 ] || bad "images: eval: $(cat out.txt)"

[ $resumes -eq 13 ] || bad "$resumes resumed runs, not 13"
[ $failures -eq 0 ] || exit 1
say "$resumes resumed runs"
