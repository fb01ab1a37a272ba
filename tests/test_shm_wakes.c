/* test_shm_wakes.c - which ranks are woken, and how often: by the last word that a collective waits for, by a message, by its reader.
 *
 * A rank sets its flag to announce that it sleeps, without sleeping: its bell then counts how often it is rung.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "comm/transports/shm/shm_link.h"
#include "helper_ranks.h"
#include "helper_shm.h"

/* Shared by the ranks: whose part of a test it is; how many have joined. */
static struct shared { _Atomic int turn, joined; } *shared;

/* Waits until *word >= least. Passes the deadline only if another rank has failed. */
static void await(const _Atomic int *word, int least)
{
    for (double deadline = base_now() + SHM_TIMEOUT; atomic_load(word) < least; ranks_poll_pause()) SHM_CHECK(base_now() < deadline);
}

static void await_turn(int t) { await(&shared->turn, t); }

/* Joins, and returns after the last bell that joining rings. */
static struct link *join(const char *where, int rank, int n)
{
    struct link *l = shm_join(where, rank, n);

    SHM_TRY(shm_barrier(l));
    atomic_fetch_add(&shared->joined, 1);
    await(&shared->joined, n);
    return l;
}

static void run(int n, shm_rank_fn *body)
{
    *shared = (struct shared){ 0 };
    shm_run(n, body);
}

static struct cell *cell_of(const struct link *l, int rank) { return &l->region->cell[rank]; }

static void fall_asleep(const struct link *l)
{
    atomic_store(&cell_of(l, l->base.rank)->asleep, 1);
}

static bool sleeps(const struct link *l, int rank) { return atomic_load(&cell_of(l, rank)->asleep) == 1; }

static uint32_t bells(const struct link *l, int rank) { return atomic_load(&cell_of(l, rank)->bell); }

/* ---- collectives ---- */

/* Ranks 0 and 1 post a barrier and sleep. No rank rings until the last one posts; then each is rung once. */
static void post_in_turn(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    struct request r = shm_request(LS_COLLECTIVE_BARRIER, NULL, NULL, 0, LS_U8, LS_SUM);
    uint32_t before[2] = { 0 };

    await_turn(rank);
    for (int i = 0; i < rank; i++) before[i] = bells(l, i);
    SHM_TRY(shm_collective_begin(l, &r));
    ls_status st = shm_collective_advance(l, &r);
    if (rank < n - 1) {
        SHM_CHECK(st == LS_BUSY);
        for (int i = 0; i < rank; i++) SHM_CHECK(sleeps(l, i) && bells(l, i) == before[i]);
        fall_asleep(l);
    } else {
        SHM_CHECK(st == LS_OK);
        for (int i = 0; i < rank; i++) SHM_CHECK(!sleeps(l, i) && bells(l, i) == before[i] + 1);
        wait_ring(l->region, 0);
        SHM_CHECK(bells(l, 0) == before[0] + 1);  /* it was rung already, and has not slept again */
    }
    atomic_store(&shared->turn, rank + 1);
    await_turn(n);
    while (st == LS_BUSY) st = shm_collective_advance(l, &r);
    SHM_TRY(st);
    SHM_TRY(shm_barrier(l));
    shm_leave(l);
}

static void the_last_post_rings(void **state)
{
    (void)state;
    run(3, post_in_turn);
}

static bool from_heap;

/* Three ranks gather one chunk each, read from the heap (direct) or from stages. After the posts rank 2 fills its stage, or reads, and
 * sleeps; so does rank 0, which does not ring. Rank 1 is the last, and rings both once. */
static void finish_in_turn(int rank, int n, const char *where)
{
    enum { COUNT = 4096 };
    struct link *l = join(where, rank, n);
    float *plain = calloc(COUNT, sizeof *plain), *all = calloc(3 * COUNT, sizeof *all);
    float *heap = transport_shm.alloc(l, COUNT * sizeof *heap);
    struct request r = shm_request(LS_COLLECTIVE_ALL_GATHER, from_heap ? heap : plain, all, COUNT, LS_F32, LS_SUM);
    uint32_t before[3];

    SHM_CHECK(plain && heap && all);
    await_turn(rank);
    SHM_TRY(shm_collective_begin(l, &r));
    SHM_CHECK(shm_collective_advance(l, &r) == LS_BUSY);
    if (rank == 2) fall_asleep(l);
    atomic_store(&shared->turn, rank + 1);

    await_turn(rank == 2 ? 5 : 3 + rank);
    for (int i = 0; i < n; i++) before[i] = bells(l, i);
    if (rank == 0) {
        SHM_CHECK(shm_collective_advance(l, &r) == LS_BUSY);
        SHM_CHECK(sleeps(l, 2) && bells(l, 2) == before[2]);
        fall_asleep(l);
    } else if (rank == 1) {
        SHM_TRY(shm_collective_advance(l, &r));
        SHM_CHECK(l->now.way == (from_heap ? WAY_DIRECT : WAY_STAGED) && l->now.chunks == 1);
        for (int i = 0; i < n; i += 2) SHM_CHECK(!sleeps(l, i) && bells(l, i) == before[i] + 1);
    }
    if (rank < 2) atomic_store(&shared->turn, 4 + rank);
    await_turn(5);
    for (ls_status st = rank == 1 ? LS_OK : LS_BUSY; st == LS_BUSY;) SHM_TRY(st = shm_collective_advance(l, &r));
    SHM_TRY(shm_barrier(l));
    transport_shm.free(l, heap);
    free(plain);
    free(all);
    shm_leave(l);
}

