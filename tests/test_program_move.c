/* test_program_move.c - moves between placements on forked ranks: what comes out and what their gradients are, of uneven cuts; and
 * layers cut in two ways against the same layers on one rank. All values of the first part are small integers: sums are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "helper_forked.h"
#include "lockstep/ops.h"
#include "passes/gradient.h"
#include "ir/program.h"
#include "runtime/store.h"

enum { MOST = 4096 };

/* ---- one move ---- */

struct shape { size_t size[3]; };
struct one {
    struct move m;
    struct shape whole;   /* neither side cut */
    ls_dtype type;
    bool again;           /* x is read after the move too */
};

static size_t count_of(const struct shape *s) { return s->size[0] * s->size[1] * s->size[2]; }

static size_t from(const struct move *m, bool second, int r, int n)
{
    return cut_at(second ? m->whole2 : m->whole, second ? m->grain2 : m->grain, r, n);
}

static struct shape part_of(const struct one *t, bool second, int r, int n)
{
    struct shape s = t->whole;
    const struct move *m = &t->m;

    if (m->zigzag)
        s.size[m->dim] = from(m, false, r + 1, 2 * n) - from(m, false, r, 2 * n) + from(m, false, 2 * n - r, 2 * n) - from(m, false, 2 * n - 1 - r, 2 * n);
    else
        s.size[second ? m->dim2 : m->dim] = from(m, second, r + 1, n) - from(m, second, r, n);
    return s;
}

static bool cuts_in(enum move_kind k) { return k == MOVE_ALL_GATHER || k == MOVE_UNSHARD || k == MOVE_ALL_TO_ALL; }
static bool cuts_out(enum move_kind k) { return k == MOVE_REDUCE_SCATTER || k == MOVE_SHARD || k == MOVE_SHARD_PARTIAL || k == MOVE_ALL_TO_ALL; }

static struct shape in_shape(const struct one *t, int r, int n) { return cuts_in(t->m.kind) ? part_of(t, false, r, n) : t->whole; }
static struct shape out_shape(const struct one *t, int r, int n)
{
    return cuts_out(t->m.kind) ? part_of(t, t->m.kind == MOVE_ALL_TO_ALL, r, n) : t->whole;
}

/* Where in the whole an index of rank r's part lies. */
static size_t whole_index(const struct one *t, const struct shape *s, bool cut, bool second, int r, int n, size_t i)
{
    size_t at[3] = { i / (s->size[1] * s->size[2]), i / s->size[2] % s->size[1], i % s->size[2] };
    const struct move *m = &t->m;

    if (cut && m->zigzag) {
        size_t first = from(m, false, r + 1, 2 * n) - from(m, false, r, 2 * n);

        at[m->dim] += at[m->dim] < first ? from(m, false, r, 2 * n) : from(m, false, 2 * n - 1 - r, 2 * n) - first;
    } else if (cut) {
        at[second ? m->dim2 : m->dim] += from(m, second, r, n);
    }
    return (at[0] * t->whole.size[1] + at[1]) * t->whole.size[2] + at[2];
}

static double number(size_t i, int rank) { return (double)((i * 7 + (size_t)rank * 5) % 11) - 5; }

/* The same on all ranks, or of each its own. */
static double x_at(const struct one *t, size_t w, int r) { return number(w, t->m.kind == MOVE_ALL_REDUCE || t->m.kind == MOVE_REDUCE_SCATTER ? r : 0); }
/* Gradients at the output: partial sums where the output is read by each rank for itself. */
static double dy_at(const struct one *t, size_t w, int r) { return number(w + 3, t->m.kind == MOVE_IDENTITY || t->m.kind == MOVE_ALL_GATHER ? r : 0); }

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
        size_t k = t->m.dim == 0 ? w / (t->whole.size[1] * t->whole.size[2]) : t->m.dim == 1 ? w / t->whole.size[2] % t->whole.size[1] : w % t->whole.size[2];

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
    ls_value x, h, y, c, loss;

    RANKS_TRY(ls_program_new(s, &p));
    x = t->m.zigzag ? ls_input(p, "x", t->type, 3, in.size) : ls_param(p, "x", (ls_init){ LS_INIT_ZEROS, 0 }, 3, in.size);
    c = ls_input(p, "dy", t->type, 3, out.size);
    h = ls_scale(p, x, 2);
    y = program_move(p, &t->m, h);
    ls_output(p, "y", program_copy(p, y, t->type));
    loss = ls_sum(p, ls_mul(p, y, c), -1);
    if (t->again)
        loss = ls_add(p, loss, ls_sum(p, h, -1));
    if (!t->m.zigzag)
        ls_backward(p, loss);
    RANKS_TRY(ls_program_status(p));
    return p;
}

