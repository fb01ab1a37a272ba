#!/bin/sh
# faults_off.sh FOLDER: builds the command in FOLDER with -DFAULTS=OFF, trains a few steps, and checks that it contains no injected fault.
set -eu
cd "$(dirname "$0")/.."
build=$1
fail() { echo "faults off: $*" >&2; exit 1; }

cmake -G Ninja -S . -B "$build" -DFAULTS=OFF >/dev/null
cmake --build "$build" -j"$(nproc)" --target lockstep >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny="--model.preset=llama-tiny --data.seq_len=8 --train.steps=2 --log.tensorboard=false"
cp README.md "$work/text.md"
tiny="$tiny --data.text=$work/text.md"
"$build/lockstep" train -n 2 $tiny --run.dir="$work/run" >"$work/out.txt" 2>&1 || fail "train: $(cat "$work/out.txt")"
[ "$(wc -l <"$work/run/metrics.jsonl")" -ge 2 ] || fail "train wrote $(cat "$work/run/metrics.jsonl")"

for fault in debug.fault debug.plant; do
    code=0
    "$build/lockstep" train -n 2 $tiny --run.dir="$work/no" --$fault=average >"$work/out.txt" 2>"$work/err.txt" || code=$?
    [ $code -eq 2 ] && [ "$(wc -l <"$work/err.txt")" -eq 1 ] && grep -q 'built without injected faults' "$work/err.txt" ||
        fail "--$fault=average: exit $code: $(cat "$work/err.txt")"
done
"$build/lockstep" help faults | grep -q 'built without' || fail "help faults lists them"
if nm "$build/lockstep" | grep -q ' edit_'; then fail "the command has edits of programs"; fi
echo "faults off: the command trains, and refuses debug.fault"
