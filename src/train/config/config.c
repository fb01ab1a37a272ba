/* config.c - the table of options. Rules about combinations of options are in config_check.c. */
#include "train/config/config.h"

#include "base/base.h"
#include "device/device.h"
#include "lockstep/pipeline.h"

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

#define COUNT_MOST                          1e15
#define MODEL_CHOICE(upper, name)           "|" #name
#define ACTIVATION_CHOICE(upper, name, ...) "|" #name
#define OPTIMIZER_CHOICE(upper, name, ...)  "|" #name
#define FORMAT_CHOICE(id, name)             "|" name
#define DEVICE_CHOICE(name, help)           "|" #name
#define DEVICE_HELP(name, help)             "; " #name ": " help

#define SCHEDULE_HELP(id, name) ", " name

/* The names of the optimizers that read a field. */
#define OPTIMIZER_IF_0(name)
#define OPTIMIZER_IF_1(name)                                                  " " #name
#define OPTIMIZER_MOMENTS(upper, name, moments, ...)                          OPTIMIZER_IF_##moments(name)
#define OPTIMIZER_MOMENTUM(upper, name, moments, momentum, ...)               OPTIMIZER_IF_##momentum(name)
#define OPTIMIZER_NESTEROV(upper, name, moments, momentum, nesterov, ...)     OPTIMIZER_IF_##nesterov(name)
#define OPTIMIZER_TRUST(upper, name, moments, momentum, nesterov, trust, ...) OPTIMIZER_IF_##trust(name)
#define WITH_MOMENTS                                                          LS_OPTIMIZER_MAP(OPTIMIZER_MOMENTS)

