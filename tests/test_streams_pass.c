/* test_streams_pass.c - the waits between streams: hand-written lists, and random ones whose properties are checked: any two instructions
 * of different streams that touch the same bytes, one of them writing, are ordered, and no wait is redundant.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "passes/streams.h"

enum { STEPS = 48, ACCESSES = 3 * STEPS, MOST_STREAMS = 5, BOTH = 3 };

/* A list under construction. */
struct steps {
    struct stream_access access[ACCESSES];
    struct stream_step   step[STEPS];
    int n, accesses, streams;
    int *wait;
};

static void add_step(struct steps *l, int stream, unsigned variants)
{
    l->step[l->n++] = (struct stream_step){ .stream = stream, .variants = variants, .first_access = l->accesses };
    l->streams = MAX(l->streams, stream + 1);
}

static void add_access(struct steps *l, bool write, int space, size_t begin, size_t end)
{
    l->access[l->accesses++] = (struct stream_access){ space, begin, end, write };
    l->step[l->n - 1].accesses++;
}

static void find_waits(struct steps *l)
{
    assert_int_equal(stream_waits(l->access, l->step, l->n, l->streams, &l->wait), LS_OK);
}

/* Step i waits for these, -1 ends them. */
static void expect_waits(const struct steps *l, int i, ...)
{
    va_list ap;
    int n = 0, j;

    va_start(ap, i);
    while ((j = va_arg(ap, int)) >= 0) {
        assert_true(n < l->step[i].waits);
        assert_int_equal(l->wait[l->step[i].first_wait + n], j);
        n++;
    }
    va_end(ap);
    assert_int_equal(l->step[i].waits, n);
}

