/* D5 - the batch of a step is per-rank batch x ranks x accumulation; the minimum is one sample per rank.
 *
 * The lab counts what each rank's loader returns: every sample of the data contains its own number. (If a step has fewer samples than
 * rows, such as 5 on 2 ranks with 2 rows each and 2 micro-batches, the remaining rows have weight zero, and the batch is 5. With fewer
 * samples than ranks some rank would have none: the command refuses such options.)
 *
 * Ranks are data-parallel ranks: those of a tensor-parallel group share their samples, so that `ranks` / tp counts. */
#include <string.h>
#include "lab.h"
#include "lockstep/data.h"
#include "lockstep/mesh.h"

enum { T = 4, DATA = 4096, BYTES = 128, STEPS = 2 };

/* Adds the samples of one rank's step to seen[]; rows without weight count in *padding. */
static void batch_take(ls_loader *loader, int batch, int accumulate, int *seen, int *padding)
{
    const int32_t *x, *y;

    for (int k = 0; k < accumulate; k++) {
        TRY(ls_loader_next(loader, &x, &y));
        for (int b = 0; b < batch; b++)
            if (y[b * T] < 0) ++*padding;
            else seen[x[b * T] + BYTES * x[b * T + 1]]++;
    }
}

struct count { int samples, twice, padding; };

/* `steps` steps of `samples` samples over n ranks. */
static struct count batch_count(const ls_sampler *s, int n, int batch, int accumulate, int samples)
{
    int seen[DATA] = { 0 };
    struct count c = { 0 };

    for (int r = 0; r < n; r++) {
        size_t begin = (size_t)(samples * r / n), end = (size_t)(samples * (r + 1) / n);
        ls_batches b = { .batch = (size_t)batch, .per_step = (size_t)accumulate, .step = (uint64_t)samples, .offset = begin,
                         .rows = end - begin };
        ls_loader *loader;

        TRY(ls_loader_open(s, &b, &loader));
        for (int step = 0; step < STEPS; step++) batch_take(loader, batch, accumulate, seen, &c.padding);
        ls_loader_close(&loader);
    }
    for (int i = 0; i < DATA; i++) {
        c.samples += seen[i] > 0;
        c.twice += seen[i] > 1;
    }
    return c;
}

static void open_data(ls_tokenizer **t, ls_tokens **tokens, ls_sampler *s)
{
    char text[DATA * T + 1];

    /* The sample's number, as its first two tokens. */
    for (int i = 0; i < (int)sizeof text; i++) text[i] = (char)(i % T == 0 ? i / T % BYTES : i % T == 1 ? i / T / BYTES : 0);
    TRY(ls_tokenizer_open("bytes", t));
    TRY(ls_tokenizer_encode(*t, text, sizeof text, NULL, tokens));
    TRY(ls_sampler_init(s, *tokens, (ls_range){ 0, sizeof text }, T, ls_tokenizer_vocab(*t), 0, 0));
}

/* Passes until one rank has seen a step of `samples`, `batch` at once. */
static int passes_of(const ls_sampler *s, int samples, int batch)
{
    int passes = 1;

    while (passes * batch < samples || batch_count(s, 1, batch, passes, samples).samples < samples * STEPS) passes++;
    return passes;
}

static void put_chosen(const ls_sampler *s)
{
    int ranks = (int)lab_size("ranks"), tp = (int)lab_size("tp"), batch = (int)lab_size("batch"), micro = (int)lab_size("micro-batches");
    int samples = (int)lab_size("global-batch");
    ls_mesh_shape mesh = { .pp = 1, .dp = -1, .replicate = 1, .cp = 1, .tp = tp, .ep = 1 };
    char what[96];

    TRY(ls_mesh_check(&mesh, ranks));
    struct count c = batch_count(s, mesh.dp, 1, 1, mesh.dp);
    snprintf(what, sizeof what, "smallest batch on %d ranks, tp %d", ranks, tp);
    if (tp > 1)
        lab_corrected(what, '=', ranks, (double)ranks / tp, (double)c.samples / STEPS, 0,
                      "why: the minimum is the number of data-parallel ranks: the ranks of a tp group share their samples");
    else
        lab_equal(what, ranks, (double)c.samples / STEPS, 0);
    snprintf(what, sizeof what, "%d ranks, tp %d, %d samples x %d micro-batches: batch of a step", ranks, tp, batch, micro);
    if (mesh.dp * batch * micro > DATA / STEPS)
        lab_say("more than the %d samples that this lab has for a step\n", DATA / STEPS);
    else
        lab_check(what, mesh.dp * batch * micro,
                  (double)batch_count(s, mesh.dp, batch, micro, mesh.dp * batch * micro).samples / STEPS, 0);
    snprintf(what, sizeof what, "%d samples on one rank, %d at once: passes", samples, batch);
    lab_check(what, (samples + batch - 1) / batch, passes_of(s, samples, batch), 0);
}

LAB(d5_batch, "the batch of a step", { "ranks", "ranks of the last rows", 32, 1, 256 }, { "tp", "tensor-parallel ranks", 4, 1, 256 },
    { "batch", "samples of a micro-batch", 32, 1, 256 }, { "micro-batches", "micro-batches of a step", 2, 1, 64 },
    { "global-batch", "samples of a step on one rank", 256, 1, DATA / STEPS })
{
    ls_tokenizer *t;
    ls_tokens *tokens;
    ls_sampler s;
    struct count c;
    char what[80];
    int twice = 0;

    open_data(&t, &tokens, &s);
    lab_open("D5");
    for (int n = 1; n <= 4; n += n == 1 ? 1 : 2)
        for (int batch = 1; batch <= 3; batch += 2)
            for (int accumulate = 1; accumulate <= 4; accumulate += 3) {
                c = batch_count(&s, n, batch, accumulate, n * batch * accumulate);
                twice += c.twice + c.padding;
                snprintf(what, sizeof what, "%d sample%s x %d rank%s x %d micro-batch%s", batch, batch > 1 ? "s" : "", n,
                         n > 1 ? "s" : "", accumulate, accumulate > 1 ? "es" : "");
                lab_equal(what, n * batch * accumulate, (double)c.samples / STEPS, 0);
            }
    lab_check("samples seen twice in two steps, and rows without one", 0, twice, 0);
    c = batch_count(&s, 2, 2, 2, 5);
    lab_check("5 samples on 2 ranks, 2 rows, 2 micro-batches: samples", 5, (double)c.samples / STEPS, 0);
    lab_check("       rows without weight", 3, (double)c.padding / STEPS, 0);
    c = batch_count(&s, 4, 1, 1, 4);
    lab_equal("smallest batch on 4 data-parallel ranks", 4, (double)c.samples / STEPS, 0);
    put_chosen(&s);
    ls_tokens_close(&tokens);
    ls_tokenizer_close(&t);
    return lab_close();
}
