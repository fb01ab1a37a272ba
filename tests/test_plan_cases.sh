#!/bin/sh
# test_plan_cases.sh LOCKSTEP TESTS - `plan --cases`: the prices of a table are those of `plan`, and assumptions are printed.
lockstep=$1
. "$2/script.sh"
columns="row_id,layers,hidden,ffn_hidden,glu,heads,kv_heads,vocab,tied_emb,seq,gpus,gpu_type,gpus_per_node,internode_gbps_per_gpu"
columns="$columns,tp,pp,cp,ep,vpp,zero_stage,micro_batch,global_batch,sequence_parallel,recompute,precision,flash_attn,schedule"
model="8,4096,14336,1,32,8,128256,0,2048"
sizes=$model
ends_size="4096,14336,1,32,8,128256,0,2048"
ends="6,$ends_size"
gpu='"H100-80GB-SXM (DGX, 8 nodes)",8,400'
a100='"A100-80GB-SXM (DGX)",8,10' # on which nothing depends on whether kernels are fused by hand
{
    echo "$columns"
    echo "plain,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B"
    echo "micro,$model,8,$gpu,1,1,1,1,1,3 (FSDP FULL_SHARD),,32,0,full,bf16,1,"
    echo "fp8,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,fp8,1,1F1B"
    echo "fp4,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,NVFP4,1,1F1B"
    echo "scores,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,bf16,0,1F1B"
    echo "chunks,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B; overlap TP comm"
    echo "slow,$model,16,\"H100-80GB-SXM (DGX, 8 nodes)\",8,10,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B"
    echo "eager,2,256,1024,1,4,4,1000,0,128,1,$gpu,1,1,1,1,1,0,1,1,0,none,bf16,1,"
    echo "\"odd, \"\"batch\"\"\",$model,16,$gpu,2,2,1,1,1,1,3,32,1,selective,bf16,1,1F1B"
    echo "ranks,$model,15,$gpu,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B"
    echo "other,$model,16,\"TPU v4\",8,400,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B"
    echo "experts,$model,16,$gpu,2,2,1,8,1,1,2,32,1,selective,bf16,1,1F1B"
    echo "missing,$model,16,$gpu,2,2,1,1,1,1,2,,1,selective,bf16,1,1F1B"
    echo "stages,$model,16,$gpu,2,2,1,1,,1,2,32,1,selective,bf16,1,interleaved"
    echo "large,80,8192,28672,1,64,8,128256,0,8192,8,$gpu,8,1,1,1,1,0,,32,1,,bf16,1,"
    echo "unknown,$model,16,$gpu,,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B"
} >runs.csv
"$lockstep" plan --cases runs.csv --out prices.csv >out.txt 2>err.txt || bad "plan --cases: $(cat err.txt)"
[ "$(wc -l <prices.csv)" = 17 ] || bad "not a line for each row: $(cat prices.csv)"
seconds() { awk -F, -v row="$1" '$1 == row { print $2 }' prices.csv; }
says() { grep "^$1," prices.csv | grep -q "$2" || bad "row $1 does not say '$2': $(grep "^$1," prices.csv)"; }

# faster A B: row A takes less than row B
faster() { awk -v a="$(seconds "$1")" -v b="$(seconds "$2")" 'BEGIN { exit !(a > 0 && a < b) }' || bad "$1 is not faster than $2"; }
faster fp8 plain
faster fp4 fp8
faster plain scores
faster plain slow
faster chunks plain
awk -v a="$(seconds eager)" 'BEGIN { exit !(a > 2e-3) }' || bad "the host's time is not in $(seconds eager)"
says micro "micro-batch not published: [1248]; the fastest that fits of 3 layouts with"
says plain "machine like NVIDIA DGX H100"
says fp8 "twice the peak"
says fp4 "four times the peak of bf16, the head in bf16"
says ranks "15 GPUs are not a multiple of tp 2 x pp 2 x cp 1"
says other "no machine is built in for 'TPU v4'"
says experts "ep is 8, but the experts of model '' are not known: their number and width are not among the columns"
says unknown "tp not published: [1248]; the fastest that fits of"
says missing "global_batch is not published"
says stages "virtual stages not published: [1248]; the fastest that fits of"
says large "none fits; the fastest of 4 layouts"
grep -q '^"odd, ""batch""",,,,"\?inconsistent: 32 samples are not a multiple of dp 4 x micro-batch 3' prices.csv ||
    bad "odd: $(grep odd prices.csv)"

