/* test_store_units.c - parameters in flat buffers, sharded, in one process: the bits of one rank, the bytes, offloaded state. */
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
#include "device/check.h"
#include "helper_check.h"
#include "helper_store_units.h"
#include "ir/ir.h"
#include "runtime/store.h"
#include "train/faults/fault_points.h"

/* comm NULL and sharded < 0: no unit. Declared with gradients and a state m; not allocated. */
static ls_store *group_store_on(const char *device, ls_dtype type, ls_comm *comm, int sharded, enum store_backing backing, const char *path)
{
    struct store_unit_options o = { .sharded = (unsigned)sharded, .backing = { [STORE_STATE] = backing }, .path = path };
    ls_store *s;
    int index, unit;

    OK(ls_store_new(&(ls_store_options){ device, type, 1, 7, 0 }, &s));
    for (int i = 0; i < UNIT_PARAMETERS; i++)
        OK(store_declare(s, unit_shapes[i].name, (ls_init){ unit_shapes[i].init, 0.5 }, unit_shapes[i].ndim, unit_shapes[i].size,
                         &index));
    if (sharded >= 0)
        OK(store_unit(s, UNIT_MEMBERS, unit_members, comm, &o, &unit));
    for (size_t i = 0; i < UNIT_PARAMETERS; i++) {
        store_request_grad(s, i);
        OK(ls_store_add_state(s, i, "m"));
    }
    return s;
}

static ls_store *group_store_declared(ls_dtype type, ls_comm *comm, int sharded, enum store_backing backing, const char *path)
{
    return group_store_on("cpu", type, comm, sharded, backing, path);
}

static ls_store *group_store(ls_dtype type, ls_comm *comm, int sharded, enum store_backing backing, const char *path)
{
    ls_store *s = group_store_declared(type, comm, sharded, backing, path);

    OK(ls_store_allocate(s));
    return s;
}

static ls_comm *plan_comm(int rank, int n)
{
    ls_comm *c;

    OK(ls_comm_open("plan:", rank, n, &c));
    return c;
}

/* ---- one process ---- */

