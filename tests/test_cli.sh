#!/bin/sh
# test_cli.sh LOCKSTEP - the command as users and scripts run it: help, exit codes, run folders, killed runs, bad input.
set -u
lockstep=$1
source=$(cd "$2/.." && pwd)
. "$2/script.sh"

tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 --train.micro_batch=2 --optim.warmup=5
      --train.eval_every=0 --train.eval_batches=2 --launch.threads=1"

# ---- help and usage ----
expect 0 "usage: lockstep COMMAND" --help
expect 0 "lockstep 0" --version
for command in train plan generate eval "bench train" "bench gemm" "data prepare" "data inspect" "ckpt list" "ckpt inspect" "ckpt verify" \
    version \
               "ckpt export" "ckpt import" help completion; do
    expect 0 "examples" $command -h
    expect 0 "usage: lockstep $command" $command --help
    [ -s err.txt ] && bad "help of $command on stderr"
    [ "$(wc -l <out.txt)" -gt 8 ] || bad "help of $command is too short"
done
for group in bench data ckpt; do
    expect 0 "usage: lockstep $group COMMAND" $group -h
    expect 0 "usage: lockstep $group COMMAND" $group --help
done
expect 0 "usage: lockstep ckpt import --from FOLDER --to FOLDER [FLAGS]" ckpt import -h
expect 0 "usage: lockstep ckpt export PATH --to FOLDER [FLAGS]" ckpt export -h
expect 2 "too few arguments; usage: lockstep ckpt export PATH --to FOLDER" ckpt export
for topic in options config models data run precision memory labs exit; do expect 0 "" help $topic; done
"$lockstep" help options --markdown | cmp -s - "$source/docs/options.md" || bad "docs/options.md is not what 'make docs' writes"
"$lockstep" help --markdown | cmp -s - "$source/docs/command.md" || bad "docs/command.md is not what 'make docs' writes"
for shell in bash zsh fish; do expect 0 "optim.lr" completion $shell; done
"$lockstep" completion bash | bash -n || bad "the bash completion is no bash"
expect 2 "see 'lockstep --help'"
expect 2 "did you mean 'train'" trian
expect 2 "list, inspect, verify, export, import" ckpt
expect 2 "did you mean 'train.steps'" train --train.stps=3
expect 2 "did you mean '--train.steps=3'" train --steps=3
expect 2 "is not a whole number" train --train.steps=many
expect 2 "is out of range" train --data.seq_len=0
expect 2 "is not one of sgd|adam" train --optim.name=adamant
expect 2 "does nothing in 'train'" train --bench.steps=3
expect 2 "does nothing here" train $tiny --optim.trust_coefficient=1
expect 2 "train.global_batch = train.micro_batch * train.accumulate * parallel.dp does not hold: 5 = 2 * 1 * 1" \
    train $tiny --train.global_batch=5 --train.accumulate=1
expect 2 "launch.ranks = parallel.pp * parallel.dp * parallel.cp * parallel.tp does not hold: 1 = 1 * 4 * 1 * 1" train $tiny \
    --parallel.dp=4
expect 2 "-n: 'x' is not a number" train $tiny -n x
expect 2 "nothing to train on" train
expect 2 "needs a value" generate runs --prompt
expect 2 "too few arguments" generate

