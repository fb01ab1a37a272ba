# parity_cases.awk - random pairs of layouts for `lockstep parity`: awk -v seed=S -v count=N -f parity_cases.awk
#
# A line a case: layout a|layout b|options of both. Models, sizes that nothing divides, optimizers, types, ranks and batches are drawn; a
# case is a function of the seed and its number. Park and Miller's generator, whose products fit a double.
function draw(n) { state = (state * 16807) % 2147483647; return int(state / 2147483647 * n) }
function pick(text,    word) { return word[1 + draw(split(text, word, " "))] }
function chance(percent) { return draw(100) < percent }

# Sizes that hold tp ranks and pp * vpp stages.
function language(    heads, kv, width, vocab) {
    kv = pick("2 4"); heads = kv * pick("1 2"); width = heads * pick("6 8 10")
    layers = 4 + draw(2)
    vocab = 40 + draw(60)
    seq = 8 + draw(17)
    model = pick("gpt2-tiny llama-tiny qwen3-tiny")
    options = "--model.preset=" model " --model.layers=" layers " --model.heads=" heads " --model.width=" width \
        " --model.ffn=" 24 + draw(60) " --model.vocab=" vocab " --data.seq_len=" seq
    if (model == "qwen3-tiny") options = options " --model.head_size=" pick("6 12 32")
    if (model != "gpt2-tiny") options = options " --model.kv_heads=" kv " --model.tied=" pick("true false")
    else if (chance(20)) options = options " --model.dropout=0.1"
}

function optimizer(    name, text) {
    name = pick("sgd adam adamw adamw lamb lars")
    text = " --optim.name=" name
    if (name == "sgd") {
        momentum = pick("0 0.5 0.9")
        text = text " --optim.lr=" pick("0.01 0.1") " --optim.momentum=" momentum
        if (momentum > 0 && chance(30)) text = text " --optim.nesterov"
    } else if (name == "lars") text = text " --optim.lr=0.1"
    else text = text " --optim.lr=" pick("0.0003 0.001 0.01")
    if (chance(40)) text = text " --optim.clip=" pick("0.05 0.5")
    return text
}

# What b does with the samples: micro-batches, ranks of dp, zero.
function data(dp, words,    zero) {
    words = words " parallel.dp=" dp
    zero = dp > 1 ? draw(4) : 0
    if (zero) words = words " parallel.zero=" zero
    if (dp > 1 && zero < 3 && chance(30)) words = words " parallel.bucket=4KiB parallel.first_bucket=1KiB"
    if (dp == 4 && zero && chance(40)) words = words " parallel.replicate=2"
    return words
}

function mesh(most,    words, tp, cp, pp, dp, left, schedule, vpp) {
    tp = chance(40) ? 2 : 1
    left = int(most / tp)
    cp = left >= 2 && chance(30) ? 2 : 1
    left = int(left / cp)
    pp = left >= 2 && chance(35) ? 2 : 1
    left = int(left / pp)
    dp = 1 + draw(left)
    if (tp > 1) words = words " parallel.tp=" tp (chance(50) ? " parallel.sp" : "")
    if (cp > 1) words = words " parallel.cp=2 parallel.cp_method=" (tp == 1 && chance(50) ? "all_to_all" : "ring")
    if (pp > 1) {
        schedule = pick("gpipe 1f1b interleaved zb-h1 zb-v")
        words = words " parallel.pp=2 parallel.schedule=" schedule
        if (schedule == "interleaved" || schedule == "zb-v") words = words " parallel.vpp=2"
        words = words " parallel.dp=" dp (dp > 1 && chance(50) ? " parallel.zero=1" : "")
        accumulate = 4
    } else {
        words = data(dp, words)
        accumulate = 1 + draw(3)
    }
    ranks = tp * cp * pp * dp
    if (chance(25)) words = words " recompute.mode=" pick("selective full every:2")
    micro = 1 + draw(2)
    global = dp * accumulate * micro
    return words " train.accumulate=" accumulate
}

BEGIN {
    for (k = 0; k < count; k++) {
        state = (seed * 40503 + k * 7919 + 1) % 2147483646 + 1
        for (i = 0; i < 8; i++) draw(2)
        type = chance(88) ? "fp32" : "bf16"
        if (chance(25)) {
            dp = 2 + draw(most > 4 ? 3 : 2)
            b = data(dp, "")
            global = 4 + draw(5)
            a = ""
            options = "--model.preset=" pick("resnet-tiny resnet-tiny resnet-small")
        } else {
            language()
            b = mesh(most)
            a = chance(50) ? "" : chance(50) ? "train.micro_batch=" micro : "parallel.dp=2"
            if (a == "parallel.dp=2" && global < 2) a = ""
        }
        print a "|" substr(b, 2) "|" options optimizer() " --precision.compute=" type " --train.global_batch=" global \
            " --train.seed=" 1 + draw(1000000)
    }
}
