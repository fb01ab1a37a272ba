/* draw_svg.c - draws a simulated schedule as SVG 1.1: self-contained, readable on white.
 *
 * One row per rank, time to the right, one box per action with its micro-batch. Chunks are shades of the action kind's color, from dark
 * to light. A time axis in units of the shortest action and a legend are below the rows.
 */
#include "parallel/pipeline/draw.h"

#include <math.h>
#include "base/base.h"

enum { LEFT = 128, RIGHT = 150, TOP = 74, ROW = 34, BOX = 28, WIDTH_LEAST = 560, WIDTH_MOST = 16000 };

struct page {
    const ls_pipeline_schedule *s;
    const ls_pipeline_times *times;
    const ls_pipeline_timeline *played;
    double unit, scale, wide; /* seconds of the shortest action; pixels per second; total pixels */
};

/* ---- colors ---- */

struct rgb {
    int r, g, b;
};

static struct rgb kind_color(const ls_pipeline_schedule *s, ls_action_kind kind)
{
    if (kind == LS_ACTION_FORWARD) return (struct rgb){ 54, 116, 196 };
    if (kind == LS_ACTION_WEIGHTS) return (struct rgb){ 139, 92, 190 };
    return s->split ? (struct rgb){ 224, 130, 44 } : (struct rgb){ 44, 128, 74 };
}

/* Chunk 0 has the kind's color, the last chunk is 55% of the way to white. */
static struct rgb shade(const ls_pipeline_schedule *s, const ls_action *a)
{
    struct rgb c = kind_color(s, a->kind);
    double light = s->chunks > 1 ? 0.55 * a->chunk / (s->chunks - 1) : 0;

    return (struct rgb){ (int)(c.r + light * (255 - c.r)), (int)(c.g + light * (255 - c.g)), (int)(c.b + light * (255 - c.b)) };
}

static double linear(int v) { return v <= 10 ? v / (255 * 12.92) : pow((v / 255.0 + 0.055) / 1.055, 2.4); }

/* White where its contrast is at least 4.5 (WCAG 2), else black, whose contrast then is. */
static const char *ink(struct rgb c)
{
    double luminance = 0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b);

    return 1.05 / (luminance + 0.05) >= 4.5 ? "#ffffff" : "#000000";
}

/* ---- parts ---- */

static ls_status draw_svg_put_head(struct text *t, const struct page *g, double width, double height)
{
    struct text title = { 0 };

    draw_title(&title, g->s);
    ls_status st = text_status(&title);
    if (st < 0) goto free_title;
    text_put(t,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica, "
             "Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
             width, height, width, height);
    text_put(t, "<text x=\"16\" y=\"32\" font-size=\"18\" font-weight=\"bold\" fill=\"#1a1a1a\">");
    text_add_xml(t, title.data);
    text_put(t, "</text>\n<text x=\"%.0f\" y=\"32\" font-size=\"18\" text-anchor=\"end\" fill=\"#1a1a1a\">", width - 16);
    draw_bubble(t, g->s, g->times, g->played);
    text_put(t, "</text>\n");
free_title:
    text_free(&title);
    return st;
}

/* Draws vertical lines at a round number of units, about 6 to 14 of them. */
static void put_grid(struct text *t, const struct page *g)
{
    static const int steps[] = { 1, 2, 5 };
    double units = g->played->seconds / g->unit, step = 1;

    for (int k = 1; units / step > 14; k++) step = steps[k % 3] * pow(10, k / 3);
    for (double at = 0; at <= units + 1e-9; at += step) {
        double x = LEFT + at * g->unit * g->scale;

        text_put(t,
                 "<line x1=\"%.0f\" y1=\"%d\" x2=\"%.0f\" y2=\"%d\" stroke=\"#e2e2e2\"/><text x=\"%.0f\" y=\"%d\" font-size=\"11\" "
                 "text-anchor=\"middle\" fill=\"#707070\">%g</text>\n",
                 x, TOP - 4, x, TOP + ROW * g->s->stages, x, TOP - 10, at);
    }
}

static void put_box(struct text *t, const struct page *g, int rank, int i)
{
    const ls_action *a = &g->s->list[rank][i];
    double begin = g->played->begin[rank][i], end = begin + action_seconds(g->s, g->times, rank, a);
    double x = LEFT + round(begin * g->scale), w = LEFT + round(end * g->scale) - x, y = TOP + ROW * rank + 3;
    struct rgb c = shade(g->s, a);
    char label[32];

    if (w <= 0) return;
    text_put(t,
             "<g><title>%s: %g to %g</title><rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%d\" rx=\"2\" fill=\"#%02x%02x%02x\" "
             "stroke=\"#ffffff\"/>",
             draw_label(label, g->s, a), begin, end, x, y, w, BOX, c.r, c.g, c.b);
    if (w >= 9)
        text_put(t, "<text x=\"%.0f\" y=\"%.0f\" font-size=\"%d\" text-anchor=\"middle\" fill=\"%s\">%d</text>", x + w / 2, y + 18.5,
                 a->micro < 100 || w >= 24 ? 12 : 9, ink(c), a->micro);
    text_put(t, "</g>\n");
}