# ---- option names of other frameworks find their counterpart ----
while IFS='|' read -r arguments meant; do expect 2 "did you mean '$meant'?" train $arguments; done <<'END'
--zero 3|--parallel.zero=3
--parallel.fsdp|--parallel.zero=3
--parallel.ddp|--parallel.zero=0
--fsdp=true|--parallel.zero=3
--lr 0.1|--optim.lr=0.1
-lr 0.1|--optim.lr=0.1
--batch_size=8|--train.global_batch=8
--batch-size 8|--train.global_batch=8
--tp=2|--parallel.tp=2
--parallel.tensor=2|--parallel.tp=2
--parallel.pipeline=2|--parallel.pp=2
--split=2|--parallel.tp_chunks=2
--parallel.contxt=ring|parallel.cp_method
--parallel.keep_gatherd=true|parallel.reshard_after_forward
--gradient_checkpointing|--recompute.mode=full
--num_layers 4|--model.layers=4
--output_dir=x|--run.dir=x
--recompute.every=3|--recompute.mode=every:3
--recompute.every|--recompute.mode=every:K
--optim.sgd|--optim.name=sgd
--parallel.ring|--parallel.cp_method=ring
--log.dir=x|--run.dir=x
--train.lr=1|--optim.lr=1
--checkpoint.save=5|--checkpoint.every=5
--model.top_k=2|--model.experts_per_token=2
--model.capacity_factor=2|--model.capacity=2
--sampel x|--sample
-sample x|--sample
END
printf 'optim:\n  learning_rate: 3e-4\n' >c.yaml
expect 2 "c.yaml:2: unknown option 'optim.learning_rate'; did you mean '--optim.lr=3e-4'?" train --config c.yaml
while IFS='|' read -r word meant; do expect 2 "did you mean '$meant" "$word"; done <<'END'
resume|lockstep train --config RUN/config.yaml'
evaluate|lockstep eval RUN'
sample|lockstep generate RUN
checkpoint|lockstep ckpt list RUN'
nccl-tests|lockstep bench comm
evl|eval'
END
for word in labs parity checkpoint fsdp ddp zero experts optim lr resume nccl ckpt eval moe oom "learning rate" Perfetto; do
    expect 0 "" help "$word"
    [ -s out.txt ] || bad "help $word says nothing"
done
expect 0 "lockstep help data" help gzip
expect 0 "lockstep help exit" help ctrl-c
expect 0 "lockstep help ranks" help slurm
expect 0 "lockstep doctor RUN" help stuck
expect 0 "lockstep help layouts" help pipeline bubble
expect 2 "unknown flag '--checkpoint'; the model is an argument without a flag: lockstep generate runs/book" generate \
    --checkpoint runs/book
expect 2 "unknown flag '--ckpt'; the model is an argument without a flag: lockstep eval runs/book" eval --ckpt=runs/book
expect 0 "--parallel.zero=3" help FSDP
expect 0 "lockstep bench comm" help nccl
expect 0 "--optim.lr " help lr
expect 0 "lockstep doctor" help hang
expect 2 "did you mean 'model.max_positions'?" train --model.max_pos=3
for word in --model.heads --model.heads=4 model.heads; do
    expect 0 "  --model.heads=N             number of query heads" help $word
    grep -q "read by train, plan, bench train, parity" out.txt || bad "help $word: $(cat out.txt)"
done
expect 0 "  --parallel.zero=N " help --zero
expect 0 "--parallel.keep_gathered=true means --parallel.reshard_after_forward=false" help parallel.keep_gathered
expect 0 "lockstep generate --prompt TEXT" help --prompt
expect 0 "Options come from three places" help --config
expect 2 "unknown option '--train.stps'; did you mean '--train.steps'?" help --train.stps
expect 2 "unknown option '--xyzzyq'; see 'lockstep help options'" help --xyzzyq

# ---- the most used options come first, in help and in completion scripts ----
before() { [ "$(grep -n -m1 -e "$1" out.txt | cut -d: -f1)" -lt "$(grep -n -m1 -e "$2" out.txt | cut -d: -f1)" ] ||
    bad "$3: $1 is not before $2"; }
for page in "help options" "train --help"; do
    expect 0 "most used options" $page
    before "^  --run.dir=" "^other options" "$page"
    before "^other options" "^  --model.heads=" "$page"
    [ "$(grep -c -e '^  --run.dir=' out.txt)" -eq 1 ] || bad "$page: an option twice"
    [ "$(grep -c '^  --[a-z]*\.' out.txt)" -gt 60 ] || bad "$page: not all options"
done
expect 0 "most used options" train -h
grep -q -e "--model.heads=" out.txt && bad "the short help has all options"
"$lockstep" completion zsh | sed -n "/^    'train')/p" | tr ' ' '\n' >out.txt
before "'--run.dir=" "'--model.heads=" "completion zsh"
bash -c 'source <("$0" completion bash); compopt() { :; }; COMP_WORDS=(lockstep train --); COMP_CWORD=2; _lockstep
         printf "%s\n" "${COMPREPLY[@]}"' "$lockstep" >out.txt
before "--run.dir=" "--model.heads=" "completion bash"
expect 2 "nothing mentions 'xyzzy'; the topics are the commands and options, config" help xyzzy

