#!/bin/sh
# stage.sh NAME LOG COMMAND... - runs a stage of the build and prints one line: its name, its seconds, the files it compiled.
# Warnings are printed in full after the line. If the stage fails, all of its output except progress is printed, and the path of the log.
# V=1 shows the command and all of its output instead.
set -u
name=$1 log=$2
shift 2

if [ "${V:-0}" = 1 ]; then
    echo "$*"
    exec "$@"
fi

printf '%-10s ' "$name"
began=$(date +%s.%N)
"$@" >"$log" 2>&1
code=$?
files=$(grep -c 'Building C object' "$log")
seconds=$(echo "$began $(date +%s.%N)" | awk '{ printf "%.1f s", $2 - $1 }')
worth=$(grep -vE '^\[[0-9]+/[0-9]+\] |^ninja: (no work to do|build stopped|Entering)|^-- |^$' "$log")

if [ $code -ne 0 ]; then
    echo "failed after $seconds:"
    printf '%s\n' "$worth"
    echo "The whole output is in $log."
    exit $code
fi
case $name in
build) printf '%s, %d file%s compiled\n' "$seconds" "$files" "$([ "$files" -eq 1 ] || echo s)" ;;
*)     printf '%s\n' "$seconds" ;;
esac
[ -z "$worth" ] || printf '%s\n' "$worth"
