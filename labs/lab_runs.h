/* lab_runs.h - for labs that train the user's model by `lockstep train` on several ranks, and read the runs' files.
 *
 * A run has the user's options (lab_options()) and after them the lab's own, which take precedence. Without options of the user it trains a
 * tiny Llama on a text that the lab writes.
 */
#ifndef LAB_RUNS_H
#define LAB_RUNS_H

#include "lab_command.h"

enum { RUN_WORDS = 96, RUN_TEXT = 4000 };

static inline int run_user_gives(const char *begin)
{
    for (const char *const *o = lab_options(); *o; o++)
        if (strncmp(*o + 2, begin, strlen(begin)) == 0) return 1;
    return 0;
}

/* Options of the lab that the user's options override. */
static const char *run_defaults = "";

/* Defaults for what the user did not choose. `data.text=` without a value is a choice: an image model reads no text. */
static inline void run_put_defaults(const char *folder, char out[RUN_TEXT])
{
    int at = snprintf(out, RUN_TEXT, "%s ", run_defaults);

    if (!run_user_gives("model.")) at += snprintf(out + at, RUN_TEXT - (size_t)at, "--model.preset=llama-tiny ");
    if (run_user_gives("data.text") || run_user_gives("data.tokens")) return;
    at += snprintf(out + at, RUN_TEXT - (size_t)at, "--data.text=%s/text.txt ", folder);
    if (!run_user_gives("data.seq_len")) snprintf(out + at, RUN_TEXT - (size_t)at, "--data.seq_len=32 ");
}

/* Splits `text` at its spaces, in place. */
static inline int run_words(char *text, const char **word, int n)
{
    for (char *w = strtok(text, " "); w && n < RUN_WORDS - 1; w = strtok(NULL, " ")) word[n++] = w;
    return n;
}

/* The options of every run: no evaluation, no checkpoint, one thread per rank, f32, so that weights and gradients are 4 bytes. */
static const char *const run_always =
    "--precision.compute=fp32 --train.accumulate=1 --train.eval_every=0 --checkpoint.every=0 --launch.threads=1 --run.measure_peak=off "
    "--run.device=cpu --log.tensorboard=false -q ";

/* Trains into FOLDER/NAME. Returns the exit code; *line: the last line that it printed. */
static inline int run_train(const char *folder, const char *name, char line[RUN_TEXT], const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static inline int run_train(const char *folder, const char *name, char line[RUN_TEXT], const char *fmt, ...)
{
    static char defaults[RUN_TEXT], own[RUN_TEXT];
    const char *word[RUN_WORDS] = { launch_command(), "train" };
    char *env[] = { NULL };
    struct launched l;
    int n = 2;
    va_list a;

    run_put_defaults(folder, defaults);
    int at = snprintf(own, sizeof own, "%s--run.dir=%s/%s ", run_always, folder, name);
    va_start(a, fmt);
    vsnprintf(own + at, sizeof own - (size_t)at, fmt, a);
    va_end(a);
    n = run_words(defaults, word, n);
    for (const char *const *o = lab_options(); *o && n < RUN_WORDS - 1; o++) word[n++] = *o;
    n = run_words(own, word, n);
    word[n] = NULL;
    launch_start(&l, env, (char *const *)(const void *)word);
    launch_wait(&l);
    size_t end = strlen(l.text);
    while (end && l.text[end - 1] == '\n') l.text[--end] = '\0';
    snprintf(line, RUN_TEXT, "%.*s", RUN_TEXT - 1, strrchr(l.text, '\n') ? strrchr(l.text, '\n') + 1 : l.text);
    return l.status;
}

/* As run_train(); ends the lab if the run fails. */
#define RUN_TRAIN(folder, name, ...)                                                                              \
    do {                                                                                                          \
        char line_[RUN_TEXT];                                                                                     \
        if (run_train(folder, name, line_, __VA_ARGS__) == 0) break;                                              \
        fprintf(stderr, "%s\n", line_);                                                                           \
        folder_remove(folder);                                                                                    \
        exit(1);                                                                                                  \
    } while (0)

/* Plans the same model: like lab_plan(). */
static inline double run_plan(const char *folder, const char *key, const char *own)
{
    static char options[RUN_TEXT];

    run_put_defaults(folder, options);
    size_t at = strlen(options);
    for (const char *const *o = lab_options(); *o; o++) at += (size_t)snprintf(options + at, sizeof options - at, "'%s' ", *o);
    snprintf(options + at, sizeof options - at, "--precision.compute=fp32 --train.accumulate=1 --run.device=cpu %s", own);
    return lab_plan(key, "%s", options);
}

/* ---- the files of a run ---- */

/* A file of the run; the caller frees it. */
static inline char *run_file(const char *folder, const char *name, const char *file)
{
    char path[COMMAND_PATH + 200], *text;
    size_t bytes = 0, room = 1 << 16;

    snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
    FILE *f = fopen(path, "r");
    if (!f || !(text = malloc(room))) {
        perror(path);
        exit(1);
    }
    for (size_t n; (n = fread(text + bytes, 1, room - bytes - 1, f)) > 0;) {
        bytes += n;
        if (room - bytes < 2 && !(text = realloc(text, room *= 2))) exit(1);
    }
    text[bytes] = '\0';
    fclose(f);
    return text;
}

/* The number at the path `key` of line k (0, 1, ...) of a file of JSON objects; NAN: not found. */
static inline double run_number(const char *text, int k, const char *key)
{
    char *line;

    while (text && k-- > 0) text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    if (!text || !*text || !(line = strndup(text, strcspn(text, "\n")))) return NAN;
    double number = lab_json(line, key);
    free(line);
    return number;
}

#endif
