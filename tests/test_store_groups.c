/* test_store_groups.c - parameters in flat buffers, held in part: the bits of one rank, the spans, the bytes, offloaded state.
 *
 * A rank of "plan:" knows its place and has no peers, so spans and initial values of every rank are looked at in one process.
 * What gathers needs peers: tests with "ranks" in their names fork them, first of all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/steps.h"
#include "helper_check.h"
#include "helper_forked.h"
#include "program/store.h"

enum { PARAMETERS = 5, MOST = 64 };
static const struct { const char *name; int ndim; size_t size[3], count; ls_init_kind init; } shapes[PARAMETERS] = {
    { "h.0.a", 2, { 7, 5 }, 35, LS_INIT_NORMAL }, { "h.0.b", 1, { 3 }, 3, LS_INIT_UNIFORM },
    { "h.1.c", 3, { 2, 3, 4 }, 24, LS_INIT_NORMAL }, { "h.1.d", 1, { 1 }, 1, LS_INIT_ONES }, { "e", 1, { 11 }, 11, LS_INIT_NORMAL },
};
/* The group is not in the order of declaration; e stays outside. */
static const int members[] = { 2, 0, 3, 1 };
enum { MEMBERS = 4, TOTAL = 63 };

enum { VALUE = 1 << STORE_VALUE, GRAD = 1 << STORE_GRAD, STATE = 1 << STORE_STATE };

/* comm NULL and sharded < 0: no group. Declared with gradients and a state m; not allocated. */
static ls_store *declared(ls_dtype type, ls_comm *comm, int sharded, enum store_backing backing, const char *path)
{
    struct store_group_options o = { .sharded = (unsigned)sharded, .backing = backing, .path = path };
    ls_store *s;
    int index, group;

    OK(ls_store_new(&(ls_store_options){ "cpu", type, 1, 7 }, &s));
    for (int i = 0; i < PARAMETERS; i++)
        OK(store_declare(s, shapes[i].name, (ls_init){ shapes[i].init, 0.5 }, shapes[i].ndim, shapes[i].size, &index));
    if (sharded >= 0)
        OK(store_group(s, MEMBERS, members, comm, &o, &group));
    for (size_t i = 0; i < PARAMETERS; i++) {
        store_want_grad(s, i);
        OK(ls_store_add_state(s, i, "m"));
    }
    return s;
}

static ls_store *made(ls_dtype type, ls_comm *comm, int sharded, enum store_backing backing, const char *path)
{
    ls_store *s = declared(type, comm, sharded, backing, path);

    OK(ls_store_allocate(s));
    return s;
}

static ls_comm *planned(int rank, int n)
{
    ls_comm *c;

    OK(ls_comm_open("plan:", rank, n, &c));
    return c;
}

/* ---- one process ---- */

static void impossible_groups_are_refused(void **state)
{
    struct store_group_options plain = { 0 }, file = { .backing = BACKING_FILE };
    ls_store *s = declared(LS_F32, NULL, -1, BACKING_MEMORY, NULL);
    int group, twice[] = { 1, 1 }, far[] = { PARAMETERS }, one[] = { 1 }, both[] = { 0, 1 };

    (void)state;
    REFUSED(LS_EINVAL, "twice", store_group(s, 2, twice, NULL, &plain, &group));
    REFUSED(LS_EINVAL, "there are 5", store_group(s, 1, far, NULL, &plain, &group));
    REFUSED(LS_EINVAL, "group of 0", store_group(s, 0, one, NULL, &plain, &group));
    REFUSED(LS_EINVAL, "wants a folder", store_group(s, 1, one, NULL, &file, &group));
    OK(store_group(s, 1, one, NULL, &plain, &group));
    REFUSED(LS_EINVAL, "'h.0.b' is in group 0 already", store_group(s, 2, both, NULL, &plain, &group));
    OK(ls_store_allocate(s));
    REFUSED(LS_EINVAL, "too late", store_group(s, 1, (int[]){ 0 }, NULL, &plain, &group));
    assert_int_equal(store_groups(s), 1);
    assert_int_equal(store_group_of(s, 0), -1);
    assert_int_equal(store_group_of(s, 1), 0);
    ls_store_release(&s);
}

