/* A3 - gradient accumulation does not speed up compute: K passes take K times the FLOPs of one, and a step of the same samples takes the
 * same FLOPs however it is divided. What it saves is memory, since activations are those of one pass, and messages, since gradients are
 * synchronized once per step.
 *
 * FLOPs, bytes and the planner's seconds come from plans; bytes and calls of collectives from a compiled program of n data-parallel ranks;
 * gradients and updates from programs that run.
 *
 *   - Only with synchronization in the last pass alone is accumulation free of communication. ZeRO-2 and ZeRO-3 reduce in every pass unless
 *     they keep unsharded gradients until the last one (unsharded_accumulation), and ZeRO-3 gathers its weights in every pass.
 *   - "Without the division by K the learning rate is K times too high" is claimed for all optimizers. It holds for SGD. Adam divides by
 *     the root of the second moment, so that a constant factor cancels: corrected.
 *   - "Equal to the large batch" needs equal token counts. A mean of means gives a token of a short micro-batch more weight. */
#include "lab_train.h"

enum { SAMPLES = 64, SEGMENTS = LS_FORWARD | LS_BACKWARD, FIRST_LAYER = 35 };

/* ---- compute and memory ---- */

static double a3_planned(const char *key, int batch, int passes)
{
    return lab_plan(key, "-n 1 --machine h100-dgx --model.preset=llama3.2-1b --data.seq_len=1024 "
                    "--train.micro_batch=%d --train.accumulate=%d", batch, passes);
}

static double planned_state(int batch, int passes)
{
    return a3_planned("memory.parameters", batch, passes) + a3_planned("memory.gradients", batch, passes)
           + a3_planned("memory.optimizer", batch, passes);
}

/* Seconds per sample of 16 ranks on two machines, a sample in each pass. */
static double planned_per_sample(int passes)
{
    return lab_plan("seconds.step", "-n 16 --machine h100-dgx --model.preset=llama3.2-1b --data.seq_len=512 "
                    "--train.micro_batch=1 --train.accumulate=%d", passes) / passes;
}

static void compute_and_memory(int passes)
{
    int micro = SAMPLES / passes;
    char what[96];

    snprintf(what, sizeof what, "K = %d passes of a micro-batch: FLOPs of the step / those of one pass", passes);
    lab_equal(what, passes, a3_planned("executed_flops_per_step", micro, passes) / a3_planned("executed_flops_per_step", micro, 1), 1e-9);
    snprintf(what, sizeof what, "the same %d samples in K = %d passes: FLOPs / those of one pass", SAMPLES, passes);
    lab_equal(what, 1, a3_planned("executed_flops_per_step", micro, passes) / a3_planned("executed_flops_per_step", SAMPLES, 1), 1e-9);
    snprintf(what, sizeof what, "the same %d samples in K = %d passes: planned seconds / those of one pass", SAMPLES, passes);
    if (passes > 1) lab_above(what, 1, a3_planned("seconds.step", micro, passes) / a3_planned("seconds.step", SAMPLES, 1));
    snprintf(what, sizeof what, "K = %d: bytes of weights, gradients, optimizer / those of one pass", passes);
    lab_equal(what, 1, planned_state(micro, passes) / planned_state(SAMPLES, 1), 0);
    snprintf(what, sizeof what, "K = %d: bytes of activations for the same samples / those of one pass", passes);
    /* Half a percent of them at most does not grow with the samples. */
    lab_equal(what, 1.0 / passes, a3_planned("memory.activations", micro, passes) / a3_planned("memory.activations", SAMPLES, 1),
              0.005 * passes);
    snprintf(what, sizeof what, "16 data-parallel ranks, K = %d: planned seconds per sample / those of one pass", passes);
    if (passes > 1) lab_below(what, 1, planned_per_sample(passes) / planned_per_sample(1));
}

/* ---- communication ---- */

/* Communication of one rank in a step of `passes` passes. */
struct traffic { double bytes[LS_COLLECTIVES], calls[LS_COLLECTIVES], gradients; };

