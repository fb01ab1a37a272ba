#!/bin/sh
# test_slow.sh LOCKSTEP TESTS - debug.slow: each part that is slowed down is the one that the figures name, on that rank; losses and weights
# keep their bits. A delay is at least as long as injected, in every step. Otherwise figures of the same step are compared with one another,
# and most steps decide: one in which the machine stood still does not. What is injected is ten times what the same takes without.
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

# values FILE KEY: in the steps after the first
values() { json "$2" <"$1" | tail -n +2; }
# middle FILE KEY: their median
middle() { values "$1" "$2" | sort -g | awk '{ x[NR] = $1 } END { printf "%.9g", x[int((NR + 1) / 2)] }'; }
# more FILE KEY FILE KEY WHAT: in most steps the first figure is more than the second
more() {
    values "$1" "$2" >first.txt
    values "$3" "$4" >second.txt
    paste first.txt second.txt | awk '$1 == "none" || $2 == "none" { bad = 1 } $1 + 0 > $2 + 0 { n++ }
        END { exit bad || NR == 0 || 2 * n <= NR }' || bad "$5: not more in most steps: $(paste first.txt second.txt | tr '\n\t' ',:')"
}
# least FILE KEY MS COUNT WHAT: in all COUNT steps that have it, the figure is at least so long
least() {
    values "$1" "$2" | grep -vx none >first.txt
    awk -v ms="$3" -v count="$4" '$1 * 1e3 < ms { bad = 1 } END { exit bad || NR != count }' first.txt ||
        bad "$5: not $4 times $3 ms: $(tr '\n' ' ' <first.txt)"
}
# delay NAME KEY [MOST]: milliseconds, ten times the mean of KEY in run NAME, at least 60, at most MOST
delay() {
    json "$2" <"$1/metrics.jsonl" | awk -v most="${3:-60000}" '$1 != "none" { s += $1; n++ }
        END { ms = n ? 1e4 * s / n : 0; ms = ms > 60 ? ms : 60; printf "%d", (ms < most ? ms : most) }'
}
of() { printf '%s/metrics.rank_%04d.jsonl' "$1" "$2"; }
# slowed NAME SPEC RANK KEY LESS OPTIONS...: a run with debug.slow=SPEC:$ms. KEY of that rank, minus LESS, is what a step takes without the
# delay. If that is more than a quarter of the delay, because the machine is busier than when $ms was chosen, the run is repeated with a
# delay of ten times that, at most 5 s; $ms is then this delay.
slowed() {
    name=$1 spec=$2 rank=$3 key=$4 less=$5
    shift 5
    for try in 1 2 3; do
        rm -rf "$name"
        run "$name" --log.per_rank=true --debug.slow="$spec:$ms" "$@"
        own=$(awk -v a="$(middle "$(of "$name" $rank)" $key)" -v b="$([ -z "$less" ] || middle "$(of "$name" $rank)" $less)" \
            'BEGIN { printf "%d", 1e3 * (a - b) }')
        [ $((4 * own)) -lt "$ms" ] || [ $try -eq 3 ] && return
        ms=$((10 * own < 5000 ? 10 * own : 5000))
    done
}

# A slow rank computes, and the others wait for it. With three ranks rank 1 is the one that waits least.
run plain -n 3 --log.per_rank=true
ms=$(delay plain step_seconds)
slowed compute compute:1 0 time.compute "" -n 3
same_bits plain compute
least "$(of compute 1)" time.compute $ms $((steps - 1)) "compute of the slow rank"
for other in 0 2; do
    more "$(of compute 1)" time.compute "$(of compute $other)" time.compute "compute of the slow rank and of rank $other"
    more "$(of compute $other)" time.exposed "$(of compute 1)" time.exposed "waiting of rank $other and of the slow rank"
    more "$(of compute $other)" time.exposed "$(of compute $other)" time.compute "rank $other: its waiting, and its compute"
done
grep -rq 'injected: debug.slow=compute:1:'"$ms" compute/log || bad "the log does not say what was injected"