static void check_same_part(const ls_tensor *part, const ls_tensor *whole, size_t begin, size_t end)
{
    size_t esize = ls_dtype_bytes(ls_tensor_dtype(whole));

    assert_int_equal(ls_tensor_dtype(part), ls_tensor_dtype(whole));
    assert_int_equal(ls_tensor_count(part), end - begin);
    if (end > begin)
        assert_memory_equal(ls_tensor_data(part), (char *)ls_tensor_data(whole) + begin * esize, (end - begin) * esize);
}

/* Elements [begin, end) of a parameter that lie in [first, last) of the flat buffer, found one by one. */
static void slow_span(int param, size_t first, size_t last, size_t *begin, size_t *end)
{
    size_t at = 0;

    *begin = *end = 0;
    for (int k = 0; k < MEMBERS; k++)
        for (size_t e = 0; e < shapes[members[k]].count; e++, at++)
            if (members[k] == param && at >= first && at < last) {
                *begin = *end ? *begin : e;
                *end = e + 1;
            }
}

/* Every rank of n holds the elements of one rank, whatever is sharded. */
static void shards_equal_one_rank(void **state)
{
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F64 };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        ls_store *one = made(types[t], NULL, -1, BACKING_MEMORY, NULL);

        for (int n = 1; n <= 70; n += n < 6 ? 1 : 64)
            for (int sharded = 0; sharded < 8; sharded++)
                for (int rank = 0; rank < n; rank += n > 6 ? 23 : 1) {
                    ls_comm *comm = planned(rank, n);
                    ls_store *s = made(types[t], comm, sharded, BACKING_MEMORY, NULL);

                    for (int i = 0; i < PARAMETERS; i++) {
                        size_t begin = 0, end = shapes[i].count, b, e;

                        for (int k = 0; k < STORE_KINDS; k++) {
                            const char *name = types[t] == LS_BF16 ? "master" : "m";
                            ls_tensor *mine = k == STORE_VALUE ? ls_store_value(s, (size_t)i) : k == STORE_GRAD ? ls_store_grad(s, (size_t)i) : ls_store_state(s, (size_t)i, name);
                            ls_tensor *all = k == STORE_VALUE ? ls_store_value(one, (size_t)i) : k == STORE_GRAD ? ls_store_grad(one, (size_t)i) : ls_store_state(one, (size_t)i, name);

                            begin = 0;
                            end = shapes[i].count;
                            if (i < MEMBERS && (sharded >> k & 1))
                                slow_span(i, (size_t)TOTAL * (size_t)rank / (size_t)n, (size_t)TOTAL * (size_t)(rank + 1) / (size_t)n, &begin, &end);
                            store_held(s, (size_t)i, (enum store_kind)k, &b, &e);
                            assert_int_equal(e - b, end - begin);
                            if (e > b)
                                assert_int_equal(b, begin);
                            assert_int_equal(ls_tensor_ndim(mine), i < MEMBERS && (sharded >> k & 1) ? 1 : shapes[i].ndim);
                            check_same_part(mine, all, begin, end);
                        }
                    }
                    ls_store_release(&s);
                    ls_comm_close(&comm);
                }
        ls_store_release(&one);
    }
}

static void tensors_are_contiguous(void **state)
{
    ls_comm *comm = planned(2, 3);
    ls_store *s = made(LS_F32, comm, STATE, BACKING_MEMORY, NULL);
    const struct store_group *g = store_group_at(s, 0);
    const float *flat = store_group_data(s, 0, STORE_VALUE, NULL);

    (void)state;
    assert_int_equal(store_groups(s), 1);
    assert_int_equal(g->n, MEMBERS);
    assert_int_equal(g->total, TOTAL);
    assert_int_equal(g->begin, 42);
    assert_int_equal(g->end, 63);
    assert_int_equal(g->at[MEMBERS], TOTAL);
    for (int k = 0; k < MEMBERS; k++) {
        assert_int_equal(g->params[k], members[k]);
        assert_ptr_equal(ls_tensor_data(ls_store_value(s, (size_t)members[k])), flat + g->at[k]);
    }
    assert_null(store_group_data(s, 0, STORE_STATE, "v"));
    assert_non_null(store_group_data(s, 0, STORE_STATE, "m"));
    ls_store_release(&s);
    ls_comm_close(&comm);
}

