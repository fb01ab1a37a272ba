#!/bin/sh
# test_plan_draw.sh LOCKSTEP TESTS - drawings of a layout: `plan --print-mesh` and `plan --print-schedule`. No ranks are started.
set -u
lockstep=$1
. "$2/script.sh"

# expect CODE WORDS COMMAND...: checks the exit code, and words in the output.
expect() {
    code=$1 words=$2
    shift 2
    "$@" >out.txt 2>err.txt
    got=$?
    [ $got -eq "$code" ] || bad "exit $got, not $code: $*: $(cat err.txt)"
    cat out.txt err.txt | grep -qF -e "$words" || bad "no '$words' from: $*: $(cat out.txt err.txt)"
    [ "$code" -eq 0 ] || [ "$(wc -l <err.txt)" -eq 1 ] || bad "$(wc -l <err.txt) lines on stderr: $*"
}
plan() { code=$1 words=$2; shift 2; expect "$code" "$words" "$lockstep" plan "$@"; }

# ---- mesh ----

plan 0 "pp 2 * dp 2 * cp 1 * tp 2 = 8 ranks" --print-mesh --parallel.pp=2 --parallel.dp=2 --parallel.tp=2 --machine 4
grep -q "^  pp .*across machines" out.txt || bad "the pipeline stays within a machine"
grep -q "^  tp .*within a machine" out.txt || bad "tensor parallelism leaves the machine"
grep -q "^  tp  *0,1  2,3  4,5  6,7$" out.txt || bad "groups of tp: $(cat out.txt)"
plan 0 "pp 1 * dp 4 * cp 1 * tp 2 = 8 ranks" --print-mesh --parallel.tp=2 -n 8
plan 2 "--print-mesh cannot be combined with --json" --print-mesh --json
plan 2 "does not hold: 8 = 2 * 3 * 1 * 2" --print-mesh --parallel.pp=2 --parallel.dp=3 --parallel.tp=2 -n 8
plan 2 "--machine 4: --print-schedule shows no machines" --machine 4 --print-schedule --parallel.pp=2

# ---- schedule ----

plan 0 "bubble 11.1%; in flight by rank 4 4 4 4; 48 messages" --print-schedule --parallel.pp=4 --parallel.schedule=zb-h1 \
    --parallel.accumulate=8 --svg zb.svg
head -c 11 zb.svg | grep -q "^<svg xmlns=" || bad "zb.svg is no picture"
[ "$(grep -c '<g><title>' zb.svg)" -eq 96 ] || bad "zb.svg has $(grep -c '<g><title>' zb.svg) actions, not 4 * 8 * 3"
grep -q "$(printf '\033')" out.txt && bad "color where there is no terminal"
for schedule in auto gpipe 1f1b interleaved zb-h1 zb-v; do
    plan 0 "rank 3" --print-schedule --parallel.pp=4 --parallel.schedule=$schedule
done
plan 0 "interleaved: 4 ranks, 3 chunks each, 8 micro-batches" --print-schedule --parallel.pp=4 --parallel.vpp=3 --parallel.accumulate=8
plan 2 "parallel.vpp=2: this schedule has 1 chunk per rank" --print-schedule --parallel.pp=4 --parallel.vpp=2 --parallel.schedule=1f1b
plan 2 'parallel.schedule=zbv does not exist' --print-schedule --parallel.pp=4 --parallel.schedule=zbv
plan 2 "--svg x.svg needs --print-schedule" --svg x.svg
plan 2 "--print-schedule cannot be combined with --print-program" --print-schedule --print-program

cat >mine <<'END'
stages 2 chunks 1 micro 2 order loop
0: F0.0 F0.1 B0.0 B0.1
1: F0.0 B0.0 F0.1 B0.1   # as 1f1b
END
plan 0 "bubble 33.3%" --print-schedule --parallel.pp=2 --parallel.schedule=file:mine --parallel.accumulate=2
plan 2 "is for 2 stages of 1 chunks and 2 micro-batches" --print-schedule --parallel.pp=2 --parallel.schedule=file:mine \
    --parallel.accumulate=3
sed -i 's/F0.0 B0.0 F0.1/F0.1 B0.0 F0.0/' mine
plan 2 "its forward has not run yet" --print-schedule --parallel.pp=2 --parallel.schedule=file:mine --parallel.accumulate=2

[ $failures -eq 0 ] && say "plan draws"
exit $failures
