/* test_multi_launch.c - which neighboring instructions are one launch: hand-made lists. test_cuda_updates.sh runs programs with them.
 *
 * A list is a word an instruction: its kernel, then the letters of what it writes, reads (after '<') and has as scratch (after '*').
 *   m  a kernel that takes many calls    M  another one of these    s  one that does not     v  a view, of nothing
 *   L  m in the last micro-batch alone   +  m, whose output is added to (sum_squares)
 * '!' in a word: it waits for another stream; '?': another stream waits for its end.
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
#include "kernels/op_shapes.h"
#include "runtime/multi_launch.h"

enum { LETTER = 8, LETTERS = 26 * LETTER };

static double multi_launch_memory[LETTERS];

static void no_run(const struct call *const *c, int n) { (void)c, (void)n; }

static const struct kernel many = { .name = "many", .device = "cuda", .run_many = no_run },
                           other = { .name = "other", .device = "cuda", .run_many = no_run }, one = { .name = "one", .device = "cuda" };

static struct view letter_view(char letter)
{
    return view_of(&multi_launch_memory[(letter - 'a') * LETTER], LS_F64, 1, (size_t[]){ LETTER });
}

/* c: zeroed; becomes its call. */
static struct instruction instruction_of(const char *word, struct call *c)
{
    struct instruction i = { .op = *word == '+' ? OP_SUM_SQUARES : OP_ADAM, .kernel = &many };
    char where = 'o';

    if (*word == 'v') return (struct instruction){ .op = OP_VIEW };
    i.kernel = *word == 'M' ? &other : *word == 's' ? &one : &many;
    i.when = *word == 'L' ? LS_WHEN_LAST : LS_WHEN_ALWAYS;
    c->op = (enum op)i.op;
    for (word++; *word; word++)
        if (*word == '<' || *word == '*')
            where = *word;
        else if (*word == '!')
            i.waits = 1;
        else if (*word == '?')
            i.waited_for = true;
        else if (where == 'o')
            c->out[c->nout++] = letter_view(*word);
        else if (where == '<')
            c->in[c->nin++] = letter_view(*word);
        else
            c->scratch = letter_view(*word).data, i.scratch_bytes = LETTER * sizeof *multi_launch_memory;
    return i;
}

/* want: the lengths of the launches of two or more, each where it begins: "0:3 4:2". */
static void expect_launches(const char *text, const char *want)
{
    char copy[2000], got[200] = "", *rest = copy;
    size_t room = strlen(text) / 2 + 1; /* a word is a letter and a space, or more */
    struct instruction_run *run = calloc(room, sizeof *run);
    struct call *calls = calloc(room, sizeof *calls);
    ls_program p = { .run.instruction = run };
    int most, at = 0;

    assert_true(run && calls);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        int n = p.list[SEG_OPTIMIZER].n;
        struct instruction i = instruction_of(word, &calls[n]);

        run[n].call = instruction_is_view(&i) ? NULL : &calls[n];
        assert_int_equal(list_push(&p.list[SEG_OPTIMIZER], &i), LS_OK);
    }
    assert_int_equal(multi_find(&p, &most), LS_OK);
    for (int n = 0; n < p.list[SEG_OPTIMIZER].n; n++)
        if (run[n].multi > 1) at += snprintf(got + at, sizeof got - (size_t)at, "%s%d:%d", at ? " " : "", n, run[n].multi);
    if (strcmp(got, want) != 0) fail_msg("'%s': launches '%s'; expected '%s'", text, got, want);
    assert_true((most > 1) == (*want != 0));
    free(calls);
    free(run);
    list_free(&p.list[SEG_OPTIMIZER]);
}

static void test_neighbors(void **state)
{
    (void)state;
    expect_launches("", "");
    expect_launches("ma", "");
    expect_launches("ma mb mc", "0:3");
    expect_launches("ma Mb Mc md", "1:2"); /* instructions of one kernel */
    expect_launches("sa sb", "");          /* which takes many calls */
    expect_launches("ma sb mc md", "2:2");
    expect_launches("v ma v v mb v", "1:4");    /* views launch nothing */
    expect_launches("ma La Lb mc md", "1:2 3:2"); /* in the same micro-batches */
}

static void test_streams(void **state)
{
    (void)state;
    expect_launches("ma! mb mc", "0:3"); /* the first may wait for another stream */
    expect_launches("ma mb! mc", "1:2");
    expect_launches("ma mb mc?", "0:3"); /* the last may be waited for */
    expect_launches("ma mb? mc md", "0:2 2:2");
    expect_launches("ma? mb!", "");
}

static void test_bytes(void **state)
{
    (void)state;
    expect_launches("ma<x mb<x mc<x", "0:3"); /* what all read */
    expect_launches("ma<x mb<a mc", "1:2");   /* one reads what another writes */
    expect_launches("ma<x mx mc", "1:2");
    expect_launches("ma<x mb ma", "0:2");
    expect_launches("ma mb mc<a md", "0:2 2:2");
    expect_launches("ma*z mb*z mc*y", "1:2"); /* two have one scratch */
    expect_launches("ma*z mb<z", "");
    expect_launches("mab<ab mcd<cd", "0:2"); /* in place */
}

static void test_sums(void **state)
{
    (void)state;
    assert_true(op_adds(OP_SUM_SQUARES, 0) && op_adds(OP_LAMB_MOMENTS, 2) && op_adds(OP_LARS_NORMS, 0) && op_adds(OP_LAYER_NORM_DW, 1));
    assert_false(op_adds(OP_ADAM, 0) || op_adds(OP_ADAM, 3) || op_adds(OP_LAMB_MOMENTS, 0) || op_adds(OP_SUM_SQUARES, 1));
    expect_launches("+s<a +s<b +s<c", "0:3"); /* neighbors share a sum */
    expect_launches("+s<a +s<b +t<c +t<d", "0:4");
    expect_launches("+s<a +t<b +s<c", "0:2"); /* others do not */
    expect_launches("+s<a +t<s", "");
    expect_launches("ms<a ms<b", "");
}

static void test_reach(void **state)
{
    struct instruction view = { .op = OP_VIEW };
    ls_program p = { 0 };

    (void)state;
    for (int k = 0; k < 600; k++) {
        struct instruction i = { .op = OP_ADAM, .kernel = &many, .waits = k == 3 };

        assert_int_equal(list_push(&p.list[SEG_OPTIMIZER], k == 5 ? &view : &i), LS_OK);
    }
    assert_int_equal(multi_reach(&p, SEG_OPTIMIZER, 0), 256); /* whatever they wait for */
    assert_int_equal(multi_reach(&p, SEG_OPTIMIZER, 500), 600);
    assert_int_equal(multi_reach(&p, SEG_OPTIMIZER, 5), 6);
    list_free(&p.list[SEG_OPTIMIZER]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neighbors), cmocka_unit_test(test_streams), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_sums),       cmocka_unit_test(test_reach),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
