#!/bin/sh
# test_experts_overlap.sh LOCKSTEP TESTS - instructions between the start and the wait of an exchange of routed rows: in the forward the two
# halves of the shared expert, in the backward their gradients and the weight gradients of the experts; without overlap nothing. The bits
# of a step do not depend on it, and the step is that of a single rank.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"

model="--model.preset=qwen3-moe-tiny --model.layers=2 --data.seq_len=20 --launch.threads=1 --precision.compute=fp32"

# between MODEL_OPTIONS...: one line per exchange of rows: its segment, then op:weight of all instructions between its start and its wait
between() {
    "$lockstep" plan --print-program $model --parallel.dp=2 --parallel.ep=2 "$@" >program.txt 2>err.txt || bad "plan $*: $(cat err.txt)"
    awk '/^[a-z]+: [0-9]+ instructions/ { segment = $1 }
         $2 == "communicate" && $3 == "all_to_all" { open = 1; line = segment; next }
         $2 == "communicate" && $3 == "wait" && $4 == "all_to_all" { print line; open = 0; next }
         open && $3 != "view" { weight = ""
             if (match($0, /(shared_experts|experts)\.(gate|up|down)_proj/)) weight = substr($0, RSTART, RLENGTH)
             line = line " " $3 ":" weight }' program.txt
}
# line N WORDS: line N of between.txt has exactly these
line() {
    got=$(sed -n "${1}p" between.txt)
    [ "$got" = "$2" ] || bad "exchange $1: between are '$got'; expected '$2'"
}

s=shared_experts
between --model.shared_ffn=32 >between.txt
[ "$(wc -l <between.txt)" -eq 8 ] || bad "exchanges of rows: $(cat between.txt)"
for layer in 0 1; do
    line $((2 * layer + 1)) "forward: linear:$s.gate_proj linear:$s.up_proj swiglu:"
    line $((2 * layer + 2)) "forward: linear:$s.down_proj"
    line $((2 * layer + 5)) "backward: linear_dx:$s.down_proj"
    line $((2 * layer + 6)) "backward: linear_dw:$s.down_proj grouped_linear_dw:experts.down_proj grouped_linear_dw:experts.up_proj \
grouped_linear_dw:experts.gate_proj swiglu_grad: linear_dx:$s.up_proj linear_dw:$s.up_proj linear_dx:$s.gate_proj add: \
linear_dw:$s.gate_proj"
done
between --model.shared_ffn=0 >between.txt
for layer in 0 1; do
    line $((2 * layer + 6)) "backward: grouped_linear_dw:experts.down_proj grouped_linear_dw:experts.up_proj \
grouped_linear_dw:experts.gate_proj"
done
between --model.shared_ffn=32 --parallel.overlap=false >between.txt
for n in 1 2 3 4; do line $n "forward:"; done
for n in 5 6 7 8; do line $n "backward:"; done

# ---- the step ----
sgd="--optim.name=sgd --optim.lr=0.1 --optim.momentum=0.5 --train.global_batch=4 --train.accumulate=2"
for more in "" "parallel.zero=3" "parallel.tp=2 parallel.sp" "recompute.mode=full" "parallel.pp=2 parallel.schedule=zb-h1"; do
    equal "" "parallel.dp=2 parallel.ep=2 $more" $model --model.shared_ffn=32 $sgd
    "$lockstep" parity --a "parallel.dp=2 parallel.ep=2 $more" --b "parallel.dp=2 parallel.ep=2 $more parallel.overlap=false" $model \
        --model.shared_ffn=32 $sgd --json >out.txt 2>err.txt || bad "$more with and without overlap: $(cat err.txt)"
    read -r compared same <<END
$(json compared same_bits <out.txt)
END
    [ "${compared:-0}" -gt 0 ] && [ "$same" = "$compared" ] || bad "$more: overlap changes bits: $same of $compared are the same"
done

[ $failures -eq 0 ] && say "exchanges of experts overlap: $equal_runs layouts"
exit $((failures > 0))
