/* config.c - the table of options. What they mean together is in config_check.c. */
#include "train/config/config.h"

#include "base/base.h"
#include "device/device.h"

enum {
    T = VERB_TRAIN,
    P = VERB_PLAN,
    B = VERB_BENCH,
    G = VERB_GENERATE,
    D = VERB_DATA,
    Q = VERB_PARITY,
    E = VERB_EVAL,
    C = VERB_BENCH_COMM,
    M = VERB_BENCH_GEMM,
    STEP = T | P | B | Q,    /* commands that make a training step */
    RUNS = T | B | G | Q | E /* commands that run a model */
};

#define COUNT_MOST                         1e15
#define FAMILY_CHOICE(upper, name)         "|" #name
#define OPTIMIZER_CHOICE(upper, name, ...) "|" #name
#define DEVICE_CHOICE(name, help)          "|" #name
#define DEVICE_HELP(name, help)            "; " #name ": " help

#define INT(field, text, least, most, unit, verbs, ...) \
    OPTION_INT(struct config, field, #field, text, least, most, unit, verbs, __VA_ARGS__)
#define REAL(field, text, least, most, unit, verbs, ...) \
    OPTION_REAL(struct config, field, #field, text, least, most, unit, verbs, __VA_ARGS__)
#define BYTES(field, text, verbs, ...)         OPTION_BYTES(struct config, field, #field, text, 0, 0, verbs, __VA_ARGS__)
#define BOOL(field, text, verbs, ...)          OPTION_BOOL(struct config, field, #field, text, verbs, __VA_ARGS__)
#define STRING(field, text, verbs, ...)        OPTION_STRING(struct config, field, #field, text, verbs, __VA_ARGS__)
#define ENUM(field, text, choices, verbs, ...) OPTION_ENUM(struct config, field, #field, text, choices, verbs, __VA_ARGS__)

static const struct option rows[] = {
    STRING(model.preset, "llama-demo", STEP, "name of a model; 'lockstep help models' lists them", .common = STEP),
    STRING(model.hf, "", STEP, "Hugging Face folder (shape and weights) or config.json (shape alone), instead of a preset",
           .common = T | P | B),
    ENUM(model.architecture, "preset", "preset" LS_FAMILY_MAP(FAMILY_CHOICE), STEP, "model family; preset: the preset's"),
    INT(model.layers, "0", 0, COUNT_MOST, "", STEP, "number of transformer blocks; 0 here and below: the preset's", .common = T | P | B),
    INT(model.width, "0", 0, COUNT_MOST, "", STEP, "channels of the residual stream", .common = T | P | B),
    INT(model.heads, "0", 0, COUNT_MOST, "", STEP, "number of query heads; must divide model.width"),
    INT(model.kv_heads, "0", 0, COUNT_MOST, "", STEP, "number of key and value heads; must divide model.heads"),
    INT(model.head_size, "0", 0, COUNT_MOST, "", STEP,
        "channels of each head; 0: the preset's, or model.width / model.heads where one of these is set"),
    INT(model.ffn, "0", 0, COUNT_MOST, "", STEP, "inner width of the feed-forward layer"),
    INT(model.vocab, "0", 0, COUNT_MOST, "tokens", STEP, "rows of the embedding; 0: the tokenizer's vocabulary", .common = P | B),
    ENUM(model.tied, "preset", "preset|false|true", STEP, "use the embedding as the output projection, too"),
    INT(model.max_positions, "0", 0, COUNT_MOST, "tokens", STEP, "longest sequence that the model can process"),
    REAL(model.rope_theta, "0", 0, 1e12, "", STEP, "base of the rotary position embedding"),
    ENUM(model.activation, "preset", "preset|gelu_tanh|gelu|relu_squared", STEP,
         "activation function of the feed-forward layer, in families that leave a choice; gelu is the exact one"),
    REAL(model.dropout, "0", 0, 0.99, "", STEP, "share of activations dropped in training, in families with dropout", .off = "0"),

    INT(model.experts, "0", 0, COUNT_MOST, "", STEP, "number of experts per layer, in families with experts"),
    INT(model.experts_per_token, "0", 0, COUNT_MOST, "", STEP, "number of experts that each token is routed to"),
    INT(model.expert_ffn, "0", 0, COUNT_MOST, "", STEP, "inner width of an expert"),
    INT(model.shared_ffn, "-1", -1, COUNT_MOST, "", STEP,
        "inner width of the shared expert, through which every token passes; 0: no shared expert; -1 here and below: the preset's",
        .off = "0"),
    ENUM(model.router, "preset", "preset|softmax|sigmoid", STEP, "function that turns the router's logits into scores"),
    REAL(model.capacity, "-1", -1, 1e6, "", STEP,
         "capacity factor: an expert takes at most this times its even share of a sample's tokens and drops the rest; 0: drops none",
         .off = "0"),
    ENUM(model.drop, "preset", "preset|position|probability", STEP,
         "which tokens a full expert drops: the last ones, or those with the smallest scores"),
    REAL(model.aux_loss, "-1", -1, 1e6, "", STEP, "coefficient of the load-balancing loss", .off = "0"),
    ENUM(model.aux_loss_scope, "preset", "preset|sequence|micro_batch", STEP,
         "what the shares and means of aux_loss are taken over: each sequence (independent of the layout), or a micro-batch of all "
         "data-parallel ranks (depends on dp and accumulation); preset: sequence"),
    REAL(model.z_loss, "-1", -1, 1e6, "", STEP, "coefficient of the loss that keeps the router's logits small", .off = "0"),
    REAL(model.router_bias_rate, "-1", -1, 1e6, "", STEP, "update rate of a bias on the scores that balances the load without a loss",
         .off = "0", .alias = "model.balance"),

    STRING(data.text, "", T | P | D | E,
           "UTF-8 text; .jsonl and .ndjson: one JSON object with a document per line; either may be compressed as .gz or .zst",
           .common = T | E | D),
    STRING(data.field, "text", T | P | D | E, "field of each JSON line that holds the document"),
    ENUM(data.special_tokens, "auto", "auto|parse|text", T | P | D | E,
         "special tokens spelled out in the text, such as <|endoftext|>: turn them into their ids (parse), or treat them as ordinary text; "
         "auto: parse in plain text, text in JSON lines"),
    STRING(data.tokens, "", T | P | E, "token file, instead of a text", .common = E),
    ENUM(data.format, "auto", "auto|llmc|llmc-llama3|nanogpt|megatron", T | P | D | E, "format of the token file; auto: detected",
         .common = D),
    STRING(data.tokenizer, "bytes", T | P | D,
           "bytes, bpe (learnt from the text), tokenizer.json, FILE.tiktoken or a folder; not needed for a token file", .common = T | D),
    INT(data.vocab_size, "4096", 257, 1e6, "tokens", T | P | D, "size of the vocabulary that tokenizer=bpe learns", .common = D),
    INT(data.seq_len, "-1", -1, 1e7, "tokens", STEP | E,
        "tokens per sample; -1: 256, or as many as the model has positions if that is fewer", .common = STEP | E),
    REAL(data.val_fraction, "0.05", 0, 0.9, "", T | P | E, "share of the data that is kept for validation, from its end; 0: none",
         .off = "0", .common = E),
    BOOL(data.shuffle, "true", T, "take samples in random order, a new one in each epoch", .off = "false"),

    INT(train.steps, "-1", -1, COUNT_MOST, "steps", T | P,
        "number of optimizer updates; -1: 1000, or as many as train.time_budget has time for", .common = T | P),
    REAL(train.time_budget, "0", 0, 1e9, "seconds", T | P,
         "time that a run may take, with start-up, evaluations and checkpoints: a trial before the first step fixes the number of steps, "
         "at most train.steps; 0: no limit",
         .off = "0", .common = T),
    INT(train.schedule_steps, "-1", -1, COUNT_MOST, "steps", T, "length of the learning-rate schedule; -1: train.steps"),
    INT(train.global_batch, "-1", -1, COUNT_MOST, "samples", STEP,
        "samples per optimizer step over all ranks; -1: micro_batch x accumulate x dp", .common = T | P | Q),
    INT(train.micro_batch, "-1", -1, COUNT_MOST, "samples", STEP | E,
        "samples that a rank computes at once; -1: what global_batch and accumulate leave, at most 8 if accumulate is -1, too",
        .common = STEP | E),
    INT(train.accumulate, "-1", -1, COUNT_MOST, "", STEP, "micro-batches per rank and step; -1: what global_batch and micro_batch leave",
        .common = B | Q, .alias = "parallel.accumulate"),
    INT(train.seed, "1", 0, COUNT_MOST, "", T | B | Q, "seed of the initial weights, the order of samples and dropout", .common = Q),
    ENUM(train.non_finite, "stop", "stop|skip", T,
         "what happens if a loss or gradient norm is NaN or infinite, before the update: stop and name the first such value, or skip the "
         "update with a warning"),
    INT(train.eval_every, "250", 0, COUNT_MOST, "steps", T, "steps between evaluations; 0: only at the end", .off = "0", .common = T),
    INT(train.eval_batches, "0", 0, COUNT_MOST, "", T | E, "batches of global_batch samples per evaluation; 0: all validation samples",
        .common = E),

    ENUM(optim.name, "adamw", &(LS_OPTIMIZER_MAP(OPTIMIZER_CHOICE))[1], STEP, "optimizer", .common = P | B | Q),
    REAL(optim.lr, "1e-3", 0, 1e6, "", T | Q, "peak learning rate", .common = T | Q),
    REAL(optim.min_lr, "0", 0, 1e6, "", T, "learning rate at the end of the schedule", .off = "0"),
    INT(optim.warmup, "-1", -1, COUNT_MOST, "steps", T, "steps of linear warm-up; -1: 50, or half of a short run", .off = "0", .common = T),
    ENUM(optim.schedule, "cosine", "constant|linear|cosine|wsd", T, "shape of the learning rate after warm-up"),
    INT(optim.decay, "-1", -1, COUNT_MOST, "steps", T, "steps of the final decay of schedule=wsd; -1: a fifth of the schedule", .off = "0"),
    INT(optim.lr_scale_batch, "0", 0, COUNT_MOST, "samples", T,
        "batch that lr is meant for: lr is multiplied by global_batch / this; 0: used as it is", .off = "0"),
    REAL(optim.weight_decay, "0.1", 0, 1e6, "", T | B | Q, "weight decay of matrices; norms and biases are not decayed", .off = "0"),
    REAL(optim.clip, "1", 0, 1e15, "", T | B | Q, "norm that the whole gradient is clipped to; 0: no clipping", .off = "0"),
    REAL(optim.beta1, "0.9", 0, 0.999999, "", T | B | Q, "decay rate of the first moment (adam, adamw, lamb)"),
    REAL(optim.beta2, "0.95", 0, 0.999999, "", T | B | Q, "decay rate of the second moment (adam, adamw, lamb)"),
    REAL(optim.eps, "1e-8", 0, 1, "", T | B | Q, "term added to the root of the second moment (adam, adamw, lamb)"),
    REAL(optim.momentum, "0.9", 0, 0.999999, "", STEP, "momentum of sgd and lars; 0: no momentum and no state", .off = "0"),
    BOOL(optim.nesterov, "false", T | B | Q, "use Nesterov momentum (sgd)", .off = "false"),
    REAL(optim.trust_coefficient, "0.001", 0, 1e6, "", T | B | Q, "trust coefficient, the ratio of update to weights (lars)",
         .alias = "optim.trust"),

    ENUM(optim.offload, "none", "none|cpu|file", STEP,
         "where the optimizer state is kept between steps: with the parameters, elsewhere in memory, or in a file of the run's folder",
         .off = "none"),

    INT(parallel.dp, "-1", -1, LS_MESH_RANKS_MOST, "ranks", STEP | E,
        "data-parallel ranks, which share the samples of a step; -1: launch.ranks / (pp x cp x tp)", .common = P | Q | E),
    INT(parallel.tp, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E,
        "tensor-parallel ranks, over which heads, inner widths and the vocabulary are sharded", .off = "1", .common = T | Q | E),
    BOOL(parallel.sp, "false", STEP | E, "sequence parallel: shard norms, dropout and the residual stream by sequence over tp",
         .off = "false", .common = Q),
    INT(parallel.tp_chunks, "1", 1, 16, "chunks", STEP,
        "split row-parallel matmuls into this many row chunks; each chunk's all-reduce overlaps the next chunk's matmul", .off = "1",
        .alias = "parallel.split"),
    INT(parallel.cp, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E, "context-parallel ranks, over which the sequence is sharded",
        .off = "1", .common = T | Q | E),
    ENUM(parallel.cp_method, "ring", "ring|all_to_all", STEP | E,
         "attention over cp: pass keys and values around a ring, or exchange heads for tokens", .common = Q, .alias = "parallel.context"),
    INT(parallel.pp, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E, "pipeline stages, each with some of the layers", .off = "1",
        .common = T | Q | E),
    INT(parallel.vpp, "1", 1, LS_MESH_RANKS_MOST, "", STEP | E, "virtual stages per rank (schedules interleaved and zb-v)", .off = "1"),
    STRING(parallel.schedule, "auto", STEP,
           "pipeline schedule: auto (1f1b, or interleaved with vpp), gpipe, 1f1b, interleaved, zb-h1, zb-v, file:PATH", .common = Q),
    STRING(parallel.stages, "", STEP, "layers of each virtual stage, such as 3,4,4,1; empty: balanced by work"),
    INT(parallel.ep, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E,
        "expert-parallel ranks: the experts are distributed over this many of the dp x cp ranks", .off = "1", .common = Q),
    INT(parallel.zero, "0", 0, 3, "", STEP | E, "ZeRO stage: 0 none, 1 optimizer state, 2 + gradients, 3 + parameters (FSDP)", .off = "0",
        .common = T | P | Q),
    INT(parallel.replicate, "1", 1, LS_MESH_RANKS_MOST, "", STEP, "replicas, each sharded over dp / replicate ranks (HSDP, zero 1 to 3)",
        .off = "1", .common = Q),
    BYTES(parallel.bucket, "25MiB", STEP, "size of a bucket, whose gradients are reduced together (zero 0 to 2)"),
    BYTES(parallel.first_bucket, "1MiB", STEP, "size of the bucket that is ready first"),
    BOOL(parallel.overlap, "true", STEP, "communicate while computing; false: wait at once", .off = "false"),
    BOOL(parallel.reshard_after_forward, "true", STEP,
         "free gathered parameters after forward and gather them again for backward (zero 3); false: more memory, a third less traffic",
         .off = "true", .alias = "parallel.keep_gathered", .alias_inverts = true),
    BOOL(parallel.unsharded_accumulation, "false", STEP,
         "keep unsharded gradients until the last micro-batch (zero 2, 3): more memory, less traffic", .off = "false",
         .alias = "parallel.accumulate_whole"),
    BOOL(parallel.sync_batch_norm, "true", STEP, "compute the statistics of batch norms over all ranks", .off = "false"),

    ENUM(precision.compute, "auto", "auto|fp32|bf16", STEP | G | E, "type of arithmetic; auto: bf16 where the processor has it, else fp32",
         .common = STEP | G | E),
    ENUM(precision.reduce, "fp32", "fp32|bf16", STEP, "type in which gradients are communicated", .common = Q),
    BOOL(precision.master, "true", STEP, "keep fp32 master weights beside bf16 ones", .common = P),
    STRING(recompute.mode, "none", STEP, "activations recomputed in backward: none, selective, full, every:K, budget:SIZE", .off = "none",
           .common = STEP),

    INT(checkpoint.every, "0", 0, COUNT_MOST, "steps", T, "steps between checkpoints; 0: only at the end", .off = "0", .common = T),
    INT(checkpoint.keep, "2", 1, 1e6, "", T, "number of newest checkpoints that are kept"),
    STRING(checkpoint.resume, "auto", T, "checkpoint to resume from: auto (the run's newest, if any), none, or a path", .off = "none",
           .common = T),
    STRING(checkpoint.dir, "", T, "folder of the checkpoints; empty: RUN/checkpoints"),

    INT(launch.ranks, "0", 0, LS_MESH_RANKS_MOST, "ranks", T | P | B | C | E,
        "ranks to start on this machine (-n); 0: one, or those that a launcher started", .common = T | B | C | E),
    INT(launch.threads, "0", 0, 4096, "", RUNS | C | M | P | D, "threads per rank; 0: its share of the cores", .common = T | B | M | G),
    REAL(launch.timeout, "60", 0.1, 1e6, "seconds", T | B | C | Q | E,
         "how long a rank may show no progress before the run ends and names it", .common = C),
    STRING(launch.comm_table, "", T | B | Q, "file that 'bench comm --tune' wrote: which algorithm is used for which size",
           .alias = "launch.choices"),
    BOOL(launch.bind, "true", T | B | C | Q | E, "bind each rank that is started here to its share of the cores", .off = "false",
         .common = C),

    STRING(run.dir, "", T, "folder of the run; empty: a new one in runs/, named for the time", .common = T),
    ENUM(run.device, "auto", "auto" DEVICE_MAP(DEVICE_CHOICE), RUNS | P,
         "device that holds the tensors and computes; auto: cuda if there is a GPU for each rank, else cpu" DEVICE_MAP(DEVICE_HELP)),
    ENUM(run.isa, "best", "best|any|avx2|avx512|avx512_bf16|amx", RUNS | C | M | P,
         "largest instruction set that kernels may use; best: all that the processor has", .common = B | M),
    ENUM(run.measure_peak, "auto", "auto|again|off", T | B,
         "peak FLOP/s, which MFU is a share of: auto measures them once per machine and caches them, again replaces what is cached, off "
         "shows no MFU",
         .off = "off"),
    BYTES(run.memory_limit, "0", RUNS | C | M | P | D, "most memory that a rank may hold; 0: its share of what its machine has free",
          .common = P),

    INT(log.every, "10", 1, COUNT_MOST, "steps", T, "steps between lines where the output is not a terminal"),
    BOOL(log.tensorboard, "true", T, "write TensorBoard events into the run's folder", .off = "false"),
    BOOL(log.trace, "false", T,
         "write RUN/trace.json (trace_step_N.json if resumed after step N): what every rank did when, for Perfetto or chrome://tracing",
         .off = "false"),
    BOOL(log.per_rank, "false", T, "also write metrics.rank_NNNN.jsonl, a file per rank", .off = "false"),

    INT(bench.steps, "5", 1, 1e6, "steps", B, "number of timed steps", .common = B),
    INT(bench.warmup, "2", 0, 1e6, "steps", B, "number of untimed steps before them", .off = "0", .common = B),

    BOOL(debug.check_finite, "false", T | B | Q, "look for NaN and infinity in the output of every operation and name the first (slow)",
         .off = "false"),
    ENUM(debug.fault, "none", FAULT_CHOICES, T | Q,
         "inject a fault, for tests of what detects it; 'lockstep help faults' says what each does", .off = "none", .alias = "debug.plant"),
    STRING(debug.non_finite, "", T,
           "inject a NaN, for tests, as STEP:RANK:MICRO:NAME: into the gradient if NAME is PARAMETER.grad, else into the output of the "
           "first op that reads PARAMETER; STEP counts from 1, RANK and MICRO from 0",
           .off = ""),
    INT(debug.device_seed, "0", 0, COUNT_MOST, "", RUNS, "seed of the order in which run.device=check runs what is enqueued"),
    INT(debug.fail_alloc, "0", 0, COUNT_MOST, "", RUNS | C | M | P, "fail the Nth allocation from now, for tests; 0: none", .off = "0"),
    INT(debug.fail_write, "0", 0, COUNT_MOST, "", T, "fail the Nth write into a checkpoint from now as on a full disk, for tests; 0: none",
        .off = "0"),
};

static const char *const verbs[] = { "train", "plan", "bench train", "generate", "data", "parity", "eval", "bench comm", "bench gemm" };

const struct option_table *config_table(void)
{
    static struct option_table table = { sizeof(struct config), rows, COUNT_OF(rows), verbs, COUNT_OF(verbs), NULL, 0 };

    if (!table.hints) table.hints = config_hints(&table.hint_count);
    return &table;
}
