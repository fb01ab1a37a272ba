#!/bin/sh
# test_bench_comm.sh LOCKSTEP TESTS - `bench comm` as a user runs it: printed steps, every collective on real ranks, choices.
set -u
lockstep=$1
. "$2/script.sh"

algorithms() {
    case $1 in
    all_reduce) echo ring halving_doubling tree direct central native ;;
    reduce_scatter) echo ring halving direct native ;;
    all_gather) echo ring doubling direct native ;;
    broadcast) echo tree scatter_ring chain direct native ;;
    all_to_all) echo pairwise native ;;
    esac
}

# ---- steps ----
expect 0 "rank 2   -> 3: block 1; <- 1: block 0, added  [1+2 | 2 | 2 | 2]" bench comm --print-steps all_reduce -n 4 --algorithm ring
[ "$(grep -c '^round' out.txt)" -eq 6 ] || bad "a ring of 4 has 6 rounds: $(cat out.txt)"
[ "$(tail -4 out.txt | grep -cF '[all | all | all | all]')" -eq 4 ] || bad "not all have all: $(cat out.txt)"
expect 0 "a rank sends 12 elements" bench comm --print-steps all_reduce -n 4 --algorithm halving_doubling
expect 0 "5 ranks, D = 23 elements" bench comm --print-steps all_gather -n 5 --count 23 --rank 3
[ "$(grep -c '^  rank' out.txt)" -eq "$(grep -c '^  rank 3' out.txt)" ] || bad "more than rank 3: $(cat out.txt)"
for n in 1 2 3 7; do
    for op in all_reduce reduce_scatter all_gather broadcast all_to_all barrier; do
        expect 0 "$op by" bench comm --print-steps $op -n $n --root $((n - 1))
    done
done
expect 2 "send is a single message and has no steps" bench comm --print-steps send -n 4
expect 2 "unknown algorithm 'tree' for all_gather; choose one of: ring, doubling" bench comm --print-steps all_gather -n 4 \
    --algorithm tree
expect 2 "there are 4 ranks" bench comm --print-steps all_reduce -n 4 --rank 4

# ---- usage ----
expect 2 "no operation 'all_redoce'" bench comm --op all_redoce
expect 2 "barrier has no bytes" bench comm --op barrier
expect 2 "'4x' is not a number of bytes" bench comm --min 4x
expect 2 "--min 4KiB is more than --max 1KiB" bench comm --min 4KiB --max 1KiB
expect 2 "no type 'f31'" bench comm --type f31
expect 2 "neither comm nor plain" bench comm --memory swap
expect 2 "ring rounds bf16 between its steps; use direct" bench comm --type bf16 --algorithm ring
expect 2 "--write applies only to --tune" bench comm --write x
expect 2 "apply only to --print-steps" bench comm --count 3

# ---- real ranks: every algorithm, uneven sizes, both memories ----
sizes="--min 4 --max 400000 --factor 316 --iterations 2 --warmup 1"
for op in all_reduce reduce_scatter all_gather broadcast all_to_all; do
    for a in $(algorithms $op); do
        expect 0 "# Out of bounds values : 0 OK" bench comm -n 3 --op $op --algorithm "$a" $sizes
    done
    expect 0 "# Out of bounds values : 0 OK" bench comm -n 2 --op $op --memory plain $sizes
    expect 0 "bfloat16" bench comm -n 3 --op $op --type bf16 $sizes
    expect 0 "int64" bench comm -n 2 --op $op --type i64 $sizes
done
expect 0 "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong" bench comm \
    -n 2 $sizes
[ "$(grep -c '^ ' out.txt)" -eq 3 ] || bad "not three sizes: $(cat out.txt)"
awk '/^ / && NF != 17 { exit 1 }' out.txt || bad "a row without 17 columns: $(cat out.txt)"
# With two calls the median is the mean of the minimum and the maximum (each printed to at least 1 in 100).
halfway='function off(time, a, b) { return time - (a + b) / 2 > 0.02 * time + 0.02 || (a + b) / 2 - time > 0.02 * time + 0.02 }
    /^ / && (off($6, $14, $15) || off($10, $16, $17) || $14 > $15 || $16 > $17 || $14 <= 0) { exit 1 }'
