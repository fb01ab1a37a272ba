/* parity_compare.c - two files of parity.h, record by record. */
#include "train/parity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

const char *parity_kind_name(enum parity_kind k)
{
    static const char *const names[] = { "loss", "norm", "gradient", "weight", "state" };

    return names[k];
}

const char *parity_direction(enum parity_kind k)
{
    static const char *const names[] = { "forward", "backward", "backward", "optimizer", "checkpoint" };

    return names[k];
}

/* ---- reading ---- */

struct record { uint32_t kind, step; uint64_t name_bytes, count; const char *name; const unsigned char *data; };
struct reader { const char *path; struct file_map map; size_t at; };

static ls_status next(struct reader *r, struct record *out)
{
    const unsigned char *p = r->map.data + r->at;
    size_t left = r->map.bytes - r->at, bytes, head = 24;
    struct record x = { 0 };

    if (left < head) return ls_fail(LS_EFORMAT, "%s: cut at byte %zu", r->path, r->at);
    memcpy(&x.kind, p, 4);
    memcpy(&x.step, p + 4, 4);
    memcpy(&x.name_bytes, p + 8, 8);
    memcpy(&x.count, p + 16, 8);
    if (x.kind >= PARITY_KINDS || x.name_bytes > left - head ||
        !size_mul(x.count, x.kind <= PARITY_NORM ? 8 : 4, &bytes) || bytes > left - head - x.name_bytes)
        return ls_fail(LS_EFORMAT, "%s: no record at byte %zu", r->path, r->at);
    x.name = (const char *)p + head;
    x.data = p + head + x.name_bytes;
    r->at += head + x.name_bytes + bytes;
    *out = x;
    return LS_OK;
}

static bool same_tensor(const struct record *a, const struct record *b)
{
    return a->kind == b->kind && a->step == b->step && a->count == b->count && a->name_bytes == b->name_bytes &&
           memcmp(a->name, b->name, a->name_bytes) == 0;
}

static double element(const struct record *r, size_t i)
{
    double d;
    float f;

    if (r->kind <= PARITY_NORM) {
        memcpy(&d, r->data + 8 * i, 8);
        return d;
    }
    memcpy(&f, r->data + 4 * i, 4);
    return f;
}

/* ---- comparing ---- */

/* What weights may differ by beyond the bound: per element, summed over steps; by the order of gradients in a step. */
struct slack { char *name; size_t count; float *of; };
enum { SLACKS = 4096 };

struct comparison {
    const struct parity_bounds *bounds;
    struct parity_result *result;
    struct slack slack[SLACKS];
    int    slacks;
    double mean_square;  /* root of: of the step's whole gradient, from its norm */
    size_t elements;     /* of all gradients of a step */
    uint32_t first;      /* step whose weights are compared first */
    bool   norm_differs; /* told behind the gradients, which say more */
    struct parity_difference norm;
};

static struct slack *slack_of(struct comparison *c, const struct record *r)
{
    struct slack *s = c->slack;

    for (int i = 0; i < c->slacks; i++, s++)
        if (strlen(s->name) == r->name_bytes && memcmp(s->name, r->name, r->name_bytes) == 0) return s;
    return NULL;
}

static ls_status add_slack(struct comparison *c, const struct record *r, double noise)
{
    struct slack *s = slack_of(c, r);

    if (!s) {
        if (c->slacks == SLACKS) return ls_fail(LS_EUNSUPPORTED, "more than %d parameters", SLACKS);
        s = &c->slack[c->slacks];
        s->name = mem_alloc(MEM_OTHER, r->name_bytes + 1);
        s->of = mem_array(MEM_OTHER, r->count, sizeof *s->of);
        s->count = r->count;
        if (!s->name || !s->of) return LS_ENOMEM;
        memcpy(s->name, r->name, r->name_bytes);
        s->name[r->name_bytes] = '\0';
        c->slacks++;
    }
    for (size_t i = 0; i < r->count; i++) {
        double g = fabs(element(r, i)), share = noise < g ? noise / g : 1;

        s->of[i] += (float)(c->bounds->plain * noise + 2 * c->bounds->sensitive * share);
    }
    return LS_OK;
}

static double largest(const struct record *r)
{
    double most = 0;

    for (size_t i = 0; i < r->count; i++) most = fmax(most, fabs(element(r, i)));
    return most;
}

static double bound_of(const struct comparison *c, uint32_t kind, uint32_t step)
{
    double later = step > 0 ? c->bounds->later : 1;

    switch ((enum parity_kind)kind) {
    case PARITY_LOSS:     return c->bounds->loss;
    case PARITY_NORM:     return later * c->bounds->norm;
    case PARITY_GRADIENT: return later * c->bounds->gradient;
    case PARITY_STATE:    return 0;
    default:              return c->bounds->weight;
    }
}

/* The element that goes furthest beyond what it may; NaN against a number is as far as can be. */
static void examine(const struct comparison *c, const struct record *a, const struct record *b, double scale,
                    struct parity_difference *out, bool *beyond)
{
    const struct slack *s = a->kind == PARITY_WEIGHT ? slack_of((struct comparison *)c, a) : NULL;
    double allowed = bound_of(c, a->kind, a->step) * scale, worst = -1;