static void check(const struct one *t, const char *what, const struct shape *s, bool cut, bool second, int r, int n, const double *got, double scale, double more,
                  double (*want)(const struct one *, size_t, int, int))
{
    for (size_t i = 0; i < count_of(s); i++) {
        double w = scale * want(t, whole_index(t, s, cut, second, r, n, i), r, n) + more;

        if (got[i] != w)
            ranks_fail("%s of %s on rank %d of %d, dim %d: element %zu is %g, not %g", what, move_name(t->m.kind), r, n, t->m.dim, i, got[i], w);
    }
}

static void run_one(ls_comm *c, const struct one *given)
{
    struct one t = *given;
    int r = ls_comm_rank(c), n = ls_comm_size(c);
    struct shape in = in_shape(&t, r, n), out = out_shape(&t, r, n);
    static double data[MOST];
    ls_store *s;
    ls_program *p;

    t.m.comm = c;
    t.m.axis = LS_AXIS_TP;
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", t.type, 0, 7 }, &s));
    p = program_of(s, &t, r, n);
    RANKS_TRY(ls_program_compile(p, NULL));
    for (int twice = 0; twice < 2; twice++) {
        for (size_t i = 0; i < count_of(&in); i++)
            data[i] = x_at(&t, whole_index(&t, &in, cuts_in(t.m.kind), false, r, n, i), r);
        if (t.m.zigzag) {
            RANKS_TRY(ls_program_write(p, "x", data, LS_F64, count_of(&in)));
        } else {
            RANKS_TRY(ls_store_write(s, 0, "parameter", data, LS_F64, count_of(&in)));
            ls_store_zero_grad(s);
        }
        for (size_t i = 0; i < count_of(&out); i++)
            data[i] = dy_at(&t, whole_index(&t, &out, cuts_out(t.m.kind), t.m.kind == MOVE_ALL_TO_ALL, r, n, i), r);
        RANKS_TRY(ls_program_write(p, "dy", data, LS_F64, count_of(&out)));
        RANKS_TRY(ls_program_run(p, t.m.zigzag ? LS_FORWARD : LS_FORWARD | LS_BACKWARD));
        RANKS_TRY(ls_program_read(p, "y", data, LS_F64, count_of(&out)));
        check(&t, "result", &out, cuts_out(t.m.kind), t.m.kind == MOVE_ALL_TO_ALL, r, n, data, 2, 0, want_y);
        if (t.m.zigzag)
            continue;
        RANKS_TRY(ls_store_read(s, 0, "gradient", data, LS_F64, count_of(&in)));
        check(&t, "gradient", &in, cuts_in(t.m.kind), false, r, n, data, 2, t.again ? 2 : 0, needs_dx);
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

static void run_moves(ls_comm *c, void *ctx)
{
    static const enum move_kind kinds[] = { MOVE_IDENTITY, MOVE_ALL_REDUCE, MOVE_ALL_GATHER, MOVE_REDUCE_SCATTER, MOVE_SHARD, MOVE_UNSHARD, MOVE_SHARD_PARTIAL, MOVE_ALL_TO_ALL };
    static const struct { struct shape whole; int dim, dim2; size_t grain, grain2; } cases[] = {
        { { { 2, 7, 6 } }, 1, 2, 1, 2 }, { { { 2, 6, 7 } }, 2, 1, 1, 3 }, { { { 1, 9, 4 } }, 1, 2, 3, 2 },
        { { { 5, 3, 2 } }, 0, 1, 1, 1 }, { { { 2, 2, 16 } }, 1, 2, 1, 8 },  /* fewer than ranks: some have nothing */
    };

    (void)ctx;
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (size_t j = 0; j < COUNT_OF(cases); j++)
            for (int again = 0; again < 2; again++) {
                struct one t = { .whole = cases[j].whole, .type = again ? LS_F64 : LS_F32, .again = again };

                t.m = (struct move){ .kind = kinds[k], .dim = cases[j].dim, .whole = t.whole.size[cases[j].dim], .grain = cases[j].grain,
                                     .dim2 = cases[j].dim2, .whole2 = t.whole.size[cases[j].dim2], .grain2 = cases[j].grain2, .floating = again };
                if (kinds[k] == MOVE_ALL_TO_ALL && !(t.m.whole / t.m.grain && t.m.whole2 / t.m.grain2))
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
        size_t whole = k & 4 ? 13 : 4;  /* not all pieces have elements */
        struct one t = { .whole = { { k & 1 ? 2 : 1, whole, 3 } }, .type = LS_F32,
                         .m = { .kind = k & 2 ? MOVE_UNSHARD : MOVE_SHARD, .dim = 1, .whole = whole, .zigzag = 1 } };

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

/* loss = sum of y y, y = x added up over the ranks twice: y is kept for the backward of each slot, x's bytes are on the wire. */
static void add_up_twice(ls_comm *c, void *ctx)
{
    struct move m = { .kind = MOVE_ALL_REDUCE, .axis = LS_AXIS_TP, .comm = c };
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    int n = ls_comm_size(c);
    size_t one = 1;
    ls_store *s;
    ls_program *p;
    float w = 1, got;
    ls_value x, y;

    (void)ctx;
    o.slots = 2;
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7 }, &s));
    RANKS_TRY(ls_program_new(s, &p));
    x = ls_mul(p, ls_input(p, "x", LS_F32, 1, &one), ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, &one));
    y = program_move(p, &m, program_move(p, &m, x));
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

/* ---- layers that are cut, against the same on one rank ---- */

enum { B = 2, T = 9, C = 12, F = 11, LAYERS = 3, ALL = B * T * C };

struct layers { bool sp; int floating; ls_recompute recompute; int slots, split; };
struct learned { double loss; float norm[LAYERS][C], up[LAYERS][F * C], down[LAYERS][C * F]; };  /* of the whole */

static ls_value moved(ls_program *p, ls_comm *c, const struct layers *o, enum move_kind kind, ls_value x)
{
    struct move m = { .kind = kind, .axis = LS_AXIS_TP, .comm = c, .dim = 1, .whole = T, .floating = o->floating };

    return c ? program_move(p, &m, x) : x;
}

/* h + down(gelu(up(norm(h)))): up cut by rows, down by columns; with sp what is outside of them is cut along T. */
static ls_value one_layer(ls_program *p, ls_comm *c, const struct layers *o, int k, ls_value h, size_t f)
{
    static const char *const names[LAYERS] = { "a", "b", "c" };
    char name[16];
    ls_value w[3], x;

    snprintf(name, sizeof name, "%s.norm", names[k]);
    w[0] = ls_param(p, name, (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ C });
    snprintf(name, sizeof name, "%s.up", names[k]);
    w[1] = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ f, C });
    snprintf(name, sizeof name, "%s.down", names[k]);
    w[2] = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ C, f });
    ls_block_begin(p, names[k]);
    x = moved(p, c, o, o->sp ? MOVE_ALL_GATHER : MOVE_IDENTITY, ls_rms_norm(p, h, w[0], 1e-5));
    x = ls_linear(p, ls_gelu_tanh(p, ls_linear(p, x, w[1], LS_NONE)), w[2], LS_NONE);
    h = ls_add(p, h, moved(p, c, o, o->sp ? MOVE_REDUCE_SCATTER : MOVE_ALL_REDUCE, x));
    ls_block_end(p);
    return h;
}

