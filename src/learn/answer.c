/* answer.c - runs what a card runs, and finds its number. */
#include "learn/answer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "learn/same_run.h"

enum { WORDS_MOST = 64 };

/* A run that has ended: its standard output, and its standard error if it failed. */
struct answer_run_kept {
    char *command;
    struct text key, said, failure; /* key: see same_run.h */
    int code;
};

struct run {
    const struct card *card;
    char *command, *row;          /* with the sizes filled in */
    bool lab, json;               /* lab: it prints rows; json: it prints one object */
    struct text object;           /* the JSON object that it prints */
    struct answer_run_kept *keep; /* where its output is kept; NULL: nowhere */
    answer_line *line;
    void *ctx;
    struct answer *out;
    int rows; /* rows with the card's text */
};

/* ---- the process ---- */

/* Splits at spaces, in place. A lab prints rows to be read. */
static void split_words(struct run *r, char *words, char **argv)
{
    int n = 0;

    argv[n++] = "lockstep";
    for (char *w = strtok(words, " "); w && n < WORDS_MOST - 2; w = strtok(NULL, " ")) argv[n++] = w;
    r->lab = n > 1 && strcmp(argv[1], "lab") == 0;
    for (int i = 1; i < n; i++) r->json |= strcmp(argv[i], "--json") == 0;
    if (r->lab && !r->json) argv[n++] = "--json";
    argv[n] = NULL;
}

