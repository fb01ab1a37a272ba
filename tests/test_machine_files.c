/* test_machine_files.c - machine files are read or refused by line, and the seconds of collectives are those of their formulas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "helper_check.h"
#include "plan/seconds.h"

static const char good[] = "machine:\n"
                           "  name: a machine\n"
                           "processor:\n"
                           "  name: a processor\n"
                           "  bf16: 100e12\n"
                           "  memory: 80 GiB\n"
                           "  bandwidth: 1e12\n"
                           "efficiency:\n"
                           "  launch: 0\n"
                           "  matmul: 0.5\n"
                           "  host: 0\n"
                           "  attention: 0.25\n"
                           "  memory_bound: 0.5\n"
                           "  link_share: 1\n"
                           "node:\n"
                           "  processors: 8\n"
                           "  bandwidth: 300e9\n"
                           "  latency: 1e-6\n"
                           "network:\n"
                           "  bandwidth: 25e9\n"
                           "  latency: 4e-6\n";

static ls_status read_text(const char *text, struct cluster *c)
{
    char path[] = "/tmp/machine-XXXXXX.yaml";
    int fd = mkstemps(path, 5);
    FILE *f = fdopen(fd, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    ls_status st = cluster_read(path, c);
    remove(path);
    return st;
}

static void a_file_is_read(void **state)
{
    struct cluster c;

    (void)state;
    OK(read_text(good, &c));
    assert_string_equal(c.name, "a machine");
    assert_string_equal(c.processor, "a processor");
    assert_true(c.flops[LS_BF16] == 100e12 && c.flops[LS_F32] == 0 && c.memory == 80.0 * (1 << 30) && c.reserved == 0);
    assert_true(c.processors == 8 && c.node.bandwidth == 300e9 && c.network.latency == 4e-6 && c.attention == 0.25);
}

/* `good` with one line replaced, and the expected message. */
static void wrong_files_are_refused(void **state)
{
    static const struct {
        const char *line, *by, *says;
    } wrong[] = {
        { "  bf16: 100e12\n", "  bf17: 100e12\n", "unknown key 'processor.bf17'; did you mean 'processor.bf16'?" },
        { "  bf16: 100e12\n", "", "no peak is given" },
        { "  bandwidth: 1e12\n", "  bandwidth: fast\n", ":7: processor.bandwidth: 'fast' is not a number" },
        { "  bandwidth: 1e12\n", "  bandwidth: -1\n", "-1 is impossible" },
        { "  bandwidth: 1e12\n", "", "'processor.bandwidth' is missing" },
        { "  matmul: 0.5\n", "  matmul: 1.5\n", "efficiency.matmul: 1.5 is impossible; use 0.01 to 1" },
        { "  processors: 8\n", "  processors: 2.5\n", "2.5 is not a whole number" },
        { "  memory: 80 GiB\n", "  memory: 80 GiB\n  reserved: 90 GiB\n", "processor.reserved is not below" },
        { "  latency: 1e-6\n", "  latency: 1e-6\n  latency: 2e-6\n", "occurs twice" },
        { "  name: a machine\n", "  name: ''\n", "machine.name: use 1 to" },
        { "processor:\n", "price:\n  hour: 2\nprocessor:\n", ":4: price.hour needs 'price.currency'" },
        { "processor:\n", "spine:\n  pod: 4\nprocessor:\n", "spine.pod needs 'spine.bandwidth'" },
        { "processor:\n", "spine:\n  pod: 4\n  bandwidth: 26e9\n  latency: 0\nprocessor:\n", "spine.bandwidth is more than" },
        { "processor:\n", "offload:\n  bandwidth: 50e9\nprocessor:\n", ":4: offload.bandwidth needs 'offload.memory'" },
        { "processor:\n", "offload:\n  bandwidth: 5e9\n  memory: 1 GiB\n  read: 1e9\nprocessor:\n", "offload.read needs 'offload.write'" },
        { "processor:\n", "offload:\n  read: 1e9\n  write: 1e9\nprocessor:\n", "offload.write needs 'offload.bandwidth'" },
        { "processor:\n", "nccl:\n  generation: kepler\nprocessor:\n", ":4: nccl.generation: 'kepler' does not exist; use volta, ampere" },
        { "processor:\n", "nccl:\n  nvls: 300e9\nprocessor:\n", ":4: nccl.nvls needs 'nccl.generation'" },
        { "processor:\n", "nccl:\n  channels: 16\nprocessor:\n", ":4: nccl.channels needs 'processor.units'" },
        { "processor:\n", "nccl:\n  channels: 16\nprocessor:\n  units: 16\n", "nccl.channels: 16 of a processor's 16 units leave none" },
        { "processor:\n", "failures:\n  host: 1e-5\nprocessor:\n", "failures.host needs 'failures.restart'" },
        { "processor:\n", "failures:\n  host: -1\nprocessor:\n", "failures.host: -1 is impossible" },
        { "processor:\n", "kernels:\n  adam-f32: 1e6:1e-3 1e6:1e-3\nprocessor:\n", "size 1e6 is not above the one before it" },
        { "  latency: 1e-6\n", "  latency: 1e-6\n  serial: 2\n", "2 is impossible" },
        { "  latency: 4e-6\n", "  latency: 4e-6\n  all_reduce: 2:fast\n", ":22: network.all_reduce: '2:fast' is not a pair of" },
        { "  latency: 4e-6\n", "  latency: 4e-6\n  all_to_all: 2:1e9\n", "unknown key 'network.all_to_all'" },
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(wrong); k++) {
        const char *at = strstr(good, wrong[k].line);
        char text[2048];
        struct cluster c;

        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, wrong[k].by, at + strlen(wrong[k].line));
        assert_true(read_text(text, &c) < 0);
        if (!strstr(ls_errmsg(), wrong[k].says)) fail_msg("'%s' lacks '%s'", ls_errmsg(), wrong[k].says);
    }
}

