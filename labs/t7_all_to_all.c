/* T7 - the alternative way of context parallelism (Ulysses, Jacobs et al. 2023): before attention an all-to-all exchanges tokens for
 * heads, so that each rank has all tokens of some heads, and after it another one exchanges them back. The same training.
 *
 * Bytes compared with the ring's, for a layer's forward with b samples of t tokens, H query heads and G key-value heads of size D, over
 * n ranks. The exchange sends (n-1)/n of a rank's q, k, v and output: (2H + 2G) D b t/n (n-1)/n. The ring sends keys and values n-1
 * times: 2 G D b t/n (n-1). So the exchange's bytes fall with n and the ring's do not; the ring's fall with G, and it does not need as
 * many heads as ranks: if G < n the exchange gathers all keys and values, which takes the ring's bytes. In backward the exchange sends
 * the same again; the ring sends keys and values n-1 times and their gradients n times, until they are back on their own rank. */
#include "lab_mesh.h"

enum { MOST = 4, SIZE = 8 };

struct found { double apart, sent, planned; };

static struct net all_to_all_net_of(size_t heads, size_t kv_heads, size_t time, int cp, ls_cp_method context)
{
    struct net n = net_gpt2(2, heads, time);

    n.model.architecture = LS_LLAMA;
    n.model.kv_heads = kv_heads;
    n.model.rope = (ls_rope)LS_ROPE_DEFAULTS;
    n.shape.cp = cp;
    n.options.cp_method = context;
    return n;
}

static void all_to_all_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct net net = all_to_all_net_of(4, 4, 25, n, LS_CP_ALL_TO_ALL), alone = all_to_all_net_of(4, 4, 25, 1, LS_CP_RING);
    struct distributed s, one;

    alone.sharded = 0;
    distributed_open(&net, comm, 0, &s);
    distributed_open(&alone, NULL, 0, &one);
    f->planned = (double)ls_program_comm_bytes(s.program, WHOLE_STEP, LS_COLLECTIVE_ALL_TO_ALL, NULL);
    for (int step = 0; step < 3; step++) {
        double loss = distributed_step(&s, step), whole = distributed_step(&one, step);

        f->apart = fmax(f->apart, fabs(loss / whole - 1));
        f->apart = fmax(f->apart, distributed_apart(&s, &one, "gradient"));
    }
    f->sent = (double)sent(ls_mesh_comm(s.mesh, LS_GROUP_CP), LS_COLLECTIVE_ALL_TO_ALL) / 3;
    distributed_close(&s);
    distributed_close(&one);
}

struct traffic { double forward, backward; };

/* Bytes over cp of all layers. */
static double all_to_all_bytes_of(const ls_program *p, int segments, ls_cp_method context)
{
    if (context == LS_CP_RING) return (double)ls_program_comm_bytes(p, segments, LS_COLLECTIVE_SEND, NULL);
    return (double)ls_program_comm_bytes(p, segments, LS_COLLECTIVE_ALL_TO_ALL, NULL) +
           (double)ls_program_comm_bytes(p, segments, LS_COLLECTIVE_ALL_GATHER, NULL) +
           (double)ls_program_comm_bytes(p, segments, LS_COLLECTIVE_REDUCE_SCATTER, NULL);
}

/* Bytes of one layer on rank 0. */
static struct traffic traffic(size_t heads, size_t kv_heads, int cp, ls_cp_method context)
{
    struct net n = all_to_all_net_of(heads, kv_heads, 256, cp, context);
    struct traffic t;
    struct distributed s;

    n.shape.dp = 1;
    distributed_plan(&n, 0, cp, &s);
    t.forward = all_to_all_bytes_of(s.program, LS_FORWARD, context) / 2;
    t.backward = all_to_all_bytes_of(s.program, LS_FORWARD | LS_BACKWARD, context) / 2 - t.forward;
    distributed_close(&s);
    return t;
}

/* What a rank sends for a layer's forward, by the formulas. */
static void bytes_formula(double H, double G, int cp, double *ring, double *exchange)
{
    double shard = 4.0 * 4 * 256 / cp * SIZE;

    *ring = 2 * G * shard * (cp - 1);
    *exchange = 2 * H * shard * (cp - 1) / cp + (G < cp ? *ring : *ring / cp);
}

