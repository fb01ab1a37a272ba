/* S4 - large batches: from the same samples, fewer updates, each with less noise. The linear learning-rate rule with warm-up (Goyal et al.
 * 2017), LARS and LAMB (You et al. 2017, 2020) are to make up for it.
 *
 * A small Llama learns from the same number of samples, in batches of 4 or of --batch. The variance of a batch's gradient around the mean
 * of all is inversely proportional to the batch; the loss is that of samples that it has not seen.
 *
 * The linear rule needs a learning rate that can be multiplied: from 16 times as large a one, at which the small batch still learns, it
 * makes the loss worse. Adam has its own rule, the square root (Malladi et al. 2022). */
#include "lab_train.h"

enum { SMALL = 4, LARGE = 32, DRAWS = 32, UNSEEN = 100000, SAMPLES = 4096 };

static struct job batch_job(int batch, ls_optimizer_kind kind, double lr)
{
    struct job j = job_of(2, 32);

    j.samples = batch;
    j.lr = lr;
    j.optimizer.kind = kind;
    j.optimizer.momentum = j.optimizer.weight_decay = 0;
    return j;
}

/* The mean of |gradient - mean gradient|^2 over batches of that size, at the first weights. */
static double noise(int batch)
{
    struct job j = batch_job(batch, LS_SGD, 0);
    struct training t;
    double *sum, *one, squares = 0, all = 0;

    training_open(&j, NULL, 0, &t);
    size_t n = ls_store_elements(t.store);
    sum = calloc(n, sizeof *sum);
    one = calloc(n, sizeof *one);
    if (!sum || !one) exit(1);
    for (int k = 0; k < DRAWS; k++) {
        ls_store_zero_grad(t.store);
        training_micro_batch(&t, k, 0, batch, LS_LAST);
        training_read(&t, "gradient", one);
        for (size_t i = 0; i < n; i++) sum[i] += one[i], squares += one[i] * one[i];
    }
    for (size_t i = 0; i < n; i++) all += sum[i] * sum[i];
    free(sum);
    free(one);
    training_close(&t);
    return (squares - all / DRAWS) / (DRAWS - 1);
}

/* How far `updates` updates of as many samples each move the weights, together from the same large batch. */
static double distance_moved(int updates, int batch, double lr)
{
    struct job j = batch_job(batch / updates, LS_SGD, lr);
    struct training t;
    double *was, *is, sum = 0;

    training_open(&j, NULL, 0, &t);
    size_t n = ls_store_elements(t.store);
    was = calloc(n, sizeof *was);
    is = calloc(n, sizeof *is);
    if (!was || !is) exit(1);
    training_read(&t, "parameter", was);
    for (int k = 0; k < updates; k++) {
        ls_store_zero_grad(t.store);
        training_micro_batch(&t, 0, k * j.samples, j.samples, LS_LAST);
        training_update(&t, k);
    }
    training_read(&t, "parameter", is);
    for (size_t i = 0; i < n; i++) sum += (is[i] - was[i]) * (is[i] - was[i]);
    free(was);
    free(is);
    training_close(&t);
    return sqrt(sum);
}

static int updates_made; /* by learned() */

/* Loss on unseen samples after so many samples; a run that diverges has the loss of guessing. warm: steps until the learning rate is
 * reached. */
static double learned_from(int samples, int batch, ls_optimizer_kind kind, double lr, int warm)
{
    struct job j = batch_job(batch, kind, lr);
    struct training t;
    double loss = 0;

    training_open(&j, NULL, 0, &t);
    updates_made = 0;
    for (int s = 0; s < samples / batch; s++) {
        t.job.lr = s < warm ? lr * (s + 1) / warm : lr;
        ls_store_zero_grad(t.store);
        training_micro_batch(&t, s, 0, batch, LS_LAST);
        TRY(ls_optimizer_set(t.program, &j.optimizer, t.job.lr, (uint64_t)s + 1));
        if (ls_program_run(t.program, LS_OPTIMIZER_STEP) < 0) { /* the gradient is not finite */
            training_close(&t);
            return log(VOCAB);
        }
        updates_made++;
    }
    for (int i = 0; i < 4 * SAMPLES_MOST; i += batch) { /* the same samples for every size of a batch */
        ls_store_zero_grad(t.store);
        loss += training_micro_batch(&t, UNSEEN + i / SAMPLES_MOST, i % SAMPLES_MOST, batch, LS_LAST);
    }
    training_close(&t);
    return loss * batch / (4 * SAMPLES_MOST);
}

static double learned(int batch, ls_optimizer_kind kind, double lr, int warm) { return learned_from(SAMPLES, batch, kind, lr, warm); }

/* Adam's step does not grow with the gradient. Where most of the gradient is noise, sqrt(k) times the rate keeps the noise of the updates.
 * Where steps are so short that the weights have hardly moved when the samples are used up, k times the rate keeps the distance. */
struct adam {
    double same, root, linear; /* |loss of the large batch - loss of the small one|, by the rate of the large one */
};