# On a slow link the calls determine the step's time, by latency and by bandwidth; the trace shows their spans.
# Every call of a step is delayed, so a delay is limited: it is compared with the time that a step computes.
run two -n 2
ms=$(delay two step_seconds 300)
slowed latency link:1 1 time.compute "" -n 2
# 2 MB/s, or less, so that the bytes of a step take at least as long as the delay.
rate=$(tail -n 1 two/metrics.jsonl | json comm.all_reduce.bytes | awk -v ms=$ms '{ r = $1 / 1e3 / ms; printf "%.3g", (r < 2 ? r : 2) }')
run bandwidth -n 2 --log.per_rank=true --debug.slow=link:all:0:$rate
for how in latency bandwidth; do
    for rank in 0 1; do
        more "$(of $how $rank)" time.exposed "$(of $how $rank)" time.compute "$how: waiting and compute, rank $rank"
    done
    more "$(of $how 1)" comm.all_reduce.seconds "$(of $how 1)" time.compute "$how: seconds of calls, and compute"
    same_bits two $how
done
least "$(of latency 1)" comm.all_reduce.seconds $ms $((steps - 1)) "calls of the rank with a slow link"
# with less bandwidth the same call takes longer; a trace has it
run wide -n 2 --log.per_rank=true --debug.slow=link:1:0:$(awk "BEGIN { printf \"%.3g\", 100 * $rate }") --log.trace=true
more "$(of bandwidth 1)" comm.all_reduce.seconds "$(of wide 1)" comm.all_reduce.seconds "a link of a hundredth"
tr -d '\n' <wide/trace.json | json 'traceEvents[].name' | grep -q all_reduce || bad "no call in the trace"

# A pipeline's messages, and the gathers of zero 3, are slowed down as well.
slowed shard link:1 1 time.compute "" -n 2 --parallel.zero=3
more "$(of shard 1)" comm.all_gather.seconds "$(of shard 1)" time.compute "gathers, and compute"
least "$(of shard 1)" comm.all_gather.seconds $ms $((steps - 1)) "gathers"
run pipe_plain -n 2 --parallel.pp=2 --model.layers=2 --log.per_rank=true --train.accumulate=2
ms=$(delay pipe_plain step_seconds 300)
slowed pipe link:0 0 time.compute "" -n 2 --parallel.pp=2 --model.layers=2 --train.accumulate=2
same_bits pipe pipe_plain
more "$(of pipe 0)" comm.send.seconds "$(of pipe 0)" time.compute "messages of a stage, and its compute"
least "$(of pipe 0)" comm.send.seconds $ms $((steps - 1)) "messages of a stage"

# A slow disk is in save_seconds of the step after each checkpoint, and in the log: of what a save takes without, or a step if that is more,
# ten times as much.
run disk_plain --checkpoint.every=2
ms=$(delay disk_plain save_seconds) computing=$(delay disk_plain step_seconds)
[ "$computing" -le "$ms" ] || ms=$computing
run disk --checkpoint.every=2 --debug.slow=disk:all:$ms
same_bits disk disk_plain
least disk/metrics.jsonl save_seconds $ms 2 "saving on a slow disk"
awk -v ms=$ms -v compute="$(middle disk/metrics.jsonl time.compute)" 'BEGIN { exit !(compute * 1e3 < ms) }' ||
    bad "most steps compute for as long as a slow write takes, $ms ms: $(values disk/metrics.jsonl time.compute)"
[ "$(cat disk/log/* | grep -c 'saved .* in [0-9.]* s')" -eq 3 ] || bad "the log: $(cat disk/log/*)"

run share_plain -n 2 --parallel.zero=1 --checkpoint.every=2
ms=$(delay share_plain save_seconds)
run share -n 2 --parallel.zero=1 --checkpoint.every=2 --debug.slow=disk:1:$ms
least share/metrics.jsonl save_seconds $ms 2 "saving where a rank's disk is slow"

# What a slow loader takes beyond the step is data. Samples are read ahead, so a step that takes as long hides it all.
run loader_plain -n 2
ms=$(delay loader_plain step_seconds)
slowed loader loader:1 1 step_seconds time.data -n 2
same_bits loader loader_plain
more "$(of loader 1)" time.data "$(of loader 1)" time.compute "data and compute of the rank with a slow loader"
more "$(of loader 1)" time.data "$(of loader 0)" time.data "data of that rank and of the other"
more "$(of loader 0)" time.exposed "$(of loader 0)" time.data "the other rank waits for it"

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