    *beyond = false;
    for (size_t i = 0; i < a->count; i++) {
        double x = element(a, i), y = element(b, i), d = fabs(x - y), may = allowed + (s && i < s->count ? s->of[i] : 0);
        double over = isnan(d) ? INFINITY : may > 0 ? d / may : d > 0 ? INFINITY : 0;

        if (a->kind == PARITY_STATE && memcmp(a->data + 4 * i, b->data + 4 * i, 4) != 0) over = INFINITY;
        if (over <= worst) continue;
        worst = over;
        out->element = i;
        out->a = x;
        out->b = y;
        out->relative = isnan(d) ? INFINITY : scale > 0 ? d / scale : d > 0 ? INFINITY : 0;
        out->allowed = scale > 0 ? may / scale : 0;
        out->ulp = d / (scale > 0 ? ldexp(1, ilogb(scale) - 23) : ldexp(1, -149));
        *beyond = over > 1;
    }
}

static void tell(struct parity_result *r, const struct parity_difference *d)
{
    if (r->equal) r->first = *d;
    r->equal = false;
}

static void tell_norm(struct comparison *c)
{
    if (c->norm_differs) tell(c->result, &c->norm);
    c->norm_differs = false;
}

static bool is_closer(const struct parity_difference *d, const struct parity_difference *most)
{
    if (d->relative == 0) return false;
    return most->relative == 0 || d->relative * most->allowed > most->relative * d->allowed;
}

static ls_status compare_record(struct comparison *c, const struct record *a, const struct record *b)
{
    struct parity_result *r = c->result;
    struct parity_difference d = { .kind = (enum parity_kind)a->kind, .step = a->step };
    double scale = fmax(largest(a), largest(b));
    bool beyond;

    if (a->kind == PARITY_GRADIENT) scale = fmax(scale, c->mean_square);
    snprintf(d.name, sizeof d.name, "%.*s", (int)MIN(a->name_bytes, sizeof d.name - 1), a->name);
    examine(c, a, b, scale, &d, &beyond);
    if (a->kind != PARITY_GRADIENT) tell_norm(c);
    if (beyond && a->kind == PARITY_NORM) {
        c->norm = d;
        c->norm_differs = true;
    } else if (beyond) {
        tell(r, &d);
    }
    if (a->kind == PARITY_GRADIENT) LS_TRY(add_slack(c, a, bound_of(c, a->kind, a->step) * scale));
    if (is_closer(&d, &r->largest[a->kind])) r->largest[a->kind] = d;
    r->compared++;
    r->same_bits += memcmp(a->data, b->data, a->count * (a->kind <= PARITY_NORM ? 8 : 4)) == 0;
    r->tensors += a->kind == PARITY_WEIGHT && a->step == c->first;
    r->states += a->kind == PARITY_STATE;
    if (a->kind == PARITY_LOSS) r->steps = a->step + 1 - c->first;
    return LS_OK;
}

/* Elements of all gradients of the first step, for the root mean square. */
static ls_status count_elements(struct reader r, size_t *out)
{
    struct record x;

    while (r.at < r.map.bytes) {
        LS_TRY(next(&r, &x));
        if (x.kind == PARITY_GRADIENT && x.step == 0) *out += x.count;
    }
    return LS_OK;
}

/* b may begin at a checkpoint: a is read up to there. */
static ls_status align(struct reader *a, const struct reader *b, struct comparison *c)
{
    struct reader ahead = *b;
    struct record x;

    if (b->at == b->map.bytes) return LS_OK;
    LS_TRY(next(&ahead, &x));
    if (x.kind != PARITY_STATE) return LS_OK;
    c->first = x.step + 1;
    for (ahead = *a; a->at < a->map.bytes; *a = ahead) {
        LS_TRY(next(&ahead, &x));
        if (x.kind == PARITY_STATE) return LS_OK;
    }
    return ls_fail(LS_EFORMAT, "%s goes on from a checkpoint, %s has none", b->path, a->path);
}

static ls_status walk(struct reader *a, struct reader *b, struct comparison *c)
{
    struct record x, y;

    LS_TRY(count_elements(*a, &c->elements));
    LS_TRY(align(a, b, c));
    while (a->at < a->map.bytes || b->at < b->map.bytes) {
        LS_TRY(next(a, &x));
        LS_TRY(next(b, &y));
        if (!same_tensor(&x, &y))
            return ls_fail(LS_EFORMAT, "the two hold different tensors: %s '%.*s' [%llu] and %s '%.*s' [%llu]",
                           parity_kind_name((enum parity_kind)x.kind), (int)MIN(x.name_bytes, 200u), x.name,
                           (unsigned long long)x.count, parity_kind_name((enum parity_kind)y.kind),
                           (int)MIN(y.name_bytes, 200u), y.name, (unsigned long long)y.count);
        if (x.kind == PARITY_NORM) c->mean_square = element(&x, 0) / sqrt((double)MAX(c->elements, (size_t)1));
        LS_TRY(compare_record(c, &x, &y));
    }
    tell_norm(c);
    return LS_OK;
}

ls_status parity_compare(const char *a, const char *b, const struct parity_bounds *bounds, struct parity_result *out)
{
    struct reader ra = { .path = a }, rb = { .path = b };
    struct parity_result result = { .equal = true };
    struct comparison *c = mem_zalloc(MEM_OTHER, sizeof *c);

    if (!c) return LS_ENOMEM;
    c->bounds = bounds;
    c->result = &result;
    ls_status st = file_map_open(a, &ra.map);
    if (st == LS_OK) st = file_map_open(b, &rb.map);
    if (st == LS_OK) st = walk(&ra, &rb, c);
    file_map_close(&ra.map);
    file_map_close(&rb.map);
    for (int i = 0; i < SLACKS && c->slack[i].name; i++) {
        mem_free(c->slack[i].name);
        mem_free(c->slack[i].of);
    }
    mem_free(c);
    if (st == LS_OK) *out = result;
    return st;
}