static double weight(int which, int k, size_t i) { return 0.2 * sin(1.3 * (double)i + 10 * which + k); }

static size_t first_of(ls_comm *c) { return c ? cut_at(F, 1, ls_comm_rank(c), ls_comm_size(c)) : 0; }
static size_t rows_held(ls_comm *c) { return c ? cut_at(F, 1, ls_comm_rank(c) + 1, ls_comm_size(c)) - first_of(c) : F; }

/* Index in the whole of element i of what this rank has of up [F,C] (which 1) or down [C,F] (2). */
static size_t element_place(ls_comm *c, int which, size_t i)
{
    size_t f = rows_held(c);

    return which == 0 ? i : which == 1 ? first_of(c) * C + i : i / f * F + first_of(c) + i % f;
}

static void write_weights(ls_store *s, ls_comm *c)
{
    double data[F * C];

    for (size_t j = 0; j < 3 * LAYERS; j++) {
        int which = (int)j % 3, k = (int)j / 3;
        size_t n = which ? rows_held(c) * C : C;

        for (size_t i = 0; i < n; i++)
            data[i] = (which == 0) + weight(which, k, element_place(c, which, i));
        RANKS_TRY(ls_store_write(s, j, "parameter", data, LS_F64, n));
    }
}

static void run_layers(ls_program *p, const struct layers *o, double *loss)
{
    double x[ALL], y[ALL];

    for (int micro = 0; micro < 2; micro++) {
        RANKS_TRY(ls_program_select(p, o->slots ? micro : 0));
        for (int i = 0; i < ALL; i++) {
            x[i] = sin(0.7 * i + micro);
            y[i] = cos(0.3 * i);
        }
        RANKS_TRY(ls_program_write(p, "x", x, LS_F64, ALL));
        RANKS_TRY(ls_program_write(p, "y", y, LS_F64, ALL));
        RANKS_TRY(ls_program_run(p, LS_FORWARD | (o->slots ? 0 : LS_BACKWARD | LS_WEIGHTS)));
    }
    for (int micro = 0; o->slots && micro < 2; micro++) {
        RANKS_TRY(ls_program_select(p, micro));
        RANKS_TRY(ls_program_run(p, LS_BACKWARD | LS_WEIGHTS));
    }
    RANKS_TRY(ls_program_read(p, "loss", loss, LS_F64, 1));
}

