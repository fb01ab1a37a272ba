#!/bin/sh
# test_parity_killed.sh LOCKSTEP TESTS - `lockstep parity` ended by a signal, to the parent alone or to its whole group, while a side runs:
# no
# folder stays in TMPDIR and no process survives.
set -u
lockstep=$1
. "$2/script.sh"
ended=0

# Ranks, launchers and the folder's guard: all have the mark in their arguments.
mark="--train.seed=$$"
survivors() { grep -lzxF -e "$mark" /proc/[0-9]*/cmdline 2>/dev/null; }
is_writing() { ls tmp/*/a.tmp >/dev/null 2>&1; }
is_gone() { [ -z "$(ls -A tmp)" ] && [ -z "$(survivors)" ]; }

# wait_for WORDS COMMAND: until it succeeds.
wait_for() {
    i=0
    until $2; do
        i=$((i + 1))
        [ $i -lt 1500 ] || { bad "$1: $(ls -R tmp) $(survivors)"; return 1; }
        sleep 0.02
    done
}

# ended_by SIGNAL WHOM OPTIONS...: WHOM is the parent alone, or its group as a terminal would. A background job of a script ignores SIGINT.
ended_by() {
    signal=$1 whom=$2
    shift 2
    setsid env --default-signal=INT "$lockstep" parity --a "parallel.dp=2" --b "" --model.preset=gpt2-tiny --data.seq_len=6 \
        --launch.threads=1 \
        --steps 100000 "$mark" "$@" >out.txt 2>err.txt &
    launcher=$!
    wait_for "nothing is written" is_writing
    target=$launcher
    [ "$whom" = group ] && target=-$launcher
    kill -s "$signal" -- "$target"
    wait $launcher 2>/dev/null
    launcher=
    wait_for "$signal to the $whom" is_gone || for p in $(survivors); do p=${p#/proc/}; kill -KILL "${p%/cmdline}"; done
    ended=$((ended + 1))
}
for signal in TERM INT HUP KILL; do
    ended_by $signal parent
    ended_by $signal group
done
ended_by KILL parent --optim.offload=file

[ $failures -eq 0 ] && say "parity ended: $ended times"
exit $((failures > 0))