# --machine is for machines that are not built in. If the host takes no time, seconds and bytes are those of `plan`, to the accuracy of
# prices.
sed 's/host: .*/host: 0/; s/eager: .*/eager: 1/; /attention_2/d' "$2/../machines/h100-dgx.yaml" >fast.yaml
"$lockstep" plan --machine ./fast.yaml --cases runs.csv --out fast.csv >out.txt 2>err.txt || bad "plan --cases --machine: $(cat err.txt)"
"$lockstep" plan --machine ./fast.yaml -n 16 --model.preset=llama3-8b --model.layers=8 --data.seq_len=2048 --data.val_fraction=0 \
    --precision.compute=bf16 --parallel.tp=2 --parallel.pp=2 --parallel.zero=1 --parallel.sp --train.micro_batch=2 \
    --train.global_batch=32 --recompute.mode=selective --json >plan.json 2>err.txt || bad "plan: $(cat err.txt)"
awk -F, -v s="$(json seconds.step <plan.json)" -v b="$(json memory.total <plan.json)" \
    '$1 == "other" { exit !($2 > 0.98 * s && $2 < 1.02 * s && $3 * 2^30 > 0.99 * b && $3 * 2^30 < 1.01 * b && $4 == 1) }' fast.csv ||
    bad "$(grep ^other, fast.csv); the plan says $(json seconds.step memory.total <plan.json)"

# The efficiencies of a machine with the row's processor are used; one with another processor changes nothing.
sed 's/matmul: .*/matmul: 0.3/' "$2/../machines/h100-dgx.yaml" >slow.yaml
sed 's/name: H100/name: X100/' slow.yaml >x100.yaml
for machine in slow x100; do
    "$lockstep" plan --machine ./$machine.yaml --cases runs.csv --out $machine.csv >out.txt 2>err.txt || bad "--machine: $(cat err.txt)"
done
awk -v a="$(seconds plain)" -v b="$(grep ^plain, slow.csv | cut -d, -f2)" 'BEGIN { exit !(b > 1.3 * a) }' ||
    bad "the matmuls of slow.yaml make no difference: $(grep ^plain, slow.csv)"
[ "$(grep ^plain, x100.csv)" = "$(grep ^plain, prices.csv)" ] || bad "--machine replaced a machine that is built in"

