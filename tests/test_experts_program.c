/* test_experts_program.c - the exchanges of routed rows in compiled steps: which instructions are between their start and their wait, and
 * the rows for which there is room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_plan.h"
#include "lockstep/comm.h"
#include "train/run/step.h"

/* The step of one rank, as `plan` compiles it. */
struct planned { struct plan_setup setup; struct ranks ranks; struct step step; };

/* rank -1: the one with the largest plan. */
static void planned_open(struct planned *p, const char *model, const char *layout, int rank)
{
    struct plan_bytes largest = { .rank = rank };

    plan_setup_open_small(&p->setup, model, layout);
    if (rank < 0) OK(plan_of_largest(&p->setup.job, &p->setup.layout, &largest, NULL));
    OK(ranks_plan(&p->setup.layout, largest.rank, &p->ranks));
    OK(step_open(p->setup.job.model, &p->setup.layout, &p->setup.job.step, &p->ranks, true, &p->step));
}

static void planned_close(struct planned *p)
{
    step_close(&p->step);
    ranks_close(&p->ranks);
    options_close(&p->setup.options);
}

static bool is_exchange(const ls_instruction *i, ls_exchange end)
{
    return i->exchange == end && i->collective == LS_COLLECTIVE_ALL_TO_ALL;
}

/* ---- what overlaps an exchange ---- */

/* The weight of the experts among these operands; else "". */
static const char *expert_weight(const ls_operand *o, int n)
{
    static const char *const weights[] = { "shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj",
                                           "experts.gate_proj", "experts.up_proj", "experts.down_proj" };

    for (int k = 0; k < n; k++)
        for (size_t w = 0; w < COUNT_OF(weights); w++)
            if (o[k].name && strstr(o[k].name, weights[w])) return weights[w];
    return "";
}

enum { EXCHANGES = 8, LINE = 400 };
struct between { int segment; char line[LINE]; };

/* For each exchange of rows the instructions between its start and its wait as "op:weight op:weight"; views compute nothing. */
static int between_of(const ls_program *p, struct between out[EXCHANGES])
{
    struct between *open = NULL;
    int n = 0, id = 0;

    for (int k = 0; k < ls_program_instructions(p); k++) {
        ls_instruction i;

        ls_program_instruction(p, k, &i);
        if (is_exchange(&i, LS_EXCHANGE_START)) {
            assert_null(open);
            assert_in_range(n, 0, EXCHANGES - 1);
            open = &out[n++];
            *open = (struct between){ .segment = i.segment };
            id = i.id;
        } else if (is_exchange(&i, LS_EXCHANGE_WAIT)) {
            assert_int_equal(i.id, id);
            open = NULL;
        } else if (open && strcmp(i.op, "view") != 0) {
            const char *read = expert_weight(i.in, i.nin);
            size_t at = strlen(open->line);

            snprintf(open->line + at, LINE - at, "%s%s:%s", at ? " " : "", i.op, *read ? read : expert_weight(i.out, i.nout));
        }
    }
    return n;
}

/* Without a line anything may stand there. Each of the two layers has two exchanges in the forward, and two in the backward. */
static void check_between(const char *layout, const char *const line[4])
{
    struct between found[EXCHANGES];
    struct planned p;

    planned_open(&p, "model.preset=qwen3-moe-tiny model.layers=2 data.seq_len=20", layout, -1);
    assert_int_equal(between_of(step_program(&p.step, 0), found), EXCHANGES);
    for (int k = 0; k < EXCHANGES; k++) {
        const char *expected = line[k / 4 * 2 + k % 2];

        assert_int_equal(found[k].segment, k < 4 ? LS_FORWARD : LS_BACKWARD);
        if (expected && strcmp(found[k].line, expected) != 0)
            fail_msg("%s: exchange %d: between are '%s'; expected '%s'", layout, k, found[k].line, expected);
    }
    planned_close(&p);
}

