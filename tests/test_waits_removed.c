/* test_waits_removed.c - every wait of one stream for another in a step is removed in turn, on all ranks: waits of the streams pass, joins
 * of all streams, transfers, those of the next forward for gathers of the update, and a pipeline's hand-over of activations and gradients.
 * Either the checking device reports a race, or the wait is redundant: without it all operations that touch the same bytes are still
 * ordered. The test determines that with its own clocks (helper_happens_before.h) and compares.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>
#include "base/base.h"
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_happens_before.h"
#include "helper_distributed.h"
#include "ir/program.h"
#include "parallel/pipeline/pipeline.h"
#include "runtime/store_parts.h"

enum { MOST_WAITS = 4000, MOST_RANKS = 4 };
enum source { FROM_PASS, FROM_JOIN, FROM_HANDOVER, FROM_TRANSFER, FROM_GATHER, SOURCES };

/* Outcomes of a rank's waits by their origin. implied: the stream has waited for all of it already; idle: nothing that it
 * orders touches the same bytes without being in order by other waits. */
struct fates { int waits, caught, implied, idle; };
struct tally { struct fates of[MOST_RANKS][SOURCES]; };

struct job { struct layout l; struct tally *tally; };

/* ---- where a wait comes from ---- */

static bool is_of_program(const ls_program *p, const struct device_event *e)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (instruction_run(p, &p->list[s].at[n])->end == e)
                return true;
    return false;
}

static enum source find_source(const struct training *s, const struct device_event *e)
{
    const struct stream_set *set = store_streams(s->store);
    const struct ls_pipeline *l = s->pipeline;

    if (is_of_program(s->program, e))
        return FROM_PASS;
    for (int k = 0; k < set->n; k++)
        if (set->stream[k].end == e)
            return FROM_JOIN;
    for (int g = 0; g < s->store->units; g++)
        if (s->store->unit[g]->gathered == e)
            return FROM_GATHER;
    for (int c = 0; l && c < l->schedule.chunks; c++) {
        if (is_of_program(l->chunk[c].program, e))
            return FROM_PASS;
        for (int k = 0; k < ENDS; k++)
            for (int slot = 0; l->chunk[c].end[k].message && slot < l->plan.slots[c]; slot++)
                if (l->chunk[c].end[k].message[slot] == e)
                    return FROM_HANDOVER;
    }
    return FROM_TRANSFER;
}

/* ---- two steps ---- */

static bool plain; /* steps without collectives of the host, each of which waits for the device first */

static ls_status take_step(struct training *s, const struct layout *l, int step)
{
    double loss;

    if (!plain)
        return distributed_step(s, l, step, &loss);
    ls_store_zero_grad(s->store);
    LS_TRY(ls_program_run(s->program, LS_FORWARD | LS_BACKWARD | LS_LAST));
    LS_TRY(ls_optimizer_set(s->program, &s->optimizer, 0.003, (uint64_t)step + 1));
    return ls_program_run(s->program, LS_OPTIMIZER_STEP);
}

/* Two steps, after which the host has waited for everything: the second may conflict with unordered operations of the first. */
static void run_steps(struct training *s, const struct layout *l, int *first_ends, const struct history *h)
{
    RANKS_TRY(take_step(s, l, 2));
    if (first_ends)
        *first_ends = h->n;
    RANKS_TRY(take_step(s, l, 3));
    RANKS_TRY(store_device(s->store)->sync());
}

/* The wait with number `without` is left out. */
struct removal { int without, seen, races; };

static bool leave_out(void *ctx, const struct check_action *a)
{
    struct removal *r = ctx;

    return a->kind != CHECK_WAIT || r->seen++ != r->without;
}

static void count_race(void *ctx, const char *line)
{
    (void)line;
    ++((struct removal *)ctx)->races;
}

static struct removal run_without(struct training *s, const struct layout *l, int wait)
{
    struct removal r = { .without = wait };

    check_on_race(count_race, &r);
    check_on_action(leave_out, &r);
    run_steps(s, l, NULL, NULL);
    check_on_action(NULL, NULL);
    check_on_race(NULL, NULL);
    return r;
}

/* ---- all of a rank's waits ---- */

