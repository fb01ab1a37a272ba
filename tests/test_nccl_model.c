/* test_nccl_model.c - seconds of collectives by the cost model of NVIDIA's library: closed forms, and published measurements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "helper_check.h"
#include "plan/seconds.h"
#include "train/plan/tape.h"

#define AR LS_COLLECTIVE_ALL_REDUCE
#define AG LS_COLLECTIVE_ALL_GATHER

static void near(double have, double want, double by, const char *what)
{
    if (!(fabs(have / want - 1) <= by)) fail_msg("%s: %.6g s, not %.6g", what, have, want);
}

/* Small buffers take the shortest latency, large ones all of the bandwidth. */
static void sizes_choose_the_protocol(void **state)
{
    struct nccl_group node = { .generation = NCCL_AMPERE, .ranks = 8, .nodes = 1, .ring = 240e9, .between = 240e9 };
    struct nccl_group nodes = { .generation = NCCL_AMPERE, .ranks = 16, .nodes = 2, .ring = 160e9, .between = 160e9 };
    struct nccl_group far = { .generation = NCCL_AMPERE, .ranks = 128, .nodes = 128, .ring = 20e9, .between = 20e9 };

    (void)state;
    near(nccl_seconds(&node, AG, 1), 6.6e-6 + 7 * 0.6e-6, 1e-4, "a ring by LL");
    near(nccl_seconds(&node, AR, 1), 6.6e-6 + 14 * 0.6e-6, 1e-4, "an all-reduce in a node by LL");
    near(nccl_seconds(&node, AG, 100e9), 8.4e-6 + 7 * 3.4e-6 + 7.0 / 8 * 100e9 / 240e9, 1e-6, "a large gather");
    near(nccl_seconds(&node, AR, 100e9), 8.4e-6 + 14 * 3.4e-6 + 7.0 / 4 * 100e9 / 240e9, 1e-6, "a large all-reduce");
    near(nccl_seconds(&nodes, AR, 1), 6.8e-6 + 2 * (7 * 0.6e-6 + 5e-6), 1e-4, "a tree over 2 nodes by LL");
    near(nccl_seconds(&nodes, AG, 100e9), 8.4e-6 + 14 * 3.4e-6 + 14e-6 + 15.0 / 16 * 100e9 / 160e9, 1e-6, "a gather over 2 nodes");
    near(nccl_seconds(&far, AR, 1), 6.8e-6 + 14 * 5e-6, 1e-4, "a tree over 128 nodes by LL");
    near(nccl_seconds(&far, AG, 1), 6.6e-6 + 127 * 5e-6, 1e-4, "a ring over 128 nodes by LL, one rank each");
    far.further = 127 * 6e-6;
    near(nccl_seconds(&far, AR, 1), 6.8e-6 + 14 * (5e-6 + 6e-6), 1e-4, "a slower network");
}