static void draw_svg_put_rank(struct text *t, const struct page *g, int rank)
{
    double y = TOP + ROW * rank;

    text_put(t, "<text x=\"16\" y=\"%.0f\" font-size=\"13\" fill=\"#1a1a1a\">rank %d</text>\n", y + (g->s->chunks > 1 ? 15 : 21), rank);
    if (g->s->chunks > 1) {
        text_put(t, "<text x=\"16\" y=\"%.0f\" font-size=\"10\" fill=\"#707070\">", y + 28);
        draw_stages(t, g->s, rank);
        text_put(t, "</text>\n");
    }
    text_put(t, "<rect x=\"%d\" y=\"%.0f\" width=\"%.0f\" height=\"%d\" fill=\"#f1f1f1\"/>\n", LEFT, y + 3, g->wide, BOX);
    for (int i = 0; i < g->s->count[rank]; i++) put_box(t, g, rank, i);
    text_put(t, "<text x=\"%.0f\" y=\"%.0f\" font-size=\"11\" fill=\"#505050\">%d in flight, sends %d</text>\n", LEFT + g->wide + 10,
             y + 21, schedule_in_flight(g->s, rank), schedule_messages(g->s, rank));
}

/* Draws a swatch for the kind, one per chunk if there are several; returns the x where the next one begins. */
static double put_swatch(struct text *t, const struct page *g, double x, double y, ls_action_kind kind, const char *says)
{
    int shown = MIN(g->s->chunks, 8);

    for (int k = 0; k < shown; k++) {
        int chunk = shown > 1 ? k * (g->s->chunks - 1) / (shown - 1) : 0;
        struct rgb c = shade(g->s, &(ls_action){ kind, chunk, 0 });

        text_put(t, "<rect x=\"%.0f\" y=\"%.0f\" width=\"16\" height=\"14\" fill=\"#%02x%02x%02x\"/>", x + 18 * k, y, c.r, c.g, c.b);
    }
    x += 18 * shown + 6;
    text_put(t, "<text x=\"%.0f\" y=\"%.0f\" font-size=\"12\" fill=\"#1a1a1a\">%s</text>\n", x, y + 11.5, says);
    return x + 24;
}

static void put_legend(struct text *t, const struct page *g)
{
    double y = TOP + ROW * g->s->stages + 18, x = put_swatch(t, g, 16, y, LS_ACTION_FORWARD, "forward") + 46;

    if (g->s->backward)
        x = put_swatch(t, g, x, y, LS_ACTION_BACKWARD, g->s->split ? "input gradients" : "backward") + (g->s->split ? 110 : 58);
    if (g->s->split) x = put_swatch(t, g, x, y, LS_ACTION_WEIGHTS, "weight gradients") + 92;
    text_put(t,
             "<rect x=\"%.0f\" y=\"%.0f\" width=\"16\" height=\"14\" fill=\"#f1f1f1\" stroke=\"#d8d8d8\"/><text x=\"%.0f\" y=\"%.0f\" "
             "font-size=\"12\" fill=\"#1a1a1a\">idle%s</text>\n",
             x, y, x + 24, y + 11.5, g->s->chunks > 1 ? "; lighter: later chunks" : "");
}

ls_status ls_pipeline_svg(const ls_pipeline_schedule *s, const ls_pipeline_times *t, char **text)
{
    ls_pipeline_timeline p;
    struct text out = { 0 };
    struct page g = { .s = s, .times = t, .played = &p, .unit = draw_shortest(s, t) };

    LS_TRY(ls_pipeline_play(s, t, &p));
    g.wide = fmin(fmax(22 * p.seconds / g.unit, WIDTH_LEAST), WIDTH_MOST);
    g.scale = p.seconds > 0 ? g.wide / p.seconds : 1;
    ls_status st = draw_svg_put_head(&out, &g, LEFT + g.wide + RIGHT, TOP + ROW * s->stages + 48);
    put_grid(&out, &g);
    for (int r = 0; r < s->stages; r++) draw_svg_put_rank(&out, &g, r);
    put_legend(&out, &g);
    text_put(&out, "</svg>\n");
    if (st >= 0) st = text_status(&out);
    if (st < 0)
        text_free(&out);
    else
        *text = out.data;
    ls_pipeline_played_free(s, &p);
    return st;
}
