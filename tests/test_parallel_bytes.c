/* test_parallel_bytes.c - memory and communication of data parallelism: bytes held and bytes sent, by formula, as planned, and as measured.
 *
 * N: elements of the model, K: ranks. Held by all ranks together, with Adam in f32 (per element 4 bytes of weight, 4 of gradient,
 * 8 of state): zero 0 16 N K; zero 1 8 N K + 8 N; zero 2 4 N K + 12 N; zero 3 16 N. Sent by all ranks together in a step:
 * zero 0 to 2: 2 (K-1) 4 N; zero 3: (K-1) times the bytes that are gathered and reduced.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_forked.h"
#include "helper_distributed.h"
#include "runtime/store.h"

static ls_data_parallel_options small(int zero)
{
    ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;

    o.zero = zero;
    o.bucket_bytes = 9000;
    o.first_bucket_bytes = 3000;
    return o;
}

/* ---- planned, all ranks together ---- */

struct total { size_t parameters, gradients, optimizer, offload, communication, sent[LS_COLLECTIVES], elements; };

static size_t sent(const ls_program *p, ls_collective op)
{
    return ls_program_comm_bytes(p, LS_FORWARD | LS_BACKWARD | LS_LAST | LS_OPTIMIZER_STEP, op, NULL);
}

static struct total plan_all(const struct layout *l, int n)
{
    struct total t = { 0 };

    for (int r = 0; r < n; r++) {
        struct training s;
        ls_comm *comm;

        OK(ls_comm_open("plan:", r, n, &comm));
        OK(distributed_open(l, comm, true, &s));
        ls_cost c = ls_program_cost(s.program);
        t.parameters += c.parameters;
        t.gradients += c.gradients;
        t.optimizer += c.optimizer;
        t.offload += c.offload;
        t.communication = c.communication > t.communication ? c.communication : t.communication;
        t.elements = ls_store_elements(s.store);
        for (int op = 0; op < LS_COLLECTIVES; op++)
            t.sent[op] += sent(s.program, (ls_collective)op);
        distributed_close(&s);
        ls_comm_close(&comm);
    }
    return t;
}

static void bytes_held_equal_formula(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int n = 2; n <= 8; n += 1 + n / 4) {
            struct layout l = { .net = NET_GPT2, .optimizer = LS_ADAMW, .data = small(zero) };
            struct total t = plan_all(&l, n);
            size_t N = t.elements, K = (size_t)n;

            assert_int_equal(t.parameters, 4 * N * (zero < 3 ? K : 1));
            assert_int_equal(t.gradients, 4 * N * (zero < 2 ? K : 1));
            assert_int_equal(t.optimizer, 8 * N * (zero < 1 ? K : 1));
            if (zero < 2)
                assert_int_equal(t.communication, 0);
        }
}

/* bf16 weights, f32 gradients, master, two moments: 2 + 4 + 4 + 8 bytes per element. */
static void bytes_held_in_mixed_precision(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        struct layout l = { .net = NET_LLAMA, .optimizer = LS_ADAMW, .type = LS_BF16, .data = small(zero) };
        struct total t = plan_all(&l, 4);
        size_t N = t.elements;

        assert_int_equal(t.parameters, 2 * N * (zero < 3 ? 4 : 1));
        assert_int_equal(t.gradients, 4 * N * (zero < 2 ? 4 : 1));
        assert_int_equal(t.optimizer, 12 * N * (zero < 1 ? 4 : 1));
        l.data.offload = LS_OFFLOAD_CPU;
        t = plan_all(&l, 4);
        assert_int_equal(t.optimizer, 0);
        assert_int_equal(t.offload, 12 * N * (zero < 1 ? 4 : 1));
    }
}

static void bytes_sent_equal_formula(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++)
        for (int zero = 0; zero < 4; zero++) {
            struct layout l = { .net = NET_MLP, .optimizer = LS_ADAMW, .data = small(zero) };
            struct total t = plan_all(&l, n);
            size_t N = t.elements, others = (size_t)n - 1, norm = 2 * others * 8;
            size_t again = N - (5 * 17 + 17); /* the first layer has no input gradient: backward does not read its weight */

            assert_int_equal(t.sent[LS_COLLECTIVE_ALL_REDUCE], zero == 0 ? 2 * others * 4 * N : norm);
            assert_int_equal(t.sent[LS_COLLECTIVE_REDUCE_SCATTER], zero == 0 ? 0 : others * 4 * N);
            assert_int_equal(t.sent[LS_COLLECTIVE_ALL_GATHER], zero == 0 ? 0 : others * 4 * (zero == 3 ? N + again : N));
            l.data.reshard_after_forward = 0;
            t = plan_all(&l, n);
            assert_int_equal(t.sent[LS_COLLECTIVE_ALL_GATHER], zero == 0 ? 0 : others * 4 * N);
            l.data.reduce = LS_BF16;
            t = plan_all(&l, n);
            assert_int_equal(t.sent[LS_COLLECTIVE_REDUCE_SCATTER], zero == 0 ? 0 : others * 2 * N);
            assert_int_equal(t.sent[LS_COLLECTIVE_ALL_REDUCE], zero == 0 ? 2 * others * 2 * N : norm);
        }
}

