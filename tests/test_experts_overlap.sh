#!/bin/sh
# test_experts_overlap.sh LOCKSTEP TESTS - the bits of a step do not depend on what overlaps the exchanges of routed rows
# (test_experts_program.c says what does), and the step is that of a single rank.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"

model="--model.preset=qwen3-moe-tiny --model.layers=2 --data.seq_len=20 --launch.threads=1 --precision.compute=fp32"

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
