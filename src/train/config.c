/* config.c - the table of options. What they mean together is in config_check.c. */
#include "train/config.h"

#include "base/base.h"

enum {
    T = VERB_TRAIN, P = VERB_PLAN, B = VERB_BENCH, G = VERB_GENERATE, D = VERB_DATA,
    Q = VERB_PARITY, E = VERB_EVAL,
    STEP = T | P | B | Q,       /* who makes a training step */
    RUNS = T | B | G | Q | E        /* who computes */
};

#define COUNT_MOST 1e15

/* In the order of enum config_plant. */
#define PLANT_NAMES \
    "none|average|skip_bucket|twice|local_norm|boundary|mean_of_means|seed|expert_times_ep|norm_stages|norm_experts|" \
    "tied_unsummed|tp_unsummed|tp_twice|no_enter|no_reduce|no_partial|double_reduce|wrong_group|mask|loss_twice|loss_mean|" \
    "ring_dkv|aux_dropped|aux_times_dp|lost_layers|moments|reroute|expert_group"

#define INT(field, text, least, most, unit, verbs, help)  OPTION_INT(struct config, field, #field, text, least, most, unit, verbs, help)
#define REAL(field, text, least, most, unit, verbs, help) OPTION_REAL(struct config, field, #field, text, least, most, unit, verbs, help)
#define BYTES(field, text, verbs, help)                   OPTION_BYTES(struct config, field, #field, text, 0, 0, verbs, help)
#define BOOL(field, text, verbs, help)                    OPTION_BOOL(struct config, field, #field, text, verbs, help)
#define STRING(field, text, verbs, help)                  OPTION_STRING(struct config, field, #field, text, verbs, help)
#define ENUM(field, text, choices, verbs, help)           OPTION_ENUM(struct config, field, #field, text, choices, verbs, help)