/* number: of all waits of the two steps. */
struct wait { enum source source; bool implied, needed; int number; };

/* The waits of the first of two steps, and those of the second for gathers that the first has started. */
static int list_waits(struct training *s, const struct layout *l, struct wait list[MOST_WAITS])
{
    struct history h = { 0 };
    int n = 0, ends, number = -1;

    RANKS_TRY(store_device(s->store)->sync());
    check_on_action(history_note, &h);
    run_steps(s, l, &ends, &h);
    check_on_action(NULL, NULL);
    history_find_conflicts(&h);
    RANKS_CHECK(h.conflicts > 0 && history_is_ordered(&h, -1));
    for (int k = 0; k < h.n; k++) {
        if (h.at[k].kind != CHECK_WAIT)
            continue;
        number++;
        if (k >= ends && find_source(s, h.event[h.at[k].event]) != FROM_GATHER)
            continue;
        RANKS_CHECK(n < MOST_WAITS && h.at[k].implied == history_implies(&h, k));
        list[n++] = (struct wait){ find_source(s, h.event[h.at[k].event]), h.at[k].implied, !history_is_ordered(&h, k), number };
        RANKS_CHECK(!h.at[k].implied || !list[n - 1].needed);
    }
    history_free(&h);
    return n;
}

static void remove_each(ls_comm *comm, void *ctx)
{
    static struct wait list[MOST_WAITS];
    struct job *j = ctx;
    struct fates *fates = j->tally->of[ls_comm_rank(comm)];
    struct training s;
    double loss;
    int most;

    threads_set(1);
    check_set_order(CHECK_EAGER);
    RANKS_TRY(distributed_open(&j->l, comm, false, &s));
    for (int step = 0; step < 2; step++)
        RANKS_TRY(distributed_step(&s, &j->l, step, &loss));
    int n = most = list_waits(&s, &j->l, list);
    RANKS_TRY(ls_all_reduce(comm, &most, &most, 1, LS_I32, LS_MAX, NULL));
    for (int w = 0; w < most; w++) {
        struct removal r = run_without(&s, &j->l, w < n ? list[w].number : -1);

        if (w >= n)
            continue;
        if ((r.races > 0) != list[w].needed)
            ranks_fail("wait %d of %d: %d races, and it is %s", w, n, r.races, list[w].needed ? "needed" : "redundant");
        fates[list[w].source].waits++;
        fates[list[w].source].caught += r.races > 0;
        fates[list[w].source].implied += list[w].implied;
        fates[list[w].source].idle += !r.races && !list[w].implied;
    }
    RANKS_CHECK(run_without(&s, &j->l, -1).races == 0);
    distributed_close(&s);
}

/* ---- layouts ---- */

static struct fates fates_of(const struct tally *t, enum source source)
{
    struct fates sum = { 0 };

    for (int r = 0; r < MOST_RANKS; r++) {
        const struct fates *f = &t->of[r][source];

        sum = (struct fates){ sum.waits + f->waits, sum.caught + f->caught, sum.implied + f->implied, sum.idle + f->idle };
    }
    return sum;
}

static struct tally remove_all(struct layout l, int n)
{
    static const char *const names[SOURCES] = { "pass", "joins", "hand-over", "transfers", "gathers" };
    struct tally *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct job j = { l, shared };

    assert_true(shared != MAP_FAILED);
    j.l.device = "check";
    forked_run(n, remove_each, &j);
    struct tally tally = *shared;
    munmap(shared, sizeof *shared);
    for (int source = 0; source < SOURCES; source++) {
        struct fates f = fates_of(&tally, (enum source)source);

        print_message("%s: %d waits: %d caught, %d implied, %d with nothing to order\n", names[source], f.waits, f.caught, f.implied,
                      f.idle);
        assert_int_equal(f.caught + f.implied + f.idle, f.waits);
    }
    assert_int_equal(fates_of(&tally, FROM_PASS).idle, 0);
    return tally;
}

static struct layout meshed(enum net net, int accumulate)
{
    struct layout l = { .net = net, .optimizer = LS_ADAMW, .type = LS_F32, .accumulate = accumulate,
                        .data = LS_DATA_PARALLEL_DEFAULTS, .meshed = true, .mesh = LS_MESH_DEFAULTS, .partition = LS_PARTITION_DEFAULTS };

