/* test_waits.c - the wait graph: the root cause found in hand-written graphs, from each rank that waits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "comm/failure/waits.h"

enum { MOST = 8 };
static const double TIMEOUT = 5;

/* state: one character per rank: w waits, b busy (quiet for 1 s), s stuck (quiet for 9 s), T stopped, t stopped for 1 s only,
 * ? no report, y waits for 1 s only. edges: "0>1 1>2". */
struct graph { const char *name, *state, *edges; struct { int from; enum cause_kind kind; int rank; const char *path; } want[4]; };

static const struct graph graphs[] = {
    { "a call that is missing no rank", "ww", "", { { 0, CAUSE_NONE, -1, "" } } },
    { "a stopped rank", "wT", "0>1", { { 0, CAUSE_STOPPED, 1, "01" } } },
    { "a stop that may end in time", "wt", "0>1", { { 0, CAUSE_BUSY, 1, "" } } },
    { "a stuck rank", "ws", "0>1", { { 0, CAUSE_STUCK, 1, "01" } } },
    { "a busy rank", "wb", "0>1", { { 0, CAUSE_BUSY, 1, "" } } },
    { "a rank that does not answer", "w?", "0>1", { { 0, CAUSE_SILENT, 1, "01" } } },
    /* rank 1 is not the cause: it waits in another group for the stopped rank */
    { "a victim in another group", "wwTw", "0>1 0>2 1>2 3>1 3>2",
      { { 0, CAUSE_STOPPED, 2, "02" }, { 1, CAUSE_STOPPED, 2, "12" }, { 3, CAUSE_STOPPED, 2, "32" } } },
    { "victims between this rank and the cause", "wwwT", "0>1 1>2 2>3",
      { { 0, CAUSE_STOPPED, 3, "0123" }, { 1, CAUSE_STOPPED, 3, "123" }, { 2, CAUSE_STOPPED, 3, "23" } } },
    { "a stopped rank comes before a stuck rank", "wsT", "0>1 1>2 0>2", { { 0, CAUSE_STOPPED, 2, "02" } } },
    { "a distant stopped rank comes before a near stuck rank", "wswT", "0>1 0>2 2>3", { { 0, CAUSE_STOPPED, 3, "023" } } },
    { "a stuck rank comes before a busy rank", "wbs", "0>1 0>2", { { 0, CAUSE_STUCK, 2, "02" } } },
    { "the nearest of equal causes", "wwTT", "0>1 1>2 0>3", { { 0, CAUSE_STOPPED, 3, "03" } } },
    { "the search does not continue from a stopped rank", "wTs", "0>1 1>2", { { 0, CAUSE_STOPPED, 1, "01" } } },
    { "a waiting rank whose call is missing no rank is not the cause", "ww", "0>1", { { 0, CAUSE_BUSY, 1, "" } } },
    { "a cycle", "ww", "0>1 1>0", { { 0, CAUSE_CYCLE, -1, "01" }, { 1, CAUSE_CYCLE, -1, "10" } } },
    { "a cycle that does not contain this rank", "wwww", "0>1 1>2 2>3 3>1", { { 0, CAUSE_CYCLE, -1, "123" } } },
    { "a cycle and a busy rank", "wbww", "0>1 0>2 2>3 3>2", { { 0, CAUSE_CYCLE, -1, "23" } } },
    { "a stuck rank comes before a cycle", "wsww", "0>1 0>2 2>3 3>2", { { 0, CAUSE_STUCK, 1, "01" } } },
    { "a cycle that has not been stalled for the timeout", "wyw", "0>1 1>2 2>1", { { 0, CAUSE_BUSY, 1, "" } } },
    { "two paths to the same rank are not a cycle", "wwwb", "0>1 0>2 1>3 2>3", { { 0, CAUSE_BUSY, 1, "" } } },
    { "a cycle that cannot be reached", "wbww", "0>1 2>3 3>2", { { 0, CAUSE_BUSY, 1, "" } } },
};

static bool waits_for(void *ctx, int from, int to)
{
    char edge[8];

    snprintf(edge, sizeof edge, "%d>%d", from, to);
    return strstr(ctx, edge) != NULL;
}

static struct waits_node node_of(char state)
{
    switch (state) {
    case 'w': return (struct waits_node){ NODE_WAITS, 9 };
    case 'y': return (struct waits_node){ NODE_WAITS, 1 };
    case 'b': return (struct waits_node){ NODE_WORKS, 1 };
    case 's': return (struct waits_node){ NODE_WORKS, 9 };
    case 'T': return (struct waits_node){ NODE_STOPPED, 9 };
    case 't': return (struct waits_node){ NODE_STOPPED, 1 };
    default: return (struct waits_node){ NODE_SILENT, INFINITY };
    }
}

static void root_cause_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(graphs); i++) {
        const struct graph *a = &graphs[i];
        struct waits_node node[MOST];
        struct waits_graph g = { .n = (int)strlen(a->state), .node = node, .edge = waits_for, .ctx = (void *)(uintptr_t)a->edges,
                                 .timeout = TIMEOUT };

        for (int k = 0; k < g.n; k++) node[k] = node_of(a->state[k]);
        for (size_t k = 0; k == 0 || (k < COUNT_OF(a->want) && a->want[k].kind != CAUSE_NONE); k++) {
            int path[MOST], work[2 * MOST];
            struct cause c = waits_follow(&g, a->want[k].from, path, work);
            char way[MOST + 1] = "";

            for (int s = 0; s < c.steps; s++) snprintf(way + s, 2, "%d", path[s]);
            bool right = c.kind == a->want[k].kind && c.rank == a->want[k].rank;
            if (!right || (c.kind > CAUSE_BUSY && strcmp(way, a->want[k].path) != 0))
                fail_msg("%s, from rank %d: kind %d, rank %d, path %s", a->name, a->want[k].from, (int)c.kind, c.rank, way);
        }
    }
}

/* A cycle of 1000 ranks is found without recursion, and its path contains each rank once. */
static bool next_in_ring(void *ctx, int from, int to) { return to == (from + 1) % *(int *)ctx; }

static void long_cycle_is_reported_in_full(void **state)
{
    enum { RANKS = 1000 };
    static struct waits_node node[RANKS];
    static int path[RANKS], work[2 * RANKS];
    int n = RANKS;
    struct waits_graph g = { .n = n, .node = node, .edge = next_in_ring, .ctx = &n, .timeout = TIMEOUT };

    (void)state;
    for (int i = 0; i < n; i++) node[i] = node_of('w');
    struct cause c = waits_follow(&g, 17, path, work);
    assert_int_equal(c.kind, CAUSE_CYCLE);
    assert_int_equal(c.steps, n);
    for (int i = 0; i < n; i++) assert_int_equal(path[i], (17 + i) % n);
    node[16] = node_of('T');
    c = waits_follow(&g, 17, path, work);
    assert_int_equal(c.kind, CAUSE_STOPPED);
    assert_int_equal(c.rank, 16);
    assert_int_equal(c.steps, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_cause_is_found),
        cmocka_unit_test(long_cycle_is_reported_in_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