/* Fitted constants belong to a processor, whatever machine it is in: "A100", "H100". */
static bool is_fitted_alike(const struct cluster *a, const struct cluster *b)
{
    if (strncmp(a->processor, b->processor, 4) != 0) return true;
    return a->matmul == b->matmul && a->attention == b->attention && a->query == b->query && a->attention_2 == b->attention_2 &&
           a->memory_bound == b->memory_bound && a->launch == b->launch && a->host == b->host && a->eager == b->eager &&
           a->units == b->units && a->link_share == b->link_share;
}

static void machines_that_are_built_in(void **state)
{
    struct cluster c, other;
    int n = 0;

    (void)state;
    for (; cluster_builtin(n); n++) {
        if (cluster_read(cluster_builtin(n), &c) < 0) fail_msg("%s", ls_errmsg());
        for (int k = 0; k < n; k++) {
            OK(cluster_read(cluster_builtin(k), &other));
            if (!is_fitted_alike(&c, &other)) fail_msg("%s and %s: other efficiencies", cluster_builtin(k), cluster_builtin(n));
        }
    }
    assert_true(n >= 1);
    assert_int_equal(cluster_read("no-such-machine", &c), LS_EINVAL);
    for (int k = 0; k < n; k++) assert_non_null(strstr(ls_errmsg(), cluster_builtin(k)));
    assert_true(cluster_read("./no-such-machine.yaml", &c) < 0);
}

/* ---- collectives ---- */

static double collective(const struct cluster *c, int ranks, int stride, ls_collective op, double bytes)
{
    struct mesh_position at = { .size = ranks, .stride = stride };
    struct seconds_group g = seconds_group_of(c, &at);

    return seconds_of_collective(c, &g, op, bytes);
}