/* The ledger's numbers are those that were foretold, and nothing is left. */
static void ledger_is_exact(void **state)
{
    static const enum store_backing backings[] = { BACKING_MEMORY, BACKING_CPU, BACKING_FILE };

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++)
        for (int n = 1; n <= 5; n++)
            for (int sharded = 0; sharded < 8; sharded++) {
                struct mem_stats before, after;
                ls_comm *comm = planned(n - 1, n);
                ls_store *s;
                size_t parameters, gradients, optimizer, offload;

                mem_read(&before);
                s = declared(LS_BF16, comm, sharded, backings[b], "/tmp");
                store_bytes(s, &parameters, &gradients, &optimizer, &offload);
                OK(ls_store_allocate(s));
                mem_read(&after);
                assert_int_equal(after.now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS], parameters);
                assert_int_equal(after.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], gradients);
                assert_int_equal(after.now[MEM_OPTIMIZER] - before.now[MEM_OPTIMIZER], optimizer);
                assert_int_equal(after.now[MEM_OFFLOAD] - before.now[MEM_OFFLOAD], offload);
                assert_int_equal(after.now[MEM_COMMUNICATION], before.now[MEM_COMMUNICATION]);
                assert_true((offload > 0) == (backings[b] == BACKING_CPU));
                assert_int_equal(parameters, 2 * (11 + (sharded & VALUE ? TOTAL - TOTAL * (n - 1) / n : TOTAL)));
                ls_store_release(&s);
                mem_read(&after);
                assert_int_equal(after.total_now, before.total_now);
                ls_comm_close(&comm);
            }
}

static void groups_fail_cleanly_without_memory(void **state)
{
    ls_comm *comm = planned(1, 3);
    struct mem_stats before, after;
    int failures = 0;

    (void)state;
    mem_read(&before);
    for (int nth = 1;; nth++) {
        ls_store *s = declared(LS_BF16, comm, VALUE | STATE, BACKING_CPU, NULL);
        ls_status st;

        mem_fail_at(nth);
        st = ls_store_allocate(s);
        mem_fail_at(0);
        ls_store_release(&s);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_ENOMEM);
        failures++;
    }
    assert_true(failures > 10);
    ls_comm_close(&comm);
}

/* ---- offloaded state ---- */

static void offloaded_state_is_loaded_and_saved(void **state)
{
    static const enum store_backing backings[] = { BACKING_CPU, BACKING_FILE };
    ls_comm *comm = planned(1, 2);
    ls_store *one = made(LS_BF16, NULL, -1, BACKING_MEMORY, NULL);

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++) {
        ls_store *s = made(LS_BF16, comm, STATE, backings[b], "/tmp");
        const struct store_group *g = store_group_at(s, 0);
        size_t n = g->end - g->begin;
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);

        assert_null(ls_store_state(s, 0, "m"));
        assert_null(store_group_data(s, 0, STORE_STATE, "m"));
        assert_non_null(ls_store_state(s, 4, "m"));  /* outside the group */
        OK(store_load(s, 0, "m", x));
        for (size_t i = 0; i < n; i++) {
            assert_true(x[i] == 0);
            x[i] = (float)i + 0.5f;
        }
        OK(store_save(s, 0, "m", x));
        OK(store_load(s, 0, "m", y));
        assert_memory_equal(x, y, n * sizeof *x);
        OK(store_load(s, 0, "master", y));  /* another stretch, with the initial values */
        for (size_t i = 0; i < n; i++) {
            int k = MEMBERS - 1;

            while (g->at[k] > g->begin + i)
                k--;
            x[i] = ((float *)ls_tensor_data(ls_store_state(one, (size_t)members[k], "master")))[g->begin + i - g->at[k]];
        }
        assert_memory_equal(x, y, n * sizeof *x);
        REFUSED(LS_EINVAL, "no state 'v'", store_load(s, 0, "v", y));
        free(x);
        free(y);
        ls_store_release(&s);
    }
    ls_store_release(&one);
    ls_comm_close(&comm);
}

