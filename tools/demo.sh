#!/bin/sh
# demo.sh LOCKSTEP - trains a small model on the King James Bible, lets it speak, and reports. Everything goes to runs/.
# Stopped (Ctrl-C saves first), it goes on where it was; finished, the next one starts anew beside it.
set -eu
lockstep=$1
steps=2000
mkdir -p runs

text=runs/kjv.txt
if [ ! -s "$text" ]; then
    PATH=$PATH:/usr/games
    # A verse a line, "Ge1:1 In the beginning ...": the references go, and an empty line stands between chapters.
    bible -f gen1:1-rev22:21 </dev/null | sed -E -e '2,$s/^[^ ]+:1 /\n/' -e 's/^[^ ]+:[0-9]+ //' >"$text.tmp"
    [ "$(wc -c <"$text.tmp")" -gt 4000000 ] || { echo "demo: 'bible' printed only $(wc -c <"$text.tmp") bytes" >&2; exit 1; }
    mv "$text.tmp" "$text"
fi

run=runs/demo
n=1
while [ -e "$run/checkpoints/$(printf 'step_%08d' $steps)" ]; do
    n=$((n + 1))
    run=runs/demo-$n
done

set -- train --data.text=$text --data.tokenizer=bpe --data.vocab_size=2048 --model.layers=4 \
       --train.steps=$steps --optim.lr=3e-3 --run.dir=$run --sample "In the beginning"
echo "$lockstep $*"
echo
exec "$lockstep" "$@"
