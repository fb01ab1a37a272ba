/* cmd_lab.c - `lockstep lab`: lists the labs, or runs one. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "lab.h"

enum { MOST = 1 << 30 };

/* The sizes of all labs: each lab has some of them. */
#define SIZE_MAP(X)                                                                                \
    X(ranks, "ranks", "ranks")                                                                     \
    X(stages, "stages", "stages of a pipeline")                                                    \
    X(micro_batches, "micro-batches", "micro-batches of a step")                                   \
    X(layers, "layers", "layers of the model")                                                     \
    X(width, "width", "width of the model")                                                        \
    X(heads, "heads", "attention heads")                                                           \
    X(seq_len, "seq-len", "tokens of a sample")                                                    \
    X(batch, "batch", "samples of a batch")                                                        \
    X(global_batch, "global-batch", "samples of a step over all ranks")                            \
    X(tp, "tp", "tensor-parallel ranks")                                                           \
    X(megabytes, "megabytes", "size of a tensor in MB")                                            \
    X(tokens, "tokens", "tokens of a micro-batch")                                                 \
    X(uses, "uses", "uses of one weight")                                                          \
    X(percent, "percent", "factor of a weight, in percent")                                        \
    X(element, "element", "elements of queries and keys")                                          \
    X(inner, "inner", "inner width of a feed-forward block, in widths")                            \
    X(kv_heads, "kv-heads", "heads of keys and values")                                            \
    X(tokens_per_second, "tokens-per-second", "tokens per second on a processor")                  \
    X(teraflops, "teraflops", "peak of a processor, in TFLOP/s")                                   \
    X(billions, "billions", "parameters, in billions")                                             \
    X(memory, "memory", "memory of a GPU, in GB")                                                  \
    X(pp, "pp", "pipeline stages")                                                                 \
    X(dp, "dp", "data-parallel ranks")                                                             \
    X(vocab, "vocab", "tokens of the vocabulary")                                                  \
    X(experts, "experts", "experts of a layer")                                                    \
    X(capacity_percent, "capacity-percent", "capacity of an expert, in percent of its even share") \
    X(scale, "scale", "factor of the loss")                                                        \
    X(exponent_bits, "exponent-bits", "exponent bits of a number format")                          \
    X(serial_percent, "serial-percent", "share of the work that no rank can share")                \
    X(bucket_mb, "bucket-mb", "MB of a bucket of gradients")                                       \
    X(network_gbits, "network-gbits", "Gb/s of a node's network")                                  \
    X(prefetch, "prefetch", "units gathered ahead, at most")                                       \
    X(unit_layers, "unit-layers", "layers of an FSDP unit")                                        \
    X(outputs, "outputs", "outputs of a layer")                                                    \
    X(steps, "steps", "steps of each run")                                                         \
    X(repeats, "repeats", "how often each run is repeated")                                        \
    X(updates, "updates", "updates of each run")

#define SIZE_INDEX(id, name, text) SIZE_##id,
#define SIZE_FLAG(id, name, text)  { name, FLAG_INT, &sizes[SIZE_##id], 1, MOST, "N", text },
enum { SIZE_MAP(SIZE_INDEX) SIZES_COUNT };

static int64_t sizes[SIZES_COUNT]; /* 0: not given */
static bool print_json;

static const struct flag lab_flags[] = {
    { "json", FLAG_SWITCH, &print_json, 0, 0, NULL, "print as JSON, one object per line" },
    SIZE_MAP(SIZE_FLAG){ 0 },
};

struct claim {
    const char *id, *program, *text;
};

#define CLAIM_ROW(id_, program_, text_) { id_, program_, text_ },
static const struct claim claims[] = { LAB_CLAIM_MAP(CLAIM_ROW) };

/* ---- earlier results ---- */

/* A line for each claim: id, verdict, whether some rows could not be measured, date, seconds that its lab took; tabs between. */
static char *history_path(void)
{
    char *folder = file_cache_folder(), *path = folder ? file_path("%s/labs.txt", folder) : NULL;

    mem_free(folder);
    return path;
}

/* Reads the whole file; fails if no lab has been recorded yet. */
static ls_status history_read(char **out)
{
    char *path = history_path();
    size_t bytes;

    *out = NULL;
    ls_status st = path ? file_read(path, out, &bytes) : LS_EIO;
    mem_free(path);
    return st;
}

/* The recorded result of a claim; verdict "": it has not run here. */
struct remembered {
    char verdict[32], date[16];
    int in_part;
    double seconds;
};