/* Between the backward's sums over the ranks stand weight gradients. */
static void check_overlap(const ls_program *p)
{
    const struct list *l = &p->list[SEG_BACKWARD];
    int in_flight = 0, behind = 0;

    for (int n = 0; n < l->n; n++) {
        in_flight += (l->at[n].op == OP_COMM_START) - (l->at[n].op == OP_COMM_WAIT);
        behind += in_flight && l->at[n].op == OP_LINEAR_DW;
    }
    RANKS_CHECK(behind == 2 * LAYERS && in_flight == 0);
}

/* Every instruction runs between the start and the wait of what it uses. */
static void check_pending(const ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int q = n + 1; i->op == OP_COMM_START && (p->list[s].at[q].op != OP_COMM_WAIT || p->list[s].at[q].exchange.slot != i->exchange.slot); q++)
                for (int k = 0; p->list[s].at[q].op < OP_VIEW && k < p->list[s].at[q].nin; k++)
                    RANKS_CHECK(p->values[p->list[s].at[q].in[k].id].root != p->values[i->out[0].id].root);
        }
}

static void check_text(const ls_program *p, const struct layers *o, int n)
{
    char want[64], *text;

    snprintf(want, sizeof want, "tp 0.0 MiB f32 over %d ranks", n);
    RANKS_TRY(ls_program_text(p, &text));
    RANKS_CHECK(strstr(text, want) && strstr(text, o->sp ? "reduce_scatter" : "all_reduce") && strstr(text, o->sp ? "tp:S1" : "tp:~P"));
    RANKS_CHECK(!o->slots == !strstr(text, "2 slots of"));
    ls_free(text);
}

