/* cost.c - see cost.h. */
#include "train/run/cost.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "runtime/store.h"

ls_status cost_open(const struct ranks *ranks, uint64_t after, struct cost *out)
{
    struct cost c = { .ranks = *ranks, .after = after, .loss = NAN };

    if (ranks->size > 1) {
        c.to = mem_zalloc(MEM_OTHER, 2 * (size_t)ranks->size * sizeof *c.to);
        if (!c.to) return LS_ENOMEM;
        c.before = c.to + ranks->size;
    }
    *out = c;
    return LS_OK;
}

void cost_close(struct cost *c)
{
    mem_free(c->to);
    *c = (struct cost){ 0 };
}

void cost_begin(struct cost *c)
{
    for (int r = 0; c->to && !c->running && r < c->ranks.size; r++) c->before[r] = ls_comm_bytes_to(c->ranks.comm, r);
    c->running = true;
}

static void cost_count(struct cost *c)
{
    for (int r = 0; r < c->ranks.size; r++) {
        uint64_t now = ls_comm_bytes_to(c->ranks.comm, r);

        c->to[r] += now - c->before[r];
        c->before[r] = now;
    }
}

ls_status cost_settle(struct cost *c, ls_store *store)
{
    if (!c->to || !c->running) return LS_OK;
    LS_TRY(store_gathers_wait(store));
    cost_count(c);
    c->running = false;
    return LS_OK;
}

void cost_end(struct cost *c, const struct metrics *m)
{
    if (!c->to) return;
    cost_count(c);
    c->seconds[c->steps++ % COST_SECONDS] = m->step_seconds;
    c->peak = MAX(c->peak, m->memory.total_peak);
    if (m->step == c->after) c->loss = m->loss;
    c->updates += m->updates;
    c->stale += m->stale * (double)m->updates;
    c->stale_most = MAX(c->stale_most, m->stale_most);
}

/* ---- of all ranks ---- */

/* A row per rank: its bytes to every rank, and its peak. */
static void cost_compare(const uint64_t *rows, int n, double steps, struct cost_figures *f)
{
    size_t width = (size_t)n + 1;

    f->first = (size_t)rows[n];
    for (int r = 0; r < n; r++) {
        uint64_t out = 0, in = 0;

        for (int other = 0; other < n; other++) {
            out += rows[(size_t)r * width + (size_t)other];
            in += rows[(size_t)other * width + (size_t)r];
        }
        if (r > 0) f->others = MAX(f->others, (size_t)rows[(size_t)r * width + (size_t)n]);
        if ((double)(out + in) / steps <= f->sent + f->received) continue;
        f->sent = (double)out / steps;
        f->received = (double)in / steps;
        f->busiest = r;
    }
}

ls_status cost_share(const struct cost *c, struct cost_figures *out)
{
    struct cost_figures f = { .steps = c->steps,
                              .after = c->after,
                              .updates = c->updates,
                              .stale_most = c->stale_most,
                              .seconds = NAN,
                              .loss = c->loss,
                              .stale = c->updates ? c->stale / (double)c->updates : NAN };
    size_t width = (size_t)c->ranks.size + 1;
    double sorted[COST_SECONDS];
    uint64_t *rows;

    if (!c->to) return LS_OK;
    rows = mem_array(MEM_OTHER, width * width, sizeof *rows);
    if (!rows) return LS_ENOMEM;
    uint64_t *own = rows + width * (size_t)c->ranks.rank;
    memcpy(own, c->to, (size_t)c->ranks.size * sizeof *own);
    own[c->ranks.size] = c->peak;
    ls_status st = ls_all_gather(c->ranks.comm, own, rows, width, LS_I64, NULL);
    if (st == LS_OK && c->steps) {
        size_t n = (size_t)MIN(c->steps, (uint64_t)COST_SECONDS);

        memcpy(sorted, c->seconds, n * sizeof *sorted);
        f.seconds = base_median(sorted, n);
        cost_compare(rows, c->ranks.size, (double)c->steps, &f);
    }
    mem_free(rows);
    if (st == LS_OK) *out = f;
    return st;
}

void cost_put_json(const struct cost_figures *f, const char *name, struct json_out *out)
{
    json_begin_object(out, name);
    json_put_int(out, "steps", (int64_t)f->steps);
    json_put_real(out, "step_seconds", f->seconds);
    json_put_int(out, "busiest", f->busiest);
    json_put_real(out, "sent", f->sent);
    json_put_real(out, "received", f->received);
    json_put_int(out, "memory_rank_0", (int64_t)f->first);
    json_put_int(out, "memory_others", (int64_t)f->others);
    json_put_int(out, "loss_step", (int64_t)f->after);
    json_put_real(out, "loss", f->loss);
    if (f->updates) {
        json_put_int(out, "updates", (int64_t)f->updates);
        json_put_real(out, "staleness", f->stale);
        json_put_int(out, "staleness_most", (int64_t)f->stale_most);
    }
    json_end_object(out);
}
