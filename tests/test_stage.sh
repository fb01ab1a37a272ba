#!/bin/sh
# test_stage.sh LOCKSTEP TESTS - a stage of the build prints one line, and warnings and failures in full; with V=1 it prints everything.
set -u
lockstep=$1
. "$2/script.sh"
stage=$(dirname "$2")/tools/stage.sh

cat >works <<'END'
echo "[0/3] Re-checking globbed directories..."
echo "[1/3] Building C object a.c.o"
echo "[2/3] Building C object b.c.o"
echo "b.c:3: warning: this looks odd" >&2
echo "[3/3] Linking C executable c"
END
cat >fails <<'END'
echo "[1/3] Building C object a.c.o"
echo "FAILED: a.c.o"
echo "a.c:1: error: this is no C" >&2
echo "ninja: build stopped: subcommand failed."
exit 7
END

V=0 "$stage" build log sh works >out.txt 2>&1 || bad "a stage that works fails: $(cat out.txt)"
head -n 1 out.txt | grep -qE '^build +[0-9.]+ s, 2 files compiled$' || bad "no line of the stage: $(cat out.txt)"
[ "$(sed -n 2p out.txt)" = "b.c:3: warning: this looks odd" ] && [ "$(wc -l <out.txt)" -eq 2 ] ||
    bad "the warning alone is to follow: $(cat out.txt)"

V=0 "$stage" build log sh fails >out.txt 2>&1
[ $? -eq 7 ] || bad "the exit code is lost"
grep -q '^a.c:1: error: this is no C$' out.txt && grep -q '^The whole output is in log.$' out.txt || bad "a failure: $(cat out.txt)"
grep -q 'Building\|stopped' out.txt && bad "a failure shows progress: $(cat out.txt)"

V=0 "$stage" build log sh -c 'echo "ninja: error: loading build.ninja"; exit 1' >out.txt 2>&1
grep -q '^ninja: error: loading' out.txt || bad "an error of ninja itself is lost: $(cat out.txt)"

V=1 "$stage" build log sh works >out.txt 2>&1 || bad "V=1: $(cat out.txt)"
[ "$(grep -c 'Building C object' out.txt)" -eq 2 ] && grep -q '^sh works$' out.txt || bad "V=1 does not show everything: $(cat out.txt)"

[ $failures -eq 0 ] || exit 1
say "stages: all as expected"
