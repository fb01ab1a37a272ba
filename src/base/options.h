/* options.h - the one table that drives the parser, checks, help, completion, config files and documentation.
 *
 * A row names an option ("train.steps"), its type, and the field of the caller's struct that holds its value. Values come from the row's
 * default, then from YAML files, then from the command line; later wins, and each value records its origin. A value that is malformed or
 * out of range, an unknown option (with the nearest name), and an option without effect in the current verb are rejected in one line. One
 * file may serve several verbs: an option for another verb is checked and kept if it comes from a file, but rejected on the command line.
 *
 *   static const struct option rows[] = {
 *       OPTION_INT(struct config, train_steps, "train.steps", "1000", 1, 1e9, "steps", TRAIN | PLAN, "steps to take"),
 *       OPTION_ENUM(struct config, optimizer, "optim.name", "adamw", "adamw|sgd", TRAIN, "update rule"),
 *   };
 *   static const struct option_table table = { rows, COUNT_OF(rows), verbs, COUNT_OF(verbs) };
 *
 *   LS_TRY(options_open(&table, &config, TRAIN, &options));       // config now holds the defaults
 *   st = options_load_yaml(&options, "run.yaml");
 *   for (int at = 1; st == LS_OK && at < argc; )
 *       st = options_is_argument(argv[at]) ? options_take_argument(&options, argc, argv, &at) : own_flag(argc, argv, &at);
 *   ...
 *   options_close(&options);                                      // frees the config's strings too
 */
#ifndef LS_BASE_OPTIONS_H
#define LS_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"
#include "lockstep/status.h"

enum option_kind {
    OPTION_KIND_INT,    /* int64_t: digits with a sign */
    OPTION_KIND_REAL,   /* double: 0.1, 3e-4; no NaN, no infinity */
    OPTION_KIND_BOOL,   /* bool: true, false, yes, no, on, off, 1, 0 */
    OPTION_KIND_STRING, /* char *: never NULL, owned by the struct options */
    OPTION_KIND_ENUM,   /* int or an enum: index in `choices` */
    OPTION_KIND_BYTES   /* size_t: a number and B, KB, MB, GB (1000s), KiB, MiB, GiB (1024s), or none */
};

struct option {
    const char *name; /* "section.key"; rows of one section are adjacent */
    enum option_kind kind;
    size_t offset;       /* offset of the value in the caller's struct */
    const char *text;    /* default, as a user would write it */
    double least, most;  /* inclusive limits for INT, REAL, BYTES; equal: no limits */
    const char *choices; /* for ENUM: "adamw|sgd"; else NULL */
    const char *unit;    /* "steps", "seconds"; "" if there is none, and for BYTES */
    unsigned verbs;      /* bit i: verb_names[i] reads it */
    const char *help;    /* one line, no full stop */
    const char *off;     /* value that turns the feature off; NULL: none does */
    unsigned common;     /* the verbs whose help and completion list it first */
    const char *alias;   /* another accepted name, never written; NULL: none */
    bool alias_inverts;  /* for a bool: true under that name is false under the row's */
    const char *was;     /* default of earlier versions, which the config.yaml of their runs has; NULL: no other */
    const char *special; /* a value outside of the limits that is accepted, too: the help says what it means; NULL: none */
    const char *value;   /* for a STRING: what its value is, for the help: "FILE"; NULL: "TEXT" */
};

struct option_note {
    const char *name;
    char text[64];
}; /* a comment for the row in a config file */

/* A name used by other programs, in lower case with '_', the row that it corresponds to, and the value that it implies (NULL: the user's
 * own). */
struct option_hint {
    const char *word, *of, *value;
};

struct option_table {
    size_t bytes; /* size of the caller's struct: options_open() zeroes it, including fields without a row */
    const struct option *rows;
    size_t count;
    const char *const *verb_names; /* "train", ... for bits 0, 1, ... */
    size_t verb_count;
    const struct option_hint *hints; /* for the message about an unknown name; NULL: none */
    size_t hint_count;
};

/* Rows do not compile unless their field has the type that the kind requires. */
#define OPTION_ROW(name_, kind_, offset_, text_, least_, most_, choices_, unit_, verbs_, ...)                                \
    {                                                                                                                        \
        .name = name_, .kind = kind_, .offset = offset_, .text = text_, .least = least_, .most = most_, .choices = choices_, \
        .unit = unit_, .verbs = verbs_, .help = __VA_ARGS__                                                                  \
    }
#define OPTION_FIELD(type, field, c_type) _Generic(((type *)0)->field, c_type : offsetof(type, field))
/* The last argument is the help and optional members: "steps between evaluations", .off = "0", .common = TRAIN */
#define OPTION_INT(type, field, name, text, least, most, unit, verbs, ...) \
    OPTION_ROW(name, OPTION_KIND_INT, OPTION_FIELD(type, field, int64_t), text, least, most, NULL, unit, verbs, __VA_ARGS__)
