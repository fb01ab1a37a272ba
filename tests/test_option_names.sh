#!/bin/sh
# test_option_names.sh LOCKSTEP TESTS - every option and flag that a message, a page of help or a document names exists.
set -u
lockstep=$1
. "$2/script.sh"
source=$(dirname "$2")

sections='model|data|train|optim|parallel|precision|recompute|checkpoint|launch|run|log|bench|debug'
"$lockstep" help options --markdown | grep -oE "^\| \`($sections)\.[a-z0-9_]+" | sed 's/^| `//' | sort -u >names.txt
grep -ohE '\.alias = "[a-z_.]+"' "$source/src/train/config/config.c" | grep -oE '[a-z_]+\.[a-z_]+' >>names.txt  # also accepted
[ "$(wc -l <names.txt)" -gt 80 ] || bad "no list of options: $(head -3 names.txt)"

# ---- section.key: string literals of the sources, and what people read ----
find "$source/src" -name '*.[ch]' -exec cat {} + | grep -v '^ \*' | grep -oE '"([^"\\]|\\.)*"' >strings.txt
"$lockstep" help --markdown >pages.md
cat strings.txt pages.md "$source/README.md" | grep -oE "(^|[^a-zA-Z0-9_./])($sections)\.[a-z][a-z0-9_]*" |
    grep -oE "($sections)\.[a-z0-9_]+" | sort -u >used.txt
# files, fields of other programs' files, and the injected mistakes of the tables above
sort -u >others.txt <<'END'
model.embed_tokens
model.layers
model.norm
model.merges
model.safetensors
run.yaml
train.bin
train.c
data.c
data.bin
data.order
END
unknown=$(sort -u names.txt others.txt | comm -13 - used.txt)
[ -z "$unknown" ] || bad "no such options: $unknown"
[ "$(wc -l <used.txt)" -gt 60 ] || bad "hardly any option is named: $(wc -l <used.txt)"

# ---- --flag: what a message says to type ----
for command in train plan compare sim lab learn parity doctor generate eval "bench train" "bench gemm" "bench comm" "bench machine" \
    "data prepare" "data inspect" "ckpt list" "ckpt inspect" "ckpt verify" "ckpt export" "ckpt import" help completion version; do
    "$lockstep" $command --help | sed -n '/^flags/,/^options\|^examples/p' | grep -oE -- '--[a-z][a-z0-9_-]*'
done | sort -u >flags.txt
# of main and parity's own children, --mpi of srun, and variables of the style of a page
printf '%s\n' --version --help --quiet --verbose --write --save --load --mpi --line --soft --least >>flags.txt
grep -oE -- "[ '(]--[a-z][a-z0-9_-]+[^a-z0-9_.*%-]" strings.txt | grep -oE -- '--[a-z][a-z0-9_-]+' | sort -u >typed.txt
unknown=$(sort -u flags.txt | comm -13 - typed.txt)
[ -z "$unknown" ] || bad "no such flags: $unknown"
[ "$(wc -l <typed.txt)" -gt 60 ] || bad "hardly any flag is named: $(wc -l <typed.txt)"

[ $failures -eq 0 ] || exit 1
say "$(wc -l <used.txt) options and $(wc -l <typed.txt) flags are named, and exist"