# What the source says about the software: fused kernels, and ZeRO-3 without overlap.
{
    echo "$columns,source"
    echo "plain,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B,"
    echo "fused,$model,16,$gpu,2,2,1,1,1,1,2,32,1,selective,bf16,1,1F1B,NVIDIA NeMo"
    echo "micro,$model,16,$gpu,1,1,1,1,1,3,1,32,0,full,bf16,1,,a paper"
    echo "waits,$model,16,$gpu,1,1,1,1,1,3,1,32,0,full,bf16,1,,DeepSpeed"
    echo "zero-bubble,$model,8,$gpu,1,8,1,1,1,0,1,32,0,none,bf16,,1F1B,Zero Bubble Pipeline Parallelism"
    echo "twice,$model,8,$gpu,1,8,1,1,1,0,1,32,0,none,bf16,,ZB-2p,Zero Bubble Pipeline Parallelism"
    small="8,4096,14336,1,32,8,2048,0,2048"
    for schedule in 1p V 2p; do
        echo "zb-$schedule,$small,4,$gpu,1,4,1,1,1,0,1,16,0,none,bf16,,ZB-$schedule,Zero Bubble Pipeline Parallelism"
    done
    echo "tp_chunks,$model,16,$gpu,4,2,1,1,1,0,1,32,1,none,bf16,1,1F1B,nanotron"
    echo "together,$model,16,$gpu,4,2,1,1,1,0,1,32,1,none,bf16,1,1F1B,a paper"
    echo "node,$model,8,$gpu,4,2,1,1,1,0,1,32,1,none,bf16,1,1F1B,nanotron"
    echo "apart,$model,8,$gpu,4,2,1,1,1,0,1,32,1,none,bf16,1,1F1B,a paper"
    echo "micro-8,$model,8,$gpu,1,1,1,1,1,3,1,32,0,full,bf16,1,,a paper"
    echo "fused-loss,$model,8,$gpu,1,1,1,1,1,3,1,32,0,full,bf16,1,,llm-foundry"
    echo "uneven,126,4096,14336,1,32,8,128256,0,2048,128,$gpu,8,16,1,1,,0,1,16,1,none,bf16,1,interleaved,a paper"
    echo "stages,$model,128,$gpu,1,16,1,1,1,0,1,128,0,none,bf16,1,1F1B,a paper"
    echo "stages-open,$model,128,$gpu,1,16,1,1,1,0,1,128,0,none,bf16,,,a paper"
    echo "ends,$ends,8,$gpu,1,8,1,1,1,0,1,32,0,none,bf16,,ZB-1p,Zero Bubble Pipeline Parallelism"
    echo "less,14,$ends_size,8,$a100,1,8,1,1,1,0,1,32,0,none,bf16,,1F1B,Zero Bubble Pipeline Parallelism"
    echo "balanced,14,$ends_size,8,$a100,1,8,1,1,1,0,1,32,0,none,bf16,0,1F1B,NVIDIA NeMo"
    echo "c-program,$model,8,$gpu,1,1,1,1,1,3,1,32,0,full,bf16,1,,llm.c"
    echo "each,12,4096,14336,1,32,8,128256,0,128,1024,$gpu,1,1,1,1,1,3,1,1024,0,full,bf16,1,,DeepSpeed"
    echo "tp-open,96,12288,49152,0,96,96,131072,0,4096,288,$gpu,,6,1,1,1,1,1,1152,1,none,bf16,1,,NVIDIA NeMo"
    echo "ranks-many,$model,65536,$gpu,65536,65536,1,1,1,0,1,32,0,none,bf16,1,,a paper"
    echo "long,$model,8,$gpu,1,1,1,1,1,0,1,34359738400,0,none,bf16,1,,a paper"
    echo "rack,$model,128,GB200,72,400,1,1,1,1,1,0,1,128,0,none,bf16,1,,a paper"
} >runs2.csv
"$lockstep" plan --cases runs2.csv --out prices.csv >out.txt 2>err.txt || bad "plan --cases: $(cat err.txt)"
faster fused plain
faster micro waits
says waits "ZeRO-3 of DeepSpeed: its communication is not hidden"
says zero-bubble "memory as Zero Bubble holds it"
memory() { awk -F, -v row="$1" '$1 == row { print $3 }' prices.csv; }
awk -v a="$(memory zero-bubble)" -v b="$(memory twice)" 'BEGIN { exit !(a > 0 && b > 1.2 * a) }' || bad "ZB-2p holds no more than 1F1B"
# Bubbles: all of ZB-H1's, a part of it, none.
faster zb-2p zb-V
faster zb-V zb-1p
says zb-V "0.4 of ZB-H1's bubble"

faster fused-loss micro-8
says uneven "virtual stages not published: 1"
says rack "64 GPUs of a rack"
# FlashAttention-2 applies to PyTorch programs only.
sed 's/attention_2: .*/attention_2: 10/' "$2/../machines/h100-dgx.yaml" >flash2.yaml
"$lockstep" plan --machine ./flash2.yaml --cases runs2.csv --out flash2.csv >out.txt 2>err.txt || bad "plan --cases: $(cat err.txt)"
flash2() { awk -F, -v row="$1" '$1 == row { print $2 }' flash2.csv; }
[ "$(flash2 fused)" = "$(seconds fused)" ] || bad "attention_2 changes NVIDIA's program: $(flash2 fused), $(seconds fused)"
awk -v a="$(flash2 plain)" -v b="$(seconds plain)" 'BEGIN { exit !(b > 0 && a > b) }' || bad "attention_2 changes nothing: $(flash2 plain)"
for row in ends less; do says $row "the first and the last stage have a block less than the others"; done
grep "^balanced," prices.csv | grep -q "a block less" && bad "balanced: $(grep "^balanced," prices.csv)"
faster less balanced  # its loss is fused
says ends "attention is not fused"
says c-program "the host takes no time"
faster c-program micro-8
says each "every parameter is gathered by itself"
says tp_chunks "collectives over tp in as many chunks as there are ranks"
says ranks-many "65536 GPUs are not a multiple of tp 65536 x pp 65536"
says tp-open "tp not published: 8" # 6 would divide the heads, but not a node
says long "global_batch is '34359738400'; use a number from 0 to 2147483646"
for row in stages stages-open; do
    grep -q "^$row,,,0,\"\?model.layers=8 in parallel.pp=16" prices.csv || bad "more stages than blocks: $(grep "^$row," prices.csv)"
done

# nanotron's pipelines divide collectives over tp into chunks if they use several nodes, not on one node.
faster together tp_chunks
[ -n "$(seconds node)" ] && [ "$(seconds node)" = "$(seconds apart)" ] ||
    bad "nanotron in a node takes $(seconds node) s, others $(seconds apart)"

