#!/bin/sh
# test_parity_options.sh LOCKSTEP TESTS - meshes with every option that changes a step: more steps, types, recomputation, accumulation,
# optimizers, dropout, offload, sizes that are not divisible, schedules from files, MPI; and the layouts that are refused.
#
# By default each option is tested on one or two of the meshes, in turn, and sizes that are not divisible on half of theirs;
# LOCKSTEP_MATRIX=full: on all of them.
set -u
lockstep=$1
folder=$(cd "$(dirname "$lockstep")" && pwd)
. "${2:-$(dirname "$0")}/script.sh"
full=0
[ "${LOCKSTEP_MATRIX:-}" = full ] && full=1

shape="--model.layers=5 --model.width=32 --model.heads=8 --model.ffn=44 --model.vocab=67 --data.seq_len=20 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny $shape"
tied="--model.preset=llama-tiny $shape --model.kv_heads=4 --model.tied=true"
untied="--model.preset=llama-tiny $shape --model.kv_heads=2 --model.tied=false"
mixtral="--model.preset=mixtral-tiny --data.seq_len=20 --launch.threads=1"
qwen="--model.preset=qwen3-moe-tiny --data.seq_len=20 --launch.threads=1"
sgd="--optim.name=sgd --optim.lr=0.1 --optim.momentum=0.5"
fp32="--precision.compute=fp32"
batch="--train.global_batch=4 --train.accumulate=2"

cat >flat.txt <<'END'
parallel.tp=2 parallel.sp
parallel.dp=2 parallel.zero=2 parallel.tp=2
parallel.cp=2 parallel.zero=3
parallel.tp=2 parallel.cp=2 parallel.cp_method=all_to_all
parallel.dp=2 parallel.cp=2 parallel.tp=2 parallel.zero=1 parallel.sp
END
cat >staged.txt <<'END'
parallel.pp=2 parallel.schedule=zb-h1
parallel.pp=2 parallel.vpp=2 parallel.tp=2 parallel.sp
parallel.pp=3 parallel.dp=2 parallel.zero=1
parallel.pp=2 parallel.cp=2 parallel.zero=2
parallel.pp=2 parallel.dp=2 parallel.schedule=zb-v parallel.zero=3
END
cat flat.txt staged.txt >meshes.txt

# some FILE N OPTIONS...: compares the next N meshes of the file with one rank.
turn=0
some() {
    file=$1 n=$2
    shift 2
    lines=$(wc -l <"$file")
    [ $full -eq 1 ] && n=$lines
    while [ "$n" -gt 0 ]; do
        mesh=$(sed -n $((turn % lines + 1))p "$file")
        turn=$((turn + 1)) n=$((n - 1))
        equal "" "$mesh" "$@"
    done
}

# ---- options of a step ----
for model in "$gpt2" "$tied" "$untied"; do some meshes.txt 2 $model $fp32 $sgd $batch --steps 20 --optim.lr=0.02; done
equal "" "parallel.dp=2 parallel.ep=2 parallel.zero=1" $mixtral $fp32 $sgd --train.global_batch=4 --train.accumulate=2 --steps 20 \
    --optim.lr=0.02
for model in "$gpt2" "$tied" "$untied"; do some meshes.txt 1 $model $sgd $batch --precision.compute=bf16; done
some meshes.txt 1 $gpt2 $sgd $batch --precision.compute=bf16 --precision.master=false
some meshes.txt 1 $tied $sgd $batch --precision.compute=bf16 --precision.master=false --precision.stochastic_rounding=true
for mode in selective full every:2; do
    some meshes.txt 1 $tied $fp32 $sgd $batch --recompute.mode=$mode
    some flat.txt 1 $gpt2 $fp32 $sgd $batch --recompute.mode=$mode --model.dropout=0.2 --model.attention_dropout=0.3
    equal "" "parallel.dp=2 parallel.ep=2 parallel.tp=2 recompute.mode=$mode" $qwen $fp32 $sgd --train.global_batch=2 --train.accumulate=1
