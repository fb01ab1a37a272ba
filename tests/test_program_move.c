/* test_program_move.c - redistribution between placements on forked ranks: results and gradients, with uneven shards. All values are small
 * integers, so sums are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "helper_forked.h"
#include "lockstep/ops.h"
#include "ir/program.h"

enum { MOST = 4096 };

/* ---- one move ---- */

struct shape { size_t size[3]; };
struct one {
    struct move m;
    struct shape full;   /* not sharded */
    ls_dtype type;
    bool again;           /* x is read after the move too */
};

static size_t program_move_test_count_of(const struct shape *s) { return s->size[0] * s->size[1] * s->size[2]; }

static size_t from(const struct move *m, bool second, int r, int n)
{
    return shard_begin(second ? m->full2 : m->full, second ? m->grain2 : m->grain, r, n);
}

static struct shape part_of(const struct one *t, bool second, int r, int n)
{
    struct shape s = t->full;
    const struct move *m = &t->m;

    if (m->zigzag)
        s.size[m->dim] = from(m, false, r + 1, 2 * n) - from(m, false, r, 2 * n) + from(m, false, 2 * n - r, 2 * n) -
                         from(m, false, 2 * n - 1 - r, 2 * n);
    else
        s.size[second ? m->dim2 : m->dim] = from(m, second, r + 1, n) - from(m, second, r, n);
    return s;
}

static bool is_sharded_in(enum move_kind k) { return k == MOVE_ALL_GATHER || k == MOVE_UNSHARD || k == MOVE_ALL_TO_ALL; }
static bool is_sharded_out(enum move_kind k)
{
    return k == MOVE_REDUCE_SCATTER || k == MOVE_SHARD || k == MOVE_SHARD_PARTIAL || k == MOVE_ALL_TO_ALL;
}

static struct shape in_shape(const struct one *t, int r, int n) { return is_sharded_in(t->m.kind) ? part_of(t, false, r, n) : t->full; }
static struct shape out_shape(const struct one *t, int r, int n)
{
    return is_sharded_out(t->m.kind) ? part_of(t, t->m.kind == MOVE_ALL_TO_ALL, r, n) : t->full;
}

/* The index in the full tensor of an index in rank r's shard. */
static size_t full_index(const struct one *t, const struct shape *s, bool sharded, bool second, int r, int n, size_t i)
{
    size_t at[3] = { i / (s->size[1] * s->size[2]), i / s->size[2] % s->size[1], i % s->size[2] };
    const struct move *m = &t->m;

    if (sharded && m->zigzag) {
        size_t first = from(m, false, r + 1, 2 * n) - from(m, false, r, 2 * n);

        at[m->dim] += at[m->dim] < first ? from(m, false, r, 2 * n) : from(m, false, 2 * n - 1 - r, 2 * n) - first;
    } else if (sharded) {
        at[second ? m->dim2 : m->dim] += from(m, second, r, n);
    }
    return (at[0] * t->full.size[1] + at[1]) * t->full.size[2] + at[2];
}

static double number(size_t i, int rank) { return (double)((i * 7 + (size_t)rank * 5) % 11) - 5; }

/* The same on all ranks, or different on each. */
static double x_at(const struct one *t, size_t w, int r)
{
    return number(w, t->m.kind == MOVE_ALL_REDUCE || t->m.kind == MOVE_REDUCE_SCATTER ? r : 0);
}
/* Gradients at the output: partial sums if each rank reads the output separately. */
static double dy_at(const struct one *t, size_t w, int r)
{
    return number(w + 3, t->m.kind == MOVE_IDENTITY || t->m.kind == MOVE_ALL_GATHER ? r : 0);
}

static double want_y(const struct one *t, size_t w, int r, int n)
{
    double sum = 0;

    if (t->m.kind != MOVE_ALL_REDUCE && t->m.kind != MOVE_REDUCE_SCATTER)
        return x_at(t, w, r);
    for (int q = 0; q < n; q++)
        sum += x_at(t, w, q);
    return sum;
}

static double needs_dx(const struct one *t, size_t w, int r, int n)
{
    double sum = 0;

    if (t->m.kind == MOVE_SHARD_PARTIAL) {  /* this rank's partial sum */
        size_t k = t->m.dim == 0   ? w / (t->full.size[1] * t->full.size[2])
                   : t->m.dim == 1 ? w / t->full.size[2] % t->full.size[1]
                                   : w % t->full.size[2];

        return k >= from(&t->m, false, r, n) && k < from(&t->m, false, r + 1, n) ? dy_at(t, w, r) : 0;
    }
    if (t->m.kind != MOVE_IDENTITY && t->m.kind != MOVE_ALL_GATHER)
        return dy_at(t, w, r);
    for (int q = 0; q < n; q++)
        sum += dy_at(t, w, q);
    return sum;
}

