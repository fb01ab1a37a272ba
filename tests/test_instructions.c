/* test_instructions.c - a compiled program read instruction by instruction: complete, in order, with the
 * same facts as its costs and its text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "helper_distributed.h"

static void open_as(const struct layout *l, int rank, int n, ls_comm **comm, struct training *s)
{
    assert_int_equal(ls_comm_open("plan:", rank, n, comm), LS_OK);
    if (distributed_open(l, *comm, true, s) < 0)
        fail_msg("%s", ls_errmsg());
}

/* The layouts that the tests look at: plain; ZeRO 3 and tp; selective recomputation with a weight segment. */
static struct layout layout_at(int k)
{
    struct layout l = { .net = NET_LLAMA, .optimizer = LS_ADAMW, .accumulate = 1, .data = LS_DATA_PARALLEL_DEFAULTS };

    if (k == 1) {
        l.meshed = true;
        l.mesh = (ls_mesh_shape){ .pp = 1, .dp = 2, .replicate = 1, .cp = 1, .ep = 1, .tp = 2 };
        l.data.zero = 3;
    }
    if (k == 2) {
        l.recompute = LS_RECOMPUTE_SELECTIVE;
        l.split = true;
        l.data.zero = 1;
    }
    return l;
}

enum { LAYOUTS = 3, RANKS = 4 };

/* Every start has one wait with its id, after it (or, for a gather of the update, in the next run), over the same group; counted bytes are
 * those of ls_program_comm_bytes. */
static void check_exchanges(const ls_program *p)
{
    size_t starts[64] = { 0 }, calls;
    int n = ls_program_instructions(p);

    for (int k = 0; k < n; k++) {
        ls_instruction i, w;
        int waits = 0;

        ls_program_instruction(p, k, &i);
        assert_int_equal(i.exchange == LS_EXCHANGE_NONE, i.ranks == 0);
        if (i.exchange != LS_EXCHANGE_START)
            continue;
        starts[i.collective]++;
        assert_true(i.ranks > 1 && i.elements > 0 && strcmp(i.kernel, "plan") == 0);
        for (int j = 1; j < n && !waits; j++) {
            if (k + j >= n && i.segment != LS_OPTIMIZER_STEP)
                break;
            ls_program_instruction(p, (k + j) % n, &w);
            waits += w.exchange == LS_EXCHANGE_WAIT && w.id == i.id;
        }
        assert_true(waits && w.collective == i.collective && w.ranks == i.ranks && w.axis == i.axis && w.elements == i.elements);
        assert_true(strncmp(w.op, "wait ", 5) == 0 && strcmp(w.op + 5, i.op) == 0);
    }
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        ls_program_comm_bytes(p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS | LS_OPTIMIZER_STEP | LS_LAST, op, &calls);
        assert_int_equal(starts[op], calls);
    }
}

static void check_operand(const ls_operand *o)
{
    size_t count = 1;

    if (!o->value.id) {
        assert_true(!o->name && !o->bytes);
        return;
    }
    for (int d = 0; d < o->ndim; d++)
        count *= o->size[d];
    assert_int_equal(o->bytes, count * ls_dtype_bytes(o->dtype));
    assert_true(o->name && o->place);
}

/* Segments in order, operands with their sizes, and the FLOPs of ls_program_cost. */
static void check_list(const ls_program *p)
{
    double flops[LS_OPTIMIZER_STEP + 1] = { 0 }, again = 0;
    ls_cost cost = ls_program_cost(p);
    int segment = 0;

    for (int k = 0; k < ls_program_instructions(p); k++) {
        ls_instruction i;

        ls_program_instruction(p, k, &i);
        assert_true(i.segment >= segment && i.op && i.block && i.kernel);
        segment = i.segment;
        for (int o = 0; o < i.nin; o++)
            check_operand(&i.in[o]);
        for (int o = 0; o < i.nout; o++)
            check_operand(&i.out[o]);
        *(i.phase == LS_PHASE_RECOMPUTE ? &again : &flops[i.segment]) += i.flops;
    }
    /* what a kernel recomputes inside is in its FLOPs, and counted as recomputation in the cost */
    assert_true(fabs(flops[LS_FORWARD] - cost.forward_flops) < 1e-9 * cost.forward_flops);
    assert_true(fabs(flops[LS_FORWARD] + flops[LS_BACKWARD] + flops[LS_WEIGHTS] + again - cost.model_flops - cost.recompute_flops)
                < 1e-9 * cost.model_flops);
}