done
equal "" "parallel.cp=2 parallel.ep=2 parallel.pp=2 recompute.mode=full" $mixtral $fp32 $sgd --train.global_batch=2 --train.accumulate=2
equal "" "parallel.tp=2 parallel.pp=2 recompute.mode=budget:600KiB" $untied $fp32 $sgd $batch
equal "" "parallel.dp=2 parallel.tp=2 parallel.zero=3 recompute.mode=budget:600KiB" $untied $fp32 $sgd $batch
for accumulate in 1 2 4; do some flat.txt 1 $untied $fp32 $sgd --train.global_batch=8 --train.accumulate=$accumulate; done
for optimizer in adam adamw lamb lars; do some meshes.txt 1 $tied $fp32 --optim.name=$optimizer --optim.clip=0.1 $batch; done
equal "" "parallel.dp=2 parallel.ep=2 parallel.tp=2 parallel.zero=2" $mixtral $fp32 --optim.name=lamb --optim.clip=0.1 \
    --train.global_batch=2 --train.accumulate=1
equal "" "parallel.dp=2 parallel.ep=2 parallel.pp=2 parallel.zero=1" $qwen $fp32 --optim.name=lars --optim.clip=0.1 \
    --train.global_batch=2 --train.accumulate=1
some meshes.txt 2 $gpt2 $fp32 $sgd $batch --model.dropout=0.2 --model.attention_dropout=0.3
for offload in cpu file; do some meshes.txt 1 $gpt2 $fp32 --optim.name=adamw $batch --optim.offload=$offload; done
equal "" "parallel.dp=2 parallel.tp=2 precision.reduce=bf16" $gpt2 $fp32 $sgd $batch
equal "" "parallel.pp=2 parallel.dp=2 parallel.schedule=zb-v precision.reduce=bf16" $tied $fp32 $sgd $batch  # both end stages on a rank
for schedule in zb-h1 "zb-v parallel.vpp=2"; do  # sharded gradients are reduced when the weights segment completes a unit
    for zero in "2 parallel.bucket=4KiB" 3 "3 parallel.fsdp_unit=model" "3 parallel.fsdp_unit=layers:2 precision.reduce=bf16"; do
        equal "" "parallel.pp=2 parallel.dp=2 parallel.schedule=$schedule parallel.zero=$zero" $untied $fp32 $sgd $batch
    done
done
equal "" "parallel.pp=2 parallel.dp=2 parallel.ep=2 parallel.schedule=zb-h1 parallel.zero=3" $mixtral $fp32 $sgd $batch
equal "" "parallel.tp=2 parallel.pp=2 parallel.overlap=false" $untied $fp32 $sgd $batch
equal "" "parallel.tp=2 parallel.tp_chunks=3" $untied $fp32 $sgd $batch
equal "" "parallel.dp=4 parallel.tp=2 parallel.zero=3 parallel.replicate=2" $tied $fp32 $sgd --train.global_batch=8 --train.accumulate=2
equal "" "parallel.dp=2 parallel.tp=2 parallel.zero=3 parallel.reshard_after_forward=false" $tied $fp32 $sgd $batch
equal "" "parallel.dp=2 parallel.cp=2 parallel.zero=2 parallel.bucket=4KiB parallel.first_bucket=1KiB" $untied $fp32 $sgd $batch
equal "parallel.tp=4 parallel.sp" "parallel.pp=2 parallel.cp=2" $gpt2 $fp32 $sgd $batch
equal "" "parallel.tp=2 parallel.sp parallel.pp=2 recompute.mode=selective" $gpt2 --model.activation=relu_squared $fp32 $sgd $batch

# ---- sizes that are not divisible ----
odd="--model.layers=5 --model.width=48 --model.heads=3 --model.kv_heads=3 --model.ffn=43 --model.vocab=67 --data.seq_len=19
     --launch.threads=1"
