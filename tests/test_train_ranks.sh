#!/bin/sh
# test_train_ranks.sh LOCKSTEP - training on several ranks as a user runs it: the same losses in every layout and under every launcher,
# checkpoints that are resumed under other layouts, the files of a run, and refused options.
# LOCKSTEP_MATRIX=full: all layouts of 1 to 4 ranks.
set -u
lockstep=$1
folder=$(cd "$(dirname "$lockstep")" && pwd)
. "$2/script.sh"

tiny="--data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 --train.global_batch=11 --optim.warmup=5
      --train.eval_every=0 --launch.threads=1 --precision.compute=fp32 --checkpoint.keep=9"
short="$tiny --train.steps=12 --checkpoint.every=6"

train() { "$lockstep" train "$@" >out.txt 2>err.txt || bad "train $*: $(cat err.txt)"; }

# Every step's loss, from the given step on, and the last validation loss of two runs are within 1e-5 of each other.
losses() { json step loss <"$1/metrics.jsonl" | awk -v from="$2" '$1 >= from'; }
validation() { tail -n 1 "$1/metrics.jsonl" | json val_loss | sed 's/^/validation /'; }
same() {
    { losses "$1" "${3:-1}"; validation "$1"; } >one.txt
    { losses "$2" "${3:-1}"; validation "$2"; } >other.txt
    paste one.txt other.txt | awk 'function off(d) { return d < 0 ? -d : d }
        $1 != $3 || NF != 4 || $2 + 0 == 0 || off($2 - $4) > 1e-5 * $2 { print; wrong = 1 } END { exit wrong || NR < 2 }' >differ.txt ||
        bad "$2 is not $1: $(cat differ.txt)"
}

# refused CODE WORDS COMMAND...
refused() {
    code=$1 words=$2
    shift 2
    "$@" >out.txt 2>err.txt
    got=$?
    [ $got -eq "$code" ] && [ "$(wc -l <err.txt)" -eq 1 ] && grep -qF -e "$words" err.txt || bad "exit $got: $*: $(cat err.txt)"
}

