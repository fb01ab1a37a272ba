/* args.c - reads a command's arguments. */
#include "cli/args.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

/* ---- flags ---- */

static const struct flag *find_flag(const struct flag *flags, const char *name, size_t length)
{
    for (const struct flag *f = flags; f && f->name; f++)
        if (strlen(f->name) == length && memcmp(f->name, name, length) == 0) return f;
    return NULL;
}

static const struct flag *find_letter(const struct command *c, char letter)
{
    for (const struct flag_alias *a = c->aliases; a && a->of; a++)
        if (a->letter == letter) return find_flag(c->flags, a->of, strlen(a->of));
    return NULL;
}

static const struct flag *find_name(const struct command *c, const char *name, size_t length)
{
    for (const struct flag_alias *a = c->aliases; a && a->of; a++)
        if (a->name && strlen(a->name) == length && memcmp(a->name, name, length) == 0) return find_flag(c->flags, a->of, strlen(a->of));
    return find_flag(c->flags, name, length);
}

static const char *nearest_flag(const struct flag *flags, const char *name, size_t most)
{
    static const char *const general[] = { "help", "config", "print-config" };
    const char *best = NULL;
    size_t least = MIN(most, strlen(name) / 2 + 1) + 1;

    for (const struct flag *f = flags; f && f->name; f++)
        if (text_distance(name, f->name) < least) {
            least = text_distance(name, f->name);
            best = f->name;
        }
    for (size_t i = 0; i < COUNT_OF(general); i++)
        if (text_distance(name, general[i]) < least) {
            least = text_distance(name, general[i]);
            best = general[i];
        }
    return best;
}

/* True if the user gives the model as a flag, such as --checkpoint runs/book, to a command that takes it as an argument. */
static bool names_model(const struct command *c, const char *name)
{
    static const char *const words[] = {
        "checkpoint",
        "ckpt",
        "load",
        "from",
        "run",
        "model",
        "model-path",
        "model_path",
        "model_name_or_path",
        "checkpoint-path",
        "checkpoint_path",
        "ckpt_path",
        "run_dir",
        "out_dir",
    };

    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcmp(name, words[i]) == 0) return c->least > 0 && strncmp(c->arguments, "MODEL", 5) == 0;
    return false;
}

/* Reports an unknown flag. It may be an option without its section (--steps) or another program's name for one (--batch_size). value: the
 * given value, or NULL. */
static ls_status fail_unknown(const struct command *c, const char *name, const char *value)
{
    const char *near = nearest_flag(c->flags, name, 1);
    char meant[160];

    if (names_model(c, name))
        return ls_fail(LS_EINVAL, "unknown flag '--%s'; the model is an argument without a flag: lockstep %s %s", name, c->name,
                       value ? value : c->arguments);
    if (!near && c->verb && options_suggest(config_table(), c->verb, name, value, true, meant, sizeof meant)) near = meant;
    if (!near) near = nearest_flag(c->flags, name, 3);
    if (!near && c->verb && options_suggest(config_table(), c->verb, name, value, false, meant, sizeof meant)) near = meant;
    if (near) return ls_fail(LS_EINVAL, "unknown flag '--%s'; did you mean '--%s'?", name, near);
    return ls_fail(LS_EINVAL, "unknown flag '--%s'; see 'lockstep %s --help'", name, c->name);
}

/* written: the flag as the user wrote it, "-b" or "--minbytes". */
static ls_status fail_range(const struct flag *f, const char *written, const char *text)
{
    return ls_fail(LS_EINVAL, "%s: %s is out of range: at least %.15g, at most %.15g", written, text, f->least, f->most);
}

static ls_status set_int(const struct flag *f, const char *written, const char *text)
{
    int64_t value;

    if (!text_read_int(text, &value)) return ls_fail(LS_EINVAL, "%s: '%s' is not a whole number", written, text);
    if ((double)value < f->least || (double)value > f->most) return fail_range(f, written, text);
    *(int64_t *)f->value = value;
    return LS_OK;
}

static ls_status set_real(const struct flag *f, const char *written, const char *text)
{
    double value;

    if (!text_read_real(text, &value)) return ls_fail(LS_EINVAL, "%s: '%s' is not a number", written, text);
    if (value < f->least || value > f->most) return fail_range(f, written, text);
    *(double *)f->value = value;
    return LS_OK;
}

