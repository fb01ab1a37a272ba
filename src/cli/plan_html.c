/* plan_html.c - see plan_html.h. */
#include "cli/plan_html.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

/* ---- the page ---- */

static void plan_html_put_head(struct text *t, const char *title)
{
    text_put(t, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
    text_add_xml(t, title);
    text_put(t, "</title>\n<style>\nbody { font: 15px Helvetica, Arial, sans-serif; color: #1a1a1a; background: #fff; margin: 2em; }\n"
                "h1 { font-size: 18px; }\ntable { border-collapse: collapse; margin-top: 1.5em; }\n"
                "td, th { padding: 3px 12px; border-bottom: 1px solid #ddd; text-align: right; }\n"
                "td:last-child, th:last-child { text-align: left; }\nsvg text { font-size: 12px; fill: #1a1a1a; "
                "}\n</style>\n</head>\n<body>\n<h1>");
    text_add_xml(t, title);
    text_put(t, "</h1>\n");
}

static ls_status put_page(struct text *t, const char *path)
{
    text_put(t, "</body>\n</html>\n");
    ls_status st = text_status(t);

    if (st == LS_OK) st = file_write(path, t->data, t->bytes);
    text_free(t);
    return st;
}

/* ---- a search ---- */

enum { PLOT_WIDE = 900, PLOT_HIGH = 460, PLOT_LEFT = 90, PLOT_BOTTOM = 50, PLOT_TOP = 20, PLOT_RIGHT = 20 };

struct axis {
    double low, high; /* range of the values */
    double from, to;  /* range in pixels */
    bool log;
};

static double pixel(const struct axis *a, double x)
{
    double along = a->log ? log(x / a->low) / log(a->high / a->low) : (x - a->low) / (a->high - a->low);

    return a->from + (a->to - a->from) * along;
}

/* 1, 2, 5, 10, ..: the step that gives four to nine ticks. */
static double tick_of(double range)
{
    double step = pow(10, floor(log10(range))) / 10;
    static const double factors[] = { 1, 2, 5, 10, 20 };

    for (size_t i = 0; i < COUNT_OF(factors); i++)
        if (range / (step * factors[i]) <= 9) return step * factors[i];
    return range;
}

static const char *uses_color(int uses)
{
    if (uses & SEARCH_USES_PP) return uses & SEARCH_USES_TP ? "#8b5cbe" : "#3a7acc";
    if (uses & SEARCH_USES_TP) return "#389458";
    return uses ? "#e0822c" : "#666666";
}

static void put_ticks(struct text *t, const struct axis *x, const struct axis *y)
{
    double step = tick_of(x->high - x->low), seconds = tick_of(y->high - y->low);

    for (double v = ceil(x->low / step) * step; v <= x->high; v += step)
        text_put(t,
                 "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#eee\"/><text x=\"%.1f\" y=\"%.1f\" "
                 "text-anchor=\"middle\">%.4g</text>\n",
                 pixel(x, v), y->from, pixel(x, v), y->to, pixel(x, v), y->from + 18, v);
    for (double v = ceil(y->low / seconds) * seconds; v <= y->high; v += seconds)
        text_put(t,
                 "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#eee\"/><text x=\"%.1f\" y=\"%.1f\" "
                 "text-anchor=\"end\">%.4g</text>\n",
                 x->from, pixel(y, v), x->to, pixel(y, v), x->from - 8, pixel(y, v) + 4, v);
}

static void put_scatter(struct text *t, const struct search_result *r, double room)
{
    static const struct {
        const char *name;
        int uses;
    } keys[] = { { "dp alone", 0 },
                 { "tp", SEARCH_USES_TP },
                 { "pp", SEARCH_USES_PP },
                 { "tp and pp", SEARCH_USES_TP | SEARCH_USES_PP },
                 { "cp or ep", SEARCH_USES_CP } };
    double GiB = 1 << 30, least = INFINITY, most = 0;

    for (int i = 0; i < r->points; i++) least = fmin(least, r->point[i].seconds), most = fmax(most, r->point[i].seconds);
    struct axis x = { 0, room / GiB, PLOT_LEFT, PLOT_WIDE - PLOT_RIGHT, false };
    struct axis y = { least * 0.95, most * 1.05, PLOT_HIGH - PLOT_BOTTOM, PLOT_TOP, true };

    text_put(t, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", PLOT_WIDE, PLOT_HIGH, PLOT_WIDE, PLOT_HIGH);
    put_ticks(t, &x, &y);
    for (int i = 0; i < r->points; i++)
        text_put(t, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\" fill-opacity=\"0.5\"/>\n", pixel(&x, r->point[i].bytes / GiB),
                 pixel(&y, r->point[i].seconds), uses_color(r->point[i].uses));
    for (int i = 0; i < r->exact; i++)
        text_put(t, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"none\" stroke=\"#c0392b\" stroke-width=\"2\"/>\n",
                 pixel(&x, (double)r->best[i].plan.total / GiB), pixel(&y, fmax(r->best[i].seconds.step, y.low)));
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        text_put(t, "<circle cx=\"%zu\" cy=\"12\" r=\"4\" fill=\"%s\"/><text x=\"%zu\" y=\"16\">%s</text>\n", PLOT_LEFT + 20 + 120 * i,
                 uses_color(keys[i].uses), PLOT_LEFT + 30 + 120 * i, keys[i].name);
    text_put(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">GiB of a rank</text>\n", (PLOT_LEFT + PLOT_WIDE) / 2, PLOT_HIGH - 10);
    text_put(t, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">seconds of a step</text>\n</svg>\n",
             PLOT_HIGH / 2);
}

static const char *recomputation(const ls_layout *l)
{
    return l->recompute == LS_RECOMPUTE_NONE ? "none" : l->recompute == LS_RECOMPUTE_FULL ? "full" : "selective";
}

ls_status plan_html_search(const char *path, const char *title, const struct search_result *r, double room)
{
    struct text t = { 0 };
    char layout[LS_LAYOUT_TEXT];

    plan_html_put_head(&t, title);
    put_scatter(&t, r, room);
    text_put(&t,
             "<p>Each dot is a layout that fits, with its estimated price; circles are the layouts of the table, which were compiled.</p>\n"
             "<table>\n<tr><th></th><th>seconds</th><th>more</th><th>GiB</th><th>micro-batch</th><th>recomputation</th><th>layout</"
             "th></tr>\n");
    for (int i = 0; i < r->exact; i++) {
        const struct search_found *x = &r->best[i];

        text_put(&t, "<tr><td>%d</td><td>%.4g</td><td>%.1f%%</td><td>%.1f</td><td>%d x %d</td><td>%s</td><td>", i + 1, x->seconds.step,
                 100 * (x->seconds.step / r->best[0].seconds.step - 1), (double)x->plan.total / (1 << 30), x->layout.micro_batch,
                 x->layout.micro_batches, recomputation(&x->layout));
        text_add_xml(&t, ls_layout_text(&x->layout, layout, sizeof layout));
        text_put(&t, "</td></tr>\n");
    }
    text_put(&t, "</table>\n");
    return put_page(&t, path);
}

/* ---- a step ---- */

enum { LINE_WIDE = 1400, LINE_LEFT = 120, LINE_ROW = 22, LINE_STAGE = 92, LINE_MEMORY = 36, LINE_TOP = 40 };
#define LEAST_PIXELS 0.4

/* A box that is extended while the same activity continues. */
struct html_box {
    double begin, end;
    int kind; /* 0: none */
};

struct drawing {
    struct text *t;
    double scale; /* pixels per second; 0: the first pass, which finds the end and the micro-batches in flight */
    double end;
    int *rank;               /* [stages] 1 + the rank that is shown */
    struct html_box *row[2]; /* [stages] program, communication */
    int *flying, *most;      /* [stages] micro-batches in flight, and the most */
    double *since;           /* [stages] since when this number is in flight */
    struct html_box *action; /* [stages] the current action: its kind plus 1 */
    const struct stage_bytes *bytes;
    double highest;          /* bytes */
    ls_action_kind releases; /* the action after which a micro-batch's activations are free */
};

static const char *box_color(int kind)
{
    static const char *const colors[] = { "#ffffff", "#3a7acc", "#389458", "#8b5cbe", "#555555", "#e0a02c", "#f3d9d6" };

    return colors[kind];
}

enum { BOX_COLLECTIVE = 5, BOX_WAIT = 6 };

static void box_flush(struct drawing *d, struct html_box *b, int stage, int row)
{
    double x = LINE_LEFT + b->begin * d->scale, wide = fmax((b->end - b->begin) * d->scale, LEAST_PIXELS);

    if (d->scale > 0 && b->kind)
        text_put(d->t, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", x,
                 LINE_TOP + stage * LINE_STAGE + row * LINE_ROW, wide, LINE_ROW - 4, box_color(b->kind));
    b->kind = 0;
}

static void box_add(struct drawing *d, int stage, int row, int kind, double begin, double end)
{
    struct html_box *b = &d->row[row][stage];

    if (b->kind == kind && (begin - b->end) * d->scale < LEAST_PIXELS) {
        b->end = fmax(b->end, end);
        return;
    }
    box_flush(d, b, stage, row);
    *b = (struct html_box){ begin, end, kind };
}

/* Draws the memory since the last change, as a box on the stage's base line. */
static void memory_until(struct drawing *d, int stage, double now)
{
    double flying = (double)d->flying[stage] / MAX(d->most[stage], 1);
    double bytes = d->bytes[stage].always + flying * d->bytes[stage].activations, high = LINE_MEMORY * bytes / fmax(d->highest, 1);
    double base = LINE_TOP + stage * LINE_STAGE + 2 * LINE_ROW + LINE_MEMORY;

    if (d->scale > 0 && now > d->since[stage])
        text_put(d->t, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#c9d7e8\"/>\n",
                 LINE_LEFT + d->since[stage] * d->scale, base - high, (now - d->since[stage]) * d->scale, high);
    d->since[stage] = now;
}

static void draw_event(void *ctx, const struct sim_event *e)
{
    struct drawing *d = ctx;
    struct html_box *a = &d->action[e->stage];
    int kind = e->action + 1 + 4 * e->micro + 4096 * e->chunk;

    if (!d->rank[e->stage]) d->rank[e->stage] = e->rank + 1;
    if (d->rank[e->stage] != e->rank + 1) return;
    d->end = fmax(d->end, e->end);
    if (e->kind == SIM_COLLECTIVE || e->kind == SIM_COPY)
        box_add(d, e->stage, 1, BOX_COLLECTIVE, e->begin, e->end);
    else
        box_add(d, e->stage, 0, e->kind == SIM_KERNELS ? e->action + 1 : BOX_WAIT, e->begin, e->end);
    if (e->kind != SIM_KERNELS || a->kind == kind) return;
    /* A micro-batch is in flight from the start of its forward to the end of the action that releases it, which is the start of the next
     * action. */
    if (e->action == LS_ACTION_FORWARD || a->end > 0) memory_until(d, e->stage, e->begin);
    d->flying[e->stage] -= a->end > 0;
    d->flying[e->stage] += e->action == LS_ACTION_FORWARD;
    d->most[e->stage] = MAX(d->most[e->stage], d->flying[e->stage]);
    *a = (struct html_box){ 0, e->action == (int)d->releases, kind };
}

static ls_status draw_pass(struct drawing *d, struct step_sim *s)
{
    int stages = step_sim_stages(s);
    struct sim_step step;

    for (int i = 0; i < stages; i++) {
        d->row[0][i] = d->row[1][i] = d->action[i] = (struct html_box){ 0 };
        d->flying[i] = 0;
        d->since[i] = 0;
    }
    LS_TRY(step_sim_play(s, 0, draw_event, d, &step));
    for (int i = 0; i < stages; i++) {
        memory_until(d, i, step.seconds);
        d->highest = fmax(d->highest, d->bytes[i].always + d->bytes[i].activations);
        box_flush(d, &d->row[0][i], i, 0);
        box_flush(d, &d->row[1][i], i, 1);
    }
    return LS_OK;
}

static void put_legend(struct text *t)
{
    static const struct {
        const char *name;
        int kind;
    } keys[] = {
        { "forward", 1 }, { "backward", 2 }, { "weight gradients", 3 }, { "optimizer", 4 }, { "collectives", 5 }, { "waiting", 6 }
    };

    for (size_t i = 0; i < COUNT_OF(keys); i++)
        text_put(t, "<rect x=\"%zu\" y=\"10\" width=\"14\" height=\"14\" fill=\"%s\"/><text x=\"%zu\" y=\"22\">%s</text>\n",
                 LINE_LEFT + 150 * i, box_color(keys[i].kind), LINE_LEFT + 20 + 150 * i, keys[i].name);
}

static void put_labels(struct drawing *d, int stages)
{
    char size[16];

    for (int i = 0; i < stages; i++) {
        int y = LINE_TOP + i * LINE_STAGE;

        text_put(d->t, "<text x=\"8\" y=\"%d\">stage %d, rank %d</text>\n<text x=\"8\" y=\"%d\">communication</text>\n", y + 14, i,
                 d->rank[i] - 1, y + LINE_ROW + 14);
        text_put(d->t, "<text x=\"8\" y=\"%d\">%s</text>\n", y + 2 * LINE_ROW + 24,
                 text_bytes(size, (size_t)(d->bytes[i].always + d->bytes[i].activations)));
    }
    double step = tick_of(d->end);
    for (double v = 0; v <= d->end; v += step)
        text_put(d->t, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g s</text>\n", LINE_LEFT + v * d->scale,
                 LINE_TOP + stages * LINE_STAGE + 16, v);
}

static ls_status draw_step(struct drawing *d, struct step_sim *s)
{
    int stages = step_sim_stages(s), high = LINE_TOP + stages * LINE_STAGE + 30;

    LS_TRY(draw_pass(d, s));
    d->scale = LINE_WIDE / d->end;
    text_put(d->t, "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", LINE_LEFT + LINE_WIDE + 40, high, LINE_LEFT + LINE_WIDE + 40,
             high);
    put_legend(d->t);
    LS_TRY(draw_pass(d, s));
    put_labels(d, stages);
    text_put(d->t,
             "</svg>\n<p>One rank of each stage: its program, its communication, and its memory (parameters, gradients and optimizer state "
             "throughout, activations of the micro-batches in flight).</p>\n");
    return LS_OK;
}

ls_status plan_html_step(const char *path, const char *title, struct step_sim *s, const struct stage_bytes *bytes)
{
    size_t n = (size_t)step_sim_stages(s);
    struct text t = { 0 };
    struct drawing d = { .t = &t, .bytes = bytes, .releases = step_sim_splits(s) ? LS_ACTION_WEIGHTS : LS_ACTION_BACKWARD };
    struct html_box *boxes = mem_array(MEM_OTHER, 3 * n, sizeof *boxes);
    int *counts = mem_array(MEM_OTHER, 3 * n, sizeof *counts);
    ls_status st = LS_ENOMEM;

    d.since = mem_array(MEM_OTHER, n, sizeof *d.since);
    if (boxes && counts && d.since) {
        d.row[0] = boxes, d.row[1] = boxes + n, d.action = boxes + 2 * n;
        d.rank = counts, d.flying = counts + n, d.most = counts + 2 * n;
        plan_html_put_head(&t, title);
        st = draw_step(&d, s);
    }
    mem_free(d.since);
    mem_free(counts);
    mem_free(boxes);
    if (st == LS_OK) return put_page(&t, path);
    text_free(&t);
    return st;
}
