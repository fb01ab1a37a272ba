/* config.h - everything that a user can set, in plain structs that are filled from one table of options.
 *
 * config_table() is the table; base/options.h reads arguments and files by it. config_check() checks combinations of options (batch sizes
 * whose product must match, an option that the chosen optimizer does not read) and replaces -1 by the numbers that follow from the other
 * options.
 */
#ifndef LS_TRAIN_CONFIG_CONFIG_H
#define LS_TRAIN_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/options.h"
#include "lockstep/data.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"
#include "lockstep/layout.h"
#include "lockstep/machine.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "train/faults/fault_list.h"

struct task_model; /* task.h */
struct text;

/* Commands that read an option, as masks for the rows of the table. */
enum {
    VERB_TRAIN = 1,
    VERB_PLAN = 2,
    VERB_BENCH = 4 /* bench train */,
    VERB_GENERATE = 8,
    VERB_DATA = 16,
    VERB_PARITY = 32,
    VERB_EVAL = 64,
    VERB_BENCH_COMM = 128,
    VERB_BENCH_GEMM = 256
};

/* "preset" is followed by the choices of a list, in the order of enum ls_architecture, ls_activation, ls_router and ls_drop. */
enum { ARCHITECTURE_PRESET, ARCHITECTURE_FIRST };
enum { ACTIVATION_PRESET, ACTIVATION_FIRST };
enum { ROUTER_PRESET, ROUTER_FIRST };
enum { DROP_PRESET, DROP_FIRST };
enum config_scope { SCOPE_PRESET, SCOPE_SEQUENCE, SCOPE_MICRO_BATCH };
enum config_special { SPECIAL_AUTO, SPECIAL_PARSE, SPECIAL_TEXT };
enum config_switch { SWITCH_PRESET, SWITCH_FALSE, SWITCH_TRUE };
enum config_compute { COMPUTE_AUTO, COMPUTE_FP32, COMPUTE_BF16 };
enum config_cp_method { CP_METHOD_RING, CP_METHOD_ALL_TO_ALL };
enum config_reduce { REDUCE_FP32, REDUCE_BF16 };
enum config_offload { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_FILE };
enum config_isa { CONFIG_ISA_BEST, CONFIG_ISA_ANY, CONFIG_ISA_AVX2, CONFIG_ISA_AVX512, CONFIG_ISA_AVX512_BF16, CONFIG_ISA_AMX };
enum config_clip_by { CLIP_BY_CURRENT, CLIP_BY_PREVIOUS };
enum config_non_finite { NON_FINITE_STOP, NON_FINITE_SKIP };

enum config_cuda_graphs { CUDA_GRAPHS_AUTO, CUDA_GRAPHS_ON, CUDA_GRAPHS_OFF };
enum comm_choice { COMM_AUTO, COMM_NCCL, COMM_IPC, COMM_HOST };

