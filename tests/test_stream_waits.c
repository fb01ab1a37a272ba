/* test_stream_waits.c - the waits of the streams pass in real programs: if any one is removed, the checking device reports a race, or the
 * wait is implied by what the host has waited for; and if some are removed, results change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "base/base.h"
#include "base/threads.h"
#include "device/check.h"
#include "helper_forked.h"
#include "helper_distributed.h"
#include "ir/program.h"

enum { MOST_WAITS = 2000 };

/* Outcomes of a layout's waits, over all ranks; shared with them. */
struct tally { int waits, caught, implied, changed; };

/* A wait of instruction i, as place `at` in its list. */
struct waiting { struct instruction *i; int at; };

static int program_waits(ls_program *p, struct waiting out[MOST_WAITS])
{
    int n = 0;

    for (int s = 0; s < SEGMENTS; s++)
        for (int k = 0; k < p->list[s].n; k++)
            for (int w = 0; w < p->list[s].at[k].waits; w++) {
                RANKS_CHECK(n < MOST_WAITS);
                out[n++] = (struct waiting){ &p->list[s].at[k], w };
            }
    return n;
}

static struct instruction *instruction_at(ls_program *p, int number)
{
    int s = 0;

    for (; number >= p->list[s].n; s++)
        number -= p->list[s].n;
    return &p->list[s].at[number];
}

/* Takes the wait out of the list; a second call puts it back. */
static int swap_out(ls_program *p, struct waiting w, bool out)
{
    int *list = p->results.wait + w.i->first_wait, last = out ? w.i->waits - 1 : w.i->waits, number = list[out ? w.at : last];

    list[out ? w.at : last] = list[out ? last : w.at];
    list[out ? last : w.at] = number;
    w.i->waits += out ? -1 : 1;
    return number;
}

/* The public list shows the same: waits for earlier instructions of other streams. */
static void check_public(const ls_program *p, int waits)
{
    int seen = 0;

    for (int n = 0; n < ls_program_instructions(p); n++) {
        ls_instruction i, other;

        ls_program_instruction(p, n, &i);
        for (int k = 0; k < i.nwaits; k++, seen++) {
            RANKS_CHECK(i.waits[k] >= 0 && i.waits[k] < n);
            ls_program_instruction(p, i.waits[k], &other);
            RANKS_CHECK(i.stream >= 0 && other.stream >= 0 && other.stream != i.stream);
        }
    }
    RANKS_CHECK(seen == waits);
}

/* ---- which waits change nothing ---- */

/* Of the waits for this event on this stream: one was needed. */
struct needed { const struct device_event *e; const struct device_stream *s; bool is; };
struct all_needed { struct needed of[MOST_WAITS]; int n; };

static bool note_wait(void *ctx, const struct check_action *a)
{
    struct all_needed *all = ctx;
    int k = 0;

    if (a->kind != CHECK_WAIT)
        return true;
    while (k < all->n && (all->of[k].e != a->event || all->of[k].s != a->stream))
        k++;
    RANKS_CHECK(k < MOST_WAITS);
    if (k == all->n)
        all->of[all->n++] = (struct needed){ a->event, a->stream, false };
    all->of[k].is = all->of[k].is || !a->implied;
    return true;
}

static bool is_needed(const struct all_needed *all, const struct device_event *e, const struct device_stream *s)
{
    for (int k = 0; k < all->n; k++)
        if (all->of[k].e == e && all->of[k].s == s)
            return all->of[k].is;
    ranks_fail("a wait of the program was never made");
}

static void count_race(void *ctx, const char *line)
{
    (void)line;
    ++*(int *)ctx;
}

struct job { struct layout l; struct tally *tally; };

static void take_out_each(ls_comm *comm, void *ctx)
{
    struct job *j = ctx;
    static struct waiting list[MOST_WAITS];
    static struct all_needed needed;
    struct training s;
    double loss;
    int most;

    threads_set(1);
    check_set_order(CHECK_PROGRAM);
    RANKS_TRY(distributed_open(&j->l, comm, false, &s));
    RANKS_TRY(distributed_step(&s, &j->l, 0, &loss));
    check_on_action(note_wait, &needed);
    RANKS_TRY(distributed_step(&s, &j->l, 1, &loss));
    check_on_action(NULL, NULL);
    int n = most = program_waits(s.program, list);
    check_public(s.program, n);
    if (comm) /* shards that touch other parameters may need other waits */
        RANKS_TRY(ls_all_reduce(comm, &most, &most, 1, LS_I32, LS_MAX, NULL));
    for (int w = 0; w < n; w++) {
        int races = 0, number = swap_out(s.program, list[w], true);
        bool matters = is_needed(&needed, instruction_run(s.program, instruction_at(s.program, number))->end,
                                 instruction_bound(s.program, list[w].i)->stream);

        check_on_race(count_race, &races);
        RANKS_TRY(distributed_step(&s, &j->l, 2 + w, &loss));
        check_on_race(NULL, NULL);
        swap_out(s.program, list[w], false);
        if ((races > 0) != matters)
            ranks_fail("wait %d of %d, of %s for instruction %d: %d races, and it %s", w, n, instruction_name(list[w].i), number, races,
                       matters ? "is needed" : "follows from others");
        if (comm && ls_comm_rank(comm) > 0)
            continue;
        j->tally->caught += races > 0;
        j->tally->implied += !matters;
    }
    if (!comm || ls_comm_rank(comm) == 0)
        j->tally->waits = n;
    for (int w = n; w < most; w++)
        RANKS_TRY(distributed_step(&s, &j->l, 2 + w, &loss));
    RANKS_TRY(distributed_step(&s, &j->l, 1, &loss));  /* all of them back: the process would end */
    distributed_close(&s);
}

