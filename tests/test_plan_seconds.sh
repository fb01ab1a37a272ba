#!/bin/sh
# test_plan_seconds.sh LOCKSTEP TESTS - the seconds that `plan --machine NAME` prints, compared with closed forms.
lockstep=$1
. "$2/script.sh"
tiny="--model.preset=llama-tiny --model.layers=4 --data.seq_len=64 --precision.compute=fp32 --data.val_fraction=0"

# machine FILE FLOPS BANDWIDTH LINK: a machine whose kernels reach all of it
machine() {
    printf '%s\n' "machine:" "  name: m" "processor:" "  name: p" "  fp32: $2" "  memory: 80 GiB" "  bandwidth: $3" \
        "efficiency:" "  launch: 0" \
        "  matmul: 1" "  host: 0" "  attention: 1" "  memory_bound: 1" "  link_share: 1" "node:" "  processors: 8" \
        "  bandwidth: $4" "  latency: 0" "network:" "  bandwidth: $4" "  latency: 0" >"$1"
}

# near A B WHAT: equal to 6 digits
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= 1e-6 * (b < 0 ? -b : b)) }' || bad "$3: $1 is not $2"; }

machine compute.yaml 1e12 1e18 1e18
machine memory.yaml 1e18 1e9 1e18
machine link.yaml 1e18 1e18 1e9

# plan MACHINE OPTIONS...: to plan.json
plan() {
    file=$1
    shift
    "$lockstep" plan --machine ./"$file" $tiny "$@" --json >plan.json 2>err.txt || bad "plan $*: $(cat err.txt)"
}
is_same() { [ "$1" = "$2" ] && [ "${1:-0}" -gt 0 ] || bad "$3: $1 bytes, not $2"; }
of() { json "$1" <plan.json; }
sum() { awk "BEGIN { printf \"%.15g\", ($1) }"; }

# If memory is not the limit, a step takes the time of its FLOPs, also in micro-batches. (With a model without attention, whose executed
# FLOPs count half of the score matrix, and whose instructions count the triangle with its diagonal.)
image="--model.preset=resnet-tiny --precision.compute=fp32 --data.val_fraction=0"
for options in "--train.micro_batch=2" "--train.micro_batch=1 --train.accumulate=3"; do
    "$lockstep" plan --machine ./compute.yaml $image $options --json >plan.json 2>err.txt || bad "plan $image: $(cat err.txt)"
    near "$(of seconds.step)" "$(sum "$(of executed_flops_per_step) / 1e12")" "one rank, $options"
    near "$(of seconds.mfu)" "$(sum "$(of model_flops_per_step) / $(of executed_flops_per_step)")" "MFU, $options"
done
plan compute.yaml
step=$(of seconds.step)
plan compute.yaml --recompute.mode=full
near "$(sum "$(of seconds.step) - $(of seconds.recomputed)")" "$step" "what is recomputed is in addition"

# A query takes as long as 65 keys in addition to the 32.5 that it attends to on average.
sed 's/^  attention: 1/&\n  attention_query: 65/' compute.yaml >query.yaml
plan compute.yaml
attention=$(of seconds.attention)
plan query.yaml
near "$(of seconds.attention)" "$(sum "3 * $attention")" "attention with an attention_query"

# If arithmetic is not the limit, a step takes the time of its bytes: half the bandwidth, twice the time. A link slower than all else
# determines the time.
plan memory.yaml --train.micro_batch=2
step=$(of seconds.step)
machine half.yaml 1e18 5e8 1e18
plan half.yaml --train.micro_batch=2
near "$(of seconds.step)" "$(sum "2 * $step")" "half the bandwidth"
plan link.yaml -n 2 --parallel.overlap=false --train.micro_batch=2
near "$(of seconds.exposed.dp)" "$(sum "$(of comm.all_reduce.bytes) / 1e9")" "2 ranks send what all_reduce sends"

