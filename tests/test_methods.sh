#!/bin/sh
# test_methods.sh LOCKSTEP TESTS - parallel.method: dataparallel and server compute the step of a single rank, with the planned
# memory and bytes; async in turns is reproducible bit by bit and counts its staleness; all of them resume, and report their cost.
set -u
lockstep=$1
. "${2:-$(dirname "$0")}/script.sh"
XDG_CACHE_HOME=$work/cache
export XDG_CACHE_HOME

shape="--model.preset=llama-tiny --model.width=32 --model.heads=2 --model.kv_heads=2 --model.ffn=40 --data.seq_len=8 --launch.threads=1"
gpt2="--model.preset=gpt2-tiny --model.width=32 --model.heads=2 --model.ffn=48 --data.seq_len=8 --launch.threads=1"
image="--model.preset=resnet-tiny --launch.threads=1"
fp32="--precision.compute=fp32"
train="$shape $fp32 --data.text=text.txt --run.measure_peak=off --log.tensorboard=false --optim.warmup=0 --train.eval_batches=2"

# ---- the step of a single rank: ranks, accumulation, types, optimizers, models, offloaded state ----
equal "" "parallel.dp=2 parallel.method=dataparallel" $shape $fp32 --train.global_batch=8 --train.micro_batch=2
equal "" "parallel.dp=2 parallel.method=server" $shape $fp32 --train.global_batch=8 --train.micro_batch=2
equal "parallel.zero=3 parallel.dp=3" "parallel.dp=3 parallel.method=dataparallel" $gpt2 --precision.compute=bf16 --optim.name=lamb \
    --train.global_batch=7 --train.micro_batch=2
equal "parallel.dp=3" "parallel.dp=3 parallel.method=server parallel.bucket=4KiB parallel.overlap=false" $gpt2 --precision.compute=bf16 \
    --precision.reduce=bf16 --optim.name=lars --train.global_batch=7 --train.micro_batch=2
equal "parallel.dp=2" "parallel.dp=2 parallel.method=dataparallel" $image $fp32 --train.global_batch=4
equal "" "parallel.dp=4 parallel.method=server" --model.preset=mixtral-tiny --data.seq_len=8 --launch.threads=1 $fp32 \
    --optim.offload=cpu --train.global_batch=8 --train.micro_batch=2

# ---- planned and measured: memory by category and bytes by operation, of rank 0, which has the most ----
planned() {
    method=$1 ranks=$2
    keys="memory.parameters memory.gradients memory.optimizer memory.activations memory.communication"
    comm="comm.all_gather.bytes comm.all_gather.calls comm.reduce_scatter.calls comm.send.bytes comm.send.calls"
    expect 0 "" train -n $ranks $train --parallel.method=$method --parallel.async_turns=$3 --train.micro_batch=2 --train.accumulate=2 \
        --train.steps=6 --train.eval_every=3 --log.per_rank=true --run.dir=planned_$method
    sed -n 2p planned_$method/metrics$([ $method = async ] || echo .rank_0000).jsonl >measured.json
    expect 0 "" plan --parallel.dp=$ranks $shape $fp32 --model.vocab=257 --parallel.method=$method --train.micro_batch=2 \
        --train.accumulate=2 --json
    nonzero=0
    for key in $keys $comm; do
        was=$(json $key <measured.json) plans=$(json $key <out.txt)
        [ "$was" = none ] && was=0
        [ "$plans" = none ] && plans=0
        [ "$was" = "$plans" ] || bad "$method: $key: planned $plans, measured $was"
        [ "$plans" = 0 ] || nonzero=$((nonzero + 1))
    done
    [ $nonzero -ge 5 ] || bad "$method: only $nonzero figures are planned: $(cat out.txt)"
}

planned dataparallel 3 false
planned server 3 false
planned async 3 true

# ---- the same losses as allreduce, and the report's comparison with it ----
expect 0 "" train -n 3 $train --train.micro_batch=2 --train.accumulate=2 --train.steps=6 --train.eval_every=3 --run.dir=ordinary
for method in dataparallel server; do
    for run in ordinary planned_$method; do json loss <$run/metrics.jsonl | awk '{ printf "%.4f\n", $1 }' >losses_$run.txt; done
    cmp -s losses_ordinary.txt losses_planned_$method.txt ||
        bad "$method: $(paste losses_ordinary.txt losses_planned_$method.txt | tr '\n\t' '; ')"
    [ "$(json cost.loss <planned_$method/method.json | cut -c1-6)" = "$(json allreduce.loss <planned_$method/method.json | cut -c1-6)" ] ||
        bad "$method: another loss than its reference: $(cat planned_$method/method.json)"
done
# P bytes of parameters: rank 0 sends and receives (n - 1) P, with accumulation once per micro-batch; an all-reduce moves 2 P (n - 1) / n
parameters=$(head -n 1 planned_server/metrics.jsonl | json memory.parameters)
for method in server dataparallel; do
    f=planned_$method/method.json
    awk -v p="$parameters" -v times=$([ $method = server ] && echo 1 || echo 2) -v sent="$(json cost.sent <$f)" \
        -v received="$(json cost.received <$f)" -v ordinary="$(json allreduce.sent <$f)" -v busiest="$(json cost.busiest <$f)" 'BEGIN {
        near = 4096 # samples, and sums of a few numbers
        exit busiest != 0 || sent < 2 * p * times || sent > 2 * p * times + near || received < 2 * p * times ||
            received > 2 * p * times + near || ordinary < 4 * p / 3 || ordinary > 4 * p / 3 + near }' ||
        bad "$method: $parameters bytes of parameters: $(cat planned_$method/method.json)"
    [ "$(json cost.memory_others <planned_$method/method.json)" -lt "$(json cost.memory_rank_0 <planned_$method/method.json)" ] ||
        bad "$method: rank 0 does not hold the most: $(cat planned_$method/method.json)"
