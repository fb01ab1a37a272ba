#!/bin/sh
# A checkpoint with a flipped bit: every command that reads it refuses it, names the tensor, and says which older checkpoint is intact and
# how to use it; a run that is started again resumes from that one automatically, as `help run` says.
lockstep=$1
. "$2/script.sh"
cp -r "$2/data/runs/ids.bin" .
cp -r "$2/data/runs/one" run
chmod -R u+w run
ck=run/checkpoints

# flip FILE AT: one bit of the byte at AT.
flip() {
    byte=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
    printf "\\$(printf %o $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# refused TEXT COMMAND...: fails with exit code 1 and one line that has TEXT.
refused() {
    text=$1
    shift
    "$@" >out.txt 2>err.txt
    code=$?
    [ $code -eq 1 ] || bad "$*: exit code $code"
    [ "$(wc -l <err.txt)" -eq 1 ] || bad "$*: not one line: $(cat err.txt)"
    grep -q -- "$text" err.txt || bad "$*: '$text' is not in: $(cat err.txt)"
}

train() { "$lockstep" train --config run/config.yaml --run.dir=run "$@"; }
train >out.txt 2>&1 || bad "the run: $(cat out.txt)"
cp run/metrics.jsonl whole.jsonl
file=$ck/step_00000006/parameters_0000_of_0001.safetensors
at=$(($(wc -c <$file) - 100))
flip $file $at

for reader in "generate run --ids 1,2" "generate $ck/step_00000006 --ids 1,2" "ckpt verify run" "eval run" "ckpt export run --to hf"; do
    refused "step_00000006/parameters_0000_of_0001.safetensors: tensor '.*': damaged: bytes .*intact one before it: .*$ck/step_00000003\$" \
        "$lockstep" $reader
done
refused "damaged: bytes .*intact one before it: $ck/step_00000003\$" "$lockstep" ckpt verify $ck/step_00000006/
refused "intact one before it: --checkpoint.resume=$ck/step_00000003\$" train --checkpoint.resume=$ck/step_00000006 --run.dir=other
grep -q "damaged" err.txt || bad "not named: $(cat err.txt)"
refused "intact one before it: lockstep generate $ck/step_00000003\$" "$lockstep" generate run --ids 1,2
"$lockstep" generate $ck/step_00000003 --ids 1,2 --tokens 3 >out.txt 2>&1 || bad "the command that was named: $(cat out.txt)"
[ ! -e hf ] || bad "an export of a damaged checkpoint is left behind"

# resume=auto: resumes from step 3, prints so once, and ends like the uninterrupted run. One rank, and two of which one reads the damage.
for layout in "--launch.ranks=1" "--launch.ranks=2 --parallel.tp=2"; do
    rm -rf copy
    cp -r run copy
    "$lockstep" train --config copy/config.yaml --run.dir=copy $layout >out.txt 2>&1 || bad "auto, $layout: $(cat out.txt)"
    grep -q "from copy/checkpoints/step_00000003" out.txt || bad "auto, $layout: does not go on from step 3: $(cat out.txt)"
    [ "$(grep -c "damaged: bytes" out.txt)" -eq 1 ] || bad "auto, $layout: the damage is not said once: $(cat out.txt)"
    "$lockstep" ckpt verify copy >out.txt 2>&1 || bad "auto, $layout: what is left is damaged: $(cat out.txt)"
done

# The one before it is damaged too: the error of the newest is still printed.
rm -rf copy
cp -r run copy
cp -r copy/checkpoints/step_00000003 copy/checkpoints/step_00000004
truncate -s 100 copy/checkpoints/step_00000004/manifest.json
"$lockstep" train --config copy/config.yaml --run.dir=copy >out.txt 2>&1 || bad "two damaged: $(cat out.txt)"
grep -q "skipped: .*step_00000006.*damaged: bytes" out.txt || bad "two damaged: the newest is not named: $(cat out.txt)"

# The newest has a damaged manifest: readers say which checkpoint they use instead, and a check of the run fails.
rm -rf copy
cp -r run copy
truncate -s 100 copy/checkpoints/step_00000006/manifest.json
"$lockstep" generate copy --ids 1,2 --tokens 3 >out.txt 2>err.txt || bad "an older one is not used: $(cat err.txt)"
grep -q "skipped: .*step_00000006/manifest.json.*; using copy/checkpoints/step_00000003\$" err.txt ||
    bad "not said which is used: $(cat err.txt)"
for reader in "ckpt verify copy" "ckpt verify copy/checkpoints" "ckpt verify copy/checkpoints/step_00000006"; do
    refused "step_00000006/manifest.json: .*; the newest intact one before it: copy/checkpoints/step_00000003\$" "$lockstep" $reader
done
refused "intact one before it: lockstep generate copy/checkpoints/step_00000003\$" "$lockstep" generate copy/checkpoints/step_00000006 \
    --ids 1
rm copy/checkpoints/step_00000006/manifest.json
refused "step_00000006/manifest.json: .*; the newest intact one before it: copy/checkpoints/step_00000003\$" "$lockstep" ckpt verify copy

# No intact checkpoint is left: one line, and no checkpoint is changed.
flip $ck/step_00000003/parameters_0000_of_0001.safetensors 2000
train >out.txt 2>err.txt && bad "goes on from damage: $(cat out.txt)"
grep -q "step_00000003.*no older checkpoint beside it is intact" err.txt || bad "the last one is not named: $(cat err.txt)"
[ "$(grep -c "step_00000006.*damaged: bytes" err.txt)" -eq 1 ] || bad "the first one is not named once: $(cat err.txt)"
refused "no older checkpoint beside it is intact" "$lockstep" generate run --ids 1,2
for step in 3 6; do truncate -s 100 $ck/step_0000000$step/manifest.json; done
refused "all of its 2 checkpoints are damaged; the newest: .*step_00000006" "$lockstep" generate run --ids 1,2
refused "all of its 2 checkpoints are damaged; the newest: .*step_00000006" train

say "$failures failures"
[ $failures -eq 0 ]
