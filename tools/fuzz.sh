#!/bin/sh
# fuzz.sh BUILD SECONDS - runs every fuzz target of a build for SECONDS each. It stops at a crash and keeps the input.
set -eu
build=$1 seconds=$2
for target in "$build"/fuzz_*; do
    [ -x "$target" ] || continue
    corpus=$build/corpus/$(basename "$target")
    seeds=tests/fuzz/seeds/$(basename "$target")
    [ -d "$seeds" ] || seeds=
    mkdir -p "$corpus"
    echo "$(basename "$target"): $seconds s"
    "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -print_final_stats=0 -artifact_prefix="$build/" "$corpus" $seeds \
        >"$build/$(basename "$target").log" 2>&1 \
        || { tail -n 30 "$build/$(basename "$target").log"; exit 1; }
done
