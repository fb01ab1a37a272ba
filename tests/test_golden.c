/* test_golden.c - ten steps of small models, and the optimizers alone, compared with numbers that PyTorch wrote.
 *
 * tools/pytorch_ref.py writes tests/golden and describes its content. Distances are relative to the norm of PyTorch's
 * tensor: fp32 1e-5, bf16 2e-2. helper_golden.h says how to run it on another device than the processor; it is skipped with a reason if
 * that device cannot be used. An argument is a pattern: only tests whose names match run.
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
#include "helper_check.h"
#include "helper_golden.h"
#include "lockstep/optim.h"
#include "kernels/kernel.h"

enum { STEPS = 10, SKIPPED = 77 };

/* A model of tests/golden with its training program. */
struct run {
    struct golden g;
    ls_store     *s;
    ls_program   *p;
    size_t        b, t;
    const char   *kind;  /* "fp32", "bf16": the golden numbers' prefix */
};

static const struct { const char *model, *kind; ls_dtype type; double most; ls_compile_options options; } cases[] = {
    { "gpt2", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "gpt2", "bf16", LS_BF16, 2e-2, LS_COMPILE_DEFAULTS },
    { "gpt2", "fp32", LS_F32, 1e-5, { .recompute = LS_RECOMPUTE_FULL, .fuse_loss = 1 } },
    { "llama", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "llama", "bf16", LS_BF16, 2e-2, LS_COMPILE_DEFAULTS },
    { "llama", "bf16", LS_BF16, 2e-2, { .recompute = LS_RECOMPUTE_SELECTIVE, .fuse_loss = 1 } },
    { "llama_tied", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "llama_tied", "bf16", LS_BF16, 2e-2, LS_COMPILE_DEFAULTS },
    { "llama_scaled", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "llama_scaled", "bf16", LS_BF16, 2e-2, LS_COMPILE_DEFAULTS },
    { "mixtral", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "mixtral", "fp32", LS_F32, 1e-5, { .recompute = LS_RECOMPUTE_FULL, .fuse_loss = 1 } },
    { "qwen3_moe", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "qwen3_moe", "fp32", LS_F32, 1e-5, { .recompute = LS_RECOMPUTE_SELECTIVE, .fuse_loss = 1 } },
    { "qwen3", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "qwen3", "fp32", LS_F32, 1e-5, { .recompute = LS_RECOMPUTE_FULL, .fuse_loss = 1 } },
    { "starcoder2", "fp32", LS_F32, 1e-5, LS_COMPILE_DEFAULTS },
    { "starcoder2", "fp32", LS_F32, 1e-5, { .recompute = LS_RECOMPUTE_SELECTIVE, .fuse_loss = 1 } },
};

static const ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;

static void open_run(struct run *r, const char *model, const char *kind, ls_dtype type,
                     const ls_compile_options *options)
{
    golden_open(model, &r->g);
    const struct safetensor *x = safetensors_find(r->g.numbers, "batch.x");
    assert_non_null(x);
    r->kind = kind;
    r->b = x->size[1];
    r->t = x->size[2];
    OK(golden_store_new(type, &r->s));
    OK(ls_program_new(r->s, &r->p));
    ls_value tokens = ls_input(r->p, "tokens", LS_I32, 2, (size_t[]){ r->b, r->t });
    ls_value targets = ls_input(r->p, "targets", LS_I32, 2, (size_t[]){ r->b, r->t });
    ls_value loss = ls_output(r->p, "loss", ls_model_loss(r->p, &r->g.model, tokens, targets, LS_NONE, LS_NONE));
    ls_backward(r->p, loss);
    OK(ls_optimizer_append(r->p, &adamw));
    OK(ls_program_compile(r->p, options));
    golden_fill(&r->g, r->s);
}

static void close_run(struct run *r)
{
    ls_program_release(&r->p);
    ls_store_release(&r->s);
    golden_close(&r->g);
}

/* Step n's part of a golden i32 [10,B,T] becomes the program's input. */
static void write_batch(ls_program *p, const char *input, const struct safetensors *f, const char *name, int n)
{
    const struct safetensor *x = safetensors_find(f, name);
    size_t count = x->size[1] * x->size[2], bytes = count * sizeof(int32_t);
    int32_t *batch = malloc(bytes);

    memcpy(batch, x->data + (size_t)n * bytes, bytes);
    OK(ls_program_write(p, input, batch, LS_I32, count));
    free(batch);
}

static double golden_step(struct run *r, int n)
{
    double loss;

    write_batch(r->p, "tokens", r->g.numbers, "batch.x", n);
    write_batch(r->p, "targets", r->g.numbers, "batch.y", n);
    ls_store_zero_grad(r->s);
    OK(ls_program_run(r->p, LS_FORWARD | LS_BACKWARD));
    OK(ls_program_read(r->p, "loss", &loss, LS_F64, 1));
    return loss;
}