# ---- config files ----
printf 'train:\n  steps: 7\noptim:\n  lr: 1e-4\n' >a.yaml
printf 'train:\n  steps: 8\n' >b.yaml
"$lockstep" train --config a.yaml --config b.yaml --optim.lr=2e-4 --print-config >out.txt
grep -q 'steps: 8 .*# b.yaml:2' out.txt || bad "the later file does not win"
grep -q 'lr: 0.0002 .*# command line' out.txt || bad "the command line does not win"
printf 'train:\n  stepz: 7\n' >c.yaml
expect 2 "c.yaml:2: unknown option 'train.stepz'" train --config c.yaml
printf 'train: [1]\n' >c.yaml
expect 2 "c.yaml:1" train --config c.yaml
expect 2 "missing.yaml" train --config missing.yaml

# ---- a run that is killed and resumed equals one that was not ----
# The killed run has far more steps ahead than it can make; what it saved after step 50 is removed, as if it had been killed earlier.
expect 0 "checkpoint  straight/checkpoints/step_00000100" train $tiny --run.dir=straight --train.steps=100
[ "$(wc -l <straight/metrics.jsonl)" -eq 100 ] || bad "metrics.jsonl has not a line a step"
[ -s straight/log/rank_0000.log ] || bad "no log"
ls straight/events.out.tfevents.* >/dev/null 2>&1 || bad "no events"
"$lockstep" train $tiny --run.dir=parts --train.steps=1000000 --train.schedule_steps=100 --checkpoint.every=50 --checkpoint.keep=1000000 \
    --debug.check_finite=true >out.txt 2>err.txt &
pid=$!
wait_lines parts/metrics.jsonl 51
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
[ -d parts/checkpoints/step_00000050 ] || bad "no checkpoint of step 50 after kill -9"
find parts/checkpoints -mindepth 1 -maxdepth 1 ! -name step_00000050 -exec rm -r {} +
expect 0 "from parts/checkpoints/step_00000050" train --config parts/config.yaml --train.steps=100
grep -q 'debug' parts/config.yaml && bad "config.yaml keeps injected faults"
[ "$(hashes straight)" = "$(hashes parts)" ] && [ -n "$(hashes parts)" ] || bad "killed and resumed is not the same bits"
[ "$(wc -l <parts/metrics.jsonl)" -eq 100 ] || bad "metrics.jsonl of a resumed run has not a line a step"

# ---- signals ----
"$lockstep" train $tiny --run.dir=term --train.steps=1000000 --debug.check_finite=true >out.txt 2>err.txt &
pid=$!
wait_lines term/metrics.jsonl 3
kill -USR1 $pid
has_saved() { ls term/checkpoints/step_????????/manifest.json >/dev/null 2>&1; }
wait_until has_saved || bad "SIGUSR1 saves nothing"
kill -0 $pid 2>/dev/null || bad "SIGUSR1 ends the run"
kill -TERM $pid
wait $pid
[ $? -eq 0 ] || bad "SIGTERM: exit code: $(cat err.txt)"
grep -q "stopped by SIGTERM" out.txt || bad "SIGTERM is not reported"
expect 0 "all bytes match their hashes" ckpt verify term

# ---- another run's checkpoint ----
expect 0 "from straight/checkpoints/step_00000100" train $tiny --run.dir=other --train.steps=102 \
    --checkpoint.resume=straight
grep -q 'resume: "auto"' other/config.yaml || bad "config.yaml does not resume its own run"
expect 1 "holds a checkpoint of step 102, which is after step 100" \
    train $tiny --run.dir=other --train.steps=103 --checkpoint.resume=straight

# ---- commands that take a run ----
expect 0 "Line" generate straight --prompt "Line" --tokens 20 --launch.threads=1
"$lockstep" generate straight --prompt "Line" --tokens 20 --seed 3 >one.txt
"$lockstep" generate straight --prompt "Line" --tokens 20 --seed 3 >two.txt
cmp -s one.txt two.txt || bad "the same seed gives another text"
expect 0 "" generate straight --ids 1,2,3 --logits logits.safetensors --precision.compute=fp32
[ -s logits.safetensors ] || bad "no logits"
expect 2 "300" generate straight --ids 300
expect 2 "the prompt's 4 tokens and 999 more do not fit into the model's 128 positions; generate at most 124" generate straight \
    --prompt "Line" --tokens 999
