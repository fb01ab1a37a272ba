/* cmd_parity.c - `lockstep parity`: two layouts, each run from one initialisation on the same global batches, and compared.
 *
 * Each side is this command again, started on the ranks that its layout asks for, with --write FILE: it makes the steps and
 * writes what it came to (train/parity.h). Then the files are compared and removed. With --checkpoint the first side saves a
 * checkpoint behind its first step, and the second goes on from there.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/cores.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "train/launch.h"
#include "train/parity.h"

static const char *sides[2], *against;
static struct parity_run own;  /* of --write */
static int64_t steps = 3;
static bool json, checkpoint;

static const struct flag flags[] = {
    { "a", FLAG_STRING, &sides[0], 0, 0, "LAYOUT", "options of one side: \"parallel.dp=1\"" },
    { "b", FLAG_STRING, &sides[1], 0, 0, "LAYOUT", "of the other: \"parallel.dp=4 parallel.zero=3\"" },
    { "steps", FLAG_INT, &steps, 1, 1e6, "N", "steps that each side makes [3]" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print the outcome as JSON" },
    { "checkpoint", FLAG_SWITCH, &checkpoint, 0, 0, NULL, "b goes on from a checkpoint that a saves behind its first step" },
    { "against", FLAG_STRING, &against, 0, 0, "FILE", "hold a against what --write wrote, in place of --b" },
    { "write", FLAG_STRING, &own.path, 0, 0, "FILE", "make the steps in this layout and write what they came to; no comparison" },
    { "save", FLAG_STRING, &own.save, 0, 0, "FOLDER", "with --write: save a checkpoint there behind the first step" },
    { "load", FLAG_STRING, &own.load, 0, 0, "FOLDER", "with --write: go on from the checkpoint there" },
    { 0 },
};

static const char *const common[] = {
    "model.preset",      "data.seq_len",      "train.global_batch", "train.micro_batch", "train.accumulate", "train.seed",
    "optim.name",        "optim.lr",          "precision.compute",  "precision.reduce",  "parallel.dp",      "parallel.zero",
    "parallel.replicate", "parallel.tp",      "parallel.sp",        "parallel.cp",       "parallel.context", "parallel.pp",
    "parallel.schedule", "parallel.ep",       "recompute.mode",   NULL,
};

/* ---- one side ---- */

enum { WORD_BYTES = 64, ADDED = 2 };

struct side {
    char *words, added[ADDED][WORD_BYTES];
    const char **argv;
    int argc, more;
    struct invocation in;
    char *file;  /* what it writes */
    bool parsed;
};

/* argv = the command's name, the shared arguments, then --word for each word of the layout; room for what is added. */
static ls_status compose(const struct invocation *in, const char *layout, struct side *out)
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
        st = ls_fail(LS_EINVAL, "'%s' is no option; a layout is words such as parallel.dp=4 parallel.zero=3", w);
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

static bool is_given(const struct side *s, const char *option)
{
    return strcmp(options_origin(&s->in.options, option), "default") != 0;
}

static void add(struct side *s, const char *option, int64_t value)
{
    snprintf(s->added[s->more], WORD_BYTES, "--%s=%" PRId64, option, value);
    s->argv[s->argc++] = s->added[s->more++];
}

/* A batch norm sees one micro-batch of all ranks, so image models do a step in one unless they are told how. */
static ls_status settle(const struct invocation *in, struct side *s, int64_t global)
{
    ls_image_model image;

    if (global && !is_given(s, "train.global_batch")) add(s, "train.global_batch", global);
    if (config_image(&s->in.config, &image) && !is_given(s, "train.micro_batch") && !is_given(s, "train.accumulate"))
        add(s, "train.accumulate", 1);
    LS_TRY(parse(in, s));
    return args_check(&s->in);
}

static ls_status open_side(const struct invocation *in, int which, struct side *out)
{
    if (!sides[which])
        return ls_fail(LS_EINVAL, "--%c is missing: a layout such as \"parallel.dp=4 parallel.zero=3\"", 'a' + which);
    ls_status st = compose(in, sides[which], out);
    if (st == LS_OK) st = parse(in, out);
    if (st == LS_OK) st = settle(in, out, 0);
    return st == LS_OK ? LS_OK : ls_fail_at(st, "--%c", 'a' + which);
}

/* Of other types a checkpoint is rounded where it is loaded. */
static ls_status check_types(const struct config *a, const struct config *b)
{
    static const char *const names[] = { "auto", "fp32", "bf16" };

    if (a->precision.compute == b->precision.compute && a->precision.master == b->precision.master) return LS_OK;
    return ls_fail(LS_EINVAL, "precision.compute is %s%s in --a and %s%s in --b: behind a --checkpoint bits are compared",
                   names[a->precision.compute], a->precision.master ? "" : " without masters", names[b->precision.compute],
                   b->precision.master ? "" : " without masters");
}

/* A mistake in loading wants something to be loaded. */
static ls_status check_moments(const struct config *a, const struct config *b)
{
    if (a->debug.plant == PLANT_MOMENTS || (b->debug.plant == PLANT_MOMENTS && !checkpoint))
        return ls_fail(LS_EINVAL, "debug.plant=moments does nothing here: it is for --b with --checkpoint, which loads one");
    return LS_OK;
}

/* Both make steps of the same samples: the global batch that one was given, or the larger of what they come to. */
static ls_status open_sides(const struct invocation *in, struct side s[2])
{
    bool given[2];
    int64_t global[2], both;

    if (against) return sides[1] ? ls_fail(LS_EINVAL, "--b and --against: one of them is held against --a") : open_side(in, 0, &s[0]);
    for (int i = 0; i < 2; i++) {
        LS_TRY(open_side(in, i, &s[i]));
        given[i] = is_given(&s[i], "train.global_batch");
        global[i] = s[i].in.config.train.global_batch;
    }
    both = given[0] ? global[0] : given[1] ? global[1] : MAX(global[0], global[1]);
    for (int i = 0; i < 2; i++) {
        ls_status st = given[i] ? LS_OK : settle(in, &s[i], both);

        if (st != LS_OK) return ls_fail_at(st, "--%c", 'a' + i);
    }
    if (global[0] != global[1] && given[0] && given[1])
        return ls_fail(LS_EINVAL,
                       "train.global_batch is %" PRId64 " in --a and %" PRId64
                       " in --b: other samples in a step give another run",
                       global[0], global[1]);
    LS_TRY(check_moments(&s[0].in.config, &s[1].in.config));
    return checkpoint ? check_types(&s[0].in.config, &s[1].in.config) : LS_OK;
}

static void close_side(struct side *s)
{
    if (s->parsed) args_close(&s->in);
    mem_free(s->file);
    mem_free(s->words);
    mem_free(s->argv);
}

static ls_status run_side(struct invocation *in, struct side *s, const char *folder, char which)
{
    const struct config *c = &s->in.config;
    char threads[48], *saved = file_path("%s/saved", folder);
    const char **argv = mem_array(MEM_OTHER, (size_t)s->argc + 7, sizeof *argv);
    int n = 0, ranks = (int)c->launch.ranks;

    s->file = file_path("%s/%c", folder, which);
    if (!argv || !s->file || !saved) {
        mem_free(saved);
        mem_free(argv);
        return LS_ENOMEM;
    }
    snprintf(threads, sizeof threads, "--launch.threads=%d", MAX(1, cores_count() / ranks));
    for (int i = 0; i < in->words; i++) argv[n++] = s->argv[i];
    if (c->launch.threads == 0) argv[n++] = threads;
    argv[n++] = "--write";
    argv[n++] = s->file;
    if (checkpoint) argv[n++] = which == 'a' ? "--save" : "--load";
    if (checkpoint) argv[n++] = saved;
    for (int i = in->words; i < s->argc; i++) argv[n++] = s->argv[i];
    struct launch l = { .ranks = ranks, .argv = (char *const *)argv, .bind = c->launch.bind };
    ls_status st = launch_run(&l, &in->code);
    mem_free(argv);
    mem_free(saved);
    return st == LS_OK && in->code ? LS_EPEER : st;
}

/* ---- what came of it ---- */

/* Rounding of the narrowest type on the way. */
static struct parity_bounds bounds_of(const struct config *a, const struct config *b)
{
    bool half = config_type(a) != LS_F32 || config_type(b) != LS_F32, reduce = a->precision.reduce || b->precision.reduce;
    bool rounded = half && !(a->precision.master && b->precision.master);  /* the weights themselves, in every update */
    int kind = a->optim.name;
    ls_image_model image;
    bool divides = kind == LS_ADAM || kind == LS_ADAMW || kind == LS_LAMB;

    return (struct parity_bounds){
        .loss = half ? 5e-3 : reduce ? 1e-4 : 1e-5, .norm = half ? 5e-3 : reduce ? 2e-3 : 1e-5,
        .gradient = half ? 4e-2 : reduce ? 1e-2 : 1e-5,
        .weight = rounded ? 8e-3 : half || reduce ? 1e-3 : 1e-5, .plain = divides ? 0 : a->optim.lr / (1 - a->optim.momentum),
        .sensitive = divides ? a->optim.lr : 0,
        .later = config_image(a, &image) ? 1e4 : divides ? 10 : 1,
    };
}

static void put_difference(struct json_out *j, const char *key, const struct parity_difference *d)
{
    json_begin_object(j, key);
    json_put_string(j, "kind", parity_kind_name(d->kind));
    json_put_string(j, "direction", parity_direction(d->kind));
    json_put_int(j, "step", (int64_t)d->step);
    json_put_string(j, "name", d->name);
    json_put_int(j, "element", (int64_t)d->element);
    json_put_real(j, "a", d->a);
    json_put_real(j, "b", d->b);
    json_put_real(j, "relative", d->relative);
    json_put_real(j, "allowed", d->allowed);
    json_put_real(j, "ulp", d->ulp);
    json_end_object(j);
}

static ls_status put_json(const struct parity_result *r)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_bool(&j, "equal", r->equal);
    json_put_int(&j, "steps", (int64_t)r->steps);
    json_put_int(&j, "tensors", (int64_t)r->tensors);
    if (checkpoint) json_put_int(&j, "states", (int64_t)r->states);
    json_put_int(&j, "compared", (int64_t)r->compared);
    json_put_int(&j, "same_bits", (int64_t)r->same_bits);
    if (!r->equal) put_difference(&j, "first", &r->first);
    json_begin_object(&j, "largest");
    for (int k = 0; k < PARITY_KINDS; k++)
        if (r->largest[k].relative > 0) put_difference(&j, parity_kind_name((enum parity_kind)k), &r->largest[k]);
    json_end_object(&j);
    json_end_object(&j);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) puts(j.text);
    json_out_free(&j);
    return st;
}