for family in gpt2-tiny llama-tiny; do
    for mesh in "parallel.tp=2" "parallel.tp=2 parallel.sp" "parallel.cp=2" "parallel.cp=3" "parallel.cp=2 parallel.cp_method=all_to_all" \
                "parallel.pp=2" "parallel.pp=3 parallel.tp=2 parallel.sp" "parallel.dp=2 parallel.zero=3 parallel.cp=2"; do
        turn=$((turn + 1))
        [ $full -eq 1 ] || [ $((turn % 2)) -eq 0 ] || continue
        equal "" "$mesh" --model.preset=$family $odd $fp32 $sgd --train.global_batch=7 --train.accumulate=2
    done
    turn=$((turn + 1)) # the other half for the next family
done
equal "" "parallel.tp=4" $untied $fp32 $sgd $batch                        # kv heads 2, vocabulary 67
equal "" "parallel.tp=4 parallel.sp parallel.dp=2 parallel.zero=2" $untied $fp32 $sgd --train.global_batch=7 --train.accumulate=2
equal "" "parallel.tp=3" $tied --model.kv_heads=2 $fp32 $sgd $batch       # kv heads on some of the ranks
equal "" "parallel.dp=2 parallel.ep=2" $mixtral --model.experts=5 --model.expert_ffn=43 $fp32 $sgd --train.global_batch=3 \
    --train.accumulate=1
equal "" "parallel.cp=3 parallel.ep=3 parallel.tp=2" $qwen --model.experts=7 --data.seq_len=19 $fp32 $sgd --train.global_batch=2 \
    --train.accumulate=1
equal "" "parallel.dp=4 parallel.ep=2 parallel.zero=1" $qwen --model.experts=5 $fp32 $sgd --train.global_batch=15 --train.accumulate=2


# ---- experts: losses per sequence, independent of the micro-batches; capacity for the tokens of a sequence over all its ranks ----
equal "" "parallel.dp=2 parallel.ep=2" --model.preset=mixtral-tiny $fp32 --data.seq_len=32 --launch.threads=1
equal "train.accumulate=4" "train.accumulate=2" $mixtral $fp32 --train.global_batch=8 --model.z_loss=0.1 --model.router_bias_rate=0.01
equal "train.accumulate=2" "parallel.dp=2 parallel.cp=2 parallel.ep=4 train.micro_batch=1" $qwen $fp32 $sgd --train.global_batch=4 \
    --model.aux_loss=0.5
equal "" "parallel.cp=2 parallel.ep=2" $mixtral $fp32 $sgd --train.global_batch=2 --model.capacity=0.8 --model.aux_loss=0.5
equal "" "parallel.cp=3 parallel.tp=2 parallel.sp parallel.cp_method=ring" $mixtral $fp32 $sgd --train.global_batch=2 --model.capacity=0.8 \
    --model.drop=probability --model.router_bias_rate=0.01 --data.seq_len=19

# ---- experts in bf16: nearly tied choices may differ and are counted; everything else is equal ----
many="--model.preset=qwen3-moe-tiny --model.layers=6 --model.experts=16 --model.experts_per_token=4 --data.seq_len=64 --launch.threads=1"
equal "" "parallel.tp=2" $mixtral --precision.compute=bf16 --train.global_batch=4
equal "" "parallel.tp=2 parallel.cp=2" $mixtral --precision.compute=bf16 --train.global_batch=4 --model.capacity=0.8 \
    --model.router_bias_rate=0.01
equal "" "parallel.tp=2 parallel.sp parallel.dp=2 parallel.ep=2" $many --precision.compute=bf16 --train.global_batch=4 --steps 1
[ $? -ne 0 ] || grep -q "choices of experts differed from the reference's within rounding" out.txt ||
    bad "bf16 experts: no count: $(cat out.txt)"
equal "" "parallel.dp=2 train.micro_batch=1" $mixtral $fp32 --train.global_batch=2 --model.aux_loss_scope=micro_batch
"$lockstep" parity --a "" --b "parallel.dp=2" $mixtral $fp32 --train.micro_batch=1 --model.aux_loss_scope=micro_batch >out.txt 2>err.txt
[ $? -eq 2 ] && grep -q "samples of a micro-batch on all data-parallel ranks: 1 in --a, 2 in --b" err.txt ||
    bad "micro_batch scope: $(cat out.txt err.txt)"

