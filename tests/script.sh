# script.sh - setup shared by the test scripts, sourced by . "$2/script.sh", where $lockstep is the command and $2 this folder.
#
# It changes to an empty folder that is removed at the end, with TMPDIR inside and a text.txt, and defines bad() to count failures. The
# process in $launcher is killed at the end.
lockstep=$(cd "$(dirname "$lockstep")" && pwd)/${lockstep##*/}  # it may be named from where we were
work=$(mktemp -d)
mkdir "$work/tmp"
TMPDIR=$work/tmp
export TMPDIR
launcher=
trap '[ -z "$launcher" ] || kill -KILL $launcher 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

say() { printf '%s\n' "$*"; }
bad() { say "FAILED: $*"; failures=$((failures + 1)); }

# json PATH...: values of the JSON on standard input, one line per line of the input (tests/json_get.c).
json() { "${lockstep%/*}/json_get" "$@"; }

# has PATH VALUE <FILE: some line of the JSON has this value.
has() { json "$1" | grep -qxF -e "$2"; }

# Content hashes of a checkpoint's tensor files, of both kinds or of the kind $2 (parameters, optimizer).
hashes() {
    "$lockstep" ckpt inspect "$1" --json | json 'files[].name' 'files[].hash' | grep -E "^${2:-(parameters|optimizer)}_" | sed 's/.* //'
}
same_bits() { [ -n "$(hashes "$1")" ] && [ "$(hashes "$1")" = "$(hashes "$2")" ] || bad "$2 does not have the bits of $1"; }

# The ranks that $launcher started, in their order; rank N.
ranks() { tr ' ' '\n' <"/proc/$launcher/task/$launcher/children" 2>/dev/null | grep .; }
rank() { ranks | sed -n "$(($1 + 1))p"; }

# $clocked "$lockstep" train -n N ..., after new_clock: time passes for the ranks and the launcher only while all ranks run, so no rank is
# late because the machine is busy (tests/shared_clock.c). late R: rank R, which is stopped, may be late from now on.
ln -s "${lockstep%/*}/lockstep_shared_clock.so" "$work/clock.so"
clocked="env LD_PRELOAD=$work/clock.so LOCKSTEP_SHARED_CLOCK=$work/clock
         ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0"
new_clock() { rm -f "$work/clock"; }
late() { printf T | dd of="$work/clock" bs=1 seek="$1" conv=notrunc 2>dd.txt || bad "the clock of rank $1: $(cat dd.txt)"; }

# wait_until COMMAND...: waits until the command succeeds; after two minutes or more it has failed.
wait_until() {
    for waited in $(seq 12000); do
        "$@" && return
        sleep 0.01
    done
    bad "never true: $*: $(cat err.txt)"
    return 1
}
is_gone() { ! [ -e "/proc/$1" ]; }
is_stopped() { grep -q '^State:.T' "/proc/$1/status" 2>/dev/null; }
has_lines() { [ -f "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }
# wait_lines FILE N: waits until the file has N lines.
wait_lines() { wait_until has_lines "$1" "$2"; }

# as_torchrun COMMAND: runs COMMAND RANK for ranks 0 and 1 at a time, with the variables that torchrun would set. codes: both exit codes;
# out_RANK.txt and err_RANK.txt: what each printed.
as_torchrun() {
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 30000)) \
            "$1" $rank >out_$rank.txt 2>err_$rank.txt &
        eval "pid_$rank=$!"
    done
    wait $pid_0
    codes=$?
    wait $pid_1
    codes="$codes $?"
}

# expect CODE WORDS ARGUMENTS...: the command ends with CODE and prints WORDS; a failure prints one line.
expect() {
    code=$1 words=$2
    shift 2
    timeout 120 "$lockstep" "$@" >out.txt 2>err.txt
    got=$?
    [ $got -eq "$code" ] || bad "exit $got, not $code: $*: $(cat err.txt)"
    if [ "$code" -ne 0 ]; then
        [ "$(wc -l <err.txt)" -eq 1 ] || bad "$(wc -l <err.txt) lines on stderr: $*: $(cat err.txt)"
        grep -q '^lockstep' err.txt || bad "the line does not say who: $*: $(cat err.txt)"
    fi
    [ -z "$words" ] || cat out.txt err.txt | grep -qF -e "$words" || bad "no '$words' from: $*: $(cat out.txt err.txt)"
}

# expect_json PATHS VALUES ARGUMENTS...: the command ends well, and a line of the JSON that it prints has these values at these paths;
# VALUES "": any.
expect_json() {
    paths=$1 values=$2
    shift 2
    expect 0 "" "$@"
    found=$(json $paths <out.txt)
    if [ -n "$values" ]; then
        printf '%s\n' "$found" | grep -qxF -e "$values" || bad "$paths: '$found', not '$values': $*"
    else
        [ -n "$found" ] && ! printf '%s\n' "$found" | grep -q none || bad "$paths: '$found': $*"
    fi
}

# The value of the variable that is named.
options() { eval "echo \$$1"; }

# A script that CTest runs in N parts, with K/N as its third argument, compares every N-th pair of layouts in each. in_part: counts a pair;
# false: another part compares it.
part=${3:-1/1}
cells=0 equal_runs=0
in_part() {
    cells=$((cells + 1))
    [ $((cells % ${part#*/} + 1)) -eq "${part%/*}" ] || return 1
    equal_runs=$((equal_runs + 1))
}

# all_pairs N [FULL]: fails if the script did not generate N pairs (FULL under LOCKSTEP_MATRIX=full), or this part compared fewer than its
# share of them.
all_pairs() {
    pairs=$1
    [ "${LOCKSTEP_MATRIX:-}" = full ] && pairs=${2:-$1}
    share=$(awk -v pairs="$pairs" -v part="$part" 'BEGIN { split(part, of, "/"); for (k = 1; k <= pairs; k++) n += k % of[2] + 1 == of[1]
        print n + 0 }')
    [ $cells -eq "$pairs" ] || bad "${0##*/} generated $cells pairs of layouts, not $pairs"
    [ $equal_runs -eq "$share" ] && [ "$share" -gt 0 ] || bad "${0##*/} compared $equal_runs pairs of layouts in part $part, not $share"
}

# LOCKSTEP_DEVICE=check, which test_device_check_parity.sh sets: the scripts of the parity suite compare devices instead of layouts.
# on_check: true if so. seeds_used: the seeds of the checking device until now.
seeds_used=
on_check() { [ "${LOCKSTEP_DEVICE:-}" = check ]; }

# under_pair_seeds COMMAND...: runs COMMAND with $seed set to the number of the pair, and under LOCKSTEP_MATRIX=full, for every 20th pair,
# to 19 more seeds in turn: 6,300 runs for 3,254 pairs, an hour or two.
under_pair_seeds() {
    most=$cells
    [ "${LOCKSTEP_MATRIX:-}" = full ] && [ $((cells % 20)) -eq 0 ] && most=$((cells + 190000))
    for seed in $(seq $cells 10000 $most); do
        seeds_used="$seeds_used $seed"
        "$@"
    done
}

# same_on_check LAYOUT OPTIONS...: everything that `parity` compares has the same bits on the checking device as on the cpu.
same_on_check() {
    on_cpu="run.device=cpu $1" checking="run.device=check debug.device_seed=$seed $1"
    shift
    "$lockstep" parity --a "$on_cpu" --b "$checking" "$@" --json >out.txt 2>err.txt
    code=$?
    read -r compared same <<END_BITS
$(json compared same_bits <out.txt 2>json.txt)
END_BITS
    [ $code -eq 0 ] && [ "${compared:-0}" -gt 0 ] && [ "$same" = "$compared" ] ||
        bad "the checking device differs from the cpu with seed $seed; repeat: $lockstep parity --a '$on_cpu' --b '$checking' $*
$(cat out.txt err.txt)"
}

# pair_on_check A B OPTIONS...: the same for layout B, and for A if it is one of several ranks.
both_on_check() {
    a=$1 b=$2
    shift 2
    ! echo "$a" | grep -q 'parallel\.[a-z]*=[2-9]' || same_on_check "$a" "$@"
    same_on_check "$b" "$@"
}
pair_on_check() { under_pair_seeds both_on_check "$@"; }

# Ends a script of the parity suite before its parts that are the same on every device.
end_on_check() {
    on_check || return 0
    say "${0##*/}: $equal_runs of $cells pairs of layouts, seeds$seeds_used"
    exit $((failures > 0))
}

# equal A B OPTIONS...: `parity` finds no difference between the two layouts; equal is false where it compares nothing, or devices.
equal() {
    a=$1 b=$2
    shift 2
    in_part || return 1
    if on_check; then
        pair_on_check "$a" "$b" "$@"
        return 1
    fi
    "$lockstep" parity --a "$a" --b "$b" "$@" >out.txt 2>err.txt || bad "--a '$a' --b '$b' $*: $(cat out.txt err.txt)"
    head -n 1 out.txt | grep -Eq "^equal: [1-9][0-9]* steps, [1-9][0-9]* tensors; [0-9]+ of [1-9]" ||
        bad "--a '$a' --b '$b' $*: does not say so: $(cat out.txt)"
}

# found_within CASE: the first difference in out.txt, written by parity --json, exceeded a bound of at most $widest. For a gradient that is
# the bound on the root mean square error, relative to the tensor's largest element or, if that is larger, to the root mean square of all
# gradients. widest_element: if it is set, the largest allowed bound on the gradient's largest error.
widest=1e-6
widest_element=
found_within() {
    bound=$(json first.allowed first.mean first.mean_allowed first.scale first.gradient_rms first.relative <out.txt | awk '
        $1 == "none" || ($3 != "none" && $2 + 0 < $3 + 0) { print "none"; next }
        $3 == "none" { print $1; next }
        { unit = $4 / ($4 > $5 + 0 ? $4 : $5); print $3 * unit, ($6 > $1 ? $1 * unit : "none") }
        END { if (!NR) print "none" }')
    awk -v bound="$bound" -v widest=$widest -v element="$widest_element" 'BEGIN {
        split(bound, of, " ")
        if (of[1] == "none" || of[1] + 0 > widest + 0) exit 1
        exit of[2] != "" && element != "" && (of[2] == "none" || of[2] + 0 > element + 0)
    }' || bad "$1: found by a bound of $bound, wider than $widest $widest_element"
}

i=0
while [ $i -lt 600 ]; do
    echo "Line $i of a text that says $((i * 7 % 13)) things about $((i % 5)) birds."
    i=$((i + 1))
done >text.txt
