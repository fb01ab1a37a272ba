/* Z8 - 7 billion parameters, 32 layers, 8 ranks: 14 GB of bf16 weights on every rank under DDP; under FSDP 1.75 GB, and 0.44 GB more
 * for the gathered layer. Planned with Llama's shape and an inner width that makes it 7.0 billion, for a forward pass, as in
 * evaluation.
 *
 * Corrected: the next layer is gathered while this one computes, so two layers are gathered at a time; without overlap it is one. And DDP's
 * messages: "14 GB of gradients are 560 buckets of 25 MB" divides matrices, which are larger than that. A bucket holds whole parameters, so
 * each has a message of its own, and FSDP, with two gathers and a reduction of each layer, sends fewer. */
#include "lab_train.h"

static ls_model llama7b(void)
{
    ls_model m = job_of(32, 4096).model;

    m.heads = m.kv_heads = 32;
    m.ffn = 12000;
    m.vocab = 32000;
    m.max_positions = 2048;
    TRY(ls_model_check(&m));
    return m;
}

static ls_cost seven_billion_price(int zero, int overlap)
{
    ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;
    ls_store_options so = { "cpu", LS_BF16, 0, 1, 0 };
    ls_compile_options plan = { .every = 1, .plan_only = 1 };
    ls_model m = llama7b();
    ls_program *p;
    ls_store *s;
    ls_comm *comm;

    o.zero = zero;
    o.overlap = overlap;
    TRY(ls_comm_open("plan:", 0, (int)lab_size("ranks"), &comm));
    TRY(ls_store_new(&so, &s));
    TRY(ls_program_new(s, &p));
    ls_output(p, "h", ls_model_hidden(p, &m, ls_input(p, "x", LS_I32, SIZES(1, 128)), LS_NONE));
    TRY(ls_data_parallel(p, comm, &o));
    TRY(ls_program_compile(p, &plan));
    ls_cost c = ls_program_cost(p);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&comm);
    return c;
}

/* ---- messages of a training step ---- */

/* All-reduces of DDP; gathers and reduce-scatters of FSDP. */
static size_t messages(int zero)
{
    static const ls_collective kinds[] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_ALL_GATHER, LS_COLLECTIVE_REDUCE_SCATTER };
    struct job j = { .model = llama7b(), .type = LS_BF16, .time = 128, .samples = (int)lab_size("ranks"), .accumulate = 1 };
    struct training t;
    ls_comm *comm;
    size_t all = 0, calls;

    j.optimizer = job_of(1, 64).optimizer;
    j.data = job_of(1, 64).data;
    j.data.zero = zero;
    TRY(ls_comm_open("plan:", 0, j.samples, &comm));
    training_open(&j, comm, 1, &t);
    for (int k = zero > 0; k < 3; k++) {
        ls_program_comm_bytes(t.program, WHOLE_STEP, kinds[k], &calls);
        all += calls;
    }
    training_close(&t);
    ls_comm_close(&comm);
    return all;
}

LAB(z8_seven_billion, "7 billion parameters on 8 ranks", { "ranks", "data-parallel ranks", 8, 2, 128 })
{
    int ranks = (int)lab_size("ranks");
    char what[100];
    ls_model m = llama7b();
    double n = (double)ls_model_parameters(&m) - 32000.0 * 4096;  /* the forward below has no output projection */
    double layer = 4 * 4096.0 * 4096 + 3 * 4096.0 * 12000 + 2 * 4096;
    ls_cost ddp = seven_billion_price(0, 1), fsdp = seven_billion_price(3, 1), once = seven_billion_price(3, 0);

    lab_open("Z8");
    lab_check("parameters, output projection left out [billion]", 7, n / 1e9, 1e-3);
    lab_equal("DDP: weights a rank [GB]", 14, (double)ddp.parameters / 1e9, 1e-3);
    lab_equal("FSDP: weights a rank, between steps [GB]", 14.0 / ranks, (double)fsdp.parameters / 1e9, 1e-3);
    lab_equal("FSDP, no overlap: gathered at a time, about (a layer; N/32) [GB]", 0.44, (double)once.communication / 1e9, 0.03);
    lab_check("       one layer and the last norm [GB]", 2 * (layer + 4096) / 1e9, (double)once.communication / 1e9, 1e-12);
    lab_corrected("FSDP, overlap: gathered at a time [GB]", '=', 0.44, 2 * 2 * layer / 1e9, (double)fsdp.communication / 1e9, 1e-3,
                  "why: the next layer is gathered while this one computes, so two are gathered at a time");
    snprintf(what, sizeof what, "K = %d, no overlap: weights at the peak, N/K and a layer [GB]", ranks);
    lab_equal(what, 14.0 / ranks + 14.0 / 32, (double)(fsdp.parameters + once.communication) / 1e9, 0.03);
    snprintf(what, sizeof what, "K = %d, overlap: weights at the peak, N/K and two layers [GB]", ranks);
    lab_corrected(what, '=', 14.0 / ranks + 14.0 / 32, 14.0 / ranks + 2 * 2 * layer / 1e9,
                  (double)(fsdp.parameters + fsdp.communication) / 1e9, 0.01, "why: prefetch: the next layer is complete as well");
    snprintf(what, sizeof what, "K = %d, overlap: layers gathered at a time", ranks);
    lab_corrected(what, '=', 1, 2, (double)fsdp.communication / (2 * layer), 1e-3, "why: prefetch, as above");
    lab_corrected("trained: messages of DDP, buckets of 25 MiB", '=', 560, 32 * 9 + 3, (double)messages(0), 0,
                  "why: 14 GB / 25 MB divides matrices; a bucket holds whole parameters, and these are larger: one message each");
    lab_corrected("trained: messages of FSDP", '=', 96, 3 * 34 - 1, (double)messages(3), 0,
                  "why: embedding and output are units as well, and backward does not gather the embedding");
    return lab_close();
}
