#!/bin/sh
# test_refusals.sh LOCKSTEP TESTS - impossible option values: exit code 2 in every command, before anything runs, in one line that names the
# option, the value found and what is allowed.
set -u
lockstep=$1
. "$2/script.sh"

# The rows of a table on standard input: ARGUMENTS | words of the message | ... Text and folder are added where WITH says so.
rows=0
refused() {
    code=$1 with=$2
    while IFS='|' read -r arguments words; do
        [ -n "$arguments" ] || continue
        rows=$((rows + 1))
        eval "set -- $arguments $with"
        timeout 120 "$lockstep" "$@" >out.txt 2>err.txt
        got=$?
        [ $got -eq "$code" ] || bad "exit $got, not $code: $arguments: $(cat err.txt)"
        [ "$(wc -l <err.txt)" -eq 1 ] || bad "$(wc -l <err.txt) lines: $arguments: $(cat err.txt)"
        [ -s out.txt ] && bad "something on standard output: $arguments: $(cat out.txt)"
        while [ -n "$words" ]; do
            word=${words%%|*}
            grep -qF -e "$word" err.txt || bad "no '$word': $arguments: $(cat err.txt)"
            [ "$words" = "$word" ] && words= || words=${words#*|}
        done
    done
    [ -e bad ] && bad "a run that cannot start leaves a folder"
}

# ---- values that are within the options' limits ----
refused 2 "--data.text=text.txt --run.dir=bad" <<'END'
train --model.preset=gpt5|model.preset|'gpt5'|there are gpt2-124m|resnet-tiny
train --model.preset=llama-tny|did you mean 'llama-tiny'
train --model.heads=5|model.width=256|model.heads=5|use 4 or 8
train --model.kv_heads=3|model.heads=8|model.kv_heads=3|use 2 or 4
train --model.preset=gpt2-tiny --data.seq_len=16 --model.kv_heads=2|model.kv_heads=2|GPT-2 has no grouped heads|leave it out
train --model.width=60 --model.heads=4|model.width=60|heads of 15 channels|even
train --model.dropout=0.1|model.dropout=0.1|Llama has no dropout|leave it out
train --model.attention_dropout=0.1|model.attention_dropout=0.1|Llama has no dropout|leave it out
train --model.experts=4|model.experts|no experts
train --model.preset=mixtral-tiny --data.seq_len=16 --model.experts_per_token=9|model.experts_per_token=9|use 1 to 4
train --model.preset=gpt2-tiny --data.seq_len=16 --model.rope_theta=5|model.rope_theta
train --model.preset=llama-tiny --data.seq_len=100000|data.seq_len=100000|128 positions|model.max_positions
train --model.vocab=100|257 tokens|only 100|--model.vocab=257
train --data.tokenizer=odd|data.tokenizer|'odd'|bytes, bpe
train --optim.name=sgd --optim.nesterov=true --optim.momentum=0|optim.nesterov=true|optim.momentum=0|0.9
train --optim.nesterov=true|optim.nesterov|optim.name=sgd
train --optim.eps=0|optim.eps=0|1e-8
train --optim.eps=1|optim.eps=1|1e-8
train --precision.grads=bf16 --precision.compute=fp32|precision.grads=bf16 with precision.compute=fp32|use precision.compute=bf16
train -n 2 --precision.compute=bf16 --precision.grads=bf16 --precision.reduce=bf16|precision.reduce does nothing here|as they are kept
train --precision.grads=fp16|precision.grads|'fp16'
train --optim.in_backward|optim.in_backward=true with optim.clip=1|use optim.clip_by=previous or optim.clip=0
train --optim.clip_by=previous --optim.clip=0|optim.clip_by does nothing here|optim.clip=0 clips nothing
train --optim.in_backward --optim.clip=0 -n 2 --parallel.pp=2|optim.in_backward=true with parallel.pp=2|use parallel.pp=1
train --optim.in_backward --optim.clip=0 -n 2 --parallel.zero=3 --parallel.offload_parameters=cpu|true with parallel.offload_parameters
train --optim.in_backward --optim.clip=0 -n 2 --parallel.method=server|optim.in_backward=true with parallel.method=server|=allreduce
train --optim.in_backward --optim.clip=0 -n 2 --parallel.zero=1 --optim.name=lamb|optim.in_backward=true with optim.name=lamb|=adamw
train --optim.in_backward --optim.clip=0 --train.accumulate=2|optim.in_backward=true with train.accumulate=2|use train.accumulate=1
train --optim.in_backward --optim.clip=0 --optim.offload=file|optim.in_backward=true with optim.offload|use optim.offload=none
train --optim.in_backward --optim.clip=0 --train.non_finite=skip|optim.in_backward=true with train.non_finite=skip|use train.non_finite=stop
train --optim.in_backward --optim.clip=0 --run.device=check|optim.in_backward=true with run.device=check|run.device=cpu
train --optim.min_lr=1 --optim.lr=0.1|optim.min_lr=1|optim.lr=0.1
train --optim.warmup=20 --train.steps=10|optim.warmup=20|10 steps
train --train.steps=0 --train.time_budget=9|train.time_budget|train.steps=0
train --optim.name=sgd --optim.beta1=0.5|optim.beta1|adam
train --recompute.mode=some|recompute.mode|'some'|none, selective, full
train --recompute.mode=every:0|recompute.mode|'every:0'|every:2
train --recompute.mode=budget:much|recompute.mode|'budget:much'|budget:2GiB
train --recompute.mode=first:-1|recompute.mode|'first:-1'|first:K
train --train.global_batch=5 --train.micro_batch=2 --train.accumulate=1|train.global_batch|5 = 2 * 1 * 1|use --train.accumulate=-1
train --train.micro_batch=0|train.micro_batch: 0 is out of range|-1, or at least 1
train --train.seed=foo|train.seed|'foo' is not a whole number such as 8
train --model.aux_loss=-0.5|model.aux_loss: -0.5 is out of range|-1, or at least 0
train --model.preset=gpt2-tiny --model.head_size=2|model.head_size=2|use model.head_size=16, or leave it out
train --data.vocab_size=300|data.vocab_size|data.tokenizer=bpe
train --data.tokens=x|data.text and data.tokens
train --parallel.dp=4|does not hold: 1 = 1 * 4 * 1 * 1|-n 4|use --parallel.dp=1
train -n 6 --parallel.tp=2 --parallel.dp=2|does not hold: 6 = 1 * 2 * 1 * 2|use --parallel.dp=3, or match the product with -n 4
train -n 2 --parallel.tp=3|does not hold|3
train -n|-n needs a value|the number of ranks
train -n --parallel.zero=1|-n needs a value|the number of ranks
train -n text.txt|-n: 'text.txt' is not a number|the number of ranks
train -n -1|-n: launch.ranks: -1 is out of range
train --parallel.zero=1|parallel.zero|a single rank|start more with -n
train -n 2 --parallel.replicate=3 --parallel.zero=1|parallel.dp=2|parallel.replicate=3|use parallel.replicate=2
train -n 2 --parallel.zero=2 --parallel.offload_parameters=file|parallel.offload_parameters=file with parallel.zero=2|use parallel.zero=3
train --optim.in_backward --optim.clip=0 --parallel.offload_parameters=cpu|optim.in_backward=true with parallel.offload_parameters
train -n 2 --parallel.method=server --parallel.offload_parameters=cpu|parallel.offload_parameters=cpu with parallel.zero=0
train --parallel.prefetch=2|parallel.prefetch does nothing here|parallel.offload_parameters
train -n 2 --parallel.zero=3 --parallel.fsdp_unit=layer|parallel.fsdp_unit|'layer'|layers:2
train -n 2 --parallel.zero=3 --parallel.fsdp_unit=layers:0|parallel.fsdp_unit|'layers:0'|block, layers:K
train -n 2 --parallel.zero=3 --parallel.prefetch=1001|parallel.prefetch|1001|at most 1000 units
train -n 2 --parallel.zero=2 --parallel.prefetch=2|parallel.prefetch does nothing here|parallel.zero=3
train -n 2 --parallel.zero=1 --parallel.fsdp_unit=model|parallel.fsdp_unit does nothing here|parallel.zero=3
train -n 2 --parallel.zero=3 --parallel.overlap=false --parallel.prefetch=2|parallel.prefetch does nothing here|parallel.overlap=false
train -n 2 --parallel.ep=2|parallel.ep=2|no experts
train -n 2 --parallel.pp=2 --model.layers=1|model.layers=1|parallel.pp=2|at least one layer
train -n 2 --parallel.pp=2 --parallel.schedule=fast|parallel.schedule=fast|zb-h1
train -n 2 --parallel.pp=2 --parallel.schedule=forward|parallel.schedule=forward|evaluation|use 1f1b
train -n 2 --parallel.replicate=2|parallel.replicate=2|parallel.zero=0 replicates everything
train -n 2 --parallel.replicate=2 --parallel.zero=1|parallel.replicate=2|shards nothing|use parallel.zero=0
train -n 2 --parallel.pp=2 --parallel.stages=3,9|parallel.stages=3,9
train -n 2 --parallel.pp=2 --parallel.vpp=2 --parallel.schedule=gpipe|parallel.schedule=gpipe|parallel.vpp=2|1 chunk per rank
train -n 2 --parallel.dp=1024 --parallel.tp=256|parallel.dp=1024 * parallel.cp=1 * parallel.tp=256 are too many ranks; at most 131072
train -n 2 --parallel.cp=2 --data.seq_len=3|data.seq_len=3|parallel.cp=2|4 tokens
train -n 16 --parallel.tp=16|model.heads=8|parallel.tp=16
train -n 2 --model.heads=5|model.heads=5|use 4 or 8
train -n 2 --model.preset=resnet-tiny --parallel.tp=2 --data.text=|parallel.tp=2|a model that is not a transformer supports only parallel.dp
train --launch.ranks=x|launch.ranks|'x'
train --data.tokenizer=bpe --data.vocab_size=300 --model.vocab=270|tokens, but the model's vocabulary only 270|use --model.vocab=
train --run.memory_limit=1.5|run.memory_limit|'1.5'|1.5GiB
train -n 2 --parallel.method=ring|parallel.method|'ring'|server
train --parallel.method=server|parallel.method does nothing here|start more with -n
train -n 2 --parallel.method=server --parallel.zero=1|parallel.zero=1 with parallel.method=server|use parallel.zero=0
train -n 4 --parallel.method=dataparallel --parallel.tp=2|parallel.tp=2 with parallel.method=dataparallel
train -n 2 --parallel.method=dataparallel --parallel.bucket=1MiB|parallel.bucket does nothing here|block by block
train -n 2 --parallel.method=async --parallel.first_bucket=2MiB|parallel.first_bucket does nothing here
train -n 3 --parallel.method=async --model.preset=mixtral-tiny --data.seq_len=16|parallel.method=async with experts|parallel.method=server
train -n 3 --parallel.method=async --train.non_finite=skip|train.non_finite=skip with parallel.method=async
train -n 3 --parallel.method=async --run.device=check|run.device=check with parallel.method=async|run.device=cpu
train -n 3 --parallel.method=async --debug.fault=average|debug.fault with parallel.method=async
train -n 3 --parallel.method=async --train.micro_batch=2 --train.accumulate=1 --train.global_batch=6|(parallel.dp - 1)|6 = 2 * 1 * 2
train -n 2 --parallel.method=server --train.time_budget=60|train.time_budget=60 with parallel.method=server|train.steps
END

# ---- the same values in the other commands ----
refused 2 "" <<'END'
plan --model.preset=gpt5|model.preset|'gpt5'|there are
plan --model.heads=5|model.heads=5|use 4 or 8
plan --optim.name=lamb --optim.momentum=0.5|optim.momentum|sgd
plan --data.seq_len=999999|data.seq_len=999999|positions
plan --parallel.schedule=1f1b --parallel.vpp=2 --parallel.pp=2 --print-schedule|parallel.vpp=2|1 chunk per rank
plan --parallel.dp=1024 --parallel.tp=256|parallel.dp=1024 * parallel.cp=1 * parallel.tp=256 are too many ranks; at most 131072
plan --parallel.dp=1024 --parallel.tp=256 --print-mesh|parallel.dp=1024 * parallel.cp=1 * parallel.tp=256 are too many ranks; at most 131072
plan --parallel.dp=65536 --parallel.tp=65536 --parallel.cp=65536 --parallel.pp=65536|are too many ranks; at most 131072
plan --train.micro_batch=3000000000|train.micro_batch=3000000000 is out of range|at most 2147483647
plan --train.micro_batch=1 --train.accumulate=3000000000|train.accumulate=3000000000 is out of range|at most 2147483647
plan --parallel.pp=2 --parallel.stages=1,2|parallel.stages=1,2
plan -n 262144|launch.ranks: 262144|at most 131072
plan -n 2 --search --machine=h100-dgx --train.global_batch=8 --optim.in_backward|optim.in_backward with a search|leave it out
plan --recompute.mode=budget:1KiB|recompute|budget of 1024 bytes cannot be met|MiB)|use a larger budget
plan gpt2-124m|'gpt2-124m' is a model, not a text|--model.preset=gpt2-124m
plan text.txt text.txt|data.text takes one
plan text.txt --data.text=text.txt|'text.txt' and --data.text are both given
plan base.yaml|base.yaml is a config, not a text|--config base.yaml
plan text.txt --model.preset=resnet-tiny|model.preset=resnet-tiny trains on drawn pictures|data.text
plan --model.preset=resnet-tiny --model.vocab=300|model.vocab|an image model has classes
plan --model.preset=resnet-tiny --model.layers=2|model.layers|the image presets have their own shape
plan --model.preset=resnet-tiny --data.val_fraction=0.2|data.val_fraction|separate pictures
plan text.txt --data.tokenizer=odd|data.tokenizer|'odd'|bytes, bpe
plan --data.tokens=x.bin --data.tokenizer=bpe|data.tokenizer=bpe learns from data.text
plan tmp|tmp is a folder, not a text
train gpt2-124m|'gpt2-124m' is a model, not a text|--model.preset=gpt2-124m
eval absent text.txt text.txt|data.text takes one
bench comm -g 65536 -t 65536|-g 65536 with -t 65536 are too many ranks; at most 131072
bench train text.txt|unexpected argument 'text.txt'
generate x --tokens many|--tokens: 'many' is not a whole number
bench train --model.preset=gpt5|model.preset|'gpt5'
bench train --optim.name=sgd --optim.nesterov=true --optim.momentum=0|optim.nesterov=true|0.9
parity --a "" --b "parallel.dp=3 parallel.method=async"|--b|parallel.method=async does not compute the step of a single rank
plan --parallel.dp=2 --parallel.method=server --machine h100-dgx|parallel.method=server|planned only for parallel.method=allreduce
plan -n 2 --parallel.method=server --machine h100-dgx --train.global_batch=8 --search|parallel.method=server
bench train -n 3 --parallel.method=async|parallel.method=async
parity --a "" --b "model.preset=gpt5"|--b|model.preset|'gpt5'
parity --a "model.heads=5" --b "parallel.dp=2"|--a|model.heads=5
parity --a "" --b "parallel.dp=2" --recompute.mode=some|recompute.mode|'some'
parity --a "" --b "parallel.dp=2" --data.seq_len=999999|data.seq_len=999999
data prepare out.bin --data.text=text.txt --data.format=odd|data.format|'odd'|llmc
train|nothing to train on|--data.text=FILE
train --train.stps=3|'train.stps'|train.steps
train --train.steps=many|train.steps|'many'|whole number
train --train.steps=1e3|train.steps|'1e3'|1000
train --optim.lr=fast|optim.lr|'fast'|3e-4
train --data.shuffle=maybe|data.shuffle|'maybe'|true
train --run.memory_limit=lots|run.memory_limit|'lots'|64KiB
train --data.text=text.txt --model.layers=2 --launch.ranks=3 --parallel.pp=3|model.layers=2|parallel.pp=3|use at most 2 stages
train --data.text=text.txt --data.seq_len=0|data.seq_len: 0 is out of range|-1, or at least 1
train --parallel.zero=4|parallel.zero|4|at most 3
train --optim.name=adamant|optim.name|'adamant'|adamw
train --bench.steps=3|bench.steps|'train'|bench
train --print-program|--print-program
generate|too few arguments|MODEL
generate x --ids a,b|--ids|'a,b'|1,2,3
generate x --temperature hot|--temperature|'hot'
generate x --top-p 2|--top-p|2|at most 1
completion csh|'csh'|bash, zsh or fish
END

