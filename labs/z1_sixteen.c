/* Z1 - Adam in mixed precision holds 16 N bytes: 2 of weights, 2 of gradients, 4 of master weights, 4 of momentum, 4 of variance
 * (Rajbhandari et al. 2020).
 *
 * Here gradients are accumulated in f32 over micro-batches and ranks, so they take 4: 18 N. (precision.reduce=bf16 communicates them in
 * 2.) Training in f32 is 16 N as well: 4 + 4 + 4 + 4, without a master copy. The ledger measures what a plan predicts to the byte; the
 * tests compare them. */
#include "lab_train.h"

static ls_cost sixteen_price(ls_dtype type, size_t *elements)
{
    struct job j = job_of((size_t)lab_size("layers"), (size_t)lab_size("width"));
    struct training t;

    j.type = type;
    training_open(&j, NULL, 1, &t);
    ls_cost c = ls_program_cost(t.program);
    *elements = ls_store_elements(t.store);
    training_close(&t);
    return c;
}

LAB(z1_sixteen, "16 bytes per parameter", { "layers", "layers of the model", 4, 1, 200 },
    { "width", "its width, a multiple of 16", 64, 16, 16384 })
{
    size_t elements;

    if (lab_size("width") % 16) {
        fprintf(stderr, "width %ld is not a multiple of 16\n", lab_size("width"));
        return 1;
    }
    ls_cost half = sixteen_price(LS_BF16, &elements), full = sixteen_price(LS_F32, &elements);
    double n = (double)elements;

    lab_open("Z1");
    lab_equal("bf16: weights [bytes per parameter]", 2, (double)half.parameters / n, 0);
    lab_corrected("      gradients [bytes per parameter]", '=', 2, 4, (double)half.gradients / n, 0,
                  "why: they are accumulated in f32 over micro-batches and ranks, as in Megatron");
    lab_equal("      master, momentum, variance [bytes per parameter]", 12, (double)half.optimizer / n, 0);
    lab_corrected("      all [bytes per parameter]", '=', 16, 18, (double)(half.parameters + half.gradients + half.optimizer) / n, 0,
                  "why: 2 more per parameter, for f32 gradients");
    lab_check("f32:  all, without a master copy [bytes per parameter]", 16,
              (double)(full.parameters + full.gradients + full.optimizer) / n, 0);
    lab_check("Adam: momentum, variance [bytes per parameter]", 8, (double)full.optimizer / n, 0);
    lab_check("optimizer state / bf16 weights", 6, (double)half.optimizer / (double)half.parameters, 0);
    lab_corrected("optimizer state, of 16 bytes with gradients of 2 [%]", '=', 50, 75,
                  100 * (double)half.optimizer / ((double)(half.parameters + half.optimizer) + (double)half.gradients / 2), 0,
                  "why: 8 of 16 bytes leaves out the master weights, which only the optimizer reads");
    return lab_close();
}