done

# ---- resumed on the same ranks, on others, and by the ordinary method ----
again="--train.micro_batch=2 --train.accumulate=-1 --train.global_batch=12 --train.schedule_steps=9"
for steps in 9 4; do
    expect 0 "" train -n 3 $train $again --parallel.method=server --train.steps=$steps --parallel.reference_steps=2 --run.dir=stopped_$steps
done
expect 0 "step 9 of 9" train -n 3 $train $again --parallel.method=server --train.steps=9 --run.dir=stopped_4
grep -qF "beside 5 steps of allreduce" out.txt || bad "a resumed run has another reference: $(grep ^method out.txt)"
same_bits stopped_9 stopped_4
expect 0 "step 10 of 10" train -n 2 $train $again --parallel.method=dataparallel --train.steps=10 --run.dir=stopped_4
expect 0 "step 11 of 11" train $train $again --train.steps=11 --run.dir=stopped_4

# ---- async: its staleness in turn, K - 1 updates in the steady state; the same bits again, and resumed where it had joined ----
async="--parallel.method=async --train.micro_batch=2 --train.global_batch=6 --train.accumulate=1 --parallel.reference_steps=3"
async="$async --train.eval_every=4 --train.schedule_steps=8 --train.eval_batches=1"
for run in one two; do
    expect 0 "async, in turn" train -n 4 $train $async --parallel.async_turns=true --train.steps=8 --run.dir=async_$run
    grep -qx '  staleness \[updates\] *1.75 *0' out.txt || bad "the staleness in the report: $(grep staleness out.txt)"
done
same_bits async_one async_two
expect 0 "" train -n 4 $train $async --parallel.async_turns=true --train.steps=4 --run.dir=async_part
expect 0 "step 8 of 8" train -n 4 $train $async --parallel.async_turns=true --train.steps=8 --run.dir=async_part
same_bits async_one async_part
[ "$(json staleness.mean <async_one/metrics.jsonl | tr '\n' ' ')" = "1.0 2.0 2.0 2.0 1.0 2.0 2.0 2.0 " ] ||
    bad "staleness in turn: $(json staleness.mean <async_one/metrics.jsonl | tr '\n' ' ')"

# One worker has no staleness: with SGD its updates are those of the ordinary run, to the last digits.
expect 0 "" train -n 2 $train --parallel.method=async --optim.name=sgd --train.micro_batch=4 --train.accumulate=1 --train.steps=5 \
    --train.eval_every=0 --run.dir=async_alone
expect 0 "" train $train --optim.name=sgd --train.micro_batch=4 --train.accumulate=1 --train.steps=5 --train.eval_every=0 --run.dir=alone
same_bits alone async_alone

# As gradients arrive: every update is counted, and none is as stale as there are other updates.
expect 0 "" train -n 4 $train $async --train.steps=12 --train.schedule_steps=12 --run.dir=async_free
[ "$(json cost.updates <async_free/method.json)" -eq 36 ] || bad "updates: $(cat async_free/method.json)"
[ "$(json cost.staleness_most <async_free/method.json)" -ge 2 ] || bad "staleness: $(cat async_free/method.json)"

# ---- a worker that is killed ends the job; a request to stop ends all workers at the same step ----
"$lockstep" train -n 3 $train --parallel.method=async --train.micro_batch=2 --train.steps=1000000 --train.eval_every=0 --run.dir=killed \
    >out.txt 2>err.txt &
launcher=$!
wait_lines killed/metrics.jsonl 3
kill -KILL "$(rank 2)"
wait $launcher
[ $? -eq 3 ] || bad "a killed worker: $(cat err.txt)"
grep -q 'rank 2' err.txt || bad "a killed worker is not named: $(cat err.txt)"
launcher=
"$lockstep" train -n 3 $train --parallel.method=async --train.micro_batch=2 --train.steps=1000000 --train.eval_every=0 --run.dir=asked \
    >out.txt 2>err.txt &
launcher=$!
wait_lines asked/metrics.jsonl 3
kill -TERM $launcher
wait $launcher
code=$?
launcher=
[ $code -eq 0 ] || bad "SIGTERM: exit code $code: $(cat err.txt)"
last=$(tail -n 1 asked/metrics.jsonl | json step)
[ -d "asked/checkpoints/step_$(printf %08d "$last")" ] || bad "no checkpoint of step $last: $(ls asked/checkpoints)"

# ---- under MPI, with the same communication through rank 0 ----
for kind in openmpi mpich; do
    folder=${lockstep%/*}
    command -v "mpirun.$kind" >/dev/null && [ -f "$folder/lockstep_$kind.so" ] || { say "skipped: mpirun.$kind is not there"; continue; }
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 ASAN_OPTIONS=detect_leaks=0 \
        timeout -k 5 100 "mpirun.$kind" -n 3 "$lockstep" train $train --parallel.method=server --train.micro_batch=2 --train.accumulate=2 \
        --train.steps=6 --train.eval_every=3 --run.dir=$kind >out.txt 2>err.txt || bad "mpirun.$kind: $(cat err.txt)"
    for key in cost.sent cost.received; do
        [ "$(json $key <$kind/method.json)" = "$(json $key <planned_server/method.json)" ] || bad "$kind: $key: $(cat $kind/method.json)"
    done
done

say "$equal_runs comparisons"
[ $failures -eq 0 ] || { say "$failures failed"; exit 1; }