/* GPT-2's key bias adds one vector to every key, which changes no softmax: its gradient is only rounding. */
static int is_key_bias(const char *name)
{
    size_t n = strlen(name);

    return n > 11 && strcmp(name + n - 11, "attn.k.bias") == 0;
}

/* Distance of parameter i's tensor `mine` from the golden one, relative to its norm. */
static void golden_test_check_tensor(const struct run *r, size_t i, const char *what, const ls_tensor *mine, double most)
{
    struct model_weight w;
    char prefix[64];
    float *have;
    size_t n = ls_tensor_count(mine);

    model_weight_at(&r->g.model, i, &w);
    snprintf(prefix, sizeof prefix, "%s.%s.", r->kind, what);
    float *want = golden_weight(r->g.numbers, prefix, &w);
    if (!want)
        fail_msg("no golden %s%s", prefix, w.hf);
    have = malloc(n * sizeof *have);
    OK(ls_tensor_read(mine, have, LS_F32, n));
    double off = distance(have, want, n);
    double norm = norm_of(want, n);
    if (is_key_bias(w.name))
        assert_true(strcmp(what, "grad") != 0 || norm_of(have, n) < most);
    else if (!(norm > 0) || !(off <= most * norm))
        fail_msg("%s.%s: off by %.3g of its norm %.3g, %.3g is allowed", what, w.name, off / norm, norm, most);
    free(want);
    free(have);
}

static void check_close(const char *what, int n, double have, double want, double most)
{
    if (!(fabs(have - want) <= most * fabs(want)))
        fail_msg("%s of step %d: %.9g, PyTorch has %.9g: off by %.3g, %.3g is allowed", what, n + 1, have, want,
                 fabs(have / want - 1), most);
}

/* Each layer's, of models with experts. */
static void check_router_losses(const struct run *r, int s, double most)
{
    size_t n;

    if (!r->g.model.experts)
        return;
    float *want = golden_numbers(r->g.numbers, "fp32.router_loss", &n);
    assert_int_equal(n, STEPS * r->g.model.layers);
    for (size_t i = 0; i < r->g.model.layers; i++) {
        char name[64];
        double loss;

        snprintf(name, sizeof name, "model.layers.%zu.router_loss", i);
        OK(ls_program_read(r->p, name, &loss, LS_F64, 1));
        check_close(name, s, loss, want[(size_t)s * r->g.model.layers + i], most);
    }
    free(want);
}

static void ten_steps(int k)
{
    double most = cases[k].most;
    struct run r;
    char name[64];
    size_t n;

    open_run(&r, cases[k].model, cases[k].kind, cases[k].type, &cases[k].options);
    snprintf(name, sizeof name, "%s.loss", r.kind);
    float *loss = golden_numbers(r.g.numbers, name, &n);
    assert_int_equal(n, STEPS);
    snprintf(name, sizeof name, "%s.norm", r.kind);
    float *norm = golden_numbers(r.g.numbers, name, &n);
    for (int s = 0; s < STEPS; s++) {
        check_close("loss", s, golden_step(&r, s), loss[s], most);
        check_router_losses(&r, s, most);
        for (size_t i = 0; s == 0 && i < ls_store_count(r.s); i++)
            golden_test_check_tensor(&r, i, "grad", ls_store_grad(r.s, i), most);
        OK(ls_optimizer_set(r.p, &adamw, 1e-3, (uint64_t)s + 1));
        OK(ls_program_run(r.p, LS_OPTIMIZER_STEP));
        check_close("norm", s, ls_optimizer_norm(r.p), norm[s], most);
    }
    for (size_t i = 0; cases[k].type == LS_F32 && i < ls_store_count(r.s); i++)
        /* Adam divides by small gradients: rounding grows */
        golden_test_check_tensor(&r, i, "final", ls_store_value(r.s, i), 1e-4);
    free(loss);
    free(norm);
    close_run(&r);
}

/* With the kernels of every instruction set that this processor has, or with those of another device. */
static void test_steps(void **state)
{
    enum isa all = isa_all();

    if (strcmp(golden_device(), "cpu") != 0) {
        ten_steps(*(int *)*state);
        return;
    }
    for (int isa = ISA_ANY; isa <= (int)all; isa++) {
        isa_cap((enum isa)isa);
        print_message("    %s\n", isa_name(isa_best()));
        ten_steps(*(int *)*state);
    }
    isa_cap(ISAS);
}