#define NEARLY(have, want)                                                                         \
    do {                                                                                           \
        double have_ = (have), want_ = (want);                                                     \
        if (!(fabs(have_ - want_) <= 1e-9 * want_)) fail_msg("%s: %.12g, not %.12g", #have, have_, want_); \
    } while (0)

static void collectives_take_their_steps(void **state)
{
    struct cluster c;
    double B = 1e9;

    (void)state;
    OK(read_text(good, &c));
    assert_true(collective(&c, 1, 1, LS_COLLECTIVE_ALL_REDUCE, B) == 0);
    /* within a node: 7 steps, 7/8 of the bytes over its links */
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_GATHER, B), 7e-6 + 7.0 / 8 * B / 300e9);
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_REDUCE, B), 2 * (7e-6 + 7.0 / 8 * B / 300e9));
    /* one rank in each of 4 nodes: over one adapter */
    NEARLY(collective(&c, 4, 8, LS_COLLECTIVE_REDUCE_SCATTER, B), 3 * 4e-6 + 3.0 / 4 * B / 25e9);
    /* 2 nodes of 8: over 8 adapters, 1 step between nodes and 14 within */
    NEARLY(collective(&c, 16, 1, LS_COLLECTIVE_ALL_GATHER, B), 4e-6 + 14e-6 + 15.0 / 16 * B / 200e9);
    /* every second rank: 4 in a node */
    NEARLY(collective(&c, 8, 2, LS_COLLECTIVE_ALL_GATHER, B), 4e-6 + 6e-6 + 7.0 / 8 * B / 100e9);
    NEARLY(collective(&c, 2, 8, LS_COLLECTIVE_SEND, B), 4e-6 + B / 25e9);
    NEARLY(collective(&c, 16, 1, LS_COLLECTIVE_SEND, B), 4e-6 + B / 25e9);
    /* 8/16 of the bytes leave the node, by the rank's own adapter; within one node 7/8 leave the rank */
    NEARLY(collective(&c, 16, 1, LS_COLLECTIVE_ALL_TO_ALL, B), 4e-6 + 8.0 / 16 * B / 25e9);
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_TO_ALL, B), 1e-6 + 7.0 / 8 * B / 300e9);
    /* 12 ranks in 2 nodes: 6 adapters */
    NEARLY(collective(&c, 12, 1, LS_COLLECTIVE_ALL_GATHER, B), 4e-6 + 10e-6 + 11.0 / 12 * B / 150e9);
    NEARLY(collective(&c, 2, 4, LS_COLLECTIVE_SEND, B), 1e-6 + B / 300e9);
}

/* Pods of 2 nodes, between which a processor has a fifth of its adapter. */
static void pods_share_their_links(void **state)
{
    struct cluster c;
    double B = 1e9;

    (void)state;
    OK(read_text(good, &c));
    c.pod = 2;
    c.spine = (struct cluster_link){ 5e9, 20e-6 };
    /* within a pod as without */
    NEARLY(collective(&c, 2, 8, LS_COLLECTIVE_REDUCE_SCATTER, B), 4e-6 + 1.0 / 2 * B / 25e9);
    /* 2 ranks in each of 2 pods: of 4 rings that leave a pod's 16 processors this one has 2 processors' shares */
    NEARLY(collective(&c, 4, 8, LS_COLLECTIVE_REDUCE_SCATTER, B), 2 * 4e-6 + 20e-6 + 3.0 / 4 * B / 10e9);
    /* one rank in each of 4 pods */
    NEARLY(collective(&c, 4, 16, LS_COLLECTIVE_ALL_GATHER, B), 3 * 20e-6 + 3.0 / 4 * B / 5e9);
    /* all 32: 16 processors' shares are 80e9, less than 8 adapters and less than the node's links */
    NEARLY(collective(&c, 32, 1, LS_COLLECTIVE_ALL_GATHER, B), 2 * 4e-6 + 20e-6 + 28e-6 + 31.0 / 32 * B / 80e9);
    NEARLY(collective(&c, 2, 16, LS_COLLECTIVE_SEND, B), 20e-6 + B / 5e9);
}

static void curves_are_followed(void **state)
{
    struct cluster c;
    char text[2048];

    (void)state;
    snprintf(text, sizeof text, "%scollectives:\n  all_reduce-8: 1e3:1e-5 1e5:1e-4 1e6:2e-3\n", good);
    OK(read_text(text, &c));
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_REDUCE, 10), 1e-5);
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_REDUCE, 1e4), sqrt(1e-5 * 1e-4));
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_REDUCE, 1e6), 2e-3);
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_REDUCE, 1e8), 0.2);
    /* other ranks, other ops, other nodes: by the formulas */
    NEARLY(collective(&c, 4, 1, LS_COLLECTIVE_ALL_REDUCE, 1e9), 2 * (3e-6 + 3.0 / 4 * 1e9 / 300e9));
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_GATHER, 1e9), 7e-6 + 7.0 / 8 * 1e9 / 300e9);
    NEARLY(collective(&c, 8, 8, LS_COLLECTIVE_ALL_REDUCE, 1e9), 2 * (7 * 4e-6 + 7.0 / 8 * 1e9 / 25e9));
}

