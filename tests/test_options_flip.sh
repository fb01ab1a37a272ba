#!/bin/sh
# test_options_flip.sh LOCKSTEP TESTS - every option has an effect: each row of options_flip.txt runs a base and the base with one option
# changed, and says what must differ. The test fails for an option without effect and for an option without a row.
#
# options_flip.txt describes its columns. Each base runs twice, and what its rows compare must be the same in both runs.
set -u
lockstep=$1
table=$(cd "${2:-$(dirname "$0")}" && pwd)/options_flip.txt
. "${2:-$(dirname "$0")}/script.sh"
XDG_CACHE_HOME=$work/cache
export XDG_CACHE_HOME
rows=0
stub=$(dirname "$lockstep")/lockstep_cuda_stub.so

# ---- the bases ----
tiny="--data.text=text.txt --data.seq_len=16 --train.micro_batch=2 --train.accumulate=1 --train.steps=2 --train.eval_every=0
      --train.eval_batches=1 --optim.warmup=0 --launch.threads=1 --run.measure_peak=off --log.tensorboard=false"
shape="--data.seq_len=16 --train.micro_batch=2 --train.accumulate=1 --launch.threads=1"
small="--model.layers=2 --model.width=16 --model.heads=2 --model.kv_heads=2 --model.ffn=32 --precision.compute=fp32"
llama="--model.preset=llama-tiny $small"
gpt2="--model.preset=gpt2-tiny --model.layers=2 --model.width=16 --model.heads=2 --model.ffn=32 --precision.compute=fp32"
mixtral="--model.preset=mixtral-tiny --model.layers=1 --model.width=16 --model.heads=2 --model.kv_heads=2 --precision.compute=fp32"
qwen="--model.preset=qwen3-moe-tiny --model.layers=1 --precision.compute=fp32"
image="--model.preset=resnet-tiny --train.micro_batch=4 --train.accumulate=1 --train.steps=2 --train.eval_every=0 --train.eval_batches=1
       --optim.warmup=0 --launch.threads=1 --run.measure_peak=off --log.tensorboard=false --precision.compute=fp32"

# Options of a base by its words: @name is one of those above.
base_options() {
    out=
    for word in $1; do
        case $word in
        @*) out="$out $(options "${word#@}")" ;;
        *) out="$out $word" ;;
        esac
    done
    echo $out
}

# ---- a run: run VERB FOLDER OPTIONS... leaves FOLDER/out.txt, FOLDER/code, and what train writes in FOLDER/run ----
run() {
    verb=$1 folder=$2
    shift 2
    mkdir -p "$folder"
    case $verb in
    train | gpu) set -- train --run.dir="$folder/run" "$@" ;;
    affinity | stopped) run_ranks "$@"; return ;;
    bench) set -- bench train --json --run.measure_peak=off --bench.steps=1 --bench.warmup=0 "$@" ;;
    program) set -- plan --print-program "$@" ;;
    plan) set -- plan "$@" ;;
    schedule) set -- plan --print-schedule "$@" ;;
    prepare) set -- data prepare "$folder/tokens.bin" "$@" ;;
    *) bad "options_flip.txt: '$verb' is no verb" ;;
    esac
    if [ $verb = gpu ]; then
        env -u CUDA_VISIBLE_DEVICES LOCKSTEP_CUDA_MODULE="$stub" "$lockstep" "$@" --run.device=cuda >"$folder/out.txt" 2>&1
    else
        "$lockstep" "$@" >"$folder/out.txt" 2>&1
    fi
    echo $? >"$folder/code"
}

# Two ranks that train until they are ended. affinity: what processors each may use. stopped: rank 1 is stopped, the run must end by itself,
# and only rank 1 can be late.
run_ranks() {
    new_clock
    $clocked "$lockstep" train --run.dir="$folder/run" "$@" --train.steps=1000000 >"$folder/out.txt" 2>&1 &
    launcher=$!
    until [ -s "$folder/run/metrics.jsonl" ] || ! kill -0 $launcher 2>/dev/null; do sleep 0.02; done
    ranks=$(ranks)
    for rank in $ranks; do grep Cpus_allowed_list "/proc/$rank/status"; done >"$folder/affinity"
    if [ $verb = affinity ] || [ -z "$ranks" ]; then kill -TERM $launcher; else kill -STOP $rank; late 1; fi
    wait $launcher
    echo $? >"$folder/code"
    launcher=
    [ $verb = affinity ] && mv "$folder/affinity" "$folder/out.txt"
}

# ---- what a row looks at: look FOLDER EFFECT prints it ----
look() {
    folder=$1
    set -- $2
    case $1 in
    metric) json "$2" <"$folder/run/metrics.jsonl" | grep -vx none ;;
    json) json "$2" <"$folder/out.txt" | grep -vx none ;;
    comm) for call in all_reduce all_gather reduce_scatter broadcast all_to_all send recv; do
            json "comm.$call.calls" "comm.$call.bytes" <"$folder/run/metrics.jsonl"
        done ;;
    memory) json memory.parameters memory.gradients memory.optimizer memory.activations memory.communication memory.offload \
        <"$folder/run/metrics.jsonl" ;;
    weights) hashes "$folder/run" parameters ;;
    state) hashes "$folder/run" optimizer ;;
    file) shift; (cd "$folder/run" 2>/dev/null && ls -d $1 2>/dev/null) ;;
    lines) shift; grep -c -e "$*" "$folder/out.txt" ;;
    output) grep -v -e '  limit  ' -e "$folder" "$folder/out.txt" ;;
    *) bad "options_flip.txt: '$1' is no effect" ;;
    esac
}

