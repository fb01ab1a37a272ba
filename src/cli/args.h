/* args.h - a command's arguments: its own flags, options of the table, and plain arguments.
 *
 *   lockstep COMMAND [FLAGS] [--config FILE]... [--section.key=value]... [ARGUMENTS]
 * A flag's value follows it or a '='. -n N is launch.ranks=N. Every command knows -h (short help), --help (all of it), -q, -v; those that
 * read options also --config and --print-config. "--" ends flags. Later wins, except that files come before options.
 */
#ifndef LS_CLI_ARGS_H
#define LS_CLI_ARGS_H

#include <stdbool.h>
#include "comm/comm.h"
#include "train/config/config.h"

enum flag_kind { FLAG_SWITCH, FLAG_INT, FLAG_REAL, FLAG_STRING, FLAG_STRINGS };
enum { ARGUMENTS_MOST = 8, FLAGS_MOST = 32, TYPED_ROOM = 24, STRINGS_MOST = 4 };

/* A flag that may be given more than once: every value, each with the flag as written. */
struct flag_strings {
    const char *text[STRINGS_MOST];
    char typed[STRINGS_MOST][TYPED_ROOM];
    int count;
};

struct flag {
    const char *name; /* "prompt", without dashes; NULL ends a list */
    enum flag_kind kind;
    void *value;         /* bool *, int64_t *, double *, const char **, struct flag_strings *; holds the default */
    double least, most;  /* inclusive, of INT and REAL */
    const char *metavar; /* "TEXT"; NULL for switches */
    const char *help;
};

/* Other names of a flag: -b and --minbytes of --min. */
struct flag_alias {
    char letter;
    const char *name, *of;
}; /* letter 0, name NULL: none; of NULL ends a list */

struct invocation;

struct command {
    const char *name;      /* "train", "data prepare" */
    const char *arguments; /* "TEXT OUT", or "" */
    int least, most;       /* plain arguments */
    const char *summary;   /* one line, no full stop */
    unsigned verb;         /* whose options of the table; 0: none */
    const char *plain;     /* option that a plain argument after the first `least` sets, as --OPTION=ARGUMENT would; NULL: none */
    bool (*meant)(const char *argument, char *out, size_t room); /* the flag that an extra argument was probably meant for; NULL: unknown */
    const char *n_counts;                                        /* what -n counts, if that is not only ranks; else NULL */
    bool dashes;                                                 /* arguments may begin with dashes: `help --zero` */
    const struct flag *flags;
    const struct flag_alias *aliases;             /* NULL: none */
    const char *about;                            /* paragraphs of the long help, each line with its own line feed; NULL: none */
    const char *examples;                         /* lines, each with its own line feed */
    bool several;                                 /* its options make more than one config: only the command's check applies */
    ls_status (*complete)(struct invocation *in); /* fills options from what the arguments name, before any check; NULL: nothing to fill */
    ls_status (*check)(const struct invocation *in); /* checks the usage; NULL: no further check */
    ls_status (*run)(struct invocation *in);
    ls_status (*launch)(struct invocation *in); /* called instead of run if launch.ranks must be started: see launching.h;
                                                   NULL: runs alone */
};

struct invocation {
    const struct command *command;
    struct config config; /* of commands with a verb */
    struct options options;
    const char *arguments[ARGUMENTS_MOST];
    int count;
    bool quiet, verbose;
    bool short_ranks;                   /* launch.ranks was written as -n N */
    int64_t earlier_ranks;              /* the last -n N of another number before that; 0: none */
    char typed[FLAGS_MOST][TYPED_ROOM]; /* the command's flags as they were written: see args_typed() */
    bool short_help, long_help, print_config;
    struct world world; /* this process's rank among those that were started */
    int argc;           /* as the process received them */
    char *const *argv;
    int words;    /* of the command's name, argv[0] included */
    int code;     /* of a launch that failed: the exit code to leave with; 0: by the status */
    bool refused; /* set by a command whose run found the arguments impossible: a usage error, see args_refuse() */
};

/* words: number of words of argv that name program and command. Every failure is a usage error. */
ls_status args_parse(const struct command *c, int words, int argc, char *const argv[], struct invocation *out);
void args_close(struct invocation *in);
/* A flag as written, for messages: "-b", "--minbytes"; "--min" if it was not given. */
const char *args_typed(const struct invocation *in, const char *flag);
/* The checks of a command's options, with effect on this process (threads, memory limit); before command->check. */
ls_status args_check(struct invocation *in);
/* For errors that a command can only find by opening what its arguments name: LS_EINVAL then counts as a usage error. Returns st. */
ls_status args_refuse(struct invocation *in, ls_status st);

extern const struct command *const commands[]; /* ended by NULL */

/* help.c: pages, on stdout. */
ls_status help_overview(void);
bool help_group(const char *name); /* of "ckpt ..."; false, and nothing printed, when no command starts so */
/* help_search.c: prints everything that mentions a word: pages (name, summary, text), commands, flags, options. False, and nothing printed,
 * if nothing does. */
struct help_page {
    const char *name, *summary, *text;
};
bool help_search(const char *word, const struct help_page *pages, size_t count);
ls_status help_command(const struct command *c, bool all);
ls_status help_options(unsigned verb, bool all); /* those used most, and with `all` the others; verb 0: of all commands */

#endif
