/* test_program_slots.c - several micro-batches in flight: in any order of their segments, gradients and outputs have the bits of running
 * one after the other, and memory is what the cost predicts. Programs of parts of a model: a chain of two
 * compared with the complete model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "helper_check.h"
#include "lockstep/ops.h"
#include "ir/program.h"

enum { ROWS = 6, WIDTH = 20, BLOCKS = 4, MICRO = 4, GRADIENTS = 3 * WIDTH * WIDTH * BLOCKS };

static ls_value program_slots_layer(ls_program *p, const char *name, int k, ls_value x, size_t in, size_t out)
{
    char w[64];

    snprintf(w, sizeof w, "%d.%s", k, name);
    return ls_linear(p, x, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ out, in }), LS_NONE);
}

static ls_value block(ls_program *p, int k, ls_value h)
{
    char name[16];

    snprintf(name, sizeof name, "b%d", k);
    ls_block_begin(p, name);
    h = ls_add(p, h, program_slots_layer(p, "down", k, ls_gelu_tanh(p, program_slots_layer(p, "up", k, h, WIDTH, WIDTH)), WIDTH, WIDTH));
    ls_block_end(p);
    return h;
}

static ls_value input(ls_program *p, const char *name) { return ls_input(p, name, LS_F32, 2, (size_t[]){ ROWS, WIDTH }); }

static ls_store *new_store(void)
{
    ls_store *s;

    OK(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s));
    return s;
}

/* Blocks [begin, end) of the chain; x before the first, a loss against y after the last. */
static ls_program *new_program(ls_store *s, int begin, int end, const ls_compile_options *o)
{
    ls_program *p;

    OK(ls_program_new(s, &p));
    ls_value h = input(p, begin ? "stage.in" : "x");
    p->results.stage.in = begin ? h : LS_NONE;
    for (int k = begin; k < end; k++)
        h = block(p, k, h);
    if (end == BLOCKS) {
        ls_backward(p, ls_output(p, "loss", ls_mse(p, h, input(p, "y"))));
    } else {
        p->results.stage.out = ls_output(p, "stage.out", h);
        p->builder.backward = true;
    }
    OK(ls_program_compile(p, o));
    return p;
}

static void program_feed(ls_program *p, int micro)
{
    double x[ROWS * WIDTH], y[ROWS * WIDTH];

    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = sin(i * 1.7 + micro);
        y[i] = cos(i * 0.9 * (micro + 1));
    }
    if (ls_program_has(p, "x"))
        OK(ls_program_write(p, "x", x, LS_F64, ROWS * WIDTH));
    if (ls_program_has(p, "y"))
        OK(ls_program_write(p, "y", y, LS_F64, ROWS * WIDTH));
}

static size_t read_gradients(ls_store *s, float *out)
{
    size_t at = 0;

    for (size_t i = 0; i < ls_store_count(s); i++, at += WIDTH * WIDTH)
        OK(ls_store_read(s, i, "gradient", out + at, LS_F32, WIDTH * WIDTH));
    return at;
}

/* ---- slots ---- */

struct result { float gradient[GRADIENTS], loss[MICRO]; size_t n; };

/* order: "F0 F1 B0 B1 ..", each of MICRO micro-batches; micro-batch m is in slot m % slots. */
static void play(const char *order, int slots, const ls_compile_options *options, struct result *out)
{
    ls_compile_options o = *options;
    ls_store *s = new_store();
    struct mem_stats before, after;

    o.slots = slots;
    ls_program *p = new_program(s, 0, BLOCKS, &o);
    ls_store_zero_grad(s);
    mem_read(&before);
    for (const char *c = order; *c; c += c[2] ? 3 : 2) {
        int micro = c[1] - '0';

        OK(ls_program_select(p, slots ? micro % slots : 0));
        if (c[0] == 'F')
            program_feed(p, micro);
        OK(ls_program_run(p, c[0] == 'F' ? LS_FORWARD : c[0] == 'B' ? LS_BACKWARD : LS_WEIGHTS));
        if (c[0] == 'F')
            OK(ls_program_read(p, "loss", &out->loss[micro], LS_F32, 1));
    }
    mem_read(&after);
    assert_int_equal(after.calls, before.calls);
    for (int m = MICRO - MAX(slots, 1); m < MICRO; m++) {  /* outputs stay in their slots */
        float loss;

        OK(ls_program_select(p, slots ? m % slots : 0));
        OK(ls_program_read(p, "loss", &loss, LS_F32, 1));
        assert_true(loss == out->loss[m]);
    }
    out->n = read_gradients(s, out->gradient);
    ls_program_release(&p);
    ls_store_release(&s);
}