# Overlap hides at most the kernels' time.
machine both.yaml 1e12 1e18 1e9
plan both.yaml -n 2 --parallel.overlap=false --train.micro_batch=2
exposed=$(of seconds.exposed.dp)
plan both.yaml -n 2 --train.micro_batch=2
[ "$(sum "$(of seconds.exposed.dp) < $exposed")$(sum "$(of seconds.hidden.dp) > 0")" = 11 ] || bad "nothing is hidden"
near "$(sum "$(of seconds.exposed.dp) + $(of seconds.hidden.dp)")" "$exposed" "what is exposed and what is hidden"

# Gradient reductions of a rank's chunk overlap with the backwards of its other chunks.
pipeline="-n 64 --model.preset=llama3-8b --model.layers=16 --data.seq_len=1024 --parallel.pp=4 --parallel.dp=16 --parallel.zero=0
          --train.micro_batch=1 --train.accumulate=8"
for vpp in 1 2; do
    "$lockstep" plan --machine h100-dgx $pipeline --parallel.vpp=$vpp --json >chunks_$vpp.json 2>err.txt || bad "vpp=$vpp: $(cat err.txt)"
done
[ "$(sum "2 * $(json seconds.exposed.dp <chunks_2.json) < $(json seconds.exposed.dp <chunks_1.json)")" = 1 ] ||
    bad "2 chunks wait $(json seconds.exposed.dp <chunks_2.json) s for dp, one waits $(json seconds.exposed.dp <chunks_1.json)"

# A collective in flight takes some of the units: kernels at the same time are slower in proportion.
sed 's/^  bandwidth: 1e18/  units: 10\n&/' both.yaml >units.yaml
{ cat units.yaml && printf '%s\n' "nccl:" "  generation: ampere" "  channels: 4"; } >channels.yaml
{ cat units.yaml && printf '%s\n' "nccl:" "  generation: ampere"; } >library.yaml
kernels() { sum "$(of seconds.matmul) + $(of seconds.attention) + $(of seconds.memory_bound) + $(of seconds.optimizer)"; }
buckets="-n 2 --train.micro_batch=2 --parallel.bucket=64KiB --parallel.first_bucket=64KiB"
plan library.yaml $buckets
alone=$(kernels)
plan channels.yaml $buckets
[ "$(sum "$(of seconds.hidden.dp) > 0.1 * $alone")" = 1 ] || bad "nothing runs beside kernels: $(of seconds.hidden.dp) of $alone"
near "$(kernels)" "$(sum "$alone + 4 / 10 * $(of seconds.hidden.dp)")" "kernels beside collectives"

# Keys and values that pass around a ring are received while others are sent; routed rows are exchanged over ep.
plan link.yaml -n 2 --parallel.cp=2 --parallel.cp_method=ring --parallel.overlap=false
near "$(of seconds.exposed.cp)" "$(sum "$(of comm.send.bytes) / 1e9")" "2 ranks of a ring"
"$lockstep" plan --machine ./link.yaml --model.preset=qwen3-moe-tiny --precision.compute=fp32 --data.val_fraction=0 -n 2 --parallel.ep=2 \
    --parallel.overlap=false --json >plan.json 2>err.txt || bad "experts: $(cat err.txt)"
near "$(of seconds.exposed.ep)" "$(sum "$(of comm.all_to_all.bytes) / 1e9")" "routed rows"

# Offload takes the time of the bytes loaded and saved, also if micro-batches load parameters and gradients; kernels may hide it.
# offload FILE BANDWIDTH MEMORY READ WRITE: a machine with a host, whose kernels take no time
offload() {
    machine "$1" 1e18 1e18 1e18
    printf '%s\n' "offload:" "  bandwidth: $2" "  memory: $3" "  read: $4" "  write: $5" >>"$1"
}
offload copies.yaml 1e9 "8 GiB" 1e8 2e8
for options in "--optim.offload=cpu" "--optim.offload=cpu --parallel.offload_parameters=cpu --train.accumulate=3" \
    "-n 2 --parallel.zero=3 --optim.offload=cpu --parallel.offload_parameters=cpu --train.accumulate=2"; do
    plan copies.yaml $options
    near "$(of seconds.exposed.offload)" "$(sum "($(of offload.loaded) + $(of offload.saved)) / 1e9")" "loads and saves, $options"
