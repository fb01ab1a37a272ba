/* test_backing_queue.c - optimizer state in a file on a device with streams: the saved bits are loaded, only what needs the file waits
 * for it, and an error of the file reaches the host.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <semaphore.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/worker.h"
#include "device/check.h"
#include "helper_check.h"
#include "ir/ir.h"
#include "helper_ranks.h"
#include "runtime/store_parts.h"

enum { COUNT = (8 << 20) / 4 + 1000 }; /* more than a chunk */

struct filed {
    ls_store *store;
    int unit;
    const struct device *d;
    struct device_stream *compute, *copy;
    float *there; /* on the device, [COUNT] */
};

static void filed_open(struct filed *x)
{
    struct store_unit_options o = { .backing = { [STORE_STATE] = BACKING_FILE }, .path = "/tmp" };
    size_t count = COUNT;
    int parameter;

    OK(ls_store_new(&(ls_store_options){ "check", LS_F32, 1, 7, 0 }, &x->store));
    OK(store_declare(x->store, "w", (ls_init){ LS_INIT_ZEROS, 0 }, 1, &count, &parameter));
    OK(store_unit(x->store, 1, (int[]){ 0 }, NULL, &o, &x->unit));
    OK(ls_store_add_state(x->store, 0, "m"));
    OK(ls_store_allocate(x->store));
    x->d = store_device(x->store);
    x->compute = store_streams(x->store)->stream[STREAM_COMPUTE].stream;
    x->copy = store_streams(x->store)->stream[STREAM_COPY].stream;
    x->there = x->d->alloc(MEM_OTHER, COUNT * sizeof(float));
    assert_non_null(x->there);
}

static void filed_close(struct filed *x)
{
    x->d->free(x->there);
    ls_store_release(&x->store);
}

static void test_bits(void **state)
{
    static float saved[COUNT], loaded[COUNT];
    struct filed x;

    (void)state;
    for (int order = 0; order < CHECK_ORDERS; order++) {
        check_set_order((enum check_order)order);
        filed_open(&x);
        for (int k = 0; k < COUNT; k++)
            saved[k] = (float)(k * 7 + order);
        OK(x.d->copy_in(x.copy, x.there, saved, sizeof saved));
        OK(store_save(x.store, x.copy, &(struct unit_state){ x.unit, STORE_STATE, "m" }, x.there));
        OK(x.d->fill(x.copy, x.there, 0, sizeof saved));
        OK(store_load(x.store, x.copy, &(struct unit_state){ x.unit, STORE_STATE, "m" }, x.there));
        OK(x.d->copy_out(x.copy, loaded, x.there, sizeof loaded));
        OK(x.d->stream_sync(x.copy));
        assert_memory_equal(loaded, saved, sizeof saved);
        memset(loaded, 0, sizeof loaded);
        OK(ls_store_read(x.store, 0, "m", loaded, LS_F32, COUNT));
        assert_memory_equal(loaded, saved, sizeof saved);
        filed_close(&x);
    }
}

static ls_status pass_gate(void *ctx) { return sem_wait(ctx) ? ls_fail(LS_EIO, "the gate broke") : LS_OK; }

static bool count_host_waits(void *ctx, const struct check_action *a)
{
    *(int *)ctx += a->kind == CHECK_HOST_WAIT;
    return true;
}

/* While the file is blocked, the host and another stream continue; what depends on the file waits. */
static void test_nothing_stalls(void **state)
{
    static const enum check_order orders[] = { CHECK_EAGER, CHECK_LAZY, CHECK_RANKED, CHECK_DEMAND };
    static const float one = 1, two = 2;

    (void)state;
    for (size_t k = 0; k < COUNT_OF(orders); k++) {
        struct worker_task task = { .fn = pass_gate };
        struct device_event *e;
        struct filed x;
        float got = 0, *other;
        sem_t gate;
        int waits = 0;

        assert_int_equal(sem_init(&gate, 0, 0), 0);
        check_set_order(orders[k]);
        filed_open(&x);
        other = x.d->alloc(MEM_OTHER, sizeof *other);
        OK(x.d->event_new(&e));
        OK(x.d->copy_in(x.copy, x.there, &one, sizeof one));
        OK(x.d->stream_sync(x.copy));
        task.ctx = &gate;
        worker_give(x.store->worker, &task);
        check_on_action(count_host_waits, &waits);
        OK(store_save(x.store, x.copy, &(struct unit_state){ x.unit, STORE_STATE, "m" }, x.there));
        OK(store_load(x.store, x.copy, &(struct unit_state){ x.unit, STORE_STATE, "m" }, x.there));
        OK(x.d->event_record(e, x.copy));
        check_on_action(NULL, NULL);
        assert_int_equal(waits, 0);
        OK(x.d->copy_in(x.compute, other, &two, sizeof two));
        OK(x.d->copy_out(x.compute, &got, other, sizeof got));
        OK(x.d->stream_sync(x.compute)); /* returns although the file's thread is blocked */
        assert_true(got == 2);
        OK(x.d->event_wait(e, x.compute));
        OK(x.d->copy_out(x.compute, &got, x.there, sizeof got));
        sem_post(&gate);
        OK(x.d->stream_sync(x.compute));
        assert_true(got == 1);
        x.d->event_free(e);
        x.d->free(other);
        filed_close(&x);
        sem_destroy(&gate);
    }
}

/* A device that has failed stays failed: tested in a child process. */
static void lose_bytes(int rank, int n, const char *where, void *ctx)
{
    struct filed x;

    (void)rank, (void)n, (void)where, (void)ctx;
    filed_open(&x);
    RANKS_CHECK(ftruncate(x.store->unit[x.unit]->fd, 1000) == 0);
    RANKS_TRY(store_load(x.store, x.copy, &(struct unit_state){ x.unit, STORE_STATE, "m" }, x.there));
    RANKS_CHECK(x.d->stream_sync(x.copy) == LS_EIO && strstr(ls_errmsg(), "a file of offloaded tensors ends after 1000 of 8388608 bytes"));
    ls_store_release(&x.store);
}

static void test_lost_bytes(void **state)
{
    (void)state;
    ranks_pass(1, 60, lose_bytes, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_bytes), /* before this process has threads */
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_nothing_stalls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
