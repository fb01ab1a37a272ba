/* launching.c - starts several ranks of a command. */
#include "cli/launching.h"

#include <stdio.h>
#include "base/mem.h"

static size_t length(const char *const *list)
{
    size_t n = 0;

    while (list && list[n]) n++;
    return n;
}

static ls_status launching_start(struct invocation *in, char *const *argv, const char *log_folder, char (*ends)[LAUNCH_END])
{
    struct launch l = {
        .ranks = (int)in->config.launch.ranks,
        .argv = argv,
        .log_folder = log_folder,
        .bind = in->config.launch.bind,
        .timeout = in->config.launch.timeout,
        .saves = in->command->verb == VERB_TRAIN,
        .ends = ends,
    };

    LS_TRY(launch_run(&l, &in->code));
    return in->code ? LS_EPEER : LS_OK;
}

ls_status launching_run(struct invocation *in, const char *log_folder, const char *const *more, char (*ends)[LAUNCH_END])
{
    size_t extra = length(more), n = 0, argc = (size_t)in->argc;
    char **argv = mem_array(MEM_OTHER, argc + extra + 1, sizeof *argv);

    if (!argv) return LS_ENOMEM;
    for (int i = 0; i < in->words; i++) argv[n++] = in->argv[i];
    for (size_t i = 0; i < extra; i++) argv[n++] = (char *)more[i];
    for (size_t i = (size_t)in->words; i < argc; i++) argv[n++] = in->argv[i];
    fflush(stdout);
    ls_status st = launching_start(in, argv, log_folder, ends);
    mem_free(argv);
    return st;
}