done
plan copies.yaml --optim.offload=file
near "$(of seconds.exposed.offload)" "$(sum "$(of offload.loaded) / 1e8 + $(of offload.saved) / 2e8")" "loads and saves of a file"
offload hides.yaml 1e9 "8 GiB" 1e8 2e8
sed -i 's/1e18$/1e12/' hides.yaml
plan hides.yaml --optim.offload=cpu --parallel.offload_parameters=cpu --train.accumulate=3
[ "$(sum "$(of seconds.hidden.offload) > 0")" = 1 ] || bad "kernels hide no loads"
near "$(sum "$(of seconds.exposed.offload) + $(of seconds.hidden.offload)")" "$(sum "($(of offload.loaded) + $(of offload.saved)) / 1e9")" \
    "loads and saves, exposed and hidden"

# Offloaded bytes are in the host's memory, of which a processor has an eighth here; a cpu is its own host.
sharded="-n 2 --parallel.zero=1 --parallel.bucket=64KiB --parallel.first_bucket=64KiB"
plan copies.yaml $sharded
total=$(of memory.total) state=$(of memory.optimizer)
plan copies.yaml $sharded --optim.offload=cpu
is_same "$(of offload.host)" "$state" "bytes in the host"
[ "$(sum "$(of memory.total) < $total")$(of fits)" = 1true ] || bad "offload frees nothing: $(of memory.total) of $total, fits: $(of fits)"
offload full.yaml 1e9 "1 MiB" 1e8 2e8
plan full.yaml $sharded --optim.offload=cpu
[ "$(of fits)" = false ] || bad "the host is too small: $(of fits)"
"$lockstep" plan --machine ./full.yaml $tiny $sharded --optim.offload=cpu >table.txt 2>err.txt
grep -q "it does not fit into the memory of the host" table.txt || bad "the table does not say that the host is too small: $(cat table.txt)"
sed 's/^node:/node:\n  serial: 1/' copies.yaml >serial.yaml
plan serial.yaml $sharded --optim.offload=cpu
is_same "$(of memory.offload)" "$state" "bytes of a cpu's own memory"

# If heads are not divisible, the rank with the most counts: 2 of 3.
heads="--model.heads=3 --model.kv_heads=3 --model.head_size=16 --train.micro_batch=2"
plan compute.yaml $heads
attention=$(of seconds.attention)
plan compute.yaml -n 2 --parallel.tp=2 $heads
near "$(of seconds.attention)" "$(sum "$attention * 2 / 3")" "2 of 3 heads"

# Dropout of attention draws a number for each score in forward and in backward: 130 FLOPs in addition to 14 for each element of a head.
drops="--model.preset=gpt2-tiny --model.width=64 --model.heads=4 --model.layers=2 --data.seq_len=64 --precision.compute=fp32"
for dropout in 0 0.1; do
    "$lockstep" plan --machine ./compute.yaml $drops --model.attention_dropout=$dropout --train.micro_batch=2 --json >plan.json \
        2>err.txt || bad "plan with dropout $dropout: $(cat err.txt)"
    eval "attention_${dropout#*.}=$(of seconds.attention)"
done
near "$attention_1" "$(sum "$attention_0 * (1 + 130 / (14 * 16))")" "attention with dropout"

# A pipeline: the parts add up, and more micro-batches have a smaller bubble.
plan compute.yaml -n 4 --parallel.pp=4 --train.accumulate=8 --model.layers=8
near "$(sum "$(of seconds.matmul) + $(of seconds.attention) + $(of seconds.memory_bound) + $(of seconds.optimizer) + \
    $(of seconds.exposed.dp) + $(of seconds.bubble)")" "$(of seconds.step)" "parts of a pipeline's step"
bubble=$(sum "$(of seconds.bubble) / $(of seconds.step)")
[ "$(sum "$bubble > 0.8 * 3 / 11")$(sum "$bubble < 1.2 * 3 / 11")" = 11 ] ||
    bad "the bubble of 4 stages and 8 micro-batches is $bubble, about (P - 1) / (M + P - 1) is expected"
