/* test_parallel_types.c - a store of several types: bf16 weights of matmuls and f32 weights of norms are updated as on one rank under
 * zero 0 to 3, and a checkpoint keeps every bit of them.
 */
#include "helper_checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "helper_forked.h"
#include "lockstep/ops.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"
#include "runtime/store.h"

enum { BATCH = 12, C = 10, LAYERS = 3, UPDATES = 2, MOST = 4096 };

static ls_value weight(ls_program *p, int layer, const char *what, ls_dtype type, int ndim)
{
    char name[64];
    ls_init init = { ndim == 2 ? LS_INIT_NORMAL : LS_INIT_ONES, 0.3 };

    snprintf(name, sizeof name, "%d.%s", layer, what);
    return ls_param_as(p, name, init, type, ndim, (size_t[]){ C, C });
}

/* x + linear(rms_norm(x)) three times; the mean of squares over the samples of all ranks. */
static void build(ls_program *p, size_t batch)
{
    size_t shape[2] = { batch, C };
    ls_value x = ls_cast(p, ls_input(p, "x", LS_F32, 2, shape), LS_BF16), y = ls_input(p, "y", LS_F32, 2, shape), h;

    for (int k = 0; k < LAYERS; k++) {
        ls_block_begin(p, (const char *[]){ "0", "1", "2" }[k]);
        h = ls_rms_norm(p, x, ls_cast(p, weight(p, k, "norm", LS_F32, 1), LS_BF16), 1e-5);
        x = ls_add(p, x, ls_linear(p, h, weight(p, k, "linear", LS_BF16, 2), LS_NONE));
        ls_block_end(p);
    }
    ls_backward(p, ls_scale(p, ls_mse(p, ls_cast(p, x, LS_F32), y), (double)batch / BATCH));
}

/* An optimizer without signs: if a gradient is only rounding, its direction differs. */
static ls_optimizer optimizer(void)
{
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;

    o.kind = LS_SGD;
    return o;
}

static ls_status open_program(ls_comm *comm, int zero, int master, ls_store **s, ls_program **p)
{
    ls_data_parallel_options d = LS_DATA_PARALLEL_DEFAULTS;
    ls_optimizer o = optimizer();

    d.zero = zero;
    d.bucket_bytes = 200;  /* several of each type */
    LS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, master, 7, 0 }, s));
    LS_TRY(ls_program_new(*s, p));
    build(*p, comm ? (size_t)(BATCH / ls_comm_size(comm)) : BATCH);
    LS_TRY(ls_optimizer_append(*p, &o));
    if (comm)
        LS_TRY(ls_data_parallel(*p, comm, &d));
    return ls_program_compile(*p, NULL);
}

static ls_status parallel_types_step(ls_program *p, ls_comm *comm, int update)
{
    size_t batch = comm ? (size_t)(BATCH / ls_comm_size(comm)) : BATCH, first = comm ? (size_t)ls_comm_rank(comm) * batch : 0;
    ls_optimizer o = optimizer();
    float x[BATCH * C], y[BATCH * C];

    for (size_t i = 0; i < batch * C; i++) {
        x[i] = (float)((first * C + i) * 37 % 41) / 20 - 1;
        y[i] = (float)((first * C + i + (size_t)update) * 13 % 29) / 14 - 1;
    }
    ls_store_zero_grad(ls_program_store(p));
    LS_TRY(ls_program_write(p, "x", x, LS_F32, batch * C));
    LS_TRY(ls_program_write(p, "y", y, LS_F32, batch * C));
    LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_LAST));
    LS_TRY(ls_optimizer_set(p, &o, 0.1, (uint64_t)update + 1));
    return ls_program_run(p, LS_OPTIMIZER_STEP);
}

static size_t count_of(const ls_store *s, size_t i) { return ls_store_ndim(s, i) == 2 ? C * C : C; }

/* Every parameter and state, one after another; how many. */
static ls_status read_all(const ls_store *s, double *out, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < ls_store_count(s); i++)
        for (int k = -1; k < ls_store_states(s, i); k++, *n += count_of(s, i))
            LS_TRY(ls_store_read(s, i, k < 0 ? "parameter" : ls_store_state_name(s, i, k), out + *n, LS_F64, count_of(s, i)));
    return LS_OK;
}

static void check_types(const ls_store *s, int master)
{
    for (size_t i = 0; i < ls_store_count(s); i++) {
        bool norm = strstr(ls_store_name(s, i), "norm");

        RANKS_CHECK(store_value_type(s, i) == (norm ? LS_F32 : LS_BF16));
        RANKS_CHECK(ls_tensor_dtype(ls_store_value(s, i)) == store_value_type(s, i));
        RANKS_CHECK(ls_store_states(s, i) == 1 + (master && !norm));
    }
    for (int g = 0; g < store_units(s); g++)
        for (int k = 0; k < store_unit_at(s, g)->n; k++)
            RANKS_CHECK(store_value_type(s, (size_t)store_unit_at(s, g)->params[k]) == store_unit_at(s, g)->type);
}