awk "$halfway" out.txt || bad "not the median, minimum and maximum of two calls: $(cat out.txt)"
expect 0 "slowest rank's median, minimum and maximum" bench comm -n 2 -b 64K -e 64K --iterations 1
awk '/^ / && ($6 != $14 || $6 != $15 || $10 != $16 || $10 != $17) { exit 1 }' out.txt || bad "one call, several times: $(cat out.txt)"
expect 0 "" bench comm -n 2 --json $sizes
for place in out_of_place in_place; do
    json "[].$place.min_seconds" "[].$place.seconds" "[].$place.max_seconds" <out.txt >seconds.txt
    awk '!($1 + 0 > 0 && $1 + 0 <= $2 + 0 && $2 + 0 <= $3 + 0) { bad = 1 } END { exit bad || NR != 3 }' seconds.txt ||
        bad "$place, not a minimum, a median and a maximum of three sizes: $(cat seconds.txt)"
done

# ---- nccl-tests' flags; one rank; sendrecv ----
for words in "" "$sizes" "-b 8 -e 1K"; do expect 2 "nothing to measure; start more, as in: lockstep bench comm -n 2" bench comm $words; done
for words in "-g 1" "-n 2 -b 4K -e 4K -g 1"; do
    expect 2 "nothing to measure; start more, as in: lockstep bench comm -g 2 (with -g, -n counts iterations)" bench comm $words
done
expect 0 "# 3 untimed calls, then 4 timed calls" bench comm -g 2 -b 8 -e 8K -f 32 -n 4 -w 3 -c 1 -o sum -d half
[ "$(awk '/^ / { printf "%s/%s/%s ", $1, $3, $4 }' out.txt)" = "8/half/sum 256/half/sum 8192/half/sum " ] ||
    bad "not 8 to 8K by 32 in half: $(cat out.txt)"
expect 0 " of 2 ranks " bench comm --ngpus 1 --nthreads 2 --minbytes 64 --maxbytes 64 --iters 2 --warmup_iters 0 --datatype float
expect 0 "# 0 untimed calls, then 2 timed calls" bench comm -n 2 -b 64 -e 64 --iters 2 -w0
expect 0 "max" bench comm -n 3 -o max -b 12 -e 12 -d int32 --iters 2
grep -q "# Out of bounds values : 0 OK" out.txt || bad "the largest is wrong: $(cat out.txt)"
expect 0 "# Out of bounds values : 0 OK" bench comm -n 2 -o avg -b 12 -e 12 --iters 2
expect 0 "# Out of bounds values : 0 OK" bench comm -n 3 --op broadcast -r 2 -b 12 -e 12 --iters 2
awk '/^ / && $5 != 2 { exit 1 }' out.txt || bad "the root is not 2: $(cat out.txt)"
expect 0 "N/A" bench comm -n 2 -b 64 -e 64 -c 0 --iters 2
grep -q "Out of bounds" out.txt && bad "unchecked, and yet a verdict"
expect 0 "sendrecv of 3 ranks" bench comm -n 3 --op sendrecv -b 1K -e 3K -i 1K --iters 2 --warmup 0
[ "$(awk '/^ / { printf "%s ", $1 }' out.txt)" = "1024 2048 3072 " ] || bad "not 1K, 2K, 3K: $(cat out.txt)"
grep -q "# Out of bounds values : 0 OK" out.txt || bad "sendrecv is wrong: $(cat out.txt)"
awk '/^ / && ($7 != $8 || $9 != 0) { exit 1 }' out.txt || bad "sendrecv: busbw is algbw: $(cat out.txt)"
expect_json "[].op [].ranks" "sendrecv 2" bench comm -n 2 --op sendrecv --json -b 64 -e 64 --iters 2
expect 2 "-n 100 would start that many ranks; for iterations write --iters 100" bench comm -b 8 -e 128M -n 100
expect 2 "-t 2 needs -g" bench comm -t 2
expect 2 "--nthreads 2 needs -g" bench comm --nthreads=2
expect 2 "'prod' is not measured here" bench comm -n 2 -o prod
expect 2 "-d: there is no type 'int8'; use float" bench comm -n 2 -d int8
expect 2 "--datatype: there is no type 'int8'; use float" bench comm -n 2 --datatype=int8
expect 2 "-b: '4x' is not a number of bytes" bench comm -n 2 -b 4x
expect 2 "--maxbytes: '4x' is not a number of bytes" bench comm -n 2 --maxbytes 4x
expect 2 "-b 4K is more than --max 1K" bench comm -n 2 -b 4K --max 1K
expect 2 "-o: there is no operation 'sun'" bench comm -n 2 -o sun
expect 2 "-w: 'x' is not a whole number" bench comm -n 2 -w x
expect 2 "--iters: 0 is out of range" bench comm -n 2 --iters 0
expect 2 "-n 2 and -n 100 are both given: -n counts ranks, and --iterations timed calls; write -n 2 --iterations 100" \
    bench comm -n 2 \
    -b 8 -n 100
