# script.sh - what the test scripts on ranks begin with: . "$2/script.sh", where $1 is the command and $2 this folder.
#
# Leaves the script in an empty folder that goes with it, with TMPDIR inside, a text.txt, and bad() to count failures. What
# $launcher names is killed at the end.
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

i=0
while [ $i -lt 600 ]; do
    echo "Line $i of a text that says $((i * 7 % 13)) things about $((i % 5)) birds."
    i=$((i + 1))
done >text.txt