static void put_table(const struct parity_result *r)
{
    if (r->equal)
        printf("%sequal%s: %" PRIu64 " steps, %" PRIu64 " tensors; %" PRIu64 " of %" PRIu64
               " values compared have the same bits\n",
               terminal_style(STYLE_GREEN), terminal_style(STYLE_PLAIN), r->steps, r->tensors, r->same_bits, r->compared);
    if (r->equal && checkpoint) printf("  %" PRIu64 " parameters and optimizer states of the checkpoint have the same bits\n", r->states);
    printf("  %-10s %14s %10s %12s  %s\n", "", "largest error", "of at most", "ulp", "in");
    for (int k = 0; k < (checkpoint ? PARITY_KINDS : PARITY_STATE); k++) {
        const struct parity_difference *d = &r->largest[k];

        if (d->relative > 0)
            printf("  %-10s %14.2e %10.1e %12.0f  %s, step %" PRIu64 "\n", parity_kind_name((enum parity_kind)k),
                   d->relative, d->allowed, d->ulp, d->name, d->step);
        else printf("  %-10s %14s\n", parity_kind_name((enum parity_kind)k), "none");
    }
}

static ls_status report(const struct parity_result *r)
{
    const struct parity_difference *d = &r->first;

    if (json) LS_TRY(put_json(r));
    else put_table(r);
    if (r->equal) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "the layouts differ first in step %" PRIu64 ", %s of '%s' (%s): a %.9g, b %.9g in element %zu, %.2e of "
                   "its scale, %.0f ulp",
                   d->step, parity_kind_name(d->kind), d->name, parity_direction(d->kind), d->a, d->b, d->element,
                   d->relative, d->ulp);
}