static ls_status add_string(const struct flag *f, const char *written, const char *text)
{
    struct flag_strings *s = f->value;

    if (s->count == STRINGS_MOST)
        return ls_fail(LS_EINVAL, "%s %s: --%s can be given at most %d times; leave some out", written, text, f->name, STRINGS_MOST);
    snprintf(s->written[s->count], FLAG_ROOM, "%s", written);
    s->text[s->count++] = text;
    return LS_OK;
}

static ls_status set_flag(struct invocation *in, const struct flag *f, const char *written, const char *text)
{
    snprintf(in->written[f - in->command->flags], FLAG_ROOM, "%s", written);
    switch (f->kind) {
    case FLAG_SWITCH: *(bool *)f->value = true; return LS_OK;
    case FLAG_INT: return set_int(f, written, text);
    case FLAG_REAL: return set_real(f, written, text);
    case FLAG_STRING: *(const char **)f->value = text; return LS_OK;
    case FLAG_STRINGS: return add_string(f, written, text);
    }
    return LS_EINVAL;
}

const char *args_as_written(const struct invocation *in, const char *flag)
{
    const struct flag *f = find_flag(in->command->flags, flag, strlen(flag));

    ASSERT(f);
    return in->written[f - in->command->flags];
}

/* ---- reading arguments in order ---- */

struct reader {
    const struct command *command;
    int argc;
    char *const *argv;
    int at;
};

/* The value of a flag: the text after '=', or the next argument. NULL, with a message, if there is neither. */
static const char *value_of(struct reader *r, const char *name, size_t length)
{
    if (name[length] == '=') return name + length + 1;
    if (r->at + 1 < r->argc) return r->argv[++r->at];
    ls_fail(LS_EINVAL, "--%.*s needs a value", (int)length, name);
    return NULL;
}

/* The same without consuming the next argument; NULL if there is no value. */
static const char *peek_value(const struct reader *r, const char *name, size_t length)
{
    if (name[length] == '=') return name + length + 1;
    return r->at + 1 < r->argc && r->argv[r->at + 1][0] != '-' ? r->argv[r->at + 1] : NULL;
}

static ls_status take_flag(struct reader *r, struct invocation *in, const char *name)
{
    size_t length = strcspn(name, "=");
    const struct flag *f = find_name(r->command, name, length);
    char written[64];

    snprintf(written, sizeof written, "--%.*s", (int)MIN(length, (size_t)60), name);
    if (!f) return fail_unknown(r->command, written + 2, peek_value(r, name, length));
    if (f->kind == FLAG_SWITCH && name[length] == '=') return ls_fail(LS_EINVAL, "%s takes no value", written);
    const char *value = f->kind == FLAG_SWITCH ? "" : value_of(r, name, length);
    return value ? set_flag(in, f, written, value) : LS_EINVAL;
}

/* Reports a flag with one dash instead of two: -lr 0.1, -json. */
static ls_status fail_dash(const struct reader *r, const char *a)
{
    size_t length = strcspn(a + 1, "=");
    char copy[64];

    if (find_flag(r->command->flags, a + 1, length)) return ls_fail(LS_EINVAL, "unknown flag '%s'; did you mean '-%s'?", a, a);
    if (r->command->verb && memchr(a, '.', length)) return ls_fail(LS_EINVAL, "unknown flag '%s'; options have two dashes: '-%s'", a, a);
    snprintf(copy, sizeof copy, "%.*s", (int)MIN(length, (size_t)60), a + 1);
    return fail_unknown(r->command, copy, peek_value(r, a + 1, length));
}

/* Takes a one-letter flag and its value: -b 8 or -b8. */
static ls_status take_letter(struct reader *r, struct invocation *in, const struct flag *f, const char *a)
{
    const char *value = a[2] ? a + 2 : r->at + 1 < r->argc ? r->argv[++r->at] : NULL, written[] = { '-', a[1], '\0' };

    return value ? set_flag(in, f, written, value) : ls_fail(LS_EINVAL, "%s needs a value: --%s %s", written, f->name, f->metavar);
}

/* Takes a flag that all commands accept; false if it is another argument. */
static bool take_general(const char *a, struct invocation *in)
{
    if (strcmp(a, "-h") == 0)
        in->short_help = true;
    else if (strcmp(a, "--help") == 0)
        in->long_help = true;
    else if (strcmp(a, "-q") == 0 || strcmp(a, "--quiet") == 0)
        in->quiet = true;
    else if (strcmp(a, "-v") == 0 || strcmp(a, "--verbose") == 0)
        in->verbose = true;
    else if (strcmp(a, "--print-config") == 0 && in->command->verb)
        in->print_config = true;
    else
        return false;
    return true;
}

