/* export.c - the cards for Anki, and as one HTML page with numbers that were measured here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/mem.h"
#include "learn/answer.h"
#include "learn/learn.h"
#include "lockstep/pipeline.h"

/* With the first sizes, and what HTML reserves escaped. */
static void put_html(struct text *out, const struct card *c, const char *text)
{
    char *filled = card_fill(c, text, 0);

    if (filled) text_add_xml(out, filled);
    mem_free(filled);
}

/* ---- Anki ---- */

/* A field: HTML, without the tab that separates fields. A text of a card has no line feeds. */
static void put_anki_field(struct text *out, const struct card *c, const char *text)
{
    put_html(out, c, text);
    text_put(out, "\t");
}

ls_status learn_export_anki(struct learn *l, struct text *out)
{
    char number[TEXT_NUMBER_ROOM];

    text_put(out, "#separator:tab\n#html:true\n#guid column:1\n#columns:Id\tQuestion\tAnswer\tWhy\tTrade-off\tMistake\tNumber\tRun\tTags\n"
                  "#tags column:9\n");
    for (size_t i = 0; i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];

        if (!learn_in_topic(l, c)) continue;
        text_put(out, "lockstep-%s\t", c->id);
        put_anki_field(out, c, c->question);
        put_anki_field(out, c, c->answer);
        put_anki_field(out, c, c->why);
        put_anki_field(out, c, c->trade_off);
        put_anki_field(out, c, c->mistake);
        if (card_has_number(c)) {
            put_html(out, c, c->ask);
            snprintf(number, sizeof number, "%.6g", c->expected);
            text_put(out, " <b>%s%s%s</b>", number, c->unit ? " " : "", c->unit ? c->unit : "");
        }
        text_put(out, "\t<code>lockstep ");
        put_html(out, c, c->run);
        text_put(out, "</code>\tlockstep::%s lockstep::%s\n", c->topic, c->kind);
    }
    return text_status(out);
}

/* ---- HTML ---- */

static const char style[] =
    "<style>:root{color-scheme:light dark;--line:#8886;--soft:#8882}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:0 auto;padding:1rem}"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid var(--line)}"
    "details{border:1px solid var(--line);border-radius:.4rem;margin:.5rem 0;padding:.4rem .7rem}"
    "summary{cursor:pointer}summary small{opacity:.7;white-space:nowrap}dt{font-weight:600;margin-top:.5rem}dd{margin:0}"
    "code{background:var(--soft);padding:.1em .3em;border-radius:.2rem;overflow-wrap:anywhere}"
    "table{border-collapse:collapse;margin:.5rem 0}"
    "td,th{padding:.2rem 1rem .2rem 0;text-align:left;font-weight:400;border-bottom:1px solid var(--line)}"
    "nav a{display:inline-block;margin-right:.7rem}"
    /* A picture may be wider than the column. In a narrow window it shrinks to --least, where its text can still be read, then scrolls. */
    "figure{box-sizing:border-box;width:max-content;max-width:calc(100vw - 2rem);margin:1rem 0;position:relative;left:50%;"
    "transform:translateX(-50%);overflow-x:auto;background:#fff;color:#000;padding:.5rem;border-radius:.4rem}"
    "figure svg{display:block;height:auto;max-width:max(100%,var(--least))}figcaption{font-size:.9rem;contain:inline-size}</style>";

static void put_html_card(struct text *out, const struct card *c, const struct answer *a)
{
    text_put(out, "<details id=\"%s\"><summary>", c->id);
    put_html(out, c, c->question);
    text_put(out, " <small>%s</small></summary><dl><dt>Answer</dt><dd>", c->id);
    put_html(out, c, c->answer);
    text_put(out, "</dd><dt>Why</dt><dd>");
    put_html(out, c, c->why);
    text_put(out, "</dd><dt>Trade-off</dt><dd>");
    put_html(out, c, c->trade_off);
    text_put(out, "</dd><dt>Mistake</dt><dd>");
    put_html(out, c, c->mistake);
    text_put(out, "</dd></dl>");
    if (card_has_number(c)) {
        text_put(out, "<p><b>");
        put_html(out, c, c->ask);
        text_put(out, "</b></p><table><tr><th scope=\"row\">claimed</th><td>");
        text_put(out, isfinite(a->claimed) ? "%.6g" : "-", a->claimed);
        text_put(out, "</td></tr><tr><th scope=\"row\">measured here</th><td>");
        text_put(out, isfinite(a->measured) ? "<b>%.6g</b> " : "-", a->measured);
        if (c->unit && isfinite(a->measured)) text_add_xml(out, c->unit);
        text_put(out, "</td></tr></table>");
    }
    text_put(out, "<p><code>lockstep ");
    put_html(out, c, c->run);
    text_put(out, "</code>%s</p></details>\n", a->code ? " (failed here)" : "");
}