/* ---- the command ---- */

static ls_status compare(struct invocation *in, struct side *s, const char *folder)
{
    struct parity_bounds bounds = bounds_of(&s[0].in.config, against ? &s[0].in.config : &s[1].in.config);
    struct parity_result result;

    LS_TRY(run_side(in, &s[0], folder, 'a'));
    if (!against) LS_TRY(run_side(in, &s[1], folder, 'b'));
    LS_TRY(parity_compare(s[0].file, against ? against : s[1].file, &bounds, &result));
    return report(&result);
}

static ls_status run_both(struct invocation *in)
{
    struct side s[2] = { 0 };
    const char *tmp = getenv("TMPDIR");
    char *folder = file_path("%s/lockstep-parity-XXXXXX", tmp ? tmp : "/tmp");
    bool made = false;
    ls_status st = folder ? LS_OK : LS_ENOMEM;

    if (st == LS_OK) st = open_sides(in, s);
    if (st == LS_OK && !(made = mkdtemp(folder))) st = ls_fail(LS_EIO, "%s: cannot make a folder", folder);
    if (st == LS_OK) st = compare(in, s, folder);
    close_side(&s[0]);
    close_side(&s[1]);
    if (made && file_remove_tree(folder) != LS_OK && st == LS_OK) st = LS_EIO;
    mem_free(folder);
    return st;
}