# base VERB WORDS: names the folder of the base's first run; the second is beside it.
base() {
    name=bases/$(printf '%s %s' "$1" "$2" | cksum | tr -d ' ')
    if [ ! -d "$name" ]; then
        run "$1" "$name" $(base_options "$2")
        run "$1" "$name.again" $(base_options "$2")
    fi
}

# One row of the table.
flip() {
    option=$1 verb=$2 words=$3 value=$4 effect=$5
    rows=$((rows + 1))
    [ "$verb" = affinity ] && [ "$(nproc)" -eq 1 ] && { say "row $rows left out: one processor has nothing to share"; return; }
    [ "$verb" = gpu ] && [ ! -f "$stub" ] && { say "row $rows left out: the stub of the CUDA runtime was not built"; return; }
    [ "$verb" = stopped ] && name=none || base "$verb" "$words"
    flipped=flips/$rows
    mkdir -p $flipped
    value=$(printf '%s' "$value" | sed "s|RUN|$flipped/run|g")
    run "$verb" $flipped $(base_options "$words") "--$option=$value"
    text=${effect#* }
    what="row $rows of options_flip.txt: $option=$value ($verb, '$words')"
    case $effect in
    refused*)
        [ "$(cat $flipped/code)" -ne 0 ] || bad "$what: is not refused"
        [ "$(cat "$name/code")" -eq 0 ] || bad "$what: the base fails: $(tail -n 1 "$name/out.txt")"
        grep -qF -e "$text" $flipped/out.txt || bad "$what: refused without '$text': $(tail -n 1 $flipped/out.txt)"
        return ;;
    says* | matches*)
        how=-F
        [ "${effect%% *}" = matches ] && how=-E
        grep -q $how -e "$text" $flipped/out.txt || bad "$what: does not say '$text': $(tail -n 1 $flipped/out.txt)"
        [ $name = none ] || ! grep -q $how -e "$text" "$name/out.txt" || bad "$what: the base says '$text' too"
        return ;;
    esac
    [ "$(cat "$name/code")" -eq 0 ] || bad "$what: the base fails: $(tail -n 1 "$name/out.txt")"
    [ "$(cat $flipped/code)" -eq 0 ] || bad "$what: fails: $(tail -n 1 $flipped/out.txt)"
    look "$name" "$effect" >one.txt 2>&1
    look "$name.again" "$effect" >two.txt 2>&1
    look $flipped "$effect" >three.txt 2>&1
    cmp -s one.txt two.txt || bad "$what: two runs of the base differ in '$effect': $(diff one.txt two.txt | head -n 4)"
    cmp -s one.txt three.txt && bad "$what: has no effect on '$effect'; mend it, or refuse it where it does nothing"
}

# ---- what rows need: a run, its export, a token file, other texts, a table of algorithms, a schedule ----
"$lockstep" train $(base_options "@tiny @llama") --run.dir=seed >seed.txt 2>&1 ||
    bad "the run that others start from: $(tail -n 1 seed.txt)"
"$lockstep" ckpt export seed --to hf >/dev/null || bad "the export"
"$lockstep" data prepare tokens.bin --data.text=text.txt --data.format=llmc >/dev/null || bad "the token file"
sed 's/birds/stones/' text.txt >other.txt
sed 's/birds/<|endoftext|>/' text.txt >special.txt
sed 's/.*/{"text":"&","said":"& twice &"}/' text.txt >lines.jsonl
printf 'lockstep choices 1\nall_reduce - - central\n' >choices.txt

sed -e '/^#/d' -e '/^ *$/d' "$table" >rows.txt
while IFS='|' read -r option verb words value effect; do
    # blanks around the bars do not count
    option=$(echo $option) verb=$(echo $verb) words=$(echo $words) effect=$(printf '%s' "$effect" | sed 's/^ *//; s/ *$//')
    value=$(printf '%s' "$value" | sed 's/^ *//; s/ *$//')
    flip "$option" "$verb" "$words" "$value" "$effect" </dev/null
done <rows.txt

# ---- every option has a row ----
"$lockstep" help options --markdown | sed -n 's/^| `\([a-z_0-9]*\.[a-z_0-9]*\)`.*/\1/p' | sort -u >options.txt
[ "$(wc -l <options.txt)" -gt 100 ] || bad "'lockstep help options --markdown' lists $(wc -l <options.txt) options"
sed 's/ *|.*//' rows.txt | sort -u >tested.txt
missing=$(comm -23 options.txt tested.txt | tr '\n' ' ')
[ -z "$missing" ] || bad "no row in tests/options_flip.txt for: $missing
  Add a line for each, such as
    NAME | train | @tiny @llama | VALUE | metric loss
  with a VALUE other than the default and, last, what must differ; the head of the file says what there is to choose from."
unknown=$(comm -13 options.txt tested.txt | tr '\n' ' ')
[ -z "$unknown" ] || bad "tests/options_flip.txt has rows for what is no option: $unknown; rename or remove them"

say "$rows rows, $(wc -l <options.txt) options"
[ $failures -eq 0 ] || { say "$failures failed"; exit 1; }
