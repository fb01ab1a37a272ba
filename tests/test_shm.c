/* The shared-memory transport by itself: meeting, messages, whole collectives against plain loops, heaps, deaths, verdicts,
 * and that nothing is left behind. Ranks are forked by each test; what a rank finds wrong it prints, and exits with 1. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "comm/reduce.h"
#include "comm/shm_link.h"

enum { RANKS_MOST = 8 };
#define PATIENCE 60.0   /* seconds that anything may take on a busy machine */

/* ---- ranks ---- */

#define CHECK(cond) ((cond) ? (void)0 : wrong(__LINE__, #cond))
#define OK(call)    ((call) >= 0 ? (void)0 : wrong(__LINE__, #call))

static void wrong(int line, const char *what)
{
    fprintf(stderr, "test_shm.c:%d: process %d: %s (%s)\n", line, (int)getpid(), what, ls_errmsg());
    _exit(1);
}

typedef void rank_fn(int rank, int n, const char *where);
struct job { int n; struct segment *segment; char where[64]; pid_t pid[RANKS_MOST]; };

static void start_at(struct job *j, int n, const char *where, rank_fn *fn)
{
    j->n = n;
    snprintf(j->where, sizeof j->where, "%s", where);
    for (int i = 0; i < n; i++) {
        j->pid[i] = fork();
        assert_true(j->pid[i] >= 0);
        if (j->pid[i] > 0) continue;
        alarm((unsigned)PATIENCE * 2);
        fn(i, n, j->where);
        _exit(0);
    }
}

static void start(struct job *j, int n, rank_fn *fn)
{
    char where[64];

    assert_int_equal(segment_create(n, &j->segment), LS_OK);
    snprintf(where, sizeof where, "fd:%d", segment_fd(j->segment));
    start_at(j, n, where, fn);
}

static int wait_rank(struct job *j, int rank)
{
    int status;

    assert_int_equal(waitpid(j->pid[rank], &status, 0), j->pid[rank]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void finish(struct job *j)
{
    int failed = 0;

    for (int i = 0; i < j->n; i++) failed += wait_rank(j, i) != 0;
    segment_close(&j->segment);
    assert_int_equal(failed, 0);
}

static void shm_run(int n, rank_fn *fn)
{
    struct job j = { 0 };

    start(&j, n, fn);
    finish(&j);
}

static struct link *join(const char *where, int rank, int n)
{
    struct link *l = NULL;

    OK(transport_shm.open(where, rank, n, PATIENCE, &l));
    return l;
}

static void leave(struct link *l) { transport_shm.close(&l); }

/* Drives one whole collective to its end. */
static ls_status drive(struct link *l, struct request *r)
{
    double deadline = base_now() + PATIENCE;
    ls_status st = transport_shm.begin(l, r);

    while (st >= 0 && (st = transport_shm.advance(l, r)) == LS_BUSY) {
        LS_TRY(transport_shm.idle(l, 0.01));
        CHECK(base_now() < deadline);
    }
    return st;
}

/* Both at once, as a sender may wait for room that only its peer's receive makes. b may be NULL. */
static ls_status drive_transfers(struct link *l, struct transfer *a, struct transfer *b)
{
    double deadline = base_now() + PATIENCE;

    for (;;) {
        ls_status x = transport_shm.poll(l, a), y = b ? transport_shm.poll(l, b) : LS_OK;
        if (x != LS_BUSY && y != LS_BUSY) return MIN(x, y);
        LS_TRY(transport_shm.idle(l, 0.01));
        CHECK(base_now() < deadline);
    }
}

static struct request request_of(ls_collective op, const void *send, void *recv, size_t count, ls_dtype type, ls_redop redop)
{
    static uint64_t sequence;

    return (struct request){
        .signature = { .sequence = ++sequence, .count = count, .group = 1, .op = (int32_t)op, .type = (int32_t)type,
                       .redop = (int32_t)redop, .root = -1 },
        .send = send, .recv = recv, .count = count, .type = type, .redop = redop, .root = -1,
    };
}

static ls_status barrier(struct link *l)
{
    struct request r = request_of(LS_COLLECTIVE_BARRIER, NULL, NULL, 0, LS_U8, LS_SUM);

    return drive(l, &r);
}

/* ---- meeting ---- */

static void join_and_leave(int rank, int n, const char *where)
{
    for (int round = 0; round < 3; round++) {
        struct link *l = join(where, rank, n);
        CHECK(l->base.rank == rank && l->base.n == n && l->base.group > 0);
        OK(barrier(l));
        leave(l);
    }
}

static void ranks_join_by_descriptor(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) shm_run(n, join_and_leave);
}

static char *unique_name(char *out, size_t bytes)
{
    static int number;

    snprintf(out, bytes, "test-%d-%d", (int)getpid(), ++number);
    return out;
}

static void ranks_join_by_name(void **state)
{
    struct job j = { 0 };
    char name[64];

    (void)state;
    for (int n = 1; n <= 4; n++) {
        start_at(&j, n, unique_name(name, sizeof name), join_and_leave);
        finish(&j);
    }
}

static void come_with_other_sizes(int rank, int n, const char *where)
{
    struct link *l = NULL;
    ls_status st = transport_shm.open(where, rank, rank == 2 ? n + 1 : n, PATIENCE, &l);

    CHECK(st < 0 && !l);
    CHECK(strstr(ls_errmsg(), "rank 2"));
    CHECK(strstr(ls_errmsg(), "of 4"));
}

static void mismatched_rank_counts_are_refused(void **state)
{
    struct job j = { 0 };
    char name[64];

    (void)state;
    start_at(&j, 3, unique_name(name, sizeof name), come_with_other_sizes);
    finish(&j);
    shm_run(3, come_with_other_sizes);
}

static void hold_name(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n), *second = NULL;

    if (rank == 0) {
        CHECK(transport_shm.open(where, 0, n, 1, &second) == LS_EINVAL);
        CHECK(strstr(ls_errmsg(), "another job uses this name"));
    }
    OK(barrier(l));
    leave(l);
}

