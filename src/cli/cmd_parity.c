/* cmd_parity.c - `lockstep parity`: compares two layouts that start from the same initialization and train on the same global batches.
 *
 * Each side is a launch of this command with --write FILE on the ranks of its layout. It runs the steps and writes their results
 * (train/parity/parity_file.h). Side b follows a's file (train/parity/parity.h). Then this process compares the files and removes them.
 * With
 * --checkpoint, a saves a checkpoint after its first step and b resumes it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/parity_report.h"
#include "cli/temporary.h"
#include "train/launch/launch.h"
#include "train/parity/parity.h"
#include "train/parity/parity_routes.h"

static const char *sides[2], *against;
static struct parity_run own; /* arguments of --write */
static int64_t steps = 3;
static bool json, checkpoint, drift;

static const struct flag parity_flags[] = {
    { "a", FLAG_STRING, &sides[0], 0, 0, "LAYOUT", "options of one side: \"parallel.dp=1\"" },
    { "b", FLAG_STRING, &sides[1], 0, 0, "LAYOUT", "options of the other side: \"parallel.dp=4 parallel.zero=3\"" },
    { "steps", FLAG_INT, &steps, 1, 1e6, "N", "number of steps of each side [3]" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print the result as JSON" },
    { "checkpoint", FLAG_SWITCH, &checkpoint, 0, 0, NULL, "b resumes a checkpoint that a saves after its first step" },
    { "drift", FLAG_SWITCH, &drift, 0, 0, NULL, "let both sides run freely and print how far apart they are after each step; no verdict" },
    { "against", FLAG_STRING, &against, 0, 0, "FILE",
      "compare a with the results that an earlier --write recorded in FILE, instead of with --b; a follows them" },
    { "write", FLAG_STRING, &own.path, 0, 0, "FILE",
      "run the steps in the layout of the other options and write their results to FILE; no comparison" },
    { "save", FLAG_STRING, &own.save, 0, 0, "FOLDER", "with --write: save a checkpoint there after the first step" },
    { "load", FLAG_STRING, &own.load, 0, 0, "FOLDER", "with --write: resume from the checkpoint there" },
    { "follow", FLAG_STRING, &own.follow, 0, 0, "FILE",
      "with --write: before each step but the first, load the state that an earlier --write recorded in FILE" },
    { 0 },
};

/* ---- one side ---- */

enum { WORD_BYTES = 64, ADDED = 2 };

struct side {
    char *words, added[ADDED][WORD_BYTES];
    const char **argv;
    int argc, more;
    struct invocation in;
    char *file; /* the file that it writes */
    bool parsed;
};

/* argv = the command's name, the shared arguments, then --word for each word of the layout, with room for ADDED more. */
static ls_status compose_arguments(const struct invocation *in, const char *layout, struct side *out)
{
    size_t room = (size_t)in->argc + strlen(layout) + ADDED + 1, bytes = 3 * strlen(layout) + 1;
    char *words = mem_alloc(MEM_OTHER, bytes), *at = words, *copy = mem_strdup(layout), *save = NULL;
    ls_status st = LS_OK;

    out->words = words;
    out->argv = mem_array(MEM_OTHER, room, sizeof *out->argv);
    if (!words || !copy || !out->argv) st = LS_ENOMEM;
    for (int i = 0; st == LS_OK && i < in->argc; i++) out->argv[out->argc++] = in->argv[i];
    for (char *w = st == LS_OK ? strtok_r(copy, " \t\n", &save) : NULL; w; w = strtok_r(NULL, " \t\n", &save)) {
        out->argv[out->argc++] = at;
        at += sprintf(at, "%s%s", strncmp(w, "--", 2) == 0 ? "" : "--", w) + 1;
        if (options_is_argument(out->argv[out->argc - 1])) continue;
        st = ls_fail(LS_EINVAL, "'%s' is not an option; a layout consists of options such as parallel.dp=4 parallel.zero=3", w);
        break;
    }
    mem_free(copy);
    return st;
}

static ls_status parse(const struct invocation *in, struct side *s)
{
    if (s->parsed) args_close(&s->in);
    s->parsed = false;
    LS_TRY(args_parse(in->command, in->words, s->argc, (char *const *)s->argv, &s->in));
    s->parsed = true;
    return LS_OK;
}

static bool is_given(const struct side *s, const char *option) { return strcmp(options_origin(&s->in.options, option), "default") != 0; }

static void cmd_parity_add(struct side *s, const char *option, int64_t value)
{
    snprintf(s->added[s->more], WORD_BYTES, "--%s=%" PRId64, option, value);
    s->argv[s->argc++] = s->added[s->more++];
}

/* Adds the defaults of a side and checks it. A batch norm covers one micro-batch of all ranks, so models with batch norms run a step in one
 * micro-batch by default. global: the global batch; 0: not set. */
static ls_status set_defaults(const struct invocation *in, struct side *s, int64_t global)
{
    if (global && !is_given(s, "train.global_batch")) cmd_parity_add(s, "train.global_batch", global);
    if (task_of(&s->in.config)->batch_norm && !is_given(s, "train.micro_batch") && !is_given(s, "train.accumulate"))
        cmd_parity_add(s, "train.accumulate", 1);
    LS_TRY(parse(in, s));
    return args_check(&s->in);
}

static ls_status open_side(const struct invocation *in, int which, struct side *out)
{
    if (!sides[which]) return ls_fail(LS_EINVAL, "--%c is missing: a layout such as \"parallel.dp=4 parallel.zero=3\"", 'a' + which);
    ls_status st = compose_arguments(in, sides[which], out);
    if (st == LS_OK) st = parse(in, out);
    if (st == LS_OK) st = set_defaults(in, out, 0);
    return st == LS_OK ? LS_OK : ls_fail_at(st, "--%c", 'a' + which);
}

/* With different types, loading a checkpoint rounds it, and its bits cannot be compared. */
static ls_status check_types(const struct config *a, const struct config *b)
{
    static const char *const names[] = { "auto", "fp32", "bf16" };

    if (a->precision.compute == b->precision.compute && a->precision.master == b->precision.master) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "precision.compute is %s%s in --a and %s%s in --b; --checkpoint compares bits and needs the same types on both sides",
                   names[a->precision.compute], a->precision.master ? "" : " without masters", names[b->precision.compute],
                   b->precision.master ? "" : " without masters");
}

