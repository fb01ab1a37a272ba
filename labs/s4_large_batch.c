/* S4 - large batches: from the same samples, fewer updates, each with less noise. The linear learning-rate rule with warm-up (Goyal et al.
 * 2017), LARS and LAMB (You et al. 2017, 2020) are to make up for it.
 *
 * A small Llama learns from the same number of samples, in batches of 4 or of --batch. The variance of a batch's gradient around the mean
 * of all is inversely proportional to the batch; the loss is that of samples that it has not seen.
 *
 * The linear rule needs a learning rate that can be multiplied: from ten times as large a one, which the small batch still takes, it does
 * not make up for half of the gap. */
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

/* Loss on unseen samples after so many samples. warm: so many steps until the learning rate is reached. */
static double learned_from(int samples, int batch, ls_optimizer_kind kind, double lr, int warm)
{
    struct job j = batch_job(batch, kind, lr);
    struct training t;
    double loss = 0;

    training_open(&j, NULL, 0, &t);
    updates_made = 0;
    for (int s = 0; s < samples / batch; s++) {
        t.job.lr = s < warm ? lr * (s + 1) / warm : lr;
        training_step(&t, s);
        updates_made++;
    }
    for (int k = 0; k < 64 / batch + 16; k++) {
        ls_store_zero_grad(t.store);
        loss += training_micro_batch(&t, UNSEEN + k, 0, batch, LS_LAST);
    }
    training_close(&t);
    return loss / (64 / batch + 16);
}

static double learned(int batch, ls_optimizer_kind kind, double lr, int warm) { return learned_from(SAMPLES, batch, kind, lr, warm); }

LAB(s4_large_batch, "large batches", { "batch", "samples of the large batch, a power of 2", LARGE, LARGE, SAMPLES_MOST })
{
    int batch = (int)lab_size("batch"), times = batch / SMALL, updates[2];
    double lr = 0.05, high = 10 * lr, small, same, linear, lamb, lars, short_small, short_same, longer;

    lab_one_core(0); /* steps are so small that threads would mostly wait for one another */
    small = learned(SMALL, LS_SGD, lr, 0);
    updates[0] = updates_made;
    same = learned(batch, LS_SGD, lr, 0);
    updates[1] = updates_made;
    linear = learned(batch, LS_SGD, lr * times, SAMPLES / batch / 10);
    lamb = learned(batch, LS_LAMB, 0.01, SAMPLES / batch / 10);
    lars = learned(batch, LS_LARS, 20, SAMPLES / batch / 10); /* times its trust coefficient of 0.001 */
    short_small = learned_from(SAMPLES / 4, SMALL, LS_SGD, lr, 0);
    short_same = learned_from(SAMPLES / 4, LARGE, LS_SGD, lr, 0);
    longer = learned_from(SAMPLES / 4 * LARGE / SMALL, LARGE, LS_SGD, lr, 0);

    double high_small = learned(SMALL, LS_SGD, high, 0), high_same = learned(LARGE, LS_SGD, high, 0),
           high_linear = learned(LARGE, LS_SGD, high * LARGE / SMALL, SAMPLES / LARGE / 10);
    double noises = noise(SMALL) / noise(batch);

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
    lab_check_above("batch of 32, from a learning rate of 0.5: the rest of that rate's gap", 0.5,
                    (high_linear - high_small) / (high_same - high_small));
    lab_below("LAMB: the rest of that gap", 0.5, (lamb - small) / (same - small));
    lab_below("LARS: the rest of that gap", 0.5, (lars - small) / (same - small));
    return lab_close();
}