/* Two steps on streams 0 and 1: which pairs of accesses need a wait. */
static void test_hazards(void **state)
{
    static const struct { bool first, second, waits; } kinds[] = {
        { true, false, true },   /* read after write */
        { false, true, true },   /* write after read: also where the memory pass gives bytes to another value */
        { true, true, true },    /* write after write */
        { false, false, false },
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (int other = 0; other < 4; other++) {
            struct steps l = { 0 };
            bool same_space = other != 1, overlap = other != 2, same_stream = other == 3;

            add_step(&l, 0, BOTH);
            add_access(&l, kinds[k].first, 0, 64, 128);
            add_step(&l, same_stream ? 0 : 1, BOTH);
            add_access(&l, kinds[k].second, same_space ? 0 : 1, overlap ? 127 : 128, 256);
            find_waits(&l);
            if (kinds[k].waits && same_space && overlap && !same_stream)
                expect_waits(&l, 1, 0, -1);
            else
                expect_waits(&l, 1, -1);
            mem_free(l.wait);
        }
}

/* A stream does not wait again for steps that an earlier step of the stream, or a step that it waits for, has waited for. */
static void test_implied(void **state)
{
    struct steps l = { 0 };

    (void)state;
    add_step(&l, 0, BOTH);
    add_access(&l, true, 0, 0, 64);
    add_step(&l, 1, BOTH);  /* 1: reads 0 */
    add_access(&l, false, 0, 0, 64);
    add_access(&l, true, 1, 0, 64);
    add_step(&l, 2, BOTH);  /* 2: reads 0 and 1; 1 comes after 0 */
    add_access(&l, false, 0, 0, 64);
    add_access(&l, false, 1, 0, 64);
    add_step(&l, 1, BOTH);  /* 3: reads 0 once more */
    add_access(&l, false, 0, 0, 64);
    add_step(&l, 0, BOTH);  /* 4: writes what 2 and 3 have read; 1 comes before both */
    add_access(&l, true, 0, 0, 64);
    find_waits(&l);
    expect_waits(&l, 0, -1);
    expect_waits(&l, 1, 0, -1);
    expect_waits(&l, 2, 1, -1);
    expect_waits(&l, 3, -1);
    expect_waits(&l, 4, 3, 2, -1);
    mem_free(l.wait);
}

/* A step that runs only in the last micro-batch orders nothing in the others. */
static void test_variants(void **state)
{
    struct steps l = { 0 };

    (void)state;
    add_step(&l, 0, BOTH);
    add_access(&l, true, 0, 0, 64);
    add_step(&l, 1, 2);     /* last micro-batch: stream 1 waits for 0 */
    add_access(&l, false, 0, 0, 64);
    add_step(&l, 1, BOTH); /* in the others no stream has waited yet */
    add_access(&l, false, 0, 0, 64);
    add_step(&l, 0, 1);     /* never synchronizes with 1 */
    add_access(&l, true, 0, 0, 64);
    find_waits(&l);
    expect_waits(&l, 1, 0, -1);
    expect_waits(&l, 2, 0, -1);
    expect_waits(&l, 3, 2, -1);
    mem_free(l.wait);
}

/* The wait for a collective and a view do no work: no stream waits for them. */
static void test_no_stream(void **state)
{
    struct steps l = { 0 };

    (void)state;
    add_step(&l, 1, BOTH);
    add_access(&l, true, 0, 0, 64);
    add_step(&l, -1, BOTH);
    add_step(&l, 0, BOTH);
    add_access(&l, false, 0, 0, 64);
    find_waits(&l);
    expect_waits(&l, 1, -1);
    expect_waits(&l, 2, 0, -1);
    mem_free(l.wait);
}

/* ---- random lists ---- */

static uint64_t random_state;

static unsigned streams_pass_draw(unsigned n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % n;
}

static void make_random(struct steps *l)
{
    int n = 4 + (int)streams_pass_draw(STEPS - 4), streams = 2 + (int)streams_pass_draw(MOST_STREAMS - 1);

    for (int i = 0; i < n; i++) {
        add_step(l, (int)streams_pass_draw((unsigned)streams), streams_pass_draw(4) ? BOTH : 1 + streams_pass_draw(2));
        for (unsigned k = 0, of = 1 + streams_pass_draw(3); k < of; k++) {
            size_t begin = streams_pass_draw(12);

            add_access(l, streams_pass_draw(3) == 0, (int)streams_pass_draw(2), begin, begin + 1 + streams_pass_draw(4));
        }
    }
}

static bool touches(const struct steps *l, int i, int j)
{
    for (int a = 0; a < l->step[i].accesses; a++)
        for (int b = 0; b < l->step[j].accesses; b++) {
            struct stream_access x = l->access[l->step[i].first_access + a], y = l->access[l->step[j].first_access + b];

            if (x.space == y.space && x.begin < y.end && y.begin < x.end && (x.write || y.write))
                return true;
        }
    return false;
}

/* Every hazard of the variant is ordered by streams and waits, wait `without` left out. */
static bool ordered(const struct steps *l, unsigned variant, int without)
{
    static bool after[STEPS][STEPS];  /* [i][j]: i begins after the end of j */

    memset(after, 0, sizeof after);
    for (int i = 0; i < l->n; i++) {
        if (!(l->step[i].variants >> variant & 1))
            continue;
        for (int j = 0; j < i; j++) {
            bool direct = l->step[j].stream == l->step[i].stream;

            for (int k = 0; k < l->step[i].waits; k++)
                direct = direct || (l->step[i].first_wait + k != without && l->wait[l->step[i].first_wait + k] == j);
            if (!direct || !(l->step[j].variants >> variant & 1))
                continue;
            after[i][j] = true;
            for (int k = 0; k < j; k++)
                after[i][k] = after[i][k] || after[j][k];
        }
        for (int j = 0; j < i; j++)
            if ((l->step[j].variants >> variant & 1) && touches(l, i, j) && !after[i][j])
                return false;
    }
    return true;
}

static void test_random(void **state)
{
    size_t waits = 0;

    (void)state;
    for (unsigned seed = 1; seed <= 500; seed++) {
        static struct steps l;

        memset(&l, 0, sizeof l);
        random_state = seed;
        make_random(&l);
        find_waits(&l);
        int total = l.step[l.n - 1].first_wait + l.step[l.n - 1].waits;
        assert_true(ordered(&l, 0, -1) && ordered(&l, 1, -1));
        for (int w = 0; w < total; w++)
            assert_false(ordered(&l, 0, w) && ordered(&l, 1, w));
        waits += (size_t)total;
        mem_free(l.wait);
    }
    assert_true(waits > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hazards),
        cmocka_unit_test(test_implied),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_no_stream),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
