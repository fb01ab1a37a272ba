/* loader.c - a thread that keeps a ring of depth + 1 batch buffers full.
 *
 * Batch k is in buffer k % (depth + 1). `made` and `taken` count batches and never decrease. The thread fills the buffer of batch `made`
 * while made - taken < depth. The caller reads batch taken - 1, the last one that it took, whose buffer is not refilled until the next
 * call: that is what the additional buffer is for. Messages of ls_fail() are per thread, so the thread stores that of a failure for the
 * caller.
 */
#include <pthread.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "data/loader.h"
#include "lockstep/data.h"

enum { ERROR_BYTES = 240 };

struct ls_loader {
    ls_sampler sampler;
    ls_batches batches;
    int32_t *ids; /* [depth + 1][x then y][B,T] */
    size_t half;  /* B * T */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t moved;
    uint64_t made, taken;
    bool stop;
    ls_status failed; /* of batch `made`; the thread has ended */
    char error[ERROR_BYTES];
};

static int32_t *batch_buffer(const ls_loader *l, uint64_t batch) { return l->ids + batch % (l->batches.depth + 1) * 2 * l->half; }

static uint64_t first_sample(const ls_batches *b, uint64_t batch)
{
    return b->first + batch / b->per_step * b->step + b->offset + batch % b->per_step * b->batch;
}

static ls_status loader_fill(const ls_loader *l, uint64_t batch)
{
    int32_t *x = batch_buffer(l, batch), *y = x + l->half;
    uint64_t first = first_sample(&l->batches, batch);
    size_t seq_len = l->sampler.seq_len;

    uint64_t done = batch % l->batches.per_step * l->batches.batch; /* samples of this step before this batch */

    for (size_t row = 0; row < l->batches.batch; row++) {
        int32_t *targets = y + row * seq_len;
        bool counts = done + row < l->batches.rows;

        LS_TRY(ls_sampler_get(&l->sampler, first + row, x + row * seq_len, targets));
        if (!counts) memset(targets, 0xff, seq_len * sizeof *targets);
    }
    return LS_OK;
}

/* Waits for a free buffer; false if the loader is being closed. */
static bool wait_for_room(ls_loader *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->made - l->taken >= l->batches.depth) pthread_cond_wait(&l->moved, &l->lock);
    bool go = !l->stop;
    pthread_mutex_unlock(&l->lock);
    return go;
}

loader_fault_fn *loader_fault;

static void call_fault(void)
{
    loader_fault_fn *fault = __atomic_load_n(&loader_fault, __ATOMIC_ACQUIRE);

    if (fault) fault();
}

static void *loader_run(void *ctx)
{
    ls_loader *l = ctx;
    ls_status st = LS_OK;

    for (uint64_t batch = 0; st == LS_OK && wait_for_room(l); batch++) {
        call_fault();
        st = loader_fill(l, batch);
        pthread_mutex_lock(&l->lock);
        if (st == LS_OK) {
            l->made++;
        } else {
            l->failed = st;
            strncpy(l->error, ls_errmsg(), ERROR_BYTES - 1);
        }
        pthread_cond_signal(&l->moved);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

static ls_status loader_check(ls_batches *b)
{
    if (b->batch == 0) return ls_fail(LS_EINVAL, "a batch must have at least one sample");
    if (b->per_step == 0) b->per_step = 1;
    if (b->step == 0) b->step = b->per_step * b->batch;
    if (b->depth == 0) b->depth = LOADER_DEPTH;
    if (b->rows == 0 && !b->none) b->rows = b->per_step * b->batch;
    if (b->rows > b->per_step * b->batch || b->offset + b->rows > b->step)
        return ls_fail(LS_EINVAL, "%llu samples from %llu on do not fit a step of %llu samples, or %zu batches of %zu",
                       (unsigned long long)b->rows, (unsigned long long)b->offset, (unsigned long long)b->step, b->per_step, b->batch);
    return LS_OK;
}

static ls_status loader_allocate(ls_loader *l)
{
    size_t count;

    if (!size_mul(l->batches.batch, l->sampler.seq_len, &l->half) || !size_add(l->batches.depth, 1, &count) ||
        !size_mul(count, l->half, &count) || !size_mul(count, 2 * sizeof *l->ids, &count))
        return ls_fail(LS_EINVAL, "batches are too large: %zu x %zu tokens, %zu at a time", l->batches.batch, l->sampler.seq_len,
                       l->batches.depth);
    l->ids = mem_alloc(MEM_OTHER, count);
    return l->ids ? LS_OK : LS_ENOMEM;
}

ls_status ls_loader_open(const ls_sampler *s, const ls_batches *batches, ls_loader **out)
{
    ls_loader *l = mem_zalloc(MEM_OTHER, sizeof *l);

    if (!l) return LS_ENOMEM;
    l->sampler = *s;
    l->batches = *batches;
    ls_status st = loader_check(&l->batches);
    if (st == LS_OK) st = loader_allocate(l);
    if (st != LS_OK) goto free_loader;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    int error = pthread_create(&l->thread, NULL, loader_run, l);
    if (error) {
        st = ls_fail(LS_ENOMEM, "cannot start the loader's thread: %s", strerror(error));
        goto destroy_lock;
    }
    *out = l;
    return LS_OK;
destroy_lock:
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->lock);
free_loader:
    mem_free(l->ids);
    mem_free(l);
    return st;
}

ls_status ls_loader_next(ls_loader *l, const int32_t **x, const int32_t **y)
{
    ls_status st = LS_OK;

    pthread_mutex_lock(&l->lock);
    while (l->made == l->taken && l->failed == LS_OK) pthread_cond_wait(&l->moved, &l->lock);
    if (l->made == l->taken) {
        st = ls_fail(l->failed, "%s", l->error);
    } else {
        *x = batch_buffer(l, l->taken++);
        *y = *x + l->half;
        pthread_cond_signal(&l->moved);
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

void ls_loader_close(ls_loader **at)
{
    ls_loader *l = at ? *at : NULL;

    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->moved);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->moved);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->ids);
    mem_free(l);
    *at = NULL;
}