/* Begins a figure whose picture is `width` pixels wide. */
static void put_figure(struct text *out, double width) { text_put(out, "<figure tabindex=\"0\" style=\"--least:%.0fpx\">", 0.92 * width); }

static double svg_width(const char *svg)
{
    static const char attribute[] = " width=\"";
    const char *at = strstr(svg, attribute);

    return at ? strtod(at + strlen(attribute), NULL) : 0;
}

static ls_status put_schedule(struct text *out, const char *name, int chunks, const char *caption)
{
    ls_pipeline_schedule s;
    char *svg = NULL;

    LS_TRY(ls_pipeline_schedule_make(name, 4, chunks, 8, &s));
    ls_status st = ls_pipeline_svg(&s, NULL, &svg);
    if (st == LS_OK) {
        put_figure(out, svg_width(svg));
        text_put(out, "%s<figcaption>%s</figcaption></figure>\n", svg, caption);
    }
    ls_free(svg);
    ls_pipeline_schedule_free(&s);
    return st;
}

/* Micro-batches whose activations rank 0 holds, over time: up when a forward begins, down when the backward of it ends. */
static ls_status put_memory_line(struct text *out, const char *name, double scale_x, double scale_y, int height, const char *dash)
{
    static const double forward[4] = { 1, 1, 1, 1 }, backward[4] = { 2, 2, 2, 2 };
    ls_pipeline_times times = { .forward = forward, .backward = backward, .weights = forward };
    ls_pipeline_timeline played;
    ls_pipeline_schedule s;
    int held = 0;

    LS_TRY(ls_pipeline_schedule_make(name, 4, 1, 8, &s));
    ls_status st = ls_pipeline_play(&s, &times, &played);
    if (st == LS_OK) {
        text_put(out, "<path fill=\"none\" stroke=\"#000\" stroke-width=\"2\" stroke-dasharray=\"%s\" d=\"M40 %d", dash, height);
        for (int i = 0; i < s.count[0]; i++) {
            bool up = s.list[0][i].kind == LS_ACTION_FORWARD;

            held += up ? 1 : -1;
            text_put(out, "H%.1fV%.1f", 40 + scale_x * (played.begin[0][i] + (up ? 0 : 2)), height - scale_y * held);
        }
        text_put(out, "\"/>");
        ls_pipeline_played_free(&s, &played);
    }
    ls_pipeline_schedule_free(&s);
    return st;
}

static ls_status put_memory(struct text *out)
{
    enum { HEIGHT = 180 };

    put_figure(out, 640);
    text_put(out,
             "<svg viewBox=\"0 0 640 220\" width=\"640\" font-family=\"sans-serif\" font-size=\"12\">"
             "<path d=\"M40 10V%d H630\" fill=\"none\" stroke=\"#888\"/>",
             HEIGHT);
    for (int held = 0; held <= 8; held += 2)
        text_put(out, "<text x=\"34\" y=\"%d\" text-anchor=\"end\">%d</text>", HEIGHT - 20 * held + 4, held);
    LS_TRY(put_memory_line(out, "gpipe", 16, 20, HEIGHT, "none"));
    LS_TRY(put_memory_line(out, "1f1b", 16, 20, HEIGHT, "6 4"));
    text_put(out,
             "<text x=\"330\" y=\"%d\" text-anchor=\"middle\">time</text></svg><figcaption>Micro-batches whose activations the first of 4 "
             "stages holds, 8 micro-batches: GPipe (line) and 1F1B (dashes).</figcaption></figure>\n",
             HEIGHT + 24);
    return LS_OK;
}