# ---- stages and schedules from files ----
cat >mine <<'END'
# two micro-batches forward, then one at a time
stages 2 chunks 1 micro 4 order loop
0: F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3
1: F0.0 B0.0 F0.1 F0.2 B0.1 B0.2 F0.3 B0.3
END
cat >split <<'END'
stages 2 chunks 1 micro 2 order loop
0: F0.0 F0.1 B0.0 B0.1 W0.0 W0.1
1: F0.0 B0.0 F0.1 B0.1 W0.1 W0.0
END
equal "" "parallel.pp=2 parallel.schedule=file:mine" $gpt2 $fp32 $sgd --train.global_batch=8 --train.accumulate=4
equal "" "parallel.pp=2 parallel.tp=2 parallel.sp parallel.schedule=file:split" $untied $fp32 $sgd $batch
equal "" "parallel.pp=2 parallel.stages=1,4" $tied $fp32 $sgd $batch
equal "" "parallel.pp=3 parallel.stages=2,1,2 parallel.dp=2 parallel.zero=3" $untied $fp32 $sgd --train.global_batch=8 --train.accumulate=4
equal "" "parallel.pp=2 parallel.vpp=2 parallel.stages=2,1,1,1" $gpt2 $fp32 $sgd $batch

all_pairs 83 273
end_on_check

# ---- one layout twice has the same bits ----
turn=0
[ $full -eq 1 ] && times=10 || times=4
while [ $turn -lt $times ]; do
    mesh=$(sed -n $((3 * turn % 10 + 1))p meshes.txt)
    for type in fp32 bf16; do
        in_part || continue
        "$lockstep" parity --a "$mesh" --b "$mesh" $tied --precision.compute=$type $batch --json >out.txt 2>err.txt ||
            bad "$mesh twice: $(cat err.txt)"
        read -r compared same <<EOF
$(json compared same_bits <out.txt)
EOF
        [ "${compared:-0}" -gt 0 ] && [ "$same" = "$compared" ] || bad "$mesh twice has other bits: $(cat out.txt)"
    done
    turn=$((turn + 1))
done

# ---- ranks that are started by mpirun ----
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
export OMPI_MCA_btl_vader_single_copy_mechanism=none PMIX_MCA_gds=hash
for kind in openmpi mpich; do
    if ! command -v "mpirun.$kind" >/dev/null || [ ! -f "$folder/lockstep_$kind.so" ]; then
        say "skipped: mpirun.$kind or lockstep_$kind.so is not there"
        continue
    fi
    for mesh in "tp=2 sp pp=2" "dp=2 zero=2 cp=2" "pp=2 schedule=zb-h1"; do
        words=
        for word in $mesh; do words="$words --parallel.$word"; done
        case $mesh in "pp=2 schedule=zb-h1") n=2 ;; *) n=4 ;; esac
        in_part || continue
        ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 timeout -k 5 120 "mpirun.$kind" -n $n "$lockstep" parity --write \
            "$work/$kind" $words $tied \
            $fp32 $sgd $batch >out.txt 2>err.txt || bad "$kind, $mesh: $(cat out.txt err.txt)"
        "$lockstep" parity --a "" --against "$kind" $tied $fp32 $sgd $batch >out.txt 2>err.txt || bad "$kind, $mesh: $(cat out.txt err.txt)"
        grep -q "^equal: 3 steps" out.txt || bad "$kind, $mesh: does not say so: $(cat out.txt)"
    done
    rm -f "$kind"
done

