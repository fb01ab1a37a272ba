/* native_rank.h - shared by the tests of the CUDA module's collectives on the stub: a rank on a GPU, with groups whose calls, memory and
 * (of NCCL) registrations are counted, and the run of a test on 2 to RANKS ranks. Included by one file of each test.
 */
#ifndef LS_TESTS_NATIVE_RANK_H
#define LS_TESTS_NATIVE_RANK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "device/collectives.h"
#include "device/device.h"
#include "helper_comm.h"
#include "helper_ranks.h"
#include "lockstep/mesh.h"
#include "parallel/mesh/mesh.h"

/* COMM_BYTES, PEER_BYTES: of memory that the stub takes for a communicator, and for a connection of messages. */
enum { ROOM = 64 << 10, GUARD = 64, RANKS = 4, COMM_BYTES = 3 << 20, PEER_BYTES = 1 << 20, WINDOW_BYTES = 2 << 20 };

/* The tables of the device. */
enum { BY_NCCL, BY_IPC };
static int by = BY_NCCL;

static char folder[] = "/tmp/lockstep_nccl_XXXXXX";

/* ---- the device, whose native calls are counted ---- */

static const struct device *cuda;
static struct device_collectives counted;
static int calls;

static ls_status enqueue_counted(struct device_group *g, struct device_stream *s, const struct device_call *c, const struct device_watch *w)
{
    calls++;
    return cuda->collectives[by]->enqueue(g, s, c, w);
}

static int ask_stub(const char *function)
{
    int (*count)(void);
    void *module = dlopen(getenv("LOCKSTEP_CUDA_MODULE"), RTLD_NOW);
    void *(*symbol)(void *library, const char *name);

    RANKS_CHECK(module);
    *(void **)&symbol = dlsym(module, "stub_dlsym");
    *(void **)&count = symbol(NULL, function);
    return count();
}

/* So many groups are open; of NCCL, so many buffers are registered with communicators, whose connections were made as they were opened, and
 * counted. */
static void check_groups(int registered, size_t open)
{
    size_t peers = (size_t)ask_stub("stub_nccl_connections");

    if (by == BY_IPC) {
        if (counted.taken() != open * WINDOW_BYTES) ranks_fail("CUDA IPC took %zu bytes for %zu groups", counted.taken(), open);
        return;
    }

    if (ask_stub("stub_nccl_registered") != registered)
        ranks_fail("%d buffers are registered, not %d", ask_stub("stub_nccl_registered"), registered);
    if (counted.taken() != open * COMM_BYTES + peers * PEER_BYTES)
        ranks_fail("NCCL took %zu bytes for %zu communicators and %zu connections", counted.taken(), open, peers);
}

static void device_open(int rank)
{
    struct device_facts facts;
    char version[64];

    if (!(cuda = device_find("cuda"))) ranks_fail("%s", ls_errmsg());
    RANKS_TRY(cuda->choose(rank, &facts));
    RANKS_TRY(cuda->collectives[by]->load(version, sizeof version));
    RANKS_CHECK(strcmp(version, by == BY_NCCL ? "NCCL 2.28.9" : "CUDA IPC") == 0);
    counted = *cuda->collectives[by];
    counted.enqueue = enqueue_counted;
}

static void *device_block(enum mem_category category, size_t bytes)
{
    void *p = cuda->alloc(category, bytes);

    if (!p) ranks_fail("%s", ls_errmsg());
    return p;
}

/* ---- a rank of a test ---- */

struct rank {
    ls_comm *comm;
    int rank, n;
    struct device_stream *stream, *other;
    /* The same bytes: on the device, in memory for communication and in other memory; copied from it; as the host's call leaves them. */
    char *device, *plain, *host, *want;
    bool collectives, exchanges;
    size_t open; /* groups */
};

static const struct native_spec for_collectives = { .collectives = true, .share = 1, .shares = 8 },
                                for_exchanges = { .exchanges = true, .share = 1, .shares = 8 },
                                for_messages = { .step = 1, .share = 1, .shares = 8 },
                                for_both = { .collectives = true, .step = 1, .share = 1, .shares = 8 };

static struct rank rank_open(int rank, int n, const char *where, const struct native_spec *s)
{
    struct rank r = { .rank = rank, .n = n, .collectives = s->collectives, .exchanges = s->exchanges };

    r.host = malloc(ROOM);
    r.want = malloc(ROOM);
    RANKS_CHECK(r.host && r.want);
    device_open(rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &r.comm));
    ls_comm_set_timeout(r.comm, COMM_TIMEOUT);
    RANKS_TRY(comm_open_native(r.comm, cuda, &counted, s));
    r.open = (s->collectives || s->exchanges) + 2 * (s->step != 0);
    RANKS_TRY(cuda->stream_new("one", &r.stream));
    RANKS_TRY(cuda->stream_new("two", &r.other));
    r.device = device_block(MEM_COMMUNICATION, ROOM);
    r.plain = device_block(MEM_ACTIVATIONS, ROOM);
    check_groups(s->collectives, r.open);
    return r;
}

/* What is left of a rank whose communicators are not closed. */
static void rank_free(struct rank *r)
{
    free(r->host);
    free(r->want);
}

static void rank_close(struct rank *r)
{
    RANKS_TRY(cuda->sync());
    check_groups(r->collectives, r->open);
    ls_comm_close(&r->comm);
    check_groups(0, 0);
    cuda->stream_free(r->stream);
    cuda->stream_free(r->other);
    cuda->free(r->device);
    cuda->free(r->plain);
    rank_free(r);
}

/* ---- a test's ranks ---- */

static void run_ranks(ranks_body *body, const struct native_spec *s, int seeds)
{
    char settings[128];

    for (int n = 2; n <= RANKS; n++)
        for (int seed = 0; seed < seeds; seed++) {
            snprintf(settings, sizeof settings, "kernels=cpu nccl=%s seed=%d", folder, seed);
            setenv("LOCKSTEP_CUDA_STUB", settings, 1);
            ranks_pass(n, 400, body, (void *)(uintptr_t)s);
        }
}

#define TEST_RANKS(name, body, spec, seeds)  \
    static void name(void **state)           \
    {                                        \
        (void)state;                         \
        run_ranks(body, spec, seeds);        \
    }

/* Called before and after the tests of a file. folder_close() counts a failure if communicators left files. */
static void folder_open(void)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!mkdtemp(folder)) abort();
}

static int folder_close(int failed)
{
    if (rmdir(folder) == 0) return failed;
    fprintf(stderr, "%s: communicators left files\n", folder);
    return failed + 1;
}

#endif