# ---- layouts: 11 samples per step over 1, 2, 3 ranks ----
train $short --run.dir=alone
layouts="2-0 2-3 3-1 3-2"
[ "${LOCKSTEP_MATRIX:-}" = full ] && layouts="2-0 2-1 2-2 2-3 3-0 3-1 3-2 3-3 4-0 4-1 4-2 4-3"
for layout in $layouts; do
    zero=${layout#*-}
    train -n "${layout%-*}" $short --parallel.zero=$zero --run.dir=run$layout
    same alone run$layout
done
train -n 2 $short --parallel.zero=2 --optim.offload=file --train.accumulate=3 --run.dir=offload
same alone offload
train -n 2 --model.preset=resnet-tiny --train.global_batch=6 --train.steps=3 --launch.threads=1 --precision.compute=fp32 \
    --run.dir=pictures
train --model.preset=resnet-tiny --train.global_batch=6 --train.steps=3 --launch.threads=1 --precision.compute=fp32 \
    --run.dir=picture
same picture pictures

# ---- a checkpoint is resumed on another number of ranks ----
resume() {
    from=$1 n=$2 name=$3 reference=${reference:-alone}
    shift 3
    train -n "$n" $short "$@" --checkpoint.resume=$from/checkpoints/step_00000006 --run.dir=$name
    [ "$(wc -l <$name/metrics.jsonl)" -eq 6 ] || bad "$name does not begin at step 7"
    same $reference $name 7
}
resume run3-2 2 three_two --parallel.zero=3
resume run3-1 1 three_one
resume alone 3 one_three --parallel.zero=2
resume run2-3 2 two_two --parallel.zero=3
same_bits run2-3 two_two

# The config.yaml of a run trains on any number of ranks: it keeps dp and the micro-batches of a step derived, the global batch fixed.
wide="$tiny --train.global_batch=12 --train.micro_batch=2 --parallel.zero=0"
train $wide --train.steps=6 --run.dir=moved
grep -q '^  dp: -1 .*# 1 with launch.ranks=1$' moved/config.yaml || bad "dp in config.yaml: $(grep ' dp:' moved/config.yaml)"
grep -q '^  accumulate: -1 .*# 6 with parallel.dp=1$' moved/config.yaml ||
    bad "accumulate in config.yaml: $(grep accumulate: moved/config.yaml)"
cp moved/config.yaml first.yaml
for n in 2 3; do
    train --config moved/config.yaml -n $n --train.steps=$((6 * n))
    "$lockstep" ckpt list moved | grep -q " dp $n (zero 0)$" || bad "-n $n: ckpt list: $("$lockstep" ckpt list moved)"
done
train $wide --train.steps=6 --run.dir=still --train.schedule_steps=6
train --config still/config.yaml --train.steps=18
same still moved
# An option of the file that has no effect on a single rank is ignored there, with a warning; on the command line it is refused.
train -n 2 $short --parallel.zero=3 --parallel.reshard_after_forward=false --log.per_rank=true --run.dir=two
cp two/config.yaml two.yaml
train --config two.yaml -n 1 --checkpoint.resume=two/checkpoints/step_00000006 --run.dir=two_one
for option in parallel.zero parallel.reshard_after_forward log.per_rank; do
    grep -q "^two.yaml:[0-9]*: $option does nothing here and is ignored: " err.txt || bad "$option is not ignored: $(cat err.txt)"
done
[ "$(wc -l <err.txt)" -eq 3 ] || bad "more than three warnings: $(cat err.txt)"
same alone two_one 7
# Its config.yaml keeps the file's values, so that a later start on more ranks has the layout of the first one.
grep -q '^  zero: 3  *# without effect in this run$' two_one/config.yaml || bad "zero: $(grep zero: two_one/config.yaml)"
"$lockstep" train --config two_one/config.yaml -n 2 --print-config >out.txt 2>&1
grep -q '^  zero: 3 ' out.txt && grep -q '^  reshard_after_forward: false ' out.txt || bad "on two ranks again: $(cat out.txt)"
"$lockstep" train --config two_one/config.yaml -n 1 --print-config >out.txt 2>&1
grep -q '^  zero: 0 ' out.txt || bad "on one rank: $(cat out.txt)"
# If threads are not given, they are the rank's share of the cores at each start, whatever an earlier start had.
shared=$(echo "$short" | sed 's/--launch.threads=1//')
share() {
    if [ $1 -eq 1 ]; then
        env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc
    else
        "$lockstep" plan -n $1 --model.preset=llama-tiny | sed -n 's/^assumes .*, \([0-9]*\) threads\{0,1\} per rank.*/\1/p'
    fi
}
train -n 2 $shared --train.steps=1 --train.schedule_steps=6 --run.dir=shared
for n in 2 1; do
    grep -q '^  threads: 0$' shared/config.yaml || bad "-n $n: threads in config.yaml: $(grep threads: shared/config.yaml)"
    used=$("$lockstep" ckpt inspect shared --json | json threads)
    [ "$used" = "$(share $n)" ] || bad "-n $n: $used threads, not $(share $n)"
    [ $n -eq 1 ] || train --config shared/config.yaml -n 1 --train.steps=2
done
refused 2 "parallel.zero does nothing here" "$lockstep" train --config two.yaml -n 1 --parallel.zero=1 --run.dir=none
# The launcher's number of ranks counts, not the file's; a file that fixes dp is refused with a message that says what to change.
mkdir torchrun
sed 's/^  accumulate: -1/  accumulate: 6/' first.yaml >fixed.yaml
refused 2 "use --train.accumulate=-1" "$lockstep" train --config fixed.yaml --run.dir=torchrun -n 2
sed 's/^  dp: -1/  dp: 1/' first.yaml >fixed.yaml
refused 2 "does not hold: 2 = 1 * 1 * 1 * 1; use --parallel.dp=2, or match the product with -n 1" env RANK=0 \
    WORLD_SIZE=2 \
    LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 "$lockstep" train --config fixed.yaml --run.dir=torchrun

# ---- files of a run ----
train -n 2 $short --parallel.zero=3 --train.micro_batch=2 --log.trace=true --log.per_rank=true --run.dir=seen
same alone seen
for file in log/rank_0000.log log/rank_0001.log calls/rank_0000 calls/rank_0001 metrics.rank_0000.jsonl metrics.rank_0001.jsonl \
    trace.json; do
    [ -s seen/$file ] || bad "no $file"
done
for file in metrics metrics.rank_0000 metrics.rank_0001; do
    [ "$(wc -l <seen/$file.jsonl)" -eq 12 ] || bad "$file.jsonl has not a line a step"
    for key in comm.all_reduce.calls comm.all_reduce.bytes comm.all_reduce.seconds comm.all_reduce.exposed time.compute time.exposed \
               time.bubble time.optimizer time.data time.other memory.communication memory.offload; do
        [ "$(json "$key" <seen/$file.jsonl | grep -c '^[0-9]')" -eq 12 ] ||
            bad "$file.jsonl: not $key in each line: $(tail -n 1 seen/$file.jsonl)"
    done
    [ "$(json memory.offload <seen/$file.jsonl | sort -u)" = 0 ] || bad "$file.jsonl: offloaded bytes"
done
if command -v python3 >/dev/null; then
    python3 - seen/trace.json <<'EOF' || bad "trace.json"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
for rank in (0, 1):
    for tid, names in ((0, ("forward", "wgrad", "dgrad", "optimizer", "communicate")), (1, ("communication",))):
        own = [e for e in events if e["pid"] == rank and e["tid"] == tid and e["ph"] == "X"]
        assert set(names) <= {e["cat"] for e in own}, (rank, tid, {e["cat"] for e in own})
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in own), (rank, tid)
    names = {e["name"].split()[0] for e in events if e["pid"] == rank and e["tid"] == 1}
    assert {"all_gather", "reduce_scatter", "all_reduce"} <= names, (rank, names)