/* The bandwidth of a ring over all processors of so many nodes is shared with the rings of the other groups. */
static void networks_are_as_measured(void **state)
{
    struct cluster c;
    char text[2048];
    double B = 1e9;

    (void)state;
    snprintf(text, sizeof text, "%s  all_gather: 2:160e9 8:40e9\n", good);
    OK(read_text(text, &c));
    NEARLY(collective(&c, 16, 1, LS_COLLECTIVE_ALL_GATHER, B), 4e-6 + 14e-6 + 15.0 / 16 * B / 160e9);
    NEARLY(collective(&c, 32, 1, LS_COLLECTIVE_REDUCE_SCATTER, B), 3 * 4e-6 + 29e-6 - 1e-6 + 31.0 / 32 * B / 80e9);
    NEARLY(collective(&c, 8, 8, LS_COLLECTIVE_ALL_GATHER, B), 7 * 4e-6 + 7.0 / 8 * B / 5e9); /* one of 8 rings */
    NEARLY(collective(&c, 128, 1, LS_COLLECTIVE_ALL_GATHER, B), 15 * 4e-6 + 112e-6 + 127.0 / 128 * B / 40e9);
    /* within a node, and what was not measured */
    NEARLY(collective(&c, 8, 1, LS_COLLECTIVE_ALL_GATHER, B), 7e-6 + 7.0 / 8 * B / 300e9);
    NEARLY(collective(&c, 4, 8, LS_COLLECTIVE_ALL_REDUCE, B), 2 * (3 * 4e-6 + 3.0 / 4 * B / 25e9));
    /* the measured bandwidth of all-reduces applies to gathers, too, but not to messages */
    snprintf(text, sizeof text, "%s  all_reduce: 8:40e9\n", good);
    OK(read_text(text, &c));
    NEARLY(collective(&c, 8, 8, LS_COLLECTIVE_ALL_REDUCE, B), 2 * (7 * 4e-6 + 7.0 / 8 * B / 5e9));
    NEARLY(collective(&c, 8, 8, LS_COLLECTIVE_ALL_GATHER, B), 7 * 4e-6 + 7.0 / 8 * B / 5e9);
    NEARLY(collective(&c, 2, 8, LS_COLLECTIVE_SEND, B), 4e-6 + B / 25e9);
}

static void matmuls_take_whole_tiles(void **state)
{
    struct seconds_work w = { SECONDS_MATMUL, 0, 1e-3, 128 * 10, 256 * 10 };
    struct cluster c;

    (void)state;
    OK(read_text(good, &c));
    NEARLY(seconds_of_work(&c, &w, 1), 1e-3);
    c.units = 100;
    NEARLY(seconds_of_work(&c, &w, 1), 1e-3); /* 10 x 10 tiles of 128 x 256 */
    w.rows = 128 * 5;
    NEARLY(seconds_of_work(&c, &w, 1), 1.05e-3); /* 50 tiles would leave half of the units idle: 100 of 128 x 128 */
    w.rows = 1;
    w.columns = 64 * 100;
    NEARLY(seconds_of_work(&c, &w, 1), 1.2e-3 * 128); /* 100 of 128 x 64, of which a row counts */
    w.columns = 128 * 101;
    NEARLY(seconds_of_work(&c, &w, 1), 1e-3 * 1.1 * 100 * 64 * 256 / w.columns); /* 101 of 64 x 128 would take two rounds */
    w.rows = 0;
    NEARLY(seconds_of_work(&c, &w, 1), 1e-3); /* not a plain matmul */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(machines_that_are_built_in),
        cmocka_unit_test(collectives_take_their_steps),
        cmocka_unit_test(pods_share_their_links),
        cmocka_unit_test(curves_are_followed),
        cmocka_unit_test(networks_are_as_measured),
        cmocka_unit_test(matmuls_take_whole_tiles),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