struct config {
    struct {
        char *preset, *hf;
        int architecture; /* ARCHITECTURE_PRESET, or ARCHITECTURE_FIRST + enum ls_architecture */
        int64_t layers, width, heads, kv_heads, head_size, ffn, vocab, max_positions; /* 0: from the preset or folder */
        int tied;                                                                     /* enum config_switch */
        double rope_theta;                                                            /* 0: from the preset */
        int64_t experts, experts_per_token, expert_ffn, shared_ffn;                   /* shared_ffn -1: from the preset */
        int router, drop;                                                             /* as architecture, with enum ls_router and ls_drop */
        int aux_loss_scope;                                                           /* enum config_scope */
        double capacity, aux_loss, z_loss, router_bias_rate;                          /* -1: from the preset */
        int activation;                                                               /* as architecture, with enum ls_activation */
        double dropout, attention_dropout;
    } model;
    struct {
        char *text, *field, *tokens, *tokenizer;
        int special_tokens; /* enum config_special */
        int format;         /* 0: auto, k: row k - 1 of LS_TOKEN_FORMAT_MAP */
        int64_t vocab_size, seq_len;
        double val_fraction;
        bool shuffle;
    } data;
    struct {
        int64_t steps, schedule_steps, global_batch, micro_batch, accumulate; /* -1: derived by config_check() */
        int64_t seed, eval_every, eval_batches;
        bool accumulate_is_derived; /* accumulate was -1; set by config_check() */
        double time_budget;         /* seconds; 0: none */
        int non_finite;             /* enum config_non_finite */
    } train;
    struct {
        int name;     /* ls_optimizer_kind */
        int schedule; /* ls_schedule_kind */
        double lr, min_lr, weight_decay, clip, beta1, beta2, eps, momentum, trust_coefficient;
        bool nesterov, in_backward;
        int clip_by; /* enum config_clip_by */
        int64_t warmup, decay, lr_scale_batch;
        int offload; /* enum config_offload */
    } optim;
    struct {
        int64_t dp, replicate, zero; /* dp -1: derived by config_check() */
        bool dp_is_derived;          /* dp was -1; set by config_check() */
        int64_t tp, tp_chunks, cp, pp, vpp, ep;
        double receive_factor;
        bool sp;
        int cp_method; /* enum config_cp_method */
        char *schedule, *stages, *fsdp_unit;
        int64_t prefetch;
        size_t bucket, first_bucket;
        bool overlap, reshard_after_forward, unsharded_accumulation, sync_batch_norm;
        int offload_parameters; /* enum config_offload */
        int method;             /* ls_method */
        bool async_turns;
        int64_t reference_steps;
    } parallel;
    struct {
        int compute; /* enum config_compute */
        int grads;   /* enum config_reduce */
        int reduce;  /* enum config_reduce */
        bool master, stochastic_rounding, tf32;
        bool automatic; /* compute was auto; set by config_check() */
    } precision;
    struct {
        char *mode;
    } recompute;
    struct {
        int64_t every, keep;
        char *resume, *dir;
    } checkpoint;
    struct {
        int64_t ranks; /* 0: one, or as many as a launcher started; config_ranks() sets the number */
        int64_t threads;
        double timeout;
        bool bind, share_gpus;
        char *comm_table;
        int comm; /* enum comm_choice */
    } launch;
    struct {
        char *dir;
        int isa;              /* enum config_isa */
        int device;           /* 0: auto, k: row k - 1 of DEVICE_MAP */
        int device_chosen;    /* what device resolves to, as such a number; it and the following fields are set by config_choose_device() */
        char device_why[256]; /* why auto means cpu; "": there is no other device in this build, or it was not auto */
        struct device_facts device_facts; /* memory 0: a device without processors of its own */
        int measure_peak;                 /* enum peak_mode (peak.h) */
        char *library_path;
        bool cudnn, tune_matmuls;
        int cuda_graphs; /* enum config_cuda_graphs */
        size_t memory_limit;
    } run;
    struct {
        int64_t every;
        bool tensorboard, trace, per_rank;
    } log;
    struct {
        int64_t steps, warmup;
    } bench;
    struct {
        bool check_finite;
        int64_t device_seed, fail_alloc, fail_write;
        char *non_finite, *slow;
        int fault; /* enum fault */
    } debug;
};

const struct option_table *config_table(void);
const struct option_hint *config_hints(size_t *count); /* option names of other programs and what they correspond to */

/* Sets launch.ranks to the number of ranks that a launcher started, or to the number to start; rejects a launch.ranks that contradicts the
 * launcher. Call it before config_check(). */
struct world;
ls_status config_ranks(struct config *c, unsigned verb, const struct world *world);

/* Rejects options that contradict each other and options without effect. Replaces -1 in global_batch, micro_batch, accumulate, steps,
 * schedule_steps, optim.warmup and optim.decay, and "auto" in precision.compute, by what follows from the other options; what depends on
 * the number of steps stays -1 if train.time_budget leaves that open. verb: the command, whose options are checked. */