#define OPTION_REAL(type, field, name, text, least, most, unit, verbs, ...) \
    OPTION_ROW(name, OPTION_KIND_REAL, OPTION_FIELD(type, field, double), text, least, most, NULL, unit, verbs, __VA_ARGS__)
#define OPTION_BYTES(type, field, name, text, least, most, verbs, ...) \
    OPTION_ROW(name, OPTION_KIND_BYTES, OPTION_FIELD(type, field, size_t), text, least, most, NULL, "", verbs, __VA_ARGS__)
#define OPTION_BOOL(type, field, name, text, verbs, ...) \
    OPTION_ROW(name, OPTION_KIND_BOOL, OPTION_FIELD(type, field, bool), text, 0, 0, NULL, "", verbs, __VA_ARGS__)
#define OPTION_STRING(type, field, name, text, verbs, ...) \
    OPTION_ROW(name, OPTION_KIND_STRING, OPTION_FIELD(type, field, char *), text, 0, 0, NULL, "", verbs, __VA_ARGS__)
#define OPTION_ENUM(type, field, name, text, choices, verbs, ...)                                                                          \
    OPTION_ROW(name, OPTION_KIND_ENUM, offsetof(type, field) + 0 * sizeof(char[sizeof(((type *)0)->field) == sizeof(int) ? 1 : -1]), text, \
               0, 0, choices, "", verbs, __VA_ARGS__)

/* State while a config is resolved. Fields are private. */
struct options {
    const struct option_table *table;
    unsigned char *config;
    unsigned verb;  /* one bit of the table's verbs; 0: any verb */
    char **origins; /* [table->count]; NULL: default */
    char **aside;   /* [table->count] the value, as in YAML, that options_set_aside() replaced; NULL: none */
};

/* Fills the caller's struct with the defaults. A default that its own row rejects is a bug (ASSERT). */
ls_status options_open(const struct option_table *table, void *config, unsigned verb, struct options *out);
void options_close(struct options *o); /* frees origins and the config's strings; zeroed is a no-op */

/* Sets one value; where is its origin ("command line", "run.yaml:12"). Nothing changes on failure. */
ls_status options_set(struct options *o, const char *name, const char *text, const char *where);
/* Sets an option to its default for this process only: options_put_yaml_notes() writes the value that it had. */
ls_status options_set_aside(struct options *o, const char *name);
/* True for "--section.key" and "--section.key=value"; the caller handles every other flag. */
bool options_is_argument(const char *argument);
/* Takes argv[*at], and argv[*at + 1] if that is the value, and moves *at past them. A bool that is followed by nothing or by another "--"
 * is true. */
ls_status options_take_argument(struct options *o, int argc, char *const argv[], int *at);
/* Sets the options in a file. See yaml.h for the format. */
ls_status options_load_yaml(struct options *o, const char *path);

/* Options not set in o take value and origin from `from`, which has the same table, whatever verb o is for. */
ls_status options_inherit(struct options *o, const struct options *from, const char *name);
const char *options_origin(const struct options *o, const char *name);             /* "default", "command line", "run.yaml:12" */
int options_choice_of(const char *choices, const char *text);                      /* index of text in "a|b|c", or -1 */
const struct option *options_find(const struct option_table *t, const char *name); /* also by another name; NULL: none */
/* True if the row's field of a config has the value that `text` spells. */
bool options_is(const struct option *row, const void *config, const char *text);
/* Suggests which of a verb's options `name` (without dashes, maybe without a section) was meant to be: writes "parallel.zero=3" into out.
 * value: the value that was given, or NULL. sure: only exact matches of a key or hint. False if there is no suggestion. */
bool options_suggest(const struct option_table *t, unsigned verb, const char *name, const char *value, bool sure, char *out, size_t room);
/* The name of the row whose name or alias is nearest, or NULL when none is near. */
const char *options_nearest(const struct option_table *t, const char *name);

enum options_part { OPTIONS_ALL, OPTIONS_COMMON, OPTIONS_OTHERS };

/* Documents, appended to out (whose failure is sticky). verb 0: rows of all verbs; a row is common if it is so in its first verb. */
bool options_are_common(const struct option *row, unsigned verb);
void options_put_help(const struct option_table *t, unsigned verb, enum options_part part, struct text *out); /* 80 columns */
void options_put_row(const struct option_table *t, const struct option *row, struct text *out); /* full description of one row */
void options_put_value(const struct option *row, const void *config, struct text *out);         /* the value of one row, as in YAML */
void options_put_yaml(const struct options *o, bool with_origins, struct text *out);            /* loads back to the same */
void options_put_yaml_notes(const struct options *o, const struct option_note *notes, size_t count, struct text *out);
void options_put_markdown(const struct option_table *t, struct text *out);             /* one table per section */
void options_put_names(const struct option_table *t, unsigned verb, struct text *out); /* one "--train.steps" per line */

#endif
