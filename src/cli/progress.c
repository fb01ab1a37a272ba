/* progress.c - shows the progress of a training run. */
#include "cli/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/text.h"
#include "cli/terminal.h"

static const double REDRAW_SECONDS = 0.1, SMOOTH = 0.9, DATA_MATTERS = 0.03;

void progress_begin(struct progress *p, bool quiet)
{
    *p = (struct progress){ .quiet = quiet, .terminal = terminal_is(), .began = base_now() };
}

char *progress_duration(char out[24], double seconds)
{
    long long s = seconds > 0 && seconds < 1e9 ? (long long)(seconds + 0.5) : 0;

    if (s >= 3600)
        snprintf(out, 24, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 24, "%lld:%02lld", s / 60, s % 60);
    return out;
}

bool progress_time(char out[PROGRESS_TIME], const struct trainer *t, const double time[METRICS_TIMES])
{
    bool ranks = t->ranks.size > 1, has[METRICS_TIMES] = { true, ranks, t->step.pipeline != NULL, true, true, true };
    double sum = 0;
    size_t at = 0;

    out[0] = '\0';
    for (int i = 0; i < METRICS_TIMES; i++) sum += time[i];
    if (!(sum > 0) || (!ranks && time[METRICS_DATA] < DATA_MATTERS * sum)) return false;
    for (int i = 0; i < METRICS_TIMES && at < PROGRESS_TIME; i++)
        if (has[i])
            at += (size_t)snprintf(out + at, PROGRESS_TIME - at, "%s%s%s %.0f%%", at ? "  " : "", metrics_time_name((enum metrics_time)i),
                                   i == METRICS_EXPOSED ? " comm" : "", 100 * time[i] / sum);
    return true;
}

/* Updates the smoothed figures. The first step, which is slower, is ignored as soon as there is a second one. */
static void smooth(struct progress *p, const struct trainer *t, const struct metrics *m)
{
    uint64_t made = m->step - t->first_step;

    p->seconds = made <= 2 ? m->step_seconds : SMOOTH * p->seconds + (1 - SMOOTH) * m->step_seconds;
    if (!isfinite(m->loss)) return; /* the step was skipped */
    p->loss = made <= 1 || p->loss == 0 ? m->loss : SMOOTH * p->loss + (1 - SMOOTH) * m->loss;
}

/* ---- a line every few steps ---- */

static void put_line(const struct trainer *t, const struct metrics *m, double left)
{
    char split[PROGRESS_TIME], stamp[32], rate[32], eta[24];
    time_t now = time(NULL);
    struct tm utc;

    gmtime_r(&now, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &utc);
    printf("%s  step %*" PRIu64 "/%" PRId64 "  loss %.4f  grad_norm %.3f  lr %.2e  %s %s/s", stamp,
           (int)(log10((double)MAX(t->config->train.steps, 1)) + 1), m->step, t->config->train.steps, m->loss, m->grad_norm, m->lr,
           text_count(rate, (int64_t)m->tokens_per_second), t->step.model.task->units);
    if (!isnan(m->mfu)) printf("  mfu %.1f%%", 100 * m->mfu);
    if (m->evaluated) printf("  val_loss %.4f", m->val_loss);
    printf("  eta %s\n", progress_duration(eta, left));
    if (progress_time(split, t, m->time)) printf("%*s%s\n", (int)strlen(stamp) + 2, "", split);
    fflush(stdout);
}

/* ---- the bar ---- */

static void put_bar(double share, int width)
{
    int full = (int)(share * width + 0.5);

    fputs(terminal_style(STYLE_GREEN), stdout);
    for (int i = 0; i < full; i++) fputs("━", stdout);
    fputs(terminal_style(STYLE_DIM), stdout);
    for (int i = full; i < width; i++) fputs("─", stdout);
    fputs(terminal_style(STYLE_PLAIN), stdout);
}

/* Shortens `words`, which consists of fields that begin with two spaces, to the fields that fit into `room` columns. */
static void fit_fields(char *words, int room)
{
    int length = (int)strlen(words);

    while (length > room) {
        while (length > 0 && !(words[length - 1] == ' ' && words[length] == ' ')) length--;
        words[length = MAX(length - 1, 0)] = '\0';
    }
}

/* Draws the line for the terminal's current width, because a line that wraps could not be redrawn: on a narrow terminal the bar is left out
 * first, then the last fields, then the end of the head. The last column stays empty, because some terminals wrap when it is written. */
