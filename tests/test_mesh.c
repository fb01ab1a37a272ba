/* test_mesh.c - the mesh: coordinates, groups and sizes of every shape of up to 16 ranks on comms without peers, compared with the
 * definitions written as loops; real comms of 8 ranks that communicate in each group; refused meshes and their messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "helper_forked.h"
#include "lockstep/mesh.h"
#include "lockstep/program.h"
#include "train/faults/fault_points.h"

/* ---- the definitions ---- */

struct spot { int pp, dp, cp, tp, ep, replica; };

static struct spot spot_of(const ls_mesh_shape *m, int rank)
{
    struct spot s;
    int at = 0;

    for (s.pp = 0; s.pp < m->pp; s.pp++)
        for (s.dp = 0; s.dp < m->dp; s.dp++)
            for (s.cp = 0; s.cp < m->cp; s.cp++)
                for (s.tp = 0; s.tp < m->tp; s.tp++)
                    if (at++ == rank) {
                        s.replica = s.dp / (m->dp / m->replicate);
                        s.ep = (s.dp * m->cp + s.cp) % m->ep;
                        return s;
                    }
    return (struct spot){ 0 };
}

/* True if two ranks are in one group. */
static bool together(const ls_mesh_shape *m, ls_group g, int a, int b)
{
    struct spot x = spot_of(m, a), y = spot_of(m, b);
    int dx = x.dp * m->cp + x.cp, dy = y.dp * m->cp + y.cp, copy = m->dp / m->replicate * m->cp;
    bool pp = x.pp == y.pp, dp = x.dp == y.dp, cp = x.cp == y.cp, tp = x.tp == y.tp, line = pp && tp;

    if (a == b) return true;
    switch (g) {
    case LS_GROUP_WORLD:        return true;
    case LS_GROUP_PP:
    case LS_GROUP_PP_BACK:      return dp && cp && tp;
    case LS_GROUP_DP:           return line && cp;
    case LS_GROUP_CP:           return line && dp;
    case LS_GROUP_TP:           return pp && dp && cp;
    case LS_GROUP_EP:           return line && dx / m->ep == dy / m->ep;
    case LS_GROUP_DATA:         return line;
    case LS_GROUP_SHARD:        return line && x.replica == y.replica;
    case LS_GROUP_REPLICAS:     return line && dx % copy == dy % copy;
    case LS_GROUP_EXPERT_DATA:  return line && x.ep == y.ep;
    case LS_GROUP_EXPERT_SHARD: return line && x.replica == y.replica && x.ep == y.ep;
    case LS_GROUP_ENDS:         return dp && cp && tp && (x.pp == 0 || x.pp == m->pp - 1) && (y.pp == 0 || y.pp == m->pp - 1);
    case LS_GROUPS:             break;
    }
    return false;
}

static void check_rank(const ls_mesh_shape *shape, int rank, int n)
{
    struct spot s = spot_of(shape, rank);
    int place[5], size, index;
    ls_comm *world;
    ls_mesh *m = NULL;

    assert_int_equal(ls_comm_open("plan:", rank, n, &world), LS_OK);
    assert_int_equal(ls_mesh_open(world, shape, &m), LS_OK);
    ls_mesh_place(shape, rank, place);
    assert_true(place[0] == s.pp && place[1] == s.dp && place[2] == s.cp && place[3] == s.tp && place[4] == s.ep);
    for (int g = 0; g < LS_GROUPS; g++) {
        ls_comm *c = ls_mesh_comm(m, (ls_group)g);

        size = index = 0;
        for (int r = 0; r < n; r++)
            if (together(shape, (ls_group)g, rank, r)) {
                index += r < rank;
                size++;
            }
        assert_int_equal(ls_mesh_size(m, (ls_group)g), size);
        assert_int_equal(ls_mesh_index(m, (ls_group)g), index);
        assert_int_equal(c != NULL, size > 1);
        if (c) assert_int_equal(ls_comm_size(c), size);
        if (c) assert_int_equal(ls_comm_rank(c), index);
    }
    ls_mesh_close(&m);
    assert_null(m);
    ls_comm_close(&world);
}

static void every_shape_equals_loops(void **state)
{
    int shapes = 0;

    (void)state;
    for (int n = 1; n <= 16; n++)
        for (int pp = 1; pp <= n; pp++)
            for (int cp = 1; cp <= n / pp; cp++)
                for (int tp = 1; tp <= n / pp / cp; tp++)
                    for (int replicate = 1; replicate <= n; replicate++)
                        for (int ep = 1; ep <= n; ep++) {
                            ls_mesh_shape s = { pp, -1, replicate, cp, tp, ep };

                            if (ls_mesh_check(&s, n) < 0) continue;
                            shapes++;
                            for (int r = 0; r < n; r++) check_rank(&s, r, n);
                        }
    assert_true(shapes > 300);
}