[ -s out.txt ] && bad "generate prints before it refuses: $(cat out.txt)"
expect 2 "is not a list of token ids" generate straight --ids a,b
printf 'Line\nThe second\nAnd a third line' >prompts.txt
"$lockstep" generate straight --prompts prompts.txt --temperature 0 --tokens 30 >all.txt 2>err.txt || bad "three prompts: $(cat err.txt)"
grep -q "^3 prompts: 90 tokens in .*tokens/s" err.txt || bad "how fast: $(cat err.txt)"
number=0
while read -r line; do
    number=$((number + 1))
    echo "--- prompt $number"
    "$lockstep" generate straight --prompt "$line" --temperature 0 --tokens 30
    [ $number -eq 3 ] || echo
done >each.txt <<END
Line
The second
And a third line
END
cmp -s all.txt each.txt || bad "several prompts: $(cat all.txt); each alone: $(cat each.txt)"
"$lockstep" generate straight --prompts prompts.txt --temperature 0 --tokens 30 --batch 2 2>err.txt | cmp -s - all.txt || bad "two at once"
: >empty.txt
printf 'one\n\nthree\n' >gap.txt
expect 2 "empty.txt: the file is empty; expected a prompt on each line" generate straight --prompts empty.txt
expect 2 "gap.txt:2: the line is empty; expected a prompt on each line" generate straight --prompts gap.txt
expect 1 "absent.txt: cannot open" generate straight --prompts absent.txt
expect 2 "prompts.txt:2: the prompt's 10 tokens and 124 more do not fit into the model's 128 positions" generate straight \
    --prompts prompts.txt --tokens 124
[ -s out.txt ] && bad "prompts are printed before the refusal: $(cat out.txt)"
expect 2 "prompts and --prompt are both given" generate straight --prompts prompts.txt --prompt x
expect 2 "batch=4 has no effect without --prompts FILE" generate straight --prompt x --batch 4
expect 0 "Llama" ckpt inspect straight --tensors
expect 0 "hf: exported" ckpt export straight --to hf
[ -s hf/config.json ] && [ -s hf/model.safetensors ] || bad "the export is not a Hugging Face folder"
expect 0 "Line" generate hf --prompt "Line" --tokens 5
expect 0 "step_00000000" ckpt import --from hf --to back/checkpoints
expect 0 "Line" generate back --prompt "Line" --tokens 5
expect 2 "give --to" ckpt export straight
expect 0 "step 1 of 1" train --data.text=text.txt --model.hf=hf --data.tokenizer=hf --data.seq_len=16 --train.steps=1 \
    --train.eval_batches=1 --run.dir=tuned
expect 2 "model.rope_theta does nothing here" plan --model.preset=gpt2-124m --model.rope_theta=500
expect 0 "activations" plan --model.preset=gpt2-124m --data.seq_len=64 --train.micro_batch=1
measured() { tail -n 1 straight/metrics.jsonl | json "memory.$1"; }
"$lockstep" plan --config straight/config.yaml --json >planned.json
for part in parameters gradients optimizer activations; do
    [ "$(measured $part)" -gt 0 ] || bad "no bytes of $part in metrics.jsonl"
    has memory.$part "$(measured $part)" <planned.json || bad "$part: not the $(measured $part) planned: $(cat planned.json)"
done
expect_json memory.activations "" plan --config straight/config.yaml --launch.threads=2 --json
expect 2 "does nothing in 'plan'" plan --optim.beta1=0.5
expect 0 "linear" plan --model.preset=llama-tiny --data.seq_len=16 --print-program
expect_json parameters 124439808 plan --model.preset=gpt2-124m --data.seq_len=64 --json
expect_json "tokens_per_second machine.processors overhead" "" bench train --model.preset=llama-tiny --data.seq_len=16 \
    --bench.steps=2 --json
# A profile has the timed steps, and not the warm-up.
profile_calls() {
    "$lockstep" bench train --model.preset=llama-tiny --data.seq_len=16 --train.micro_batch=1 --train.accumulate=1 --launch.threads=1 \
        --run.measure_peak=off --run.device=cpu --bench.steps=2 --bench.warmup=$1 --profile | awk '$1 == "linear_dw" { print $4 }'
}
[ "$(profile_calls 0)" -gt 0 ] && [ "$(profile_calls 0)" = "$(profile_calls 2)" ] ||
    bad "calls in a profile: $(profile_calls 0), after a warm-up $(profile_calls 2)"
