/* test_graphs.c - which instructions of a segment are launched as graphs: hand-made lists. test_cuda_graphs.sh runs programs with graphs.
 *
 * A list is a word an instruction: its kind, then the numbers of the instructions for whose ends it waits.
 *   k  a kernel of the device        p  a kernel of the processor         n  the factor of the clipping, which the host reads
 *   v  a view                        s  the start of a collective         w  its wait, which runs on no stream
 *   r  routed rows on one rank, of which the host knows the number        o  offloaded state
 *   K  a kernel in the last micro-batch alone, S a collective there       Q  a kernel in all but the last
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "runtime/graphs.h"

enum { MOST = 64, COMPUTE = 0, COPY = 1, COMM = 2 };

static const struct kernel of_device = { .name = "device", .device = "cuda" }, of_cpu = { .name = "cpu", .device = "cpu" };

static struct instruction instruction_of(char kind)
{
    struct instruction i = { .op = OP_LINEAR, .kernel = &of_device, .stream = COMPUTE };

    switch (kind) {
    case 'k': break;
    case 'K': i.when = LS_WHEN_LAST; break;
    case 'Q': i.when = LS_WHEN_NOT_LAST; break;
    case 'p': i.kernel = &of_cpu; break;
    case 'n': i.op = OP_CLIP_FACTOR; break;
    case 'v': i = (struct instruction){ .op = OP_VIEW, .stream = -1 }; break;
    case 's': i = (struct instruction){ .op = OP_COMM_START, .stream = COMM }; break;
    case 'S': i = (struct instruction){ .op = OP_COMM_START, .stream = COMM, .when = LS_WHEN_LAST }; break;
    case 'w': i = (struct instruction){ .op = OP_COMM_WAIT, .stream = -1 }; break;
    case 'r': i = (struct instruction){ .op = OP_SHUFFLE, .stream = COMPUTE }; break;
    case 'o': i = (struct instruction){ .op = OP_LOAD, .stream = COPY }; break;
    default: fail_msg("'%c' is not a kind of instruction", kind);
    }
    return i;
}

/* A program whose backward is the list; its forward has `before` instructions, numbered before it. */
static void list_make(ls_program *p, const char *text, int before)
{
    char copy[400], *rest = copy;
    int waits = 0;

    *p = (ls_program){ .results.wait = calloc(MOST, sizeof *p->results.wait) };
    assert_non_null(p->results.wait);
    for (int k = 0; k < before; k++) {
        struct instruction i = instruction_of('s');

        assert_int_equal(list_push(&p->list[SEG_FORWARD], &i), LS_OK);
    }
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest), *at; word; word = strtok_r(NULL, " ", &rest)) {
        struct instruction i = instruction_of(*word);

        i.first_wait = waits;
        for (at = word + 1; *at; i.waits++) p->results.wait[waits++] = (int)strtol(*at == ',' ? at + 1 : at, &at, 10);
        assert_int_equal(list_push(&p->list[SEG_BACKWARD], &i), LS_OK);
    }
}

/* "0-3:3": a graph of instructions [0, 3), of which it takes 3. */
static void expect_graphs(const char *text, int segments, const char *want)
{
    for (int before = 0; before < 3; before += 2) { /* waits are numbered over all segments */
        char shifted[400] = "", got[200] = "";
        struct graph found[MOST];
        ls_program p;
        int at = 0;

        for (const char *c = text; *c;) {
            char *end;
            long number = strtol(c, &end, 10);

            if (end == c || *c == ' ')
                at += snprintf(shifted + at, sizeof shifted - (size_t)at, "%c", *c++);
            else
                at += snprintf(shifted + at, sizeof shifted - (size_t)at, "%ld", number + before), c = end;
        }
        list_make(&p, shifted, before);
        int n = graphs_find(&p, SEG_BACKWARD, segments, found);
        at = 0;
        for (int k = 0; k < n; k++)
            at += snprintf(got + at, sizeof got - (size_t)at, "%s%d-%d:%d", k ? " " : "", found[k].begin, found[k].end,
                           found[k].instructions);
        if (strcmp(got, want) != 0) fail_msg("'%s': graphs '%s'; expected '%s'", text, got, want);
        list_free(&p.list[SEG_FORWARD]);
        list_free(&p.list[SEG_BACKWARD]);
        free(p.results.wait);
    }
}

static void test_static(void **state)
{
    (void)state;
    expect_graphs("", 0, "");
    expect_graphs("k k k", 0, "0-3:3");
    expect_graphs("v k v k v", 0, "1-4:2"); /* views launch nothing */
    expect_graphs("k", 0, "");              /* one instruction is launched by itself */
    expect_graphs("v k v", 0, "");
}

static void test_dynamic(void **state)
{
    (void)state;
    expect_graphs("k k n k k", 0, "0-2:2 3-5:2"); /* the host reads the norm */
    expect_graphs("k k r k k k", 0, "0-2:2 3-6:3"); /* and the counts of routed rows */
    expect_graphs("k p k", 0, "");
    expect_graphs("p p p", 0, "");
    expect_graphs("k n k k", 0, "2-4:2");
}

static void test_other_streams(void **state)
{
    (void)state;
    expect_graphs("k s0 k w k", 0, "0-5:3"); /* a bucket's reduction that no instruction here waits for starts after the graph */
    expect_graphs("k s0 k k w k2,1 k", 0,
                  "0-4:3 5-7:2");                  /* no instruction in the graph waits for an instruction that is launched after it */
    expect_graphs("s k0 k k", 0, "1-4:3");         /* a wait for what was launched before is part of the graph */
    expect_graphs("k s0 k1 s2 k3", 0, "");         /* a collective between every two */
    expect_graphs("k o k k1 k", 0, "0-3:2 3-5:2"); /* offloaded state that an update needs */
    expect_graphs("k s k s k1 k3 k", 0, "0-3:2 4-7:3");
}

/* Waits for collectives that do not run in this micro-batch end no graph. */
static void test_last(void **state)
{
    (void)state;
    expect_graphs("k S k k1 k", 0, "0-5:4");
    expect_graphs("k S k k1 k", LS_LAST, "0-3:2 3-5:2");
    expect_graphs("k K Q k", 0, "0-4:3");
    expect_graphs("k K Q k", LS_LAST, "0-4:3");
    expect_graphs("K K", 0, "");
    expect_graphs("K K", LS_LAST, "0-2:2");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_static), cmocka_unit_test(test_dynamic),
                                        cmocka_unit_test(test_other_streams), cmocka_unit_test(test_last) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