EOF
else
    say "skipped: python3 reads trace.json"
    for rank in 0 1; do
        tr '\n' ' ' <seen/trace.json | json 'traceEvents[].cat' 'traceEvents[].pid' 'traceEvents[].tid' |
            grep -qx "communication $rank 1" || bad "no calls of rank $rank in trace.json"
    done
fi

# The planned bytes are those measured: by category, and on the wire. In addition to the program's calls the trainer makes two all-reduces
# of one 8-byte number per step: the tokens that count, and the loss.
"$lockstep" plan --config seen/config.yaml --json >planned.json
value() { json "$2.$3" <"$1"; }
tail -n 1 seen/metrics.jsonl >measured.json
for part in parameters gradients optimizer activations communication offload; do
    planned=$(value planned.json memory $part) measured=$(value measured.json memory $part)
    [ "$planned" -ge 0 ] && [ "$planned" = "$measured" ] || bad "$part: $planned bytes planned, $measured measured"
done
for op in all_gather reduce_scatter all_reduce; do
    for what in calls bytes; do
        planned=$(value planned.json comm.$op $what) measured=$(value measured.json comm.$op $what) own=0
        [ $op$what = all_reducecalls ] && own=2
        [ $op$what = all_reducebytes ] && own=16
        [ "$((planned + own))" -eq "${measured:-0}" ] || bad "$op: $planned $what planned, $measured measured"
    done
done
"$lockstep" doctor seen >out.txt 2>err.txt || bad "doctor: $(cat err.txt)"
grep -q "^finished at step 12 of 12, exit 0" out.txt || bad "doctor: $(cat out.txt)"

# ---- SIGTERM, and resumed; SIGKILL of a rank, and resumed: bit for bit the undisturbed run ----
endless="$tiny --optim.schedule=constant --parallel.zero=2 --debug.check_finite=true"
"$lockstep" train -n 2 $endless --train.steps=1000000 --run.dir=stopped >out.txt 2>err.txt &
launcher=$!
wait_lines stopped/metrics.jsonl 5
kill -TERM $launcher
wait $launcher || bad "SIGTERM: exit code: $(cat err.txt)"
launcher=
step=$(ls stopped/checkpoints | sed 's/step_0*//')
[ "${step:-0}" -ge 5 ] || bad "SIGTERM: what is saved: $(ls stopped/checkpoints)"
grep -q "stopped by SIGTERM" out.txt || bad "SIGTERM is not reported: $(cat out.txt)"
more=$((step + 7))
train -n 2 $endless --train.steps=$more --run.dir=stopped
train -n 2 $endless --train.steps=$more --run.dir=straight
same_bits straight stopped

