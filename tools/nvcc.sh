#!/bin/sh
# nvcc.sh FILE COMMAND... - runs nvcc. ptxas's lines about each kernel go to FILE, which tools/cuda_resources.sh reads; other output goes to
# stderr.
file=$1
shift
"$@" -Xptxas -v 2>"$file.tmp"
status=$?
grep -E '^ptxas info|bytes stack frame' "$file.tmp" >"$file"
grep -vE '^ptxas info|bytes stack frame|^ *$' "$file.tmp" >&2
rm -f "$file.tmp"
exit $status
