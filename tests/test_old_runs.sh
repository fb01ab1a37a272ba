#!/bin/sh
# Run folders written by earlier versions (tests/data/runs): each can be verified, exported, used by `generate`, and resumed under its own
# and other layouts with the losses that were recorded when it was made.
lockstep=$1
. "$2/script.sh"
data=$2/data/runs
cp -r "$data/ids.bin" .

# same RUN FOLDER: the losses of steps 4 to 6 in FOLDER are those that RUN recorded.
same() {
    json step loss grad_norm <"$data/$1/metrics.jsonl" >recorded.txt
    json step loss grad_norm <"$2/metrics.jsonl" >resumed.txt
    awk -v name="$2" '
        NR == FNR { loss[$1] = $2; norm[$1] = $3; next }
        $1 in loss && $1 > 3 {
            n++; d = loss[$1] - $2; g = norm[$1] - $3
            if (d * d > 1e-10 || g * g > 1e-10) { print name ": step " $1 ": loss " $2 ", recorded " loss[$1]; bad = 1 }
        }
        END { if (n != 3) print name ": " n " steps resumed, 3 expected"; exit bad || n != 3 }' recorded.txt resumed.txt >same.txt ||
        bad "$(cat same.txt)"
}

# resumed RUN OPTIONS...: a copy of the run, started again as its config.yaml says and with these options.
resumed() {
    run=$1
    shift
    rm -rf copy
    cp -r "$data/$run" copy
    chmod -R u+w copy
    rm -f copy/metrics.jsonl
    if "$lockstep" train --config copy/config.yaml --run.dir=copy "$@" >out.txt 2>&1; then same "$run" copy; \
        else bad "$run $*: $(cat out.txt)"; fi
}

for run in one ranks; do
    "$lockstep" ckpt verify "$data/$run" >out.txt 2>&1 || bad "$run: ckpt verify: $(cat out.txt)"
    "$lockstep" ckpt export "$data/$run" --to "hf-$run" >out.txt 2>&1 || bad "$run: ckpt export: $(cat out.txt)"
    "$lockstep" generate "$data/$run" --ids 1,2,3 --tokens 5 >out.txt 2>&1 || bad "$run: generate: $(cat out.txt)"
    "$lockstep" generate "hf-$run" --ids 1,2,3 --tokens 5 >hf.txt 2>&1 || bad "$run: generate from its export: $(cat hf.txt)"
    cmp -s out.txt hf.txt || bad "$run: generates '$(cat out.txt)', its export '$(cat hf.txt)'"
    resumed $run
    resumed $run --launch.ranks=1 --parallel.tp=1 --parallel.dp=1 --parallel.zero=0 --train.micro_batch=4
    resumed $run --launch.ranks=2 --parallel.tp=1 --parallel.dp=2 --parallel.zero=3
done

say "$failures failures"
[ $failures -eq 0 ]
