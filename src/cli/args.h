/* args.h - a command's arguments: its own flags, options of the table, and plain arguments.
 *
 *   lockstep COMMAND [FLAGS] [--config FILE]... [--section.key=value]... [ARGUMENTS]
 * A flag's value is the next argument, or follows a '='. -n N means launch.ranks=N. Every command accepts -h (short help), --help (complete
 * help), -q and -v; commands that read options also accept --config and --print-config. Arguments after "--" are plain. Of several values
 * of an option the last one wins, but every option on the command line overrides all files.
 */
#ifndef LS_CLI_ARGS_H
#define LS_CLI_ARGS_H

#include <stdbool.h>
#include "comm/comm.h"
#include "train/config/config.h"

enum flag_kind { FLAG_SWITCH, FLAG_INT, FLAG_REAL, FLAG_STRING, FLAG_STRINGS };
enum { ARGUMENTS_MOST = 24, FLAGS_MOST = 48, FLAG_ROOM = 24, STRINGS_MOST = 4 };

/* The values of a flag that may be given more than once, each with the flag as the user wrote it. */
struct flag_strings {
    const char *text[STRINGS_MOST];
    char written[STRINGS_MOST][FLAG_ROOM];
    int count;
};

struct flag {
    const char *name; /* "prompt", without dashes; NULL ends a list */
    enum flag_kind kind;
    void *value;         /* bool *, int64_t *, double *, const char ** or struct flag_strings *; initially the default */
    double least, most;  /* range of FLAG_INT and FLAG_REAL, inclusive */
    const char *metavar; /* placeholder of the value in help texts, "TEXT"; NULL for switches */
    const char *help;
};

/* Other names of a flag, such as -b and --minbytes for --min. */
struct flag_alias {
    char letter;
    const char *name, *of;
}; /* letter 0 or name NULL: no such name; of NULL ends a list */

struct invocation;

struct command {
    const char *name;      /* "train", "data prepare" */
    const char *arguments; /* "TEXT OUT", or "" */
    int least, most;       /* number of plain arguments */
    const char *summary;   /* one line, no full stop */
    unsigned verb;         /* mask of the options that the command reads (config.h); 0: it reads none */
    const char *plain;     /* option that a plain argument after the first `least` sets, as --OPTION=ARGUMENT would; NULL: none */
    bool (*meant)(const char *argument, char *out,
                  size_t room); /* writes the flag that an extra argument was probably meant for; NULL: none */
    const char *n_counts;       /* what -n counts, if not only ranks; NULL: ranks */
    bool dashes;                /* arguments may begin with dashes: `help --zero` */
    bool forwards;              /* options of the table are plain arguments, which the command passes on: `lab d8 --model.layers=4` */
    const struct flag *flags;
    const struct flag_alias *aliases;                /* NULL: none */
    const char *about;                               /* paragraphs of the complete help, each line ends with a line feed; NULL: none */
    const char *examples;                            /* each line ends with a line feed */
    bool several;                                    /* its options describe several configs; only the command itself checks them */
    ls_status (*complete)(struct invocation *in);    /* before any check: sets options that follow from the arguments; NULL: none */
    ls_status (*check)(const struct invocation *in); /* checks the usage; NULL: no further check */
    ls_status (*run)(struct invocation *in);
    ls_status (*launch)(struct invocation *in); /* called instead of run if ranks must be started, see launching.h; NULL: never */
};

struct invocation {
    const struct command *command;
    struct config config; /* filled if the command has a verb */
    struct options options;
    const char *arguments[ARGUMENTS_MOST];
    int count;
    bool quiet, verbose;
    bool short_ranks;                    /* launch.ranks was given as -n N */
    int64_t earlier_ranks;               /* another -n N was given before it; 0: none */
    char written[FLAGS_MOST][FLAG_ROOM]; /* the command's flags as the user wrote them: see args_as_written() */
    bool short_help, long_help, print_config;
    struct world world; /* this process's rank among those that were started */
    int argc;           /* the arguments of the process */
    char *const *argv;
    int words;    /* number of words of argv that name program and command */
    int code;     /* exit code of a launch that failed; 0: the status decides */
    bool refused; /* LS_EINVAL from run is a usage error: see args_refuse() */
};

/* words: number of words of argv that name program and command. Every failure is a usage error. */
ls_status args_parse(const struct command *c, int words, int argc, char *const argv[], struct invocation *out);
void args_close(struct invocation *in);
/* A flag as the user wrote it, for messages: "-b", "--minbytes"; "--min" if it was not given. */
const char *args_as_written(const struct invocation *in, const char *flag);
/* Checks the command's options and applies them to this process (threads, memory limit). Call it before command->check. */
ls_status args_check(struct invocation *in);
/* For errors that a command can only find by opening what its arguments name: LS_EINVAL becomes a usage error. Returns st. */
ls_status args_refuse(struct invocation *in, ls_status st);

extern const struct command *const commands[]; /* ended by NULL */
/* Its rows, in cmd_*.c and help.c. */
extern const struct command command_train, command_plan, command_bench_train, command_bench_gemm, command_bench_comm, command_generate,
    command_data_prepare, command_data_inspect, command_ckpt_inspect, command_ckpt_verify, command_ckpt_export, command_ckpt_import,
    command_help, command_completion, command_parity, command_doctor, command_ckpt_list, command_version, command_eval, command_compare,
    command_sim, command_bench_machine, command_lab, command_learn;

/* help.c: prints pages of help on standard output. */
ls_status help_overview(void);
bool help_group(const char *name); /* lists the commands of a group, such as "ckpt"; false, and prints nothing, if there are none */
/* help_search.c: prints everything that mentions a word: pages (name, summary, text), commands, flags and options. False, and prints
 * nothing, if nothing mentions it. */
struct help_page {
    const char *name, *summary, *text;
};
bool help_search(const char *word, const struct help_page *pages, size_t count);
ls_status help_command(const struct command *c, bool all);
ls_status help_options(unsigned verb, bool all); /* the options used most, with `all` also the others; verb 0: those of all commands */

#endif
