/* T3 - each all-reduce of tensor parallelism moves b s d: b = 4, s = 2048, d = 8192 in bf16 is 134 MB; two per layer and 40 layers make
 * 10.7 GB per forward pass: 17 ms on NVLink (600 GB/s), 200 ms on InfiniBand (50 GB/s).
 *
 * Corrected as in C6: those are the times in which the bytes pass a link once. In an all-reduce of T ranks each rank sends 2 (T-1)/T b
 * s d: 1.75 times as much on 8 ranks. The formula is counted on real ranks with a small model, and planned for the claim's model; its
 * vocabulary-parallel embedding adds one all-reduce to the 80. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { MOST = 4, HEAD = 128 };

struct found { double bytes, elements; };

/* A forward and backward counted on the ranks; elements: b s d of each all-reduce by the program's text. */
static void bytes_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct net net = net_gpt2(2, 4, 16);
    struct distributed s;

    net.shape.tp = n;
    distributed_open(&net, comm, 0, &s);
    ls_comm *tp = ls_mesh_comm(s.mesh, LS_GROUP_TP);
    uint64_t before = ls_comm_counters(tp, LS_COLLECTIVE_ALL_REDUCE).bytes;
    distributed_step(&s, 0);
    f->bytes = (double)(ls_comm_counters(tp, LS_COLLECTIVE_ALL_REDUCE).bytes - before);
    struct instructions l = instructions_of(s.program);
    for (int k = 0; k < l.n; k++)
        if (is_op(&l.at[k], "all_reduce") && l.at[k].axis == LS_AXIS_TP) f->elements += (double)l.at[k].elements;
    free(l.at);
    distributed_close(&s);
}

static void bytes_small(int n)
{
    struct found *f = lab_shared(MOST * sizeof *f);
    struct net net = net_gpt2(2, 4, 16);
    double bsd = (double)net.samples * (double)net.time * (double)net.model.width, all = 0;
    char what[80];

    lab_ranks(n, bytes_run, f);
    for (int r = 0; r < n; r++) all += f[r].bytes;
    snprintf(what, sizeof what, "tp %d, 2 layers: a step's all-reduces, in b s d", n);
    lab_check(what, 2 * (2 * 2 + 1), f[0].elements / bsd, 0);
    lab_check("        counted bytes a rank and all-reduce, in b s d: 2 (T-1)/T", 2.0 * (n - 1) / n, all / n / 10 / (4 * bsd), 1e-12);
    lab_unshare(f, MOST * sizeof *f);
}

/* A forward pass of the claim's model on one rank of T, planned. */
static double forward(size_t *calls)
{
    size_t width = (size_t)lab_size("width"), time = (size_t)lab_size("seq-len"), batch = (size_t)lab_size("batch");
    int T = (int)lab_size("ranks");
    ls_store_options so = { "cpu", LS_BF16, 0, 1, 0 };
    ls_compile_options plan = { .every = 1, .plan_only = 1 };
    ls_partition_options o = LS_PARTITION_DEFAULTS;
    struct net n = net_gpt2((size_t)lab_size("layers"), width / HEAD, time);
    ls_comm *world;
    ls_program *p;
    ls_mesh *m;
    ls_store *s;

    n.model.width = width;
    n.model.ffn = 4 * width;
    n.model.vocab = 32000;
    n.shape.dp = 1;
    n.shape.tp = T;
    TRY(ls_comm_open("plan:", 0, T, &world));
    TRY(ls_mesh_open(world, &n.shape, &m));
    TRY(ls_store_new(&so, &s));
    TRY(ls_program_new(s, &p));
    ls_output(p, "h", ls_model_hidden(p, &n.model, ls_input(p, "x", LS_I32, SIZES(batch, time)), LS_NONE));
    TRY(ls_partition(p, m, &n.model, &o));
    TRY(ls_program_compile(p, &plan));
    double bytes = (double)ls_program_comm_bytes(p, LS_FORWARD, LS_COLLECTIVE_ALL_REDUCE, calls);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_mesh_close(&m);
    ls_comm_close(&world);
    return bytes;
}

enum { NODE = 8 }; /* GPUs of a DGX H100 */

/* Planned bytes per second of the all-reduces over tp of this many ranks, two layers of a 70B model on machines of eight. */
static double rate(int tp)
{
    static const char options[] = "-n %d --parallel.tp=%d --machine h100-dgx --model.preset=llama3-70b --model.layers=2 --model.vocab=1000 "
                                  "--data.seq_len=4096 --train.micro_batch=1";
    double seconds = lab_plan("seconds.exposed.tp", options, tp, tp) + lab_plan("seconds.hidden.tp", options, tp, tp);

    return lab_plan("comm.all_reduce.bytes", options, tp, tp) / seconds;
}

/* The largest tp whose rate is still within a tenth of that of a whole node. */
static int node(void)
{
    double whole = rate(NODE);
    int within = 2;

    for (int tp = 2; tp <= 64; tp *= 2) {
        double here = rate(tp), part = here / whole;

        lab_say("DGX H100, tp %2d: planned rate of the all-reduces %5.1f GB/s, %.2f of tp %d's\n", tp, here / 1e9, part, NODE);
        if (part > 0.9) within = tp;
    }
    lab_say("\n");
    return within;
}

