/* test_mpi.c - the MPI transport alone. As a test: the module is found, chosen, refused. Under mpirun (test_mpi.sh):
 *
 *     test_mpi row         messages of many sizes in both directions, splits, queries of the latest call; ends with exit code 0
 *     test_mpi mismatch    rank 0 sums 5 where the others sum 4: one line on every rank, exit code 3
 *     test_mpi fail        rank 1 ends the job: its line on every rank, exit code 3
 *     test_mpi leave       rank 1 closes and leaves with exit code 1: the others name it, exit code 3
 *     test_mpi die         rank 1 kills itself; the others wait for it
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/engine/engine.h"
#include "comm/transports/transport.h"
#include "helper_clock.h"

static void unknown_implementation_is_refused(void **state)
{
    const struct transport *found = NULL;

    (void)state;
    setenv("LOCKSTEP_MPI", "mvapich", 1);
    assert_int_equal(transport_mpi(&found), LS_EINVAL);
    assert_null(found);
    assert_non_null(strstr(ls_errmsg(), "LOCKSTEP_MPI=mvapich: unknown MPI implementation"));
    unsetenv("LOCKSTEP_MPI");
}

/* ---- under mpirun ---- */

/* Ends this rank, which holds the engine. */
#define NEED(cond)                                                                                                   \
    do {                                                                                                             \
        if (!(cond)) {                                                                                               \
            fprintf(stderr, "rank %d: %s:%d: %s (%s)\n", world.rank, __FILE__, __LINE__, #cond, ls_errmsg());        \
            _exit(1);                                                                                                \
        }                                                                                                            \
    } while (0)

static struct world world;
static const struct transport *mpi;
static const double PATIENCE = 120;

static struct signature mpi_sum_of(const struct link_base *l, uint64_t sequence, uint64_t count)
{
    return (struct signature){ .sequence = sequence, .count = count, .group = l->group, .op = LS_COLLECTIVE_ALL_REDUCE, .root = -1 };
}

/* Polls both until they have ended, as the engine does: a long message needs both sides to make progress. */
static ls_status mpi_finish(struct link *l, struct transfer *a, struct transfer *b)
{
    double since = base_now();
    ls_status one = LS_BUSY, two = LS_BUSY, st;

    for (;;) {
        if (one == LS_BUSY) LS_TRY(one = mpi->poll(l, a));
        if (two == LS_BUSY) LS_TRY(two = mpi->poll(l, b));
        if (one == LS_OK && two == LS_OK) return LS_OK;
        NEED(base_now() - since < PATIENCE);
        if ((st = mpi->idle(l, 1e-4)) < 0) return st;
    }
}

/* To the next rank and from the one before, at once. */
static ls_status ring(struct link *l, int channel, const struct signature *s, void *out, void *in, size_t bytes)
{
    const struct link_base *b = (const struct link_base *)(const void *)l;
    struct transfer give = { .peer = (b->rank + 1) % b->n, .channel = channel, .sending = true, .data = out, .bytes = bytes,
                             .signature = s };
    struct transfer take = { .peer = (b->rank + b->n - 1) % b->n, .channel = channel, .data = in, .bytes = bytes, .signature = s };

    LS_TRY(mpi->start(l, &take));
    LS_TRY(mpi->start(l, &give));
    LS_TRY(mpi_finish(l, &take, &give));
    NEED(take.done == bytes && give.done == bytes);
    return LS_OK;
}

static unsigned char mark(int rank, size_t size, size_t i) { return (unsigned char)((size_t)rank * 37 + size + i * 7 + (i >> 8)); }

static void rings(struct link *l, int channel, size_t most)
{
    static const size_t sizes[] = { 0, 1, 2047, 2048, 2049, 4096, 100000, (16 << 20) + 1, (33 << 20) + 5 };
    const struct link_base *b = (const struct link_base *)(const void *)l;
    int before = (b->rank + b->n - 1) % b->n;

    for (size_t k = 0; k < COUNT_OF(sizes) && sizes[k] <= most; k++) {
        size_t bytes = sizes[k];
        unsigned char *out = mem_alloc(MEM_OTHER, bytes), *in = mem_zalloc(MEM_OTHER, bytes + 1);
        struct signature s = mpi_sum_of(b, k + 1, bytes);

        for (size_t i = 0; i < bytes; i++) out[i] = mark(b->rank, bytes, i);
        in[bytes] = 0x5a;
        NEED(ring(l, channel, &s, out, in, bytes) == LS_OK);
        for (size_t i = 0; i < bytes; i++) NEED(in[i] == mark(before, bytes, i));
        NEED(in[bytes] == 0x5a);
        mem_free(out);
        mem_free(in);
    }
}

/* Many messages of both channels in flight at once keep their order. */
static void many(struct link *l)
{
    enum { N = 64 };
    const struct link_base *b = (const struct link_base *)(const void *)l;
    struct transfer give[2][N], take[2][N];
    uint64_t out[2][N], in[2][N];
    struct signature s = mpi_sum_of(b, 99, 1);

    for (int c = 0; c < 2; c++)
        for (int i = 0; i < N; i++) {
            out[c][i] = (uint64_t)(b->rank * 1000 + c * 100 + i);
            give[c][i] = (struct transfer){ (b->rank + 1) % b->n, c, true, &out[c][i], 8, &s, 0, NULL, 0 };
            take[c][i] = (struct transfer){ (b->rank + b->n - 1) % b->n, c, false, &in[c][i], 8, &s, 0, NULL, 0 };
            NEED(mpi->start(l, &give[c][i]) == LS_OK);
        }
    for (int c = 1; c >= 0; c--)
        for (int i = 0; i < N; i++) NEED(mpi->start(l, &take[c][i]) == LS_OK);
    for (int c = 0; c < 2; c++)
        for (int i = N - 1; i >= 0; i--) {
            NEED(mpi_finish(l, &give[c][i], &take[c][i]) == LS_OK);
            NEED(in[c][i] == (uint64_t)((b->rank + b->n - 1) % b->n * 1000 + c * 100 + i));
        }
}

/* Halves of the world, in reversed order, communicate at the same time as the world; then again after they were closed. */
static void splits(struct link *l)
{
    int half = world.rank % 2, members[64], n = 0, me = 0;

    for (int turn = 0; turn < 3; turn++) {
        struct link *part = NULL;

        n = 0;
        for (int r = world.size - 1; r >= 0; r--)
            if (r % 2 == half) {
                if (r == world.rank) me = n;
                members[n++] = r;
            }
        NEED(mpi->split(l, n, members, me, (uint64_t)(100 + turn * 2 + half), &part) == LS_OK);
        const struct link_base *b = (const struct link_base *)(const void *)part;
        NEED(b->rank == me && b->n == n && b->transport == mpi);
        rings(part, 1, 100000);
        many(l);
        mpi->close(&part);
        NEED(!part);
    }
}

/* The record of `rank` with this number, which arrives when the rank is queried after that call. */
static struct call_record ask(struct link *l, int rank, uint64_t sequence)
{
    double since = base_now();
    struct call_record its;
    ls_status st;

    while ((st = mpi->peek(l, rank, &its)) == LS_BUSY || its.signature.sequence != sequence) {
        NEED(st >= 0 && base_now() - since < PATIENCE);
        NEED(mpi->idle(l, 1e-3) == LS_OK);
    }
    return its;
}

/* Every rank reports its latest call; the last one does so while it computes, until rank 0 has its report. */
static void questions(struct link *l, int turn)
{
    struct signature s = mpi_sum_of((struct link_base *)(void *)l, 7 + (uint64_t)turn, (uint64_t)world.rank),
        same = mpi_sum_of((struct link_base *)(void *)l, 1000, 1);
    struct call_record mine = { .signature = s, .queued = base_now(), .state = CALL_RUNNING };
    double since = base_now();
    char token = 0, answered[64];

    if (turn == 0) NEED(ask(l, (world.rank + 1) % world.size, 0).state == CALL_NONE);
    for (int i = 0; i < world.size; i++) NEED(ring(l, 0, &same, &token, &token, 1) == LS_OK);  /* all have that answer */
    mpi->note(l, &mine);
    for (int i = 0; i < world.size; i++) NEED(ring(l, 0, &same, &token, &token, 1) == LS_OK);
    snprintf(answered, sizeof answered, "answered.%d.%d", (int)getppid(), turn);
    if (world.rank == world.size - 1) {
        engine_leave();
        while (access(answered, F_OK) != 0 && base_now() - since < PATIENCE) usleep(1000);
        NEED(unlink(answered) == 0);
        engine_enter();
    }
    for (int r = world.size - 1; r >= 0; r--) {
        struct call_record its = ask(l, r, s.sequence);

        NEED(its.signature.count == (uint64_t)r && its.state == CALL_RUNNING);
        NEED(its.queued > since - PATIENCE && its.queued < base_now() + PATIENCE);
        if (world.rank == 0 && r == world.size - 1) fclose(fopen(answered, "w"));
    }
    for (int i = 0; i < world.size; i++) NEED(ring(l, 0, &same, &token, &token, 1) == LS_OK);  /* all have been answered */
}

static int row(void)
{
    engine_enter();
    for (int turn = 0; turn < 2; turn++) {
        struct link *l = NULL;

        NEED(mpi->open("", world.rank, world.size, PATIENCE, &l) == LS_OK);
        rings(l, 0, turn ? 100000 : SIZE_MAX);
        rings(l, 1, turn ? SIZE_MAX : 100000);
        many(l);
        splits(l);
        questions(l, turn);
        NEED(mpi->failed(l) == LS_OK);
        mpi->close(&l);
    }
    engine_leave();
    if (world.rank == 0) printf("row: %d ranks\n", world.size);
    return 0;
}

static void say(ls_status st)
{
    NEED(st == LS_EPEER || st == LS_ETIMEOUT);
    fprintf(stderr, "test: rank %d: %s\n", world.rank, ls_errmsg());
}

static int trouble(const char *what)
{
    struct link *l = NULL;
    char out[8] = "1234567", in[8];

    if (strcmp(what, "die")) test_clock_by_reads(); /* no rank ends before all others have printed their line */
    signal(SIGTERM, SIG_IGN); /* mpirun sends it when a rank has died: a run would continue with its next step */
    NEED(mpi->open("", world.rank, world.size, PATIENCE, &l) == LS_OK);
    engine_enter();
    struct signature s = mpi_sum_of((struct link_base *)(void *)l, 1, 1);
    ls_status st = ring(l, 0, &s, out, in, 1);
    NEED(st == LS_OK || (st == LS_EPEER && mpi->failed(l) == st));
    bool wrong = !strcmp(what, "mismatch") && world.rank == 0;
    s = mpi_sum_of((struct link_base *)(void *)l, 2, wrong ? 5 : 4);
    if (world.rank == 1 && !strcmp(what, "die")) raise(SIGKILL);
    if (world.rank == 1 && !strcmp(what, "fail")) (mpi->fail)(l, LS_EPEER, "rank 1 has had enough");
    if (world.rank == 1 && !strcmp(what, "leave")) {
        mpi->close(&l);
        engine_leave();
        fprintf(stderr, "test: rank 1: no such file\n");
        return 1;
    }
    while ((st = ring(l, 0, &s, out, in, wrong ? 5 : 4)) == LS_OK);
    NEED(mpi->failed(l) == st);
    mpi->close(&l);
    say(st);
    engine_leave();
    return 3;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(unknown_implementation_is_refused) };

    if (argc < 2) return cmocka_run_group_tests(tests, NULL, NULL);
    NEED(world_find(&world) == LS_OK);
    NEED(!strcmp(world.where, "mpi:"));
    NEED(transport_mpi(&mpi) == LS_OK);
    return strcmp(argv[1], "row") ? trouble(argv[1]) : row();
}
