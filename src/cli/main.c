/* main.c - finds the command, runs it, and turns its status into an exit code.
 *
 *     0  done (also: stopped by a signal, with everything saved)
 *     1  failed
 *     2  usage: unknown or impossible options
 *     3  a peer was lost or did not answer in time; a restart may help
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/args.h"

enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_PEER = 3 };

extern const struct command command_train, command_plan, command_bench_train, command_bench_gemm, command_bench_comm, command_generate,
    command_data_prepare, command_data_inspect, command_ckpt_inspect, command_ckpt_verify, command_ckpt_export, command_ckpt_import,
    command_help, command_completion, command_parity, command_doctor, command_ckpt_list, command_version, command_eval, command_compare,
    command_sim, command_bench_machine, command_lab, command_learn;

const struct command *const commands[] = {
    &command_train,        &command_plan,          &command_compare,      &command_sim,         &command_parity,
    &command_doctor,       &command_generate,      &command_eval,         &command_bench_train, &command_bench_gemm,
    &command_bench_comm,   &command_bench_machine, &command_lab,          &command_learn,       &command_data_prepare,
    &command_data_inspect, &command_ckpt_list,     &command_ckpt_inspect, &command_ckpt_verify, &command_ckpt_export,
    &command_ckpt_import,  &command_help,          &command_completion,   &command_version,     NULL,
};

/* Ranks that another launcher started have the same arguments: on each machine the first of them prints a usage error for all. */
static bool prints_usage = true;

static void find_place(void)
{
    struct world w;

    if (world_find(&w) != LS_OK) return; /* the variables differ by rank: each prints its own error */
    prints_usage = w.launcher == LAUNCHER_NONE || w.launcher == LAUNCHER_OWN || w.local_rank == 0;
}

static int main_fail(const char *name, enum exit_code code)
{
    if (code == EXIT_USAGE && !prints_usage) {
        nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL); /* mpirun kills all ranks when one exits: wait until the first has printed */
        return code;
    }
    fflush(stdout);
    fprintf(stderr, "lockstep%s%s: %s\n", name ? " " : "", name ? name : "", ls_errmsg());
    return code;
}

/* Adds the rank to the message if there are several; our launcher's message already names it. */
static int fail_rank(const struct invocation *in, enum exit_code code)
{
    if (in->code) return main_fail(in->command->name, (enum exit_code)in->code);
    if (in->world.launcher != LAUNCHER_OWN && strncmp(ls_errmsg(), "stopped by rank ", 16) == 0) return code; /* one line is enough */
    if (in->world.size > 1) ls_fail_at(LS_EINVAL, "rank %d", in->world.rank);
    return main_fail(in->command->name, code);
}

/* usage: true if LS_EINVAL and LS_EUNSUPPORTED mean usage errors, as they do before anything runs. A file that cannot be read is not
 * a usage error. */
static enum exit_code exit_code_of(ls_status st, bool usage)
{
    if (st >= 0) return EXIT_DONE;
    if (usage && (st == LS_EINVAL || st == LS_EUNSUPPORTED)) return EXIT_USAGE;
    return st == LS_EPEER || st == LS_ETIMEOUT ? EXIT_PEER : EXIT_FAILED;
}

/* Number of words of the command's name if argv begins with it, 1 or 2; 0 if it does not. */
static int match_words(const struct command *c, int argc, char *const argv[])
{
    const char *space = strchr(c->name, ' ');

    if (!space) return strcmp(c->name, argv[0]) == 0;
    size_t first = (size_t)(space - c->name);
    bool same = argc > 1 && strlen(argv[0]) == first && memcmp(argv[0], c->name, first) == 0 && strcmp(argv[1], space + 1) == 0;
    return same ? 2 : 0;
}

static const char *nearest_command(const char *name)
{
    const char *best = NULL;
    size_t least = MIN((size_t)3, strlen(name) / 2 + 1) + 1;

    for (int i = 0; commands[i]; i++) {
        size_t distance = text_distance(name, commands[i]->name);

        if (distance >= least) continue;
        least = distance;
        best = commands[i]->name;
    }
    return best;
}

/* Commands of other programs, and their equivalents here. */
static const char *command_hint(const char *word)
{
    static const struct {
        const char *words, *says;
    } hints[] = {
        { "|resume|continue|restart|", "'lockstep train --config RUN/config.yaml', which resumes a run" },
        { "|evaluate|validate|test|ppl|perplexity|", "'lockstep eval RUN'" },
        { "|sample|infer|inference|predict|chat|complete|", "'lockstep generate RUN --prompt TEXT'" },
        { "|finetune|fine-tune|tune|", "'lockstep train TEXT --model.hf=FOLDER --data.tokenizer=FOLDER', or 'lockstep bench comm --tune'" },
        { "|tokenize|prepare|preprocess|", "'lockstep data prepare OUT --data.text=TEXT'" },
        { "|inspect|info|show|", "'lockstep ckpt inspect RUN' or 'lockstep data inspect FILE'" },
        { "|list|ls|checkpoint|checkpoints|", "'lockstep ckpt list RUN'" },
        { "|verify|fsck|", "'lockstep ckpt verify RUN'" },
        { "|export|convert|save|", "'lockstep ckpt export RUN --to FOLDER'" },
        { "|import|load|", "'lockstep ckpt import --from FOLDER --to FOLDER'" },
        { "|compare|diff|check|equal|", "'lockstep parity --a LAYOUT --b LAYOUT'" },
        { "|debug|hang|status|ps|top|", "'lockstep doctor RUN'" },
        { "|estimate|memory|dryrun|dry-run|cost|flops|", "'lockstep plan'" },
        { "|run|launch|torchrun|mpirun|srun|deepspeed|accelerate|start|", "'lockstep train -n RANKS TEXT'" },
        { "|nccl|nccl-tests|all_reduce_perf|allreduce|", "'lockstep bench comm -n RANKS'" },
        { "|config|options|settings|", "'lockstep help options', or --print-config in any command" },
        { "|man|docs|", "'lockstep help'" },
        { "|ver|about|build|", "'lockstep version'" },
    };

    if (!word[0] || strchr(word, '|')) return NULL;
    for (size_t i = 0; i < COUNT_OF(hints); i++) {
        for (const char *found = strstr(hints[i].words, word); found; found = strstr(found + 1, word))
            if (found[-1] == '|' && found[strlen(word)] == '|') return hints[i].says;
    }
    return NULL;
}