# Models with experts are recognized by name; each of a rank's experts is a kernel, which the host launches.
{
    echo "$columns,source,model"
    for model in Qwen3-30B-A3B Grok1-314B DeepSeekV3 "Qwen3-Next"; do
        echo "$model,8,2048,6144,1,32,4,151936,0,256,16,$gpu,1,1,1,8,1,1,1,64,0,none,bf16,1,,NVIDIA NeMo,$model"
    done
    echo "pythia,8,2048,8192,0,16,16,50304,0,256,16,$gpu,1,1,1,1,1,1,1,64,0,,fp16,1,,a paper,Pythia-1B"
    for ep in 1 16; do
        echo "fsdp$ep,8,2048,6144,1,32,4,151936,0,256,16,$gpu,1,1,1,$ep,1,3,1,64,0,none,bf16,1,,NVIDIA-NeMo/Automodel,Qwen3-30B-A3B"
    done
    echo "few,8,2048,6144,1,32,4,151936,0,256,16,$gpu,1,1,1,16,1,1,1,64,0,none,bf16,1,,NVIDIA NeMo,Qwen3-30B-A3B"
} >runs3.csv
"$lockstep" plan --cases runs3.csv --out prices.csv >out.txt 2>err.txt || bad "plan --cases: $(cat err.txt)"
for model in Grok1-314B DeepSeekV3; do [ -n "$(seconds $model)" ] || bad "$model is not priced: $(cat prices.csv)"; done
awk -v a="$(seconds Qwen3-30B-A3B)" -v b="$(seconds few)" 'BEGIN { exit !(b > 0 && a > 1.3 * b) }' ||
    bad "the host issues no kernel for each of 16 experts, or of 8: $(cat prices.csv)"
[ -n "$(seconds fsdp16)" ] && [ "$(seconds fsdp1)" = "$(seconds fsdp16)" ] ||
    bad "NeMo AutoModel's experts take $(seconds fsdp1) s, over all ranks of FSDP $(seconds fsdp16)"
says fsdp1 "experts over all ranks of FSDP"
says pythia "recomputation not published: full"
says Qwen3-Next "the experts of model 'Qwen3-Next' are not known"
says DeepSeekV3 "256 experts of width 2048, 8 for each token; latent attention as heads of 128 with one key head"