static void progress_draw(struct progress *p, char *head, double share, char *words)
{
    int columns = terminal_width() - 1;

    head[MIN((size_t)columns, strlen(head))] = '\0';
    fit_fields(words, columns - (int)strlen(head));
    int bar = columns - (int)strlen(head) - (int)strlen(words);

    printf("\r\033[K%s%s%s", terminal_style(STYLE_BOLD), head, terminal_style(STYLE_PLAIN));
    if (bar >= 8) put_bar(share, MIN(bar, 40));
    fputs(words, stdout);
    fflush(stdout);
    p->drawn = true;
    p->drawn_at = base_now();
}

static void redraw(struct progress *p, const struct trainer *t, const struct metrics *m, double left)
{
    char head[64], words[192], waits[64] = "", rate[32], eta[24], share_of_peak[24] = "";
    int64_t steps = t->config->train.steps;
    double share = (double)m->step / (double)MAX(steps, 1), mfu = step_model_flops(&t->step) / p->seconds / t->peak_flops;

    snprintf(head, sizeof head, "step %" PRIu64 "/%" PRId64 "  %3.0f%% ", m->step, steps, 100 * share);
    if (!isnan(mfu)) snprintf(share_of_peak, sizeof share_of_peak, "  mfu %2.0f%%", 100 * mfu);
    if (t->ranks.size > 1)
        snprintf(waits, sizeof waits, "  comm %.0f%%", 100 * (m->time[METRICS_EXPOSED] + m->time[METRICS_BUBBLE]) / m->step_seconds);
    snprintf(words, sizeof words, "  loss %.3f  %s %s/s%s  %s left%s", p->loss, text_count(rate, (int64_t)((double)m->tokens / p->seconds)),
             t->step.model.task->unit_short, share_of_peak, progress_duration(eta, left), waits);
    progress_draw(p, head, share, words);
}

void progress_evaluating(void *ctx, size_t done, size_t all)
{
    struct progress *p = ctx;
    double share = (double)done / (double)MAX(all, (size_t)1), seconds = base_now() - p->began;
    char head[64], words[96] = "", rate[32], eta[24];

    if (p->quiet || !p->terminal || (p->drawn && base_now() - p->drawn_at < REDRAW_SECONDS)) return;
    snprintf(head, sizeof head, "sample %zu/%zu  %3.0f%% ", done, all, 100 * share);
    if (done)
        snprintf(words, sizeof words, "  %s samples/s  %s left", text_count(rate, (int64_t)((double)done / seconds)),
                 progress_duration(eta, seconds * (1 - share) / share));
    else
        p->began = base_now();
    progress_draw(p, head, share, words);
}

void progress_clear(void *ctx)
{
    struct progress *p = ctx;

    if (p->drawn) fputs("\r\033[K", stdout);
    fflush(stdout);
    p->drawn = false;
}

static void put_evaluation(struct progress *p, const struct trainer *t, const struct metrics *m)
{
    char rate[32];

    progress_clear(p);
    printf("step %" PRIu64 "/%" PRId64 "  loss %.4f  %sval_loss %.4f%s  lr %.2e  %s %s/s\n", m->step, t->config->train.steps, p->loss,
           terminal_style(STYLE_CYAN), m->val_loss, terminal_style(STYLE_PLAIN), m->lr,
           text_count(rate, (int64_t)((double)m->tokens / p->seconds)), t->step.model.task->units);
}

void progress_fixed(void *ctx, const struct trainer *t, const char *line)
{
    const struct progress *p = ctx;

    (void)t;
    if (p->quiet) return;
    printf("%s\n\n", line);
    fflush(stdout);
}

void progress_stepped(void *ctx, const struct trainer *t, const struct metrics *m)
{
    struct progress *p = ctx;
    uint64_t steps = (uint64_t)t->config->train.steps, every = (uint64_t)t->config->log.every;

    smooth(p, t, m);
    double left = (double)(steps - m->step) * p->seconds;
    if (p->quiet) return;
    if (!p->terminal) {
        if (m->step % every == 0 || m->step == steps || m->evaluated || m->step == t->first_step + 1) put_line(t, m, left);
        return;
    }
    if (m->evaluated) put_evaluation(p, t, m);
    if (m->step < steps && (!p->drawn || base_now() - p->drawn_at >= REDRAW_SECONDS))
        redraw(p, t, m, left);
    else if (m->step == steps)
        progress_clear(p);
}

void progress_saved(void *ctx, const struct trainer *t, const char *path)
{
    struct progress *p = ctx;

    if (p->quiet || t->state.step == (uint64_t)t->config->train.steps) return;
    progress_clear(p);
    printf("saved %s\n", path);
    fflush(stdout);
}