/* Amdahl: speed-up on 1 to 256 ranks, for shares of serial work. */
static void put_scaling(struct text *out)
{
    static const double serial[] = { 0.01, 0.02, 0.05, 0.1 };

    put_figure(out, 640);
    text_put(out, "<svg viewBox=\"0 0 640 240\" width=\"640\" font-family=\"sans-serif\" font-size=\"12\">"
                  "<path d=\"M40 10V200H560\" fill=\"none\" stroke=\"#888\"/>");
    for (int k = 0; k <= 8; k++) text_put(out, "<text x=\"%d\" y=\"216\" text-anchor=\"middle\">%d</text>", 40 + 64 * k, 1 << k);
    for (int y = 0; y <= 60; y += 20) text_put(out, "<text x=\"34\" y=\"%d\" text-anchor=\"end\">%d</text>", 204 - 3 * y, y);
    for (size_t i = 0; i < COUNT_OF(serial); i++) {
        double speedup = 1;

        text_put(out, "<path fill=\"none\" stroke=\"#000\" stroke-width=\"2\" d=\"");
        for (int k = 0; k <= 64; k++) {
            double n = exp2(k / 8.0);

            speedup = 1 / (serial[i] + (1 - serial[i]) / n);
            if (3 * speedup < 190) text_put(out, "%s%.1f %.1f", k ? "L" : "M", 40 + 8.0 * k, 200 - 3 * speedup);
        }
        text_put(out, "\"/><text x=\"%d\" y=\"%.0f\">%g%%</text>", 3 * speedup < 190 ? 558 : 480,
                 3 * speedup < 190 ? 204 - 3 * speedup : 14, 100 * serial[i]);
    }
    text_put(out, "<text x=\"300\" y=\"234\" text-anchor=\"middle\">ranks</text></svg><figcaption>Speed-up at a fixed size of the problem, "
                  "by the "
                  "share of serial work (Amdahl).</figcaption></figure>\n");
}

static ls_status put_pictures(struct text *out)
{
    text_put(out, "<h2 id=\"pictures\">Pictures</h2>\n");
    LS_TRY(put_schedule(out, "gpipe", 1, "GPipe: 4 stages, 8 micro-batches. All forwards, then all backwards."));
    LS_TRY(put_schedule(out, "1f1b", 1, "1F1B: the same bubble; at most 4 micro-batches are held."));
    LS_TRY(put_schedule(out, "interleaved", 2, "Interleaved, 2 chunks a rank: a smaller bubble for more messages."));
    LS_TRY(put_schedule(out, "zb-h1", 1, "Zero bubble (H1): weight gradients fill the bubble."));
    LS_TRY(put_memory(out));
    put_scaling(out);
    return LS_OK;
}

static ls_status measure_cards(const struct learn *l, struct answer *answer)
{
    struct answer_cache cache = { 0 };
    bool shown = isatty(STDERR_FILENO);
    ls_status st = LS_OK;

    for (size_t i = 0; st == LS_OK && i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];

        if (!learn_in_topic(l, c)) continue;
        if (shown) fprintf(stderr, "\rrunning %-6s", c->id);
        st = answer_run(c, 0, &cache, NULL, NULL, &answer[i]);
        if (st == LS_EFORMAT) st = LS_OK; /* not measurable here: the page says so */
    }
    if (shown) fprintf(stderr, "\r%40s\r", "");
    answer_cache_free(&cache);
    return st;
}

static ls_status put_page(const struct learn *l, const struct answer *answer, struct text *out)
{
    const char *topic = "";
    char date[16];
    time_t now = (time_t)l->now;

    strftime(date, sizeof date, "%Y-%m-%d", localtime(&now));
    text_put(out,
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, "
             "initial-scale=1\"><title>lockstep: practice</title>%s</head><body>\n<h1>Distributed training, answered by running it</h1>\n"
             "<p>Numbers were measured on this machine on %s, on %d cores. Say the answer aloud, then open the card.</p>\n<nav>",
             style, date, cores_count());
    for (size_t i = 0; i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];

        if (learn_in_topic(l, c) && strcmp(topic, c->topic) != 0) text_put(out, "<a href=\"#%s\">%s</a>", c->topic, c->topic);
        topic = c->topic;
    }
    text_put(out, "<a href=\"#pictures\">pictures</a></nav>\n");
    topic = "";
    for (size_t i = 0; i < l->cards.count; i++) {
        const struct card *c = &l->cards.card[i];

        if (!learn_in_topic(l, c)) continue;
        if (strcmp(topic, c->topic) != 0) text_put(out, "<h2 id=\"%s\">%s</h2>\n", c->topic, c->topic);
        topic = c->topic;
        put_html_card(out, c, &answer[i]);
    }
    LS_TRY(put_pictures(out));
    text_put(out, "</body></html>\n");
    return text_status(out);
}

ls_status learn_export_html(struct learn *l, struct text *out)
{
    struct answer *answer = mem_array(MEM_OTHER, l->cards.count + 1, sizeof *answer);
    ls_status st = answer ? measure_cards(l, answer) : LS_ENOMEM;

    if (st == LS_OK) st = put_page(l, answer, out);
    mem_free(answer);
    return st;
}
