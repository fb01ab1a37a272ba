#!/bin/sh
# test_slow.sh LOCKSTEP TESTS - debug.slow: each part that is slowed down is the one that the figures name, on that rank; losses and weights
# keep their bits. Seconds are compared with each other, never with absolute times; an injected delay is ten times the undelayed time.
lockstep=$1
. "$2/script.sh"
steps=6
train="--model.preset=llama-tiny --model.layers=1 --data.text=text.txt --data.seq_len=8 --data.val_fraction=0 --train.steps=$steps
    --optim.warmup=0 --train.micro_batch=2 --train.accumulate=1 --precision.compute=fp32 --run.device=cpu --run.measure_peak=off
    --launch.threads=1 --log.tensorboard=false"

# run NAME OPTIONS...: into the folder NAME
run() {
    name=$1
    shift
    expect 0 "" train $train "$@" --run.dir="$name"
}

# total FILE KEY: the sum over the steps after the first
total() { json "$2" <"$1" | tail -n +2 | awk '{ s += $1 } END { printf "%.9g", s }'; }
# more A B WHAT
more() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b) }' || bad "$3: $1 is not more than $2"; }
# delay NAME KEY [MOST]: milliseconds, ten times the mean of KEY in run NAME, at least 60, at most MOST
delay() {
    json "$2" <"$1/metrics.jsonl" | awk -v most="${3:-60000}" '$1 != "none" { s += $1; n++ }
        END { ms = n ? 1e4 * s / n : 0; ms = ms > 60 ? ms : 60; printf "%d", (ms < most ? ms : most) }'
}
of() { printf '%s/metrics.rank_%04d.jsonl' "$1" "$2"; }

# A slow rank computes, and the others wait for it. With three ranks rank 1 is the one that waits least.
run plain -n 3 --log.per_rank=true
ms=$(delay plain step_seconds)
run compute -n 3 --log.per_rank=true --debug.slow=compute:1:$ms
same_bits plain compute
computes=$(total "$(of compute 1)" time.compute) waits=$(total "$(of compute 1)" time.exposed)
for other in 0 2; do
    more "$computes" "$(total "$(of compute $other)" time.compute)" "compute of the slow rank and of rank $other"
    more "$(total "$(of compute $other)" time.exposed)" "$waits" "waiting of rank $other and of the slow rank"
    more "$(total "$(of compute $other)" time.exposed)" "$(total "$(of compute $other)" time.compute)" "rank $other: its waiting"
done
grep -rq 'injected: debug.slow=compute:1:'"$ms" compute/log || bad "the log does not say what was injected"

# On a slow link the calls determine the step's time, by latency and by bandwidth; the trace shows their spans.
# Every call of a step is delayed, so a delay is limited: it is compared with the time that a step computes.
run two -n 2
ms=$(delay two step_seconds 300)
for how in link:1:$ms link:all:0:2; do
    run link$how -n 2 --log.per_rank=true --debug.slow=$how
    for rank in 0 1; do
        computes=$(total "$(of link$how $rank)" time.compute)
        more "$(total "$(of link$how $rank)" time.exposed)" "$computes" "$how: waiting and compute, rank $rank"
    done
    more "$(total "$(of link$how 1)" comm.all_reduce.seconds)" "$computes" "$how: seconds of calls, and compute"
done
for how in link:1:$ms link:all:0:2; do same_bits two link$how; done
# with less bandwidth the same call takes longer; a trace has it
run wide -n 2 --log.per_rank=true --debug.slow=link:1:0:200 --log.trace=true
more "$(total "$(of linklink:all:0:2 1)" comm.all_reduce.seconds)" "$(total "$(of wide 1)" comm.all_reduce.seconds)" \
    "a link of a hundredth"
grep -q all_reduce wide/trace.json || bad "no call in the trace"

# A pipeline's messages, and the gathers of zero 3, are slowed down as well.
run shard -n 2 --parallel.zero=3 --log.per_rank=true --debug.slow=link:1:$ms
more "$(total "$(of shard 1)" comm.all_gather.seconds)" "$(total "$(of shard 1)" time.compute)" "gathers, and compute"
run pipe_plain -n 2 --parallel.pp=2 --model.layers=2 --log.per_rank=true --train.accumulate=2
ms=$(delay pipe_plain step_seconds 300)
run pipe -n 2 --parallel.pp=2 --model.layers=2 --log.per_rank=true --train.accumulate=2 --debug.slow=link:0:$ms
same_bits pipe pipe_plain
more "$(total "$(of pipe 0)" comm.send.seconds)" "$(total "$(of pipe 0)" time.compute)" "messages of a stage, and its compute"