/* every: each pass is run as if it were the last. */
static struct traffic traffic_of(int n, int passes, int zero, int unsharded, int every)
{
    struct job j = job_of(2, 32);
    struct traffic f = { 0 };
    struct training t;
    ls_comm *comm;

    TRY(ls_comm_open("plan:", 0, n, &comm));
    j.samples = n;
    j.data.zero = zero;
    j.data.unsharded_accumulation = unsharded;
    training_open(&j, comm, 1, &t);
    for (int k = 0; k < passes; k++)
        for (int c = 0; c < LS_COLLECTIVES; c++) {
            size_t calls;
            int last = every || k == passes - 1 ? LS_LAST : 0;

            f.bytes[c] += (double)ls_program_comm_bytes(t.program, SEGMENTS | last, c, &calls);
            f.calls[c] += (double)calls;
        }
    f.gradients = (double)ls_program_cost(t.program).gradients;
    training_close(&t);
    ls_comm_close(&comm);
    return f;
}

static void communication(int passes)
{
    int n = (int)lab_size("ranks");
    struct traffic ddp = traffic_of(n, passes, 0, 0, 0), every = traffic_of(n, passes, 0, 0, 1), once = traffic_of(n, 1, 0, 0, 0);
    struct traffic zero2 = traffic_of(n, passes, 2, 0, 0), whole2 = traffic_of(n, passes, 2, 1, 0), once2 = traffic_of(n, 1, 2, 0, 0);
    struct traffic zero3 = traffic_of(n, passes, 3, 0, 0), once3 = traffic_of(n, 1, 3, 0, 0);
    const int reduce = LS_COLLECTIVE_ALL_REDUCE, scatter = LS_COLLECTIVE_REDUCE_SCATTER, gather = LS_COLLECTIVE_ALL_GATHER;
    char what[96];

    lab_say("%d ranks, one step of K = %d passes of a sample each, sent by a rank\n%-34s %12s %16s %12s %10s\n", n, passes, "",
            "all_reduce", "reduce_scatter", "all_gather", "gradients");
    const struct { const char *name; const struct traffic *of; } rows[] = {
        { "DDP, K = 1", &once }, { "DDP, synchronized in the last", &ddp }, { "DDP, synchronized in each", &every },
        { "ZeRO-2, K = 1", &once2 }, { "ZeRO-2", &zero2 }, { "ZeRO-2, unsharded_accumulation", &whole2 },
        { "ZeRO-3, K = 1", &once3 }, { "ZeRO-3", &zero3 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        lab_say("%-34s %12.0f %16.0f %12.0f %10.0f\n", rows[i].name, rows[i].of->bytes[reduce], rows[i].of->bytes[scatter],
                rows[i].of->bytes[gather], rows[i].of->gradients);
    lab_say("\n");
    snprintf(what, sizeof what, "DDP, K = %d: bytes of a step / those of one pass", passes);
    lab_equal(what, 1, ddp.bytes[reduce] / once.bytes[reduce], 0);
    snprintf(what, sizeof what, "DDP, K = %d: bytes per sample / those of one pass", passes);
    lab_equal(what, 1.0 / passes, ddp.bytes[reduce] / passes / once.bytes[reduce], 1e-12);
    snprintf(what, sizeof what, "DDP, K = %d, synchronized in each: bytes / those of the last alone", passes);
    lab_check(what, passes, every.bytes[reduce] / ddp.bytes[reduce], 0);
    snprintf(what, sizeof what, "DDP, K = %d, synchronized in each: calls / those of the last alone", passes);
    lab_check(what, passes, every.calls[reduce] / ddp.calls[reduce], 0);
    snprintf(what, sizeof what, "ZeRO-2, K = %d: reduce-scattered bytes of a step / those of one pass", passes);
    lab_check(what, passes, zero2.bytes[scatter] / once2.bytes[scatter], 0);
    snprintf(what, sizeof what, "ZeRO-2, K = %d, unsharded gradients: reduce-scattered bytes / those of one pass", passes);
    lab_check(what, 1, whole2.bytes[scatter] / once2.bytes[scatter], 0);
    snprintf(what, sizeof what, "ZeRO-2 on %d ranks, unsharded gradients: bytes of gradients / those of sharded ones", n);
    lab_check(what, n, whole2.gradients / zero2.gradients, 0.01);
    snprintf(what, sizeof what, "ZeRO-3, K = %d: gathered bytes of a step / those of one pass", passes);
    lab_check(what, passes, zero3.bytes[gather] / once3.bytes[gather], 0);
}

/* ---- updates ---- */

/* How far `steps` steps of an optimizer move the first layer's weights, from gradients of K micro-batches, each loss times `factor`. */
static void updates_of(ls_optimizer_kind kind, int passes, double factor, int steps, double *moved)
{
    enum { ROWS = 4, IN = 5, HIDDEN = 7, OUT = 2 };
    ls_store_options f64 = { "cpu", LS_F64, 0, 1, 0 };
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;
    double x[ROWS * IN], y[ROWS * OUT], before[FIRST_LAYER];
    ls_store *s;
    ls_program *p;

    o.kind = kind;
    o.weight_decay = o.clip = o.momentum = 0;
    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_mlp(p, "net", ls_input(p, "x", LS_F64, SIZES(ROWS, IN)), SIZES(IN, HIDDEN, OUT));
    ls_backward(p, ls_scale(p, ls_mse(p, v, ls_input(p, "y", LS_F64, SIZES(ROWS, OUT))), factor));
    TRY(ls_optimizer_append(p, &o));
    TRY(ls_program_compile(p, NULL));
    TRY(ls_tensor_read(ls_store_value(s, 0), before, LS_F64, FIRST_LAYER));
    for (int step = 0; step < steps; step++) {
        ls_store_zero_grad(s);
        for (int k = 0; k < passes; k++) {
            for (int i = 0; i < ROWS * IN; i++) x[i] = sin(1.3 * (k * ROWS * IN + i));
            for (int i = 0; i < ROWS * OUT; i++) y[i] = cos(0.7 * (k * ROWS * OUT + i));
            TRY(ls_program_write(p, "x", x, LS_F64, ROWS * IN));
            TRY(ls_program_write(p, "y", y, LS_F64, ROWS * OUT));
            TRY(ls_program_run(p, SEGMENTS));
        }
        TRY(ls_optimizer_set(p, &o, 1e-3, (uint64_t)step + 1));
        TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    TRY(ls_tensor_read(ls_store_value(s, 0), moved, LS_F64, FIRST_LAYER));
    for (int i = 0; i < FIRST_LAYER; i++) moved[i] -= before[i];
    ls_program_release(&p);
    ls_store_release(&s);
}

static double undivided(ls_optimizer_kind kind, int passes, int steps)
{
    double wrong[FIRST_LAYER], right[FIRST_LAYER], a = 0, b = 0;

    updates_of(kind, passes, 1, steps, wrong);
    updates_of(kind, passes, 1.0 / passes, steps, right);
    for (int i = 0; i < FIRST_LAYER; i++) {
        a += wrong[i] * wrong[i];
        b += right[i] * right[i];
    }
    return sqrt(a / b);
}

static void updates(int passes)
{
    const char *why = "why: the gradient over the root of its second moment: a constant factor cancels, except against eps";
    char what[96];

    snprintf(what, sizeof what, "SGD, K = %d, losses not divided: length of the update / that of the right one", passes);
    lab_equal(what, passes, undivided(LS_SGD, passes, 1), 1e-5);
    for (int steps = 1; steps <= 5; steps += 4) {
        snprintf(what, sizeof what, "Adam, K = %d, losses not divided: length of %d update%s / of the right ones", passes, steps,
                 steps > 1 ? "s" : "");
        if (passes > 1)
            lab_corrected(what, '=', passes, 1, undivided(LS_ADAM, passes, steps), 1e-3, why);
        else
            lab_equal(what, 1, undivided(LS_ADAM, passes, steps), 1e-3);
    }
}

/* ---- token counts ---- */

enum { ROOM = 32, CHANNELS = 6, CLASSES = 5, HEAD = CLASSES * CHANNELS };

/* The gradient of an output layer for tokens begin .. end, of ROOM rows, whose losses are divided by `denominator`. */
static void tokens_gradient(int begin, int end, double denominator, double *out)
{
    ls_store_options f64 = { "cpu", LS_F64, 0, 3, 0 };
    double x[ROOM * CHANNELS];
    int32_t y[ROOM];
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F64, SIZES(ROOM, CHANNELS));
    ls_backward(p, ls_linear_xent(p, v, ls_param(p, "w", (ls_init){ LS_INIT_NORMAL, 0.3 }, SIZES(CLASSES, CHANNELS)),
                                  ls_input(p, "y", LS_I32, SIZES(ROOM)), ls_input(p, "denominator", LS_F64, SIZES(1))));
    TRY(ls_program_compile(p, NULL));
    for (int i = 0; i < ROOM * CHANNELS; i++) x[i] = sin(2.1 * i);
    for (int i = 0; i < ROOM; i++) y[i] = i >= begin && i < end ? i * i % CLASSES : -1;
    TRY(ls_program_write(p, "x", x, LS_F64, ROOM * CHANNELS));
    TRY(ls_program_write(p, "y", y, LS_I32, ROOM));
    TRY(ls_program_write(p, "denominator", &denominator, LS_F64, 1));
    TRY(ls_program_run(p, SEGMENTS));
    TRY(ls_tensor_read(ls_store_grad(s, 0), out, LS_F64, HEAD));
    ls_program_release(&p);
    ls_store_release(&s);
}

static double inner(const double *a, const double *b)
{
    double sum = 0;

    for (int i = 0; i < HEAD; i++) sum += a[i] * b[i];
    return sum;
}

/* Two micro-batches of `many` tokens and of `few`: what a token of the second weighs against one of the first, from the gradient that
 * accumulates in `sum`, which is a combination of the two micro-batches' own. */
static double weight_of_few(const double *sum, const double *first, const double *second)
{
    double aa = inner(first, first), bb = inner(second, second), ab = inner(first, second), sa = inner(sum, first), sb = inner(sum, second);

    return (sb * aa - sa * ab) / (sa * bb - sb * ab);
}

static void token_counts(void)
{
    int few = (int)lab_size("tokens"), many = ROOM - few;
    double first[HEAD], second[HEAD], whole[HEAD], a[HEAD], b[HEAD], off = 0;
    char what[96];

    tokens_gradient(0, many, 1, first);
    tokens_gradient(many, ROOM, 1, second);
    tokens_gradient(0, ROOM, ROOM, whole);
    tokens_gradient(0, many, ROOM, a);
    tokens_gradient(many, ROOM, ROOM, b);
    for (int i = 0; i < HEAD; i++) off = fmax(off, fabs(a[i] + b[i] - whole[i]));
    snprintf(what, sizeof what, "%d and %d tokens, divided by all: distance to the full batch", many, few);
    lab_equal(what, 0, off, 1e-12);
    tokens_gradient(0, many, 2.0 * many, a);
    tokens_gradient(many, ROOM, 2.0 * few, b);
    for (int i = 0; i < HEAD; i++) a[i] += b[i];
    snprintf(what, sizeof what, "%d and %d tokens, mean of means: weight of a token of the few / of the many", many, few);
    if (few < many)
        lab_corrected(what, '=', 1, (double)many / few, weight_of_few(a, first, second), 1e-9,
                      "why: each micro-batch divides by its own count; divide its sum by the step's tokens instead");
    else
        lab_equal(what, 1, weight_of_few(a, first, second), 1e-9);
}

LAB(a3_accumulation, "gradient accumulation", { "micro-batches", "passes of a step", 8, 1, 32 },
    { "ranks", "data-parallel ranks", 8, 2, 512 }, { "tokens", "tokens of the short micro-batch, of 32 of both", 8, 1, ROOM / 2 })
{
    int passes = (int)lab_size("micro-batches");

    if (SAMPLES % passes) {
        fprintf(stderr, "the %d samples of a step are not divisible by %d micro-batches; use a power of two\n", SAMPLES, passes);
        exit(1);
    }
    lab_open("A3");
    compute_and_memory(passes);
    communication(passes);
    updates(passes);
    token_counts();
    return lab_close();
}
