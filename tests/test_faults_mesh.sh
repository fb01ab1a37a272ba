#!/bin/sh
# test_faults_mesh.sh LOCKSTEP TESTS - injected faults on meshes (--debug.fault): `lockstep parity` detects each fault in layouts where it
# changes something, and names the first tensor, step and direction that differ; in other layouts the fault is refused. The placement check
# of the same faults is tested by test_partition_faults, test_parallel_mesh, test_parallel_boxes and test_pipeline.
set -u
lockstep=$1
. "$2/script.sh"
detected=0

plain="--optim.name=sgd --optim.lr=0.1 --precision.compute=fp32 --launch.threads=1 --data.seq_len=8"
gpt2="--model.preset=gpt2-tiny --train.global_batch=8 $plain"
llama="--model.preset=llama-tiny --train.global_batch=8 $plain"
mixtral="--model.preset=mixtral-tiny --train.global_batch=4 $plain"
qwen3="--model.preset=qwen3-tiny --train.global_batch=8 $plain"
qwen="--model.preset=qwen3-moe-tiny --train.global_batch=4 $plain"

# detects FAULT LAYOUT OPTIONS WORDS...: parity exits with 1, and the line that names the first difference contains all the words.
detects() {
    fault=$1 layout=$2 options=$3
    shift 3
    "$lockstep" parity --a "" --b "$layout debug.fault=$fault" $options --json >out.txt 2>err.txt
    got=$?
    [ $got -eq 1 ] || bad "$fault in '$layout' $options: exit $got: $(cat out.txt err.txt)"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$fault in '$layout' $options: not one line: $(cat err.txt)"
    for words in "the layouts differ first in" "$@"; do
        grep -qF -e "$words" err.txt || bad "$fault in '$layout' $options: not '$words': $(cat err.txt)"
    done
    has equal false <out.txt || bad "$fault in '$layout' $options: says equal"
    found_within "$fault in '$layout' $options"
    detected=$((detected + 1))
}