static bool is_config(const struct command *c, const char *a)
{
    return c->verb && strncmp(a, "--config", 8) == 0 && (a[8] == '\0' || a[8] == '=');
}

static bool starts_number(const char *text)
{
    text += *text == '-' || *text == '+';
    return *text >= '0' && *text <= '9';
}

/* Takes -n 4 or -n4, which set launch.ranks. */
static ls_status take_ranks(struct reader *r, struct invocation *in)
{
    const char *a = r->argv[r->at] + 2, *value = *a ? a : r->at + 1 < r->argc ? r->argv[r->at + 1] : NULL;
    const char *counts = r->command->n_counts ? r->command->n_counts : "the number of ranks, as in -n 4";
    int64_t before = in->short_ranks ? in->config.launch.ranks : 0;

    if (!value || (*value == '-' && !starts_number(value))) return ls_fail(LS_EINVAL, "-n needs a value: %s", counts);
    if (!starts_number(value)) return ls_fail(LS_EINVAL, "-n: '%s' is not a number; -n needs %s", value, counts);
    r->at += *a == '\0';
    if (options_set(&in->options, "launch.ranks", value, "command line") != LS_OK) return ls_fail_at(LS_EINVAL, "-n");
    if (before && before != in->config.launch.ranks) in->earlier_ranks = before;
    in->short_ranks = true;
    return LS_OK;
}

static bool has_ranks(const struct command *c)
{
    const struct option_table *t = config_table();

    for (size_t i = 0; c->verb && i < t->count; i++)
        if (strcmp(t->rows[i].name, "launch.ranks") == 0) return t->rows[i].verbs & c->verb;
    return false;
}

/* Reports an extra argument: a second text, or something that this command takes as a flag. */
static ls_status fail_plain(const char *a, const struct invocation *in)
{
    const struct command *c = in->command;
    char meant[160];

    if (c->plain && in->count > c->least)
        return ls_fail(LS_EINVAL, "'%s' and '%s': %s takes one; put both into one file, or leave one out", in->arguments[in->count - 1], a,
                       c->plain);
    if (c->meant && c->meant(a, meant, sizeof meant)) return ls_fail(LS_EINVAL, "unexpected argument '%s'; did you mean '%s'?", a, meant);
    return ls_fail(LS_EINVAL, "unexpected argument '%s'; usage: lockstep %s%s%s", a, c->name, c->arguments[0] ? " " : "", c->arguments);
}

static ls_status take_plain(const char *a, struct invocation *in)
{
    if (in->count == in->command->most) return fail_plain(a, in);
    in->arguments[in->count++] = a;
    return LS_OK;
}

static ls_status args_take(struct reader *r, struct invocation *in)
{
    const char *a = r->argv[r->at];

    if (take_general(a, in)) return LS_OK;
    if (is_config(r->command, a)) return value_of(r, a + 2, 6) ? LS_OK : LS_EINVAL; /* load_files() has read it */
    if (r->command->forwards && options_is_argument(a)) return take_plain(a, in);
    if (r->command->verb && options_is_argument(a)) {
        LS_TRY(options_take_argument(&in->options, r->argc, r->argv, &r->at));
        r->at--;
        return LS_OK;
    }
    if (r->command->dashes && a[0] == '-' && !find_name(r->command, a + 2, strlen(a) > 2 ? strlen(a + 2) : 0)) return take_plain(a, in);
    if (strncmp(a, "--", 2) == 0) return take_flag(r, in, a + 2);
    if (strncmp(a, "-n", 2) == 0 && has_ranks(r->command)) return take_ranks(r, in);
    if (a[0] == '-' && a[1] != '-' && a[1] != '\0') {
        const struct flag *letter = find_letter(r->command, a[1]);
        if (letter) return take_letter(r, in, letter, a);
        if (a[2] != '\0') return fail_dash(r, a);
    }
    if (a[0] == '-' && a[1] != '\0') return ls_fail(LS_EINVAL, "unknown flag '%s'; see 'lockstep %s --help'", a, r->command->name);
    return take_plain(a, in);
}

/* The plain argument that sets an option, or NULL. It overrides files; giving the option as well is an error. */
static const char *plain_text(const struct invocation *in)
{
    return in->command->plain && in->count > in->command->least ? in->arguments[in->command->least] : NULL;
}

static ls_status take_option(struct invocation *in)
{
    const char *name = in->command->plain, *text = plain_text(in);

    if (!text) return LS_OK;
    if (strcmp(options_origin(&in->options, name), "command line") == 0)
        return ls_fail(LS_EINVAL, "'%s' and --%s are both given; leave one out", text, name);
    return options_set(&in->options, name, text, "command line");
}

