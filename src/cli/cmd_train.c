/* cmd_train.c - `lockstep train`. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/file.h"
#include "base/mem.h"
#include "cli/launching.h"
#include "cli/print_sample.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/terminal.h"

enum { SAMPLE_TOKENS = 120 };
static const struct sampling sampling = { .temperature = 0.7, .top_k = 0, .top_p = 0.9, .seed = 1 };

static const char *prompt;

static const struct flag train_flags[] = {
    { "sample", FLAG_STRING, &prompt, 0, 0, "TEXT", "after training, print a text that begins with TEXT and that the model continues" },
    { 0 },
};

/* Prints a sample from the checkpoint at `path`, as `lockstep generate` would. The trainer is closed by then, so that the memory of a
 * training step is enough. */
static ls_status put_sample(const struct config *c, const char *path)
{
    struct trained trained = { 0 };
    int32_t *ids = NULL;
    size_t n;

    ls_status st = trained_open(path, config_device(c), config_type(c), NULL, &trained);
    if (st == LS_OK) st = print_encode(&trained, prompt, &ids, &n);
    if (st == LS_OK) {
        printf("\n%s", terminal_style(STYLE_CYAN));
        size_t most = trained.model.max_positions > n ? trained.model.max_positions - n : 0;
        st = print_sample(&trained, ids, n, most < SAMPLE_TOKENS ? most : SAMPLE_TOKENS, &sampling);
        printf("%s", terminal_style(STYLE_PLAIN));
    }
    mem_free(ids);
    trained_close(&trained);
    return st;
}

/* *sampled: the checkpoint to print a sample from; NULL: none is to be printed by this rank. */
static ls_status train(struct trainer *t, bool quiet, char **sampled)
{
    bool first = t->ranks.rank == 0;
    struct progress progress;
    struct trainer_watch watch = {
        .ctx = &progress,
        .fixed = progress_fixed,
        .stepped = progress_stepped,
        .saved = progress_saved,
        .warned = progress_clear,
    };

    quiet = quiet || !first;
    if (!quiet) report_start(t);
    progress_begin(&progress, quiet);
    ls_status st = trainer_run(t, &watch);
    progress_clear(&progress);
    if (st == LS_OK && !quiet) report_end(t);
    if (st == LS_OK && first && prompt && !t->stopped_by && !(*sampled = trainer_checkpoint(t))) st = LS_ENOMEM;
    return st;
}

static ls_status cmd_train_run(struct invocation *in)
{
    struct trainer *t;
    char *sampled = NULL;

    LS_TRY(trainer_open(&in->config, &in->options, &in->refused, &t));
    ls_status st = train(t, in->quiet, &sampled);
    trainer_close(&t);
    if (st == LS_OK && sampled) st = put_sample(&in->config, sampled);
    mem_free(sampled);
    return st;
}

static double unix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Launches the ranks and records for `lockstep doctor` how they ended; keeps the message. */
static ls_status launch_noted(struct invocation *in, const struct run_folder *folder, const char *log, const char *const *more)
{
    int ranks = (int)in->config.launch.ranks;
    char line[RECORDER_WHY], (*ends)[LAUNCH_END] = mem_array(MEM_OTHER, (size_t)ranks, sizeof *ends);
    double began = unix_now();

    if (!ends) return LS_ENOMEM;
    run_folder_note_launcher(folder);
    ls_status st = launching_run(in, log, more, ends);
    snprintf(line, sizeof line, "%s", st == LS_OK ? "" : ls_errmsg());
    run_folder_note_end(folder, began, st == LS_OK ? 0 : in->code ? in->code : 1, line, ranks, ends);
    mem_free(ends);
    run_folder_forget_launcher(folder);
    return st == LS_OK ? LS_OK : ls_fail(st, "%s", line);
}

/* Chooses the folder before the launch: all ranks use it, and their logs are written into it. */
static ls_status launch(struct invocation *in)
{
    struct run_folder folder = RUN_FOLDER_NONE;

    LS_TRY(run_folder_name(&in->config, &folder));
    char *dir = file_path("--run.dir=%s", folder.path), *log = file_path("%s/log", folder.path);
    const char *const more[] = { dir, NULL };
    ls_status st = dir && log ? file_make_folders(log) : LS_ENOMEM;
    if (st == LS_OK) st = launch_noted(in, &folder, log, more);
    mem_free(dir);
    mem_free(log);
    run_folder_close(&folder);
    return st;
}

static ls_status cmd_train_check(const struct invocation *in)
{
    if (prompt && !task_of(&in->config)->generates)
        return ls_fail(LS_EINVAL, "--sample does nothing here: model.preset=%s generates no text", in->config.model.preset);
    return config_check_data(&in->config, true);
}

const struct command command_train = {
    .name = "train",
    .arguments = "[TEXT]",
    .most = 1,
    .plain = "data.text",
    .summary = "train a model on a text or on tokens, or resume a run",
    .verb = VERB_TRAIN,
    .flags = train_flags,
    .check = cmd_train_check,
    .run = cmd_train_run,
    .launch = launch,
    .examples = "  lockstep train book.txt                                          the same as --data.text=book.txt\n"
                "  lockstep train --data.text=book.txt --data.tokenizer=bpe --run.dir=runs/book --sample \"It was\"\n"
                "  lockstep train --config runs/book/config.yaml            resumes the run\n"
                "  lockstep train --data.tokens=train.bin --model.preset=gpt2-124m --data.seq_len=1024 \\\n"
                "                 --train.global_batch=32 --train.micro_batch=4 --recompute.mode=selective\n"
                "  lockstep train -n 4 --parallel.zero=3 --data.text=book.txt       on four ranks of this machine\n"
                "  mpirun -np 16 lockstep train --parallel.zero=1 --data.text=book.txt --run.dir=runs/book\n",
};
