/* schedule_file.c - reads and writes a schedule as a text file.
 *
 *     # anything after a # is a comment; empty lines are ignored
 *     stages 2 chunks 1 micro 3 order loop
 *     0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
 *     1: F0.0 B0.0 F0.1 B0.1 F0.2 B0.2
 *
 * The first line gives P, v, M and "loop" or "v". Then follows one line per rank, in any order: its actions, each a kind (F, B, W), a
 * chunk and a micro-batch. A file with any W splits the backward; one without B has forwards only. A schedule that was read has been
 * checked; its name is "file:" and the file name.
 */
#include "parallel/pipeline/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

struct reader {
    const char *path;
    int line;
    ls_pipeline_schedule s;
};

static ls_status malformed(const struct reader *r, const char *what, const char *word)
{
    return ls_fail(LS_EFORMAT, "%s:%d: \"%.40s\": %s", r->path, r->line, word, what);
}

/* ---- the first line ---- */

static bool whole_number(const char *word, int *out)
{
    int64_t n;

    if (!text_read_int(word, &n) || n < 0 || n > SCHEDULE_MOST) return false;
    *out = (int)n;
    return true;
}

static ls_status number_after(struct reader *r, const char *key, char **rest, int *out)
{
    const char *word = strsep(rest, " ");

    if (!word || strcmp(word, key) != 0)
        return malformed(r, "expected the first line \"stages P chunks v micro M order loop|v\"", word ? word : "");
    word = strsep(rest, " ");
    if (!word || !whole_number(word, out) || *out < 1) return malformed(r, "expected a number >= 1", word ? word : key);
    return LS_OK;
}

static ls_status read_sizes(struct reader *r, char *line, bool backward, bool split)
{
    int stages, chunks, micro;
    char name[32], *rest = line;
    const char *base = strrchr(r->path, '/');

    LS_TRY(number_after(r, "stages", &rest, &stages));
    LS_TRY(number_after(r, "chunks", &rest, &chunks));
    LS_TRY(number_after(r, "micro", &rest, &micro));
    const char *word = strsep(&rest, " ");
    if (!word || strcmp(word, "order") != 0) return malformed(r, "expected \"order loop\" or \"order v\"", word ? word : "");
    word = strsep(&rest, " ");
    if (!word || rest || (strcmp(word, "loop") != 0 && strcmp(word, "v") != 0))
        return malformed(r, "expected loop or v, and nothing after it", rest ? rest : word ? word : "");
    snprintf(name, sizeof name, "file:%.26s", base ? base + 1 : r->path);
    return schedule_new(name, stages, chunks, micro, backward, split, *word == 'v' ? LS_STAGES_V : LS_STAGES_LOOP, &r->s);
}

/* ---- a rank's line ---- */

/* "F0.12" */
static ls_status read_action(struct reader *r, int rank, const char *word)
{
    static const char letters[] = "FBW";
    const char *kind = *word ? strchr(letters, *word) : NULL;
    char copy[32];
    int chunk, micro;

    snprintf(copy, sizeof copy, "%s", *word ? word + 1 : "");
    char *dot = strchr(copy, '.');
    if (dot) *dot = '\0';
    if (!kind || !dot || !whole_number(copy, &chunk) || !whole_number(dot + 1, &micro))
        return malformed(r, "expected an action: F, B or W, a chunk, a point and a micro-batch, as in F0.3", word);
    if (chunk >= r->s.chunks) return malformed(r, "the chunk is out of range", word);
    if (micro >= r->s.micro) return malformed(r, "the micro-batch is out of range", word);
    if (r->s.count[rank] == schedule_room(&r->s)) return malformed(r, "more actions than a rank has", word);
    schedule_put(&r->s, rank, (ls_action_kind)(kind - letters), chunk, micro);
    return LS_OK;
}

static ls_status read_rank(struct reader *r, char *line)
{
    char *rest = line, *word = strsep(&rest, ":");
    int rank;

    if (!rest || !whole_number(word, &rank)) return malformed(r, "expected a line that begins with a rank and a colon", word);
    if (rank >= r->s.stages) return malformed(r, "the rank is out of range", word);
    if (r->s.count[rank]) return malformed(r, "this rank has a line already", word);
    while ((word = strsep(&rest, " ")))
        if (*word) LS_TRY(read_action(r, rank, word));
    return LS_OK;
}

/* ---- the file ---- */

/* Removes the comment and surplus blanks from the line; returns it. */
static char *tidy(char *line)
{
    size_t n = 0;

    line[strcspn(line, "#")] = '\0';
    for (const char *at = line; *at; at++) {
        bool blank = *at == ' ' || *at == '\t' || *at == '\r';

        if (!blank)
            line[n++] = *at;
        else if (n > 0 && line[n - 1] != ' ')
            line[n++] = ' ';
    }
    while (n > 0 && line[n - 1] == ' ') n--;
    line[n] = '\0';
    return line;
}

/* Finds which letters begin an action anywhere outside comments. */
static bool has_letter(const char *text, char letter)
{
    bool comment = false;

    for (const char *at = text; *at; at++) {
        if (*at == '#' || *at == '\n') comment = *at == '#';
        if (!comment && *at == letter) return true;
    }
    return false;
}

static ls_status read_lines(struct reader *r, char *text)
{
    bool split = has_letter(text, 'W'), backward = split || has_letter(text, 'B');
    char *rest = text;

    for (char *line; (line = strsep(&rest, "\n"));) {
        r->line++;
        if (!*tidy(line)) continue;
        LS_TRY(r->s.list ? read_rank(r, line) : read_sizes(r, line, backward, split));
    }
    if (!r->s.list) return ls_fail(LS_EFORMAT, "%s: the line \"stages P chunks v micro M order loop|v\" is missing", r->path);
    for (int rank = 0; rank < r->s.stages; rank++)
        if (r->s.count[rank] == 0) return ls_fail(LS_EFORMAT, "%s: the line of rank %d of %d is missing", r->path, rank, r->s.stages);
    return ls_pipeline_schedule_check(&r->s);
}

ls_status ls_pipeline_schedule_read(const char *path, ls_pipeline_schedule *out)
{
    struct reader r = { .path = path };
    size_t bytes;
    char *text;

    LS_TRY(file_read(path, &text, &bytes));
    ls_status st =
        memchr(text, 0, bytes) ? ls_fail(LS_EFORMAT, "%s: it contains a zero byte; a schedule is a text file", path) : read_lines(&r, text);
    mem_free(text);
    if (st < 0)
        ls_pipeline_schedule_free(&r.s);
    else
        *out = r.s;
    return st;
}

ls_status ls_pipeline_schedule_write(const ls_pipeline_schedule *s, const char *path)
{
    struct text t = { 0 };

    LS_TRY(ls_pipeline_schedule_check(s));
    text_put(&t, "# %s\nstages %d chunks %d micro %d order %s\n", s->name, s->stages, s->chunks, s->micro,
             s->order == LS_STAGES_V ? "v" : "loop");
    for (int r = 0; r < s->stages; r++) {
        text_put(&t, "%d:", r);
        for (int i = 0; i < s->count[r]; i++) {
            const ls_action *a = &s->list[r][i];

            text_put(&t, " %c%d.%d", schedule_letter(a->kind), a->chunk, a->micro);
        }
        text_put(&t, "\n");
    }
    ls_status st = text_status(&t);
    if (st >= 0) st = file_write(path, t.data, t.bytes);
    text_free(&t);
    return st;
}
