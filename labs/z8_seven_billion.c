/* Z8 - 7 billion parameters, 32 layers, 8 ranks: 14 GB of bf16 weights on every rank under DDP; under FSDP 1.75 GB, and 0.44 GB
 * more for the layer that is gathered. Priced with the shape of Llama's 7B: a forward pass, as in evaluation.
 *
 * Here the next layer is gathered while this one computes: two layers are whole at a time, 0.8 GB; laid out in one arena with
 * units of other sizes they take at most three layers' room. Without overlap it is one layer. */
#include "lab_train.h"

static ls_model llama7b(void)
{
    ls_model m = job_of(32, 4096).model;

    m.heads = m.kv_heads = 32;
    m.ffn = 11008;
    m.vocab = 32000;
    m.max_positions = 2048;
    TRY(ls_model_check(&m));
    return m;
}

static ls_cost price(int zero, int overlap)
{
    ls_data_options o = LS_DATA_DEFAULTS;
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

int main(void)
{
    ls_model m = llama7b();
    double n = (double)ls_model_parameters(&m) - 32000.0 * 4096;  /* the forward below has no output projection */
    double layer = 4 * 4096.0 * 4096 + 3 * 4096.0 * 11008 + 2 * 4096;
    ls_cost ddp = price(0, 1), fsdp = price(3, 1), once = price(3, 0);

    lab_open("Z8", "7B, 32 layers, K = 8: 14 GB of weights under DDP; 1.75 GB + 0.44 GB under FSDP");
    printf("(Llama's 7B without its output projection has %.2f billion parameters; the claim's numbers are for 7)\n", n / 1e9);
    lab_equal("DDP: GB of weights a rank", 14 * n / 7e9, (double)ddp.parameters / 1e9, 1e-9);
    lab_equal("FSDP: GB of weights a rank", 1.75 * n / 7e9, (double)fsdp.parameters / 1e9, 1e-9);
    lab_equal("FSDP, no overlap: GB gathered, one layer (and the last norm)", 2 * (layer + 4096) / 1e9,
              (double)once.communication / 1e9, 1e-12);
    lab_equal("       against N/32, though the embedding is in no layer", 14.0 / 32 * n / 7e9,
              (double)once.communication / 1e9, 0.05);
    lab_above("FSDP, overlap: layers gathered, and room between them", 1.99, (double)fsdp.communication / (2 * layer));
    lab_below("", 2.01, (double)fsdp.communication / (2 * layer));
    lab_below("FSDP, overlap: all of it, of DDP's", 0.22,
              (double)(fsdp.parameters + fsdp.communication) / (double)ddp.parameters);
    return lab_close();
}