/* What a side keeps in files lies beside what it writes. */
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

static ls_status run(struct invocation *in)
{
    if (!own.path) return run_both(in);
    if (in->world.launcher == LAUNCHER_NONE) LS_TRY(args_check(in));
    return write_side(in);
}

/* Both layouts are looked at before either is run. */
static ls_status check(const struct invocation *in)
{
    struct side s[2] = { 0 };

    if (own.path) return LS_OK;
    if (checkpoint && against) return ls_fail(LS_EINVAL, "--checkpoint is for --b, which goes on from it");
    if (own.save || own.load) return ls_fail(LS_EINVAL, "--%s is for --write", own.save ? "save" : "load");
    if (checkpoint && steps < 2) return ls_fail(LS_EINVAL, "--steps=%" PRId64 " leaves no step behind the --checkpoint", steps);
    if (in->world.launcher != LAUNCHER_NONE)
        return ls_fail(LS_EINVAL, "parity starts the ranks of both layouts itself; it was started by %s",
                       launcher_name(in->world.launcher));
    ls_status st = open_sides(in, s);
    close_side(&s[0]);
    close_side(&s[1]);
    return st;
}

const struct command command_parity = {
    .name = "parity", .arguments = "--a LAYOUT --b LAYOUT",
    .summary = "run two layouts from one start on the same batches and name the first tensor that differs",
    .verb = VERB_PARITY, .flags = flags, .common = common, .several = true, .check = check, .run = run,
    .examples =
        "  lockstep parity --a \"parallel.dp=1\" --b \"parallel.dp=4 parallel.zero=3\"\n"
        "  lockstep parity --a \"\" --b \"parallel.tp=2 parallel.pp=2 parallel.sp\" --precision.compute=fp32 --train.accumulate=4\n"
        "  lockstep parity --a \"parallel.tp=2\" --b \"parallel.dp=2 parallel.zero=3\" --checkpoint --precision.compute=fp32\n"
        "  lockstep parity --a \"train.accumulate=4\" --b \"parallel.dp=2 train.accumulate=2\" --train.global_batch=8 \\\n"
        "                  --model.preset=gpt2-tiny --precision.compute=fp32 --steps 20 --json\n",
};
