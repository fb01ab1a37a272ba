#!/bin/sh
# demo.sh LOCKSTEP - trains a small model on the King James Bible, prints a report and samples from the model. Everything is written to
# runs/.
# A demo that was stopped (Ctrl-C saves first) is resumed; after a finished one, the next demo starts a new run beside it.
set -eu
lockstep=$1
seconds=150  # train.time_budget: as many steps as fit, including start-up and evaluations
mkdir -p runs

text=runs/kjv.txt
if [ ! -s "$text" ]; then
    PATH=$PATH:/usr/games
    # One verse per line, "Ge1:1 In the beginning ...": remove the references, and put an empty line between chapters.
    bible -f gen1:1-rev22:21 </dev/null | sed -E -e '2,$s/^[^ ]+:1 /\n/' -e 's/^[^ ]+:[0-9]+ //' >"$text.tmp"
    [ "$(wc -c <"$text.tmp")" -gt 4000000 ] || { echo "demo: 'bible' printed only $(wc -c <"$text.tmp") bytes" >&2; exit 1; }
    mv "$text.tmp" "$text"
fi

# The run has a checkpoint of its last step, the train.steps of its config.yaml.
finished() {
    last=$(awk '/^[a-z]/ { section = $1 } section == "train:" && $1 == "steps:" { print $2 }' "$1/config.yaml" 2>/dev/null) || return 1
    [ "${last:--1}" -ge 0 ] && [ -e "$1/checkpoints/$(printf 'step_%08d' "$last")" ]
}

run=runs/demo
n=1
while finished $run; do
    n=$((n + 1))
    run=runs/demo-$n
done

set -- train --data.text=$text --data.tokenizer=bpe --data.vocab_size=2048 --model.layers=4 \
       --train.time_budget=$seconds --optim.lr=3e-3 --run.dir=$run --sample "In the beginning"
echo "$lockstep $*"
echo
exec "$lockstep" "$@"
