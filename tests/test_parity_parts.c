/* test_parity_parts.c - parts of `lockstep parity` that its script tests cannot reach: ReLU inputs within rounding of zero, whose sign a
 * side adopts from the reference, the update rules with their bounds, and the least scale of a gradient whose product is normalized.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "train/parity/parity.h"
#include "train/parity/parity_gates.h"
#include "train/parity/parity_update.h"
#include "train/run/random_tokens.h"

enum { SIZE = 8 * 3 * 3 * 3 };  /* elements of conv1.weight */

static const double NEAR = 1e-3;  /* a threshold that some gates are within in every step */
static char path[] = "test_parity_parts.XXXXXX";

static int make_path(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 || close(fd) != 0;
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

/* bounds: of the layout against itself; NULL: not needed. */
static void open_step(const char *preset, struct step *s, struct parity_bounds *bounds)
{
    struct options options;
    struct config config;
    struct ranks alone = RANKS_ALONE;
    struct task_model model;
    const char *const set[][2] = {
        { "model.preset", preset }, { "train.global_batch", "4" }, { "train.accumulate", "2" }, { "precision.compute", "fp32" },
    };

    OK(options_open(config_table(), &config, VERB_PARITY, &options));
    for (size_t i = 0; i < COUNT_OF(set); i++) OK(options_set(&options, set[i][0], set[i][1], "test"));
    OK(config_check(&config, VERB_PARITY));
    OK(task_model_of(&config, 0, &model));
    OK(step_open_config(&config, &model, &alone, STEP_INITIALIZED, s));
    if (bounds) OK(parity_bounds_of(&config, NULL, bounds));
    options_close(&options);
}

/* Runs step 0 and writes its gates to the file. Returns conv1's gradient and the number of gates adopted from `follow` (or NULL). */
static double one_step(const struct parity_file *follow, float gradient[SIZE])
{
    struct parity_gates *gates;
    struct parity_writer w;
    struct parity_file found;
    struct step s;
    file_writer *out;
    double loss, taken;
    size_t valid;

    open_step("resnet-tiny", &s, NULL);
    OK(file_writer_open(path, &out));
    OK(parity_writer_open(&s, out, &w));
    OK(parity_put_state(&w, 0));
    OK(parity_put_state(&w, 1));
    OK(parity_gates_open(&s, NEAR, follow, &gates));
    random_tokens(&s, 0, 0);
    OK(parity_gates_begin(gates, 0));
    OK(step_gradients(&s, 0, &loss, &valid));
    OK(parity_gates_end(gates, &w));
    OK(ls_store_read(s.store, (size_t)ls_store_find(s.store, "conv1.weight"), "gradient", gradient, LS_F32, SIZE));
    OK(file_writer_publish(&out));
    OK(parity_file_open(path, &found));
    memcpy(&taken, parity_file_find(&found, RECORD_TAKEN, 0, 0).data, sizeof taken);
    parity_file_close(&found);
    parity_gates_close(&gates);
    parity_writer_close(&w);
    step_close(&s);
    return taken;
}

static double distance(const float a[SIZE], const float b[SIZE])
{
    double most = 0, error = 0;

    for (int i = 0; i < SIZE; i++) {
        most = fmax(most, fabs(a[i]));
        error = fmax(error, fabs((double)a[i] - b[i]));
    }
    return error / most;
}

/* A file in memory that holds the given gates of step 0. */
static struct parity_file file_of(struct parity_place place[2 * RECORDS], const struct parity_gate *gates, size_t count)
{
    memset(place, 0, 2 * RECORDS * sizeof *place);
    place[RECORD_GATES] = (struct parity_place){ (const unsigned char *)gates, count };
    return (struct parity_file){ .parameters = 1, .steps = 1, .place = place };
}

static bool is_listed(const struct parity_gate *gates, size_t count, const struct parity_gate *g)
{
    for (size_t i = 0; i < count; i++)
        if (gates[i].layer == g->layer && gates[i].sample == g->sample && gates[i].element == g->element) return true;
    return false;
}

/* The bounds of a step of qwen3-tiny, whose results are written to the file. */
static struct parity_bounds write_step(void)
{
    struct parity_bounds bounds;
    struct parity_writer w;
    struct step s;
    file_writer *out;
    double loss, norm = 0;
    size_t valid;

    open_step("qwen3-tiny", &s, &bounds);
    OK(file_writer_open(path, &out));
    OK(parity_writer_open(&s, out, &w));
    OK(parity_put_state(&w, 0));
    random_tokens(&s, 0, 0);
    OK(step_gradients(&s, 0, &loss, &valid));
    OK(parity_put(&w, RECORD_LOSS, 0, 0, &loss, 1));
    OK(parity_put(&w, RECORD_NORM, 0, 0, &norm, 1));
    OK(parity_put_gradients(&w, 0));
    OK(parity_put_state(&w, 1));
    OK(file_writer_publish(&out));
    parity_writer_close(&w);
    step_close(&s);
    return bounds;
}

static void write_file(const char *name, const unsigned char *bytes, size_t count)
{
    file_writer *out;

    OK(file_writer_open(name, &out));
    OK(file_writer_put(out, bytes, count));
    OK(file_writer_publish(&out));
}

/* The root mean square of a record's floats. */
static double rms_of(struct parity_place p)
{
    double squares = 0;

    for (size_t k = 0; k < p.count; k++) squares += (double)parity_f32(p.data, k) * parity_f32(p.data, k);
    return sqrt(squares / (double)p.count);
}

/* Compares two copies of the file in which the gradient of `name` is 0, except for one element of the second: that is `error` times the
 * least scale of a gradient that no norm follows. Returns the error as a share of what is allowed; *size: the root mean square of the
 * weight. */
static double share_of_error(const char *name, double error, const struct parity_bounds *bounds, double *size)
{
    char file[2][sizeof path + 2];
    struct parity_result result;
    struct parity_file f;
    double squares = 0, elements = 0;
    size_t at = 0;

    OK(parity_file_open(path, &f));
    for (size_t i = 0; i < f.parameters; i++) {
        struct parity_place g = parity_file_find(&f, RECORD_GRADIENT, 0, i);

        elements += (double)g.count;
        if (strcmp(f.parameter[i].name, name) == 0)
            at = i;
        else
            squares += rms_of(g) * rms_of(g) * (double)g.count;
    }
    assert_string_equal(f.parameter[at].name, name);
    *size = rms_of(parity_file_find(&f, RECORD_WEIGHT, 0, at));

    struct parity_place g = parity_file_find(&f, RECORD_GRADIENT, 0, at);
    unsigned char *bytes = malloc(f.map.bytes), *gradient = bytes + (g.data - f.map.data);
    float value = (float)(error * sqrt(squares / elements) / PARITY_FLOOR);

    memcpy(bytes, f.map.data, f.map.bytes);
    memset(gradient, 0, g.count * sizeof value);
    for (int k = 0; k < 2; k++) {
        snprintf(file[k], sizeof file[k], "%s.%c", path, 'a' + k);
        write_file(file[k], bytes, f.map.bytes);
        memcpy(gradient, &value, sizeof value);
    }
    OK(parity_compare(file[0], file[1], false, bounds, &result));
    for (int k = 0; k < 2; k++) assert_int_equal(unlink(file[k]), 0);
    free(bytes);
    parity_file_close(&f);
    assert_string_equal(result.largest[PARITY_GRADIENT].name, name);
    return result.largest[PARITY_GRADIENT].of_allowed;
}

/* A norm's gradient is divided by the size of its input: 8 times that of the weight, from 64 inputs of size 1. */
static void errors_behind_a_norm_have_a_larger_scale(void **state)
{
    struct parity_bounds bounds = write_step();
    double size;

    (void)state;
    bounds.mean = 0; /* only the largest error is compared */
    double share = share_of_error("model.layers.0.self_attn.o_proj.weight", 2 * bounds.most, &bounds, &size);
    assert_true(fabs(share - 2) < 1e-5);
    share = share_of_error("model.layers.0.self_attn.q_proj.weight", 2 * bounds.most, &bounds, &size);
    assert_true(size < 0.1 && fabs(share - 2 * 8 * size) < 1e-5);
}

/* A side adopts a gate within rounding of zero in every micro-batch; the gradient changes by a finite amount. */
static void gates_near_zero_are_adopted(void **state)
{
    struct parity_place place[2 * RECORDS];
    float reference[SIZE], other[SIZE];
    struct parity_file file;
    struct parity_gate *gates;

    (void)state;
    assert_true(one_step(NULL, reference) == 0);
    OK(parity_file_open(path, &file));
    struct parity_place p = parity_file_find(&file, RECORD_GATES, 0, 0);
    assert_true(p.count > 4);
    gates = malloc(p.count * sizeof *gates);
    memcpy(gates, p.data, p.count * sizeof *gates);
    struct parity_file forged = file_of(place, gates, p.count);
    assert_true(one_step(&forged, other) == 0);
    assert_memory_equal(reference, other, sizeof other);
    uint64_t samples = 0;
    for (size_t i = 0; i < p.count; i++) samples |= 1u << gates[i].sample;
    assert_true(samples & 3u && samples & 12u);  /* in both micro-batches */
    for (size_t i = 0; i < p.count; i++) gates[i].open = !gates[i].open;
    assert_true(one_step(&forged, other) == (double)p.count);
    assert_true(distance(reference, other) > 1e-4);
    free(gates);
    parity_file_close(&file);
}

/* Inputs that are further from zero than rounding are not changed. */
static void gates_far_from_zero_are_kept(void **state)
{
    struct parity_place place[2 * RECORDS];
    float reference[SIZE], other[SIZE];
    struct parity_file file;
    struct parity_gate far[2 * 64];
    size_t n = 0;

    (void)state;
    assert_true(one_step(NULL, reference) == 0);
    OK(parity_file_open(path, &file));
    struct parity_place p = parity_file_find(&file, RECORD_GATES, 0, 0);
    struct parity_gate *gates = malloc(p.count * sizeof *gates);
    memcpy(gates, p.data, p.count * sizeof *gates);
    for (uint64_t e = 0; e < 64; e++) {
        struct parity_gate g = { .layer = 0, .open = e % 2, .sample = 0, .element = e };

        if (!is_listed(gates, p.count, &g)) far[n++] = g;
    }
    assert_true(n > 32);
    struct parity_file forged = file_of(place, far, n);
    assert_true(one_step(&forged, other) == 0);
    assert_memory_equal(reference, other, sizeof other);
    free(gates);
    parity_file_close(&file);
}

/* ---- rules ---- */

static struct update_rule rule_of(const ls_optimizer *o, double norm, const float v[4])
{
    struct update_rule u = { .elements = 1, .matrix = true, .weight_unit = 0x1p-24 };

    update_rule_step(&u, o, 0.125, 1, norm);
    u.r = (struct update_records){ .weight = (const unsigned char *)&v[0], .gradient = (const unsigned char *)&v[1],
                                   .m = (const unsigned char *)&v[2], .v = (const unsigned char *)&v[3] };
    update_rule_begin(&u);
    return u;
}

static void parity_parts_check(struct update_expected e, double value)
{
    assert_true(fabs(e.value - value) <= 1e-7 * fabs(value));
    assert_true(e.allowed > 0 && e.allowed <= 16 * 0x1p-24 * (fabs(value) + 1));
}

/* The expected values are computed by hand from numbers that are exact in binary. */
static void update_rules_are_those_of_optimizers(void **state)
{
    const float x[4] = { 2, 0.5, 0.25, 0.0625 };  /* weight, gradient, m, v */
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;

    (void)state;
    o.beta1 = 0.5, o.beta2 = 0.75, o.eps = 0.25, o.weight_decay = 0.5, o.clip = 0;
    struct update_rule u = rule_of(&o, 1, x);
    struct update_expected e[UPDATE_RESULTS];
    double m = 0.5 * 0.25 + 0.5 * 0.5, v = 0.75 * 0.0625 + 0.25 * 0.25, d = 2 * m / (sqrt(4 * v) + 0.25);
    update_rule_expect(&u, 0, e);
    parity_parts_check(e[UPDATE_M], m);
    parity_parts_check(e[UPDATE_V], v);
    parity_parts_check(e[UPDATE_WEIGHT], 2 - 0.125 * 0.5 * 2 - 0.125 * d);
    o.kind = LS_LAMB;
    u = rule_of(&o, 1, x);
    update_rule_expect(&u, 0, e);
    parity_parts_check(e[UPDATE_WEIGHT], 2 - 0.125 * 2 / (d + 1) * (d + 1));
    o.kind = LS_SGD, o.momentum = 0.5, o.clip = 0.25;
    u = rule_of(&o, 1, x);
    update_rule_expect(&u, 0, e);
    parity_parts_check(e[UPDATE_M], 0.5 * 0.25 + 0.25 * 0.5 + 0.5 * 2);
    parity_parts_check(e[UPDATE_WEIGHT], 2 - 0.125 * (0.125 + 0.125 + 1));
    o.kind = LS_LARS, o.trust_coefficient = 0.5, o.clip = 0;
    u = rule_of(&o, 1, x);
    update_rule_expect(&u, 0, e);
    parity_parts_check(e[UPDATE_M], 0.5 * 0.25 + 0.5 * 2 / (0.5 + 0.5 * 2) * (0.5 + 0.5 * 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_near_zero_are_adopted),
        cmocka_unit_test(gates_far_from_zero_are_kept),
        cmocka_unit_test(errors_behind_a_norm_have_a_larger_scale),
        cmocka_unit_test(update_rules_are_those_of_optimizers),
    };

    return cmocka_run_group_tests(tests, make_path, remove_path);
}