/* The fault `moments` is in loading a checkpoint. */
static ls_status check_moments(const struct config *a, const struct config *b)
{
    if (a->debug.fault == FAULT_MOMENTS || (b->debug.fault == FAULT_MOMENTS && !checkpoint))
        return ls_fail(LS_EINVAL, "debug.fault=moments does nothing here: it needs --b with --checkpoint, which loads a checkpoint");
    return LS_OK;
}

/* Makes a copy of c, which owns nothing, with the sizes of the model written over the options that leave them to the preset. */
static ls_status resolve_model(const struct config *c, struct config *out)
{
    struct task_model model;

    *out = *c;
    LS_TRY(task_model_of(c, 0, &model));
    if (model.task->transformer) config_put_model(out, &model.transformer);
    return LS_OK;
}

/* The model is not part of a layout: the results of different models cannot be compared. */
static ls_status check_models(const struct side s[2])
{
    const struct option_table *table = config_table();
    struct config resolved[2];
    ls_status st = LS_OK;

    for (int k = 0; k < 2; k++) LS_TRY(resolve_model(&s[k].in.config, &resolved[k]));
    for (size_t i = 0; i < table->count && st == LS_OK; i++) {
        const struct option *row = &table->rows[i];
        struct text value[2] = { 0 };

        if (strncmp(row->name, "model.", strlen("model.")) != 0) continue;
        for (int k = 0; k < 2 && st == LS_OK; k++) {
            options_put_value(row, &resolved[k], &value[k]);
            st = text_status(&value[k]);
        }
        if (st == LS_OK && strcmp(value[0].data, value[1].data) != 0)
            st = ls_fail(LS_EINVAL, "%s is %s in --a and %s in --b; both sides must train the same model", row->name, value[0].data,
                         value[1].data);
        for (int k = 0; k < 2; k++) text_free(&value[k]);
    }
    return st;
}