static void same(const struct result *a, const struct result *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->gradient, b->gradient, a->n * sizeof(float));
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
}

static void interleaved_slots_change_no_bit(void **state)
{
    static const struct { int slots; const char *order; } cases[] = {
        { 1, "F0 B0 F1 B1 F2 B2 F3 B3" }, { 2, "F0 F1 B0 B1 F2 F3 B2 B3" }, { 2, "F0 F1 B0 F2 B1 F3 B2 B3" },
        { 4, "F0 F1 F2 F3 B0 B1 B2 B3" },
        { 3, "F0 F1 F2 B0 F3 B1 B2 B3" },
    };
    static const ls_recompute kinds[] = { LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL };
    static struct result serial, turns;

    (void)state;
    for (size_t r = 0; r < COUNT_OF(kinds); r++) {
        ls_compile_options o = LS_COMPILE_DEFAULTS;

        o.recompute = kinds[r];
        play("F0 B0 F1 B1 F2 B2 F3 B3", 0, &o, &serial);
        for (size_t k = 0; k < COUNT_OF(cases); k++) {
            play(cases[k].order, cases[k].slots, &o, &turns);
            same(&serial, &turns);
        }
    }
}

static void weight_gradients_are_deferred(void **state)
{
    static const struct { int slots; const char *order; } cases[] = {
        { 1, "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3" }, { 2, "F0 F1 B0 B1 W0 F2 W1 F3 B2 W2 B3 W3" },
        { 4, "F0 F1 F2 F3 B0 B1 B2 B3 W0 W1 W2 W3" }, { 3, "F0 F1 B0 F2 B1 W0 F3 B2 W1 W2 B3 W3" },
    };
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    static struct result serial, turns;

    (void)state;
    play("F0 B0 F1 B1 F2 B2 F3 B3", 0, &o, &serial);
    o.split_backward = 1;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        play(cases[k].order, cases[k].slots, &o, &turns);
        same(&serial, &turns);
    }
}

static void slot_bytes_equal_formula(void **state)
{
    size_t per_slot = 0, shared = 0;

    (void)state;
    for (int slots = 1; slots <= 4; slots++) {
        ls_compile_options o = LS_COMPILE_DEFAULTS;
        ls_store *s = new_store();
        struct mem_stats before, after;

        o.slots = slots;
        mem_read(&before);
        ls_program *p = new_program(s, 0, BLOCKS, &o);
        mem_read(&after);
        ls_cost cost = ls_program_cost(p);
        if (slots == 1) {
            per_slot = p->results.arena_bytes[ARENA_SLOT];
            shared = p->results.arena_bytes[ARENA_ACTIVATIONS];
            /* x, y, loss; for each block its input, and the input and output of GELU: all that backward needs, and no more */
            assert_in_range(per_slot, (2 + 3 * BLOCKS) * ROWS * WIDTH * sizeof(float),
                            (2 + 3 * BLOCKS) * (ROWS * WIDTH * sizeof(float) + 64) + 64);
        }
        assert_int_equal(cost.activations, (size_t)slots * per_slot + shared);
        assert_int_equal(after.now[MEM_ACTIVATIONS] - before.now[MEM_ACTIVATIONS], cost.activations);
        assert_true(cost.live_peak <= cost.activations);
        ls_program_release(&p);
        ls_store_release(&s);
    }
}

