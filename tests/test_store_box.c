/* test_store_box.c - a store in which a rank has a box of each parameter, or none: the bits of one rank however parameters
 * are sharded, groups made of boxes, the ledger, and full values over grids of stages, data- and tensor-parallel ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/algorithms/steps.h"
#include "helper_check.h"
#include "helper_forked.h"
#include "runtime/store.h"
#include "train/faults/fault_points.h"

enum { PARAMETERS = 6, MOST = 84, FROZEN = 5 };
/* sharded: the dim that is sharded over tp; -1: replicated. */
static const struct { const char *name; int ndim; size_t size[3], count; ls_init_kind init; int sharded; } box_shapes[PARAMETERS] = {
    { "a", 2, { 7, 5 }, 35, LS_INIT_NORMAL, 0 },    { "b", 1, { 3 }, 3, LS_INIT_UNIFORM, -1 },
    { "c", 3, { 4, 3, 7 }, 84, LS_INIT_NORMAL, 1 }, { "d", 1, { 1 }, 1, LS_INIT_ONES, -1 },
    { "e", 2, { 5, 11 }, 55, LS_INIT_UNIFORM, 1 },  { "f", 1, { 11 }, 11, LS_INIT_NORMAL, 0 },
};

/* Declared with a state and gradients, except f, which is frozen; not allocated. */
static ls_store *declared(ls_dtype type)
{
    ls_store *s;
    int index;

    if (ls_store_new(&(ls_store_options){ "cpu", type, 1, 7, 0 }, &s) < 0)
        return NULL;
    for (int i = 0; i < PARAMETERS; i++)
        if (store_declare(s, box_shapes[i].name, (ls_init){ box_shapes[i].init, 0.5 }, box_shapes[i].ndim, box_shapes[i].size, &index) < 0)
            return NULL;
    if (ls_store_freeze(s, FROZEN) < 0)
        return NULL;
    for (size_t i = 0; i < FROZEN; i++) {
        store_request_grad(s, i);
        if (ls_store_add_state(s, i, "m") < 0)
            return NULL;
    }
    return s;
}

/* ---- one process ---- */

/* Element e of a box, of the whole: dim by dim. */
static size_t slow_global(const ls_store *s, size_t i, size_t e)
{
    size_t at = 0, stride = 1;

    for (int d = ls_store_ndim(s, i) - 1; d >= 0; d--) {
        at += (store_local_begin(s, i, d) + e % store_local_size(s, i, d)) * stride;
        e /= store_local_size(s, i, d);
        stride *= ls_store_size(s, i, d);
    }
    return at;
}

static void check_box(const ls_tensor *box, const ls_tensor *whole, const ls_store *s, size_t i)
{
    size_t esize = ls_dtype_bytes(ls_tensor_dtype(whole));

    assert_int_equal(ls_tensor_dtype(box), ls_tensor_dtype(whole));
    assert_int_equal(ls_tensor_ndim(box), ls_store_ndim(s, i));
    for (int d = 0; d < ls_store_ndim(s, i); d++)
        assert_int_equal(ls_tensor_size(box, d), store_local_size(s, i, d));
    for (size_t e = 0; e < ls_tensor_count(box); e++)
        assert_memory_equal((char *)ls_tensor_data(box) + e * esize, (char *)ls_tensor_data(whole) + slow_global(s, i, e) * esize, esize);
}

/* Every box of every parameter that begins and ends at odd places, empty ones too. */
static void boxes_equal_the_full_parameter(void **state)
{
    static const ls_dtype types[] = { LS_F64, LS_BF16 };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        ls_store *one = declared(types[t]);

        OK(ls_store_allocate(one));
        for (unsigned round = 0; round < 16; round++) {
            ls_store *s = declared(types[t]);

            for (size_t i = 0; i < PARAMETERS; i++)
                for (int d = 0; d < box_shapes[i].ndim; d++) {
                    size_t size = box_shapes[i].size[d], begin = (round * 7 + (unsigned)d * 3 + i) % (size + 1);

                    if ((round >> d & 1) == 0)
                        store_set_shard(s, i, d, begin, (round * 5 + i) % (size - begin + 1));
                }
            OK(ls_store_allocate(s));
            for (size_t i = 0; i < PARAMETERS; i++) {
                check_box(ls_store_value(s, i), ls_store_value(one, i), s, i);
                if (types[t] == LS_BF16 && i != FROZEN)
                    check_box(ls_store_state(s, i, "master"), ls_store_state(one, i, "master"), s, i);
                assert_int_equal(ls_store_size(s, i, 0), box_shapes[i].size[0]);
            }
            assert_int_equal(ls_store_elements(s), ls_store_elements(one));
            ls_store_release(&s);
        }
        ls_store_release(&one);
    }
}