/* The data is not part of a layout: different data would be reported as a difference of the layouts. */
static ls_status check_samples(const struct config *a, const struct config *b)
{
    const struct {
        const char *name, *value[2];
    } words[] = { { "data.text", { a->data.text, b->data.text } }, { "data.tokens", { a->data.tokens, b->data.tokens } } };

    if (a->data.seq_len != b->data.seq_len)
        return ls_fail(LS_EINVAL, "data.seq_len is %" PRId64 " in --a and %" PRId64 " in --b; both sides must train on the same samples",
                       a->data.seq_len, b->data.seq_len);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcmp(words[i].value[0], words[i].value[1]) != 0)
            return ls_fail(LS_EINVAL, "%s is '%s' in --a and '%s' in --b; both sides must train on the same samples", words[i].name,
                           words[i].value[0], words[i].value[1]);
    return LS_OK;
}

/* A router loss over a micro-batch of all data-parallel ranks is different if the micro-batches have different samples. */
static ls_status check_scope(const struct config *a, const struct config *b)
{
    int64_t samples[2] = { a->parallel.dp * a->train.micro_batch, b->parallel.dp * b->train.micro_batch };
    struct task_model model; /* of both sides */
    const ls_model *m = &model.transformer;

    LS_TRY(task_model_of(a, 0, &model));
    if (!m->experts || !m->aux_over_micro_batch || m->aux_coef == 0 || samples[0] == samples[1]) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "model.aux_loss_scope=micro_batch makes the loss depend on the samples of a micro-batch on all data-parallel ranks: "
                   "%" PRId64 " in --a, %" PRId64 " in --b; use model.aux_loss_scope=sequence or the same number on both sides",
                   samples[0], samples[1]);
}

/* Both sides use the same samples: the global batch that one side sets, or the larger of the two defaults. */
static ls_status open_sides(const struct invocation *in, struct side s[2])
{
    bool given[2];
    int64_t global[2];

    if (against)
        return sides[1] ? ls_fail(LS_EINVAL, "--b and --against are both given; --a is compared with one of them")
                        : open_side(in, 0, &s[0]);
    for (int i = 0; i < 2; i++) {
        LS_TRY(open_side(in, i, &s[i]));
        given[i] = is_given(&s[i], "train.global_batch");
        global[i] = s[i].in.config.train.global_batch;
    }
    int64_t both = given[0] ? global[0] : given[1] ? global[1] : MAX(global[0], global[1]);
    for (int i = 0; i < 2; i++) {
        ls_status st = given[i] ? LS_OK : set_defaults(in, &s[i], both);

        if (st != LS_OK) return ls_fail_at(st, "--%c", 'a' + i);
    }
    if (global[0] != global[1] && given[0] && given[1])
        return ls_fail(LS_EINVAL,
                       "train.global_batch is %" PRId64 " in --a and %" PRId64
                       " in --b; both sides must train on the same samples in each step",
                       global[0], global[1]);
    LS_TRY(check_models(s));
    LS_TRY(check_samples(&s[0].in.config, &s[1].in.config));
    LS_TRY(check_moments(&s[0].in.config, &s[1].in.config));
    LS_TRY(check_scope(&s[0].in.config, &s[1].in.config));
    return checkpoint ? check_types(&s[0].in.config, &s[1].in.config) : LS_OK;
}

static void close_side(struct side *s)
{
    if (s->parsed) args_close(&s->in);
    mem_free(s->file);
    mem_free(s->words);
    mem_free(s->argv);
}

/* Launches the ranks of a side. follow: the file whose states it loads before each step but its first; NULL: none. */
static ls_status run_side(struct invocation *in, struct side *s, const char *folder, char which, const char *follow)
{
    const struct config *c = &s->in.config;
    char *saved = file_path("%s/saved", folder);
    const char **argv = mem_array(MEM_OTHER, (size_t)s->argc + 7, sizeof *argv);
    int n = 0, ranks = (int)c->launch.ranks;

    s->file = file_path("%s/%c", folder, which);
    if (!argv || !s->file || !saved) {
        mem_free(saved);
        mem_free(argv);
        return LS_ENOMEM;
    }
    for (int i = 0; i < in->words; i++) argv[n++] = s->argv[i];
    argv[n++] = "--write";
    argv[n++] = s->file;
    if (checkpoint) argv[n++] = which == 'a' ? "--save" : "--load";
    if (checkpoint) argv[n++] = saved;
    if (follow && !drift) argv[n++] = "--follow";
    if (follow && !drift) argv[n++] = follow;
    for (int i = in->words; i < s->argc; i++) argv[n++] = s->argv[i];
    struct launch l = { .ranks = ranks, .argv = (char *const *)argv, .bind = c->launch.bind, .timeout = c->launch.timeout };
    ls_status st = launch_run(&l, &in->code);
    mem_free(argv);
    mem_free(saved);
    return st == LS_OK && in->code ? LS_EPEER : st;
}