static void full_offloaded_state_is_read_and_written(void **state)
{
    static const enum store_backing backings[] = { BACKING_CPU, BACKING_FILE };

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++) {
        ls_store *s = made(LS_F32, NULL, 0, backings[b], "/tmp");
        double x[24], y[24];

        for (int i = 0; i < 24; i++)
            x[i] = i - 3.25;
        OK(ls_store_write(s, 2, "m", x, LS_F64, 24));
        OK(ls_store_read(s, 2, "m", y, LS_F64, 24));
        assert_memory_equal(x, y, sizeof x);
        OK(ls_store_read(s, 3, "m", y, LS_F64, 1));  /* the neighbour */
        assert_true(y[0] == 0);
        ls_store_release(&s);
    }
}

static void missing_folder_is_named(void **state)
{
    ls_store *s = declared(LS_F32, NULL, 0, BACKING_FILE, "/nowhere/at/all");

    (void)state;
    assert_int_equal(ls_store_allocate(s), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "/nowhere/at/all"));
    ls_store_release(&s);
}

/* ---- whole values in and out ---- */

static void partial_reads_are_refused(void **state)
{
    ls_store *s = declared(LS_F32, NULL, 0, BACKING_MEMORY, NULL);
    float x[35];

    (void)state;
    REFUSED(LS_EINVAL, "not allocated", ls_store_read(s, 0, "parameter", x, LS_F32, 35));
    OK(ls_store_allocate(s));
    REFUSED(LS_EINVAL, "35 elements, 34 were given", ls_store_read(s, 0, "parameter", x, LS_F32, 34));
    REFUSED(LS_EINVAL, "no v", ls_store_read(s, 0, "v", x, LS_F32, 35));
    REFUSED(LS_EINVAL, "no master", ls_store_write(s, 0, "master", x, LS_F32, 35));
    REFUSED(LS_EINVAL, "parameter 9 of 5", ls_store_read(s, 9, "parameter", x, LS_F32, 35));
    ls_store_release(&s);
}

static void writes_reach_the_master(void **state)
{
    ls_comm *comm = planned(1, 2);
    ls_store *s = made(LS_BF16, comm, STATE, BACKING_MEMORY, NULL);
    double x[35], got[35];
    size_t begin, end;

    (void)state;
    for (int i = 0; i < 35; i++)
        x[i] = 1 + i / 1024.0;
    OK(ls_store_set(s, 0, x, LS_F64, 35));
    OK(ls_store_read(s, 0, "parameter", got, LS_F64, 35));
    assert_true(got[0] == 1 && got[1] == 1);  /* rounded */
    store_held(s, 0, STORE_STATE, &begin, &end);
    assert_true(begin > 0 && end == 35);
    OK(ls_tensor_read(ls_store_state(s, 0, "master"), got + begin, LS_F64, end - begin));
    assert_memory_equal(got + begin, x + begin, (end - begin) * sizeof *x);
    ls_store_zero_grad(s);
    ls_store_release(&s);
    ls_comm_close(&comm);
}

/* ---- several ranks ---- */