/* More bytes never take less time. */
static void seconds_rise_with_bytes(void **state)
{
    static const int groups[][2] = { { 2, 1 }, { 4, 1 }, { 8, 1 }, { 16, 2 }, { 4, 4 }, { 64, 8 }, { 512, 512 } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        for (int nvls = 0; nvls < 2; nvls++)
            for (int op = 0; op < 2; op++) {
                struct nccl_group g = { NCCL_HOPPER, groups[i][0], groups[i][1], 320e9, 350e9, 0, nvls ? 308e9 : 0 };
                double before = 0;

                for (double bytes = 1; bytes < 1e11; bytes *= 1.1) {
                    double seconds = nccl_seconds(&g, op ? AG : AR, bytes);

                    if (seconds < before) fail_msg("%d ranks: %g bytes take %g s, fewer %g", g.ranks, bytes, seconds, before);
                    before = seconds;
                }
            }
}

/* All-reduces of the 8 processors of a DGX H100 (NVIDIA, dgxc-benchmarking, sample output of nccl-tests; in place). */
static void eight_h100_take_as_long_as_measured(void **state)
{
    static const double measured[][2] = {
        { 1024, 16.17e-6 },     { 32768, 18.68e-6 },    { 262144, 19.5e-6 },     { 1048576, 26.93e-6 },     { 4194304, 53.82e-6 },
        { 8388608, 82.03e-6 },  { 33554432, 198.9e-6 }, { 134217728, 586.0e-6 }, { 268435456, 1113.4e-6 }, { 1073741824, 4016.4e-6 },
        { 8589934592, 0.031328 },
    };
    struct mesh_position all = { .size = 8, .stride = 1 };
    struct cluster c;
    double sum = 0;

    (void)state;
    OK(cluster_read("h100-dgx", &c));
    struct seconds_group g = seconds_group_of(&c, &all);
    for (size_t i = 0; i < COUNT_OF(measured); i++) {
        double seconds = seconds_of_collective(&c, &g, AR, measured[i][0]);

        near(seconds, measured[i][1], 0.25, "an all-reduce of 8 H100");
        sum += fabs(seconds / measured[i][1] - 1);
    }
    assert_true(sum / COUNT_OF(measured) < 0.1);
}

/* A machine without the section, and a collective that the model does not have, keep the ring's steps. */
static void others_keep_their_steps(void **state)
{
    struct mesh_position all = { .size = 8, .stride = 1 };
    struct cluster c;

    (void)state;
    OK(cluster_read("h100-dgx", &c));
    struct cluster other = c;
    other.nccl = NCCL_NONE;
    struct seconds_group g = seconds_group_of(&c, &all);
    near(seconds_of_collective(&other, &g, AG, 1e9), 7 * 1.9e-6 + 7.0 / 8 * 1e9 / 360e9, 1e-9, "steps of a ring");
    assert_true(seconds_of_collective(&c, &g, LS_COLLECTIVE_ALL_TO_ALL, 1e9) ==
                seconds_of_collective(&other, &g, LS_COLLECTIVE_ALL_TO_ALL, 1e9));
    assert_true(seconds_of_collective(&c, &g, AG, 1e9) != seconds_of_collective(&other, &g, AG, 1e9));
}

/* If every parameter of a block is gathered separately, the latency of each gather counts, and the bytes of all together. */
static void parameters_are_gathered_one_by_one(void **state)
{
    struct mesh_position all = { .size = 1536, .stride = 1 };
    struct tape_entry x = { .kind = TAPE_START, .op = AG, .wait = LS_AXIS_DP, .inside = true, .moved.fixed = 3.6e9 };
    struct tape_place place = { .samples = 1, .ranks = 1 };
    struct cluster c;

    (void)state;
    OK(cluster_read("a100-80-selene", &c));
    struct seconds_group g = seconds_group_of(&c, &all);
    double once = seconds_of_collective(&c, &g, AG, 3.6e9), latency = seconds_of_collective(&c, &g, AG, 1);
    near(tape_exchange_seconds(&c, &x, &place, &g), once, 1e-12, "a block at once");
    c.gathers = 12;
    near(tape_exchange_seconds(&c, &x, &place, &g), once + 11 * latency, 1e-12, "twelve parameters");
    x.inside = false;
    near(tape_exchange_seconds(&c, &x, &place, &g), once, 1e-12, "outside the blocks");
    x.inside = true;
    x.op = LS_COLLECTIVE_REDUCE_SCATTER;
    near(tape_exchange_seconds(&c, &x, &place, &g), seconds_of_collective(&c, &g, x.op, 3.6e9), 1e-12, "gradients, in buckets");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_choose_the_protocol),
        cmocka_unit_test(seconds_rise_with_bytes),
        cmocka_unit_test(eight_h100_take_as_long_as_measured),
        cmocka_unit_test(others_keep_their_steps),
        cmocka_unit_test(parameters_are_gathered_one_by_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