static void name_in_use_is_refused(void **state)
{
    struct job j = { 0 };
    char name[64];

    (void)state;
    start_at(&j, 2, unique_name(name, sizeof name), hold_name);
    finish(&j);
}

static void invalid_names_are_refused(void **state)
{
    static const struct { const char *where; int rank, n; ls_status st; const char *text; } cases[] = {
        { "fd:999", 0, 2, LS_EINVAL, "no such open descriptor" },
        { "fd:x", 0, 2, LS_EINVAL, "number of a descriptor" },
        { "fd:0", 0, 2, LS_EINVAL, "no segment" },
        { "", 0, 2, LS_EINVAL, "a name has" },
        { "a", 2, 2, LS_EINVAL, "rank 2 of 2" },
        { "nobody-serves-this", 1, 2, LS_ETIMEOUT, "waited for rank 0" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct link *l = NULL;
        assert_int_equal(transport_shm.open(cases[i].where, cases[i].rank, cases[i].n, 0.2, &l), cases[i].st);
        assert_non_null(strstr(ls_errmsg(), cases[i].text));
        assert_null(l);
    }
}

static void come_alone(int rank, int n, const char *where)
{
    struct link *l = NULL;

    if (rank == 1) return;
    CHECK(transport_shm.open(where, rank, n, 0.3, &l) == LS_ETIMEOUT);
    CHECK(strstr(ls_errmsg(), "rank 1 of 3 has not joined the job within 0.3 s") || strstr(ls_errmsg(), "1, 2 of 3") || strstr(ls_errmsg(), "0, 1 of 3"));
}

static void missing_rank_is_named(void **state)
{
    (void)state;
    shm_run(3, come_alone);
}

/* Under limits there is less heap, or a clear refusal; never a crash. */
static void open_limited(int rank, int n, const char *where)
{
    struct segment *s = NULL;

    (void)rank, (void)n, (void)where;
    for (rlim_t mb = 4096; mb >= 16; mb /= 4) {
        OK(setrlimit(RLIMIT_AS, &(struct rlimit){ mb << 20, mb << 20 }));
        ls_status st = segment_create(2, &s);
        CHECK(st == LS_OK || (st == LS_ENOMEM && strlen(ls_errmsg()) > 0));
        if (mb == 4096) CHECK(st == LS_OK && s->control->heap_bytes >= SHM_HUGE);
        segment_close(&s);
    }
}

static void address_limits_shrink_the_heaps(void **state)
{
    struct job j = { 0 };

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();  /* the sanitizer itself needs terabytes of addresses */
#endif

    start_at(&j, 1, "", open_limited);  /* no segment of the parent's counts as the child's */
    finish(&j);
}

/* ---- messages ---- */

static unsigned char byte_of(int from, size_t i) { return (unsigned char)(i * 7 + i / 251 + (size_t)from * 31); }

static void exchange(struct link *l, size_t bytes, bool shared, int messages)
{
    int rank = l->base.rank, peer = 1 - rank;
    unsigned char *out = shared ? transport_shm.alloc(l, bytes + 1) : malloc(bytes + 1), *in = malloc(bytes + 1);

    CHECK(out && in);
    for (size_t i = 0; i < bytes; i++) out[i] = byte_of(rank, i);
    for (int m = 0; m < messages; m++) {
        struct signature s = { .sequence = (uint64_t)m + 1, .count = bytes, .group = 1, .op = LS_COLLECTIVE_SEND, .type = LS_U8, .redop = -1, .root = peer };
        struct signature r = s;
        r.op = LS_COLLECTIVE_RECV;
        struct transfer send = { .peer = peer, .channel = m % CHANNELS, .sending = true, .data = out, .bytes = bytes, .signature = &s };
        struct transfer recv = { .peer = peer, .channel = m % CHANNELS, .data = in, .bytes = bytes, .signature = &r };
        memset(in, 0, bytes);
        OK(transport_shm.start(l, &send));
        OK(transport_shm.start(l, &recv));
        OK(drive_transfers(l, &send, &recv));
        for (size_t i = 0; i < bytes; i++) if (in[i] != byte_of(peer, i)) wrong(__LINE__, "a byte differs");
    }
    OK(barrier(l));
    if (shared) transport_shm.free(l, out);
    else free(out);
    free(in);
}

static void exchange_sizes(int rank, int n, const char *where)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, 65536, 262143, 262144 + 1, (5 << 20) + 3 };
    struct link *l = join(where, rank, n);

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        exchange(l, sizes[i], false, 5);
        exchange(l, sizes[i], true, 5);
    }
    leave(l);
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
    struct link *l = join(where, rank, n);
    static unsigned char data[MESSAGES][BYTES];
    static struct transfer t[MESSAGES];
    static struct signature s[MESSAGES];

    for (int m = 0; m < MESSAGES; m++) {
        s[m] = (struct signature){ .sequence = (uint64_t)m + 1, .count = BYTES, .group = 1, .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND, .type = LS_U8, .redop = -1 };
        if (rank == 0) memset(data[m], m + 1, BYTES);
        t[m] = (struct transfer){ .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = data[m], .bytes = BYTES, .signature = &s[m] };
        OK(transport_shm.start(l, &t[m]));
    }
    for (int m = MESSAGES - 1; m >= 0; m--) OK(drive_transfers(l, &t[m], NULL));
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < BYTES; i++) CHECK(data[m][i] == m + 1);
    OK(barrier(l));
    leave(l);
}