# ---- layouts that are refused before anything runs, with one line that names the option and the numbers ----
refused() {
    words=$1 layout=$2
    shift 2
    in_part || return
    "$lockstep" parity --a "" --b "$layout" "$@" --launch.threads=1 >out.txt 2>err.txt
    got=$?
    [ $got -eq 2 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF -e "--b: $words" err.txt || bad "exit $got: '$layout' $*: $(cat err.txt)"
}
refused "model.heads=3 cannot be sharded over parallel.tp=4: every rank needs at least one" "parallel.tp=4" --model.preset=gpt2-tiny $odd
refused "model.vocab=3 cannot be sharded over parallel.tp=4: every rank needs at least one" "parallel.tp=4" $gpt2 --model.vocab=3
refused "model.ffn=3 cannot be sharded over parallel.tp=4: every rank needs at least one" "parallel.tp=4" $untied --model.ffn=3
refused "model.expert_ffn=1 cannot be sharded over parallel.tp=2: every rank needs at least one" "parallel.tp=2" $mixtral \
    --model.expert_ffn=1
refused "model.experts=4 cannot be sharded over parallel.ep=8: every rank needs at least one" "parallel.dp=8 parallel.ep=8" $mixtral \
    --model.experts=4
refused "parallel.ep=2 does not divide parallel.dp=3 / parallel.replicate=1 * parallel.cp=1 = 3" "parallel.dp=3 parallel.ep=2" $mixtral
refused "parallel.ep=2 does nothing here: the model has no experts" "parallel.dp=2 parallel.ep=2" $gpt2
refused "data.seq_len=7 is too short for parallel.cp=4 with two chunks per rank; use at least 8 tokens" "parallel.cp=4" $untied \
    --data.seq_len=7
refused "data.seq_len=3 is too short for parallel.cp=4; use at least 4 tokens" "parallel.cp=4 parallel.cp_method=all_to_all" $untied \
    --data.seq_len=3
refused "data.seq_len=3 over parallel.cp=1 gives shards of 3 tokens, too few for parallel.sp over parallel.tp=4" \
    "parallel.tp=4 parallel.sp" $untied --data.seq_len=3
refused "parallel.cp_method=all_to_all with parallel.cp=4: with model.heads=3" "parallel.cp=4 parallel.cp_method=all_to_all" \
    --model.preset=gpt2-tiny $odd
refused "model.layers=3 in parallel.pp=4 * parallel.vpp=1 stages: every stage needs at least one layer" "parallel.pp=4" $gpt2 \
    --model.layers=3
refused "model.layers=3 in parallel.pp=2 * parallel.vpp=2 stages: every stage needs at least one layer" "parallel.pp=2 parallel.vpp=2" \
    $gpt2 --model.layers=3
refused "parallel.stages=1,2: expected 2 numbers that add up to 5" "parallel.pp=2 parallel.stages=1,2" $gpt2
refused "parallel.stages=1,x: 'x' is not a number of layers from 1 to 5" "parallel.pp=2 parallel.stages=1,x" $gpt2
refused "parallel.reshard_after_forward=false with parallel.pp=2" \
    "parallel.pp=2 parallel.dp=2 parallel.zero=3 parallel.reshard_after_forward=false" $gpt2 $batch
refused 'parallel.schedule=zbv does not exist; use gpipe' "parallel.pp=2 parallel.schedule=zbv" $gpt2
# a file that cannot be read is a failure, not a usage error
"$lockstep" parity --a "" --b "parallel.pp=2 parallel.schedule=file:none" $gpt2 >out.txt 2>err.txt
[ $? -eq 1 ] && grep -qF -e "--b: parallel.schedule=file:none: none: cannot open" err.txt || bad "file:none: $(cat out.txt err.txt)"
refused "parallel.schedule=file:mine: mine is for 2 stages of 1 chunks and 4 micro-batches" "parallel.pp=2 parallel.schedule=file:mine" \
    $gpt2 $batch
refused "parallel.tp=2: a model that is not a transformer supports only parallel.dp" "parallel.tp=2" --model.preset=resnet-tiny
"$lockstep" train -n 6 --data.text=text.txt --model.preset=llama-tiny --parallel.tp=4 >out.txt 2>err.txt
got=$?
[ $got -eq 2 ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF "does not hold: 6 = 1 * 1 * 1 * 4" err.txt ||
    bad "6 ranks for tp=4: exit $got: $(cat err.txt)"
[ -z "$(ls -A tmp)" ] || bad "left behind: $(ls tmp)"

[ $failures -eq 0 ] && say "options on meshes: $equal_runs of $cells runs"
exit $((failures > 0))
