/* E3 - a hot expert is a straggler: the rank that holds it has more rows to multiply, and all others wait for it at the combine.
 *
 * The experts of a Mixtral layer are sharded over --ranks ranks, two on each. A bias on the scores makes one expert everyone's choice, or
 * none. Rows are those that the ranks' routers report, and a rank's work is proportional to them: a step takes as long as the busiest
 * rank. The time of each rank's experts is also measured, one rank at a time, and so is the time that each rank waits in the all-to-alls:
 * both are printed but not compared. */
#include "lab_mesh.h"

enum { RANKS_MOST = 8, OWN = 2, EXPERTS_MOST = OWN * RANKS_MOST, CHOSEN = 2, HOT = 2, TIMED = 7, STEPS = 3, WIDTH = 128 };

struct shared { int hot; double load[RANKS_MOST][EXPERTS_MOST], waited[RANKS_MOST]; };

static int hot_ranks(void) { return (int)lab_size("ranks"); }

static struct net hot_expert_net_of(void)
{
    struct net n = net_experts(1, WIDTH / 8, 64, (size_t)(OWN * hot_ranks()), CHOSEN);

    n.samples = 2 * hot_ranks();
    n.shape.dp = n.shape.ep = hot_ranks();
    n.model.router_bias_rate = 1e-6; /* creates the bias */
    return n;
}

static void hot_expert_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    struct net net = hot_expert_net_of();
    float bias[EXPERTS_MOST] = { 0 };
    struct distributed t;

    distributed_open(&net, comm, 0, &t);
    if (s->hot) bias[HOT] = 2;  /* scores are 1 at most */
    TRY(ls_store_set(t.store, (size_t)ls_store_find(t.store, "model.layers.0.mlp.gate.bias"), bias, LS_F32, (size_t)(OWN * n)));
    ls_comm *ep = ls_mesh_comm(t.mesh, LS_GROUP_EP);
    for (int step = 0; step < STEPS; step++) {
        if (step == 1) s->waited[rank] = -ls_comm_counters(ep, LS_COLLECTIVE_ALL_TO_ALL).exposed;  /* the first begins at different times */
        distributed_step(&t, step);
        if (step == 0) TRY(ls_program_read(t.program, "model.layers.0.expert_load", s->load[rank], LS_F64, (size_t)(OWN * n)));
    }
    s->waited[rank] = (s->waited[rank] + ls_comm_counters(ep, LS_COLLECTIVE_ALL_TO_ALL).exposed) / (STEPS - 1);
    distributed_close(&t);
}

/* Seconds of the three matmuls of a rank's experts, whose rows are these. */
static double experts(const double *rows)
{
    struct net n = hot_expert_net_of();
    size_t C = WIDTH, F = n.model.expert_ffn, M = (size_t)n.samples * n.time * CHOSEN;
    float *data = calloc(M * C, sizeof *data);
    double best = 1e9;
    int32_t count[OWN];
    ls_program *p;
    ls_store *s;

    if (!data) exit(1);
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_F32, SIZES(M, C));
    ls_value counts = ls_input(p, "counts", LS_I32, SIZES(1, OWN));
    ls_value gate = ls_grouped_linear(p, x, ls_param(p, "gate", (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(OWN, F, C)), counts);
    ls_value up = ls_grouped_linear(p, x, ls_param(p, "up", (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(OWN, F, C)), counts);
    ls_output(p, "y",
              ls_grouped_linear(p, ls_mul(p, gate, up), ls_param(p, "down", (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(OWN, C, F)), counts));
    TRY(ls_program_compile(p, NULL));
    for (size_t i = 0; i < M * C; i++) data[i] = (float)(i % 7) - 3;
    for (int e = 0; e < OWN; e++) count[e] = (int32_t)rows[e];
    TRY(ls_program_write(p, "x", data, LS_F32, M * C));
    TRY(ls_program_write(p, "counts", count, LS_I32, OWN));
    for (int k = 0; k < TIMED; k++) {
        double from = seconds_now();

        TRY(ls_program_run(p, LS_FORWARD));
        best = fmin(best, seconds_now() - from);
    }
    ls_program_release(&p);
    ls_store_release(&s);
    free(data);
    return best;
}

struct seen { double rows[RANKS_MOST], seconds[RANKS_MOST], most, sum; };

static struct seen look(const struct shared *s)
{
    double load[EXPERTS_MOST] = { 0 };
    struct seen out = { 0 };
    int n = hot_ranks();

    for (int r = 0; r < n; r++)
        for (int e = 0; e < OWN * n; e++) {
            load[e] += s->load[r][e];
            out.rows[e / OWN] += s->load[r][e];
        }
    lab_say("%s\n%6s %18s %8s %14s %26s\n", s->hot ? "one expert is everyone's choice" : "as the router chooses", "rank", "rows by expert",
           "rows", "its experts, ms", "waits in a step, ms");
    for (int r = 0; r < n; r++) {
        out.seconds[r] = experts(load + r * OWN);
        lab_say("%6d %11.0f %6.0f %8.0f %14.3f %26.3f\n", r, load[r * OWN], load[r * OWN + 1], out.rows[r], 1e3 * out.seconds[r],
               1e3 * s->waited[r]);
        out.most = fmax(out.most, out.rows[r]);
        out.sum += out.rows[r];
    }
    lab_say("\n");
    return out;
}

LAB(e3_hot_expert, "a hot expert", { "ranks", "ranks, with two experts each", 4, 2, RANKS_MOST })
{
    struct shared *even = lab_shared(sizeof *even), *hot = lab_shared(sizeof *hot);
    struct net n = hot_expert_net_of();
    double tokens = n.samples * (double)n.time;

    hot->hot = 1;
    lab_ranks(hot_ranks(), hot_expert_run, even);
    lab_ranks(hot_ranks(), hot_expert_run, hot);
    struct seen e = look(even);
    struct seen h = look(hot);
    lab_open("E3");
    lab_check("rows of all ranks, K for each token: as the router chooses", CHOSEN * tokens, e.sum, 0);
    lab_check("        with a hot expert", CHOSEN * tokens, h.sum, 0);
    lab_above("hot: its rank's rows, every token once and more", tokens, h.rows[HOT / OWN]);
    lab_equal("        it is the busiest rank: its rows / the most", 1, h.rows[HOT / OWN] / h.most, 0);
    lab_above("the busiest rank's rows, which all wait for: hot / as the router chooses", 1, h.most / e.most);
    lab_not_measurable("seconds that the other ranks wait",
                       "why: ranks share cores; needs a core for each rank");
    lab_unshare(even, sizeof *even);
    lab_unshare(hot, sizeof *hot);
    return lab_close();
}
