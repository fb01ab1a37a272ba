#!/bin/sh
# cuda_resources.sh FOLDER - registers, shared memory, stack and spills of each CUDA kernel for each GPU, from the *.resources files that
# the build leaves in FOLDER (build/cuda). Exit code 1 if a kernel spills registers or none was found, 77 if nothing was built.
set -u
folder=${1:-build/cuda}
set -- "$folder"/*.resources
[ -e "$1" ] || { echo "skipped: $folder has no .resources files: the CUDA module was not built"; exit 77; }
cat "$@" | c++filt -p 2>/dev/null | awk '
/Compiling entry function/ {
    target = kernel = $0
    sub(/.*for ./, "", target); sub(/.$/, "", target)
    sub(/.*function ./, "", kernel); sub(/. for .*/, "", kernel)
}
/bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
/Used [0-9]+ registers/ {
    shared = 0
    for (i = 1; i <= NF; i++) { if ($i == "Used") registers = $(i + 1); if ($i == "bytes" && $(i + 1) ~ /^smem/) shared = $(i - 1) }
    line[++n] = sprintf("%-48s %-8s %9d %7d %6d %7d", kernel, target, registers, shared, stack, stores + loads)
    if (stores + loads) { bad = 1; spills = spills "\n" kernel " for " target ": " stores " bytes stored, " loads " loaded" }
}
END {
    if (!n) { print "no kernel was found in the .resources files"; exit 1 }
    printf "%-48s %-8s %9s %7s %6s %7s\n", "kernel", "target", "registers", "shared", "stack", "spilled"
    sort = "sort"
    for (i = 1; i <= n; i++) print line[i] | sort
    close(sort)
    printf "%d kernels and targets\n", n
    if (bad) print "registers are spilled:" spills
    exit bad
}'
