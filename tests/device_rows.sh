# device_rows.sh - setup shared by the device tests, sourced after script.sh: small models and runs, and rows of a table that are trained on
# the cpu and on a device.
#
# seeds: orders in which the device drains its streams, for each row (LOCKSTEP_SEEDS). full: set with LOCKSTEP_MATRIX=full.
# LOCKSTEP_ROW=NAME LOCKSTEP_DEVICE_SEED=N repeats one row under one seed.
seeds=${few_seeds:-1} full=
[ "${LOCKSTEP_MATRIX:-}" = full ] && seeds=20 full=1
seeds=${LOCKSTEP_SEEDS:-$seeds}
[ -z "${LOCKSTEP_DEVICE_SEED:-}" ] || seeds=1
rows_repeat="$0 $lockstep $2"

# The CUDA module whose runtime is a stub (tests/cuda_stub/stub.h); the test is skipped if it was not built.
use_cuda_stub() {
    LOCKSTEP_CUDA_MODULE=${lockstep%/*}/lockstep_cuda_stub.so
    export LOCKSTEP_CUDA_MODULE
    [ -f "$LOCKSTEP_CUDA_MODULE" ] || { echo "skipped: no C++ compiler was found, so the stub was not built"; exit 77; }
    unset CUDA_VISIBLE_DEVICES
}

text="--data.text=text.txt --data.seq_len=16"
tiny="--train.steps=3 --train.global_batch=8 --train.micro_batch=1 --optim.warmup=0 --train.eval_every=3 --train.eval_batches=1 \
--checkpoint.every=2 --checkpoint.keep=9 --launch.threads=1 --run.measure_peak=off --log.tensorboard=false"
small="--model.layers=2 --model.width=16 --model.heads=2 --model.ffn=32"
gpt2="$text --model.preset=gpt2-tiny $small"
llama="$text --model.preset=llama-tiny $small --model.kv_heads=2 --precision.compute=fp32"
mixtral="$text --model.preset=mixtral-tiny --model.layers=2 --model.width=16 --model.heads=2 --model.kv_heads=2 --precision.compute=fp32"
qwen="$text --model.preset=qwen3-moe-tiny --model.layers=2 --precision.compute=fp32"
image="--model.preset=resnet-tiny --precision.compute=fp32"

train() { timeout 300 "$lockstep" train "$@" >out.txt 2>err.txt || bad "train $*: $(cat err.txt)"; }

# expand OPTIONS: prints them with each word @NAME replaced by the value of the variable NAME.
expand() { for word in $1; do case $word in @*) options "${word#@}" ;; *) echo "$word" ;; esac; done; }

# each_row COMMAND <TABLE: COMMAND NAME RANKS OPTIONS for each line "NAME | RANKS | OPTIONS" of the table; those below a line "more" only in
# the full matrix. With LOCKSTEP_ROW one of all these, and the script ends.
each_row() {
    while IFS='|' read -r name ranks row <&3; do
        name=$(echo $name)
        [ "$name" != "${LOCKSTEP_ROW:-}" ] || { "$1" $name $ranks $(expand "$row") </dev/null; exit $((failures > 0)); }
        [ -z "${LOCKSTEP_ROW:-}" ] || continue
        [ "$name" != more ] || { [ -n "$full" ] && continue || break; }
        "$1" $name $ranks $(expand "$row") </dev/null
    done 3<&0
}

# The options of row NAME of rows.txt.
row_options() { expand "$(sed -n "s/^$1 | [0-9]* | //p" rows.txt)"; }

course() { json step loss grad_norm lr tokens_seen val_loss <"$1/metrics.jsonl"; }
same_course() { [ -n "$(course "$1")" ] && [ "$(course "$1")" = "$(course "$2")" ] || bad "$2 does not have the metrics of $1"; }

# under_seeds COMMAND ROW ARGUMENTS...: COMMAND ARGUMENTS under each seed. seed: another one for each. A failure prints how to repeat it.
seed=${first_seed:-0}
under_seeds() {
    command=$1 row=$2
    shift 2
    first=$((seed + 1))
    [ -z "${LOCKSTEP_DEVICE_SEED:-}" ] || first=$LOCKSTEP_DEVICE_SEED
    for seed in $(seq $first $((first + seeds - 1))); do
        before=$failures
        "$command" "$@"
        [ $failures -eq $before ] || say "seed $seed; repeat: LOCKSTEP_ROW=$row LOCKSTEP_DEVICE_SEED=$seed $rows_repeat"
    done
    say "$row: seeds $first to $seed"
}

# A command for each_row: the row's run on the cpu, in cpu_NAME, and `on_device ARGUMENTS` under each seed, in device_NAME, have the same
# metrics and the bits of the same checkpoint.
same_on_device() {
    row=$1 count=$2
    shift 2
    train -n $count $tiny "$@" --run.dir=cpu_$row --run.device=cpu
    under_seeds device_as_cpu $row "$@"
}
device_as_cpu() {
    rm -rf device_$row
    on_device -n $count $tiny "$@" --run.dir=device_$row
    same_course cpu_$row device_$row
    same_bits cpu_$row/checkpoints/step_00000003 device_$row/checkpoints/step_00000003
}

# failing CODES ARGUMENTS...: `train`, in failed, under the current settings of the stub ends with the exit code that fits its error line,
# one of CODES: 2 for bad settings, 1 if memory runs out, 3 if a GPU has failed; or with 0 and without a line.
failing() {
    codes=$1
    shift
    rm -rf failed
    timeout 120 "$lockstep" train "$@" --run.dir=failed >out.txt 2>err.txt
    code=$?
    line=$(cat err.txt)
    case $line in
    *"device check:"* | *"cuda stub:"*) bad "$LOCKSTEP_CUDA_STUB: $line" ;;
    *"run.device=cuda: "*) want=2 ;;
    *"out of memory"*) want=1 ;;
    *"cuda: GPU "*) want=3 ;;
    "") want=0 ;;
    *) want=unknown ;;
    esac
    [ $code = $want ] && [ "$(wc -l <err.txt)" -le 1 ] || bad "$LOCKSTEP_CUDA_STUB: train $*: exit code $code, '$line'"
    case " 0 $codes " in *" $code "*) ;; *) bad "$LOCKSTEP_CUDA_STUB: train $*: exit code $code, '$line'" ;; esac
}