static double beside(void)
{
    static const size_t heads[][2] = { { 8, 8 }, { 8, 2 }, { 16, 2 } };
    double off = 0;

    lab_say("kB that a rank sends for a layer, 4 samples of 256 tokens in f32\n%4s %4s %4s %10s %10s %16s %10s %10s %10s\n", "H", "G", "cp",
           "ring", "backward", "all-to-all", "backward", "formula", "formula");
    for (int h = 0; h < 3; h++)
        for (int cp = 2; cp <= 8; cp *= 2) {
            double H = (double)heads[h][0], G = (double)heads[h][1], ring, exchange;
            struct traffic r = traffic(heads[h][0], heads[h][1], cp, LS_CP_RING);
            struct traffic a = traffic(heads[h][0], heads[h][1], cp, LS_CP_ALL_TO_ALL);

            bytes_formula(H, G, cp, &ring, &exchange);
            lab_say("%4.0f %4.0f %4d %10.1f %10.1f %16.1f %10.1f %10.1f %10.1f\n", H, G, cp, r.forward / 1e3, r.backward / 1e3,
                   a.forward / 1e3, a.backward / 1e3, ring / 1e3, exchange / 1e3);
            off = fmax(off, fmax(fabs(r.forward - ring), fabs(a.forward - exchange)));
            off = fmax(off, fmax(fabs(r.backward - ring * (2 * cp - 1) / (cp - 1)), fabs(a.backward - exchange)));
        }
    lab_say("\n");
    return off;
}

/* The sizes that were chosen. */
static void t7_chosen(void)
{
    size_t heads = (size_t)lab_size("heads"), kv_heads = (size_t)lab_size("kv-heads");
    double ring, exchange, even = 256 % lab_size("ranks") || kv_heads % (size_t)lab_size("ranks") ? 0.2 : 1e-12;
    int cp = (int)lab_size("ranks");
    char what[96];

    bytes_formula((double)heads, (double)kv_heads, cp, &ring, &exchange);
    snprintf(what, sizeof what, "%zu heads, %zu K/V heads, cp %d: the exchange's bytes / the ring's", heads, kv_heads, cp);
    lab_check(what, exchange / ring,
              traffic(heads, kv_heads, cp, LS_CP_ALL_TO_ALL).forward / traffic(heads, kv_heads, cp, LS_CP_RING).forward, even);
}

LAB(t7_all_to_all, "all-to-all over heads", { "ranks", "ranks of context parallelism", 8, 2, 32 },
    { "heads", "attention heads, a multiple of those of keys and values", 32, 8, 256 },
    { "kv-heads", "heads of keys and values", 8, 1, 256 })
{
    struct found *f = lab_shared(MOST * sizeof *f);
    double apart[MOST + 1] = { 0 }, off[MOST + 1] = { 0 };
    char what[80];

    for (int n = 2; n <= MOST; n += 2) {
        memset(f, 0, MOST * sizeof *f);
        lab_ranks(n, all_to_all_run, f);
        for (int r = 0; r < n; r++) {
            apart[n] = fmax(apart[n], f[r].apart);
            off[n] += fabs(f[r].sent - f[r].planned);
        }
    }
    f[0].sent = beside();
    lab_open("T7");
    for (int n = 2; n <= MOST; n += 2) {
        snprintf(what, sizeof what, "cp %d, 25 tokens, 3 steps: apart from one rank, relative", n);
        lab_check_below(what, 1e-5, apart[n]);
        lab_check("        bytes sent but not planned by the program", 0, off[n], 0);
    }
    lab_equal("ring and exchange: bytes off from the formulas, at most", 0, f[0].sent, 1e-6);
    lab_equal("H = G: the exchange's bytes / the ring's, 2/n: cp 8", 2.0 / 8,
              traffic(8, 8, 8, LS_CP_ALL_TO_ALL).forward / traffic(8, 8, 8, LS_CP_RING).forward, 1e-12);
    lab_equal("the exchange's bytes from cp 4 to cp 8: (n-1)/n^2 each", 7.0 / 64 / (3.0 / 16),
              traffic(8, 8, 8, LS_CP_ALL_TO_ALL).forward / traffic(8, 8, 4, LS_CP_ALL_TO_ALL).forward, 1e-12);
    lab_equal("        the ring's: (n-1)/n each", 7.0 / 8 / (3.0 / 4),
              traffic(8, 8, 8, LS_CP_RING).forward / traffic(8, 8, 4, LS_CP_RING).forward, 1e-12);
    t7_chosen();
    lab_unshare(f, MOST * sizeof *f);
    return lab_close();
}