"$lockstep" train -n 2 $endless --train.steps=1000000 --checkpoint.every=4 --checkpoint.keep=2 --run.dir=killed >out.txt 2>err.txt &
launcher=$!
wait_lines killed/metrics.jsonl 10
kill -KILL "$(ranks | tail -n 1)"
wait $launcher
[ $? -eq 3 ] || bad "a rank killed: exit code: $(cat err.txt)"
launcher=
[ "$(wc -l <err.txt)" -eq 1 ] && grep -q "^lockstep train: rank [01] was killed by signal 9 (Killed)" err.txt ||
    bad "a rank killed: $(cat err.txt)"
step=$(ls killed/checkpoints | grep -v tmp | tail -n 1 | sed 's/step_0*//')
more=$((step + 5))
train -n 2 $endless --train.steps=$more --run.dir=killed
grep -q "from killed/checkpoints/step_" out.txt || bad "a rank killed: not resumed: $(cat out.txt)"
train -n 2 $endless --train.steps=$more --run.dir=calm
same_bits calm killed
[ -z "$(ls -A tmp)" ] || bad "left behind: $(ls tmp)"
ls /dev/shm 2>/dev/null | grep -q lockstep && bad "shared memory is left: $(ls /dev/shm)"

# ---- other launchers ----
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
export OMPI_MCA_btl_vader_single_copy_mechanism=none PMIX_MCA_gds=hash
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0  # both implementations keep memory
export ASAN_OPTIONS
for kind in openmpi mpich; do
    if ! command -v "mpirun.$kind" >/dev/null || [ ! -f "$folder/lockstep_$kind.so" ]; then
        say "skipped: mpirun.$kind or lockstep_$kind.so is not there"
        continue
    fi
    timeout -k 5 300 "mpirun.$kind" -n 2 "$lockstep" train $short --parallel.zero=3 --train.micro_batch=2 --run.dir=$kind >out.txt \
        2>err.txt ||
        bad "$kind: $(cat err.txt)"
    grep -q "2 ranks over mpi: dp 2 (zero 3)" out.txt || bad "$kind: not over mpi: $(cat out.txt)"
    [ "$(grep -c '^run ' out.txt)" -eq 2 ] || bad "$kind: not one report: $(cat out.txt)"
    same alone $kind
    tail -n 1 $kind/metrics.jsonl >measured.json
    for part in parameters gradients optimizer activations communication; do
        [ "$(value planned.json memory $part)" = "$(value measured.json memory $part)" ] || bad "$kind: $part: $(cat measured.json)"
    done
done

# torchrun's variables, by hand.
port=$((20000 + $$ % 30000))
torch_rank() { "$lockstep" train $short --parallel.zero=1 --run.dir=torch; }
as_torchrun torch_rank
[ "$codes" = "0 0" ] || bad "torchrun's variables: exit codes $codes: $(cat err_0.txt err_1.txt)"
same alone torch
[ -s out_0.txt ] && [ ! -s out_1.txt ] || bad "torchrun's variables: not rank 0 alone reports: $(cat out_1.txt)"
ls /dev/shm 2>/dev/null | grep -q lockstep && bad "shared memory is left: $(ls /dev/shm)"

# ---- model parallelism, too: stages, shards, experts; resumed under other layouts; its metrics and trace ----
deep="$short --model.layers=3"
train $deep --run.dir=deep
train -n 8 $deep --parallel.tp=2 --parallel.pp=2 --parallel.dp=2 --parallel.zero=1 --parallel.sp=true --train.accumulate=3 \
    --log.trace=true \
    --log.per_rank=true --run.dir=mesh
same deep mesh
train -n 4 $deep --parallel.cp=2 --parallel.tp=2 --run.dir=context
same deep context
short=$deep reference=deep
resume mesh 1 mesh_alone
resume mesh 4 mesh_context --parallel.cp=2 --parallel.zero=3
resume deep 6 deep_mesh --parallel.pp=2 --parallel.dp=3 --parallel.zero=2
for key in axis.dp axis.tp axis.pp bubble comm.send.calls comm.recv.calls; do
    json "$key" <mesh/metrics.jsonl | grep -q '^[0-9]' || bad "no $key in mesh/metrics.jsonl"
