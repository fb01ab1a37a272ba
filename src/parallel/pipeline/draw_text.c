/* draw_text.c - draws a simulated schedule in a terminal: one row per rank, time to the right, wrapped into bands if it is longer than
 * a line.
 *
 *     rank 0  F0 F1 F2 F3 .. .. .. .. .. B0    F4 B1    ..
 *
 * A column is a fixed amount of time. An action fills its columns and shows as much of its name as fits; points are idle time. With
 * color, the background shows the kind.
 */
#include "parallel/pipeline/draw.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { BANDS_MOST = 12, COLUMNS_LEAST = 40 };

/* Black on blue, green (orange if the backward is split), violet, from the 256-color palette. Odd chunks are a shade lighter. */
static const int blue[2] = { 75, 117 }, green[2] = { 78, 120 }, orange[2] = { 215, 222 }, violet[2] = { 141, 183 };

static int shade(const ls_pipeline_schedule *s, const ls_action *a)
{
    int odd = a->chunk & 1;

    if (a->kind == LS_ACTION_FORWARD) return blue[odd];
    if (a->kind == LS_ACTION_WEIGHTS) return violet[odd];
    return s->split ? orange[odd] : green[odd];
}

/* One rank's row: a letter per column, and the action it belongs to (-1: idle). */
struct draw_row {
    char *letter;
    int *action;
};

struct sheet {
    const ls_pipeline_schedule *s;
    const ls_pipeline_times *times;
    const ls_pipeline_timeline *played;
    int color, wide, band; /* total columns, columns per band */
    struct draw_row row;
};

static int column(const struct sheet *h, double seconds)
{
    return h->played->seconds > 0 ? (int)lround(seconds / h->played->seconds * h->wide) : 0;
}

static void draw_text_fill(struct sheet *h, int rank)
{
    const ls_pipeline_schedule *s = h->s;
    char label[32];

    memset(h->row.letter, '.', (size_t)h->wide);
    for (int i = 0; i < h->wide; i++) h->row.action[i] = -1;
    for (int i = 0; i < s->count[rank]; i++) {
        const ls_action *a = &s->list[rank][i];
        double begin = h->played->begin[rank][i];
        int from = column(h, begin), to = column(h, begin + action_seconds(s, h->times, rank, a)), n = (int)strlen(draw_label(label, s, a));

        for (int k = from; k < to; k++) {
            h->row.action[k] = i;
            h->row.letter[k] = k - from < n ? label[k - from] : ' ';
        }
    }
}

static void put_row(struct text *t, const struct sheet *h, int rank, int from, int to)
{
    int now = -2; /* the action whose color is active; -2: none yet */

    for (int k = from; k < to; k++) {
        int i = h->row.action[k];

        if (h->color && i != now) text_put(t, i < 0 ? "\033[0;2m" : "\033[0;30;48;5;%dm", i < 0 ? 0 : shade(h->s, &h->s->list[rank][i]));
        now = i;
        text_add(t, &h->row.letter[k], 1);
    }
    text_put(t, "%s\n", h->color ? "\033[0m" : "");
}

/* Sizes columns so that the shortest action fits the longest name and a blank, unless that needs too many bands. Bands end at the end of
 * such a cell. */
static void widths(struct sheet *h, int columns)
{
    char label[32];
    int n = (int)strlen(draw_label(label, h->s, &(ls_action){ LS_ACTION_FORWARD, h->s->chunks - 1, h->s->micro - 1 })) + 1;
    double wide = ceil(h->played->seconds / draw_shortest(h->s, h->times) * n - 1e-9);

    h->band = MAX(columns, COLUMNS_LEAST) - 9;
    h->band -= h->band % n;
    h->wide = MAX(1, (int)fmin(wide, (double)BANDS_MOST * h->band));
}

static void put_legend(struct text *t, const struct sheet *h)
{
    const char *const says[3] = { "F forward", h->s->split ? "B input gradients" : "B backward", "W weight gradients" };

    for (int k = 0; k < 1 + h->s->backward + h->s->split; k++) {
        ls_action a = { (ls_action_kind)k, 0, 0 };

        if (h->color)
            text_put(t, "%s\033[30;48;5;%dm %s \033[0m", k ? " " : "", shade(h->s, &a), says[k]);
        else
            text_put(t, "%s%s", k ? ", " : "", says[k]);
    }
    text_put(t, "%s then the ", h->color ? " " : ",");
    if (h->s->chunks > 1) text_put(t, "chunk%s and the ", h->s->chunks <= 26 ? " (a, b, ..)" : "");
    text_put(t, "micro-batch; . idle\n");
}

static void put_summary(struct text *t, const struct sheet *h)
{
    const ls_pipeline_schedule *s = h->s;
    int messages = 0;

    draw_bubble(t, s, h->times, h->played);
    text_put(t, "; in flight by rank ");
    for (int r = 0; r < s->stages; r++) text_put(t, "%s%d", r ? " " : "", schedule_in_flight(s, r));
    for (int r = 0; r < s->stages; r++) messages += schedule_messages(s, r);
    text_put(t, "%s; %d message%s between ranks\n", s->chunks > 1 ? " (micro-batches of a chunk)" : "", messages, messages == 1 ? "" : "s");
}

static void put_bands(struct text *t, struct sheet *h)
{
    for (int from = 0; from < h->wide; from += h->band) {
        if (from) text_put(t, "\n");
        for (int r = 0; r < h->s->stages; r++) {
            draw_text_fill(h, r);
            text_put(t, "rank %-4d", r);
            put_row(t, h, r, from, MIN(h->wide, from + h->band));
        }
    }
}

ls_status ls_pipeline_text(const ls_pipeline_schedule *s, const ls_pipeline_times *t, int columns, int color, char **text)
{
    ls_pipeline_timeline p;
    struct text out = { 0 };
    struct sheet h = { .s = s, .times = t, .played = &p, .color = color };
    ls_status st = LS_ENOMEM;

    LS_TRY(ls_pipeline_play(s, t, &p));
    widths(&h, columns);
    h.row.letter = mem_alloc(MEM_OTHER, (size_t)h.wide);
    h.row.action = mem_array(MEM_OTHER, (size_t)h.wide, sizeof *h.row.action);
    if (!h.row.letter || !h.row.action) goto free_row;
    draw_title(&out, s);
    text_put(&out, "\n\n");
    put_bands(&out, &h);
    text_put(&out, "\n");
    put_legend(&out, &h);
    put_summary(&out, &h);
    st = text_status(&out);
    if (st < 0)
        text_free(&out);
    else
        *text = out.data;
free_row:
    mem_free(h.row.action);
    mem_free(h.row.letter);
    ls_pipeline_played_free(s, &p);
    return st;
}