static void messages_keep_their_order(void **state)
{
    (void)state;
    shm_run(2, send_ahead);
}

static void expect_another_type(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    float x[4] = { 0 };
    struct signature s = { .sequence = 1, .count = 4, .group = 1, .op = rank ? LS_COLLECTIVE_RECV : LS_COLLECTIVE_SEND,
                           .type = rank ? LS_I32 : LS_F32, .redop = -1, .root = 1 - rank };
    struct transfer t = { .peer = 1 - rank, .channel = 1, .sending = rank == 0, .data = x, .bytes = sizeof x, .signature = &s };
    ls_status st = transport_shm.start(l, &t);

    if (st >= 0) st = drive_transfers(l, &t, NULL);
    if (rank == 0 && st == LS_OK) st = barrier(l);  /* the message had left; the verdict comes all the same */
    CHECK(st == LS_EPEER);
    CHECK(strstr(ls_errmsg(), "f32") && strstr(ls_errmsg(), "i32"));
    leave(l);
}

static void mismatched_message_type_ends_the_job(void **state)
{
    (void)state;
    shm_run(2, expect_another_type);
}

/* ---- whole collectives ---- */

static const size_t COUNTS[] = { 0, 1, 3, 1000, 2049, 70001, 300007 };

/* Small whole numbers: their sums are exact in every type, in any order. */
static float number_at(int rank, size_t i) { return (float)((i * 13 + (size_t)rank * 5) % 23) - 7.0f; }