/* Logits of the first batch: all at once, and token by token through a cache. */
static void test_logits(void **state)
{
    const char *model = *state;
    struct golden g;
    size_t n;
    float *have;
    ls_program *p;
    ls_store *s;

    golden_open(model, &g);
    float *want = golden_numbers(g.numbers, "logits", &n);
    size_t b = safetensors_find(g.numbers, "batch.x")->size[1];
    size_t t = safetensors_find(g.numbers, "batch.x")->size[2];
    assert_int_equal(n, b * t * g.model.vocab);
    OK(golden_store_new(LS_F32, &s));
    OK(ls_program_new(s, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ b, t });
    ls_output(p, "logits", ls_model_logits(p, &g.model, tokens));
    OK(ls_program_compile(p, NULL));
    golden_fill(&g, s);
    write_batch(p, "tokens", g.numbers, "batch.x", 0);
    OK(ls_program_run(p, LS_FORWARD));
    have = malloc(n * sizeof *have);
    OK(ls_program_read(p, "logits", have, LS_F32, n));
    for (size_t i = 0; i < n; i++)
        assert_true(fabsf(have[i] - want[i]) < 1e-4f);
    assert_true(distance(have, want, n) <= 1e-5 * norm_of(want, n));
    free(have);
    free(want);
    ls_program_release(&p);
    ls_store_release(&s);
    golden_close(&g);
}

/* A decoding program for t tokens at once over cache c. */
static ls_program *decoder(ls_store *s, const ls_model *m, ls_cache *c, size_t t)
{
    ls_program *p;
    ls_value in[5];

    OK(ls_program_new(s, &p));
    in[0] = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, t });
    in[1] = ls_input(p, "positions", LS_I32, 1, (size_t[]){ t });
    in[2] = ls_input(p, "position", LS_I32, 1, (size_t[]){ 1 });
    in[3] = ls_input(p, "length", LS_I32, 1, (size_t[]){ 1 });
    in[4] = ls_input(p, "last", LS_I32, 1, (size_t[]){ 1 });
    ls_output(p, "logits", ls_model_decode(p, m, c, in[0], in[1], in[2], in[3], in[4]));
    OK(ls_program_compile(p, NULL));
    return p;
}

/* Tokens x[t] at positions at ..; the last one's logits are compared with want. */
static void decode(ls_program *p, const int32_t *x, int32_t at, int32_t t, const float *want, size_t v)
{
    int32_t positions[64], length = at + t, last = t - 1;
    float *have = malloc(v * sizeof *have);

    for (int32_t i = 0; i < t; i++)
        positions[i] = at + i;
    OK(ls_program_write(p, "tokens", x + at, LS_I32, (size_t)t));
    OK(ls_program_write(p, "positions", positions, LS_I32, (size_t)t));
    OK(ls_program_write(p, "position", &at, LS_I32, 1));
    OK(ls_program_write(p, "length", &length, LS_I32, 1));
    OK(ls_program_write(p, "last", &last, LS_I32, 1));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "logits", have, LS_F32, v));
    if (!(distance(have, want, v) <= 1e-5 * norm_of(want, v)))
        fail_msg("decoding at %d: logits off by %g of their norm", (int)at, distance(have, want, v) / norm_of(want, v));
    free(have);
}

static void test_decode(void **state)
{
    const char *model = *state;
    enum { PROMPT = 5 };
    struct golden g;
    size_t n;
    int32_t x[64];
    ls_store *s;
    ls_cache *c;

    golden_open(model, &g);
    float *want = golden_numbers(g.numbers, "logits", &n);
    size_t t = safetensors_find(g.numbers, "batch.x")->size[2];
    assert_true(t <= 64);
    memcpy(x, safetensors_find(g.numbers, "batch.x")->data, t * sizeof *x);
    OK(golden_store_new(LS_F32, &s));
    OK(ls_cache_new(golden_device(), &g.model, LS_F32, 1, t, &c));
    ls_program *prompt = decoder(s, &g.model, c, PROMPT);
    ls_program *next = decoder(s, &g.model, c, 1);
    ls_cache_release(&c);
    golden_fill(&g, s);
    decode(prompt, x, 0, PROMPT, want + (PROMPT - 1) * g.model.vocab, g.model.vocab);
    for (size_t i = PROMPT; i < t; i++)
        decode(next, x, (int32_t)i, 1, want + i * g.model.vocab, g.model.vocab);
    free(want);
    ls_program_release(&prompt);
    ls_program_release(&next);
    ls_store_release(&s);
    golden_close(&g);
}

/* ---- the optimizers alone ---- */

static const struct { const char *name; ls_optimizer o; } rules[] = {
    { "sgd", { .kind = LS_SGD, .weight_decay = 0.1 } },
    { "momentum", { .kind = LS_SGD, .momentum = 0.9, .weight_decay = 0.1 } },
    { "nesterov", { .kind = LS_SGD, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.1 } },
    { "adam", { .kind = LS_ADAM, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1 } },
    { "adamw", { .kind = LS_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1 } },
    { "lamb", { .kind = LS_LAMB, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1 } },
    { "lars", { .kind = LS_LARS, .momentum = 0.9, .trust_coefficient = 0.001, .weight_decay = 0.1 } },
};

