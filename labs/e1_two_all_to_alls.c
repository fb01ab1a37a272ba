/* E1 - expert parallelism needs two all-to-alls per MoE layer in forward. Dispatch sends each token's row to the ranks that have its
 * experts, combine returns their outputs; in backward the gradients take the same way, with two more.
 *
 * W3 - it is said that these all-to-alls cannot overlap with compute. What a token's experts compute has to wait for its rows, but a shared
 * expert, which every token passes, and the gradients of the experts' weights can be computed meanwhile.
 *
 * A Mixtral of 2 layers on real ranks, with experts sharded over all of them. Before rows are sent, the ranks exchange how many there
 * are: one more all-to-all of a few counts per layer, whose bytes are counted too. How many rows go to which rank is known at run time,
 * from the routing: the counted bytes are compared with the loads that the ranks' routers report, in both directions; with an even
 * routing they are those of the plan, 4 (n-1)/n K b s d per layer. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { MOST = 4, LAYERS = 2, EXPERTS = 8, CHOSEN = 2, STEPS = 2 };

struct found { double forward, backward, calls, bytes, said, load[STEPS][LAYERS][EXPERTS], apart; };

static struct net two_all_to_alls_net_of(int n)
{
    struct net net = net_experts(LAYERS, 4, 24, EXPERTS, CHOSEN);

    net.samples = 12;
    net.shape.dp = net.shape.ep = n;
    net.sharded = n > 1;
    return net;
}

static void read_loads(const struct distributed *s, double load[LAYERS][EXPERTS])
{
    char name[64];

    for (int l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "model.layers.%d.expert_load", l);
        TRY(ls_program_read(s->program, name, load[l], LS_F64, EXPERTS));
    }
}

static int begins_all_to_all(const ls_instruction *i)
{
    return i->exchange == LS_EXCHANGE_START && i->collective == LS_COLLECTIVE_ALL_TO_ALL;
}

static void two_all_to_alls_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct net net = two_all_to_alls_net_of(n), alone = two_all_to_alls_net_of(1);
    struct distributed s, one;

    distributed_open(&net, comm, 0, &s);
    distributed_open(&alone, NULL, 0, &one);
    struct instructions l = instructions_of(s.program);
    for (int k = 0; k < l.n; k++)
        if (begins_all_to_all(&l.at[k])) *(l.at[k].segment == LS_FORWARD ? &f->forward : &f->backward) += 1;
    free(l.at);
    f->said = (double)ls_program_comm_bytes(s.program, WHOLE_STEP, LS_COLLECTIVE_ALL_TO_ALL, NULL);
    for (int step = 0; step < STEPS; step++) {
        double loss = distributed_step(&s, step);

        read_loads(&s, f->load[step]);
        f->apart = fmax(f->apart, fabs(loss / distributed_step(&one, step) - 1));
        /* later gradients are of other weights: an update by Adam enlarges the rounding of gradients near 0 */
        if (step == 0) f->apart = fmax(f->apart, distributed_apart(&s, &one, "gradient"));
    }
    ls_comm *ep = ls_mesh_comm(s.mesh, LS_GROUP_EP);
    f->calls = (double)ls_comm_counters(ep, LS_COLLECTIVE_ALL_TO_ALL).calls;
    f->bytes = (double)ls_comm_counters(ep, LS_COLLECTIVE_ALL_TO_ALL).bytes;
    distributed_close(&s);
    distributed_close(&one);
}

/* Rows of rank `from` for experts of rank `to`, all layers and steps. */
static double e1_rows(const struct found *f, int from, int to, int n)
{
    double sum = 0;

    for (int s = 0; s < STEPS; s++)
        for (int l = 0; l < LAYERS; l++)
            for (int e = EXPERTS * to / n; e < EXPERTS * (to + 1) / n; e++) sum += f[from].load[s][l][e];
    return sum;
}

static void two_all_to_alls_check(int n)
{
    struct found *f = lab_shared(MOST * sizeof *f);
    struct net net = two_all_to_alls_net_of(n);
    double row = 4.0 * (double)net.model.width, off = 0, said = 0, apart = 0;
    char what[80];

    lab_ranks(n, two_all_to_alls_run, f);
    lab_say("ep %d: rows from (row) to (column), %d steps of %d layers\n", n, STEPS, LAYERS);
    for (int r = 0; r < n; r++) {
        double expected = (double)(STEPS * LAYERS * 4 * (EXPERTS / n) * (n - 1));  /* counts, i32 */

        for (int q = 0; q < n; q++) {
            lab_say(" %8.0f", e1_rows(f, r, q, n));
            if (q != r) expected += 2 * row * (e1_rows(f, r, q, n) + e1_rows(f, q, r, n));  /* forward and back; its gradient */
        }
        lab_say("\n");
        off += fabs(f[r].bytes - expected);
        said += f[r].said;
        apart = fmax(apart, f[r].apart);
    }
    lab_say("\n");
    double calls = f[0].calls / STEPS / LAYERS;
    double even = LAYERS * 4 * (n - 1.0) / n * CHOSEN * row * net.samples * (double)net.time;
    snprintf(what, sizeof what, "ep %d: all-to-alls per layer, forward", n);
    lab_equal(what, 2, f[0].forward / LAYERS, 0);
    lab_equal("        backward", 2, f[0].backward / LAYERS, 0);
    lab_corrected("        forward and backward, counted in a run", '=', 4, 5, calls, 0,
                  "why: ranks first exchange how many rows to expect: one more all-to-all, of a few counts, per layer");
    lab_check("        planned for an even routing: 4 (n-1)/n K b s d a layer [bytes]", even, said, 1e-12);
    lab_check("        counted, off from the rows of the routers' loads, ranks' sum [bytes]", 0, off, 0);
    lab_check_below("        losses, and the first step's gradients, apart from one rank's, relative", 1e-5, apart);
    lab_unshare(f, MOST * sizeof *f);
}