static void numbers_fill(float *x, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) x[i] = number_at(rank, i);
}

static float reduced_at(int n, size_t i, ls_redop op)
{
    float sum = number_at(0, i), most = sum;

    for (int j = 1; j < n; j++) {
        sum += number_at(j, i);
        most = MAX(most, number_at(j, i));
    }
    return op == LS_MAX ? most : op == LS_AVG ? sum / (float)n : sum;
}

static float *buffer(struct link *l, size_t count, bool shared)
{
    float *p = shared ? transport_shm.alloc(l, count * sizeof *p + 64) : malloc(count * sizeof *p + 64);

    CHECK(p);
    return p;
}

static void drop(struct link *l, float *p, bool shared)
{
    if (shared) transport_shm.free(l, p);
    else free(p);
}

/* mixed: some ranks' buffers in heaps, some not. */
enum backing { PLAIN, SHARED, MIXED, BACKINGS };
static bool is_shared(enum backing b, int rank) { return b == SHARED || (b == MIXED && rank % 2 == 0); }

static void all_reduces(struct link *l, size_t count, enum backing b)
{
    bool shared = is_shared(b, l->base.rank);
    float *send = buffer(l, count, shared), *recv = buffer(l, count, shared);

    for (int op = 0; op < LS_REDOPS; op++)
        for (int in_place = 0; in_place < 2; in_place++) {
            float *to = in_place ? send : recv;
            numbers_fill(send, count, l->base.rank);
            struct request r = request_of(LS_COLLECTIVE_ALL_REDUCE, send, to, count, LS_F32, (ls_redop)op);
            OK(drive(l, &r));
            for (size_t i = 0; i < count; i++) CHECK(to[i] == reduced_at(l->base.n, i, (ls_redop)op));
        }
    drop(l, send, shared);
    drop(l, recv, shared);
}

/* Borders of blocks of unequal sizes, some empty; at[n] elements in all. */
static void borders(size_t count, int n, bool uneven, size_t *at)
{
    at[0] = 0;
    for (int i = 0; i < n; i++) at[i + 1] = at[i] + (uneven ? i % 3 == 1 ? 0 : count + (size_t)i : count);
}

static void all_gathers(struct link *l, size_t count, enum backing b, bool uneven)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[RANKS_MOST + 1];

    borders(count, n, uneven, at);
    float *send = buffer(l, at[me + 1] - at[me], shared), *recv = buffer(l, at[n], shared);
    for (int in_place = 0; in_place < 2; in_place++) {
        float *from = in_place ? recv + at[me] : send;
        memset(recv, 0, at[n] * sizeof *recv);
        numbers_fill(from, at[me + 1] - at[me], me);
        struct request r = request_of(LS_COLLECTIVE_ALL_GATHER, from, recv, count, LS_F32, LS_SUM);
        r.at = uneven ? at : NULL;
        OK(drive(l, &r));
        for (int j = 0; j < n; j++)
            for (size_t i = at[j]; i < at[j + 1]; i++) CHECK(recv[i] == number_at(j, i - at[j]));
    }
    drop(l, send, shared);
    drop(l, recv, shared);
}

static void reduce_scatters(struct link *l, size_t count, enum backing b, bool uneven)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[RANKS_MOST + 1];

    borders(count, n, uneven, at);
    float *send = buffer(l, at[n], shared), *recv = buffer(l, at[me + 1] - at[me], false);
    for (int in_place = 0; in_place < 2; in_place++) {
        float *to = in_place ? send + at[me] : recv;
        numbers_fill(send, at[n], me);
        struct request r = request_of(LS_COLLECTIVE_REDUCE_SCATTER, send, to, count, LS_F32, LS_AVG);
        r.at = uneven ? at : NULL;
        OK(drive(l, &r));
        for (size_t i = at[me]; i < at[me + 1]; i++) CHECK(to[i - at[me]] == reduced_at(n, i, LS_AVG));
    }
    drop(l, send, shared);
    drop(l, recv, false);
}