# ---- files that are missing or of another kind are failures, not usage errors ----
printf '{' >broken.json
: >empty.txt
echo short >short.txt
refused 1 "--run.dir=bad" <<'END'
train --data.text=absent.txt|absent.txt|cannot open
train --data.text=/dev/null|/dev/null: not a regular file|use a file
train absent.txt|absent.txt|cannot open
train --data.text=text.txt --model.hf=absent|model.hf: absent
train --data.text=text.txt --model.hf=broken.json|broken.json
train --data.text=text.txt --data.tokenizer=absent.json|absent.json
train --data.tokens=absent.bin|absent.bin
train --data.text=empty.txt|empty.txt: the text is empty
train --data.text=text.txt --checkpoint.resume=absent|checkpoint.resume: absent
END

# ---- errors that depend on the data, on ranks that were started: their logs are in the run's folder ----
refused 2 "--data.text=text.txt --run.dir=started" <<'END'
train -n 2 --data.tokenizer=bpe --data.vocab_size=300 --model.vocab=270|rank 0: model.vocab: |vocabulary only 270|--model.vocab=300
END
refused 1 "--run.dir=started" <<'END'
train -n 2 --data.text=short.txt|rank 0: short.txt|tokens are fewer than one sample
END

refused 1 "" <<'END'
plan absent.txt|absent.txt|cannot open
plan empty.txt|empty.txt: the text is empty
plan short.txt|short.txt|tokens are fewer than one sample
ckpt list text.txt|text.txt is a file|the folder of a run
ckpt list absent|absent: no such folder
END

[ $failures -eq 0 ] || exit 1
say "$rows refusals, each as it should be"