static const struct option rows[] = {
    STRING(model.preset, "llama-demo", STEP, "a model by name; see 'lockstep help models'"),
    STRING(model.hf, "", STEP, "Hugging Face folder (shape, weights) or config.json (shape) instead of a preset"),
    ENUM(model.architecture, "preset", "preset|gpt2|llama|mixtral|qwen3_moe", STEP, "family of the model"),
    INT(model.layers, "0", 0, COUNT_MOST, "", STEP, "blocks; 0 here and below: the preset's"),
    INT(model.width, "0", 0, COUNT_MOST, "", STEP, "channels of the residual stream"),
    INT(model.heads, "0", 0, COUNT_MOST, "", STEP, "query heads; width must divide by them"),
    INT(model.kv_heads, "0", 0, COUNT_MOST, "", STEP, "key and value heads; heads must divide by them"),
    INT(model.ffn, "0", 0, COUNT_MOST, "", STEP, "inner width of the feed-forward part"),
    INT(model.vocab, "0", 0, COUNT_MOST, "tokens", STEP, "rows of the embedding; 0: the tokenizer's"),
    ENUM(model.tied, "preset", "preset|false|true", STEP, "the output projection is the embedding"),
    INT(model.max_positions, "0", 0, COUNT_MOST, "tokens", STEP, "longest sequence the model can see"),
    REAL(model.rope_theta, "0", 0, 1e12, "", STEP, "base of Llama's rotary positions"),
    REAL(model.dropout, "0", 0, 0.99, "", STEP, "share of activations dropped in training (GPT-2)"),

    INT(model.experts, "0", 0, COUNT_MOST, "", STEP, "experts of a layer (Mixtral, Qwen3-MoE)"),
    INT(model.experts_per_token, "0", 0, COUNT_MOST, "", STEP, "experts that a token goes to"),
    INT(model.expert_ffn, "0", 0, COUNT_MOST, "", STEP, "inner width of an expert"),
    INT(model.shared_ffn, "-1", -1, COUNT_MOST, "", STEP, "inner width of the expert that every token takes; 0: none; -1 here and below: the preset's"),
    ENUM(model.router, "preset", "preset|softmax|sigmoid", STEP, "scores that experts are chosen by"),
    REAL(model.capacity, "-1", -1, 1e6, "", STEP, "an expert takes this times its even share of a sample's tokens, and drops the rest; 0: drops none"),
    ENUM(model.drop, "preset", "preset|position|probability", STEP, "which tokens a full expert drops: the last, or those with the smallest scores"),
    REAL(model.aux_loss, "-1", -1, 1e6, "", STEP, "coefficient of the loss that evens the load of the experts"),
    ENUM(model.aux_loss_scope, "preset", "preset|sequence|micro_batch", STEP, "shares and means of aux_loss: over each sequence (independent of "
         "the layout), or over a micro-batch of all data-parallel ranks (depends on dp and accumulation); preset: sequence"),
    REAL(model.z_loss, "-1", -1, 1e6, "", STEP, "coefficient of the loss that keeps the router's logits small"),
    REAL(model.balance, "-1", -1, 1e6, "", STEP, "step of a bias on the scores that evens the load without a loss"),

    STRING(data.text, "", T | P | D | E, "UTF-8 text to train on; .jsonl and .ndjson: one JSON object with a document a line; .gz and .zst behind either"),
    STRING(data.field, "text", T | D | E, "field of a JSON line that holds the document"),
    ENUM(data.special_tokens, "auto", "auto|parse|text", T | D | E, "special tokens spelled out in the text, such as <|endoftext|>: parse them, or "
         "take them as text like any other; auto: parse in plain text, text in JSON lines"),
    STRING(data.tokens, "", T | P | E, "token file to train on, instead of a text"),
    ENUM(data.format, "auto", "auto|llmc|llmc-llama3|nanogpt|megatron", T | D | E, "of the token file"),
    STRING(data.tokenizer, "bytes", T | P | D,
           "bytes, bpe (learnt from the text), tokenizer.json, FILE.tiktoken or a folder; a token file needs none"),
    INT(data.vocab_size, "4096", 257, 1e6, "tokens", T | P | D, "tokens that tokenizer=bpe learns"),
    INT(data.seq_len, "-1", -1, 1e7, "tokens", STEP | E, "tokens per sample; -1: 256, or the model's positions if it has fewer"),
    REAL(data.val_fraction, "0.05", 0, 0.9, "", T | P | E, "share kept for validation, from the end; 0: none"),
    BOOL(data.shuffle, "true", T, "samples in random order, a new one each epoch"),

    INT(train.steps, "1000", 0, COUNT_MOST, "steps", T | P, "updates to make"),
    INT(train.schedule_steps, "-1", -1, COUNT_MOST, "steps", T, "length of the learning-rate schedule; -1: train.steps"),
    INT(train.global_batch, "-1", -1, COUNT_MOST, "samples", STEP, "samples of a step = micro_batch * accumulate * parallel.dp; -1: that product"),
    INT(train.micro_batch, "-1", -1, COUNT_MOST, "samples", STEP | E, "samples that a rank computes at once; -1: the rest, where accumulate is -1 too at most 8"),
    INT(train.accumulate, "-1", -1, COUNT_MOST, "", STEP, "micro-batches of a rank in a step (parallel.accumulate is the same); -1: the rest"),
    INT(train.seed, "1", 0, COUNT_MOST, "", T | B | Q, "of initialisation, order of samples and dropout"),
    ENUM(train.non_finite, "stop", "stop|skip", T, "response to a loss or gradient norm that is NaN or infinite, before the update: stop and name the "
                                                   "first such value, or skip the update with a warning"),
    INT(train.eval_every, "250", 0, COUNT_MOST, "steps", T, "steps between evaluations; 0: only at the end"),
    INT(train.eval_batches, "0", 0, COUNT_MOST, "", T | E, "batches of global_batch samples of an evaluation; 0: all validation samples"),

    ENUM(optim.name, "adamw", "sgd|adam|adamw|lamb|lars", STEP, "update rule"),
    REAL(optim.lr, "1e-3", 0, 1e6, "", T | Q, "peak learning rate"),
    REAL(optim.min_lr, "0", 0, 1e6, "", T, "learning rate at the end of the schedule"),
    INT(optim.warmup, "-1", -1, COUNT_MOST, "steps", T, "steps of linear growth at the start; -1: 50, of a short run half"),
    ENUM(optim.schedule, "cosine", "constant|linear|cosine|wsd", T, "shape of the learning rate after warm-up"),
    INT(optim.decay, "-1", -1, COUNT_MOST, "steps", T, "last steps of schedule=wsd, which fall; -1: a fifth"),
    INT(optim.lr_scale_batch, "0", 0, COUNT_MOST, "samples", T, "lr holds for this batch and grows in proportion; 0: as given"),
    REAL(optim.weight_decay, "0.1", 0, 1e6, "", T | B | Q, "of matrices; norms and biases have none"),
    REAL(optim.clip, "1", 0, 1e15, "", T | B | Q, "largest norm of the whole gradient; 0: no clipping"),
    REAL(optim.beta1, "0.9", 0, 0.999999, "", T | B | Q, "decay of the mean (adam, adamw, lamb)"),
    REAL(optim.beta2, "0.95", 0, 0.999999, "", T | B | Q, "decay of the variance (adam, adamw, lamb)"),
    REAL(optim.eps, "1e-8", 0, 1, "", T | B | Q, "added to the root of the variance (adam, adamw, lamb)"),
    REAL(optim.momentum, "0.9", 0, 0.999999, "", STEP, "of sgd and lars; 0: none, and no state"),
    BOOL(optim.nesterov, "false", T | B | Q, "Nesterov's momentum (sgd)"),
    REAL(optim.trust, "0.001", 0, 1e6, "", T | B | Q, "ratio of update to weights (lars)"),

    ENUM(optim.offload, "none", "none|cpu|file", STEP, "optimizer state between steps: kept here, elsewhere in memory, in a file of the run's folder"),

    INT(parallel.dp, "-1", -1, 65536, "ranks", STEP | E, "ranks that share the samples of a step; -1: the rest of launch.ranks = pp * dp * cp * tp"),
    INT(parallel.tp, "1", 1, 65536, "ranks", STEP | E, "tensor parallel: each layer's heads, inner width and the vocabulary are cut over them"),
    BOOL(parallel.sp, "false", STEP | E, "sequence parallel: norms, dropout and residual on slices of the sequence over tp"),
    INT(parallel.split, "1", 1, 16, "parts", STEP, "products whose sums over tp travel are made in so many parts of their rows, each travels while the next is made"),
    INT(parallel.cp, "1", 1, 65536, "ranks", STEP | E, "context parallel: the sequence is cut over them"),
    ENUM(parallel.context, "ring", "ring|all_to_all", STEP | E, "attention over cp: keys and values go round, or heads are exchanged for tokens"),
    INT(parallel.pp, "1", 1, 65536, "ranks", STEP | E, "pipeline parallel: stages, each with some of the layers"),
    INT(parallel.vpp, "1", 1, 65536, "", STEP | E, "virtual stages of a rank (schedules interleaved and zb-v)"),
    STRING(parallel.schedule, "auto", STEP, "of the pipeline: auto (1f1b; with vpp interleaved), gpipe, 1f1b, interleaved, zb-h1, zb-v, file:PATH"),
    STRING(parallel.stages, "", STEP, "layers of each virtual stage: 3,4,4,1; empty: balanced by work"),
    INT(parallel.ep, "1", 1, 65536, "ranks", STEP | E, "expert parallel: the experts are spread over that many of the dp x cp ranks"),
    INT(parallel.zero, "0", 0, 3, "", STEP | E, "sharded over them: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters"),
    INT(parallel.replicate, "1", 1, 65536, "", STEP, "replicas: shards lie over groups of dp / replicate ranks (zero 1 to 3)"),
    BYTES(parallel.bucket, "25MiB", STEP, "gradients that are reduced together (zero 0 to 2)"),
    BYTES(parallel.first_bucket, "1MiB", STEP, "the bucket that is ready first"),
    BOOL(parallel.overlap, "true", STEP, "communicate while computing; false: wait at once"),
    BOOL(parallel.keep_gathered, "false", STEP, "weights stay whole from forward to backward (zero 3): more memory, a third less traffic"),
    BOOL(parallel.accumulate_whole, "false", STEP, "whole gradients until the last micro-batch (zero 2, 3): more memory, less traffic"),
    BOOL(parallel.sync_batch_norm, "true", STEP, "batch norms use the statistics of all ranks"),

    ENUM(precision.compute, "auto", "auto|fp32|bf16", STEP | G | E, "arithmetic; auto: bf16 where the processor has it, else fp32"),
    ENUM(precision.reduce, "fp32", "fp32|bf16", STEP, "type in which gradients travel"),
    BOOL(precision.master, "true", STEP, "keep fp32 master weights beside bf16 ones"),
    STRING(recompute.mode, "none", STEP, "activations made again in backward: none, selective, full, every:K, budget:SIZE"),

    INT(checkpoint.every, "0", 0, COUNT_MOST, "steps", T, "steps between checkpoints; 0: only at the end"),
    INT(checkpoint.keep, "2", 1, 1e6, "", T, "newest checkpoints kept"),
    STRING(checkpoint.resume, "auto", T, "auto (the newest of the run, if any), none, or a checkpoint's path"),
    STRING(checkpoint.dir, "", T, "where checkpoints go; empty: RUN/checkpoints"),

    INT(launch.ranks, "0", 0, 65536, "ranks", T | P | B | E, "ranks to start on this machine (-n); 0: one, or those that a launcher started"),
    INT(launch.threads, "0", 0, 4096, "", RUNS | P | D, "threads of a rank; 0: its share of the cores"),
    REAL(launch.timeout, "60", 0.1, 1e6, "seconds", T | B | Q | E, "how long a rank may show no progress before the run ends and names it"),
    STRING(launch.choices, "", T | B | Q, "file that 'bench comm --tune' wrote: which algorithm for which size"),
    BOOL(launch.bind, "true", T | B | Q | E, "each rank that is started here keeps to its share of the cores"),

    STRING(run.dir, "", T, "folder of the run; empty: runs/ and the time"),
    ENUM(run.isa, "best", "best|any|avx2|avx512|avx512_bf16|amx", RUNS | P, "most that kernels may use of the processor"),
    ENUM(run.measure_peak, "auto", "auto|again|off", T | B, "peak FLOP/s, which MFU is a share of: auto measures them once per machine and caches them, again replaces what is cached, off shows no MFU"),
    BYTES(run.memory_limit, "0", RUNS | P | D, "most memory that a rank holds; 0: its share of what its machine has free"),

    INT(log.every, "10", 1, COUNT_MOST, "steps", T, "steps between lines where output is no terminal"),
    BOOL(log.tensorboard, "true", T, "write TensorBoard events into the run's folder"),
    BOOL(log.trace, "false", T, "write RUN/trace.json (resumed after step N: trace_step_N.json): what every rank did when, for Perfetto or chrome://tracing"),
    BOOL(log.per_rank, "false", T, "write metrics.rank_NNNN.jsonl too, a file a rank"),

    INT(bench.steps, "5", 1, 1e6, "steps", B, "steps that are timed"),
    INT(bench.warmup, "2", 0, 1e6, "steps", B, "steps before, untimed"),

    BOOL(debug.check_finite, "false", T | B | Q, "look for inf and NaN behind each operation, and name the first (slow)"),
    ENUM(debug.plant, "none", PLANT_NAMES, T | Q,
         "a mistake to make on purpose, for tests of what finds it"),
    STRING(debug.non_finite, "", T, "STEP:RANK:MICRO:NAME makes a value NaN, for tests: the gradient if NAME is PARAMETER.grad, else the output of the "
                                    "first op that reads PARAMETER; counted from 1, 0, 0"),
    INT(debug.fail_alloc, "0", 0, COUNT_MOST, "", RUNS | P, "this many allocations on, one fails as without memory"),
    INT(debug.fail_write, "0", 0, COUNT_MOST, "", T, "this many writes into checkpoints on, one fails as on a full disk"),
};

static const struct option_alias aliases[] = { { "parallel.accumulate", "train.accumulate" } };  /* a pipeline's micro-batches */

static const char *const verbs[] = { "train", "plan", "bench", "generate", "data", "parity", "eval" };

const struct option_table *config_table(void)
{
    static struct option_table table = { rows, COUNT_OF(rows), verbs, COUNT_OF(verbs), aliases, COUNT_OF(aliases), NULL, 0 };

    if (!table.hints) table.hints = config_hints(&table.hint_count);
    return &table;
}
