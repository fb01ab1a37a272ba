/* Z8 - 7 billion parameters, 32 layers, 8 ranks: 14 GB of bf16 weights on every rank under DDP; under FSDP 1.75 GB, and 0.44 GB more
 * for the gathered layer. Planned with Llama's shape and an inner width that makes it 7.0 billion, for a forward pass, as in
 * evaluation.
 *
 * Corrected: the next layer is gathered while this one computes, so two layers are gathered at a time; without overlap it is one. */
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
    ls_store_options so = { "cpu", LS_BF16, 0, 1 };
    ls_compile_options plan = { .every = 1, .plan_only = 1 };
    ls_model m = llama7b();
    ls_program *p;
    ls_store *s;
    ls_comm *comm;
    ls_cost c;

    o.zero = zero;
    o.overlap = overlap;
    TRY(ls_comm_open("plan:", 0, 8, &comm));
    TRY(ls_store_new(&so, &s));
    TRY(ls_program_new(s, &p));
    ls_output(p, "h", ls_model_hidden(p, &m, ls_input(p, "x", LS_I32, SIZES(1, 128)), LS_NONE));
    TRY(ls_data_parallel(p, comm, &o));
    TRY(ls_program_compile(p, &plan));
    c = ls_program_cost(p);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_comm_close(&comm);
    return c;
}

LAB(z8_seven_billion, "7 billion parameters on 8 ranks")
{
    ls_model m = llama7b();
    double n = (double)ls_model_parameters(&m) - 32000.0 * 4096;  /* the forward below has no output projection */
    double layer = 4 * 4096.0 * 4096 + 3 * 4096.0 * 12000 + 2 * 4096;
    ls_cost ddp = seven_billion_price(0, 1), fsdp = seven_billion_price(3, 1), once = seven_billion_price(3, 0);

    lab_open("Z8");
    lab_check("parameters, output projection left out [billion]", 7, n / 1e9, 1e-3);
    lab_equal("DDP: weights a rank [GB]", 14, (double)ddp.parameters / 1e9, 1e-3);
    lab_equal("FSDP: weights a rank, between steps [GB]", 1.75, (double)fsdp.parameters / 1e9, 1e-3);
    lab_equal("FSDP, no overlap: gathered at a time, about (a layer; N/32) [GB]", 0.44, (double)once.communication / 1e9, 0.03);
    lab_check("       one layer and the last norm [GB]", 2 * (layer + 4096) / 1e9, (double)once.communication / 1e9, 1e-12);
    lab_corrected("FSDP, overlap: gathered at a time [GB]", '=', 0.44, 2 * 2 * layer / 1e9, (double)fsdp.communication / 1e9, 1e-3,
                  "why: the next layer is gathered while this one computes, so two are gathered at a time");
    return lab_close();
}
