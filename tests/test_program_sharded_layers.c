/* test_program_sharded_layers.c - layers that are sharded in two ways and trained on forked ranks, compared with the same layers on one
 * rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "helper_forked.h"
#include "lockstep/ops.h"
#include "passes/gradient.h"
#include "ir/program.h"

enum { B = 2, T = 9, C = 12, F = 11, LAYERS = 3, ALL = B * T * C };

struct layers { bool sp; int floating; ls_recompute recompute; int slots, split; };
struct learned { double loss; float norm[LAYERS][C], up[LAYERS][F * C], down[LAYERS][C * F]; }; /* results of the unsharded program */

static ls_value moved(ls_program *p, ls_comm *c, const struct layers *o, enum move_kind kind, ls_value x)
{
    struct move m = { .kind = kind, .axis = LS_AXIS_TP, .comm = c, .dim = 1, .full = T, .floating = o->floating };

    return c ? program_move(p, &m, x) : x;
}

/* h + down(gelu(up(norm(h)))): up is sharded by rows, down by columns; with sp the rest is sharded along T. */
static ls_value one_layer(ls_program *p, ls_comm *c, const struct layers *o, int k, ls_value h, size_t f)
{
    static const char *const names[LAYERS] = { "a", "b", "c" };
    char name[16];
    ls_value w[3];

    snprintf(name, sizeof name, "%s.norm", names[k]);
    w[0] = ls_param(p, name, (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ C });
    snprintf(name, sizeof name, "%s.up", names[k]);
    w[1] = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ f, C });
    snprintf(name, sizeof name, "%s.down", names[k]);
    w[2] = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ C, f });
    ls_block_begin(p, names[k]);
    ls_value x = moved(p, c, o, o->sp ? MOVE_ALL_GATHER : MOVE_IDENTITY, ls_rms_norm(p, h, w[0], 1e-5));
    x = ls_linear(p, ls_gelu_tanh(p, ls_linear(p, x, w[1], LS_NONE)), w[2], LS_NONE);
    h = ls_add(p, h, moved(p, c, o, o->sp ? MOVE_REDUCE_SCATTER : MOVE_ALL_REDUCE, x));
    ls_block_end(p);
    return h;
}

static double program_sharded_layers_test_weight(int which, int k, size_t i) { return 0.2 * sin(1.3 * (double)i + 10 * which + k); }

static size_t first_of(ls_comm *c) { return c ? shard_begin(F, 1, ls_comm_rank(c), ls_comm_size(c)) : 0; }
static size_t rows_held(ls_comm *c) { return c ? shard_begin(F, 1, ls_comm_rank(c) + 1, ls_comm_size(c)) - first_of(c) : F; }

/* Index in the full tensor of element i of this rank's part of up [F,C] (which 1) or down [C,F] (2). */
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
            data[i] = (which == 0) + program_sharded_layers_test_weight(which, k, element_place(c, which, i));
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

/* Weight gradients are computed between the backward's all-reduces. */
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

static bool waits_for(const struct instruction *i, const struct instruction *start)
{
    return i->op == OP_COMM_WAIT && instruction_exchange(i)->id == instruction_exchange(start)->id;
}

/* No kernel uses the result of an exchange between its start and its wait. */
static void check_pending(const ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int q = n + 1; i->op == OP_COMM_START && !waits_for(&p->list[s].at[q], i); q++)
                for (int k = 0; op_run_kind(p->list[s].at[q].op) == RUN_KERNEL && k < p->list[s].at[q].nin; k++)
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
    static float data[F * C];

    options.recompute = o->recompute;
    options.slots = o->slots;
    options.split_backward = o->split;
    memset(out, 0, sizeof *out);
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s));
    RANKS_TRY(ls_program_new(s, &p));
    ls_value h = ls_input(p, "x", LS_F32, 3, (size_t[]){ B, T, C });
    ls_value y = ls_input(p, "y", LS_F32, 3, (size_t[]){ B, T, C });
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
        cmocka_unit_test(ranks_train_sharded_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