/* In the forward the two halves of the shared expert; in the backward their gradients and the weight gradients of the experts. */
static void exchanges_overlap_experts(void **state)
{
#define EXPERTS_DW                                                                                                                  \
    "grouped_linear_dw:experts.down_proj grouped_linear_dw:experts.up_proj grouped_linear_dw:experts.gate_proj"
    static const char *const shared[] = {
        "linear:shared_experts.gate_proj linear:shared_experts.up_proj swiglu:",
        "linear:shared_experts.down_proj",
        "linear_dx:shared_experts.down_proj",
        "linear_dw:shared_experts.down_proj " EXPERTS_DW " swiglu_grad: linear_dx:shared_experts.up_proj linear_dw:shared_experts.up_proj "
        "linear_dx:shared_experts.gate_proj add: linear_dw:shared_experts.gate_proj",
    };

    (void)state;
    check_between("parallel.dp=2 parallel.ep=2 model.shared_ffn=32", shared);
    check_between("parallel.dp=2 parallel.ep=2 model.shared_ffn=0", (const char *const[]){ NULL, NULL, NULL, EXPERTS_DW });
    check_between("parallel.dp=2 parallel.ep=2 model.shared_ffn=32 parallel.overlap=false", (const char *const[]){ "", "", "", "" });
}

/* ---- rows ---- */

/* Rows that the first exchange of the forward has room for. */
static size_t rows_of(const ls_program *p)
{
    ls_instruction i = { 0 };
    int k = 0;

    do ls_program_instruction(p, k++, &i);
    while (!is_exchange(&i, LS_EXCHANGE_START));
    return i.out[0].size[0];
}

/* 16 experts, 2 of them a token, 2 samples of 20 tokens. With a capacity there is room for what the rank's experts take, with
 * parallel.receive_factor for a multiple of an even load. */
static void rank_has_room_for_its_experts_rows(void **state)
{
    static const struct { size_t rows; const char *layout; int rank; } rooms[] = {
        { 320, "parallel.dp=4 parallel.ep=4", -1 },                          /* 4 ranks, 40 tokens, 2 experts each */
        { 80, "parallel.dp=4 parallel.ep=4 parallel.receive_factor=1", -1 }, /* 4 * 40 * 2 rows for 16 experts, of which 4 are here */
        { 128, "parallel.dp=4 parallel.ep=4 parallel.receive_factor=1.6", -1 },
        { 320, "parallel.dp=4 parallel.ep=4 parallel.receive_factor=100", -1 },
        { 160, "parallel.dp=4 parallel.ep=4 model.capacity=2", -1 },               /* 4 experts take 5 tokens of each of 8 samples */
        { 40, "parallel.cp=4 parallel.ep=4 model.capacity=2", -1 },                /* whose shards are on the 4 ranks: 2 samples */
        { 80, "parallel.dp=2 parallel.cp=2 parallel.ep=4 model.capacity=2", -1 },  /* 4 samples */
        { 32, "parallel.cp=4 parallel.ep=4 model.capacity=2 parallel.receive_factor=1.6", -1 },
        { 16, "parallel.dp=2 parallel.cp=3 parallel.ep=2 model.capacity=0.3", 0 }, /* 8 experts take a token of each of 2 samples */
        { 32, "parallel.dp=2 parallel.cp=3 parallel.ep=2 model.capacity=0.3", 2 }, /* rank 3 has other samples */
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(rooms); k++) {
        struct planned p;

        planned_open(&p, "model.preset=mixtral-tiny model.layers=2 model.experts=16 data.seq_len=20 train.accumulate=1", rooms[k].layout,
                     rooms[k].rank);
        size_t rows = rows_of(step_program(&p.step, 0));
        if (rows != rooms[k].rows) fail_msg("%s: room for %zu rows, expected %zu", rooms[k].layout, rows, rooms[k].rows);
        planned_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_overlap_experts),
        cmocka_unit_test(rank_has_room_for_its_experts_rows),
    };
    threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