static void all_to_alls(struct link *l, size_t count, enum backing b)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    float *send = buffer(l, (size_t)n * count, shared), *recv = buffer(l, (size_t)n * count, shared);

    for (int in_place = 0; in_place < 2; in_place++) {
        float *to = in_place ? send : recv;
        numbers_fill(send, (size_t)n * count, me);
        struct request r = request_of(LS_COLLECTIVE_ALL_TO_ALL, send, to, count, LS_F32, LS_SUM);
        OK(drive(l, &r));
        for (int j = 0; j < n; j++)
            for (size_t i = 0; i < count; i++) CHECK(to[(size_t)j * count + i] == number_at(j, (size_t)me * count + i));
    }
    drop(l, send, shared);
    drop(l, recv, shared);
}

/* What rank i sends to rank j. */
static size_t sent_to(size_t count, int i, int j) { return (i + j) % 3 == 0 ? 0 : count / (size_t)(i + 1) + (size_t)j; }

static void uneven_all_to_alls(struct link *l, size_t count, enum backing b)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[RANKS_MOST + 1] = { 0 }, recv_at[RANKS_MOST + 1] = { 0 };

    for (int j = 0; j < n; j++) {
        at[j + 1] = at[j] + sent_to(count, me, j);
        recv_at[j + 1] = recv_at[j] + sent_to(count, j, me);
    }
    float *send = buffer(l, at[n], shared), *recv = buffer(l, recv_at[n], false);
    numbers_fill(send, at[n], me);
    struct request r = request_of(LS_COLLECTIVE_ALL_TO_ALL, send, recv, 0, LS_F32, LS_SUM);
    r.at = at;
    r.recv_at = recv_at;
    OK(drive(l, &r));
    for (int j = 0; j < n; j++) {
        size_t before = 0;
        for (int i = 0; i < me; i++) before += sent_to(count, j, i);
        for (size_t i = 0; i < sent_to(count, j, me); i++) CHECK(recv[recv_at[j] + i] == number_at(j, before + i));
    }
    drop(l, send, shared);
    drop(l, recv, false);
}

static void broadcasts(struct link *l, size_t count, enum backing b)
{
    bool shared = is_shared(b, l->base.rank);
    float *x = buffer(l, count, shared);

    for (int root = 0; root < l->base.n; root++) {
        numbers_fill(x, count, l->base.rank);
        struct request r = request_of(LS_COLLECTIVE_BROADCAST, NULL, x, count, LS_F32, LS_SUM);
        r.root = r.signature.root = root;
        OK(drive(l, &r));
        for (size_t i = 0; i < count; i++) CHECK(x[i] == number_at(root, i));
    }
    drop(l, x, shared);
}

static void run_collectives(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);

    for (size_t c = 0; c < COUNT_OF(COUNTS); c++)
        for (int b = 0; b < BACKINGS; b++) {
            all_reduces(l, COUNTS[c], (enum backing)b);
            all_gathers(l, COUNTS[c], (enum backing)b, false);
            all_gathers(l, COUNTS[c], (enum backing)b, true);
            reduce_scatters(l, COUNTS[c], (enum backing)b, false);
            reduce_scatters(l, COUNTS[c], (enum backing)b, true);
            all_to_alls(l, COUNTS[c], (enum backing)b);
            uneven_all_to_alls(l, COUNTS[c], (enum backing)b);
            broadcasts(l, COUNTS[c], (enum backing)b);
            OK(barrier(l));
        }
    leave(l);
}

static void collectives_equal_reference(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) shm_run(n, run_collectives);
}

/* The same bits from every way, on every rank: sums of numbers whose rounding shows the order. */
static void sum_in_every_way(int rank, int n, const char *where)
{
    enum { COUNT = 50021 };
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F16 };
    struct link *l = join(where, rank, n);
    float *x = buffer(l, COUNT, false);
    unsigned char *plain = (void *)buffer(l, COUNT, false), *shared = (void *)buffer(l, COUNT, true), *all = (void *)buffer(l, (size_t)n * COUNT, false);
    const void *term[RANKS_MOST];

    for (size_t t = 0; t < COUNT_OF(types); t++) {
        size_t e = ls_dtype_bytes(types[t]), small = SMALL_MOST / e;
        for (size_t i = 0; i < COUNT; i++) x[i] = 1.0f / (float)(i + 3 + (size_t)rank * 17) * (rank % 2 ? -1.0f : 3.0f);
        ls_convert(plain, types[t], x, LS_F32, COUNT);
        memcpy(shared, plain, COUNT * e);
        struct request r = request_of(LS_COLLECTIVE_ALL_GATHER, plain, all, COUNT, types[t], LS_SUM);
        OK(drive(l, &r));
        for (int j = 0; j < n; j++) term[j] = all + (size_t)j * COUNT * e;
        reduce_many(x, term, n, COUNT, types[t], LS_SUM, 1);

        unsigned char *in_post = all;  /* the first elements again, by the post */
        memcpy(in_post, plain, small * e);
        r = request_of(LS_COLLECTIVE_ALL_REDUCE, in_post, in_post, small, types[t], LS_SUM);
        OK(drive(l, &r));
        r = request_of(LS_COLLECTIVE_ALL_REDUCE, plain, plain, COUNT, types[t], LS_SUM);
        OK(drive(l, &r));
        r = request_of(LS_COLLECTIVE_ALL_REDUCE, shared, shared, COUNT, types[t], LS_SUM);
        OK(drive(l, &r));
        CHECK(memcmp(in_post, x, small * e) == 0);
        CHECK(memcmp(plain, x, COUNT * e) == 0);
        CHECK(memcmp(shared, x, COUNT * e) == 0);
    }
    leave(l);
}