/* ---- the command ---- */

/* Each step starts from the rounding errors of the previous one: the resulting drift is not an error of either side. */
static ls_status compare_drift(const char *a, const char *b, const struct parity_bounds *bounds)
{
    struct parity_drifts all;
    ls_status st = parity_drift_measure(a, b, bounds, &all);

    if (st == LS_OK) st = parity_report_drift(&all, json);
    parity_drift_close(&all);
    return st;
}

static ls_status cmd_parity_compare(struct invocation *in, struct side *s, const char *folder)
{
    const char *other = against;
    struct parity_bounds bounds;
    struct parity_result result;
    struct parity_rerouted routed;

    LS_TRY(parity_bounds_of(&s[0].in.config, against ? NULL : &s[1].in.config, &bounds));
    LS_TRY(run_side(in, &s[0], folder, 'a', against));
    if (!against) {
        LS_TRY(run_side(in, &s[1], folder, 'b', s[0].file));
        other = s[1].file;
    }
    if (drift) return compare_drift(s[0].file, other, &bounds);
    LS_TRY(parity_compare(s[0].file, other, against != NULL, &bounds, &result));
    if (against)
        LS_TRY(parity_routes_compare(s[0].file, against, (uint64_t)steps, &routed));
    else
        LS_TRY(parity_routes_compare(other, s[0].file, (uint64_t)steps, &routed));
    return parity_report(&result, &routed, checkpoint, json);
}

static ls_status run_both(struct invocation *in)
{
    struct side s[2] = { 0 };
    struct temporary folder = { 0 };
    ls_status st = open_sides(in, s);

    if (st == LS_OK) st = temporary_open("lockstep-parity", &folder);
    if (st == LS_OK) st = cmd_parity_compare(in, s, folder.path);
    close_side(&s[0]);
    close_side(&s[1]);
    if (temporary_close(&folder) != LS_OK && st == LS_OK) st = LS_EIO;
    return st;
}

/* Runs one side (--write). The files of its run are in the folder of its output. */
static ls_status write_side(struct invocation *in)
{
    struct config c = in->config;
    char *folder = mem_strdup(own.path), *slash = folder ? strrchr(folder, '/') : NULL;
    struct ranks ranks;
    ls_status st = folder ? LS_OK : LS_ENOMEM;

    if (slash) *slash = '\0';
    if (slash) c.run.dir = folder;
    if (st == LS_OK) st = ranks_open(&c, &ranks);
    if (st == LS_OK) {
        own.steps = (uint64_t)steps;
        st = parity_write(&c, &ranks, &own);
        ranks_close(&ranks);
    }
    mem_free(folder);
    return st;
}

static ls_status cmd_parity_run(struct invocation *in)
{
    if (!own.path) return run_both(in);
    if (in->world.launcher == LAUNCHER_NONE) LS_TRY(args_check(in));
    return write_side(in);
}

/* --write runs one side. The flags of a side that run_side() launched are the whole command's. */
static ls_status check_write(const struct invocation *in)
{
    const char *layout = sides[0] ? "a" : sides[1] ? "b" : NULL;
    const char *other = against ? "against" : checkpoint ? "checkpoint" : drift ? "drift" : json ? "json" : NULL;

    if (in->world.launcher == LAUNCHER_OWN) return LS_OK;
    if (layout)
        return ls_fail(LS_EINVAL, "--%s does not apply to --write, which runs one side: give its layout as options (--parallel.dp=2)",
                       layout);
    return other ? ls_fail(LS_EINVAL, "--%s does not apply to --write, which compares nothing; leave it out", other) : LS_OK;
}