/* y = move(2 x), loss = sum y * dy (+ sum 2 x). */
static ls_program *program_of(ls_store *s, const struct one *t, int r, int n)
{
    struct shape in = in_shape(t, r, n), out = out_shape(t, r, n);
    ls_program *p;

    RANKS_TRY(ls_program_new(s, &p));
    ls_value x = t->m.zigzag ? ls_input(p, "x", t->type, 3, in.size) : ls_param(p, "x", (ls_init){ LS_INIT_ZEROS, 0 }, 3, in.size);
    ls_value c = ls_input(p, "dy", t->type, 3, out.size);
    ls_value h = ls_scale(p, x, 2);
    ls_value y = program_move(p, &t->m, h);
    ls_output(p, "y", program_copy(p, y, t->type));
    ls_value loss = ls_sum(p, ls_mul(p, y, c), -1);
    if (t->again)
        loss = ls_add(p, loss, ls_sum(p, h, -1));
    if (!t->m.zigzag)
        ls_backward(p, loss);
    RANKS_TRY(ls_program_status(p));
    return p;
}

static void program_move_check(const struct one *t, const char *what, const struct shape *s, bool sharded, bool second, int r, int n,
                               const double *got, double scale, double more, double (*want)(const struct one *, size_t, int, int))
{
    for (size_t i = 0; i < program_move_test_count_of(s); i++) {
        double w = scale * want(t, full_index(t, s, sharded, second, r, n, i), r, n) + more;

        if (got[i] != w)
            ranks_fail("%s of %s on rank %d of %d, dim %d: element %zu is %g, not %g", what, move_name(t->m.kind), r, n, t->m.dim, i,
                       got[i], w);
    }
}