static struct remembered history_find(const char *history, const char *id)
{
    struct remembered r = { .seconds = NAN };
    size_t n = strlen(id);

    for (const char *line = history; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, id, n) != 0 || line[n] != '\t') continue;
        if (sscanf(line + n + 1, "%31[^\t\n]\t%d\t%15[^\t\n]\t%lf", r.verdict, &r.in_part, r.date, &r.seconds) != 4) r.verdict[0] = '\0';
    }
    return r;
}

static void put_remembered(struct text *out, const char *id, const struct remembered *r)
{
    if (r->verdict[0]) text_put(out, "%s\t%s\t%d\t%s\t%.2f\n", id, r->verdict, r->in_part, r->date, r->seconds);
}

/* The lines of these claims are replaced. */
static ls_status history_replace(const char *path, const struct lab_result *result, int n, double seconds)
{
    struct text out = { 0 };
    struct remembered now = { .seconds = seconds }, before;
    char *old = NULL;
    time_t t = time(NULL);

    if (file_exists(path)) LS_TRY(file_read(path, &old, NULL));
    strftime(now.date, sizeof now.date, "%Y-%m-%d", localtime(&t));
    for (size_t i = 0; i < COUNT_OF(claims); i++) {
        int k = 0;

        while (k < n && strcmp(result[k].id, claims[i].id) != 0) k++;
        before = history_find(old, claims[i].id);
        if (k < n) {
            snprintf(now.verdict, sizeof now.verdict, "%s", lab_verdict_name(result[k].verdict));
            now.in_part = result[k].in_part;
        }
        put_remembered(&out, claims[i].id, k < n ? &now : &before);
    }
    ls_status st = text_status(&out);
    if (st == LS_OK) st = file_write(path, out.data, out.bytes);
    text_free(&out);
    mem_free(old);
    return st;
}

/* The folder is locked, so that two labs that end at the same time lose no verdict. Failures only cause a warning, because the result of
 * the lab matters more than the record. */
static void history_write(const struct lab_result *result, int n, double seconds)
{
    char *path = history_path(), *folder = file_cache_folder();
    ls_status st = path && folder ? file_make_folders(folder) : LS_EIO;
    int lock = st == LS_OK ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (lock >= 0) flock(lock, LOCK_EX);
    if (st == LS_OK) st = history_replace(path, result, n, seconds);
    if (st != LS_OK) fprintf(stderr, "lockstep lab: the verdict was not recorded: %s\n", ls_errmsg());
    if (lock >= 0) close(lock);
    mem_free(folder);
    mem_free(path);
}

/* ---- the list ---- */

static const struct lab *lab_of_program(const char *name)
{
    for (size_t i = 0; lab_list[i]; i++)
        if (strcmp(lab_list[i]->name, name) == 0) return lab_list[i];
    return NULL;
}

