/* Z6 - optimizer state in the processor's memory or in a file fits more and is slower: each step brings it in and takes it
 * back. (Beside an accelerator the processor's memory is another memory; here it is the same one, counted apart, and it is
 * the file that makes room.) The weights come out the same to the bit. Seconds are printed: so small a state stays in the page
 * cache. */
#include "lab_train.h"

enum { RANKS = 2, STEPS = 5 };

struct found { ls_cost cost; double seconds; uint64_t hash; size_t elements; };

static void run(ls_comm *comm, int rank, int n, void *shared)
{
    static const ls_offload where[] = { LS_OFFLOAD_NONE, LS_OFFLOAD_CPU, LS_OFFLOAD_FILE };
    struct found *f = (struct found *)shared + 3 * rank;
    struct job j = job_of(4, 64);

    (void)n;
    j.type = LS_BF16;
    j.data.zero = 1;
    j.data.bucket_bytes = j.data.first_bucket_bytes = 100000;
    for (int k = 0; k < 3; k++) {
        struct training t;

        j.data.offload = where[k];
        j.data.offload_path = k == 2 ? "/tmp" : NULL;
        training_open(&j, comm, 0, &t);
        training_step(&t, 0);
        f[k].seconds = -seconds_now();
        for (int s = 1; s < STEPS; s++) training_step(&t, s);
        f[k].seconds += seconds_now();
        f[k].cost = ls_program_cost(t.program);
        f[k].hash = training_hash(&t);
        f[k].elements = ls_store_elements(t.store);
        training_close(&t);
    }
}

static size_t within(const ls_cost *c) { return c->parameters + c->gradients + c->optimizer + c->communication; }

int main(void)
{
    static const char *const name[] = { "in place", "processor", "file" };
    struct found *f = lab_shared(3 * RANKS * sizeof *f);
    double state;

    lab_ranks(RANKS, run, f);
    printf("rank 0 of %d, bf16, ZeRO-1, bytes\n%12s %12s %12s %12s %14s %12s %12s\n", RANKS, "states", "parameters", "gradients",
           "optimizer", "communication", "other memory", "seconds");
    for (int k = 0; k < 3; k++)
        printf("%12s %12zu %12zu %12zu %14zu %12zu %12.4f\n", name[k], f[k].cost.parameters, f[k].cost.gradients,
               f[k].cost.optimizer, f[k].cost.communication, f[k].cost.offload, f[k].seconds);
    printf("\n");
    state = (double)f[0].cost.optimizer;
    lab_open("Z6", "offload of optimizer state: fits more, slower");
    lab_equal("in place: master, momentum, variance, both ranks: 12 N", 12 * (double)f[0].elements,
              (double)(f[0].cost.optimizer + f[3].cost.optimizer), 0);
    for (int k = 1; k < 3; k++) {
        printf("%s\n", name[k]);
        lab_equal("       optimizer's bytes on the device", 0, (double)f[k].cost.optimizer, 0);
        lab_equal("       bytes in other memory", k == 1 ? state : 0, (double)f[k].cost.offload, 0);
        lab_below("       on the device, of what it was", 0.75, (double)within(&f[k].cost) / (double)within(&f[0].cost));
        lab_equal("       weights that differ from in place", 0, f[k].hash != f[0].hash, 0);
    }
    return lab_close();
}