static void each_slot_keeps_its_order(void **state)
{
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    ls_store *s = new_store();

    (void)state;
    o.slots = 2;
    o.split_backward = 1;
    ls_program *p = new_program(s, 0, BLOCKS, &o);
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_select(p, 1));
    REFUSED(LS_EINVAL, "new forward", ls_program_run(p, LS_BACKWARD));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_run(p, LS_BACKWARD));
    REFUSED(LS_EINVAL, "new forward", ls_program_run(p, LS_BACKWARD));
    OK(ls_program_select(p, 0));
    REFUSED(LS_EINVAL, "new backward", ls_program_run(p, LS_WEIGHTS));
    OK(ls_program_run(p, LS_BACKWARD));
    OK(ls_program_run(p, LS_WEIGHTS));
    REFUSED(LS_EINVAL, "new backward", ls_program_run(p, LS_WEIGHTS));
    OK(ls_program_select(p, 1));
    OK(ls_program_run(p, LS_WEIGHTS));
    REFUSED(LS_EINVAL, "slot 2 does not exist; the program has 2", ls_program_select(p, 2));
    REFUSED(LS_EINVAL, "slot -1 does not exist; the program has 2", ls_program_select(p, -1));
    assert_true(ls_program_has(p, "x") && ls_program_has(p, "loss"));
    assert_false(ls_program_has(p, "stage.dout") || ls_program_has(p, "nothing"));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* ---- a part of a model ---- */

static void carry(ls_program *from, const char *name, ls_program *to, const char *as)
{
    float data[ROWS * WIDTH];

    OK(ls_program_read(from, name, data, LS_F32, ROWS * WIDTH));
    OK(ls_program_write(to, as, data, LS_F32, ROWS * WIDTH));
}

static void chained_stages_equal_the_model(void **state)
{
    static const ls_compile_options plain = LS_COMPILE_DEFAULTS;
    static struct result whole, chain;

    (void)state;
    for (int cut = 1; cut < BLOCKS; cut++)
        for (int slots = 0; slots < 3; slots += 2) {
            ls_store *s = new_store(), *t = new_store();
            ls_compile_options o = plain;

            o.slots = slots;
            ls_program *first = new_program(s, 0, cut, &o);
            ls_program *second = new_program(t, cut, BLOCKS, &o);
            play("F0 B0 F1 B1 F2 B2 F3 B3", 0, &plain, &whole);
            for (int micro = 0; micro < MICRO; micro++) {
                OK(ls_program_select(first, slots ? micro % 2 : 0));
                OK(ls_program_select(second, slots ? micro % 2 : 0));
                program_feed(first, micro);
                program_feed(second, micro);
                OK(ls_program_run(first, LS_FORWARD));
                carry(first, "stage.out", second, "stage.in");
                OK(ls_program_run(second, LS_FORWARD | LS_BACKWARD));
                OK(ls_program_read(second, "loss", &chain.loss[micro], LS_F32, 1));
                carry(second, "stage.din", first, "stage.dout");
                OK(ls_program_run(first, LS_BACKWARD));
            }
            size_t n = read_gradients(s, chain.gradient);
            chain.n = n + read_gradients(t, chain.gradient + n);
            same(&whole, &chain);
            assert_true(ls_program_has(second, "stage.din") && !ls_program_has(first, "stage.din") && !ls_program_has(first, "y"));
            ls_program_release(&first);
            ls_program_release(&second);
            ls_store_release(&s);
            ls_store_release(&t);
        }
}

static void frozen_stage_passes_gradients(void **state)
{
    ls_store *s = new_store();
    ls_program *p;
    float data[ROWS * WIDTH], got[ROWS * WIDTH];

    (void)state;
    OK(ls_program_new(s, &p));
    p->results.stage.in = input(p, "stage.in");
    ls_value h = ls_scale(p, p->results.stage.in, 3);
    p->results.stage.out = ls_output(p, "stage.out", h);
    p->builder.backward = true;
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < ROWS * WIDTH; i++)
        data[i] = (float)i;
    OK(ls_program_write(p, "stage.dout", data, LS_F32, ROWS * WIDTH));
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    OK(ls_program_read(p, "stage.din", got, LS_F32, ROWS * WIDTH));
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(got[i] == 3 * data[i]);
    ls_program_release(&p);
    OK(ls_program_new(s, &p));
    p->results.stage.out = ls_output(p, "stage.out", ls_scale(p, input(p, "x"), 3));
    p->builder.backward = true;
    REFUSED(LS_EINVAL, "stage depends on no trainable parameter", ls_program_compile(p, NULL));
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved_slots_change_no_bit),
        cmocka_unit_test(weight_gradients_are_deferred),
        cmocka_unit_test(slot_bytes_equal_formula),
        cmocka_unit_test(each_slot_keeps_its_order),
        cmocka_unit_test(chained_stages_equal_the_model),
        cmocka_unit_test(frozen_stage_passes_gradients),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