static void unowned_elements_are_not_stored(void **state)
{
    ls_store *s = declared(LS_BF16);
    float x[35] = { 0 };
    int group, pair[] = { 0, 1 };

    (void)state;
    store_leave_out(s, 0);
    store_request_grad(s, 0);
    OK(ls_store_add_state(s, 0, "v"));
    REFUSED(LS_EINVAL, "'a' cannot be grouped on a rank that has nothing of it",
            store_unit(s, 2, pair, NULL, &(struct store_unit_options){ 0 }, &group));
    OK(ls_store_allocate(s));
    store_leave_out(s, 0);
    assert_false(store_is_here(s, 0));
    assert_true(store_is_here(s, 1));
    assert_false(store_is_owner(s, 0));
    assert_true(store_is_owner(s, 1));
    assert_int_equal(store_local_count(s, 0), 0);
    assert_null(ls_store_value(s, 0));
    assert_null(ls_store_grad(s, 0));
    assert_null(ls_store_state(s, 0, "master"));
    assert_int_equal(ls_store_states(s, 0), 0);
    assert_int_equal(ls_store_states(s, 1), 2);
    assert_int_equal(ls_store_is_frozen(s, 0), 0);
    assert_int_equal(ls_store_size(s, 0, 1), 5);
    OK(ls_store_set(s, 0, x, LS_F32, 35));
    ls_store_zero_grad(s);
    REFUSED(LS_EINVAL, "0 of its 35 elements", ls_store_read(s, 0, "parameter", x, LS_F32, 35));
    ls_store_release(&s);
}

static void shard_is_not_read_as_full_parameter(void **state)
{
    ls_store *s = declared(LS_F32);
    float x[35];

    (void)state;
    store_set_shard(s, 0, 1, 2, 3);
    OK(ls_store_allocate(s));
    store_set_shard(s, 0, 1, 2, 3);
    REFUSED(LS_EINVAL, "21 of its 35 elements", ls_store_read(s, 0, "parameter", x, LS_F32, 35));
    OK(ls_store_read(s, 1, "parameter", x, LS_F32, 3));
    assert_int_equal(store_placement(s, 0)[LS_AXIS_TP].kind, LS_REPLICATE);
    store_placement(s, 0)[LS_AXIS_TP].kind = LS_SHARD;
    assert_int_equal(store_placement(s, 0)[LS_AXIS_TP].kind, LS_SHARD);
    ls_store_release(&s);
}

static void shards_are_read_and_written(void **state)
{
    ls_comm *comm;
    ls_store *s = declared(LS_F32);
    double x[12], y[12];
    size_t begin, end;
    int group, pair[] = { 1, 2 };

    (void)state;
    OK(ls_comm_open("plan:", 1, 2, &comm));
    store_set_shard(s, 2, 1, 1, 2);  /* 4 x 2 x 7 */
    OK(store_unit(s, 2, pair, comm, &(struct store_unit_options){ .sharded = 1u << STORE_STATE }, &group));
    OK(ls_store_allocate(s));
    store_held(s, 2, STORE_STATE, &begin, &end);
    assert_int_equal(begin, (3 + 56) / 2 - 3);
    assert_int_equal(end, 56);
    for (int k = 0; k < 12; k++)
        x[k] = k + 0.5;
    OK(store_write_part(s, 2, STORE_STATE, "m", begin + 3, 12, x, LS_F64));
    OK(store_read_part(s, 2, STORE_STATE, "m", begin + 3, 12, y, LS_F64));
    assert_memory_equal(x, y, sizeof x);
    assert_true(((float *)ls_tensor_data(ls_store_state(s, 2, "m")))[3] == 0.5f);
    REFUSED(LS_EINVAL, "no v", store_read_part(s, 2, STORE_STATE, "v", begin, 1, y, LS_F64));
    ls_store_release(&s);
    ls_comm_close(&comm);
}

/* ---- several ranks ---- */