static void every_path_gives_the_same_bits(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) shm_run(n, sum_in_every_way);
}

static void call_different_things(int rank, int n, const char *where)
{
    struct link *l = NULL;
    float x[100] = { 0 };
    struct request r = request_of(LS_COLLECTIVE_ALL_REDUCE, x, x, rank == 1 ? 99 : 100, LS_F32, LS_SUM);
    double began = base_now();

    if (transport_shm.open(where, rank, n, PATIENCE, &l) < 0) {  /* the others were through with it before */
        CHECK(strstr(ls_errmsg(), "99") && strstr(ls_errmsg(), "100"));
        return;
    }
    CHECK(drive(l, &r) == LS_EPEER);
    CHECK(base_now() - began < PATIENCE / 2);
    CHECK(strstr(ls_errmsg(), "99") && strstr(ls_errmsg(), "100"));
    CHECK(barrier(l) == LS_EPEER);
    leave(l);
}

static void mismatched_collective_ends_the_job_on_every_rank(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) shm_run(n, call_different_things);
}

/* ---- splits ---- */

static void split_often(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    float *x = buffer(l, 5000, true);

    for (uint64_t round = 0; round < 20; round++) {
        int members[RANKS_MOST], count = 0, me = 0;
        struct link *part = NULL;
        for (int i = 0; i < n; i++)
            if ((i + (int)round) % 2 == (rank + (int)round) % 2) {
                if (i == rank) me = count;
                members[count++] = i;
            }
        OK(transport_shm.split(l, count, members, me, 100 + 2 * round + (uint64_t)(rank % 2), &part));
        CHECK(part->base.rank == me && part->base.n == count);
        for (size_t i = 0; i < 5000; i++) x[i] = 1.0f;
        struct request r = request_of(LS_COLLECTIVE_ALL_REDUCE, x, x, 5000, LS_F32, LS_SUM);
        OK(drive(part, &r));
        for (size_t i = 0; i < 5000; i++) CHECK(x[i] == (float)count);
        leave(part);
        OK(barrier(l));
    }
    if (rank == 0) CHECK(l->segment->heap.n <= 8);  /* areas of closed links were freed */
    drop(l, x, true);
    leave(l);
}

static void links_are_split_and_closed(void **state)
{
    (void)state;
    shm_run(5, split_often);
}

/* ---- heaps ---- */

static size_t bytes_of_segment(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (size_t)st.st_blocks * 512;
}

static void heaps_return_pages(void **state)
{
    struct segment *s;
    char where[32];
    struct link *l = NULL;
    size_t big = 32 << 20;

    (void)state;
    assert_int_equal(segment_create(1, &s), LS_OK);
    snprintf(where, sizeof where, "fd:%d", segment_fd(s));
    assert_int_equal(transport_shm.open(where, 0, 1, PATIENCE, &l), LS_OK);
    size_t before = bytes_of_segment(segment_fd(s));
    assert_true(before < 1 << 20);
    unsigned char *a = transport_shm.alloc(l, big), *b = transport_shm.alloc(l, 100);
    assert_non_null(a);
    assert_non_null(b);
    memset(a, 1, big);
    memset(b, 2, 100);
    assert_true(bytes_of_segment(segment_fd(s)) >= before + big);
    assert_true(heap_holds(l->segment, a, big) && heap_holds(l->segment, b, 100) && !heap_holds(l->segment, &big, 8));
    transport_shm.free(l, a);
    assert_true(bytes_of_segment(segment_fd(s)) < before + (1 << 20));
    a = transport_shm.alloc(l, big);
    assert_non_null(a);
    for (size_t i = 0; i < big; i += 4096) assert_int_equal(a[i], 0);
    transport_shm.free(l, a);
    transport_shm.free(l, b);
    assert_null(transport_shm.alloc(l, SIZE_MAX / 2));
    assert_non_null(strstr(ls_errmsg(), "shared memory are not free"));
    transport_shm.close(&l);
    segment_close(&s);
}