/* ---- consequences ---- */

/* Without a wait of the update, ranks may not agree on whether the norm is finite. */
static bool keeps_agreement(const ls_program *p, struct waiting w, const ls_comm *comm)
{
    const struct list *update = &p->list[SEG_OPTIMIZER];

    return !comm || ls_comm_size(comm) == 1 || w.i < update->at || w.i >= update->at + update->n;
}

/* The loss of two steps. */
static ls_status run_two(const struct job *j, ls_comm *comm, int without, double out[2])
{
    struct waiting list[MOST_WAITS];
    struct training s;

    RANKS_TRY(distributed_open(&j->l, comm, false, &s));
    if (program_waits(s.program, list) > without && without >= 0 && keeps_agreement(s.program, list[without], comm))
        swap_out(s.program, list[without], true);
    ls_status st = distributed_step(&s, &j->l, 0, &out[0]);
    if (st == LS_OK)
        st = distributed_step(&s, &j->l, 1, &out[1]);
    if (st < 0 && st != LS_EINVAL)  /* a norm that is not finite is the same on all ranks */
        ranks_fail("wait %d: %s", without, ls_errmsg());
    distributed_close(&s);
    return st;
}

static void change_numbers(ls_comm *comm, void *ctx)
{
    enum { SEEDS = 4 };
    struct job *j = ctx;
    double right[2], got[2];
    int races = 0;

    threads_set(1);
    RANKS_TRY(run_two(j, comm, -1, right));
    check_on_race(count_race, &races);
    for (int w = 0; w < j->tally->waits; w++) {
        bool changed = false;

        for (uint64_t seed = 0; seed < SEEDS && !changed; seed++) {
            check_set_seed(seed * 64 + (uint64_t)w);
            changed = run_two(j, comm, w, got) < 0 || memcmp(got, right, sizeof got) != 0;
        }
        if (!comm || ls_comm_rank(comm) == 0)
            j->tally->changed += changed;
    }
    check_on_race(NULL, NULL);
}

static struct tally run_layout(struct layout l, int n, bool numbers)
{
    struct tally *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct job j = { l, shared };

    assert_true(shared != MAP_FAILED);
    j.l.device = "check";
    forked_run(n, take_out_each, &j);
    if (numbers)
        forked_run(n, change_numbers, &j);
    struct tally tally = *shared;
    munmap(shared, sizeof *shared);
    print_message("%d waits: %d caught, %d implied; %d change numbers\n", tally.waits, tally.caught, tally.implied, tally.changed);
    assert_int_equal(tally.caught + tally.implied, tally.waits);
    return tally;
}

static ls_data_parallel_options sharded(int zero)
{
    ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;

    o.zero = zero;
    o.bucket_bytes = 9000;
    o.first_bucket_bytes = 3000;
    o.offload_path = "/tmp";
    return o;
}

static void test_zero(void **state)
{
    (void)state;
    for (int zero = 0; zero <= 3; zero++) {
        struct layout l = { .net = NET_LLAMA, .optimizer = LS_ADAMW, .type = LS_F32, .accumulate = 2, .data = sharded(zero) };
        struct tally t = run_layout(l, 2, zero == 3);

        assert_true(t.caught > 5);
        if (zero == 3)
            assert_true(t.changed > 3 && t.changed <= t.caught);
    }
}

static void test_offload(void **state)
{
    struct layout l = { .net = NET_LLAMA, .optimizer = LS_ADAMW, .type = LS_BF16, .accumulate = 1, .data = sharded(2) };

    (void)state;
    for (int offload = LS_OFFLOAD_CPU; offload <= LS_OFFLOAD_FILE; offload++) {
        l.data.offload = (ls_offload)offload;
        assert_true(run_layout(l, 2, false).caught > 20);
    }
    l.data.offload = LS_OFFLOAD_CPU;
    assert_true(run_layout(l, 1, true).changed > 3);
}

static void test_experts(void **state)
{
    struct layout l = { .net = NET_EVEN, .optimizer = LS_ADAM, .type = LS_F32, .accumulate = 1, .data = sharded(1), .meshed = true,
                        .mesh = LS_MESH_DEFAULTS, .partition = LS_PARTITION_DEFAULTS };

    (void)state;
    l.mesh.dp = l.mesh.ep = 2;
    assert_true(run_layout(l, 2, false).caught > 20);
}

static void test_tensor_parallel(void **state)
{
    struct layout l = { .net = NET_LLAMA_TIED, .optimizer = LS_LAMB, .type = LS_F32, .accumulate = 2, .data = sharded(0), .meshed = true,
                        .mesh = LS_MESH_DEFAULTS, .partition = LS_PARTITION_DEFAULTS };

    (void)state;
    l.mesh.tp = 2;
    l.partition.sp = true;
    assert_true(run_layout(l, 2, true).changed > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_zero),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_tensor_parallel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