expect_json stages "[1,1]" bench train -n 2 --launch.threads=1 --model.preset=llama-tiny --data.seq_len=16 \
    --bench.steps=2 \
    --parallel.pp=2 --train.micro_batch=1 --train.accumulate=8 --json
has bubble none <out.txt && bad "no bubble: $(cat out.txt)"
expect 0 "11.1% for equal stages" bench train -n 2 --launch.threads=1 --model.preset=llama-tiny --data.seq_len=16 \
    --bench.steps=2 \
    --parallel.pp=2 --train.micro_batch=1 --train.accumulate=8
expect_json '[].gflops' "" bench gemm --m 64 --n 64 --k 64 --json
expect 0 "device check; GFLOP/s and kernel" bench gemm --m 8 --n 8 --k 8 --run.device=check
grep -q cuda out.txt && bad "bench gemm compares the cpu's kernels with CUDA's: $(cat out.txt)"
expect 0 "format llmc" data prepare data/text.bin --data.text=text.txt --data.tokenizer=bpe --data.vocab_size=300
expect 0 "llmc, u16" data inspect data/text.bin --vocab 300
expect 1 "data/text.bin" data inspect data/text.bin --vocab 257
printf '{"text":"a"}\n' >lines.jsonl
expect 1 \
    "lines.jsonl: not a token file: it has no llm.c header, no .idx beside it, and is not named .bin; 'lockstep data prepare' makes one" \
    data inspect lines.jsonl
expect 0 "step 1 of 1" train --data.tokens=data/text.bin --data.tokenizer=data --model.preset=llama-tiny --data.seq_len=16 \
    --train.steps=1 --train.eval_batches=1 --run.dir=fromtokens
sed 's/"id":1500/"id":70000/' "$source/tests/data/tokenizers/gpt2.json" >wide.json
expect 1 "70001" data prepare data/wide.bin --data.text=text.txt --data.tokenizer=wide.json --data.format=nanogpt

# ---- bad input ----
: >empty.txt
echo "short" >short.txt
expect 1 "the text is empty" train --data.text=empty.txt --run.dir=bad
expect 2 "data.tokenizer: 'odd' is not a tokenizer" train --data.text=text.txt --data.tokenizer=odd --run.dir=bad
expect 1 "short.txt" train --data.text=short.txt --run.dir=bad
expect 1 "cannot open" train --data.text=nowhere.txt --run.dir=bad
expect 2 "model.width=64 is not divisible by model.heads=5" train $tiny --model.heads=5 --run.dir=bad
[ -e bad ] && bad "a run that cannot start leaves a folder"
expect 1 "straight/checkpoints/step_00000100" train $tiny --model.width=32 --run.dir=straight --train.steps=200
expect 1 "holds checkpoints up to step 100" train $tiny --run.dir=straight --checkpoint.resume=none
expect 1 "limit" train $tiny --run.dir=bad --run.memory_limit=1MiB
expect 1 "out of memory: the step needs" train $tiny --run.dir=bad --model.width=4096 --run.memory_limit=300MiB
printf 'garbage' >>"$(ls straight/checkpoints/step_*/parameters*)"
expect 1 "parameters" ckpt verify straight/checkpoints/step_00000100
printf '{' >hf/config.json
expect 1 "config.json" generate hf --prompt x
expect 1 "nowhere" generate nowhere --prompt x

# A full disk: the save fails with a one-line warning, training continues, and the checkpoint before it is intact.
"$lockstep" train $tiny --run.dir=full --train.steps=30 --checkpoint.every=10 --checkpoint.keep=9 --debug.fail_write=2 >out.txt 2>err.txt \
    || bad "a full disk ends the run"
[ "$(grep -c '^training continues: step 10 is not saved' err.txt)" -eq 1 ] && [ "$(wc -l <err.txt)" -eq 1 ] ||
    bad "full disk: $(cat err.txt)"
expect 0 "all bytes match their hashes" ckpt verify full

if [ $failures -ne 0 ]; then
    say "$failures failed"
    exit 1
fi
say "all as it should be"
