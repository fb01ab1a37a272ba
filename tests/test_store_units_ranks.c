/* test_store_units_ranks.c - sharded flat buffers on forked ranks: gathers, and gradients read from their owners. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/algorithms/steps.h"
#include "helper_forked.h"
#include "helper_store_units.h"
#include "runtime/store.h"

/* The store of one rank, built by this rank in addition: the expected result of a gather. */
static void check_all(const ls_store *s, ls_dtype type)
{
    ls_store *one;
    int index;

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 1, 7, 0 }, &one));
    for (int i = 0; i < UNIT_PARAMETERS; i++)
        RANKS_TRY(store_declare(one, unit_shapes[i].name, (ls_init){ unit_shapes[i].init, 0.5 }, unit_shapes[i].ndim,
                                unit_shapes[i].size, &index));
    RANKS_TRY(ls_store_allocate(one));
    for (size_t i = 0; i < UNIT_PARAMETERS; i++) {
        const ls_tensor *value = ls_store_value(one, i), *master = ls_store_state(one, i, "master");
        size_t count = unit_shapes[i].count;
        double got[UNIT_ELEMENTS_MOST], want[UNIT_ELEMENTS_MOST];
        char raw[UNIT_ELEMENTS_MOST * 8];

        RANKS_TRY(ls_store_read(s, i, "parameter", raw, type, count));
        RANKS_CHECK(memcmp(raw, ls_tensor_data(value), count * ls_dtype_bytes(type)) == 0);
        RANKS_TRY(ls_store_read(s, i, "parameter", got, LS_F64, count));
        RANKS_TRY(ls_tensor_read(value, want, LS_F64, count));
        RANKS_CHECK(memcmp(got, want, count * sizeof *got) == 0);
        if (master) {
            RANKS_TRY(ls_store_read(s, i, "master", raw, LS_F32, count));
            RANKS_CHECK(memcmp(raw, ls_tensor_data(master), count * sizeof(float)) == 0);
        }
    }
    ls_store_release(&one);
}

static void check_written(ls_store *s)
{
    static const char *const kinds[] = { "parameter", "gradient", "m" };

    for (size_t i = 0; i < UNIT_PARAMETERS; i++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            double x[UNIT_ELEMENTS_MOST], got[UNIT_ELEMENTS_MOST];

            for (size_t e = 0; e < unit_shapes[i].count; e++)
                x[e] = (double)((i * 23 + k * 11 + e) % 128);  /* exact in bf16 too */
            RANKS_TRY(ls_store_write(s, i, kinds[k], x, LS_F64, unit_shapes[i].count));
            memset(got, 0xff, sizeof got);
            RANKS_TRY(ls_store_read(s, i, kinds[k], got, LS_F64, unit_shapes[i].count));
            for (size_t e = 0; e < unit_shapes[i].count; e++)
                RANKS_CHECK(got[e] == x[e]);
        }
    ls_store_zero_grad(s);
    for (size_t i = 0; i < UNIT_PARAMETERS; i++) {
        double got[UNIT_ELEMENTS_MOST];

        RANKS_TRY(ls_store_read(s, i, "gradient", got, LS_F64, unit_shapes[i].count));
        for (size_t e = 0; e < unit_shapes[i].count; e++)
            RANKS_CHECK(got[e] == 0);
    }
}

static void gather_everything(ls_comm *comm, void *ctx)
{
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F64 };
    static const enum store_backing backings[] = { BACKING_MEMORY, BACKING_CPU, BACKING_FILE };

    (void)ctx;
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t b = 0; b < COUNT_OF(backings); b++)
            for (int sharded = 0; sharded < 8; sharded++) {
                struct store_unit_options o = { .sharded = (unsigned)sharded, .backing = { [STORE_STATE] = backings[b] }, .path = "/tmp" };
                size_t parameters, gradients, optimizer, offload, file;
                struct mem_stats before, after;
                ls_store *s;
                int index, unit;

                mem_read(&before);
                RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", types[t], 1, 7, 0 }, &s));
                for (int i = 0; i < UNIT_PARAMETERS; i++)
                    RANKS_TRY(store_declare(s, unit_shapes[i].name, (ls_init){ unit_shapes[i].init, 0.5 }, unit_shapes[i].ndim,
                                            unit_shapes[i].size, &index));
                RANKS_TRY(store_unit(s, UNIT_MEMBERS, unit_members, comm, &o, &unit));
                for (size_t i = 0; i < UNIT_PARAMETERS; i++) {
                    store_request_grad(s, i);
                    RANKS_TRY(ls_store_add_state(s, i, "m"));
                }
                store_bytes(s, &parameters, &gradients, &optimizer, &offload, &file);
                RANKS_TRY(ls_store_allocate(s));
                mem_read(&after);
                RANKS_CHECK(after.now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS] == parameters);
                RANKS_CHECK(after.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS] == gradients);
                RANKS_CHECK(after.now[MEM_OPTIMIZER] - before.now[MEM_OPTIMIZER] == optimizer);
                RANKS_CHECK(after.now[MEM_OFFLOAD] - before.now[MEM_OFFLOAD] == offload);
                check_all(s, types[t]);
                check_written(s);
                ls_store_release(&s);
            }
}

/* A reduce-scattered gradient has its full size on every rank, and is correct only in the rank's own block. */
static void scatter_of_units(ls_comm *comm, void *ctx)
{
    struct store_unit_options o = { .scattered = GRAD };
    int n = ls_comm_size(comm), index, unit;
    ls_store *s;
    double got[UNIT_ELEMENTS_MOST];

    (void)ctx;
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 1, 7, 0 }, &s));
    for (int i = 0; i < UNIT_PARAMETERS; i++)
        RANKS_TRY(store_declare(s, unit_shapes[i].name, (ls_init){ unit_shapes[i].init, 0.5 }, unit_shapes[i].ndim,
                                unit_shapes[i].size, &index));
    RANKS_TRY(store_unit(s, UNIT_MEMBERS, unit_members, comm, &o, &unit));
    for (size_t i = 0; i < UNIT_PARAMETERS; i++)
        store_request_grad(s, i);
    RANKS_TRY(ls_store_allocate(s));
    for (size_t i = 0; i < UNIT_MEMBERS; i++)
        for (size_t e = 0; e < unit_shapes[i].count; e++)
            ((float *)ls_tensor_data(ls_store_grad(s, i)))[e] = (float)ls_comm_rank(comm);
    for (int k = 0; k < UNIT_MEMBERS; k++) {
        size_t at = store_unit_at(s, unit)->at[k];

        RANKS_TRY(ls_store_read(s, (size_t)unit_members[k], "gradient", got, LS_F64, unit_shapes[unit_members[k]].count));
        for (size_t e = 0; e < unit_shapes[unit_members[k]].count; e++) {
            int owner = (int)got[e];

            RANKS_CHECK(block_at(UNIT_TOTAL, owner, n) <= at + e && at + e < block_at(UNIT_TOTAL, owner + 1, n));
        }
    }
    ls_store_release(&s);
}

static void ranks_read_scattered_gradient_from_owners(void **state)
{
    (void)state;
    forked_run(3, scatter_of_units, NULL);
}

static void ranks_gather_the_bits_of_one_rank(void **state)
{
    (void)state;
    forked_run(2, gather_everything, NULL);
    forked_run(3, gather_everything, NULL);
    forked_run(5, gather_everything, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_gather_the_bits_of_one_rank),
        cmocka_unit_test(ranks_read_scattered_gradient_from_owners),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