static void learn(ls_comm *c, const struct layers *o, struct learned *out)
{
    ls_compile_options options = LS_COMPILE_DEFAULTS;
    ls_store *s;
    ls_program *p;
    ls_value h, y;
    static float data[F * C];

    options.recompute = o->recompute;
    options.slots = o->slots;
    options.split_backward = o->split;
    memset(out, 0, sizeof *out);
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7 }, &s));
    RANKS_TRY(ls_program_new(s, &p));
    h = ls_input(p, "x", LS_F32, 3, (size_t[]){ B, T, C });
    y = ls_input(p, "y", LS_F32, 3, (size_t[]){ B, T, C });
    h = o->sp ? moved(p, c, o, MOVE_SHARD, h) : h;
    for (int k = 0; k < LAYERS; k++)
        h = one_layer(p, c, o, k, h, rows_held(c));
    h = o->sp ? moved(p, c, o, MOVE_UNSHARD, h) : h;
    ls_backward(p, ls_output(p, "loss", ls_mse(p, h, y)));
    RANKS_TRY(ls_program_compile(p, &options));
    if (c)
        check_text(p, o, ls_comm_size(c));
    if (c && o->floating) {
        check_pending(p);
        if (!o->sp && !o->split && o->recompute == LS_RECOMPUTE_NONE)
            check_overlap(p);
    }
    write_weights(s, c);
    ls_store_zero_grad(s);
    run_layers(p, o, &out->loss);
    for (size_t j = 0; j < 3 * LAYERS; j++) {
        int which = (int)j % 3, k = (int)j / 3;
        size_t n = which ? rows_held(c) * C : C;
        float *to = which == 0 ? out->norm[k] : which == 1 ? out->up[k] : out->down[k];

        RANKS_TRY(ls_store_read(s, j, "gradient", data, LS_F32, n));
        if (c && o->sp && which == 0)
            RANKS_TRY(ls_all_reduce(c, data, data, n, LS_F32, LS_SUM, NULL));
        for (size_t i = 0; i < n; i++)
            to[element_place(c, which, i)] = data[i];
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

static void close_to(const char *what, ls_comm *c, int which, const float *got, const float *want, size_t n)
{
    double most = 0, apart = 0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < (which ? rows_held(c) * C : C); i++)
        apart = fmax(apart, fabs(got[element_place(c, which, i)] - want[element_place(c, which, i)]));
    if (!(apart <= 1e-5 * most))
        ranks_fail("%s: %g apart of %g", what, apart, most);
}

static void compare_layers(ls_comm *c, void *ctx)
{
    static struct learned want, got, fixed;
    struct layers plain = { .sp = false };

    (void)ctx;
    learn(NULL, &plain, &want);
    for (int sp = 0; sp < 2; sp++)
        for (int r = 0; r < 6; r++) {
            static const ls_recompute kinds[] = { LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL };
            struct layers o = { .sp = sp, .recompute = kinds[r % 3], .slots = r < 3 ? 0 : 2, .split = r == 4 };

            learn(c, &o, &fixed);
            o.floating = 1;
            learn(c, &o, &got);
            RANKS_CHECK(memcmp(&got, &fixed, sizeof got) == 0);
            RANKS_CHECK(fabs(got.loss - want.loss) <= 1e-6 * want.loss);
            for (int k = 0; k < LAYERS; k++) {
                close_to("norm", c, 0, got.norm[k], want.norm[k], C);
                close_to("up", c, 1, got.up[k], want.up[k], F * C);
                close_to("down", c, 2, got.down[k], want.down[k], F * C);
            }
        }
}

static void ranks_train_sharded_layers(void **state)
{
    (void)state;
    forked_run(2, compare_layers, NULL);
    forked_run(3, compare_layers, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_redistribute_and_back),
        cmocka_unit_test(ranks_shard_and_gather_in_zigzag),
        cmocka_unit_test(ranks_redistribute_twice),
        cmocka_unit_test(ranks_train_sharded_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