static void heap_survives_frees_in_any_order(void **state)
{
    enum { BLOCKS = 40 };
    struct segment *s;
    char where[32];
    struct link *l = NULL;
    struct { unsigned char *at; size_t bytes; } block[BLOCKS] = { 0 };
    unsigned seed = 12345;

    (void)state;
    assert_int_equal(segment_create(1, &s), LS_OK);
    snprintf(where, sizeof where, "fd:%d", segment_fd(s));
    assert_int_equal(transport_shm.open(where, 0, 1, PATIENCE, &l), LS_OK);
    for (int turn = 0; turn < 2000; turn++) {
        int i = rand_r(&seed) % BLOCKS;
        if (block[i].at) {
            for (size_t k = 0; k < block[i].bytes; k += 512) assert_int_equal(block[i].at[k], i + 1);
            transport_shm.free(l, block[i].at);
            block[i].at = NULL;
            continue;
        }
        block[i].bytes = (size_t)(rand_r(&seed) % 60000) + (turn % 50 == 0 ? 5 << 20 : 0);
        block[i].at = transport_shm.alloc(l, block[i].bytes);
        assert_non_null(block[i].at);
        memset(block[i].at, i + 1, block[i].bytes);
    }
    for (int i = 0; i < BLOCKS; i++) if (block[i].at) transport_shm.free(l, block[i].at);
    assert_int_equal(l->segment->heap.n, 2);  /* the link's area and one free extent */
    transport_shm.close(&l);
    segment_close(&s);
}

/* ---- ends ---- */

/* Nothing of this name (or of ours at all, in a folder) is on the machine. */
static void check_nothing_left(const char *name)
{
    DIR *d = opendir("/dev/shm");
    FILE *sockets = fopen("/proc/net/unix", "r");
    char line[512];

    for (struct dirent *e; d && (e = readdir(d)); ) assert_null(strstr(e->d_name, "lockstep"));
    if (d) closedir(d);
    while (sockets && fgets(line, sizeof line, sockets)) {
        line[strcspn(line, "\n")] = '\0';
        const char *end = strrchr(line, '/');
        assert_false(end && strstr(line, "@lockstep/") && strcmp(end + 1, name) == 0);
    }
    if (sockets) fclose(sockets);
}

static void wait_for_verdict(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    struct request r = request_of(LS_COLLECTIVE_BARRIER, NULL, NULL, 0, LS_U8, LS_SUM);
    ls_status st;

    OK(barrier(l));
    if (rank == 2)
        for (;;) pause();
    double began = base_now();
    st = drive(l, &r);
    CHECK(st == LS_EPEER && strstr(ls_errmsg(), "rank 2"));
    CHECK(base_now() - began < PATIENCE / 2);
    leave(l);
}

static void nap(double seconds) { nanosleep(&(struct timespec){ (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) }, NULL); }

static void killed_rank_is_detected(void **state)
{
    struct job j = { 0 };
    char name[64];

    (void)state;
    for (int by_name = 0; by_name < 2; by_name++) {
        if (by_name) start_at(&j, 3, unique_name(name, sizeof name), wait_for_verdict);
        else start(&j, 3, wait_for_verdict);
        nap(0.3);
        kill(j.pid[2], SIGKILL);          /* and is left a zombie while the others look */
        assert_int_equal(wait_rank(&j, 0), 0);
        assert_int_equal(wait_rank(&j, 1), 0);
        assert_int_equal(wait_rank(&j, 2), 128 + SIGKILL);
        segment_close(&j.segment);
    }
    check_nothing_left(name);
}