/* The store of one rank, made by this rank beside it: what a gather must give. */
static void check_all(const ls_store *s, ls_dtype type)
{
    ls_store *one;
    int index;

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 1, 7 }, &one));
    for (int i = 0; i < PARAMETERS; i++)
        RANKS_TRY(store_declare(one, shapes[i].name, (ls_init){ shapes[i].init, 0.5 }, shapes[i].ndim, shapes[i].size, &index));
    RANKS_TRY(ls_store_allocate(one));
    for (size_t i = 0; i < PARAMETERS; i++) {
        const ls_tensor *value = ls_store_value(one, i), *master = ls_store_state(one, i, "master");
        size_t count = shapes[i].count;
        double got[MOST], want[MOST];
        char raw[MOST * 8];

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

    for (size_t i = 0; i < PARAMETERS; i++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            double x[MOST], got[MOST];

            for (size_t e = 0; e < shapes[i].count; e++)
                x[e] = (double)((i * 23 + k * 11 + e) % 128);  /* exact in bf16 too */
            RANKS_TRY(ls_store_write(s, i, kinds[k], x, LS_F64, shapes[i].count));
            memset(got, 0xff, sizeof got);
            RANKS_TRY(ls_store_read(s, i, kinds[k], got, LS_F64, shapes[i].count));
            for (size_t e = 0; e < shapes[i].count; e++)
                RANKS_CHECK(got[e] == x[e]);
        }
    ls_store_zero_grad(s);
    for (size_t i = 0; i < PARAMETERS; i++) {
        double got[MOST];

        RANKS_TRY(ls_store_read(s, i, "gradient", got, LS_F64, shapes[i].count));
        for (size_t e = 0; e < shapes[i].count; e++)
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
                struct store_group_options o = { .sharded = (unsigned)sharded, .backing = backings[b], .path = "/tmp" };
                size_t parameters, gradients, optimizer, offload;
                struct mem_stats before, after;
                ls_store *s;
                int index, group;

                mem_read(&before);
                RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", types[t], 1, 7 }, &s));
                for (int i = 0; i < PARAMETERS; i++)
                    RANKS_TRY(store_declare(s, shapes[i].name, (ls_init){ shapes[i].init, 0.5 }, shapes[i].ndim, shapes[i].size, &index));
                RANKS_TRY(store_group(s, MEMBERS, members, comm, &o, &group));
                for (size_t i = 0; i < PARAMETERS; i++) {
                    store_want_grad(s, i);
                    RANKS_TRY(ls_store_add_state(s, i, "m"));
                }
                store_bytes(s, &parameters, &gradients, &optimizer, &offload);
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

/* A scattered gradient is whole everywhere and right in the own block alone. */
static void scatter(ls_comm *comm, void *ctx)
{
    struct store_group_options o = { .scattered = GRAD };
    int n = ls_comm_size(comm), index, group;
    ls_store *s;
    double got[MOST];

    (void)ctx;
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 1, 7 }, &s));
    for (int i = 0; i < PARAMETERS; i++)
        RANKS_TRY(store_declare(s, shapes[i].name, (ls_init){ shapes[i].init, 0.5 }, shapes[i].ndim, shapes[i].size, &index));
    RANKS_TRY(store_group(s, MEMBERS, members, comm, &o, &group));
    for (size_t i = 0; i < PARAMETERS; i++)
        store_want_grad(s, i);
    RANKS_TRY(ls_store_allocate(s));
    for (size_t i = 0; i < MEMBERS; i++)
        for (size_t e = 0; e < shapes[i].count; e++)
            ((float *)ls_tensor_data(ls_store_grad(s, i)))[e] = (float)ls_comm_rank(comm);
    for (int k = 0; k < MEMBERS; k++) {
        size_t at = store_group_at(s, group)->at[k];

        RANKS_TRY(ls_store_read(s, (size_t)members[k], "gradient", got, LS_F64, shapes[members[k]].count));
        for (size_t e = 0; e < shapes[members[k]].count; e++) {
            int owner = (int)got[e];

            RANKS_CHECK(block_at(TOTAL, owner, n) <= at + e && at + e < block_at(TOTAL, owner + 1, n));
        }
    }
    ls_store_release(&s);
}

static void ranks_read_scattered_gradient_from_owners(void **state)
{
    (void)state;
    forked_run(3, scatter, NULL);
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
        cmocka_unit_test(impossible_groups_are_refused),
        cmocka_unit_test(shards_equal_one_rank),
        cmocka_unit_test(tensors_are_contiguous),
        cmocka_unit_test(ledger_is_exact),
        cmocka_unit_test(groups_fail_cleanly_without_memory),
        cmocka_unit_test(offloaded_state_is_loaded_and_saved),
        cmocka_unit_test(full_offloaded_state_is_read_and_written),
        cmocka_unit_test(missing_folder_is_named),
        cmocka_unit_test(partial_reads_are_refused),
        cmocka_unit_test(writes_reach_the_master),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
