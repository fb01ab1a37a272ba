#!/bin/sh
# test_parity_mesh.sh LOCKSTEP TESTS - compares every mesh of up to 8 ranks with one rank by `lockstep parity`: loss, every gradient, the
# norm and the weights of 3 steps in fp32. Layouts are generated: all combinations of dp, tp, cp and pp with the ZeRO stages, sequence
# parallelism, context methods, schedules, virtual stages and expert-parallel ranks that fit; each layout is tested with one model.
#
# By default every 23rd layout (LOCKSTEP_STRIDE), and every 101st with StarCoder2; LOCKSTEP_MATRIX=full: all of them, and every 7th.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"
stride=${LOCKSTEP_STRIDE:-23}
starcoder2_stride=101
[ "${LOCKSTEP_MATRIX:-}" = full ] && stride=1 starcoder2_stride=7

shape="--model.width=32 --model.heads=8 --model.ffn=44 --model.vocab=67 --data.seq_len=20 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny $shape"
tied="--model.preset=llama-tiny $shape --model.kv_heads=4 --model.tied=true"
qwen3="--model.preset=qwen3-tiny $shape --model.kv_heads=4 --model.head_size=6"
starcoder2="--model.preset=starcoder2-tiny $shape --model.kv_heads=2"
untied="--model.preset=llama-tiny $shape --model.kv_heads=2 --model.tied=false"
mixtral="--model.preset=mixtral-tiny --data.seq_len=20 --launch.threads=1"
qwen="--model.preset=qwen3-moe-tiny --data.seq_len=20 --launch.threads=1"
dropping="$mixtral --model.capacity=0.8 --model.drop=probability --model.shared_ffn=24"
sgd="--optim.name=sgd --optim.lr=0.1 --optim.momentum=0.5"
fp32="--precision.compute=fp32"

# ---- the generator: one line per layout, "model dp layers micro-batches words..." ----
layouts() {
    awk 'BEGIN {
        split("gpt2 tied untied qwen3", model); split("gpipe 1f1b interleaved zb-h1 zb-v", schedule)
        for (n = 2; n <= 8; n++) for (pp = 1; pp <= n; pp++) for (tp = 1; tp <= n; tp++) for (cp = 1; cp <= n; cp++) {
            if (n % (pp * tp * cp)) continue
            dp = n / (pp * tp * cp)
            for (zero = 0; zero <= (dp * cp > 1 ? 3 : 0); zero++)
                for (sp = 0; sp <= (tp > 1); sp++)
                    for (context = 0; context <= (cp > 1 && tp * cp <= 8); context++)
                        for (s = 1; s <= (pp > 1 ? 5 : 1); s++) {
                            name = schedule[s]
                            unsharded = zero >= 2 && name ~ /^zb/ && n % 2
                            vpp = pp > 1 && (name == "interleaved" || name == "zb-v") ? 2 : 1
                            layers = pp * vpp > 5 ? pp * vpp : 5
                            micro = pp > 1 ? 2 * pp : zero % 2 + 1
                            k++
                            printf "%s %d %d %d parallel.dp=%d", model[k % 4 + 1], dp, layers, micro, dp
                            if (zero) printf " parallel.zero=%d", zero
                            if (unsharded) printf " parallel.unsharded_accumulation"
                            if (tp > 1) printf " parallel.tp=%d", tp
                            if (sp) printf " parallel.sp"
                            if (cp > 1) printf " parallel.cp=%d parallel.cp_method=%s", cp, context ? "all_to_all" : "ring"
                            if (pp > 1) printf " parallel.pp=%d parallel.schedule=%s", pp, name
                            if (vpp > 1) printf " parallel.vpp=%d", vpp
                            printf "\n"
                        }
        }
    }'
}

# The same for models with experts.
experts() {
    awk 'BEGIN {
        split("mixtral qwen dropping", model)
        for (n = 2; n <= 8; n++) for (pp = 1; pp <= n && pp <= 4; pp++) for (tp = 1; tp <= n && tp <= 4; tp++) for (cp = 1; cp <= n; cp++) {
            if (n % (pp * tp * cp)) continue
            dp = n / (pp * tp * cp)
            for (ep = 1; ep <= dp * cp && ep <= 4; ep++) {
                if (dp * cp % ep) continue
                for (zero = 0; zero <= (dp * cp > 1 ? 3 : 0); zero++) {
                    sp = tp > 1 && (zero + ep) % 2; context = (zero + dp) % 2
                    k++
                    micro = pp > 1 ? pp : zero % 2 + 1; layers = pp > 2 ? pp : 3
                    printf "%s %d %d %d parallel.dp=%d parallel.ep=%d", model[k % 3 + 1], dp, layers, micro, dp, ep
                    if (zero) printf " parallel.zero=%d", zero
                    if (tp > 1) printf " parallel.tp=%d", tp
                    if (sp) printf " parallel.sp"
                    if (cp > 1) printf " parallel.cp=%d parallel.cp_method=%s", cp, context && tp * cp <= 4 ? "all_to_all" : "ring"
                    if (pp > 1) printf " parallel.pp=%d", pp
                    printf "\n"
                }
            }
        }
    }'
}

layouts >layouts.txt
awk -v stride=$starcoder2_stride 'NR % stride == 1 { $1 = "starcoder2"; print }' layouts.txt >biased.txt
dense=$(wc -l <layouts.txt)
experts >>layouts.txt
all=$(wc -l <layouts.txt)
[ "$dense" -eq 819 ] && [ "$all" -eq $((819 + 407)) ] || bad "$dense layouts of dense models of $all layouts, not 819 of 1226"
awk -v stride="$stride" "NR % stride == 1 || stride == 1" layouts.txt | cat - biased.txt >chosen.txt
while read -r model dp layers micro words; do
    equal "" "$words" $(options $model) $fp32 $sgd --model.layers=$layers --train.accumulate=$micro --train.global_batch=$((dp * micro))
done <chosen.txt

all_pairs $(((819 + 407 + stride - 1) / stride + (819 + starcoder2_stride - 1) / starcoder2_stride))
end_on_check
[ $failures -eq 0 ] && say "meshes: $equal_runs of $(cat layouts.txt biased.txt | wc -l) layouts"
exit $((failures > 0))