struct grid { int pp, dp, tp; };

/* Rank (pp * DP + dp) * TP + tp. Parameter i is in stage i % PP, but the last is on all. */
static ls_store *store_on(const struct grid *g, ls_comm *world, ls_comm *data, ls_dtype type, unsigned sharded, enum store_backing backing)
{
    struct store_unit_options o = { .sharded = sharded, .backing = { [STORE_STATE] = backing }, .path = "/tmp" };
    int rank = ls_comm_rank(world), tp = rank % g->tp, pp = rank / g->tp / g->dp, members[PARAMETERS], n = 0, group;
    ls_store *s = declared(type);
    size_t parameters, gradients, optimizer, offload, file;
    struct mem_stats before, after;

    RANKS_CHECK(s);
    for (int i = 0; i < PARAMETERS; i++) {
        if (i != FROZEN && i % g->pp != pp)
            store_leave_out(s, (size_t)i);
        else if (box_shapes[i].sharded >= 0) {
            size_t size = box_shapes[i].size[box_shapes[i].sharded], begin = block_at(size, tp, g->tp);

            store_set_shard(s, (size_t)i, box_shapes[i].sharded, begin, block_at(size, tp + 1, g->tp) - begin);
        } else {
            store_set_owner(s, (size_t)i, tp == 0);
        }
        if (i == FROZEN && pp != g->pp - 1)
            store_set_owner(s, (size_t)i, false);
        if (i != FROZEN && i != 1 && store_is_here(s, (size_t)i))
            members[n++] = i;
    }
    store_set_world(s, world);
    if (n)
        RANKS_TRY(store_unit(s, n, members, data, &o, &group));
    store_bytes(s, &parameters, &gradients, &optimizer, &offload, &file);
    mem_read(&before);
    RANKS_TRY(ls_store_allocate(s));
    mem_read(&after);
    RANKS_CHECK(after.now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS] == parameters);
    RANKS_CHECK(after.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS] == gradients);
    RANKS_CHECK(after.now[MEM_OPTIMIZER] - before.now[MEM_OPTIMIZER] == optimizer);
    RANKS_CHECK(after.now[MEM_OFFLOAD] - before.now[MEM_OFFLOAD] == offload);
    return s;
}

static void check_initial(const ls_store *s, ls_dtype type)
{
    ls_store *one = declared(type);

    RANKS_CHECK(one);
    RANKS_TRY(ls_store_allocate(one));
    for (size_t i = 0; i < PARAMETERS; i++) {
        size_t count = box_shapes[i].count, esize = ls_dtype_bytes(type);
        char got[MOST * 8];

        RANKS_TRY(ls_store_read(s, i, "parameter", got, type, count));
        RANKS_CHECK(memcmp(got, ls_tensor_data(ls_store_value(one, i)), count * esize) == 0);
        if (type != LS_BF16 || i == FROZEN)
            continue;
        RANKS_TRY(ls_store_read(s, i, "master", got, LS_F32, count));
        RANKS_CHECK(memcmp(got, ls_tensor_data(ls_store_state(one, i, "master")), count * sizeof(float)) == 0);
    }
    ls_store_release(&one);
}

static void check_written(ls_store *s, ls_dtype type)
{
    static const char *const kinds[] = { "parameter", "gradient", "m", "master" };

    for (size_t i = 0; i < PARAMETERS; i++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            double x[MOST], got[MOST];

            if ((i == FROZEN && k) || (k == 3 && type != LS_BF16)) {
                RANKS_CHECK(ls_store_read(s, i, kinds[k], got, LS_F64, box_shapes[i].count) == LS_EINVAL);
                RANKS_CHECK(strstr(ls_errmsg(), kinds[k]));
                continue;
            }
            for (size_t e = 0; e < box_shapes[i].count; e++)
                x[e] = e == 1 ? -0.0 : (double)((i * 23 + k * 11 + e) % 128);  /* exact in bf16 too */
            RANKS_TRY(ls_store_write(s, i, kinds[k], x, LS_F64, box_shapes[i].count));
            memset(got, 0xff, sizeof got);
            RANKS_TRY(ls_store_read(s, i, kinds[k], got, LS_F64, box_shapes[i].count));
            RANKS_CHECK(memcmp(got, x, box_shapes[i].count * sizeof *x) == 0);
        }
}