ls_status config_check(struct config *c, unsigned verb);
/* As config_check(), for a config that was filled from `given`: an option of a file that has no effect only because of the ranks of this
 * start (parallel.zero of a run's config.yaml on one rank) is reset to its default, so that a run can be resumed under another layout. With
 * `warns`, a line on standard error says so. The same option on the command line is rejected. */
ls_status config_check_given(struct config *c, unsigned verb, struct options *given, bool warns);
/* With train.time_budget, when the number of steps is known: sets it, and what config_check() left open. */
ls_status config_fix_steps(struct config *c, int64_t steps);

/* The parts of config_check() that check ranks and batches (config_layout.c). */
ls_status config_check_ranks(struct config *c);
ls_status config_check_batch(struct config *c);
/* Checks that the model can be trained under the layout (config_fit.c). Call it after the other checks. */
ls_status config_check_fit(const struct config *c);
/* The same for a given model. */
ls_status config_check_layout(const struct config *c, const struct task_model *m);

/* Checks that at most one of data.text and data.tokens is given (exactly one if `needed`), and that tokenizer and model match them. */
ls_status config_check_data(const struct config *c, bool needed);

/* Bytes that one of `local` ranks on a machine may hold: run.memory_limit, or the memory of its GPU, or its share of the machine's
 * free memory. 0: unknown. */
size_t config_memory_limit(const struct config *c, const ls_machine *m, int local);
/* Bytes of the machine's memory that one of them may hold where it computes on a GPU: its share of what is free, a large
 * number if that is unknown. 0: on the processor. */
size_t config_host_limit(const struct config *c, const ls_machine *m, int local);
const struct option *config_check_row_of(const char *name); /* the row of an option that exists */
/* Finds what run.device means in this process, checks that it is there, and takes this rank's processor of it. */
struct world;
ls_status config_choose_device(struct config *c, unsigned verb, const struct world *w);
/* Applies threads, instruction set, memory limit, injected faults and device seed to this process, which is rank w->rank. `plan` itself may
 * use all memory: run.memory_limit applies to the ranks that it plans. */
ls_status config_apply(const struct config *c, unsigned verb, const struct world *w);

/* Parts of a config as the library's structs. */
/* The layout; its strings belong to the config. Fails only if recompute.mode is not a mode or a size does not fit into an int:
 * ls_layout_check() checks everything else. */
ls_status config_layout(const struct config *c, ls_layout *out);
/* Appends the options that turn layout `from` into `to`, for each field that differs: "--launch.ranks=4 --parallel.dp=4". With
 * another number of stages train.accumulate, too, since its default depends on that. */
ls_status config_layout_options(const ls_layout *from, const ls_layout *to, struct text *out);
const char *config_layout_option(int i);                        /* the options that set a field of the layout; NULL past the last */
const struct device *config_device_row(const struct config *c); /* of DEVICE_MAP: its module may not be loaded */
const char *config_device(const struct config *c); /* the device's name in device.h, which config_choose_device() decides for auto */
ls_dtype config_type(const struct config *c);      /* the type of parameters and activations */
ls_optimizer config_optimizer(const struct config *c);
ls_schedule config_schedule(const struct config *c);
const char *config_format(const struct config *c); /* for ls_tokens_open(); NULL: auto */
/* The checked transformer of the preset or Hugging Face folder, modified by model.*. vocab 0: the preset's vocabulary. */
ls_status config_model(const struct config *c, size_t vocab, ls_model *out);
bool config_is_preset(const char *name); /* true for the presets of all tasks (task.h) */
/* Writes the model's sizes into model.*, so that config.yaml holds the actual sizes. */
void config_put_model(struct config *c, const ls_model *m);
/* True if model.hf is a folder with weights, not a config.json. */
bool config_has_weights(const struct config *c);

#endif