static void launcher_verdict_wins(void **state)
{
    struct job j = { 0 };

    (void)state;
    start(&j, 3, wait_for_verdict);
    nap(0.2);
    kill(j.pid[2], SIGKILL);
    assert_int_equal(wait_rank(&j, 2), 128 + SIGKILL);
    assert_null(segment_verdict(j.segment));
    segment_note_gone(j.segment, 2, "was killed by signal 9 (Killed)");
    segment_note_gone(j.segment, 1, "left with exit code 1");
    assert_string_equal(segment_verdict(j.segment), "rank 2 was killed by signal 9 (Killed)");
    assert_int_equal(wait_rank(&j, 0), 0);
    assert_int_equal(wait_rank(&j, 1), 0);
    segment_close(&j.segment);
}

static void need_one_who_left(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);

    ls_status st = barrier(l);

    if (rank == 1) {
        OK(st);
    } else {
        if (st == LS_OK) st = barrier(l);  /* one of the others may have been here before */
        CHECK(st == LS_EPEER && strstr(ls_errmsg(), "rank 1 left"));
    }
    leave(l);
}

static void rank_that_leaves_early_is_named(void **state)
{
    (void)state;
    shm_run(3, need_one_who_left);
}

static void fail_on_one(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);

    (void)barrier(l);  /* the verdict may be there before it ends */
    if (rank == 1) (transport_shm.fail)(l, LS_ETIMEOUT, "rank 0 has not come for 5 s");
    while (transport_shm.failed(l) == LS_OK) (void)transport_shm.idle(l, 0.01);
    CHECK(transport_shm.failed(l) == LS_ETIMEOUT && strcmp(ls_errmsg(), "rank 0 has not come for 5 s") == 0);
    (transport_shm.fail)(l, LS_EPEER, "later");
    CHECK(transport_shm.failed(l) == LS_ETIMEOUT && strcmp(ls_errmsg(), "rank 0 has not come for 5 s") == 0);
    leave(l);
}

static void first_verdict_stays(void **state)
{
    (void)state;
    shm_run(4, fail_on_one);
}

static void look_at_records(int rank, int n, const char *where)
{
    struct link *l = join(where, rank, n);
    struct call_record r = { .signature = { .sequence = 40 + (uint64_t)rank, .op = LS_COLLECTIVE_BARRIER }, .state = CALL_RUNNING, .started = 1.5 };

    CHECK(transport_shm.peek(l, rank, &r) == LS_OK && r.state == CALL_NONE);
    r = (struct call_record){ .signature = { .sequence = 40 + (uint64_t)rank }, .state = CALL_RUNNING, .started = 1.5 };
    transport_shm.note(l, &r);
    OK(barrier(l));
    for (int i = 0; i < n; i++) {
        OK(transport_shm.peek(l, i, &r));
        CHECK(r.signature.sequence == 40 + (uint64_t)i && r.state == CALL_RUNNING && r.started == 1.5);
    }
    OK(barrier(l));
    leave(l);
}

static void latest_calls_are_visible_to_other_ranks(void **state)
{
    (void)state;
    shm_run(3, look_at_records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_join_by_descriptor),
        cmocka_unit_test(ranks_join_by_name),
        cmocka_unit_test(mismatched_rank_counts_are_refused),
        cmocka_unit_test(name_in_use_is_refused),
        cmocka_unit_test(invalid_names_are_refused),
        cmocka_unit_test(missing_rank_is_named),
        cmocka_unit_test(address_limits_shrink_the_heaps),
        cmocka_unit_test(messages_of_all_sizes_pass_in_both_directions),
        cmocka_unit_test(messages_keep_their_order),
        cmocka_unit_test(mismatched_message_type_ends_the_job),
        cmocka_unit_test(collectives_equal_reference),
        cmocka_unit_test(every_path_gives_the_same_bits),
        cmocka_unit_test(mismatched_collective_ends_the_job_on_every_rank),
        cmocka_unit_test(links_are_split_and_closed),
        cmocka_unit_test(heaps_return_pages),
        cmocka_unit_test(heap_survives_frees_in_any_order),
        cmocka_unit_test(killed_rank_is_detected),
        cmocka_unit_test(launcher_verdict_wins),
        cmocka_unit_test(rank_that_leaves_early_is_named),
        cmocka_unit_test(first_verdict_stays),
        cmocka_unit_test(latest_calls_are_visible_to_other_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
