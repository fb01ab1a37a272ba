#!/bin/sh
# test_plan_public.sh LOCKSTEP TESTS - plan.h from a program of the shared library (plan_public.c): its figures are those of `lockstep
# plan`, to the last digit, and what it refuses it refuses by the same line.
lockstep=$1
header=$2/../include/lockstep/plan.h source=$2/plan_public.c
. "$2/script.sh"
public=${lockstep%/*}/plan_public

memory="memory.parameters memory.gradients memory.optimizer memory.activations memory.communication memory.offload memory.total
    memory.other"
work="tokens_per_step model_flops_per_step executed_flops_per_step rank comm"
seconds="memory.group_buffers limit fits seconds.step seconds.units_per_second seconds.mfu seconds.hfu
    seconds.matmul seconds.attention seconds.memory_bound seconds.optimizer seconds.recomputed seconds.bubble"
for axis in dp tp cp pp ep offload; do seconds="$seconds seconds.exposed.$axis seconds.hidden.$axis"; done
price=seconds.price_of_million

# equal CLUSTER PATHS OPTIONS...: both print the same at these paths, and something at each
equal() {
    cluster=$1 paths=$2
    shift 2
    "$lockstep" plan --machine "$cluster" "$@" --json >command.json 2>err.txt || bad "plan --machine $cluster $*: $(cat err.txt)"
    "$public" plan "$cluster" "$@" >program.json 2>err.txt || bad "plan_public plan $cluster $*: $(cat err.txt)"
    same "$paths" "$cluster $*"
}
same() {
    for path in $1; do
        command=$(json "$path" <command.json) program=$(json "$path" <program.json)
        [ -n "$command" ] && [ "$command" != none ] && [ "$command" = "$program" ] || bad "$path is $program, not $command: $2"
    done
}

tiny="--data.seq_len=64 --precision.compute=fp32"
llama="--model.preset=llama3-8b --data.seq_len=2048 --precision.compute=bf16 --data.val_fraction=0"
equal h100-dgx "$memory $work $seconds $price" $llama --parallel.dp=8 --parallel.zero=3 --train.micro_batch=2
equal h100-dgx "$memory $work $seconds" $llama --parallel.tp=4 --parallel.sp=true --parallel.pp=2 --parallel.dp=5 --parallel.zero=1 \
    --train.micro_batch=1 --train.accumulate=4 --recompute.mode=selective
equal a100-80-selene "$memory $work $seconds" $llama --parallel.pp=4 --parallel.vpp=2 --parallel.schedule=interleaved --parallel.dp=2 \
    --train.micro_batch=1 --train.accumulate=8 --recompute.mode=full
equal b200-dgx "$memory $work $seconds" $llama --parallel.cp=2 --parallel.dp=2 --parallel.zero=2 --train.micro_batch=2 \
    --train.global_batch=3
equal h100-dgx "$memory $work $seconds offload.host" $llama --train.micro_batch=1 --optim.offload=cpu
equal h200-dgx "$memory $work $seconds" $llama --parallel.dp=2 --train.micro_batch=1 --optim.name=sgd --precision.master=false \
    --run.memory_limit=30000000000
[ "$(json fits <program.json)" = false ] || bad "it should not fit: $(cat program.json)"
equal h100-dgx "$memory $work $seconds" --model.preset=mixtral-tiny $tiny --data.val_fraction=0.1 --parallel.dp=4 --parallel.ep=2 \
    --train.micro_batch=2
equal v100-dgx2h "$memory $work memory.group_buffers seconds.step seconds.exposed.dp" --model.preset=gpt2-tiny $tiny \
    --data.val_fraction=0.1 --parallel.dp=3 --train.micro_batch=2 --parallel.overlap=false

# On this computer: with its instruction set, and as many threads as a single rank has.
alone="--model.preset=llama-tiny $tiny --train.micro_batch=2 --data.val_fraction=0"
"$lockstep" plan $alone --json >command.json 2>err.txt || bad "plan $alone: $(cat err.txt)"
"$public" plan "" $alone >program.json 2>err.txt || bad "plan_public $alone: $(cat err.txt)"
same "$memory $work" "this computer"

# A machine file of the user's.
sed 's/^  bandwidth: 3.35e12/  bandwidth: 1e12/' "${header%/include/*}/machines/h100-dgx.yaml" >slow.yaml
equal ./slow.yaml "seconds.step seconds.memory_bound" $llama --train.micro_batch=1 --parallel.dp=2

# Searches.
# found RANKS OPTIONS...: both find the same
found() {
    ranks=$1
    shift
    "$lockstep" plan --machine h100-dgx -n "$ranks" "$@" --search --json >command.json 2>err.txt || bad "plan --search $*: $(cat err.txt)"
    "$public" search h100-dgx --launch.ranks="$ranks" "$@" >program.json 2>err.txt || bad "plan_public search $*: $(cat err.txt)"
    same "checked priced fit" "search $*"
    json 'fastest[].compiled' 'fastest[].seconds' 'fastest[].bytes' <command.json >command.txt
    json 'fastest[].compiled' 'fastest[].seconds' 'fastest[].bytes' <program.json >program.txt
    [ "$(grep -c true command.txt)" -ge 1 ] && cmp -s command.txt program.txt ||
        bad "search $*: $(cat program.txt), not $(cat command.txt)"
}
found 8 $llama --train.global_batch=16 --parallel.cp=1 --recompute.mode=selective
found 8 --model.preset=mixtral-tiny $tiny --data.val_fraction=0.1 --train.global_batch=8 --parallel.tp=2 --parallel.zero=2 \
    --train.micro_batch=1
found 1 $llama --train.global_batch=4

# What is refused: by the line of the command, which names itself before it.
# refused OPTIONS...: both refuse it by one line
refused() {
    what=$1
    shift
    flags= ranks=
    [ "$what" = plan ] || flags=--search
    "$lockstep" plan --machine h100-dgx "$@" $flags >out.txt 2>command.txt && bad "plan $flags $* succeeded"
    "$public" "$what" h100-dgx "$@" >out.txt 2>program.txt && bad "plan_public $what $* succeeded"
    line=$(sed 's/^plan_public: //' program.txt)
    [ "$(wc -l <program.txt)" -eq 1 ] && [ "lockstep plan: $line" = "$(cat command.txt)" ] ||
        bad "$what $*: $(cat program.txt), not $(cat command.txt)"
}
refused plan $llama --parallel.tp=64
refused plan $llama --parallel.pp=64
refused search $llama --launch.ranks=64 --train.global_batch=16 --parallel.dp=1 --parallel.tp=1 --parallel.cp=1
refused search $llama --launch.ranks=1 --train.global_batch=4 --optim.offload=none
refused search $llama --launch.ranks=8 --train.global_batch=8 --parallel.zero=3 --parallel.prefetch=2

# The example in the header is what plan_public.c compiles, and runs.
sed -n '1,/\*\//{/^ \*   /s/^ \*   //p;}' "$header" | sed 's/  *\/\/.*//' >example.txt
[ "$(wc -l <example.txt)" -ge 9 ] || bad "plan.h has no example"
while read -r line; do
    grep -qF -e "$line" "$source" || bad "plan_public.c does not compile this line of plan.h: $line"
done <example.txt
"$public" example h100-dgx --model.preset=llama3-8b >out.txt 2>err.txt || bad "example: $(cat err.txt)"
grep -Eq '^[0-9.]+ s a step, MFU 0[.][0-9]+, [0-9]+ bytes$' out.txt || bad "example: $(cat out.txt)"

# Every built-in cluster.
"$public" clusters >out.txt 2>err.txt || bad "clusters: $(cat err.txt)"
for file in "${header%/include/*}"/machines/*.yaml; do
    name=${file##*/}
    grep -q "^${name%.yaml}: .*, [1-9][0-9]* a node, " out.txt || bad "${name%.yaml} is not listed"
done
grep -qF "h100-dgx: NVIDIA DGX H100, 8 x NDR InfiniBand, H100 SXM 80 GB, 8 a node, 9.894e+14 bf16, " out.txt || bad "$(cat out.txt)"
grep -q "^h100-dgx: .* 3.78 USD$" out.txt || bad "the price is not the file's: $(grep h100-dgx out.txt)"

[ $failures -eq 0 ]