static void whole_over_the_grid(ls_comm *world, void *ctx)
{
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F64 };
    const struct grid *g = ctx;
    int rank = ls_comm_rank(world);
    ls_comm *data;

    RANKS_TRY(ls_comm_split(world, rank / g->tp / g->dp * g->tp + rank % g->tp, rank, &data));
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (unsigned sharded = 0; sharded < 8; sharded += t ? 7 : 3) {
            ls_store *s = store_on(g, world, data, types[t], sharded, t == 1 ? BACKING_FILE : BACKING_MEMORY);

            check_initial(s, types[t]);
            check_written(s, types[t]);
            ls_store_release(&s);
        }
    ls_comm_close(&data);
}

static void ranks_read_and_write_full_parameters(void **state)
{
    static struct grid grids[] = {
        { 1, 1, 1 }, { 1, 1, 2 }, { 1, 2, 1 }, { 2, 1, 1 }, { 1, 2, 2 }, { 2, 1, 2 }, { 1, 4, 1 }, { 1, 1, 4 }, { 1, 2, 3 }, { 1, 3, 2 },
        { 3, 1, 2 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(grids); i++)
        forked_run(grids[i].pp * grids[i].dp * grids[i].tp, whole_over_the_grid, &grids[i]);
}

/* A parameter or a part of one without an owner, and overlapping boxes: an error on all ranks. */
static void unspoken(ls_comm *world, void *ctx)
{
    ls_store *s = declared(LS_F32);
    int rank = ls_comm_rank(world);
    float x[MOST];

    (void)ctx;
    RANKS_CHECK(s);
    store_set_owner(s, 1, false);
    store_set_shard(s, 0, 0, rank ? 3 : 0, rank ? 4 : 3);
    store_set_owner(s, 0, rank == 0);
    store_set_shard(s, 2, 1, (size_t)rank, 2);
    if (rank)
        store_leave_out(s, 3);
    store_set_world(s, world);
    RANKS_TRY(ls_store_allocate(s));
    RANKS_CHECK(ls_store_read(s, 1, "parameter", x, LS_F32, 3) == LS_EINVAL && strstr(ls_errmsg(), "no rank that owns it has its"));
    RANKS_CHECK(ls_store_read(s, 0, "parameter", x, LS_F32, 35) == LS_EINVAL && strstr(ls_errmsg(), "15 of 35 elements"));
    RANKS_CHECK(ls_store_read(s, 2, "parameter", x, LS_F32, 84) == LS_EINVAL && strstr(ls_errmsg(), "112 of 84 elements"));
    RANKS_TRY(ls_store_read(s, 3, "parameter", x, LS_F32, 1));
    RANKS_CHECK(x[0] == 1);
    ls_store_release(&s);
}

/* One rank runs out of memory: all ranks return the error and stay in step. */
static void forgetful(ls_comm *world, void *ctx)
{
    ls_store *s = declared(LS_F32);
    int rank = ls_comm_rank(world), group;
    float x[MOST];

    (void)ctx;
    RANKS_CHECK(s);
    store_set_world(s, world);
    RANKS_TRY(store_unit(s, 1, (int[]){ 2 }, world, &(struct store_unit_options){ .sharded = 7 }, &group));
    RANKS_TRY(ls_store_allocate(s));
    for (int round = 0; round < 3; round++) {
        mem_fail_at(rank == round ? 1 : 0);
        RANKS_CHECK(ls_store_read(s, 2, "parameter", x, LS_F32, 84) == LS_ENOMEM);
        mem_fail_at(0);
        RANKS_TRY(ls_store_read(s, 2, "parameter", x, LS_F32, 84));
    }
    ls_store_release(&s);
}

static void one_rank_without_memory_fails_all(void **state)
{
    (void)state;
    forked_run(3, forgetful, NULL);
}

static void parameter_without_owner_is_refused(void **state)
{
    (void)state;
    forked_run(2, unspoken, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_read_and_write_full_parameters),
        cmocka_unit_test(parameter_without_owner_is_refused),
        cmocka_unit_test(one_rank_without_memory_fails_all),
        cmocka_unit_test(boxes_equal_the_full_parameter),
        cmocka_unit_test(unowned_elements_are_not_stored),
        cmocka_unit_test(shard_is_not_read_as_full_parameter),
        cmocka_unit_test(shards_are_read_and_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