static void impossible_units_are_refused(void **state)
{
    struct store_unit_options plain = { 0 }, file = { .backing = { [STORE_STATE] = BACKING_FILE } };
    ls_store *s = group_store_declared(LS_F32, NULL, -1, BACKING_MEMORY, NULL);
    int unit, twice[] = { 1, 1 }, far[] = { UNIT_PARAMETERS }, one[] = { 1 }, both[] = { 0, 1 };

    (void)state;
    REFUSED(LS_EINVAL, "twice", store_unit(s, 2, twice, NULL, &plain, &unit));
    REFUSED(LS_EINVAL, "there are only 5", store_unit(s, 1, far, NULL, &plain, &unit));
    REFUSED(LS_EINVAL, "unit of 0", store_unit(s, 0, one, NULL, &plain, &unit));
    REFUSED(LS_EINVAL, "needs a folder", store_unit(s, 1, one, NULL, &file, &unit));
    OK(store_unit(s, 1, one, NULL, &plain, &unit));
    REFUSED(LS_EINVAL, "'h.0.b' is already in unit 0", store_unit(s, 2, both, NULL, &plain, &unit));
    OK(ls_store_allocate(s));
    REFUSED(LS_EINVAL, "too late", store_unit(s, 1, (int[]){ 0 }, NULL, &plain, &unit));
    assert_int_equal(store_units(s), 1);
    assert_int_equal(store_unit_of(s, 0), -1);
    assert_int_equal(store_unit_of(s, 1), 0);
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

/* Elements [begin, end) of a parameter that are in [first, last) of the flat buffer, found one by one. */
static void slow_span(int param, size_t first, size_t last, size_t *begin, size_t *end)
{
    size_t at = 0;

    *begin = *end = 0;
    for (int k = 0; k < UNIT_MEMBERS; k++)
        for (size_t e = 0; e < unit_shapes[unit_members[k]].count; e++, at++)
            if (unit_members[k] == param && at >= first && at < last) {
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
        ls_store *one = group_store(types[t], NULL, -1, BACKING_MEMORY, NULL);

        for (int n = 1; n <= 70; n += n < 6 ? 1 : 64)
            for (int sharded = 0; sharded < 8; sharded++)
                for (int rank = 0; rank < n; rank += n > 6 ? 23 : 1) {
                    ls_comm *comm = plan_comm(rank, n);
                    ls_store *s = group_store(types[t], comm, sharded, BACKING_MEMORY, NULL);

                    for (int i = 0; i < UNIT_PARAMETERS; i++) {
                        size_t begin = 0, end = unit_shapes[i].count, b, e;

                        for (int k = 0; k < STORE_KINDS; k++) {
                            const char *name = types[t] == LS_BF16 ? "master" : "m";
                            ls_tensor *mine = k == STORE_VALUE  ? ls_store_value(s, (size_t)i)
                                              : k == STORE_GRAD ? ls_store_grad(s, (size_t)i)
                                                                : ls_store_state(s, (size_t)i, name);
                            ls_tensor *all = k == STORE_VALUE  ? ls_store_value(one, (size_t)i)
                                             : k == STORE_GRAD ? ls_store_grad(one, (size_t)i)
                                                               : ls_store_state(one, (size_t)i, name);

                            begin = 0;
                            end = unit_shapes[i].count;
                            if (i < UNIT_MEMBERS && (sharded >> k & 1))
                                slow_span(i, (size_t)UNIT_TOTAL * (size_t)rank / (size_t)n,
                                          (size_t)UNIT_TOTAL * (size_t)(rank + 1) / (size_t)n, &begin, &end);
                            store_held(s, (size_t)i, (enum store_kind)k, &b, &e);
                            assert_int_equal(e - b, end - begin);
                            if (e > b)
                                assert_int_equal(b, begin);
                            assert_int_equal(ls_tensor_ndim(mine), i < UNIT_MEMBERS && (sharded >> k & 1) ? 1 : unit_shapes[i].ndim);
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
    ls_comm *comm = plan_comm(2, 3);
    ls_store *s = group_store(LS_F32, comm, STATE, BACKING_MEMORY, NULL);
    const struct store_unit *g = store_unit_at(s, 0);
    const float *flat = store_unit_data(s, 0, STORE_VALUE, NULL);

    (void)state;
    assert_int_equal(store_units(s), 1);
    assert_int_equal(g->n, UNIT_MEMBERS);
    assert_int_equal(g->total, UNIT_TOTAL);
    assert_int_equal(g->begin, 42);
    assert_int_equal(g->end, 63);
    assert_int_equal(g->at[UNIT_MEMBERS], UNIT_TOTAL);
    for (int k = 0; k < UNIT_MEMBERS; k++) {
        assert_int_equal(g->params[k], unit_members[k]);
        assert_ptr_equal(ls_tensor_data(ls_store_value(s, (size_t)unit_members[k])), flat + g->at[k]);
    }
    assert_null(store_unit_data(s, 0, STORE_STATE, "v"));
    assert_non_null(store_unit_data(s, 0, STORE_STATE, "m"));
    ls_store_release(&s);
    ls_comm_close(&comm);
}

/* The ledger's numbers are those predicted, and nothing is left. */
static void ledger_is_exact(void **state)
{
    static const enum store_backing backings[] = { BACKING_MEMORY, BACKING_CPU, BACKING_FILE };

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++)
        for (int n = 1; n <= 5; n++)
            for (int sharded = 0; sharded < 8; sharded++) {
                struct mem_stats before, after;
                ls_comm *comm = plan_comm(n - 1, n);
                size_t parameters, gradients, optimizer, offload, file;

                mem_read(&before);
                ls_store *s = group_store_declared(LS_BF16, comm, sharded, backings[b], "/tmp");
                store_bytes(s, &parameters, &gradients, &optimizer, &offload, &file);
                OK(ls_store_allocate(s));
                mem_read(&after);
                assert_int_equal(after.now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS], parameters);
                assert_int_equal(after.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], gradients);
                assert_int_equal(after.now[MEM_OPTIMIZER] - before.now[MEM_OPTIMIZER], optimizer);
                assert_int_equal(after.now[MEM_OFFLOAD] - before.now[MEM_OFFLOAD], offload);
                assert_int_equal(after.now[MEM_COMMUNICATION], before.now[MEM_COMMUNICATION]);
                assert_true((offload > 0) == (backings[b] == BACKING_CPU));
                assert_true((file > 0) == (backings[b] == BACKING_FILE));
                assert_int_equal(parameters, 2 * (11 + (sharded & VALUE ? UNIT_TOTAL - UNIT_TOTAL * (n - 1) / n : UNIT_TOTAL)));
                ls_store_release(&s);
                mem_read(&after);
                assert_int_equal(after.total_now, before.total_now);
                ls_comm_close(&comm);
            }
}

static void units_fail_cleanly_without_memory(void **state)
{
    ls_comm *comm = plan_comm(1, 3);
    struct mem_stats before, after;
    int failures = 0;

    (void)state;
    mem_read(&before);
    for (int nth = 1;; nth++) {
        ls_store *s = group_store_declared(LS_BF16, comm, VALUE | STATE, BACKING_CPU, NULL);

        mem_fail_at(nth);
        ls_status st = ls_store_allocate(s);
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
    ls_comm *comm = plan_comm(1, 2);
    ls_store *one = group_store(LS_BF16, NULL, -1, BACKING_MEMORY, NULL);

    (void)state;
    for (size_t b = 0; b < COUNT_OF(backings); b++) {
        ls_store *s = group_store(LS_BF16, comm, STATE, backings[b], "/tmp");
        const struct store_unit *g = store_unit_at(s, 0);
        size_t n = g->end - g->begin;
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);

        assert_null(ls_store_state(s, 0, "m"));
        assert_null(store_unit_data(s, 0, STORE_STATE, "m"));
        assert_non_null(ls_store_state(s, 4, "m"));  /* outside the unit */
        OK(store_load(s, NULL, &(struct unit_state){ 0, STORE_STATE, "m" }, x));
        OK(store_offload_wait(s, &(struct unit_state){ 0, STORE_STATE, "m" }));
        for (size_t i = 0; i < n; i++) {
            assert_true(x[i] == 0);
            x[i] = (float)i + 0.5f;
        }
        OK(store_save(s, NULL, &(struct unit_state){ 0, STORE_STATE, "m" }, x));
        OK(store_offload_wait(s, &(struct unit_state){ 0, STORE_STATE, "m" }));
        OK(store_load(s, NULL, &(struct unit_state){ 0, STORE_STATE, "m" }, y));
        OK(store_offload_wait(s, &(struct unit_state){ 0, STORE_STATE, "m" }));
        assert_memory_equal(x, y, n * sizeof *x);
        OK(store_load(s, NULL, &(struct unit_state){ 0, STORE_STATE, "master" }, y));
        OK(store_offload_wait(s, &(struct unit_state){ 0, STORE_STATE, "master" }));  /* another stretch, with the initial values */
        for (size_t i = 0; i < n; i++) {
            int k = UNIT_MEMBERS - 1;

            while (g->at[k] > g->begin + i)
                k--;
            x[i] = ((float *)ls_tensor_data(ls_store_state(one, (size_t)unit_members[k], "master")))[g->begin + i - g->at[k]];
        }
        assert_memory_equal(x, y, n * sizeof *x);
        REFUSED(LS_EINVAL, "no state 'v'", store_load(s, NULL, &(struct unit_state){ 0, STORE_STATE, "v" }, y));
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
        ls_store *s = group_store(LS_F32, NULL, 0, backings[b], "/tmp");
        double x[24], y[24];

        for (int i = 0; i < 24; i++)
            x[i] = i - 3.25;
        OK(ls_store_write(s, 2, "m", x, LS_F64, 24));
        OK(ls_store_read(s, 2, "m", y, LS_F64, 24));
        assert_memory_equal(x, y, sizeof x);
        OK(ls_store_read(s, 3, "m", y, LS_F64, 1));  /* the neighbor */
        assert_true(y[0] == 0);
        ls_store_release(&s);
    }
}

static void missing_folder_is_named(void **state)
{
    ls_store *s = group_store_declared(LS_F32, NULL, 0, BACKING_FILE, "/nowhere/at/all");

    (void)state;
    assert_int_equal(ls_store_allocate(s), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "/nowhere/at/all"));
    ls_store_release(&s);
}

/* ---- whole values in and out ---- */

static void partial_reads_are_refused(void **state)
{
    ls_store *s = group_store_declared(LS_F32, NULL, 0, BACKING_MEMORY, NULL);
    float x[35];

    (void)state;
    REFUSED(LS_EINVAL, "not allocated", ls_store_read(s, 0, "parameter", x, LS_F32, 35));
    OK(ls_store_allocate(s));
    REFUSED(LS_EINVAL, "35 elements, but 34 were given", ls_store_read(s, 0, "parameter", x, LS_F32, 34));
    REFUSED(LS_EINVAL, "no v", ls_store_read(s, 0, "v", x, LS_F32, 35));
    REFUSED(LS_EINVAL, "no master", ls_store_write(s, 0, "master", x, LS_F32, 35));
    REFUSED(LS_EINVAL, "parameter 9 does not exist; there are 5", ls_store_read(s, 9, "parameter", x, LS_F32, 35));
    ls_store_release(&s);
}

static void writes_reach_the_master(void **state)
{
    ls_comm *comm = plan_comm(1, 2);
    ls_store *s = group_store(LS_BF16, comm, STATE, BACKING_MEMORY, NULL);
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

static bool count_fills(void *ctx, const struct check_action *a)
{
    *(int *)ctx += a->kind == CHECK_OPERATION && strcmp(a->operation->name, "fill") == 0;
    return true;
}

/* On a device with streams: one fill for all gradients outside of units that an allocation added, and one for each unit. */
static void gradients_are_cleared_together(void **state)
{
    double ones[UNIT_ELEMENTS_MOST], x[UNIT_ELEMENTS_MOST];
    size_t bytes[5];
    struct mem_stats m;

    (void)state;
    for (int i = 0; i < UNIT_ELEMENTS_MOST; i++) ones[i] = 1;
    for (int grouped = 0; grouped < 2; grouped++) {
        ls_store *s = group_store_on("check", LS_F32, NULL, grouped ? 0 : -1, BACKING_MEMORY, NULL);
        int fills = 0, index;

        OK(ls_store_allocate(s));
        OK(store_declare(s, "late", (ls_init){ LS_INIT_ZEROS, 0 }, 1, (size_t[]){ 5 }, &index));
        store_request_grad(s, (size_t)index);
        OK(ls_store_allocate(s));
        for (size_t i = 0; i < ls_store_count(s); i++)
            OK(ls_store_write(s, i, "gradient", ones, LS_F64, i < UNIT_PARAMETERS ? unit_shapes[i].count : 5));
        check_on_action(count_fills, &fills);
        ls_store_zero_grad(s);
        check_on_action(NULL, NULL);
        assert_int_equal(fills, grouped ? 3 : 2);
        for (size_t i = 0; i < ls_store_count(s); i++) {
            size_t count = i < UNIT_PARAMETERS ? unit_shapes[i].count : 5;

            OK(ls_store_read(s, i, "gradient", x, LS_F64, count));
            for (size_t e = 0; e < count; e++) assert_true(x[e] == 0);
        }
        store_bytes(s, &bytes[0], &bytes[1], &bytes[2], &bytes[3], &bytes[4]);
        mem_read(&m);
        assert_int_equal(m.now[MEM_GRADIENTS], bytes[1]);
        ls_store_release(&s);
        mem_read(&m);
        assert_int_equal(m.now[MEM_GRADIENTS], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_units_are_refused),
        cmocka_unit_test(shards_equal_one_rank),
        cmocka_unit_test(tensors_are_contiguous),
        cmocka_unit_test(ledger_is_exact),
        cmocka_unit_test(units_fail_cleanly_without_memory),
        cmocka_unit_test(offloaded_state_is_loaded_and_saved),
        cmocka_unit_test(full_offloaded_state_is_read_and_written),
        cmocka_unit_test(missing_folder_is_named),
        cmocka_unit_test(partial_reads_are_refused),
        cmocka_unit_test(writes_reach_the_master),
        cmocka_unit_test(gradients_are_cleared_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
