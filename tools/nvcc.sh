#!/bin/sh
# nvcc.sh FILE COMMAND... - runs nvcc; what ptxas says about each kernel goes to FILE, which tools/cuda_resources.sh reads; the rest goes to
# stderr.
file=$1
shift
"$@" -Xptxas -v 2>"$file.tmp"
status=$?
grep -E '^ptxas info|bytes stack frame' "$file.tmp" >"$file"
grep -vE '^ptxas info|bytes stack frame|^ *$' "$file.tmp" >&2
rm -f "$file.tmp"
exit $status