expect 0 "4 timed" bench comm -n 2 -n 2 -b 8 -e 8 --iters 4
expect 2 "unexpected argument 'sendrecv'; did you mean '--op=sendrecv'?" bench comm sendrecv -n 2
expect 2 "unexpected argument 'all_gather'; did you mean '--op=all_gather'?" bench comm -n 2 all_gather
expect 2 "unexpected argument '4'; did you mean '-n 4'?" bench comm 4
expect 2 "unexpected argument 'x.txt'; usage: lockstep bench comm" bench comm x.txt
expect 2 "-n needs a value: the number of ranks, as in -n 4 (with -g: of iterations)" bench comm -n
expect 2 "-n needs a value: the number of ranks" bench comm -n --op sendrecv
expect 2 "-n: 'sendrecv' is not a number; -n needs the number of ranks" bench comm -n sendrecv
for words in "--op=reduce_scatter -o max" "-o max --op=reduce_scatter" "-o max -o reduce_scatter --op max"; do
    expect 0 "lockstep bench comm: reduce_scatter of 2 ranks" bench comm -n 2 $words -b 4K -e 4K --iters 2
    awk '/^ / && $4 == "max" { rows++ } END { exit rows != 1 }' out.txt || bad "$words: no row of the maximum: $(cat out.txt)"
done
expect 2 "--op reduce_scatter and -o all_gather are two operations; leave one out" bench comm -n 2 --op=reduce_scatter -o all_gather
expect 2 "--op sendrecv and --op all_reduce are two operations; leave one out" bench comm -n 2 --op sendrecv --op all_reduce
expect 2 "-o sum and -o max are two reductions; leave one out" bench comm -n 2 -o sum -o max
expect 2 "-o: there is no operation 'sun'" bench comm -n 2 --op all_gather -o sun
expect 2 "-o max: --op can be given at most 4 times" bench comm -n 2 -o max -o max -o max -o max -o max
for op in all_gather broadcast all_to_all sendrecv; do
    expect 2 "-o sum applies only to all_reduce and reduce_scatter: $op reduces nothing; leave it out" bench comm -n 2 -o sum --op $op
done

# Ranks of a launcher: the first one of the machine prints a usage error, the others leave with its exit code.
started() { OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$lockstep" $2 \
    >out.txt 2>&1; }
for words in "bench comm -b 8 -e 64K -f 8 -n 20" "bench comm --iterrs 2"; do
    started 0 "$words"
    [ $? -eq 2 ] && [ "$(grep -c lockstep out.txt)" -eq 1 ] || bad "rank 0 of 2: $words: $(cat out.txt)"
    started 1 "$words"
    [ $? -eq 2 ] && [ ! -s out.txt ] || bad "rank 1 of 2: $words: $(cat out.txt)"
done
expect 2 "use -c 0, or 2, 4 or 8 ranks" bench comm -n 3 -o avg
expect 2 "-r 1 needs --op broadcast" bench comm -n 2 -r 1
expect 2 "--root 1 needs --op broadcast" bench comm -n 2 --root 1
expect 2 "there are 2 ranks" bench comm -n 2 --op broadcast -r 2
expect 2 "-i cannot be combined with -f" bench comm -n 2 -i 1K -f 2
expect 2 "send has no bytes to time; sendrecv does both" bench comm -n 2 --op send

# ---- comm tables; --choices is an earlier name ----
expect 0 "-> " bench comm -n 2 --tune --min 1KiB --max 16KiB --iterations 2 --warmup 1 --write choices.txt
[ "$(head -1 choices.txt)" = "lockstep comm table 1" ] || bad "no comm table: $(cat choices.txt)"
for op in all_reduce reduce_scatter all_gather broadcast all_to_all; do
    grep -q "^$op - 2 " choices.txt || bad "no last row of $op: $(cat choices.txt)"
done
expect 0 "# Out of bounds values : 0 OK" bench comm -n 2 --comm-table choices.txt $sizes
expect 0 "all_reduce by central" bench comm --print-steps all_reduce -n 4 --algorithm central
printf 'lockstep choices 1\nall_reduce - - central\n' >mine.txt
expect 0 "all_reduce by central" bench comm --print-steps all_reduce -n 4 --comm-table mine.txt
expect 0 "# Out of bounds values : 0 OK" bench comm -n 3 --choices mine.txt $sizes
printf 'lockstep choices 1\nall_reduce - - center\n' >mine.txt
expect 1 "mine.txt: line 2: all_reduce has no algorithm 'center'" bench comm -n 2 --comm-table mine.txt

[ $failures -eq 0 ] || exit 1
echo "bench comm: all as expected"
