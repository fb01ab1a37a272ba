/* parity_routes.c - records the choices of experts, and replaces them by the reference's right after the op that makes them, so that all
 * later readers in forward and backward use the reference's choices.
 */
#include "train/parity/parity_routes.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "ir/op_info.h"
#include "kernels/cpu/route.h"

enum { CHOSEN_MOST = 256 };

struct seen {
    const struct instruction *at;
    size_t times; /* micro-batches of this step so far */
};

struct parity_routes {
    const struct step *step;
    const char *path, *follow;
    double threshold;
    size_t chosen, width;
    bool counts;       /* this rank records the choices, of all ranks that route the same tokens */
    struct seen *seen; /* [routers] */
    size_t routers;
    int32_t *row; /* [room, width] rows of this rank */
    size_t rows, room;
    int32_t *known; /* [layers, global, T, K] the reference's choices */
    bool follows;
    double *score; /* [E] */
    ls_status status;
};

/* ---- one token ---- */

struct token {
    const float *logits;
    float *weight;
    int32_t *own;
    const int32_t *other;
};

static int32_t expert_of(int32_t index) { return index < 0 ? ~index : index; }

/* 0: different experts; 1: the same experts; 2: the same experts, and the same of them drop the token. */
static int compare_choices(const int32_t *x, const int32_t *y, size_t K)
{
    int alike = 2;

    for (size_t i = 0; i < K; i++) {
        size_t j = 0;

        while (j < K && expert_of(y[j]) != expert_of(x[i])) j++;
        if (j == K) return 0;
        if (y[j] != x[i]) alike = 1;
    }
    return alike;
}

static void score_token(const struct parity_routes *r, const struct call *c, const float *logits)
{
    size_t E = r->step->model.transformer.experts;
    double most = -INFINITY, sum = 0;

    for (size_t e = 0; e < E; e++) most = fmax(most, logits[e]);
    for (size_t e = 0; e < E; e++)
        sum += r->score[e] = c->attr.route.sigmoid ? 1 / (1 + exp(-(double)logits[e])) : exp((double)logits[e] - most);
    for (size_t e = 0; e < E && !c->attr.route.sigmoid; e++) r->score[e] /= sum;
}

static double bias_of(const struct call *c, int32_t expert)
{
    const struct view *v = &c->in[1];
    double x;

    ls_convert(&x, LS_F64, (const char *)v->data + expert * v->stride[0] * (ptrdiff_t)ls_dtype_bytes(v->dtype), v->dtype, 1);
    return x;
}

/* How far the best expert that only this side chose is ahead of the worst that only the other side chose, as a difference of logits. With a
 * bias it is the difference of the biased scores, divided by the larger slope of the scores. */
static double distance_of(const struct parity_routes *r, const struct call *c, const struct token *t)
{
    bool bias = call_has_in(c, 1);
    double best = -INFINITY, worst = INFINITY, slope = 0;

    score_token(r, c, t->logits);
    for (size_t i = 0; i < r->chosen; i++) {
        int32_t pair[2] = { expert_of(t->own[i]), expert_of(t->other[i]) };
        bool shared[2] = { false, false };

        for (size_t j = 0; j < r->chosen; j++) {
            shared[0] = shared[0] || expert_of(t->other[j]) == pair[0];
            shared[1] = shared[1] || expert_of(t->own[j]) == pair[1];
        }
        for (int k = 0; k < 2; k++) {
            double s = r->score[pair[k]], x = bias ? s + bias_of(c, pair[k]) : t->logits[pair[k]];

            if (shared[k]) continue;
            slope = fmax(slope, s * (1 - s));
            if (k == 0)
                best = fmax(best, x);
            else
                worst = fmin(worst, x);
        }
    }
    return !bias ? best - worst : slope > 0 ? (best - worst) / slope : INFINITY;
}

/* Adopts the reference's choice, weighted by this side's scores. */
static void take_choice(const struct parity_routes *r, const struct call *c, const struct token *t)
{
    double sum = 0;

    score_token(r, c, t->logits);
    for (size_t k = 0; k < r->chosen; k++) sum += r->score[expert_of(t->other[k])];
    for (size_t k = 0; k < r->chosen; k++) {
        double s = r->score[expert_of(t->other[k])];

        t->own[k] = t->other[k];
        t->weight[k] = t->other[k] < 0 ? 0 : (float)(c->attr.route.normalize ? s / sum : s);
    }
}

/* ---- one router, one micro-batch ---- */

struct routed {
    const struct call *c;
    size_t layer, micro, T;
    bool full_sequence; /* each rank routes all tokens of its samples, not a shard of them */
    double scale;
};

