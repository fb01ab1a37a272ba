/* test_shm_messages.c - messages through the rings of the shared-memory transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/transports/shm/shm_link.h"
#include "helper_shm.h"

/* ---- ranks ---- */

/* Drives both at once, as a sender may wait for room that only its peer's receive makes. b may be NULL. */
static ls_status drive_transfers(struct link *l, struct transfer *a, struct transfer *b)
{
    double deadline = base_now() + SHM_TIMEOUT;

    for (;;) {
        ls_status x = transport_shm.poll(l, a), y = b ? transport_shm.poll(l, b) : LS_OK;
        if (x != LS_BUSY && y != LS_BUSY) return MIN(x, y);
        LS_TRY(transport_shm.idle(l, 0.01));
        SHM_CHECK(base_now() < deadline);
    }
}

/* ---- messages ---- */

static unsigned char byte_of(int from, size_t i) { return (unsigned char)(i * 7 + i / 251 + (size_t)from * 31); }

static void shm_messages_test_exchange(struct link *l, size_t bytes, bool shared, int messages)
{
    int rank = l->base.rank, peer = 1 - rank;
    unsigned char *out = shared ? transport_shm.alloc(l, bytes + 1) : malloc(bytes + 1), *in = malloc(bytes + 1);

    SHM_CHECK(out && in);
    for (size_t i = 0; i < bytes; i++) out[i] = byte_of(rank, i);
    for (int m = 0; m < messages; m++) {
        struct signature s = { .sequence = (uint64_t)m + 1, .count = bytes, .group = 1, .op = LS_COLLECTIVE_SEND, .type = LS_U8,
                               .redop = -1, .root = peer };
        struct signature r = s;
        r.op = LS_COLLECTIVE_RECV;
        struct transfer send = { .peer = peer, .channel = m % CHANNELS, .sending = true, .data = out, .bytes = bytes, .signature = &s };
        struct transfer recv = { .peer = peer, .channel = m % CHANNELS, .data = in, .bytes = bytes, .signature = &r };
        memset(in, 0, bytes);
        SHM_TRY(transport_shm.start(l, &send));
        SHM_TRY(transport_shm.start(l, &recv));
        SHM_TRY(drive_transfers(l, &send, &recv));
        for (size_t i = 0; i < bytes; i++) if (in[i] != byte_of(peer, i)) shm_wrong(__FILE__, __LINE__, "a byte differs");
    }
    SHM_TRY(shm_barrier(l));
    if (shared) transport_shm.free(l, out);
    else free(out);
    free(in);
}

static void exchange_sizes(int rank, int n, const char *where)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, 65536, 262143, 262144 + 1, (5 << 20) + 3 };
    struct link *l = shm_join(where, rank, n);

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        shm_messages_test_exchange(l, sizes[i], false, 5);
        shm_messages_test_exchange(l, sizes[i], true, 5);
    }
    shm_leave(l);
}

static void messages_of_all_sizes_pass_in_both_directions(void **state)
{
    (void)state;
    shm_run(2, exchange_sizes);
}

/* Many sends are started before the peer receives any; they come in order. */
static void send_ahead(int rank, int n, const char *where)
{
    enum { MESSAGES = 40, BYTES = 30000 };
    struct link *l = shm_join(where, rank, n);
    static unsigned char data[MESSAGES][BYTES];
    static struct transfer t[MESSAGES];
    static struct signature s[MESSAGES];

    for (int m = 0; m < MESSAGES; m++) {
        s[m] = (struct signature){ .sequence = (uint64_t)m + 1, .count = BYTES, .group = 1,
                                   .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND, .type = LS_U8, .redop = -1 };
        if (rank == 0) memset(data[m], m + 1, BYTES);
        t[m] = (struct transfer){ .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = data[m], .bytes = BYTES,
                                  .signature = &s[m] };
        SHM_TRY(transport_shm.start(l, &t[m]));
    }
    for (int m = MESSAGES - 1; m >= 0; m--) SHM_TRY(drive_transfers(l, &t[m], NULL));
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < BYTES; i++) SHM_CHECK(data[m][i] == m + 1);
    SHM_TRY(shm_barrier(l));
    shm_leave(l);
}

static void messages_keep_their_order(void **state)
{
    (void)state;
    shm_run(2, send_ahead);
}

/* Rounds of messages of many sizes, all started at once, so that the ring is full when a head or the end of a message is written, and while
 * the sender looks for room the receiver makes it. */