# A slow disk is in save_seconds of the step after each checkpoint, and in the log.
run disk_plain --checkpoint.every=2
run disk --checkpoint.every=2 --debug.slow=disk:all:"$(delay disk_plain save_seconds)"
same_bits disk disk_plain
[ "$(json save_seconds <disk/metrics.jsonl | grep -vxc none)" -eq 2 ] || bad "save_seconds: $(json save_seconds <disk/metrics.jsonl)"
more "$(total disk/metrics.jsonl save_seconds)" "$(total disk/metrics.jsonl time.compute)" "saving, and compute"
more "$(total disk/metrics.jsonl save_seconds)" "$(total disk_plain/metrics.jsonl save_seconds)" "saving on a slow disk, and on this one"
[ "$(cat disk/log/* | grep -c 'saved .* in [0-9.]* s')" -eq 3 ] || bad "the log: $(cat disk/log/*)"

run share_plain -n 2 --parallel.zero=1 --checkpoint.every=2
run share -n 2 --parallel.zero=1 --checkpoint.every=2 --debug.slow=disk:1:"$(delay share_plain save_seconds)"
more "$(total share/metrics.jsonl save_seconds)" "$(total share_plain/metrics.jsonl save_seconds)" "saving where a rank's disk is slow"

# The time of a slow loader beyond the step is time.data. Samples are read ahead, so a step of the same length hides all of it: if steps
# have become that slow since they were measured (on a busy machine), the run is repeated with a delay of ten of its own steps.
run loader_plain -n 2
ms=$(delay loader_plain step_seconds)
for try in 1 2 3 4 5; do
    rm -rf loader
    run loader -n 2 --log.per_rank=true --debug.slow=loader:1:$ms
    step=$(awk -v s="$(total "$(of loader 1)" step_seconds)" -v d="$(total "$(of loader 1)" time.data)" -v n=$steps \
        'BEGIN { printf "%d", 1e3 * (s - d) / (n - 1) }')
    [ $((4 * step)) -lt $ms ] && break
    ms=$((10 * step))
done
same_bits loader loader_plain
more "$(total "$(of loader 1)" time.data)" "$(total "$(of loader 1)" time.compute)" "data and compute of the rank with a slow loader"
more "$(total "$(of loader 1)" time.data)" "$(total "$(of loader 0)" time.data)" "data of that rank and of the other"
more "$(total "$(of loader 0)" time.exposed)" "$(total "$(of loader 0)" time.data)" "the other rank waits for it"

# Other methods: a slow worker of async is the one whose gradients come last.
run async -n 3 --parallel.method=async --train.global_batch=4 --debug.slow=compute:2:60
[ "$(json cost.updates <async/method.json)" -eq $((2 * steps)) ] || bad "async: $(cat async/method.json)"

# ---- refused ----
refused() {
    what=$1
    shift
    expect 2 "$what" train $train "$@" --run.dir=refused
}
for text in compute compute:0 compute:0:x compute:3:5 compute:-1:5 compute:0:0 compute:0:5:3 compute:0:60001 disk:0:-1 link:all:5:0 \
    link:all:5:3:1 slow:0:5; do
    refused "debug.slow=$text: expected compute:RANK:MS" -n 2 --debug.slow=$text
done
refused "debug.slow=link:0:5 does nothing here: a single rank does not communicate" --debug.slow=link:0:5
refused "one of the replicas writes checkpoints; use disk:all:MS" -n 2 --debug.slow=disk:1:5
refused "rank 0 computes no gradients" -n 3 --parallel.method=async --train.global_batch=4 --debug.slow=compute:0:5
refused "rank 0 reads no samples" -n 3 --parallel.method=async --train.global_batch=4 --debug.slow=loader:0:5
refused "rank 0 reads all samples" -n 2 --parallel.method=dataparallel --debug.slow=loader:1:5
expect 2 "drawn pictures need no loader" train --model.preset=resnet-tiny --train.steps=1 --debug.slow=loader:0:5 --run.dir=refused

[ $failures -eq 0 ] || { say "$failures failed"; exit 1; }