/* The sizes that the claim is about. */
static int is_claimed(void)
{
    return lab_size("ranks") == 8 && lab_size("layers") == 40 && lab_size("batch") == 4 && lab_size("seq-len") == 2048 &&
           lab_size("width") == 8192;
}

/* What follows from the counted bytes for any sizes. */
static void any_sizes(double sent, size_t calls)
{
    double T = (double)lab_size("ranks"), layers = (double)lab_size("layers"), ring = 2 * (T - 1) / T;
    double bsd = 2.0 * (double)lab_size("batch") * (double)lab_size("seq-len") * (double)lab_size("width");

    lab_check("all-reduces of a forward pass: 2 L and the embedding's", 2 * layers + 1, (double)calls, 0);
    lab_check("one of them: payload, b s d in bf16 [MB]", bsd / 1e6, sent / (double)calls / ring / 1e6, 1e-5);
    lab_check("the layers' 2 L: payload of a forward pass [GB]", 2 * layers * bsd / 1e9, sent / ring * 2 * layers / (double)calls / 1e9,
              1e-5);
    if (T > 2)
        lab_corrected("the layers' 2 L: sent by a rank in a forward pass [GB]", '=', 2 * layers * bsd / 1e9, 2 * layers * ring * bsd / 1e9,
                      sent * 2 * layers / (double)calls / 1e9, 1e-5, "why: a ring of T ranks sends 2 (T-1)/T of the payload");
    else
        lab_check("the layers' 2 L: sent by a rank in a forward pass [GB]", 2 * layers * bsd / 1e9,
                  sent * 2 * layers / (double)calls / 1e9, 1e-5);
    lab_check("one of them: the bytes that a rank sends, at 600 GB/s [ms]", ring * bsd / 600e9 * 1e3, sent / (double)calls / 600e9 * 1e3,
              1e-5);
    lab_check("one of them: the bytes that a rank sends, at 50 GB/s [ms]", ring * bsd / 50e9 * 1e3, sent / (double)calls / 50e9 * 1e3,
              1e-5);
}

LAB(t3_bytes, "bytes of tensor parallelism", { "ranks", "ranks of tensor parallelism", 8, 2, 64 },
    { "layers", "layers of the model", 40, 1, 200 }, { "batch", "samples of a micro-batch", 4, 1, 1024 },
    { "seq-len", "tokens of a sample", 2048, 16, 1 << 20 }, { "width", "width of the model, a multiple of 128", 8192, 256, 65536 })
{
    double bsd = 4.0 * 2048 * 8192;
    enum { T = 8, LAYERS = 40 };
    int within = node();
    size_t calls;

    lab_open("T3");
    for (int n = 2; n <= MOST; n++) bytes_small(n);
    double sent = forward(&calls);
    any_sizes(sent, calls);
    lab_check("DGX H100: the largest tp at NVLink's planned rate, the GPUs of a node", 8, within, 0);
    if (!is_claimed()) return lab_close();
    lab_corrected("40 layers, tp 8: all-reduces of a forward pass", '=', 2 * LAYERS, 2 * LAYERS + 1, (double)calls, 0,
                  "why: the layers have 80; the vocabulary-parallel embedding adds one");
    lab_equal("        each of them, b s d in bf16 [MB]", 134, sent / (double)calls / (2.0 * (T - 1) / T) / 1e6, 2e-3);
    double moved = sent / (2.0 * (T - 1) / T) * 2 * LAYERS / (double)calls;
    lab_equal("        the 80 of the layers [GB]", 10.7, moved / 1e9, 5e-3);
    lab_corrected("NVLink, 600 GB/s: these bytes sent once over a link [ms]", '=', 17, 17.9, moved / 600e9 * 1e3, 2e-3,
                  "why: the claim rounds the bytes to 10 GB");
    lab_corrected("InfiniBand, 50 GB/s: the same [ms]", '=', 200, 214.7, moved / 50e9 * 1e3, 2e-3,
                  "why: the claim rounds the bytes to 10 GB");
    sent *= 2.0 * LAYERS / (double)calls;
    lab_corrected("sent by each of 8 ranks in the layers' all-reduces [GB]", '=', 10.7, 1.75 * 2 * bsd * 2 * LAYERS / 1e9, sent / 1e9, 1e-9,
                  "why: each rank sends 2 (T-1)/T times the tensor, 1.75 times for 8 ranks");
    lab_corrected("NVLink: these all-reduces [ms]", '=', 17, 31.3, sent / 600e9 * 1e3, 2e-3,
                  "why: 1.75 times the bytes; at NVLink's 300 GB/s in one direction it is 63 ms, with nothing to overlap it");
    lab_corrected("InfiniBand: these all-reduces [ms]", '=', 200, 376, sent / 50e9 * 1e3, 2e-3, "why: 1.75 times the bytes");
    lab_not_measurable("measured time of the all-reduces on such links",
                       "why: this machine has no NVLink and no InfiniBand; needs eight GPUs, in one node and in two");
    return lab_close();
}