static void fill_the_ring(int rank, int n, const char *where)
{
    enum { ROUNDS = 40, MESSAGES = 32, MOST = 300000 };
    struct link *l = shm_join(where, rank, n);
    unsigned char *data = malloc((size_t)MESSAGES * MOST);
    static struct transfer t[MESSAGES];
    static struct signature s[MESSAGES];
    ls_status st;

    SHM_CHECK(data);
    for (int round = 0; round < ROUNDS; round++) {
        for (int m = 0; m < MESSAGES; m++) {
            size_t bytes = (size_t)(round * 7919 + m * 104729) % MOST + 1;

            s[m] = (struct signature){ .sequence = (uint64_t)(round * MESSAGES + m) + 1, .count = bytes, .group = 1,
                                       .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND, .type = LS_U8, .redop = -1 };
            t[m] = (struct transfer){ .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = data + (size_t)m * MOST,
                                      .bytes = bytes, .signature = &s[m] };
            for (size_t i = 0; i < bytes; i++) data[(size_t)m * MOST + i] = rank ? 0 : byte_of(round + m, i);
            SHM_TRY(transport_shm.start(l, &t[m]));
        }
        while ((st = transport_shm.poll(l, &t[MESSAGES - 1])) == LS_BUSY) continue;
        SHM_TRY(st);
        for (int m = 0; m < MESSAGES; m++)
            for (size_t i = 0; i < t[m].bytes; i++)
                if (data[(size_t)m * MOST + i] != byte_of(round + m, i)) shm_wrong(__FILE__, __LINE__, "a byte differs");
    }
    free(data);
    SHM_TRY(shm_barrier(l));
    shm_leave(l);
}

static void full_ring_keeps_its_messages(void **state)
{
    (void)state;
    shm_run(2, fill_the_ring);
}

/* Both have sent before they post the receive: of a large message, in the sender's heap, no byte is copied yet. */
static void receive_what_is_there(struct link *l, size_t bytes, bool copied)
{
    int rank = l->base.rank, peer = 1 - rank;
    unsigned char *out = transport_shm.alloc(l, bytes), *in = calloc(1, bytes);
    struct signature s = { .sequence = 1, .count = bytes, .group = 1, .op = LS_COLLECTIVE_SEND, .type = LS_U8, .redop = -1, .root = peer };
    struct signature r = s;
    struct transfer send = { .peer = peer, .channel = 1, .sending = true, .data = out, .bytes = bytes, .signature = &s };
    struct transfer recv = { .peer = peer, .channel = 1, .data = in, .bytes = bytes, .signature = &r };

    SHM_CHECK(out && in);
    r.op = LS_COLLECTIVE_RECV;
    memset(out, 9 + rank, bytes);
    SHM_TRY(transport_shm.start(l, &send));
    SHM_TRY(shm_barrier(l));
    SHM_TRY(transport_shm.start(l, &recv));
    for (size_t i = 0; i < bytes; i++) SHM_CHECK(in[i] == (copied ? 9 + peer : 0));
    SHM_TRY(drive_transfers(l, &send, &recv));
    for (size_t i = 0; i < bytes; i++) SHM_CHECK(in[i] == 9 + peer);
    SHM_TRY(shm_barrier(l));
    transport_shm.free(l, out);
    free(in);
}

static void receive_both(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);

    receive_what_is_there(l, 1000, true);
    receive_what_is_there(l, (1 << 20) + 5, false);
    shm_leave(l);
}

static void posted_receive_leaves_an_offered_message(void **state)
{
    (void)state;
    shm_run(2, receive_both);
}

static void expect_another_type(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);
    float x[4] = { 0 };
    struct signature s = { .sequence = 1, .count = 4, .group = 1, .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND,
                           .type = rank ? LS_I32 : LS_F32, .redop = -1, .root = 1 - rank };
    struct transfer t = { .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = x, .bytes = sizeof x, .signature = &s };
    ls_status st = transport_shm.start(l, &t);

    if (st >= 0) st = drive_transfers(l, &t, NULL);
    if (rank == 0 && st == LS_OK) st = shm_barrier(l); /* the message had been sent; the verdict comes all the same */
    SHM_CHECK(st == LS_EPEER);
    SHM_CHECK(strstr(ls_errmsg(), "f32") && strstr(ls_errmsg(), "i32"));
    shm_leave(l);
}

static void mismatched_message_type_ends_the_job(void **state)
{
    (void)state;
    shm_run(2, expect_another_type);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_all_sizes_pass_in_both_directions),
        cmocka_unit_test(messages_keep_their_order),
        cmocka_unit_test(full_ring_keeps_its_messages),
        cmocka_unit_test(posted_receive_leaves_an_offered_message),
        cmocka_unit_test(mismatched_message_type_ends_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