/* Reports an unknown command, or a group without one of its commands: "ckpt" needs a second word. */
static int fail_command(int argc, char *const argv[])
{
    struct text group = { 0 };
    size_t length = strlen(argv[0]);

    for (int i = 0; commands[i]; i++)
        if (strncmp(commands[i]->name, argv[0], length) == 0 && commands[i]->name[length] == ' ')
            text_put(&group, "%s%s", group.bytes ? ", " : "", commands[i]->name + length + 1);
    const char *near = nearest_command(argv[0]), *hint = command_hint(argv[0]);
    if (group.bytes && argc > 1)
        ls_fail(LS_EINVAL, "'%s' is not a command of '%s'; use one of: %s", argv[1], argv[0], group.data);
    else if (group.bytes)
        ls_fail(LS_EINVAL, "'%s' needs a second word: use one of: %s", argv[0], group.data);
    else if (hint)
        ls_fail(LS_EINVAL, "unknown command '%s'; did you mean %s?", argv[0], hint);
    else if (near)
        ls_fail(LS_EINVAL, "unknown command '%s'; did you mean '%s'?", argv[0], near);
    else
        ls_fail(LS_EINVAL, "unknown command '%s'; see 'lockstep --help'", argv[0]);
    text_free(&group);
    return main_fail(NULL, EXIT_USAGE);
}

static ls_status print_config(const struct invocation *in)
{
    struct text out = { 0 };

    options_put_yaml(&in->options, true, &out);
    ls_status st = text_status(&out);
    if (st == LS_OK) fputs(out.data, stdout);
    text_free(&out);
    return st;
}

/* Checks everything that can be checked before the command runs. */
static ls_status main_check(struct invocation *in)
{
    if (in->command->verb) LS_TRY(world_find(&in->world));
    if (in->command->complete) LS_TRY(in->command->complete(in));
    if (in->command->verb && !(in->command->several && in->world.launcher == LAUNCHER_NONE)) LS_TRY(args_check(in));
    return in->command->check && !in->print_config ? in->command->check(in) : LS_OK;
}

static ls_status act(struct invocation *in)
{
    bool launch = in->command->launch && in->world.launcher == LAUNCHER_NONE && in->config.launch.ranks > 1;

    LS_TRY(in->print_config ? print_config(in) : launch ? in->command->launch(in) : in->command->run(in));
    return fflush(stdout) == 0 ? LS_OK : ls_fail(LS_EIO, "cannot write to standard output");
}

static int main_run(const struct command *c, int words, int argc, char *const argv[])
{
    struct invocation in;
    bool acts = false;

    ls_status st = args_parse(c, words, argc, argv, &in);
    if (st != LS_OK) return main_fail(c->name, st == LS_ENOMEM ? EXIT_FAILED : EXIT_USAGE);
    log_set_console(in.quiet ? LOG_ERROR : in.verbose ? LOG_DEBUG : LOG_WARN);
    bool help = in.short_help || in.long_help;
    st = help ? help_command(c, in.long_help) : main_check(&in);
    if (st == LS_OK && !help) {
        acts = true;
        st = act(&in);
    }
    args_close(&in);
    return st == LS_OK ? EXIT_DONE : fail_rank(&in, exit_code_of(st, !acts || in.refused));
}

static bool is_help(const char *word) { return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0; }

int main(int argc, char *argv[])
{
    signal(SIGXFSZ, SIG_IGN); /* a write beyond ulimit -f fails with EFBIG, which the writer reports */
    find_place();
    if (argc < 2) {
        ls_fail(LS_EINVAL, "nothing to do; see 'lockstep --help'");
        return main_fail(NULL, EXIT_USAGE);
    }
    if (strcmp(argv[1], "--version") == 0) return main_run(&command_version, 2, argc, argv);
    if (is_help(argv[1])) return exit_code_of(help_overview(), false);
    for (int i = 0; commands[i]; i++) {
        int words = match_words(commands[i], argc - 1, argv + 1);

        if (words) return main_run(commands[i], 1 + words, argc, argv);
    }
    if (argc > 2 && is_help(argv[2]) && help_group(argv[1])) return EXIT_DONE;
    return fail_command(argc - 1, argv + 1);
}