/* ---- planned, for the sizes of the options ---- */

static void planned_layers(int n, size_t experts, size_t layers)
{
    struct net net = net_experts(layers, 4, 24, experts, CHOSEN);
    double shuffles = 0, own = 0;
    struct distributed s;
    char what[80];

    net.samples = net.shape.dp = net.shape.ep = n;
    distributed_plan(&net, 0, n, &s);
    struct instructions l = instructions_of(s.program);
    for (int k = 0; k < l.n; k++) {
        shuffles += begins_all_to_all(&l.at[k]);
        if (is_op(&l.at[k], "grouped_linear")) own = (double)l.at[k].in[1].size[0];
    }
    free(l.at);
    distributed_close(&s);
    snprintf(what, sizeof what, "ep %d, %zu experts: experts of a rank", n, experts);
    lab_check(what, (double)experts / n, own, 0);
    snprintf(what, sizeof what, "%zu layers: all-to-alls of tokens, forward and backward", layers);
    lab_equal(what, 4.0 * (double)layers, shuffles, 0);
}

/* An all-to-all of 1 GB a rank, and an all-reduce of it. */
static void planned_bytes(int n)
{
    size_t count = 250000000 / (size_t)n;
    char what[80];
    ls_comm *c;

    TRY(ls_comm_open("plan:", 0, n, &c));
    double exchanged = (double)ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_TO_ALL, count, NULL, LS_F32);
    double reduced = (double)ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_REDUCE, count * (size_t)n, NULL, LS_F32);
    ls_comm_close(&c);
    snprintf(what, sizeof what, "%d ranks: sent by a rank in an all-to-all of 1,000 MB [MB]", n);
    lab_check(what, 1000.0 * (n - 1) / n, exchanged / 1e6, 1e-5);
    lab_check("        in an all-reduce of it, twice that [MB]", 2000.0 * (n - 1) / n, reduced / 1e6, 1e-5);
}

/* Exchanges of rows between whose start and wait something computes. */
static double exchanges_that_overlap(size_t layers, size_t shared)
{
    struct net net = net_experts(layers, 4, 24, EXPERTS, CHOSEN);
    struct distributed s;
    double found = 0;

    if (shared) net.model.architecture = LS_QWEN3_MOE;
    net.model.shared_ffn = shared;
    net.samples = net.shape.dp = net.shape.ep = 2;
    distributed_plan(&net, 0, 2, &s);
    struct instructions l = instructions_of(s.program);
    for (int k = 0; k < l.n; k++) {
        double flops = 0;

        if (!begins_all_to_all(&l.at[k])) continue;
        for (int between = k + 1; between < wait_of(&l, k); between++) flops += l.at[between].flops;
        found += flops > 0;
    }
    free(l.at);
    distributed_close(&s);
    return found;
}

static void said_of_overlap(size_t layers)
{
    char what[80];

    lab_open("W3");
    snprintf(what, sizeof what, "%zu layers with a shared expert: all-to-alls of tokens that overlap", layers);
    lab_corrected(what, '=', 0, 4.0 * (double)layers, exchanges_that_overlap(layers, 32), 0,
                  "why: half of the shared expert computes in each; in backward its gradients and those of the experts' weights");
    lab_corrected("        without a shared expert", '=', 0, (double)layers, exchanges_that_overlap(layers, 0), 0,
                  "why: in backward the experts' weight gradients compute while the gradients of rows return");
}

LAB(e1_two_all_to_alls, "all-to-alls of experts", { "ranks", "ranks over which experts are planned", 8, 2, 64 },
    { "experts", "experts of a layer, a multiple of the ranks", 64, 8, 256 }, { "layers", "layers of experts, planned", 4, 1, 64 })
{
    int n = (int)lab_size("ranks");
    size_t experts = (size_t)lab_size("experts");

    if (experts % (size_t)n) {
        fprintf(stderr, "lab e1_two_all_to_alls: %zu experts are not divisible by %d ranks\n", experts, n);
        exit(1);
    }
    lab_open("E1");
    for (int k = 2; k <= MOST; k += 2) two_all_to_alls_check(k);
    planned_layers(n, experts, (size_t)lab_size("layers"));
    planned_bytes(n);
    said_of_overlap((size_t)lab_size("layers"));
    return lab_close();
}