/* Shards over two ranks, two replicas: half of the traffic stays within a pair; across pairs, each rank sends its shard. */
static void bytes_sent_by_replicas(void **state)
{
    (void)state;
    for (int zero = 1; zero < 4; zero++) {
        struct layout l = { .net = NET_MLP, .optimizer = LS_ADAMW, .data = small(zero) };

        l.data.replicate = 2;
        struct total t = plan_all(&l, 4);
        assert_int_equal(t.sent[LS_COLLECTIVE_REDUCE_SCATTER], 2 * 4 * t.elements);          /* in two pairs */
        assert_int_equal(t.sent[LS_COLLECTIVE_ALL_REDUCE], 2 * 2 * 4 * t.elements / 2 * 1 + 2 * 2 * 8); /* halves, twice; norms */
        assert_int_equal(t.parameters, 4 * t.elements * (zero < 3 ? 4 : 2));
        assert_int_equal(t.optimizer, 8 * t.elements * 2);
    }
}

/* Micro-batches before the last send nothing if gradients are unsharded, and a reduce-scatter each if they are sharded. */
static void bytes_sent_before_the_last_micro_batch(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++)
        for (int whole = 0; whole <= (zero >= 2); whole++) {
            struct layout l = { .net = NET_MLP, .optimizer = LS_ADAMW, .accumulate = 2, .data = small(zero) };
            struct training s;
            ls_comm *comm;
            size_t calls;

            l.data.unsharded_accumulation = whole;
            OK(ls_comm_open("plan:", 0, 2, &comm));
            OK(distributed_open(&l, comm, true, &s));
            size_t scattered = ls_program_comm_bytes(s.program, LS_FORWARD | LS_BACKWARD, LS_COLLECTIVE_REDUCE_SCATTER, &calls);
            size_t reduced = ls_program_comm_bytes(s.program, LS_FORWARD | LS_BACKWARD, LS_COLLECTIVE_ALL_REDUCE, NULL);
            assert_int_equal(reduced, 0);
            assert_true((scattered > 0) == (zero >= 2 && !whole));
            assert_true(ls_program_comm_bytes(s.program, LS_BACKWARD | LS_LAST,
                                              zero ? LS_COLLECTIVE_REDUCE_SCATTER : LS_COLLECTIVE_ALL_REDUCE, NULL) > 0);
            distributed_close(&s);
            ls_comm_close(&comm);
        }
}

/* ---- measured ---- */

static void check_measured(ls_comm *comm, void *ctx)
{
    (void)ctx;
    threads_set(1);
    for (int i = 0; i < 16; i++) {
        struct layout l = { .net = i & 4 ? NET_LLAMA_TIED : NET_GPT2, .optimizer = LS_LAMB, .data = small(i & 3) };
        uint64_t before[LS_COLLECTIVES];
        struct mem_stats m;
        struct training s;
        double loss;

        l.data.offload = i & 8 ? LS_OFFLOAD_CPU : LS_OFFLOAD_NONE;
        l.data.reduce = i & 8 ? LS_BF16 : LS_F32;
        mem_reset_peak();
        RANKS_TRY(distributed_open(&l, comm, false, &s));
        for (int op = 0; op < LS_COLLECTIVES; op++)
            before[op] = ls_comm_counters(comm, (ls_collective)op).bytes;
        for (int k = 0; k < 2; k++)
            RANKS_TRY(distributed_step(&s, &l, k, &loss));
        RANKS_TRY(ls_store_wait(s.store));
        for (int op = 0; op < LS_COLLECTIVES; op++) {
            uint64_t own = op == LS_COLLECTIVE_ALL_REDUCE ? 2 * ls_comm_bytes_of(comm, LS_COLLECTIVE_ALL_REDUCE, 1, NULL, LS_F64) : 0;

            RANKS_CHECK(ls_comm_counters(comm, (ls_collective)op).bytes - before[op] == 2 * sent(s.program, (ls_collective)op) + own);
        }
        ls_cost c = ls_program_cost(s.program);
        mem_read(&m);
        RANKS_CHECK(m.peak[MEM_PARAMETERS] == c.parameters);
        RANKS_CHECK(m.peak[MEM_GRADIENTS] == c.gradients);
        RANKS_CHECK(m.peak[MEM_OPTIMIZER] == c.optimizer);
        RANKS_CHECK(m.peak[MEM_OFFLOAD] == c.offload);
        RANKS_CHECK(m.peak[MEM_COMMUNICATION] == c.communication);
        RANKS_CHECK(m.peak[MEM_ACTIVATIONS] == c.activations);
        distributed_close(&s);
        mem_read(&m);
        RANKS_CHECK(m.now[MEM_PARAMETERS] + m.now[MEM_GRADIENTS] + m.now[MEM_OPTIMIZER] + m.now[MEM_OFFLOAD] + m.now[MEM_COMMUNICATION] ==
                    0);
    }
}

static void measured_bytes_equal_plan(void **state)
{
    (void)state;
    forked_run(2, check_measured, NULL);
    forked_run(3, check_measured, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_held_equal_formula),              cmocka_unit_test(bytes_held_in_mixed_precision),
        cmocka_unit_test(bytes_sent_equal_formula),              cmocka_unit_test(bytes_sent_by_replicas),
        cmocka_unit_test(bytes_sent_before_the_last_micro_batch), cmocka_unit_test(measured_bytes_equal_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