done
if command -v python3 >/dev/null; then
    python3 - mesh/trace.json <<'EOF' || bad "arrows of mesh/trace.json"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
ends = {ph: {e["id"]: e for e in events if e["ph"] == ph} for ph in "sf"}
assert ends["s"] and ends["s"].keys() == ends["f"].keys(), (len(ends["s"]), len(ends["f"]))
for arrow, start in ends["s"].items():
    end = ends["f"][arrow]
    assert start["pid"] % 4 == end["pid"] % 4 and start["pid"] != end["pid"], (start, end)  # pp is outermost
    assert start["ts"] <= end["ts"], (start, end)
EOF
fi
small="--data.text=text.txt --model.preset=mixtral-tiny --data.seq_len=16 --train.global_batch=4 --train.steps=3 --launch.threads=1 \
    --precision.compute=fp32"
train $small --run.dir=experts
train -n 4 $small --parallel.ep=2 --parallel.tp=2 --run.dir=distributed
same experts distributed
[ "$(json expert_load <experts/metrics.jsonl)" = "$(json expert_load <distributed/metrics.jsonl)" ] ||
    bad "expert_load: $(tail -n 1 experts/metrics.jsonl) $(tail -n 1 distributed/metrics.jsonl)"

# ---- memory that runs out on one rank, at any place: every rank ends with exit code 1, and only that rank's line is printed ----
lacking_rank() { # rank
    [ $1 -eq 0 ] && set -- 0 || set -- $n
    timeout 60 "$lockstep" train $tiny --optim.warmup=0 --train.steps=1 --parallel.tp=2 --run.dir=lack --debug.fail_alloc=$1
}
n=100 lines=0
while rm -rf lack && as_torchrun lacking_rank && [ "$codes" != "0 0" ] && [ $n -lt 10000 ]; do
    [ "$codes" = "1 1" ] || bad "allocation $n of rank 1: exit codes $codes: $(cat err_0.txt err_1.txt)"
    grep -q "^lockstep train: rank 1: .*out of memory: .*made to fail by a test" err_1.txt || bad "allocation $n: $(cat err_1.txt)"
    grep -v "^lockstep train: rank 0: .*rank 1: .*out of memory: .*made to fail by a test" err_0.txt >other.txt &&
        bad "allocation $n: rank 0: $(cat other.txt)"
    lines=$((lines + $(wc -l <err_0.txt)))
    n=$((n + 70))
done
[ "$codes" = "0 0" ] && [ $lines -gt 2 ] || bad "allocation $n: exit codes $codes, $lines lines of rank 0"

# ---- refused before anything starts ----
refused 2 "does not hold: 4 = 1 * 1 * 1 * 3" "$lockstep" train -n 4 $tiny --parallel.tp=3
refused 2 "parallel.ep=3 does not divide" "$lockstep" train -n 4 $tiny --parallel.ep=3
refused 2 "parallel.schedule does nothing here: with parallel.pp=1" "$lockstep" train -n 2 $tiny --parallel.schedule=gpipe
refused 2 "parallel.sp does nothing here" "$lockstep" train -n 2 $tiny --parallel.sp
refused 2 "launch.ranks = parallel.pp * parallel.dp * parallel.cp * parallel.tp does not hold: 2 = 1 * 3 * 1 * 1" "$lockstep" train -n 2 \
    $tiny --parallel.dp=3
refused 2 "each data-parallel rank needs a sample" "$lockstep" train -n 12 $tiny
refused 2 "parallel.zero does nothing here: a single rank has no others to shard over" "$lockstep" train $tiny --parallel.zero=1
refused 2 "is not a multiple of parallel.replicate=2" "$lockstep" train -n 3 $tiny --parallel.zero=1 --parallel.replicate=2
refused 2 "launch.ranks=3 (-n), but torchrun started 2" env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=$port \
    "$lockstep" train -n 3 $tiny
refused 2 "WORLD_SIZE=2" env RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    "$lockstep" train $tiny
refused 2 "RANK is set but" env RANK=0 "$lockstep" train $tiny

[ $failures -eq 0 ] && say "training on ranks: all well"
exit $((failures > 0))
