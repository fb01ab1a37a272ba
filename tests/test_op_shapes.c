/* test_op_shapes.c - the shape rules of the ops: shapes that match, shapes that do not, and the messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "base/base.h"
#include "kernels/op_shapes.h"

#define SIZES(...) (int)COUNT_OF(((size_t[]){ __VA_ARGS__ })), { __VA_ARGS__ }

struct operand { ls_dtype type; int ndim; size_t size[LS_DIMS]; };

enum { ABSENT = VIEW_ABSENT };

/* why NULL: the shapes match. */
struct shape_case { enum op op; int nin, nout; struct operand in[6], out[3]; const char *why; };

static const struct shape_case op_shapes_cases[] = {
    { OP_LINEAR, 3, 1, { { LS_F32, SIZES(2, 3, 5) }, { LS_F32, SIZES(7, 5) }, { LS_F32, SIZES(7) } }, { { LS_F32, SIZES(6, 7) } }, NULL },
    { OP_LINEAR, 3, 1, { { LS_F32, SIZES(2, 3, 5) }, { LS_F32, SIZES(7, 5) }, { .ndim = ABSENT } }, { { LS_F32, SIZES(2, 3, 7) } }, NULL },
    { OP_LINEAR, 2, 1, { { LS_F32, SIZES(5) }, { LS_F32, SIZES(7, 5) } }, { { LS_F32, SIZES(7) } }, NULL },
    { OP_LINEAR, 2, 1, { { LS_F32, SIZES(2, 3, 5) }, { LS_F32, SIZES(7, 6) } }, { { LS_F32, SIZES(6, 7) } },
      "w[N,K] is f32 [7,6]: K was 5 before, but is 6 here" },
    { OP_LINEAR, 2, 1, { { LS_F32, SIZES(2, 3, 5) }, { LS_F32, SIZES(7, 5) } }, { { LS_F32, SIZES(5, 7) } },
      "y[R,N] is f32 [5,7]: R was 6 before, but is 5 here" },
    { OP_LINEAR, 1, 1, { { LS_F32, SIZES(2, 5) } }, { { LS_F32, SIZES(2, 7) } }, "w[N,K] is missing" },
    { OP_LINEAR, 2, 2, { { LS_F32, SIZES(6, 5) }, { LS_F32, SIZES(7, 5) } }, { { LS_F32, SIZES(6, 7) }, { LS_F32, SIZES(6) } },
      "output 1 is not in the op's shapes" },
    { OP_MATMUL, 2, 1, { { LS_F32, SIZES(2, 3, 4, 5) }, { LS_F32, SIZES(2, 3, 5, 6) } }, { { LS_F32, SIZES(2, 3, 4, 6) } }, NULL },
    { OP_MATMUL, 2, 1, { { LS_F32, SIZES(2, 3, 4, 5) }, { LS_F32, SIZES(6, 5, 6) } }, { { LS_F32, SIZES(2, 3, 4, 6) } },
      "b[..,K,N] is f32 [6,5,6]: .. differs from the shape before" },
    { OP_ADD, 2, 1, { { LS_F32, SIZES(2, 3) }, { LS_F32, SIZES(3) } }, { { LS_F32, SIZES(2, 3) } }, NULL },
    { OP_ADD, 2, 1, { { LS_F32, SIZES(2, 3) }, { LS_F32, SIZES(1) } }, { { LS_F32, SIZES(2, 3) } }, NULL },
    { OP_ADD, 2, 1, { { LS_F32, SIZES(2, 3) }, { LS_F32, SIZES(2) } }, { { LS_F32, SIZES(2, 3) } },
      "b[~] is f32 [2]: neither the shape before, nor a suffix of it, nor one element" },
    { OP_MUL, 2, 1, { { LS_F32, SIZES(2, 3) }, { LS_F32, SIZES(3, 2) } }, { { LS_F32, SIZES(2, 3) } },
      "b[*] is f32 [3,2]: it differs from the shape before" },
    { OP_EMBEDDING, 2, 1, { { LS_F32, SIZES(2, 3) }, { LS_F32, SIZES(9, 4) } }, { { LS_F32, SIZES(2, 3, 4) } },
      "ids[R]i32 is f32 [2,3]: i32 expected" },
    { OP_BATCH_NORM_DW, 1, 2, { { LS_F64, SIZES(6) } }, { { LS_F32, SIZES(3) }, { LS_F32, SIZES(3) } }, NULL },
    { OP_BATCH_NORM_DW, 1, 2, { { LS_F64, SIZES(7) } }, { { LS_F32, SIZES(3) }, { LS_F32, SIZES(3) } },
      "own[2C]f64 is f64 [7]: 7 is not of the form 2C" },
    { OP_DROPOUT, 2, 1, { { LS_F32, SIZES(4) }, { LS_I64, SIZES(2) } }, { { LS_F32, SIZES(4) } }, NULL },
    { OP_DROPOUT, 2, 1, { { LS_F32, SIZES(4) }, { LS_I64, SIZES(3) } }, { { LS_F32, SIZES(4) } },
      "step[1|2]i64 is i64 [3]: expected 1, got 3" },
    { OP_ROUTE_LOAD, 1, 1, { { LS_I32, SIZES(4, 5, 2) } }, { { LS_F32, SIZES(4, 8) } }, NULL },
    { OP_ROUTE_LOAD, 1, 1, { { LS_I32, SIZES(4, 5, 2) } }, { { LS_F32, SIZES(1, 8) } }, NULL },
    { OP_ROUTE_LOAD, 1, 1, { { LS_I32, SIZES(4, 5, 2) } }, { { LS_F32, SIZES(2, 8) } }, "load[B|1,E] is f32 [2,8]: expected B|1, got 2" },
    { OP_XENT_COMBINE, 3, 2, { { LS_F32, SIZES(4, 6, 3) }, { LS_I32, SIZES(2, 3) }, { LS_F32, SIZES(1) } },
      { { LS_F32, SIZES(1) }, { LS_F32, SIZES(6) } }, NULL },
    { OP_CONCAT, 3, 1, { { LS_F32, SIZES(4) }, { LS_F32, SIZES(2) }, { LS_F32, SIZES(1) } }, { { LS_F32, SIZES(7) } }, NULL },
    { OP_FILL, 0, 1, { { .ndim = 0 } }, { { LS_F32, SIZES(7) } }, NULL },
};

static void view_set(struct view *v, const struct operand *o)
{
    if (o->ndim == ABSENT)
        v->ndim = VIEW_ABSENT;
    else
        *v = view_of(NULL, o->type, o->ndim, o->size);
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(op_shapes_cases); k++) {
        const struct shape_case *s = &op_shapes_cases[k];
        struct call c = { .op = s->op, .nin = s->nin, .nout = s->nout };
        char why[256] = "";

        for (int i = 0; i < s->nin; i++)
            view_set(&c.in[i], &s->in[i]);
        for (int i = 0; i < s->nout; i++)
            view_set(&c.out[i], &s->out[i]);
        bool fits = op_shapes_fit(&c, why, sizeof why);
        if (fits != !s->why || (s->why && strcmp(why, s->why) != 0))
            fail_msg("case %zu, %s: %s", k, op_name(s->op), fits ? "fits" : why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cases) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
