#!/bin/sh
# faults_off.sh FOLDER: builds the command in FOLDER with -DFAULTS=OFF, trains a few steps, and checks that it contains no injected fault
# and refuses every option that injects one.
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

# refused NAME OPTION VALUE COMMAND...: one line, which says that NAME needs a build with faults
refused() {
    name=$1 given=--$2=$3 code=0
    shift 3
    "$build/lockstep" "$@" "$given" >"$work/out.txt" 2>"$work/err.txt" || code=$?
    [ $code -eq 2 ] && [ "$(wc -l <"$work/err.txt")" -eq 1 ] && [ ! -s "$work/out.txt" ] &&
        grep -qF "$name: this lockstep was built without injected faults" "$work/err.txt" ||
        fail "$1 $given: exit $code: $(cat "$work/out.txt" "$work/err.txt")"
}
options=$(grep -oE '"debug\.[a-z_]+"' src/train/faults/fault_list.h | tr -d '"')
[ "$(echo "$options" | wc -l)" -ge 5 ] || fail "fault_list.h names the options $options"
for option in $options; do
    case $option in
    debug.fault) value=average ;;
    debug.slow) value=compute:0:1 ;;
    debug.non_finite) value=1:0:0:model.norm.weight.grad ;;
    debug.fail_*) value=1 ;;
    *) fail "which value does $option have?" ;;
    esac
    refused "$option" "$option" "$value" train -n 2 $tiny --run.dir="$work/no"
done
refused debug.fault debug.plant average train -n 2 $tiny --run.dir="$work/no"
refused debug.fault debug.fault average parity --a "" --b parallel.dp=2 --model.preset=llama-tiny
for command in plan "bench train" "bench gemm"; do refused debug.fail_alloc debug.fail_alloc 1 $command; done
[ ! -e "$work/no" ] || fail "a refused run has a folder"
"$build/lockstep" help faults | grep -q 'built without' || fail "help faults lists them"

# What arms a fault and what it does are not in the command.
objects=$(find "$build" -path '*/train/faults/*' -name '*.o' | sed 's|.*/||')
[ "$objects" = faults_absent.c.o ] || fail "built: $objects"
armed=$(grep -ohE '^(void|ls_status|bool) [a-z_]+\(' src/train/faults/fault_points.h src/train/faults/fault_kinds.h | sed 's/.* //; s/($//')
[ -n "$armed" ] || fail "fault_points.h declares nothing"
for name in $armed $(grep -ohE '^ls_status edit_[a-z_]+\(' src/train/faults/fault_*.c | sed 's/.* //; s/($//'); do
    if nm "$build/lockstep" | grep -q " $name\$"; then fail "the command has $name()"; fi
done
echo "faults off: the command trains, and refuses $(echo $options)"