static ls_status put_json_claim(const struct claim *c, const struct remembered *r)
{
    const struct lab *l = lab_of_program(c->program);
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_string(&j, "claim", c->id);
    json_put_string(&j, "program", c->program);
    json_put_string(&j, "title", l->title);
    json_put_string(&j, "text", c->text);
    json_put_string(&j, "verdict", r->verdict);
    json_put_bool(&j, "in_part", r->in_part);
    json_put_string(&j, "date", r->date);
    json_put_real(&j, "seconds", r->seconds);
    json_begin_array(&j, "sizes");
    for (const struct lab_size *s = l->sizes; s->name; s++) {
        json_begin_object(&j, NULL);
        json_put_string(&j, "name", s->name);
        json_put_string(&j, "text", s->text);
        json_put_int(&j, "value", s->value);
        json_put_int(&j, "low", s->low);
        json_put_int(&j, "high", s->high);
        json_end_object(&j);
    }
    json_end_array(&j);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static ls_status put_list(void)
{
    char verdict[64], seconds[16], *history;

    if (history_read(&history) < 0) history = NULL;
    if (!print_json) printf("%-5s%-33s%-9s%s\n", "id", "measured here", "took", "claim");
    for (size_t i = 0; i < COUNT_OF(claims); i++) {
        struct remembered r = history_find(history, claims[i].id);

        if (print_json) LS_TRY(put_json_claim(&claims[i], &r));
        if (print_json) continue;
        snprintf(verdict, sizeof verdict, r.verdict[0] ? "%s%s, %s" : "-", r.verdict, r.in_part ? "*" : "", r.date);
        snprintf(seconds, sizeof seconds, isfinite(r.seconds) ? "%.1f s" : "-", r.seconds);
        printf("%-5s%-33s%-9s%s\n", claims[i].id, verdict, seconds, claims[i].text);
    }
    if (!print_json) printf("\n* in part not measurable here\n'lockstep lab ID' runs one: lockstep lab p2 --stages 8\n");
    mem_free(history);
    return LS_OK;
}

/* ---- running ---- */

/* True if a word names the lab: for p2_bubble "p2_bubble", "p2-bubble", or "bubble". */
static bool names_lab(const char *word, const char *name)
{
    const char *rest = name;

    do {
        size_t i = 0;

        while (word[i] && (word[i] == '-' ? '_' : word[i]) == rest[i]) i++;
        if (!word[i] && !rest[i]) return true;
        rest = strchr(rest, '_') ? strchr(rest, '_') + 1 : rest + strlen(rest);
    } while (*rest);
    return false;
}

/* Finds a lab by the id of a claim, in any case, or by its name. */
static const struct lab *find_lab(const char *word)
{
    for (size_t i = 0; i < COUNT_OF(claims); i++)
        if (strcasecmp(claims[i].id, word) == 0) return lab_of_program(claims[i].program);
    for (size_t i = 0; lab_list[i]; i++)
        if (strcmp(word, lab_list[i]->name) == 0) return lab_list[i];
    for (size_t i = 0; lab_list[i]; i++)
        if (names_lab(word, lab_list[i]->name)) return lab_list[i];
    return NULL;
}

static ls_status fail_no_lab(const char *word)
{
    const char *near = NULL;
    size_t least = 4;

    for (size_t i = 0; lab_list[i]; i++) {
        size_t far = text_distance(word, lab_list[i]->name);

        if (far < least) least = far, near = lab_list[i]->name;
    }
    if (near) return ls_fail(LS_EINVAL, "there is no lab '%s'; did you mean '%s'?", word, near);
    return ls_fail(LS_EINVAL, "there is no lab '%s'; 'lockstep lab' lists them", word);
}

static ls_status fail_no_size(const struct lab *l, const char *name)
{
    struct text has = { 0 };

    for (const struct lab_size *s = l->sizes; s->name; s++) text_put(&has, "%s--%s", has.bytes ? ", " : "", s->name);
    ls_status st = ls_fail(LS_EINVAL, "lab %s has no --%s; it has %s", l->name, name, has.bytes ? has.data : "no sizes");
    text_free(&has);
    return st;
}

/* Reads the arguments other than the lab. */
static const char *options_of(const struct invocation *in, const char *options[ARGUMENTS_MOST + 1])
{
    const char *id = NULL;
    int n = 0;

    for (int i = 0; i < in->count; i++) {
        if (options_is_argument(in->arguments[i]))
            options[n++] = in->arguments[i];
        else
            id = in->arguments[i];
    }
    options[n] = NULL;
    return id;
}

/* True if the section of "--section.key=value" is one of those in a list such as "model data". */
static bool names_section(const char *sections, const char *option)
{
    size_t n = strcspn(option + 2, ".");

    for (; *sections; sections += strcspn(sections, " "), sections += *sections == ' ')
        if (strcspn(sections, " ") == n && memcmp(sections, option + 2, n) == 0) return true;
    return false;
}

/* Checks options that a lab passes on to `train` by the rows of `train`. */
static ls_status lab_check_options(const struct lab *l, const char *const *options)
{
    struct options o;
    struct config config;

    if (!*options) return LS_OK;
    if (!l->options)
        return ls_fail(LS_EINVAL, "lab %s takes no options of train such as %s; 'lockstep help labs' lists those that do", l->name,
                       *options);
    LS_TRY(options_open(config_table(), &config, VERB_TRAIN, &o));
    ls_status st = LS_OK;
    for (; st == LS_OK && *options; options++) {
        if (!strchr(*options, '='))
            st = ls_fail(LS_EINVAL, "lab %s: %s needs a value: %s=VALUE", l->name, *options, *options);
        else if (!names_section(l->options, *options))
            st = ls_fail(LS_EINVAL, "lab %s sets %.*s itself; of train's options it takes the sections %s", l->name,
                         (int)strcspn(*options + 2, "="), *options + 2, l->options);
        else if (strchr(*options, '\''))
            st = ls_fail(LS_EINVAL, "lab %s: %s contains a quotation mark, which the lab cannot pass on; use another path", l->name,
                         *options);
        else
            st = options_take_argument(&o, 1, (char *const[]){ (char *)*options }, &(int){ 0 });
    }
    options_close(&o);
    return st;
}

static struct lab_size *find_size(const struct lab *l, const char *name)
{
    struct lab_size *s = l->sizes;

    while (s->name && strcmp(s->name, name) != 0) s++;
    return s->name ? s : NULL;
}

/* *given: a size was given. A lab about pipelines has one stage per rank, and accepts --ranks for --stages. */
static ls_status set_sizes(const struct lab *l, bool *given)
{
    const struct lab_size *by_ranks = NULL;

    *given = false;
    for (const struct flag *f = lab_flags; f->name; f++) {
        int64_t value = f->kind == FLAG_INT ? *(const int64_t *)f->value : 0;
        struct lab_size *s = find_size(l, f->name);

        if (value == 0) continue;
        if (!s && strcmp(f->name, "ranks") == 0) by_ranks = s = find_size(l, "stages");
        if (!s) return fail_no_size(l, f->name);
        if (s == by_ranks && strcmp(f->name, "ranks") != 0 && value != s->value)
            return ls_fail(LS_EINVAL, "lab %s: a rank has one stage, so --ranks=%ld and --stages=%" PRId64 " contradict each other",
                           l->name, s->value, value);
        if (value < s->low || value > s->high)
            return ls_fail(LS_EINVAL, "lab %s: --%s=%" PRId64 " is out of range: %ld to %ld", l->name, f->name, value, s->low, s->high);
        s->value = (long)value;
        *given = true;
    }
    return LS_OK;
}

static ls_status cmd_lab_check(const struct invocation *in)
{
    const char *options[ARGUMENTS_MOST + 1], *id = options_of(in, options);
    bool given;

    for (int i = 0; i < in->count; i++)
        if (!options_is_argument(in->arguments[i]) && in->arguments[i] != id)
            return ls_fail(LS_EINVAL, "'%s' and '%s': name one lab; options have the form --section.key=value", in->arguments[i], id);
    if (id) {
        const struct lab *l = find_lab(id);

        if (!l) return fail_no_lab(id);
        LS_TRY(lab_check_options(l, options));
        return set_sizes(l, &given);
    }
    if (*options) return ls_fail(LS_EINVAL, "%s is an option of a lab; name one", *options);
    for (const struct flag *f = lab_flags; f->name; f++)
        if (f->kind == FLAG_INT && *(const int64_t *)f->value) return ls_fail(LS_EINVAL, "--%s is a size of a lab; name one", f->name);
    return LS_OK;
}

static ls_status cmd_lab_run(struct invocation *in)
{
    const char *options[ARGUMENTS_MOST + 1], *id = options_of(in, options);
    const struct lab_result *result;
    bool given;

    if (!id) return put_list();
    const struct lab *l = find_lab(id);
    LS_TRY(set_sizes(l, &given));
    double began = base_now();
    int failed = lab_begin(l, options, print_json), n = lab_results(&result);
    fflush(stdout);
    if (!given && !*options && !getenv("LAB_JSON"))
        history_write(result, n, base_now() - began); /* only verdicts for the claimed sizes are recorded, and none of tests */
    return failed ? ls_fail(LS_EFORMAT, "a claim of lab %s does not hold", l->name) : LS_OK;
}

const struct command command_lab = {
    .name = "lab",
    .arguments = "[ID] [--SECTION.KEY=VALUE]...",
    .most = ARGUMENTS_MOST,
    .forwards = true,
    .summary = "measure what people claim about distributed training",
    .flags = lab_flags,
    .check = cmd_lab_check,
    .run = cmd_lab_run,
    .about =
        "Without ID: lists the claims, with the verdicts of labs that have run on this machine, and the seconds that they took.\n"
        "ID is a claim (p2), the name of a lab (p2_bubble), or its end (bubble). A lab prints the claimed number beside the measured\n"
        "one and gives a verdict: holds, corrected (why), not measurable here (what would be needed), does not hold (exit code 1).\n"
        "Sizes differ by lab: 'lockstep help labs' lists them.\n"
        "Labs d8, d9 and f4 can train your own model: they pass options of the sections model, data and optim on to 'lockstep train':\n"
        "--model.preset=gpt2-124m --data.text=book.txt (an image model: --data.text= without a value).\n",
    .examples = "  lockstep lab d8 --ranks 4 --model.layers=6 --model.width=256\n  lockstep lab\n  lockstep lab p2 --stages 8 "
                "--micro-batches 4\n  lockstep lab z2 --json\n",
};