    l.data.bucket_bytes = 9000;
    l.data.first_bucket_bytes = 3000;
    return l;
}

static void test_ring(void **state)
{
    struct layout l = meshed(NET_LLAMA, 2);

    (void)state;
    l.mesh.cp = 2;
    l.data.zero = 1;
    l.data.offload = LS_OFFLOAD_FILE;
    l.data.offload_path = "/tmp";
    struct tally t = remove_all(l, 2);
    assert_true(fates_of(&t, FROM_PASS).caught > 0);
}

/* The next forward waits for the gathers of the update. */
static void test_gathers(void **state)
{
    struct layout l = meshed(NET_LLAMA, 1);

    (void)state;
    l.mesh.dp = 2;
    l.data.zero = 2;
    plain = true;
    struct tally t = remove_all(l, 2);
    plain = false;
    assert_true(fates_of(&t, FROM_GATHER).caught > 0);
}

static void test_pipeline(const char *schedule, int chunks)
{
    struct layout l = meshed(NET_LLAMA_TIED, 3);

    l.layers = 4;
    l.mesh.pp = 2;
    l.schedule = schedule;
    l.chunks = chunks;
    struct tally t = remove_all(l, 2);
    assert_true(fates_of(&t, FROM_HANDOVER).caught > 0 && fates_of(&t, FROM_JOIN).caught > 0);
}

static void test_1f1b(void **state) { (void)state, test_pipeline("1f1b", 1); }
static void test_zero_bubble(void **state) { (void)state, test_pipeline("zb-h1", 1); }
static void test_v_schedule(void **state) { (void)state, test_pipeline("zb-v", 2); } /* chunks of a rank copy to each other */

/* Sharded optimizer state and its copies beside a pipeline, whose stages have experts. */
static void test_all(void **state)
{
    struct layout l = meshed(NET_EVEN, 2);

    (void)state;
    l.mesh.pp = l.mesh.dp = l.mesh.ep = 2;
    l.schedule = "1f1b";
    l.data.zero = 1;
    l.data.offload = LS_OFFLOAD_CPU;
    struct tally t = remove_all(l, 4);
    assert_true(fates_of(&t, FROM_PASS).caught > 0 && fates_of(&t, FROM_HANDOVER).caught > 0);
}

/* ---- waits of the host ---- */

static bool count_host_waits(void *ctx, const struct check_action *a)
{
    *(int *)ctx += a->kind == CHECK_HOST_WAIT && a->stream;
    return true;
}

/* However many micro-batches a step has, the host waits for a stream once, for the norm; losses arrive by an event. */
static void wait_once(ls_comm *comm, void *ctx)
{
    const struct layout *l = ctx;
    struct training s;
    double loss;
    int waits = 0;

    threads_set(1);
    check_set_order(CHECK_EAGER);
    RANKS_TRY(distributed_open(l, comm, false, &s));
    RANKS_TRY(distributed_step(&s, l, 0, &loss));
    check_on_action(count_host_waits, &waits);
    RANKS_TRY(distributed_step(&s, l, 1, &loss));
    check_on_action(NULL, NULL);
    if (waits != 1)
        ranks_fail("the host waited %d times for a stream in one step", waits);
    distributed_close(&s);
}

static void test_host(void **state)
{
    struct layout l = meshed(NET_LLAMA_TIED, 4);

    (void)state;
    l.device = "check";
    l.mesh.dp = 2;
    forked_run(2, wait_once, &l);
    l.data.offload_path = "/tmp";
    for (int offload = LS_OFFLOAD_CPU; offload <= LS_OFFLOAD_FILE; offload++) {
        l.data.offload = (ls_offload)offload;
        forked_run(2, wait_once, &l);
    }
    l.mesh.dp = 1;
    l.mesh.pp = 2;
    l.schedule = "1f1b";
    forked_run(2, wait_once, &l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_gathers),
        cmocka_unit_test(test_1f1b),
        cmocka_unit_test(test_zero_bubble),
        cmocka_unit_test(test_v_schedule),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