/* ---- refusals ---- */

static void shape_refused(ls_mesh_shape s, int ranks, const char *words)
{
    ls_mesh_shape before = s;

    assert_int_equal(ls_mesh_check(&s, ranks), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), words));
    assert_memory_equal(&s, &before, sizeof s);
}

static void sizes_multiply_to_ranks(void **state)
{
    ls_mesh_shape rest = LS_MESH_DEFAULTS;

    (void)state;
    rest.tp = 2;
    assert_int_equal(ls_mesh_check(&rest, 8), LS_OK);
    assert_int_equal(rest.dp, 4);
    shape_refused((ls_mesh_shape){ 2, 3, 1, 1, 2, 1 }, 8, "does not hold: 8 = 2 * 3 * 1 * 2; use --parallel.dp=2, or match the product");
    shape_refused((ls_mesh_shape){ 3, 1, 1, 1, 2, 1 }, 8,
                  "does not hold: 8 = 3 * 1 * 1 * 2; change parallel.pp, parallel.cp or parallel.tp, or match the product with -n 6");
    shape_refused((ls_mesh_shape){ 3, -1, 1, 1, 1, 1 }, 8, "does not hold: 8 = 3 * 2 * 1 * 1; change parallel.pp");
    shape_refused((ls_mesh_shape){ 4, -1, 1, 2, 2, 1 }, 8,
                  "does not hold: 8 = 4 * 1 * 2 * 2; change parallel.pp, parallel.cp or parallel.tp");
    shape_refused((ls_mesh_shape){ 1, 8, 3, 1, 1, 1 }, 8, "parallel.dp=8 is not a multiple of parallel.replicate=3");
    shape_refused((ls_mesh_shape){ 1, 4, 2, 2, 1, 8 }, 8,
                  "parallel.ep=8 does not divide parallel.dp=4 / parallel.replicate=2 * parallel.cp=2 = 4");
    shape_refused((ls_mesh_shape){ 1, 0, 1, 1, 1, 1 }, 8, "parallel.dp=0 is out of range: 1 to 131072");
    shape_refused((ls_mesh_shape){ 1, -2, 1, 1, 1, 1 }, 8, "parallel.dp=-2 is out of range");
    shape_refused((ls_mesh_shape){ 1, -1, 1, 1, 0, 1 }, 8, "parallel.tp=0 is out of range");
    shape_refused((ls_mesh_shape){ 1, 1024, 1, 1, 256, 1 }, 262144, "are too many ranks; at most 131072 are possible");
    shape_refused((ls_mesh_shape){ 1, -1, 1, 1, 1, 1 }, 262144, "parallel.dp=262144 is out of range: 1 to 131072");
}

static void mesh_of_one_rank(void **state)
{
    ls_mesh_shape defaults = LS_MESH_DEFAULTS;
    ls_mesh *m;

    (void)state;
    assert_int_equal(ls_mesh_open(NULL, &defaults, &m), LS_OK);
    for (int g = 0; g < LS_GROUPS; g++) {
        assert_null(ls_mesh_comm(m, (ls_group)g));
        assert_int_equal(ls_mesh_size(m, (ls_group)g), 1);
        assert_int_equal(ls_mesh_size(NULL, (ls_group)g), 1);
        assert_int_equal(ls_mesh_index(NULL, (ls_group)g), 0);
    }
    assert_int_equal(ls_mesh_get_shape(NULL).dp, 1);
    assert_int_equal(ls_mesh_get_shape(m).dp, 1);
    ls_mesh_close(&m);
    ls_mesh_close(&m);
    ls_mesh_close(NULL);
}

/* Each allocation fails in turn: a status, nothing leaked, nothing set. */
static void mesh_fails_cleanly_without_memory(void **state)
{
    ls_mesh_shape shape = { 2, 2, 1, 2, 2, 2 };
    struct mem_stats before, after;
    ls_comm *world;
    int failures = 0;

    (void)state;
    assert_int_equal(ls_comm_open("plan:", 5, 16, &world), LS_OK);
    mem_read(&before);
    for (int nth = 1; ; nth++) {
        ls_mesh *m = NULL;

        mem_fail_at(nth);
        ls_status st = ls_mesh_open(world, &shape, &m);
        mem_fail_at(0);
        if (st == LS_OK) ls_mesh_close(&m);
        else assert_null(m);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st == LS_OK) break;
        assert_int_equal(st, LS_ENOMEM);
        failures++;
    }
    assert_true(failures > 8);
    ls_comm_close(&world);
}