plan compute.yaml -n 4 --parallel.pp=4 --train.accumulate=64 --model.layers=8
[ "$(sum "$bubble > 0")$(sum "$(of seconds.bubble) / $(of seconds.step) < $bubble / 2")" = 11 ] || bad "the bubble does not shrink: $bubble"

# The bottleneck is the largest part that could be smaller; a price is that of a million tokens.
[ "$(of seconds.binds)" = "matmuls" ] || bad "64 micro-batches: $(of seconds.binds) binds"
plan compute.yaml -n 4 --parallel.pp=4 --train.accumulate=8 --model.layers=8
[ "$(of seconds.binds)" = "the pipeline bubble" ] || bad "8 micro-batches: $(of seconds.binds) binds"
plan link.yaml -n 2 --parallel.overlap=false --train.micro_batch=2
[ "$(of seconds.binds)" = "communication over dp" ] || bad "a slow link: $(of seconds.binds) binds"
plan memory.yaml --train.micro_batch=2
[ "$(of seconds.binds)" = "memory-bound kernels" ] || bad "slow memory: $(of seconds.binds) binds"
printf 'price:\n  hour: 3600\n  currency: EUR\n' >>compute.yaml
plan compute.yaml -n 4
near "$(of seconds.price_of_million)" "$(sum "1e6 * 4 * $(of seconds.step) / $(of tokens_per_step)")" "an hour for 3600 is a second for 1"
"$lockstep" plan --machine ./compute.yaml $tiny >out.txt 2>err.txt || bad "plan: $(cat err.txt)"
grep -q "EUR for a million tokens" out.txt && grep -q "^change  " out.txt && grep -q ", HFU " out.txt || bad "the table: $(cat out.txt)"

# `auto` means the machine file's values, and its memory is the limit.
"$lockstep" plan --machine a100-80-selene -n 8 --parallel.zero=1 --model.preset=llama3.2-1b --data.seq_len=1024 >out.txt 2>err.txt ||
    bad "a100-80-selene: $(cat err.txt)"
grep -q "bf16 with fp32 master weights" out.txt && grep -q "fits into the memory (A100" out.txt && grep -q "tokens/s, MFU" out.txt ||
    bad "a100-80-selene: $(cat out.txt)"

# Bytes on another machine do not depend on the processor that plans.
# bytes OPTIONS...: of a rank
bytes() { "$lockstep" plan "$@" --json 2>err.txt | json memory.total; }
llama="--model.preset=llama3-8b --model.layers=4 --data.seq_len=2048"
is_same "$(bytes --machine h100-dgx -n 16 $llama --parallel.tp=2 --parallel.zero=1)" 14608259712 "tp 2, zero 1"
is_same "$(bytes --machine h100-dgx -n 16 $llama --parallel.zero=3 --recompute.mode=full)" 12175778688 "zero 3, recomputed"
# A cpu is assumed to be like this one.
sed 's/^node:/node:\n  serial: 1/' compute.yaml >serial.yaml
is_same "$(bytes --machine ./serial.yaml $tiny)" "$(bytes $tiny --launch.threads=1)" "a cpu"
is_same "$(bytes --machine ./compute.yaml $tiny)" "$(bytes $tiny --launch.threads=1 --run.isa=any)" "another processor"

# The page names every built-in machine.
for file in "$2"/../machines/*.yaml; do
    name=$(basename "$file" .yaml)
    grep -q "\`$name\`" "$2/../docs/planner.md" || bad "docs/planner.md does not name $name"
done

# Bad machines.
expect 2 "machine 'h100': it is not one of" plan --machine h100 $tiny
sed 's/bandwidth: 1e18/bandwith: 1e18/' compute.yaml >wrong.yaml
expect 2 "did you mean 'processor.bandwidth'" plan --machine ./wrong.yaml $tiny
expect 2 "use 1 to" plan --machine 0 $tiny
expect 2 "it needs offload.bandwidth and offload.memory" plan --machine ./compute.yaml $tiny --optim.offload=cpu
expect 2 "it needs offload.read and offload.write" plan --machine gb200-nvl72 $tiny --optim.offload=file

[ $failures -eq 0 ]