/* Files are read before all other arguments, so that these override them. */
static ls_status load_files(struct reader r, struct invocation *in)
{
    for (r.at = 0; r.at < r.argc && strcmp(r.argv[r.at], "--") != 0; r.at++) {
        if (!is_config(r.command, r.argv[r.at])) continue;
        const char *path = value_of(&r, r.argv[r.at] + 2, 6);
        if (!path) return LS_EINVAL;
        LS_TRY(options_load_yaml(&in->options, path));
    }
    return LS_OK;
}

static ls_status read_all(struct reader r, struct invocation *in)
{
    LS_TRY(load_files(r, in));
    for (; r.at < r.argc && strcmp(r.argv[r.at], "--") != 0; r.at++) LS_TRY(args_take(&r, in));
    for (r.at++; r.at < r.argc; r.at++) LS_TRY(take_plain(r.argv[r.at], in));
    LS_TRY(take_option(in));
    if (in->short_help || in->long_help || in->print_config || in->count >= in->command->least) return LS_OK;
    return ls_fail(LS_EINVAL, "too few arguments; usage: lockstep %s %s", in->command->name, in->command->arguments);
}

ls_status args_parse(const struct command *c, int words, int argc, char *const argv[], struct invocation *out)
{
    *out = (struct invocation){ .command = c, .argc = argc, .argv = argv, .words = words };
    for (size_t i = 0; c->flags && c->flags[i].name; i++) {
        ASSERT(i < FLAGS_MOST && strlen(c->flags[i].name) + 3 <= FLAG_ROOM);
        snprintf(out->written[i], FLAG_ROOM, "--%s", c->flags[i].name);
    }
    if (c->verb) LS_TRY(options_open(config_table(), &out->config, c->verb, &out->options));
    ls_status st = read_all((struct reader){ c, argc - words, argv + words, 0 }, out);
    if (st != LS_OK) args_close(out);
    return st;
}

void args_close(struct invocation *in) { options_close(&in->options); }

static bool args_ends_in(const char *text, const char *end)
{
    return strlen(text) > strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

/* Rejects a data.text that names something else: `train runs/book`, `plan book.yaml`, `plan gpt2-124m`. */
static ls_status check_text(const struct invocation *in)
{
    const char *text = in->config.data.text, *plain = plain_text(in);
    const char *use = in->command->verb == VERB_TRAIN ? "to resume it" : in->command->verb == VERB_PLAN ? "to plan it" : NULL;
    char *config;

    if (file_is_folder(text)) {
        config = file_path("%s/config.yaml", text);
        if (!config) return LS_ENOMEM;
        bool run = file_exists(config);
        ls_status st = run && use ? ls_fail(LS_EINVAL, "%s is a run's folder, not a text; %s: lockstep %s --config %s", text, use,
                                            in->command->name, config)
                                  : ls_fail(LS_EINVAL, "%s is a %sfolder, not a text; name a file", text, run ? "run's " : "");
        mem_free(config);
        return st;
    }
    if (args_ends_in(text, ".yaml")) return ls_fail(LS_EINVAL, "%s is a config, not a text; write --config %s", text, text);
    if (!plain || file_exists(plain)) return LS_OK;
    if (config_is_preset(plain)) return ls_fail(LS_EINVAL, "'%s' is a model, not a text; write --model.preset=%s", plain, plain);
    return ls_fail(LS_EIO, "%s: cannot open: No such file or directory", plain);
}

ls_status args_check(struct invocation *in)
{
    if (in->command->plain) LS_TRY(check_text(in));
    /* A file may be from a run on another number of ranks; the launcher's number takes precedence. */
    if (in->world.launcher != LAUNCHER_NONE && strcmp(options_origin(&in->options, "launch.ranks"), "command line") != 0)
        in->config.launch.ranks = 0;
    LS_TRY(config_ranks(&in->config, in->command->verb, &in->world));
    LS_TRY(config_choose_device(&in->config, in->command->verb, &in->world));
    LS_TRY(config_apply(&in->config, in->command->verb, &in->world));
    bool warns = in->world.launcher == LAUNCHER_NONE || (in->world.launcher != LAUNCHER_OWN && in->world.rank == 0);
    return config_check_given(&in->config, in->command->verb, &in->options, warns);
}

ls_status args_refuse(struct invocation *in, ls_status st)
{
    in->refused = st == LS_EINVAL;
    return st;
}