# Known properties of frameworks and recipes that are not among the columns.
layout="2,2,1,1,1,1,2,32,1,selective"
{
    echo "$columns,source,model"
    for precision in fp8 FP8-CS "fp8 rowwise"; do
        echo "${precision#fp8 },$sizes,16,$gpu,$layout,$precision,1,1F1B,a paper,Llama"
    done
    echo "heads,8,4096,14336,0,32,32,128256,0,2048,16,$gpu,$layout,bf16,1,1F1B,a paper,Nemotron"
    echo "unsaid,8,4096,14336,0,32,0,128256,0,2048,16,$gpu,$layout,bf16,1,1F1B,a paper,Nemotron"
    echo "grouped,8,4096,14336,0,32,2,128256,0,2048,16,$gpu,$layout,bf16,1,1F1B,a paper,Nemotron"
    echo "no-recipe,$sizes,16,$gpu,1,1,1,1,1,1,2,32,0,selective,bf16,1,,NVIDIA,LLAMA3-8B"
    echo "loss,$sizes,16,$gpu,1,1,1,1,1,1,2,32,0,selective,bf16,1,,NVIDIA-NeMo/Megatron-Bridge,LLAMA3-8B"
    echo "recipe,$sizes,16,$gpu,$layout,bf16,1,1F1B,NVIDIA/dgxc-benchmarking llama3.1/README_8b.md,LLAMA3.1-8B"
    echo "no-overlap,$sizes,16,$gpu,$layout,bf16,1,1F1B,NVIDIA/dgxc-benchmarking nemotron/README_340b.md,Nemotron4-340B"
    echo "fp4-recipe,$sizes,16,$gpu,$layout,NVFP4,1,1F1B,NVIDIA-NeMo/Megatron-Bridge,LLAMA3-8B"
    for source in "a paper" NVIDIA; do
        echo "${source#a } over tp,8,2048,6144,1,32,4,151936,0,1024,64,$a100,8,1,1,8,1,1,1,64,1,none,bf16,1,,$source,Qwen3-30B-A3B"
        echo "${source#a } no tp,8,2048,6144,1,32,4,151936,0,1024,64,$a100,1,1,1,8,1,1,1,64,1,none,bf16,1,,$source,Qwen3-30B-A3B"
    done
    sizes_3b="8,2048,6144,1,32,4,1024,0,1024,64,$a100"
    echo "sharded 8,$sizes_3b,4,1,1,8,1,1,1,64,1,none,bf16,1,,NVIDIA,Qwen3-30B-A3B"
    for ep in 8 64 32; do
        echo "whole $ep,$sizes_3b,4,1,1,$ep,1,1,1,64,1,none,bf16,1,,NVIDIA-NeMo/Megatron-Bridge,Qwen3-30B-A3B"
    done
    for ep in 8 64; do
        for source in NVIDIA NVIDIA-NeMo/Megatron-Bridge; do
            echo "$source $ep,8,2048,6144,1,32,4,1024,0,1024,64,$a100,1,1,1,$ep,1,1,1,64,0,none,bf16,1,,$source,Qwen3-30B-A3B"
        done
    done
    echo "maxtext,$sizes,16,$gpu,1,1,1,1,1,3,2,32,0,,bf16,1,FSDP (JAX),NVIDIA/dgxc-benchmarking maxtext/README_70b.md,LLAMA2-70B"
    echo "paxml,$sizes,16,$gpu,1,1,1,1,1,3,2,32,0,,bf16,1,FSDP (JAX),NVIDIA/dgxc-benchmarking paxml/README_5b.md,GPT3-5B"
} >runs4.csv
"$lockstep" plan --cases runs4.csv --out prices.csv >out.txt 2>err.txt || bad "plan --cases: $(cat err.txt)"
# A cast moves more bytes if it computes the scales first, and more again if rows and columns have separate scales.
faster fp8 FP8-CS
faster FP8-CS rowwise
faster grouped heads
[ "$(seconds unsaid)" = "$(seconds heads)" ] || bad "0 key heads take $(seconds unsaid) s, as many as query heads $(seconds heads)"
faster recipe no-overlap
faster loss no-recipe
says recipe "its recipe fuses the loss; its recipe overlaps communication over tp"
says no-overlap "its recipe fuses the loss"
grep "^fp4-recipe," prices.csv | grep -q "overlaps" && bad "a recipe in fp4 overlaps: $(grep "^fp4-recipe," prices.csv)"
# Each rank of tp sends the rows of its own tokens to the experts, not those of all.
[ -n "$(seconds 'NVIDIA no tp')" ] && [ "$(seconds 'NVIDIA no tp')" = "$(seconds 'paper no tp')" ] ||
    bad "without tp: $(seconds 'NVIDIA no tp') and $(seconds 'paper no tp') s"
faster "NVIDIA over tp" "paper over tp"
# Rows that go to each node once: fewer bytes if experts are on several nodes. The vocabulary is so small that the fused loss hardly counts.
awk -v a="$(seconds 'NVIDIA 8')" -v b="$(seconds 'NVIDIA-NeMo/Megatron-Bridge 8')" \
    -v c="$(seconds 'NVIDIA 64')" -v d="$(seconds 'NVIDIA-NeMo/Megatron-Bridge 64')" \
    'BEGIN { exit !(b > 0.98 * a && b < 1.02 * a && d < 0.9 * c) }' ||
    bad "rows that go to a node once take no less: $(cat prices.csv)"
says "NVIDIA-NeMo/Megatron-Bridge 64" "a token goes to each node once"
# Whole experts on each rank of tp: rows are not gathered over tp, and a group of experts may include the ranks of tp.
faster "whole 8" "sharded 8"
[ -n "$(seconds "whole 64")" ] || bad "experts over dp and tp are not priced: $(cat prices.csv)"
says "whole 64" "experts are not sharded over tp"
says "whole 32" "parallel.ep=32 does not divide parallel.dp=16"
says maxtext "recomputation not published: full"
says paxml "recomputation not published: selective"

# Bad input; nothing is written.
expect 2 "add --out FILE.csv" plan --cases runs.csv
expect 2 "leave it out" plan --cases runs.csv --out x.csv --parallel.tp=2
expect 2 "leave out all flags except" plan --cases runs.csv --out x.csv --json
expect 2 "use the name of a machine" plan --cases runs.csv --out x.csv --machine 8
expect 1 "No such file" plan --cases none.csv --out x.csv
sed 's/,vocab,/,words,/' runs.csv >wrong.csv
expect 1 "there is no column vocab" plan --cases wrong.csv --out x.csv
echo "short,1,2" >>runs.csv
expect 1 "runs.csv:18: 3 fields" plan --cases runs.csv --out x.csv
[ ! -e x.csv ] || bad "x.csv was written"

[ $failures -eq 0 ]