/* Copies row `row` of a golden [5,count] tensor (or all of a [count] one, row 0) into t. */
static void golden_test_put_row(ls_tensor *t, const struct safetensors *f, const char *name, int row)
{
    size_t n, count = ls_tensor_count(t);
    float *x = golden_numbers(f, name, &n);

    assert_true(n >= (size_t)(row + 1) * count);
    OK(ls_tensor_write(t, x + (size_t)row * count, LS_F32, count));
    free(x);
}

static void check_row(const ls_tensor *t, const struct safetensors *f, const char *rule, const char *name, int row)
{
    char full[64];
    size_t n, count = ls_tensor_count(t);
    float *have = malloc(count * sizeof *have);

    snprintf(full, sizeof full, "%s.%s", rule, name);
    float *x = golden_numbers(f, full, &n);
    OK(ls_tensor_read(t, have, LS_F32, count));
    if (!(distance(have, x + (size_t)row * count, count) <= 1e-5 * norm_of(x + (size_t)row * count, count)))
        fail_msg("%s, step %d: off by %g of its norm", full, row + 1,
                 distance(have, x + (size_t)row * count, count) / norm_of(x + (size_t)row * count, count));
    free(x);
    free(have);
}

static void test_optimizer_rule(void **state)
{
    int k = *(int *)*state;
    const char *names[] = { "w", "b" };
    struct safetensors *f;
    ls_store *s;
    ls_program *p;
    size_t n;
    char name[32], path[512];

    golden_path(path, sizeof path, "optim", "golden.safetensors");
    OK(safetensors_open(path, &f));
    float *lr = golden_numbers(f, "lr", &n);
    OK(golden_store_new(LS_F32, &s));
    OK(ls_program_new(s, &p));
    ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ 6, 5 });
    ls_param(p, "b", (ls_init){ LS_INIT_ZEROS, 0 }, 1, (size_t[]){ 5 });
    OK(ls_optimizer_append(p, &rules[k].o));
    OK(ls_program_compile(p, NULL));
    golden_test_put_row(ls_store_value(s, 0), f, "param.w", 0);
    golden_test_put_row(ls_store_value(s, 1), f, "param.b", 0);
    for (int step_ = 0; step_ < (int)n; step_++) {
        for (size_t i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "grad.%s", names[i]);
            golden_test_put_row(ls_store_grad(s, i), f, name, step_);
        }
        OK(ls_optimizer_set(p, &rules[k].o, lr[step_], (uint64_t)step_ + 1));
        OK(ls_program_run(p, LS_OPTIMIZER_STEP));
        for (size_t i = 0; i < 2; i++)
            check_row(ls_store_value(s, i), f, rules[k].name, names[i], step_);
    }
    free(lr);
    ls_program_release(&p);
    ls_store_release(&s);
    safetensors_close(&f);
}

int main(int argc, char **argv)
{
    enum { CASES = sizeof cases / sizeof cases[0], RULES = sizeof rules / sizeof rules[0] };
    enum { MODELS = 8 };
    static const char *const models[MODELS] = { "gpt2", "llama", "llama_tied", "llama_scaled", "mixtral", "qwen3_moe", "qwen3",
                                                "starcoder2" };
    static int index[CASES + RULES];
    static char names[CASES][64], logits[MODELS][64], decodes[MODELS][64];
    struct CMUnitTest tests[CASES + RULES + 2 * MODELS];
    char device[256];
    int n = 0;

    if (golden_device_choose(device, sizeof device) < 0) {
        printf("skipped: %s\n", ls_errmsg());
        return SKIPPED;
    }
    printf("on %s\n", device);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (int k = 0; k < CASES; k++) {
        index[n] = k;
        snprintf(names[k], sizeof names[k], "%s %s recompute %d fuse %d", cases[k].model, cases[k].kind,
                 (int)cases[k].options.recompute, cases[k].options.fuse_loss);
        tests[n] = (struct CMUnitTest){ names[k], test_steps, NULL, NULL, &index[n] };
        n++;
    }
    for (int k = 0; k < RULES; k++) {
        index[n] = k;
        tests[n] = (struct CMUnitTest){ rules[k].name, test_optimizer_rule, NULL, NULL, &index[n] };
        n++;
    }
    for (int k = 0; k < MODELS; k++) {
        snprintf(logits[k], sizeof logits[k], "logits of %s", models[k]);
        snprintf(decodes[k], sizeof decodes[k], "decoding with %s", models[k]);
        tests[n++] = (struct CMUnitTest){ logits[k], test_logits, NULL, NULL, (void *)(uintptr_t)models[k] };
        tests[n++] = (struct CMUnitTest){ decodes[k], test_decode, NULL, NULL, (void *)(uintptr_t)models[k] };
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