/* Checks both layouts before either is run. */
static ls_status cmd_parity_check(const struct invocation *in)
{
    struct side s[2] = { 0 };

    if (own.path) return check_write(in);
    if (checkpoint && against) return ls_fail(LS_EINVAL, "--checkpoint needs --b, which resumes from the checkpoint");
    if (own.save || own.load || own.follow)
        return ls_fail(LS_EINVAL, "--%s applies only to --write", own.save ? "save" : own.load ? "load" : "follow");
    if (checkpoint && steps < 2)
        return ls_fail(LS_EINVAL, "--steps=%" PRId64 " leaves no step after the --checkpoint; use 2 or more", steps);
    if (in->world.launcher != LAUNCHER_NONE)
        return ls_fail(LS_EINVAL, "parity starts the ranks of both layouts itself, but it was started by %s; start one process",
                       launcher_name(in->world.launcher));
    ls_status st = open_sides(in, s);
    close_side(&s[0]);
    close_side(&s[1]);
    return st;
}

const struct command command_parity = {
    .name = "parity",
    .arguments = "--a LAYOUT --b LAYOUT",
    .summary = "run two layouts from the same weights on the same batches and name the first tensor that differs",
    .verb = VERB_PARITY,
    .flags = parity_flags,
    .several = true,
    .check = cmd_parity_check,
    .run = cmd_parity_run,
    .about =
        "Side a runs its steps and records their results. Side b loads a's parameters and optimizer state before each of its steps but\n"
        "the first. So every step is compared separately: gradients are computed from equal weights, and updates from equal moments.\n"
        "These values are compared:\n"
        "  start      parameters and optimizer states before the first step, initialized or loaded with --checkpoint: bitwise equal\n"
        "  loss, gradient   equal up to rounding: the bound is derived from the lengths of the model's sums (tokens, width, ffn, vocab,\n"
        "             layers) and the types of compute and reduction. A gradient has a bound on its root mean square error and one on\n"
        "             its largest error. The bounds are smaller for layouts that differ only in how they distribute micro-batches of\n"
        "             equal size: give --a the train.micro_batch of --b, and both sides the same --launch.threads\n"
        "  norm       each side's gradient norm equals the norm of its own gradients\n"
        "  weight, state    each side's new weights and optimizer states equal what the optimizer's rule, computed in double, makes of\n"
        "             the previous state and the side's own gradient, up to a few units in the last place\n"
        "  copies     values that several ranks hold are bitwise equal\n"
        "The command names the first difference and exits with code 1. If rounding flips the sign of a ReLU's input, b uses a's sign;\n"
        "such inputs are counted.\n"
        "\n"
        "With --drift both sides run freely, and the command prints how far apart they are in each step. Rounding errors grow there with\n"
        "the model's own sensitivity, so there is no verdict and the exit code is 0. A tensor's drift is the root mean square of its\n"
        "difference, relative to its own root mean square or, if that is smaller, to a quarter of the root mean square of all gradients\n"
        "(gradients) or to the root mean square of all parameters (weights). Tensors whose gradients in the first step differ by\n"
        "half of themselves, because they are only rounding, such as those of GPT-2's key biases, which softmax ignores, are left out:\n"
        "the last line counts them, --json lists them.\n",
    .examples = "  lockstep parity --a \"parallel.dp=1\" --b \"parallel.dp=4 parallel.zero=3\"\n"
                "  lockstep parity --a \"\" --b \"parallel.tp=2 parallel.pp=2 parallel.sp\" --precision.compute=fp32 --train.accumulate=4\n"
                "  lockstep parity --a \"parallel.tp=2\" --b \"parallel.dp=2 parallel.zero=3\" --checkpoint --precision.compute=fp32\n"
                "  lockstep parity --a \"train.accumulate=4\" --b \"parallel.dp=2 train.accumulate=2\" --train.global_batch=8 \\\n"
                "                  --model.preset=gpt2-tiny --precision.compute=fp32 --steps 20 --json\n"
                "  lockstep parity --a \"\" --b \"parallel.tp=2\" --steps 50 --drift\n",
};
