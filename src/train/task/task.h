/* task.h - what a run trains: a kind of model on its kind of data. Each task is one const row, in task_NAME.c.
 *
 * The step, its evaluation, the run, plans, parity and the commands read a row's facts and call its functions; none of them knows which
 * tasks there are, and tools/layers.sh refuses names of tasks outside this folder. A config names its task by model.preset.
 */
#ifndef LS_TRAIN_TASK_TASK_H
#define LS_TRAIN_TASK_TASK_H

#include "base/text.h"
#include "lockstep/layout.h"
#include "lockstep/program.h"
#include "train/run/dataset.h"

struct evaluated;
struct evaluation;
struct feed;
struct micro_batch;
struct parity_chain;
struct step;
struct task;

/* The model that a config or a checkpoint names. The members of other tasks are zero: no layers, no experts, no vocabulary. */
struct task_model {
    const struct task *task;
    ls_model transformer;
    ls_image_model image;
    ls_images drawn; /* the training set of an image model */
};

/* Samples by number, 0 .. count-1; higher numbers are the next epoch's. */
struct task_samples {
    uint64_t count;
    ls_sampler text;
    ls_images drawn;
};

/* The data that weights on disk are evaluated on. */
struct task_saved {
    struct dataset data;
    ls_tokenizer *tokenizer; /* the one beside the weights; NULL: none */
    struct task_samples samples;
};

/* The operands that the loss of every task has: targets [B,T], denominator [1]. */
struct task_inputs {
    ls_value targets, denominator;
    size_t batch, seq_len;
};

/* An option that a task does not read, and why. "model.*": all of them except model.preset. */
struct task_idle {
    const char *name, *because;
};

enum { TASK_VALUE_BYTES = 4, TASK_TEXT = 160 };

struct task {
    const char *name;
    const char *unit, *units, *unit_short; /* what the loss is a mean over, and speed counts: "token", "tokens", "tok" */
    const char *values;                    /* what a sample's input consists of: "tokens", "values"; of TASK_VALUE_BYTES each */
    bool sequences;                        /* a sample has data.seq_len units, each with a target; else it is one unit: T is 1 */
    bool drawn; /* draw() makes the samples of training; else a loader reads tokens of data.text or data.tokens */
    /* The model is a transformer: model.* has its sizes, checkpoints describe it, and every layout is possible. Otherwise the preset's name
     * describes it completely, and only dp may be more than 1. */
    bool transformer;
    bool batch_norm;              /* samples of a micro-batch depend on each other, and the forward pass updates running statistics */
    bool relu;                    /* it has ReLUs, whose gates near zero parity settles (parity_gates.h) */
    bool perplexity;              /* exp(loss) is a perplexity, which is reported */
    bool generates;               /* `lockstep generate` can continue a prompt with it */
    const struct task_idle *idle; /* ends with a zeroed one */

    /* ---- the model ---- */

    const char *(*preset)(int i);           /* NULL past the last */
    void (*list_presets)(struct text *out); /* a table for `lockstep help models` */
    /* Checked. vocab: tokens that the data have; 0: as many as the preset says. */
    ls_status (*model)(const struct config *c, size_t vocab, struct task_model *out);
    /* The model of the weights at `path`. described: the model that the files describe; NULL: they describe none. LS_EFORMAT: it is not a
     * model of this task. */
    ls_status (*saved_model)(const struct config *c, const char *path, const ls_model *described, struct task_model *out);
    size_t (*parameters)(const struct task_model *m);                              /* trainable elements */
    void (*describe)(const struct task_model *m, bool brief, char out[TASK_TEXT]); /* "GPT-2, 4 layers, width 64" */
    /* The lengths of a step's sums, from which parity computes bounds of rounding errors. */
    struct parity_chain (*chain)(const struct task_model *m, double seq_len, double samples);

    /* ---- the step ---- */

    /* Appends the forward pass, which has inputs of its own; returns the loss. */
    ls_value (*loss)(ls_program *p, const struct task_model *m, const struct task_inputs *in, bool training);
    ls_status (*feed)(const struct feed *f, ls_program *p, const struct micro_batch *m); /* writes the inputs of loss() */
    size_t (*sample_values)(const struct task_model *m, size_t seq_len);
    double (*flops)(const struct step *s); /* FLOPs that the model needs for one step on all ranks */
    /* Fills inputs and targets of the step whose samples begin at `first`, without data: with the samples themselves if they are drawn,
     * else with random ones. Targets of rows beyond this rank's share are the caller's. A function of (seed, sample). */
    void (*draw)(struct step *s, uint64_t first);

    /* ---- data ---- */

    ls_status (*open_data)(const struct config *c, const char *saved_tokenizer, struct dataset *out); /* as dataset_open() */
    /* out->count 0: there are no samples for validation. */
    ls_status (*open_samples)(const struct config *c, const struct dataset *d, const struct task_model *m, bool validation,
                              struct task_samples *out);
    ls_status (*get_sample)(const struct task_samples *s, uint64_t index, void *input, int32_t *targets);
    ls_status (*open_saved)(const struct config *c, const char *path, const struct task_model *m, struct task_saved *out);
    ls_status (*evaluated)(const struct task_saved *s, const struct evaluation *e, struct evaluated *out); /* everything except its loss */
};

/* The rows: TASK(NAME) is task_NAME, of task_NAME.c. A config whose preset no other task has uses the first. */
#define TASK_MAP(TASK) \
    TASK(language)     \
    TASK(image)

#define TASK_DECLARE(name) extern const struct task task_##name;
TASK_MAP(TASK_DECLARE)
#undef TASK_DECLARE

const struct task *task_at(int i); /* NULL past the last */
const struct task *task_of(const struct config *c);
const char *task_preset(int i); /* the presets of all tasks, one after another; NULL past the last */
ls_status task_model_of(const struct config *c, size_t vocab, struct task_model *out);
const ls_model *task_transformer(const struct task_model *m);   /* NULL: the model is not a transformer */
struct task_model task_model_of_transformer(const ls_model *m); /* the inverse */
/* ls_layout_check(), with the rules that also concern models that are not transformers. */
ls_status task_check_layout(const struct task_model *m, const ls_layout *l);
size_t task_length(const struct task *t, const struct config *c); /* units of a sample: T */
/* The inputs that all tasks have, and the loss. */
ls_value task_loss(ls_program *p, const struct task_model *m, size_t batch, size_t seq_len, bool training);

#endif