static void the_last_chunk_in_stages_rings(void **state)
{
    (void)state;
    from_heap = false;
    run(3, finish_in_turn);
}

static void the_last_reader_of_heaps_rings(void **state)
{
    (void)state;
    from_heap = true;
    run(3, finish_in_turn);
}

/* ---- messages ---- */

static struct { size_t bytes; bool heap, sender_waits; } message;

/* Rank 0 sends, and sleeps: its message is in the ring, or as much of it as there is room for, or in its heap. */
static void send_and_sleep(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    unsigned char *data = message.heap ? transport_shm.alloc(l, message.bytes) : calloc(message.bytes, 1);
    struct signature s = { .sequence = 1, .count = message.bytes, .group = 1, .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND,
                           .type = LS_U8, .redop = -1, .root = 1 - rank };
    struct transfer t = { .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = data, .bytes = message.bytes, .signature = &s };
    ls_status st;

    SHM_CHECK(data);
    await_turn(rank);
    uint32_t before = bells(l, 0);
    SHM_TRY(transport_shm.start(l, &t));
    if (rank == 0) {
        SHM_CHECK(transport_shm.poll(l, &t) == (message.sender_waits ? LS_BUSY : LS_OK));
        fall_asleep(l);
    } else {
        while (message.heap && (st = transport_shm.poll(l, &t)) != LS_OK)  /* of its parts only the last one is waited for */
            SHM_CHECK(st == LS_BUSY && sleeps(l, 0) && bells(l, 0) == before);
        SHM_CHECK(sleeps(l, 0) == !message.sender_waits && bells(l, 0) == before + message.sender_waits);
    }
    atomic_store(&shared->turn, rank + 1);
    await_turn(n);
    while ((st = transport_shm.poll(l, &t)) != LS_OK) SHM_CHECK(st == LS_BUSY);
    SHM_TRY(shm_barrier(l));
    if (message.heap)
        transport_shm.free(l, data);
    else
        free(data);
    shm_leave(l);
}

static void run_message(size_t bytes, bool heap, bool sender_waits)
{
    message.bytes = bytes;
    message.heap = heap;
    message.sender_waits = sender_waits;
    run(2, send_and_sleep);
}

static void a_reader_rings_a_sender_that_had_no_room(void **state)
{
    (void)state;
    run_message(8 << 20, false, true);
}

static void a_reader_rings_when_it_has_all_of_a_heap_message(void **state)
{
    (void)state;
    run_message(5 << 20, true, true);
}

static void a_reader_leaves_a_sender_alone_that_has_sent_all(void **state)
{
    (void)state;
    run_message(1000, false, false);
}

/* Rank 1 waits for a message and sleeps: the sender rings. */
static void wait_and_sleep(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    float x = 0;
    struct signature s = { .sequence = 1, .count = 1, .group = 1, .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND,
                           .type = LS_F32, .redop = -1, .root = 1 - rank };
    struct transfer t = { .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = &x, .bytes = sizeof x, .signature = &s };

    await_turn(1 - rank);
    uint32_t before = bells(l, 1);
    SHM_TRY(transport_shm.start(l, &t));
    if (rank == 1)
        fall_asleep(l);
    else
        SHM_CHECK(!sleeps(l, 1) && bells(l, 1) == before + 1);
    atomic_store(&shared->turn, n - rank);
    await_turn(n);
    for (ls_status st; (st = transport_shm.poll(l, &t)) != LS_OK;) SHM_CHECK(st == LS_BUSY);
    SHM_TRY(shm_barrier(l));
    shm_leave(l);
}

static void a_message_rings(void **state)
{
    (void)state;
    run(2, wait_and_sleep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_post_rings),
        cmocka_unit_test(the_last_chunk_in_stages_rings),
        cmocka_unit_test(the_last_reader_of_heaps_rings),
        cmocka_unit_test(a_reader_rings_a_sender_that_had_no_room),
        cmocka_unit_test(a_reader_rings_when_it_has_all_of_a_heap_message),
        cmocka_unit_test(a_reader_leaves_a_sender_alone_that_has_sent_all),
        cmocka_unit_test(a_message_rings),
    };

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
