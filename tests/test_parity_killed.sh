#!/bin/sh
# test_parity_killed.sh LOCKSTEP TESTS - a signal ends `lockstep parity` while a side runs, sent to the parent alone or to its process
# group: no folder stays in TMPDIR and no process survives.
set -u
lockstep=$1
. "$2/script.sh"
ended=0

# Ranks, launchers and the process that guards the folder have this argument.
mark="--train.seed=$$"
survivors() { grep -lzxF -e "$mark" /proc/[0-9]*/cmdline 2>/dev/null; }
is_writing() { ls tmp/*/a.tmp >/dev/null 2>&1; }
all_gone() { [ -z "$(ls -A tmp)" ] && [ -z "$(survivors)" ]; }

# wait_for WORDS COMMAND: waits until the command succeeds.
wait_for() { wait_until $2 || { bad "$1: $(ls -R tmp) $(survivors)"; return 1; }; }

# ended_by SIGNAL TARGET OPTIONS...: TARGET is the parent alone, or its group, as with a terminal. env restores SIGINT, which a script's
# background job ignores, and SIGHUP, which nohup ignores.
ended_by() {
    signal=$1 to=$2
    shift 2
    setsid env --default-signal=INT,HUP "$lockstep" parity --a "parallel.dp=2" --b "" --model.preset=gpt2-tiny --data.seq_len=6 \
        --launch.threads=1 \
        --steps 100000 "$mark" "$@" >out.txt 2>err.txt &
    launcher=$!
    wait_for "nothing is written" is_writing
    target=$launcher
    [ "$to" = group ] && target=-$launcher
    kill -s "$signal" -- "$target"
    wait $launcher 2>/dev/null
    launcher=
    wait_for "$signal to the $to" all_gone || for p in $(survivors); do p=${p#/proc/}; kill -KILL "${p%/cmdline}"; done
    ended=$((ended + 1))
}
for signal in TERM INT HUP KILL; do
    ended_by $signal parent
    ended_by $signal group
done
ended_by KILL parent --optim.offload=file

[ $failures -eq 0 ] && say "parity ended: $ended times"
exit $((failures > 0))