static struct adam adam_rules(double lr)
{
    double times = SAMPLES_MOST / SMALL, small = learned_from(SAMPLES / 2, SMALL, LS_ADAMW, lr, 0);
    struct adam a = { fabs(learned_from(SAMPLES / 2, SAMPLES_MOST, LS_ADAMW, lr, 0) - small),
                      fabs(learned_from(SAMPLES / 2, SAMPLES_MOST, LS_ADAMW, lr * sqrt(times), 0) - small),
                      fabs(learned_from(SAMPLES / 2, SAMPLES_MOST, LS_ADAMW, lr * times, 0) - small) };

    lab_say("Adam, learning rate %g, batch %d: loss %.4f; batch %d is off by %.4f at that rate, %.4f at sqrt(%g) times, %.4f at %g times\n",
            lr, SMALL, small, SAMPLES_MOST, a.same, a.root, times, a.linear, times);
    return a;
}

LAB(s4_large_batch, "large batches", { "batch", "samples of the large batch, a power of 2", LARGE, LARGE, SAMPLES_MOST })
{
    int batch = (int)lab_size("batch"), times = batch / SMALL, updates[2];
    double lr = 0.05, high = 16 * lr;

    lab_one_core(0); /* steps are so small that threads would mostly wait for one another */
    double small = learned(SMALL, LS_SGD, lr, 0);
    updates[0] = updates_made;
    double same = learned(batch, LS_SGD, lr, 0);
    updates[1] = updates_made;
    double linear = learned(batch, LS_SGD, lr * times, SAMPLES / batch / 10);
    double lamb = learned(batch, LS_LAMB, 0.01, SAMPLES / batch / 10);
    double lars = learned(batch, LS_LARS, 20, SAMPLES / batch / 10); /* times its trust coefficient of 0.001 */
    double short_small = learned_from(SAMPLES / 4, SMALL, LS_SGD, lr, 0);
    double short_same = learned_from(SAMPLES / 4, LARGE, LS_SGD, lr, 0);
    double longer = learned_from(SAMPLES / 4 * LARGE / SMALL, LARGE, LS_SGD, lr, 0);

    double high_small = learned(SMALL, LS_SGD, high, 0), high_same = learned(LARGE, LS_SGD, high, 0),
           high_linear = learned(LARGE, LS_SGD, high * LARGE / SMALL, SAMPLES / LARGE / 10);
    double noises = noise(SMALL) / noise(batch);
    struct adam adam = adam_rules(0.004), slow_adam = adam_rules(0.0003);

    lab_say("loss on unseen samples, from %d samples\n  batch %-4d SGD, learning rate %-6g           %8.4f\n", SAMPLES, SMALL, lr, small);
    lab_say("  batch %-4d the same                           %8.4f\n", batch, same);
    lab_say("  batch %-4d %d times the learning rate, warm-up  %8.4f\n", batch, times, linear);
    lab_say("  batch %-4d LAMB                               %8.4f\n", batch, lamb);
    lab_say("  batch %-4d LARS                               %8.4f\n", batch, lars);
    lab_say("a quarter of the samples: batch %d %.4f, batch %d %.4f, batch %d with as many updates as batch %d %.4f\n\n",
            SMALL, short_small, LARGE, short_same, LARGE, SMALL, longer);
    lab_open("S4");
    lab_equal("updates, batch of 4 / large batch", times, (double)updates[0] / updates[1], 0);
    lab_equal("variance of the gradient, batch of 4 / large batch", times, noises, 0.15);
    lab_check("standard deviation of the gradient, batch of 4 / large batch", sqrt(times), sqrt(noises), 0.08);
    lab_check("distance of updates of 4 that make up a large batch / of its one update, equal rate", times,
              distance_moved(times, batch, lr) / distance_moved(1, batch, lr), 0.1);
    lab_above("loss at the same learning rate - loss of the small batch", 0, same - small);
    lab_check_below("batch of 32, the same rate, after a quarter: with as many updates, rest of the gap", 0.5,
                    (longer - short_small) / (short_same - short_small));
    lab_below("linear rule and warm-up: the rest of that gap", 0.5, (linear - small) / (same - small));
    lab_check_below("batch of 4: loss at a rate of 0.8 - at 0.05", 0.1, high_small - small);
    lab_check_above("batch of 32, from a rate of 0.8: loss at 8 times the rate - at the same", 0.05, high_linear - high_same);
    lab_below("LAMB: the rest of that gap", 0.5, (lamb - small) / (same - small));
    lab_below("LARS: the rest of that gap", 0.5, (lars - small) / (same - small));
    lab_below("Adam, batch of 128, from 0.004: gap at sqrt(32) times the rate / at 32 times", 0.5, adam.root / adam.linear);
    lab_below("       / at the same rate", 0.5, adam.root / adam.same);
    lab_check_above("       from 0.0003, where steps are short: sqrt(32) times the rate / 32 times", 2, slow_adam.root / slow_adam.linear);
    return lab_close();
}