# idle FAULT LAYOUT OPTIONS WORDS: the fault has no effect in the layout, and is refused with exit code 2 before anything runs.
idle() {
    "$lockstep" parity --a "" --b "$2 debug.fault=$1" $3 >out.txt 2>err.txt
    got=$?
    [ $got -eq 2 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF -e "$4" err.txt || bad "$1 in '$2' $3: exit $got: $(cat out.txt err.txt)"
}

loss="step 0, loss of 'loss' (forward)"
norm="step 0, norm of 'norm' (backward)"
gradient() { echo "step 0, gradient of '$1' (backward)"; }

# ---- tensor and sequence parallelism ----
# Weights that are replicated over tp and used with a sharded sequence or with some of the heads: their gradients are not summed, or
# summed twice.
for mesh in "parallel.tp=2 parallel.sp" "parallel.tp=2 parallel.sp parallel.dp=2 parallel.zero=2"; do
    detects tp_unsummed "$mesh" "$gpt2" "$(gradient wpe.weight)"
    detects tp_unsummed "$mesh" "$llama" "$(gradient model.layers.0.input_layernorm.weight)"
    detects tp_twice "$mesh" "$llama" "$(gradient model.layers.0.input_layernorm.weight)" "5.00e-01 of its scale"
done
detects no_partial "parallel.tp=2 parallel.sp" "$gpt2" "$(gradient wpe.weight)"
detects no_partial "parallel.tp=2 parallel.sp" "$mixtral" "$(gradient model.layers.0.input_layernorm.weight)"
detects no_partial "parallel.tp=2" "$qwen" "$(gradient model.layers.0.self_attn.q_norm.weight)"
detects tp_unsummed "parallel.tp=2" "$qwen" "$(gradient model.layers.0.self_attn.q_norm.weight)"
detects tp_unsummed "parallel.tp=2" "$qwen3" "$(gradient model.layers.0.self_attn.q_norm.weight)"
detects tp_unsummed "parallel.tp=4" "$llama --model.heads=8 --model.kv_heads=2" "$(gradient model.layers.0.self_attn.k_proj.weight)"
# An all-reduce is missing in forward or in backward, is done twice, or is done over other ranks.
for mesh in "parallel.tp=2" "parallel.dp=2 parallel.zero=3 parallel.tp=2" "parallel.pp=2 parallel.tp=2"; do
    detects no_reduce "$mesh" "$gpt2 --train.accumulate=2" "$loss"
    detects no_dgrad_reduce "$mesh" "$gpt2 --train.accumulate=2" "$(gradient wte.weight)"
    detects no_dgrad_reduce "$mesh" "$llama --train.accumulate=2" "$(gradient model.embed_tokens.weight)"
done
detects double_reduce "parallel.tp=2" "$gpt2" "$loss"
detects double_reduce "parallel.tp=2 parallel.sp" "$gpt2" "$loss"
detects double_reduce "parallel.tp=2 parallel.sp" "$llama" "$loss"
detects wrong_group "parallel.tp=2 parallel.dp=2" "$gpt2" "$loss"
detects wrong_group "parallel.tp=2 parallel.cp=2" "$llama" "$loss"
detects wrong_group "parallel.tp=2 parallel.sp parallel.dp=2 parallel.zero=2" "$llama" "$loss"
for mesh in "parallel.tp=2 parallel.sp" "parallel.cp=2" "parallel.cp=2 parallel.cp_method=all_to_all" \
    "parallel.tp=2 parallel.sp parallel.cp=2"; do
    detects mask "$mesh" "$gpt2 --model.dropout=0.2" "$loss"
done

# ---- context parallelism ----
for mesh in "parallel.cp=2" "parallel.cp=3" "parallel.dp=2 parallel.zero=2 parallel.cp=2" "parallel.tp=2 parallel.cp=2"; do
    detects ring_dkv "$mesh" "$llama" "$(gradient model.embed_tokens.weight)"
    detects loss_twice "$mesh" "$llama" "$loss"
    detects loss_mean "$mesh" "$gpt2" "$loss"
done
detects ring_dkv "parallel.cp=2" "$gpt2" "$(gradient wte.weight)"
detects loss_twice "parallel.cp=2 parallel.cp_method=all_to_all" "$gpt2" "$loss" "5.00e-01 of its scale"
detects loss_mean "parallel.cp=3 parallel.cp_method=all_to_all" "$llama" "$loss"

# ---- pipelines ----
lost="step 0, weight of 'model.layers.4.input_layernorm.weight' (initialization)"  # no rank has this layer
for mesh in "parallel.pp=2" "parallel.pp=2 parallel.dp=2 parallel.zero=2" "parallel.pp=2 parallel.vpp=2" \
    "parallel.pp=2 parallel.tp=2 parallel.schedule=zb-h1"; do
    detects norm_stages "$mesh" "$llama --model.layers=4 --train.accumulate=2" "$norm"
    detects tied_unsummed "$mesh" "$gpt2 --model.layers=4 --train.accumulate=2" "$(gradient wte.weight)"
    detects lost_layers "$mesh" "$llama --model.layers=5 --train.accumulate=2" "$lost"
done
detects norm_stages "parallel.pp=2 parallel.schedule=zb-v" "$llama --model.layers=4 --train.accumulate=2" "$norm"
detects lost_layers "parallel.pp=3" "$llama --model.layers=5 --train.accumulate=3" \
    "step 0, weight of 'model.layers.3.input_layernorm.weight' (initialization)"

# ---- experts ----
for mesh in "parallel.dp=2 parallel.ep=2" "parallel.dp=4 parallel.ep=2 parallel.zero=2" \
    "parallel.dp=2 parallel.cp=2 parallel.ep=4 parallel.zero=3"; do
    for model in "$mixtral" "$qwen"; do
        detects expert_times_ep "$mesh" "$model" "$(gradient model.layers.0.mlp.experts.gate_proj.weight)"
        detects norm_experts "$mesh" "$model" "$norm"
        detects aux_dropped "$mesh" "$model" "$(gradient model.embed_tokens.weight)"
        detects aux_times_dp "$mesh" "$model" "$(gradient model.embed_tokens.weight)"
        detects reroute "$mesh recompute.mode=full" "$model" "$(gradient model.embed_tokens.weight)"
    done
done
detects no_reduce "parallel.tp=2" "$mixtral" "step 0, experts of layer 0 (forward): sample 0, token"
detects expert_group "parallel.dp=4 parallel.ep=2" "$mixtral" "$(gradient model.layers.0.mlp.experts.gate_proj.weight)"
detects aux_dropped "parallel.tp=2" "$mixtral" "$(gradient model.embed_tokens.weight)"
detects reroute "recompute.mode=full" "$mixtral" "$(gradient model.embed_tokens.weight)"
detects reroute "parallel.tp=2 parallel.sp recompute.mode=every:2" "$qwen" "$(gradient model.embed_tokens.weight)"

# ---- a checkpoint whose moments are not restored: the loaded states are compared bit by bit ----
for mesh in "parallel.dp=2 parallel.zero=2" "parallel.tp=2 parallel.pp=2 train.accumulate=2"; do
    detects moments "$mesh" "$gpt2 --optim.name=adamw --checkpoint" "step 1, state of 'wte.weight/m' (checkpoint)"
    detects moments "$mesh" "$llama --optim.momentum=0.5 --checkpoint" "step 1, state of 'model.embed_tokens.weight/m' (checkpoint)"
done

# ---- faults of data parallelism, combined with other axes ----
detects average "parallel.cp=2" "$llama" "$(gradient model.embed_tokens.weight)" "5.00e-01 of its scale"
detects skip_bucket "parallel.tp=2 parallel.dp=2 parallel.zero=1" "$llama" "$(gradient model.embed_tokens.weight)"
detects twice "parallel.dp=2 parallel.cp=2 parallel.zero=2" "$gpt2" "(backward)"
detects local_norm "parallel.tp=2 parallel.dp=2 parallel.zero=1" "$llama" "$norm"
detects boundary "parallel.tp=2 parallel.pp=2" "$llama --train.accumulate=2" "step 0, weight of 'model.embed_tokens.weight' (optimizer)"
detects mean_of_means "parallel.dp=2 parallel.tp=2" "$gpt2" "$loss"
detects seed "parallel.tp=2 parallel.pp=2" "$llama --train.accumulate=2" "step 0, weight of 'model.embed_tokens.weight' (initialization)"

# ---- layouts in which a fault has no effect ----
idle tp_unsummed "parallel.tp=2" "$llama" "are not partial sums here"
idle no_partial "parallel.dp=2" "$qwen" "are not partial sums here"
idle no_dgrad_reduce "parallel.tp=2 parallel.sp" "$llama" "it needs parallel.tp without parallel.sp"
idle no_reduce "parallel.cp=2" "$llama" "it needs parallel.tp without parallel.sp"
idle double_reduce "parallel.pp=2" "$llama" "with parallel.tp=1 there is no such reduction"
idle wrong_group "parallel.tp=2" "$llama" "there is no other group"
idle mask "parallel.tp=2" "$gpt2 --model.dropout=0.2" "the sequence is not sharded"
idle mask "parallel.cp=2" "$gpt2" "with model.dropout=0 activations have no masks"
idle ring_dkv "parallel.cp=2 parallel.cp_method=all_to_all" "$llama" "there is no attention ring"
idle loss_twice "parallel.dp=2" "$llama" "with parallel.cp=1 the sequence is not sharded"
idle loss_mean "parallel.tp=2" "$llama" "with parallel.cp=1 the sequence is not sharded"
idle norm_stages "parallel.dp=2" "$llama" "with parallel.pp=1 there is one stage"
idle lost_layers "parallel.pp=2" "$llama --model.layers=4" "the layers divide evenly among the stages"
idle lost_layers "parallel.pp=2 parallel.stages=2,3" "$llama --model.layers=5" "parallel.stages sets the layers of each stage"
idle tied_unsummed "parallel.pp=2" "$llama" "the model's embedding is not tied"
idle tied_unsummed "parallel.pp=2 parallel.schedule=zb-v" "$gpt2 --model.layers=4" "on the same rank"
idle expert_times_ep "parallel.dp=2" "$mixtral" "parallel.ep=1"
idle norm_experts "parallel.tp=2" "$mixtral" "parallel.ep=1"
idle expert_group "parallel.dp=2 parallel.ep=2" "$mixtral" "each expert is on one rank"
idle expert_group "parallel.dp=4 parallel.ep=2 parallel.zero=1" "$mixtral" "sharded over their own ranks"
idle lost_layers "parallel.pp=2" "$mixtral --model.layers=3" "needs a model without experts"
idle aux_dropped "parallel.dp=2" "$llama" "the model's routers have no loss"
idle aux_times_dp "parallel.tp=2" "$mixtral" "with parallel.dp=1 the factor is 1"
idle reroute "parallel.dp=2 recompute.mode=selective" "$mixtral" "no router is recomputed"
idle reroute "parallel.dp=2 recompute.mode=full" "$llama" "the model has no experts"
idle moments "parallel.dp=2" "$gpt2 --optim.name=adamw" "it needs --b with --checkpoint"
idle moments "parallel.dp=2" "$llama --optim.momentum=0 --checkpoint" "has no moments"
idle average "parallel.tp=2" "$llama" "gradients are summed over parallel.dp and parallel.cp, which are 1"
idle mean_of_means "parallel.cp=2" "$llama" "with parallel.dp=1 each rank has all samples"

[ $failures -eq 0 ] && say "injected on meshes: $detected faults found"
exit $((failures > 0))