/* The run must not outlive this process. */
static _Noreturn void be_run(char **argv, pid_t parent, int out, int err)
{
    int in = open("/dev/null", O_RDONLY);

    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(127);
    if (getppid() != parent) _exit(127);
    unsetenv("LAB_JSON");
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* err: a file for standard error. */
static ls_status start_run(struct run *r, int err, FILE **out, pid_t *child)
{
    char *argv[WORDS_MOST], *words = mem_strdup(r->command);
    pid_t parent = getpid();
    int ends[2];

    if (!words) return LS_ENOMEM;
    split_words(r, words, argv);
    if (pipe2(ends, O_CLOEXEC) != 0 || !(*out = fdopen(ends[0], "r"))) {
        mem_free(words);
        return ls_fail(LS_EIO, "a pipe: %s", strerror(errno));
    }
    fflush(stdout);
    *child = fork();
    int wrong = errno;
    if (*child == 0) be_run(argv, parent, ends[1], err);
    close(ends[1]);
    mem_free(words);
    if (*child > 0) return LS_OK;
    fclose(*out);
    return ls_fail(LS_EIO, "a process for '%s': %s", r->command, strerror(wrong));
}

/* ---- its output ---- */

static void say_line(struct run *r, const char *line)
{
    if (r->line) r->line(r->ctx, line);
}

static char *put_optional(char out[TEXT_NUMBER_ROOM], double x)
{
    snprintf(out, TEXT_NUMBER_ROOM, isfinite(x) ? "%.6g" : "-", x);
    return out;
}

/* The row that answers the card is marked. */
static void take_row(struct run *r, const json_node *row)
{
    const char *what = json_string(json_get(row, "what"), ""), *unit = json_string(json_get(row, "unit"), "");
    const char *verdict = json_string(json_get(row, "verdict"), ""), *why = json_string(json_get(row, "why"), "");
    const char *claim = json_string(json_get(row, "claim"), "");
    double claimed = json_real(json_get(row, "claimed"), NAN), measured = json_real(json_get(row, "measured"), NAN);
    bool mine = r->row && strcmp(what, r->row) == 0 && (!r->card->claim || strcmp(claim, r->card->claim) == 0);
    char a[TEXT_NUMBER_ROOM], b[TEXT_NUMBER_ROOM];
    struct text line = { 0 };

    text_put(&line, "%s%10s %10s  %-9s %s%s%s%s", mine ? "> " : "  ", put_optional(a, claimed), put_optional(b, measured),
             strcmp(verdict, "not measurable here") == 0 ? "-" : verdict, what, unit[0] ? " [" : "", unit, unit[0] ? "]" : "");
    if (text_status(&line) == LS_OK) say_line(r, line.data);
    text_free(&line);
    if (why[0]) {
        text_put(&line, "%26s%s", "", why);
        if (text_status(&line) == LS_OK) say_line(r, line.data);
        text_free(&line);
    }
    if (!mine) return;
    r->rows++;
    r->out->measured = measured * r->card->scale;
    r->out->claimed = claimed * r->card->scale;
}

static void take_line(struct run *r, char *line)
{
    json_node *row = NULL;

    line[strcspn(line, "\n")] = '\0';
    if (r->keep) text_put(&r->keep->said, "%s\n", line);
    if (r->lab && json_parse(line, strlen(line), r->command, &row) == LS_OK) {
        take_row(r, row);
        json_close(&row);
    } else if (r->json)
        text_put(&r->object, "%s\n", line);
    else
        say_line(r, line);
}

/* The number at "memory.total", "ranks.0.bytes". */
static double number_at(const json_node *n, const char *key)
{
    char part[64];

    while (n && *key) {
        size_t length = strcspn(key, ".");

        snprintf(part, sizeof part, "%.*s", (int)length, key);
        n = json_kind_of(n) == JSON_ARRAY ? json_at(n, (size_t)atoi(part)) : json_get(n, part);
        key += length + (key[length] == '.');
    }
    if (json_kind_of(n) == JSON_BOOL) return json_bool(n, 0);
    return json_real(n, NAN);
}

static ls_status take_object(struct run *r)
{
    json_node *root = NULL;
    char number[TEXT_NUMBER_ROOM];
    struct text line = { 0 };

    if (r->lab || !r->json || !r->row || r->out->code) return LS_OK;
    LS_TRY(text_status(&r->object));
    LS_TRY(json_parse(r->object.data ? r->object.data : "", r->object.bytes, r->command, &root));
    double x = number_at(root, r->row);
    json_close(&root);
    r->rows += isfinite(x);
    r->out->measured = x * r->card->scale;
    text_put(&line, "%s: %s", r->row, put_optional(number, x));
    if (text_status(&line) == LS_OK) say_line(r, line.data);
    text_free(&line);
    return LS_OK;
}

/* Passes on what a failed run wrote to standard error. */
static void say_failure(struct run *r, int err)
{
    FILE *f = lseek(err, 0, SEEK_SET) == 0 ? fdopen(dup(err), "r") : NULL;
    char *line = NULL;
    size_t room = 0;

    while (f && getline(&line, &room, f) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        say_line(r, line);
        if (r->keep) text_put(&r->keep->failure, "%s\n", line);
    }
    free(line);
    if (f) fclose(f);
}

/* After the last line. */
static ls_status end_run(struct run *r)
{
    LS_TRY(take_object(r));
    if (r->out->code || !r->row) return LS_OK;
    if (r->rows != 1)
        return ls_fail(LS_EFORMAT, "card %s: 'lockstep %s' prints %d rows named '%s'; one was expected", r->card->id, r->command, r->rows,
                       r->row);
    if (isfinite(r->out->measured)) return LS_OK;
    return ls_fail(LS_EFORMAT, "card %s: 'lockstep %s' does not measure '%s' here", r->card->id, r->command, r->row);
}

static ls_status read_run(struct run *r, FILE *out, pid_t child, int err)
{
    char *line = NULL;
    size_t room = 0;
    int status = 0;

    while (getline(&line, &room, out) >= 0) take_line(r, line);
    free(line);
    fclose(out);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    r->out->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (r->out->code) say_failure(r, err);
    if (r->keep) r->keep->code = r->out->code;
    return end_run(r);
}

static ls_status do_run(struct run *r)
{
    int err = memfd_create("lockstep-learn", MFD_CLOEXEC);
    FILE *out;
    pid_t child = -1;

    if (err < 0) return ls_fail(LS_EIO, "cannot create a file for the run's output: %s", strerror(errno));
    ls_status st = start_run(r, err, &out, &child);
    if (st == LS_OK) st = read_run(r, out, child, err);
    close(err);
    return st;
}

/* ---- runs that are kept ---- */

static void each_line(struct run *r, const struct text *t, void (*fn)(struct run *r, char *line))
{
    char *copy = t->data ? mem_strdup(t->data) : NULL, *rest = copy;

    for (char *line = copy ? strsep(&rest, "\n") : NULL; line && rest; line = strsep(&rest, "\n")) fn(r, line);
    mem_free(copy);
}

static void say_again(struct run *r, char *line) { say_line(r, line); }

static ls_status repeat_run(struct run *r, const struct answer_run_kept *k)
{
    char *argv[WORDS_MOST], *words = mem_strdup(k->command);

    if (!words) return LS_ENOMEM;
    split_words(r, words, argv);
    mem_free(words);
    each_line(r, &k->said, take_line);
    if ((r->out->code = k->code)) each_line(r, &k->failure, say_again);
    return end_run(r);
}

static ls_status list_labs(struct answer_cache *cache)
{
    static const struct card none;
    struct answer_run_kept list = { 0 };
    struct answer answer = { 0 };
    struct run r = { .card = &none, .command = mem_strdup("lab --json"), .keep = &list, .out = &answer };

    ls_status st = r.command ? do_run(&r) : LS_ENOMEM;
    if (st == LS_OK) st = text_status(&list.said);
    if (st == LS_OK) cache->labs = list.said.data ? list.said.data : mem_strdup("");
    if (st == LS_OK && !cache->labs) st = LS_ENOMEM;
    if (st < 0) text_free(&list.said);
    text_free(&list.failure);
    mem_free(r.command);
    return st;
}

/* What the lab's own run left in LAB_ROWS; false: nothing. */
static bool read_rows(const char *program, struct text *said)
{
    const char *folder = getenv("LAB_ROWS");
    char *path = folder && program[0] ? file_path("%s/%s.jsonl", folder, program) : NULL, line[4096];
    FILE *f = path ? fopen(path, "re") : NULL;

    while (f && fgets(line, sizeof line, f)) text_put(said, "%s", line);
    if (f) fclose(f);
    mem_free(path);
    return said->bytes > 0;
}

static ls_status cached_run(struct run *r, struct answer_cache *cache)
{
    struct same_run same;

    if (!cache->labs) LS_TRY(list_labs(cache));
    LS_TRY(same_run_of(r->command, cache->labs, &same));
    for (size_t i = 0; i < cache->count; i++)
        if (strcmp(cache->kept[i].key.data, same.key.data) == 0) {
            text_free(&same.key);
            return repeat_run(r, &cache->kept[i]);
        }
    struct answer_run_kept *more = mem_resize(cache->kept, (cache->count + 1) * sizeof *more);
    char *command = more ? mem_strdup(r->command) : NULL;
    if (more) cache->kept = more;
    if (!command) {
        text_free(&same.key);
        return LS_ENOMEM;
    }
    struct answer_run_kept *k = &more[cache->count++];
    *k = (struct answer_run_kept){ .command = command, .key = same.key };
    if (read_rows(same.program, &k->said)) return text_status(&k->said) == LS_OK ? repeat_run(r, k) : LS_ENOMEM;
    r->keep = k;
    ls_status st = do_run(r);
    if (st == LS_OK || st == LS_EFORMAT) st = text_status(&r->keep->said) < 0 ? LS_ENOMEM : st;
    return st;
}

void answer_cache_free(struct answer_cache *c)
{
    for (size_t i = 0; i < c->count; i++) {
        mem_free(c->kept[i].command);
        text_free(&c->kept[i].key);
        text_free(&c->kept[i].said);
        text_free(&c->kept[i].failure);
    }
    mem_free(c->kept);
    mem_free(c->labs);
    *c = (struct answer_cache){ 0 };
}

ls_status answer_run(const struct card *c, int variant, struct answer_cache *cache, answer_line *line, void *ctx, struct answer *out)
{
    struct run r = { .card = c, .line = line, .ctx = ctx, .out = out };
    double began = base_now();

    *out = (struct answer){ .measured = NAN, .claimed = c->said };
    r.command = card_fill(c, c->run, variant);
    r.row = c->row ? card_fill(c, c->row, variant) : NULL;
    ls_status st = r.command && (r.row || !c->row) ? LS_OK : LS_ENOMEM;
    if (st == LS_OK) st = cache ? cached_run(&r, cache) : do_run(&r);
    if (isfinite(c->said)) out->claimed = c->said;
    out->seconds = base_now() - began;
    text_free(&r.object);
    mem_free(r.row);
    mem_free(r.command);
    return st;
}