struct job { int zero, master; const char *root; };

static void check_steps(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    static double expected[MOST], got[MOST];
    double norm = 0, apart = 0;
    size_t n, m;
    ls_store *s;
    ls_program *p;

    RANKS_TRY(open_program(NULL, 0, j->master, &s, &p));
    for (int k = 0; k < UPDATES; k++)
        RANKS_TRY(parallel_types_step(p, NULL, k));
    RANKS_TRY(read_all(s, expected, &n));
    ls_program_release(&p);
    ls_store_release(&s);
    RANKS_TRY(open_program(comm, j->zero, j->master, &s, &p));
    for (int k = 0; k < UPDATES; k++)
        RANKS_TRY(parallel_types_step(p, comm, k));
    check_types(s, j->master);
    RANKS_TRY(read_all(s, got, &m));
    RANKS_CHECK(n == m);
    for (size_t i = 0; i < n; i++) {
        norm += expected[i] * expected[i];
        apart += (got[i] - expected[i]) * (got[i] - expected[i]);
    }
    if (!(sqrt(apart) <= 2e-3 * sqrt(norm)))  /* bf16 has 8 bits */
        ranks_fail("zero %d, master %d: %.3g apart, the norm is %.3g", j->zero, j->master, sqrt(apart), sqrt(norm));
    if (j->root) {
        ls_train_state state = small_state(UPDATES);

        RANKS_TRY(ls_checkpoint_save_ranks(comm, j->root, s, NULL, &state, NULL));
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

static void zero_takes_the_steps_of_one_rank(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int master = 0; master < 2; master++)
            for (int ranks = 2; ranks <= 3; ranks++)
                forked_run(ranks, check_steps, &(struct job){ zero, master, NULL });
}

/* ---- checkpoints ---- */

/* Saved, loaded into a new store under j->zero, and saved again: the same bits on one rank. */
static void check_loaded(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    static double expected[MOST], got[MOST];
    char path[600];
    size_t n, m;
    ls_store *s;
    ls_program *p;

    snprintf(path, sizeof path, "%s/step_%08d", j->root, UPDATES);
    RANKS_TRY(open_program(NULL, 0, j->master, &s, &p));
    RANKS_TRY(ls_checkpoint_load(path, s, LS_LOAD_OPTIMIZER, NULL));
    RANKS_TRY(read_all(s, expected, &n));
    ls_program_release(&p);
    ls_store_release(&s);
    RANKS_TRY(open_program(comm, j->zero, j->master, &s, &p));
    RANKS_TRY(ls_checkpoint_load(path, s, LS_LOAD_OPTIMIZER, NULL));
    check_types(s, j->master);
    RANKS_TRY(read_all(s, got, &m));
    RANKS_CHECK(n == m && memcmp(expected, got, n * sizeof *got) == 0);
    ls_program_release(&p);
    ls_store_release(&s);
}

static void checkpoint_keeps_types(void **state)
{
    (void)state;
    for (int master = 0; master < 2; master++)
        for (int zero = 0; zero < 4; zero += 3) {
            const char *root = scratch("types");

            forked_run(3, check_steps, &(struct job){ zero, master, root });
            for (int other = 0; other < 4; other++)
                forked_run(2, check_loaded, &(struct job){ other, master, root });
        }
}

/* ---- what is refused ---- */

static void types_that_do_not_fit_are_refused(void **state)
{
    int index, unit, both[2] = { 0, 1 };
    ls_store *s;

    (void)state;
    OK(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 1, 7, 0 }, &s));
    OK(store_declare_as(s, "a", (ls_init){ LS_INIT_ZEROS, 0 }, LS_BF16, 1, (size_t[]){ 3 }, &index));
    OK(store_declare(s, "b", (ls_init){ LS_INIT_ZEROS, 0 }, 1, (size_t[]){ 3 }, &index));
    assert_int_equal(store_declare(s, "a", (ls_init){ LS_INIT_ZEROS, 0 }, 1, (size_t[]){ 3 }, &index), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "'a' was declared as bf16, now as f32"));
    assert_int_equal(store_declare_as(s, "c", (ls_init){ LS_INIT_ZEROS, 0 }, LS_F64, 1, (size_t[]){ 3 }, &index), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "'c': type f64 in a store of type f32"));
    assert_int_equal(store_unit(s, 2, both, NULL, &(struct store_unit_options){ 0 }, &unit), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "a unit has one type"));
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_takes_the_steps_of_one_rank),
        cmocka_unit_test_setup_teardown(checkpoint_keeps_types, scratch_set_up, scratch_tear_down),
        cmocka_unit_test(types_that_do_not_fit_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