#define INT(field, text, least, most, unit, verbs, ...) \
    OPTION_INT(struct config, field, #field, text, least, most, unit, verbs, __VA_ARGS__)
#define REAL(field, text, least, most, unit, verbs, ...) \
    OPTION_REAL(struct config, field, #field, text, least, most, unit, verbs, __VA_ARGS__)
#define BYTES(field, text, verbs, ...)         OPTION_BYTES(struct config, field, #field, text, 0, 0, verbs, __VA_ARGS__)
#define BOOL(field, text, verbs, ...)          OPTION_BOOL(struct config, field, #field, text, verbs, __VA_ARGS__)
#define STRING(field, text, verbs, ...)        OPTION_STRING(struct config, field, #field, text, verbs, __VA_ARGS__)
#define ENUM(field, text, choices, verbs, ...) OPTION_ENUM(struct config, field, #field, text, choices, verbs, __VA_ARGS__)

static const struct option config_rows[] = {
    STRING(model.preset, "llama-demo", STEP, "name of a model; 'lockstep help models' lists them", .common = STEP, .value = "NAME"),
    STRING(model.hf, "", STEP, "Hugging Face folder (shape and weights) or its config.json (only the shape), instead of a preset",
           .common = T | P | B, .value = "FOLDER|FILE"),
    ENUM(model.architecture, "preset", "preset" LS_FAMILY_MAP(MODEL_CHOICE), STEP,
         "model family; preset: the family of model.preset or model.hf"),
    INT(model.layers, "0", 0, COUNT_MOST, "", STEP, "number of transformer blocks; 0: the preset's", .common = T | P | B),
    INT(model.width, "0", 0, COUNT_MOST, "", STEP, "channels of the residual stream; 0: the preset's", .common = T | P | B),
    INT(model.heads, "0", 0, COUNT_MOST, "", STEP,
        "number of query heads; must divide model.width unless model.head_size is set; 0: the preset's"),
    INT(model.kv_heads, "0", 0, COUNT_MOST, "", STEP, "number of key and value heads; must divide model.heads; 0: the preset's"),
    INT(model.head_size, "0", 0, COUNT_MOST, "", STEP,
        "channels of each head; 0: the preset's, or model.width / model.heads if one of these is set"),
    INT(model.ffn, "0", 0, COUNT_MOST, "", STEP, "inner width of the feed-forward layer; 0: the preset's"),
    INT(model.vocab, "0", 0, COUNT_MOST, "tokens", STEP, "rows of the embedding; 0: the tokenizer's vocabulary", .common = P | B),
    ENUM(model.tied, "preset", "preset|false|true", STEP, "use the embedding also as the output projection; preset: as the preset does"),
    INT(model.max_positions, "0", 0, COUNT_MOST, "tokens", STEP, "longest sequence that the model can process; 0: the preset's"),
    REAL(model.rope_theta, "0", 0, 1e12, "", STEP, "base of the rotary position embedding; 0: the preset's"),
    ENUM(model.activation, "preset", "preset" LS_ACTIVATION_MAP(ACTIVATION_CHOICE), STEP,
         "activation function of the feed-forward layer, in families that offer a choice; gelu: the exact function, gelu_tanh: its "
         "approximation by tanh"),
    REAL(model.dropout, "0", 0, 0.99, "", STEP,
         "probability that an activation is dropped in training, in families with dropout; 0: no dropout, also where the config.json of "
         "model.hf has another resid_pdrop",
         .off = "0"),
    REAL(model.attention_dropout, "0", 0, 0.99, "", STEP,
         "probability that an attention probability is dropped in training, in families with dropout; 0: none, also where the config.json "
         "of model.hf has another attn_pdrop",
         .off = "0"),

    INT(model.experts, "0", 0, COUNT_MOST, "", STEP, "number of experts per layer, in families with experts; 0: the preset's"),
    INT(model.experts_per_token, "0", 0, COUNT_MOST, "", STEP, "number of experts that each token is routed to; 0: the preset's"),
    INT(model.expert_ffn, "0", 0, COUNT_MOST, "", STEP, "inner width of an expert; 0: the preset's"),
    INT(model.shared_ffn, "-1", 0, COUNT_MOST, "", STEP,
        "inner width of the shared expert, which processes every token; 0: no shared expert; -1: the preset's", .off = "0",
        .special = "-1"),
    ENUM(model.router, "preset", "preset" LS_ROUTER_MAP(MODEL_CHOICE), STEP,
         "function that turns the router's logits into scores; preset: the preset's"),
    REAL(model.capacity, "-1", 0, 1e6, "", STEP,
         "capacity factor: an expert takes at most this times its even share of a sample's tokens and drops the rest; 0: it drops none; "
         "-1: the preset's",
         .off = "0", .special = "-1"),
    ENUM(model.drop, "preset", "preset" LS_DROP_MAP(MODEL_CHOICE), STEP,
         "which tokens a full expert drops: the last ones (position), or those with the smallest scores (probability); preset: the "
         "preset's"),
    REAL(model.aux_loss, "-1", 0, 1e6, "", STEP, "coefficient of the load-balancing loss; 0: none; -1: the preset's", .off = "0",
         .special = "-1"),
    ENUM(model.aux_loss_scope, "preset", "preset|sequence|micro_batch", STEP,
         "tokens over which aux_loss is computed: those of each sequence (independent of the layout), or of a micro-batch of all "
         "data-parallel ranks (depends on dp and accumulation); preset: sequence"),
    REAL(model.z_loss, "-1", 0, 1e6, "", STEP, "coefficient of the loss that keeps the router's logits small; 0: none; -1: the preset's",
         .off = "0", .special = "-1"),
    REAL(model.router_bias_rate, "-1", 0, 1e6, "", STEP,
         "update rate of a bias on the router's scores, which balances the load without a loss; 0: none; -1: the preset's", .off = "0",
         .alias = "model.balance", .special = "-1"),

    STRING(data.text, "", T | P | D | E,
           "file of UTF-8 text, or of JSON lines (.jsonl, .ndjson) with a document in each object; it may be compressed (.gz, .zst)",
           .common = T | E | D, .value = "FILE"),
    STRING(data.field, "text", T | P | D | E, "field of each JSON object that holds the document", .value = "NAME"),
    ENUM(data.special_tokens, "auto", "auto|parse|text", T | P | D | E,
         "how to read special tokens that are spelled out in the text, such as <|endoftext|>: as their ids (parse) or as ordinary text "
         "(text); auto: parse in plain text, text in JSON lines"),
    STRING(data.tokens, "", T | P | E, "token file to read instead of a text", .common = T | E, .value = "FILE"),
    ENUM(data.format, "auto", "auto" LS_TOKEN_FORMAT_MAP(FORMAT_CHOICE), T | P | D | E,
         "format of the token file; auto: detected when reading, llmc when writing", .common = D),
    STRING(
        data.tokenizer, "bytes", T | P | D,
        "tokenizer: bytes, bpe (learned from the text), a tokenizer.json, a FILE.tiktoken, or a folder with one of these; not needed for "
        "a token file",
        .common = T | D, .value = "NAME|FILE|FOLDER"),
    INT(data.vocab_size, "4096", 257, 1e6, "tokens", T | P | D, "size of the vocabulary that data.tokenizer=bpe learns", .common = D),
    INT(data.seq_len, "-1", 1, 1e7, "tokens", STEP | E, "tokens per sample; -1: 256, or the model's number of positions if that is smaller",
        .common = STEP | E, .special = "-1", .was = "256"),
    REAL(data.val_fraction, "0.05", 0, 0.9, "", T | P | E, "share of the data, at its end, that is kept for validation; 0: none",
         .off = "0", .common = E),
    BOOL(data.shuffle, "true", T, "take samples in random order, a different one in each epoch; false: in the order of the data",
         .off = "false"),

    INT(train.steps, "-1", 0, COUNT_MOST, "steps", T | P, "number of optimizer updates; -1: 1000, or as many as fit into train.time_budget",
        .common = T | P, .special = "-1"),
    REAL(train.time_budget, "0", 0, 1e9, "seconds", T | P,
         "time that the run may take, including start-up, evaluations and checkpoints: a trial before the first step fixes the number of "
         "steps, at most train.steps; 0: no limit",
         .off = "0", .common = T),
    INT(train.schedule_steps, "-1", 0, COUNT_MOST, "steps", T, "length of the learning-rate schedule; -1: train.steps", .special = "-1"),
    INT(train.global_batch, "-1", 1, COUNT_MOST, "samples", STEP,
        "samples per optimizer step over all ranks; -1: micro_batch x accumulate x dp", .common = T | P | Q, .special = "-1"),
    INT(train.micro_batch, "-1", 1, COUNT_MOST, "samples", STEP | E,
        "samples that a rank computes at once; -1: as global_batch and accumulate require, at most 8 if accumulate is -1 too",
        .common = STEP | E, .special = "-1"),
    INT(train.accumulate, "-1", 1, COUNT_MOST, "", STEP, "micro-batches per rank and step; -1: as global_batch and micro_batch require",
        .common = STEP, .alias = "parallel.accumulate", .special = "-1"),
    INT(train.seed, "1", 0, COUNT_MOST, "", T | B | Q, "seed of the initial weights, the order of samples, dropout and stochastic rounding",
        .common = Q),
    ENUM(train.non_finite, "stop", "stop|skip", T,
         "what to do, before the update, if a loss or gradient norm is NaN or infinite: stop and name the first such value, or skip the "
         "update with a warning"),
    INT(train.eval_every, "250", 0, COUNT_MOST, "steps", T, "steps between evaluations; 0: only at the end", .off = "0", .common = T),
    INT(train.eval_batches, "0", 0, COUNT_MOST, "", T | E,
        "number of batches of global_batch samples per evaluation; 0: all validation samples", .common = E),

    ENUM(optim.name, "adamw", &(LS_OPTIMIZER_MAP(OPTIMIZER_CHOICE))[1], STEP, "optimizer", .common = STEP),
    REAL(optim.lr, "1e-3", 0, 1e6, "", T | Q, "peak learning rate", .common = T | Q),
    REAL(optim.min_lr, "0", 0, 1e6, "", T, "learning rate at the end of the schedule", .off = "0"),
    INT(optim.warmup, "-1", 0, COUNT_MOST, "steps", T, "steps of linear warm-up; -1: 50, or half of the lr schedule if that is less",
        .off = "0", .common = T, .special = "-1"),
    ENUM(optim.schedule, "cosine", "constant|linear|cosine|wsd", T, "lr schedule after warm-up; wsd: constant, then a final decay"),
    INT(optim.decay, "-1", 0, COUNT_MOST, "steps", T, "steps of the final decay of optim.schedule=wsd; -1: a fifth of the lr schedule",
        .off = "0", .special = "-1"),
    INT(optim.lr_scale_batch, "0", 0, COUNT_MOST, "samples", T,
        "global batch for which optim.lr was chosen: lr is multiplied by train.global_batch / this; 0: lr is not scaled", .off = "0"),
    REAL(optim.weight_decay, "0.1", 0, 1e6, "", T | B | Q, "weight decay of matrices; norms and biases are not decayed", .off = "0"),
    REAL(optim.clip, "1", 0, 1e15, "", T | B | Q,
         "largest norm of the gradient of all parameters: a larger gradient is scaled down to it; 0: no clipping", .off = "0"),
    ENUM(optim.clip_by, "current", "current|previous", STEP,
         "the step whose gradient norm clips an update; previous: the norm of the step before, so that no update waits for the norm; the "
         "first step of a run is not clipped"),
    REAL(optim.beta1, "0.9", 0, 0.999999, "", T | B | Q, "decay rate of the first moment; for" WITH_MOMENTS),
    REAL(optim.beta2, "0.95", 0, 0.999999, "", T | B | Q, "decay rate of the second moment; for" WITH_MOMENTS),
    REAL(optim.eps, "1e-8", 0, 1, "", T | B | Q, "term added to the square root of the second moment; for" WITH_MOMENTS),
    REAL(optim.momentum, "0.9", 0, 0.999999, "", STEP, "momentum; 0: no momentum and no state; for" LS_OPTIMIZER_MAP(OPTIMIZER_MOMENTUM),
         .off = "0"),
    BOOL(optim.nesterov, "false", T | B | Q, "use Nesterov momentum; for" LS_OPTIMIZER_MAP(OPTIMIZER_NESTEROV), .off = "false"),
    REAL(optim.trust_coefficient, "0.001", 0, 1e6, "", T | B | Q,
         "trust coefficient: the norm of a layer's update relative to that of its weights; for" LS_OPTIMIZER_MAP(OPTIMIZER_TRUST),
         .alias = "optim.trust"),

    BOOL(optim.in_backward, "false", T | P | B,
         "update each parameter in backward as soon as its gradient is final, and reuse the gradient's memory (bitwise the same results); "
         "needs "
         "optim.clip_by=previous or optim.clip=0, one micro-batch per step, no pipeline, run.device=cpu",
         .off = "false"),
    ENUM(optim.offload, "none", "none|cpu|file", STEP,
         "where the optimizer state is kept between steps; none: with the parameters, cpu: in other memory of the host, file: in a file of "
         "the run's folder",
         .off = "none"),

    INT(parallel.dp, "-1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E,
        "number of data-parallel ranks, which divide the samples of a step; -1: launch.ranks / (pp x cp x tp)", .common = STEP | E,
        .special = "-1"),
    INT(parallel.tp, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E,
        "number of tensor-parallel ranks, over which heads, inner widths and the vocabulary are sharded", .off = "1", .common = T | Q | E),
    BOOL(parallel.sp, "false", STEP | E, "sequence parallel: shard norms, dropout and the residual stream by sequence over tp",
         .off = "false", .common = Q),
    INT(parallel.tp_chunks, "1", 1, 16, "chunks", STEP,
        "split row-parallel matmuls into this many row chunks; each chunk's all-reduce overlaps the next chunk's matmul", .off = "1",
        .alias = "parallel.split"),
    INT(parallel.cp, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E, "number of context-parallel ranks, over which the sequence is sharded",
        .off = "1", .common = T | Q | E),
    ENUM(parallel.cp_method, "ring", "ring|all_to_all", STEP | E,
         "how attention is computed over cp: keys and values are passed around a ring, or heads are exchanged for tokens (all_to_all)",
         .common = Q, .alias = "parallel.context"),
    INT(parallel.pp, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E, "number of pipeline stages, each of which holds some of the layers",
        .off = "1", .common = T | Q | E),
    INT(parallel.vpp, "1", 1, LS_MESH_RANKS_MOST, "", STEP | E, "number of virtual stages per rank, for a schedule that has several",
        .off = "1"),
    STRING(parallel.schedule, "auto", STEP,
           "pipeline schedule: auto (1f1b, or interleaved with vpp)" LS_PIPELINE_SCHEDULE_MAP(SCHEDULE_HELP) ", file:PATH", .common = Q,
           .value = "NAME"),
    STRING(parallel.stages, "", STEP, "number of layers of each virtual stage, such as 3,4,4,1; empty: balanced by work",
           .value = "N,N,.."),
    INT(parallel.ep, "1", 1, LS_MESH_RANKS_MOST, "ranks", STEP | E,
        "number of expert-parallel ranks: the experts are sharded over this many of the dp x cp ranks", .off = "1", .common = Q),
    REAL(parallel.receive_factor, "0", 0, 1e6, "", STEP,
         "room for the rows that arrive for the experts of a rank (ep) in training, in multiples of an even load; a step in which more "
         "arrive fails and says how much is needed; 0: room for as many as can arrive",
         .off = "0"),
    INT(parallel.zero, "0", 0, 3, "", STEP | E, "ZeRO stage: 0 none, 1 optimizer state, 2 + gradients, 3 + parameters (FSDP)", .off = "0",
        .common = T | P | Q),
    INT(parallel.replicate, "1", 1, LS_MESH_RANKS_MOST, "", STEP,
        "number of replicas, each sharded over dp / replicate ranks (HSDP, zero 1 to 3)", .off = "1", .common = Q),
    ENUM(parallel.method, "allreduce", "allreduce|dataparallel|server|async", STEP,
         "how gradients become an update: allreduce on all ranks; or a counter-example that keeps the model on rank 0: dataparallel (one "
         "process sends weights and gathers gradients), server (parameter server), async (stale gradients); 'lockstep help ranks'",
         .off = "allreduce", .common = Q),
    BOOL(parallel.async_turns, "false", STEP,
         "with parallel.method=async, rank 0 applies gradients in the order of ranks, so a run repeats; false: as they arrive",
         .off = "false"),
    INT(parallel.reference_steps, "8", 0, COUNT_MOST, "steps", T,
        "steps of parallel.method=allreduce to run first, from the same weights on the same samples, which the report compares with any "
        "other method; 0: none",
        .off = "0"),
    BYTES(parallel.bucket, "25MiB", STEP,
          "bytes of a bucket of gradients, which are reduced together (zero 0 to 2); offloaded optimizer state is loaded by buckets"),
    BYTES(parallel.first_bucket, "1MiB", STEP,
          "bytes of the first bucket that backward completes; small, so that communication starts early (zero 0 to 2)"),
    BOOL(parallel.overlap, "true", STEP, "overlap communication with compute; false: wait for each collective where it starts",
         .off = "false"),
    STRING(parallel.fsdp_unit, "block", STEP,
           "parameters that are gathered and freed together: block (a layer), layers:K (K consecutive layers), model (zero 3)",
           .value = "UNIT"),
    INT(parallel.prefetch, "1", 0, LS_PREFETCH_MOST, "units", STEP,
        "gather this many units ahead of the one in use; 0: each when it is needed; each holds one more unit in memory (zero 3)",
        .off = "0"),
    BOOL(parallel.reshard_after_forward, "true", STEP,
         "free gathered parameters after forward and gather them again for backward (zero 3); false: more memory, a third less traffic",
         .off = "true", .alias = "parallel.keep_gathered", .alias_inverts = true),
    ENUM(parallel.offload_parameters, "none", "none|cpu|file", STEP,
         "where parameters and gradients are kept while no unit (parallel.fsdp_unit) needs them; none: in memory, cpu: in other memory of "
         "the host, file: in a file of the run's folder; read parallel.prefetch units ahead (one rank, or zero 3)",
         .off = "none"),
    BOOL(parallel.unsharded_accumulation, "false", STEP,
         "keep unsharded gradients until the last micro-batch (zero 2, 3): more memory, less traffic", .off = "false",
         .alias = "parallel.accumulate_whole"),
    BOOL(parallel.sync_batch_norm, "true", STEP, "compute batch-norm statistics over all ranks; false: over each rank's own samples",
         .off = "false"),

    ENUM(precision.compute, "auto", "auto|fp32|bf16", STEP | G | E,
         "type of weights and activations; auto: bf16 on a GPU or if kernels use AMX or AVX-512 BF16 (run.isa), else fp32",
         .common = STEP | G | E),
    ENUM(
        precision.grads, "fp32", "fp32|bf16", STEP,
        "type in which gradients are kept; bf16, with bf16 compute: 2 bytes per parameter instead of 4, accumulated over micro-batches and "
        "communicated in bf16 too",
        .off = "fp32", .common = P),
    ENUM(precision.reduce, "fp32", "fp32|bf16", STEP, "type in which fp32 gradients are communicated", .common = Q),
    BOOL(precision.master, "true", STEP, "keep fp32 master weights, which the optimizer updates, in addition to bf16 weights",
         .off = "false", .common = P),
    BOOL(precision.stochastic_rounding, "false", STEP,
         "round updated bf16 weights up or down at random so that small updates are kept in the mean (with precision.master=false)",
         .off = "false"),
    BOOL(precision.tf32, "false", STEP | G | E,
         "allow matmuls of fp32 on a GPU to round their operands to TF32 (10 bits of mantissa), which tensor cores multiply",
         .off = "false"),
    STRING(recompute.mode, "none", STEP, "activations to recompute in backward: none, selective, full, every:K, first:K, budget:SIZE",
           .off = "none", .common = STEP, .value = "MODE"),

    INT(checkpoint.every, "0", 0, COUNT_MOST, "steps", T, "steps between checkpoints; 0: only at the end", .off = "0", .common = T),
    INT(checkpoint.keep, "2", 1, 1e6, "", T, "number of checkpoints to keep; older ones are removed"),
    STRING(checkpoint.resume, "auto", T, "checkpoint to resume from: auto (the run's newest, if there is one), none, or a path",
           .off = "none", .common = T, .value = "auto|none|PATH"),
    STRING(checkpoint.dir, "", T, "folder of the checkpoints; empty: RUN/checkpoints", .value = "FOLDER"),

    INT(launch.ranks, "0", 0, LS_MESH_RANKS_MOST, "ranks", T | P | B | C | E,
        "number of ranks to start on this machine, or to plan for (-n); 0: as many as a launcher started, else one; in plan and parity the "
        "product of the parallel axes",
        .common = T | B | C | E),
    INT(launch.threads, "0", 0, 4096, "", RUNS | C | M | P | D, "number of threads per rank; 0: the rank's share of the cores",
        .common = T | B | M | G),
    REAL(launch.timeout, "60", 0.1, 1e6, "seconds", T | B | C | Q | E,
         "time without progress after which a rank counts as lost: the run ends and names it", .common = C),
    STRING(launch.comm_table, "", T | B | Q, "comm table that 'bench comm --tune' wrote: the algorithm of each collective by size",
           .alias = "launch.choices", .value = "FILE"),
    ENUM(launch.comm, "auto", "auto|nccl|ipc|host", T | B | C | Q | E,
         "library for collectives between GPUs: nccl; ipc: CUDA IPC, memory that ranks of one machine map from each other's GPUs; host: "
         "staged through the host; auto: the first of these that all ranks can use",
         .off = "host"),
    BOOL(launch.share_gpus, "false", T | B | C | Q | E,
         "let ranks share a GPU, each with its part of the memory, if a machine has fewer GPUs than ranks; they then communicate without "
         "NCCL (slow; to try out layouts)",
         .off = "false"),
    BOOL(launch.bind, "true", T | B | C | Q | E, "bind each rank that is started on this machine to its share of the cores", .off = "false",
         .common = C),

    STRING(run.dir, "", T, "folder of the run; empty: a new folder in runs/, named after the time", .common = T, .value = "FOLDER"),
    ENUM(run.device, "auto", "auto" DEVICE_MAP(DEVICE_CHOICE), RUNS | C | M | P,
         "device that holds the tensors and computes; auto: cuda if there is a GPU for each rank, else cpu" DEVICE_MAP(DEVICE_HELP)),
    ENUM(run.isa, "best", "best|any|avx2|avx512|avx512_bf16|amx", RUNS | C | M | P,
         "largest instruction set that kernels may use; best: the fastest, which is not always the largest that the processor has: some "
         "processors multiply pairs of bf16 (avx512_bf16) more slowly than f32",
         .common = B | M),
    STRING(run.library_path, "", RUNS | C | M,
           "colon-separated folders to search first for NCCL, cuBLASLt and cuDNN (run.device=cuda), before the loader's paths, the CUDA "
           "toolkit and the site-packages of Python environments",
           .value = "FOLDERS"),
    BOOL(run.cudnn, "true", RUNS | P,
         "use cuDNN for attention and convolutions if it is installed and has an algorithm for them (run.device=cuda); false: use "
         "lockstep's own kernels",
         .off = "false"),
    BOOL(run.tune_matmuls, "false", RUNS | M,
         "measure which cuBLASLt algorithm is the fastest for each matmul (run.device=cuda) and store the choice in ~/.cache/lockstep for "
         "later runs; false: use the algorithm that the library proposes first",
         .off = "false"),
    ENUM(
        run.cuda_graphs, "auto", "auto|on|off", RUNS,
        "use CUDA graphs: record kernels of the compute stream that need neither the host nor another rank once, then launch them "
        "together; auto: on run.device=cuda unless log.trace or debug.check_finite is on; on: like auto, but an error together with those; "
        "off: launch every kernel by itself",
        .off = "off"),
    ENUM(run.measure_peak, "auto", "auto|again|off", T | B,
         "peak FLOP/s that MFU is relative to; auto: measured once per machine and cached, again: measured anew and cached, off: not "
         "measured, no MFU is shown",
         .off = "off"),
    BYTES(run.memory_limit, "0", RUNS | C | M | P | D,
          "memory limit per rank (of GPU memory, with a rank on a GPU); 0: the rank's share of the free memory", .common = P),

    INT(log.every, "10", 1, COUNT_MOST, "steps", T, "steps between lines of progress if the output is not a terminal"),
    BOOL(log.tensorboard, "true", T, "write TensorBoard events into the run's folder", .off = "false"),
    BOOL(log.trace, "false", T,
         "write RUN/trace.json (trace_step_N.json if resumed after step N), a timeline of every rank for Perfetto or chrome://tracing; on "
         "a GPU each operation is then waited for",
         .off = "false"),
    BOOL(log.per_rank, "false", T, "also write metrics.rank_NNNN.jsonl, the metrics of each rank", .off = "false"),

    INT(bench.steps, "5", 1, 1e6, "steps", B, "number of timed steps", .common = B),
    INT(bench.warmup, "2", 0, 1e6, "steps", B, "number of untimed steps before the timed ones", .off = "0", .common = B),

    BOOL(debug.check_finite, "false", T | B | Q, "check the output of every operation for NaN and infinity, and name the first (slow)",
         .off = "false"),
    ENUM(debug.fault, "none", FAULT_CHOICES, T | Q, "fault to inject, to test that it is detected; 'lockstep help faults' describes each",
         .off = "none", .alias = "debug.plant"),
    STRING(debug.slow, "", T,
           "part of a rank to slow down by MS milliseconds, for tests: compute:RANK:MS, link:RANK:MS[:MB_PER_SECOND], disk:RANK:MS or "
           "loader:RANK:MS; RANK counts from 0, or is all; 'lockstep help faults' describes them",
           .off = "", .value = "PART:RANK:MS"),
    STRING(debug.non_finite, "", T,
           "NaN to inject, for tests, as STEP:RANK:MICRO:NAME; NAME is PARAMETER.grad for its gradient, or PARAMETER for the output of "
           "the first op that reads it; STEP counts from 1, RANK and MICRO from 0",
           .off = "", .value = "STEP:RANK:MICRO:NAME"),
    INT(debug.device_seed, "0", 0, COUNT_MOST, "", RUNS | C, "seed of the order in which run.device=check runs enqueued operations"),
    INT(debug.fail_alloc, "0", 0, COUNT_MOST, "", RUNS | C | M | P, "fail the Nth allocation from now, for tests; 0: none", .off = "0"),
    INT(debug.fail_write, "0", 0, COUNT_MOST, "", T, "fail the Nth write into a checkpoint from now as on a full disk, for tests; 0: none",
        .off = "0"),
};

static const char *const verbs[] = { "train", "plan", "bench train", "generate", "data", "parity", "eval", "bench comm", "bench gemm" };

const struct option_table *config_table(void)
{
    static struct option_table table = { sizeof(struct config), config_rows, COUNT_OF(config_rows), verbs, COUNT_OF(verbs), NULL, 0 };

    if (!table.hints) table.hints = config_hints(&table.hint_count);
    return &table;
}