static struct token token_at(const struct parity_routes *r, const struct routed *m, size_t b, size_t t, size_t *position)
{
    const struct step *s = r->step;
    const struct feed *f = &s->feed;
    size_t row = b * m->T + t, K = r->chosen, first = f->end[0] - f->begin[0];
    size_t sample = s->begin + m->micro * s->batch + b;

    *position = m->full_sequence ? t : t < first ? f->begin[0] + t : f->begin[1] + t - first;
    return (struct token){
        (const float *)m->c->in[0].data + row * s->model.transformer.experts,
        (float *)m->c->out[0].data + row * K,
        (int32_t *)m->c->out[1].data + row * K,
        r->follows ? r->known + (((m->layer * s->global) + sample) * s->seq_len + *position) * K : NULL,
    };
}

static ls_status add_row(struct parity_routes *r, const struct routed *m, size_t sample, size_t position, const int32_t *own,
                         enum parity_route_kind kind, double margin)
{
    float f = (float)margin;

    if (!r->counts || (m->full_sequence && r->step->ranks.mesh && ls_mesh_index(r->step->ranks.mesh, LS_GROUP_CP) > 0)) return LS_OK;
    if (r->rows == r->room) {
        size_t room = r->room ? 2 * r->room : 256;
        int32_t *grown = mem_resize(r->row, room * r->width * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        r->row = grown;
        r->room = room;
    }
    int32_t *at = r->row + r->rows++ * r->width;
    at[PARITY_ROUTE_LAYER] = (int32_t)m->layer;
    at[PARITY_ROUTE_SAMPLE] = (int32_t)sample;
    at[PARITY_ROUTE_TOKEN] = (int32_t)position;
    at[PARITY_ROUTE_KIND] = (int32_t)kind;
    memcpy(&at[PARITY_ROUTE_MARGIN], &f, sizeof f);
    memcpy(at + PARITY_ROUTE_HEAD, own, r->chosen * sizeof *own);
    return LS_OK;
}

/* moved: some tokens of this sample went to other experts than in the reference, which changes the load of those experts. */
static ls_status route_token(struct parity_routes *r, const struct routed *m, size_t b, size_t t, bool moved)
{
    enum parity_route_kind kind = ROUTE_SAME;
    int32_t own[CHOSEN_MOST];
    double margin = 0;
    size_t position;
    struct token at = token_at(r, m, b, t, &position);
    int alike = at.other ? compare_choices(at.own, at.other, r->chosen) : 2;

    memcpy(own, at.own, r->chosen * sizeof *own);
    if (alike == 0) {
        margin = distance_of(r, m->c, &at) / m->scale;
        kind = margin <= r->threshold ? ROUTE_TAKEN : ROUTE_BEYOND;
    } else if (alike == 1) {
        kind = moved || m->c->attr.route.by_probability ? ROUTE_DROPPED : ROUTE_BEYOND;
    }
    if (kind == ROUTE_TAKEN || kind == ROUTE_DROPPED) take_choice(r, m->c, &at);
    return add_row(r, m, r->step->begin + m->micro * r->step->batch + b, position, own, kind, margin);
}

static bool has_moved(const struct parity_routes *r, const struct routed *m, size_t b)
{
    size_t position;

    for (size_t t = 0; r->follows && t < m->T; t++) {
        struct token at = token_at(r, m, b, t, &position);

        if (compare_choices(at.own, at.other, r->chosen) == 0) return true;
    }
    return false;
}

struct router_context {
    struct parity_routes *r;
    struct routed m;
};

static ls_status route_micro_batch(void *ctx, const struct call *c)
{
    struct router_context *l = ctx;
    struct parity_routes *r = l->r;
    struct routed *m = &l->m;
    const struct step *s = r->step;
    const float *logits = c->in[0].data;
    size_t first = m->micro * s->batch, own = s->end - s->begin, samples = own > first ? MIN(own - first, s->batch) : 0;
    size_t count = samples * m->T * s->model.transformer.experts;
    ls_status st = LS_OK;
    double sum = 0;

    m->c = c;
    for (size_t i = 0; i < count; i++) sum += (double)logits[i] * logits[i];
    m->scale = sqrt(sum / (double)MAX(count, (size_t)1));
    if (!(m->scale > 0)) m->scale = 1;
    for (size_t b = 0; b < samples; b++) {
        bool moved = has_moved(r, m, b);

        for (size_t t = 0; t < m->T && st == LS_OK; t++) st = route_token(r, m, b, t, moved);
    }
    return st;
}

static size_t layer_of(const ls_program *p, const struct instruction *i)
{
    const char *name = p->blocks[i->block], *dot = name ? strrchr(name, '.') : NULL;

    ASSERT(dot);
    return (size_t)strtoul(dot + 1, NULL, 10);
}

static bool is_router(const struct instruction *i) { return (op_info(i->op)->traits & TRAIT_CHOICES) && i->phase == LS_PHASE_FORWARD; }

/* Routers that recomputation repeats are ignored: they must repeat the choices of forward. */
static void watch_routes(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended)
{
    struct parity_routes *r = ctx;

    (void)began;
    (void)ended;
    for (size_t n = 0; is_router(i) && n < r->routers && r->status == LS_OK; n++)
        if (r->seen[n].at == i) {
            struct routed m = { .layer = layer_of(p, i),
                                .micro = r->seen[n].times++,
                                .T = instruction_bound(p, i)->in[0].size[1],
                                .full_sequence = i->attr.route.shares > 1 };

            r->status = program_operands(p, i, route_micro_batch, &(struct router_context){ r, m });
        }
}

/* ---- open and close ---- */

static void watch_programs(const struct parity_routes *r, program_watch_fn *fn, void *ctx)
{
    ls_program *p;

    for (int k = 0; (p = step_program(r->step, k)); k++) program_watch(p, fn, ctx);
}

static ls_status find_routers(struct parity_routes *r)
{
    const ls_program *p;

    r->seen = mem_array(MEM_OTHER, r->step->model.transformer.layers, sizeof *r->seen);
    if (!r->seen) return LS_ENOMEM;
    for (int k = 0; (p = step_program(r->step, k)); k++)
        for (int n = 0; n < p->list[SEG_FORWARD].n; n++)
            if (is_router(&p->list[SEG_FORWARD].at[n]) && r->routers < r->step->model.transformer.layers)
                r->seen[r->routers++] = (struct seen){ &p->list[SEG_FORWARD].at[n], 0 };
    return LS_OK;
}

ls_status parity_routes_open(const struct step *s, double threshold, const char *path, const char *follow, struct parity_routes **out)
{
    const ls_model *m = &s->model.transformer;
    struct parity_routes *r;

    *out = NULL;
    if (!m->experts || m->experts_per_token > CHOSEN_MOST) return LS_OK;
    r = mem_zalloc(MEM_OTHER, sizeof *r);
    if (!r) return LS_ENOMEM;
    r->step = s;
    r->path = path;
    r->follow = follow;
    r->threshold = threshold;
    r->chosen = m->experts_per_token;
    r->width = PARITY_ROUTE_HEAD + r->chosen;
    r->counts = ls_mesh_index(s->ranks.mesh, LS_GROUP_TP) == 0;
    r->score = mem_array(MEM_OTHER, m->experts, sizeof *r->score);
    r->known = mem_array(MEM_OTHER, m->layers * s->global * s->seq_len * r->chosen, sizeof *r->known);
    ls_status st = r->score && r->known ? find_routers(r) : LS_ENOMEM;
    watch_programs(r, watch_routes, r);
    if (st == LS_OK)
        *out = r;
    else
        parity_routes_close(&r);
    return st;
}

void parity_routes_close(struct parity_routes **rp)
{
    struct parity_routes *r = *rp;

    if (!r) return;
    watch_programs(r, NULL, NULL);
    mem_free(r->seen);
    mem_free(r->row);
    mem_free(r->known);
    mem_free(r->score);
    mem_free(r);
    *rp = NULL;
}

/* ---- a step ---- */

static ls_status read_reference(struct parity_routes *r, const char *path, const struct file_map *m)
{
    const struct step *s = r->step;
    const struct parity_routes_head *head = (const void *)m->data;
    const ls_model *model = &s->model.transformer;
    size_t tokens = model->layers * s->global * s->seq_len;

    if (m->bytes < sizeof *head || head->count != tokens || head->width != r->width ||
        m->bytes != sizeof *head + tokens * r->width * sizeof *r->row)
        return ls_fail(LS_EFORMAT, "%s: malformed file: expected the choices of %zu experts for %zu tokens of all layers", path, r->chosen,
                       tokens);
    const int32_t *row = (const int32_t *)(head + 1);
    if (!isfinite(head->threshold))
        return ls_fail(LS_EFORMAT, "%s: malformed file: its threshold is %g, expected a finite number", path, head->threshold);
    r->threshold = fmax(r->threshold, head->threshold); /* that of the less precise type */
    for (size_t i = 0; i < tokens; i++, row += r->width) {
        size_t layer = (size_t)row[PARITY_ROUTE_LAYER], sample = (size_t)row[PARITY_ROUTE_SAMPLE], t = (size_t)row[PARITY_ROUTE_TOKEN];

        if (layer * s->global * s->seq_len + sample * s->seq_len + t != i || t >= s->seq_len || sample >= s->global)
            return ls_fail(LS_EFORMAT, "%s: malformed file: row %zu is for layer %zu, sample %zu, token %zu", path, i, layer, sample, t);
        for (size_t k = 0; k < r->chosen; k++)
            if ((size_t)expert_of(row[PARITY_ROUTE_HEAD + k]) >= model->experts)
                return ls_fail(LS_EFORMAT, "%s: malformed file: row %zu names an expert out of range; the model has %zu", path, i,
                               model->experts);
        memcpy(r->known + i * r->chosen, row + PARITY_ROUTE_HEAD, r->chosen * sizeof *row);
    }
    return LS_OK;
}

char *parity_routes_path(const char *path, uint64_t step) { return file_path("%s.routes.%" PRIu64, path, step); }

ls_status parity_routes_begin(struct parity_routes *r, uint64_t step)
{
    struct file_map m = { 0 };

    if (!r) return LS_OK;
    r->rows = 0;
    for (size_t n = 0; n < r->routers; n++) r->seen[n].times = 0;
    if (!r->follow) return LS_OK;
    char *path = parity_routes_path(r->follow, step);
    ls_status st = path ? file_map_open(path, &m) : LS_ENOMEM;
    if (st == LS_OK) st = read_reference(r, path, &m);
    r->follows = st == LS_OK;
    file_map_close(&m);
    mem_free(path);
    return st;
}

static int compare_rows(const void *x, const void *y)
{
    const int32_t *a = x, *b = y;

    for (int k = 0; k <= PARITY_ROUTE_TOKEN; k++)
        if (a[k] != b[k]) return a[k] < b[k] ? -1 : 1;
    return 0;
}

/* Gathers the rows of all ranks on every rank. */
static ls_status gather_rows(const struct parity_routes *r, int32_t **rows, size_t *count)
{
    const struct ranks *all = &r->step->ranks;
    size_t total = 0, bytes = r->width * sizeof *r->row, *each = mem_array(MEM_OTHER, (size_t)all->size, sizeof *each);
    int64_t own = (int64_t)(r->rows * bytes), *found = mem_array(MEM_OTHER, (size_t)all->size, sizeof *found);
    ls_status st = each && found ? LS_OK : LS_ENOMEM;

    if (st == LS_OK && all->comm)
        st = ls_all_gather(all->comm, &own, found, 1, LS_I64, NULL);
    else if (st == LS_OK)
        found[0] = own;
    for (int k = 0; st == LS_OK && k < all->size; k++) total += each[k] = (size_t)found[k];
    if (st == LS_OK && !(*rows = mem_alloc(MEM_OTHER, total + 1))) st = LS_ENOMEM;
    if (st == LS_OK && all->comm && total)
        st = ls_all_gather_v(all->comm, r->row ? r->row : *rows, *rows, each, LS_U8, NULL);
    else if (st == LS_OK && own)
        memcpy(*rows, r->row, (size_t)own);
    *count = total / bytes;
    mem_free(each);
    mem_free(found);
    return st;
}

static ls_status write_rows(const struct parity_routes *r, uint64_t step, const int32_t *rows, size_t count)
{
    struct parity_routes_head head = { count, r->width, r->threshold };
    char *path = parity_routes_path(r->path, step);
    file_writer *w = NULL;
    ls_status st = path ? file_writer_open(path, &w) : LS_ENOMEM;

    if (st == LS_OK) st = file_writer_put(w, &head, sizeof head);
    if (st == LS_OK) st = file_writer_put(w, rows, count * r->width * sizeof *rows);
    if (st == LS_OK) st = file_writer_publish(&w);
    file_writer_abandon(&w);
    mem_free(path);
    return st;
}

ls_status parity_routes_end(struct parity_routes *r, uint64_t step)
{
    int32_t *rows = NULL;
    size_t count = 0;

    if (!r) return LS_OK;
    LS_TRY(r->status);
    ls_status st = gather_rows(r, &rows, &count);
    if (st == LS_OK) {
        qsort(rows, count, r->width * sizeof *rows, compare_rows);
        st = ranks_agree(&r->step->ranks, r->step->ranks.rank == 0 ? write_rows(r, step, rows, count) : LS_OK);
    }
    mem_free(rows);
    return st;
}