/* ---- in words ---- */

static void mesh_is_described(void **state)
{
    ls_mesh_shape shape = { 2, 2, 1, 1, 4, 2 }, wide = { 1, 64, 1, 1, 8, 1 };
    char *text;

    (void)state;
    assert_int_equal(ls_mesh_text(&shape, 8, &text), LS_OK);
    assert_non_null(strstr(text, "pp 2 * dp 2 * cp 1 * tp 4 = 16 ranks; ep 2 inside dp x cp"));
    assert_non_null(strstr(text, "rank = ((pp * 2 + dp) * 1 + cp) * 4 + tp"));
    assert_non_null(strstr(text, "tp               4       1   within a machine"));
    assert_non_null(strstr(text, "pp               2       8   across machines"));
    assert_non_null(strstr(text, "tp           0-3  4-7  8-11  12-15\n"));
    assert_non_null(strstr(text, "dp           0,4  1,5  2,6  3,7  8,12  9,13  10,14  11,15\n"));
    assert_non_null(strstr(text, "ep           as dp\n"));
    assert_non_null(strstr(text, "ends         as pp\n"));
    assert_null(strstr(text, "expert_data"));
    ls_free(text);
    assert_int_equal(ls_mesh_text(&wide, 0, &text), LS_OK);
    assert_non_null(strstr(text, "dp           0,8,..,504  1,9,..,505"));
    assert_non_null(strstr(text, "and 48 more like these"));
    assert_null(strstr(text, "machine"));
    ls_free(text);
    wide.tp = 1 << 30;
    assert_int_equal(ls_mesh_text(&wide, 0, &text), LS_EINVAL);
}

/* ---- on ranks ---- */

/* The ranks of a group are those that its comm reaches: each sends its number. */
static void talk(ls_comm *world, void *ctx)
{
    const ls_mesh_shape *shape = ctx;
    int rank = ls_comm_rank(world), n = ls_comm_size(world);
    ls_mesh *m;

    RANKS_TRY(ls_mesh_open(world, shape, &m));
    for (int g = 0; g < LS_GROUPS; g++) {
        ls_comm *c = ls_mesh_comm(m, (ls_group)g);
        int64_t mine = rank, all[16];
        int k = 0;

        if (!c) continue;
        RANKS_TRY(ls_all_gather(c, &mine, all, 1, LS_I64, NULL));
        for (int r = 0; r < n; r++)
            if (together(shape, (ls_group)g, rank, r)) {
                if (all[k] != r) ranks_fail("%s: rank %d is %d of the group", ls_group_name((ls_group)g), r, (int)all[k]);
                k++;
            }
        RANKS_CHECK(k == ls_comm_size(c));
    }
    ls_mesh_close(&m);
}

static void groups_communicate(void **state)
{
    ls_mesh_shape shapes[] = { { 2, 2, 1, 1, 2, 2 }, { 4, 1, 1, 2, 1, 1 }, { 1, 4, 2, 2, 1, 4 } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) forked_run(8, talk, &shapes[i]);
}

/* Only data parallelism: the world is used for every group, nothing is split. */
static void data_parallel_mesh_splits_nothing(void **state)
{
    ls_mesh_shape shape = LS_MESH_DEFAULTS;
    ls_comm *world;
    ls_mesh *m;

    (void)state;
    assert_int_equal(ls_comm_open("plan:", 3, 8, &world), LS_OK);
    assert_int_equal(ls_mesh_open(world, &shape, &m), LS_OK);
    assert_ptr_equal(ls_mesh_comm(m, LS_GROUP_WORLD), world);
    assert_ptr_equal(ls_mesh_comm(m, LS_GROUP_DP), world);
    assert_ptr_equal(ls_mesh_comm(m, LS_GROUP_DATA), world);
    assert_ptr_equal(ls_mesh_comm(m, LS_GROUP_EXPERT_SHARD), world);
    assert_null(ls_mesh_comm(m, LS_GROUP_TP));
    ls_mesh_close(&m);
    ls_comm_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_equals_loops),
        cmocka_unit_test(sizes_multiply_to_ranks),
        cmocka_unit_test(mesh_of_one_rank),
        cmocka_unit_test(mesh_fails_cleanly_without_memory),
        cmocka_unit_test(mesh_is_described),
        cmocka_unit_test(data_parallel_mesh_splits_nothing),
        cmocka_unit_test(groups_communicate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