/* As many lines, with the same ops in the same order. */
static void check_text(const ls_program *p)
{
    char *text, number[16];
    int k = 0;

    assert_int_equal(ls_program_text(p, &text), LS_OK);
    char *rest = text;
    for (char *row; (row = strsep(&rest, "\n"));) {
        ls_instruction i;

        snprintf(number, sizeof number, "%5d  ", k);
        if (strncmp(row, number, strlen(number)) != 0)
            continue;
        ls_program_instruction(p, k++, &i);
        if (!strstr(row, i.op))
            fail_msg("line %d of the text is '%s', the instruction is %s", k - 1, row, i.op);
    }
    assert_int_equal(k, ls_program_instructions(p));
    ls_free(text);
}

static void test_layouts(void **state)
{
    (void)state;
    for (int k = 0; k < LAYOUTS; k++) {
        struct layout l = layout_at(k);
        struct training s;
        ls_comm *comm;

        open_as(&l, 1, RANKS, &comm, &s);
        assert_true(ls_program_instructions(s.program) > 0);
        check_list(s.program);
        check_exchanges(s.program);
        check_text(s.program);
        distributed_close(&s);
        ls_comm_close(&comm);
    }
}

/* A column-parallel weight is sharded over tp along its outputs, its input is replicated with a partial gradient, and its
 * output is sharded. */
static void test_placements(void **state)
{
    struct layout l = layout_at(1);
    struct training s;
    ls_comm *comm;
    int found = 0;

    (void)state;
    l.data.zero = 0;  /* with 3 it reads a view of what was gathered */
    open_as(&l, 1, RANKS, &comm, &s);
    for (int k = 0; k < ls_program_instructions(s.program); k++) {
        ls_instruction i;

        ls_program_instruction(s.program, k, &i);
        if (i.segment != LS_FORWARD || strcmp(i.op, "linear") != 0 || !strstr(i.in[1].name, "gate_proj.weight"))
            continue;
        found++;
        assert_true(i.in[1].place[LS_AXIS_TP].kind == LS_SHARD && i.in[1].place[LS_AXIS_TP].dim == 0);
        assert_true(i.in[0].place[LS_AXIS_TP].kind == LS_REPLICATE && i.in[0].place[LS_AXIS_TP].partial_gradient);
        assert_true(i.out[0].place[LS_AXIS_TP].kind == LS_SHARD && i.out[0].size[i.out[0].ndim - 1] == i.in[1].size[0]);
        assert_int_equal(i.phase, LS_PHASE_FORWARD);
        assert_true(strncmp(i.block, "model.layers.", 13) == 0);
    }
    assert_int_equal(found, (int)distributed_model(NET_LLAMA)->layers);
    distributed_close(&s);
    ls_comm_close(&comm);
}

static void uncompiled_program_has_no_instructions(void **state)
{
    ls_program *p;
    ls_store *s;

    (void)state;
    assert_int_equal(ls_store_new(NULL, &s), LS_OK);
    assert_int_equal(ls_program_new(s, &p), LS_OK);
    ls_output(p, "y", ls_silu(p, ls_input(p, "x", LS_F32, 1, (size_t[]){ 4 })));
    assert_int_equal(ls_program_instructions(p), 0);
    assert_int_equal(ls_program_compile(p, NULL), LS_OK);
    assert_true(ls_program_instructions(p) > 0);
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts), cmocka_unit_test(test_placements), cmocka_unit_test(uncompiled_program_has_no_instructions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
