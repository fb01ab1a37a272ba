/* test_partition_faults.c - injected faults of sharded programs: the placement check names them, and without it they change results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/threads.h"
#include "helper_faults.h"
#include "helper_forked.h"
#include "helper_partition.h"
#include "helper_partition_plan.h"

struct injected { enum fault fault; ls_mesh_shape shape; int sp; ls_cp_method method; double dropout; size_t kv; const char *says[2]; };

/* says: the message of the check; NULL: only the numbers show the fault, not the placements. kv 0: GPT-2. */
static const struct injected faults[] = {
    { FAULT_NO_DGRAD_REDUCE, { 1, 1, 1, 1, 2, 1 }, 0, LS_CP_RING, 0, 0,
      { "h.0: linear over tp: 'h.0/layer_norm'", "all-reduce-backward is missing" } },
    { FAULT_NO_REDUCE, { 1, 1, 1, 1, 2, 1 }, 0, LS_CP_RING, 0, 0, { "identity over tp: 'embedding.part'", "is a partial sum" } },
    { FAULT_NO_PARTIAL, { 1, 1, 1, 1, 2, 1 }, 1, LS_CP_RING, 0, 0, { "embedding over tp: 'wpe.weight'", "not marked" } },
    { FAULT_NO_PARTIAL, { 1, 1, 1, 1, 2, 1 }, 1, LS_CP_RING, 0, 4,
      { "rms_norm over tp: 'model.layers.0.input_layernorm.weight'", "not marked" } },
    { FAULT_DOUBLE_REDUCE, { 1, 1, 1, 1, 2, 1 }, 0, LS_CP_RING, 0, 0, { "all_reduce over tp: 'reduce'", "has been reduced already" } },
    { FAULT_DOUBLE_REDUCE, { 1, 1, 1, 1, 2, 1 }, 1, LS_CP_RING, 0, 0,
      { "reduce_scatter over tp: 'reduce'", "has been reduced already" } },
    { FAULT_WRONG_GROUP, { 1, 2, 1, 1, 2, 1 }, 0, LS_CP_RING, 0, 0,
      { "all_reduce over tp: 'embedding.part'", "ranks of another axis" } },
    { FAULT_MASK, { 1, 1, 1, 1, 2, 1 }, 1, LS_CP_RING, 0.3, 0, { NULL, NULL } },
    { FAULT_MASK, { 1, 1, 1, 2, 1, 1 }, 0, LS_CP_RING, 0.3, 0, { NULL, NULL } },
    { FAULT_LOSS_TWICE, { 1, 1, 1, 2, 1, 1 }, 0, LS_CP_RING, 0, 0, { NULL, NULL } },
    { FAULT_RING_DKV, { 1, 1, 1, 3, 1, 1 }, 0, LS_CP_RING, 0, 2, { NULL, NULL } },
    { FAULT_LOSS_MEAN, { 1, 1, 1, 2, 1, 1 }, 0, LS_CP_ALL_TO_ALL, 0, 0, { NULL, NULL } },
};

static struct partition_case case_of_fault(const struct injected *b)
{
    ls_model m = b->kv ? partition_llama(4, b->kv, 20, 37, 0) : partition_gpt2(4, 24, 37, b->dropout);
    struct partition_case c = partition_case_of(m, b->shape.tp, b->shape.cp, b->sp, b->method);

    c.shape = b->shape;
    return c;
}

static void injected_faults_are_named(void **state)
{
    (void)state;
    if (!faults_built()) skip();
    for (size_t k = 0; k < COUNT_OF(faults); k++) {
        struct partition_case c = case_of_fault(&faults[k]);

        faults_set(faults[k].fault, true);
        if (faults[k].says[0]) {
            partition_refused(c, faults[k].says[0]);
            partition_refused(c, faults[k].says[1]);
        } else {
            struct partitioned s;
            struct partition_plan m;

            partition_plan_open(&c, 0, &m, &s);
            partition_close(&s);
            partition_plan_close(&m);
        }
        faults_set(FAULT_NONE, true);
    }
}

static void run_fault(ls_comm *comm, void *ctx)
{
    const struct injected *b = ctx;
    struct partition_case c = case_of_fault(b);

    threads_set(1);
    faults_set(b->fault, false);
    const char *wrong = partition_differs(&c, comm, 1e-5);
    if (!wrong)
        ranks_fail("'%s' changes nothing", fault_name(b->fault));
    if (!strstr(wrong, "gradient of") && !strstr(wrong, "loss "))
        ranks_fail("'%s': %s", fault_name(b->fault), wrong);
}

/* Without the check they run, and the numbers are wrong. */
static void injected_faults_change_results(void **state)
{
    (void)state;
    if (!faults_built()) skip();
    for (size_t k = 0; k < COUNT_OF(faults); k++)
        forked_run(faults[k].shape.dp * faults[k].shape.cp * faults[k].shape.tp, run_fault, (void *)&faults[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(injected_faults_change_results),
        cmocka_unit_test(injected_faults_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