static void run_one(ls_comm *c, const struct one *given)
{
    struct one t = *given;
    int r = ls_comm_rank(c), n = ls_comm_size(c);
    struct shape in = in_shape(&t, r, n), out = out_shape(&t, r, n);
    static double data[MOST];
    ls_store *s;

    t.m.comm = c;
    t.m.axis = LS_AXIS_TP;
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", t.type, 0, 7, 0 }, &s));
    ls_program *p = program_of(s, &t, r, n);
    RANKS_TRY(ls_program_compile(p, NULL));
    for (int twice = 0; twice < 2; twice++) {
        for (size_t i = 0; i < program_move_test_count_of(&in); i++)
            data[i] = x_at(&t, full_index(&t, &in, is_sharded_in(t.m.kind), false, r, n, i), r);
        if (t.m.zigzag) {
            RANKS_TRY(ls_program_write(p, "x", data, LS_F64, program_move_test_count_of(&in)));
        } else {
            RANKS_TRY(ls_store_write(s, 0, "parameter", data, LS_F64, program_move_test_count_of(&in)));
            ls_store_zero_grad(s);
        }
        for (size_t i = 0; i < program_move_test_count_of(&out); i++)
            data[i] = dy_at(&t, full_index(&t, &out, is_sharded_out(t.m.kind), t.m.kind == MOVE_ALL_TO_ALL, r, n, i), r);
        RANKS_TRY(ls_program_write(p, "dy", data, LS_F64, program_move_test_count_of(&out)));
        RANKS_TRY(ls_program_run(p, t.m.zigzag ? LS_FORWARD : LS_FORWARD | LS_BACKWARD));
        RANKS_TRY(ls_program_read(p, "y", data, LS_F64, program_move_test_count_of(&out)));
        program_move_check(&t, "result", &out, is_sharded_out(t.m.kind), t.m.kind == MOVE_ALL_TO_ALL, r, n, data, 2, 0, want_y);
        if (t.m.zigzag)
            continue;
        RANKS_TRY(ls_store_read(s, 0, "gradient", data, LS_F64, program_move_test_count_of(&in)));
        program_move_check(&t, "gradient", &in, is_sharded_in(t.m.kind), false, r, n, data, 2, t.again ? 2 : 0, needs_dx);
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

static void run_moves(ls_comm *c, void *ctx)
{
    static const enum move_kind kinds[] = { MOVE_IDENTITY, MOVE_ALL_REDUCE, MOVE_ALL_GATHER, MOVE_REDUCE_SCATTER, MOVE_SHARD, MOVE_UNSHARD,
                                            MOVE_SHARD_PARTIAL,
                                            MOVE_ALL_TO_ALL };
    static const struct { struct shape full; int dim, dim2; size_t grain, grain2; } cases[] = {
        { { { 2, 7, 6 } }, 1, 2, 1, 2 }, { { { 2, 6, 7 } }, 2, 1, 1, 3 }, { { { 1, 9, 4 } }, 1, 2, 3, 2 },
        { { { 5, 3, 2 } }, 0, 1, 1, 1 }, { { { 2, 2, 16 } }, 1, 2, 1, 8 },  /* fewer than ranks: some have nothing */
    };

    (void)ctx;
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (size_t j = 0; j < COUNT_OF(cases); j++)
            for (int again = 0; again < 2; again++) {
                struct one t = { .full = cases[j].full, .type = again ? LS_F64 : LS_F32, .again = again };

                t.m = (struct move){ .kind = kinds[k], .dim = cases[j].dim, .full = t.full.size[cases[j].dim], .grain = cases[j].grain,
                                     .dim2 = cases[j].dim2, .full2 = t.full.size[cases[j].dim2], .grain2 = cases[j].grain2,
                                         .floating = again };
                if (kinds[k] == MOVE_ALL_TO_ALL && !(t.m.full / t.m.grain && t.m.full2 / t.m.grain2))
                    continue;
                run_one(c, &t);
            }
}

static void ranks_redistribute_and_back(void **state)
{
    (void)state;
    forked_run(2, run_moves, NULL);
    forked_run(3, run_moves, NULL);
}

static void run_zigzag(ls_comm *c, void *ctx)
{
    (void)ctx;
    for (int k = 0; k < 8; k++) {
        size_t full = k & 4 ? 13 : 4;  /* not all chunks have elements */
        struct one t = { .full = { { k & 1 ? 2 : 1, full, 3 } }, .type = LS_F32,
                         .m = { .kind = k & 2 ? MOVE_UNSHARD : MOVE_SHARD, .dim = 1, .full = full, .zigzag = 1 } };

        run_one(c, &t);
    }
}

static void ranks_shard_and_gather_in_zigzag(void **state)
{
    (void)state;
    forked_run(2, run_zigzag, NULL);
    forked_run(3, run_zigzag, NULL);
}

/* ---- moves after moves ---- */

/* loss = sum of y y, where y is x all-reduced twice: y is kept for the backward of each slot; x's bytes are sent. */
static void add_up_twice(ls_comm *c, void *ctx)
{
    struct move m = { .kind = MOVE_ALL_REDUCE, .axis = LS_AXIS_TP, .comm = c };
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    int n = ls_comm_size(c);
    size_t one = 1;
    ls_store *s;
    ls_program *p;
    float w = 1, got;

    (void)ctx;
    o.slots = 2;
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s));
    RANKS_TRY(ls_program_new(s, &p));
    ls_value x = ls_mul(p, ls_input(p, "x", LS_F32, 1, &one), ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, &one));
    ls_value y = program_move(p, &m, program_move(p, &m, x));
    ls_backward(p, ls_output(p, "loss", ls_mul(p, y, y)));
    RANKS_TRY(ls_program_compile(p, &o));
    RANKS_TRY(ls_store_write(s, 0, "parameter", &w, LS_F32, 1));
    ls_store_zero_grad(s);
    for (int micro = 0; micro < 4; micro++) {
        float in = (float)(micro % 2 ? 3 : 2);

        RANKS_TRY(ls_program_select(p, micro % 2));
        if (micro < 2)
            RANKS_TRY(ls_program_write(p, "x", &in, LS_F32, 1));
        RANKS_TRY(ls_program_run(p, micro < 2 ? LS_FORWARD : LS_BACKWARD));
        RANKS_TRY(ls_program_read(p, "loss", &got, LS_F32, 1));
        RANKS_CHECK(got == (float)(n * n * n * n) * in * in);
    }
    RANKS_TRY(ls_store_read(s, 0, "gradient", &got, LS_F32, 1));
    RANKS_CHECK(got == (float)(2 * n * n * (2 * 2 + 3 * 3)));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void ranks_redistribute_twice(void **state)
{
    (void)state;
    forked_run(2, add_up_twice, NULL);
    forked_run(3, add_up_twice, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_redistribute_and_back),
        cmocka_unit_test(ranks_shard_and_gather_in_zigzag),
        cmocka_unit_test(ranks_redistribute_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
