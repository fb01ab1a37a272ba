/* M1 - dp x tp x pp (x cp, with ep inside) = ranks, each used once; tensor parallelism inside a node, pipelines across nodes, data
 * parallelism everywhere. Sizes that do not multiply to the number of ranks are refused with the equation.
 *
 * The reason for this order is the number of bytes that a rank sends per step: a model of 32 blocks, width 4096, 8 samples of 4096
 * tokens in bf16, pp 2 x dp 2 x tp 4 on two machines of 8. Tensor parallelism needs 4 all-reduces per block and micro-batch, a pipeline
 * sends one activation or its gradient over each boundary, so the expensive axis stays on the fast links. */
#include <string.h>
#include "lab.h"
#include "lockstep/mesh.h"
#include "lockstep/program.h"

enum { MACHINE = 8 };

static int crossing(const ls_mesh_shape *shape, ls_group group, int ranks)
{
    int groups = 0;

    for (int r = 0; r < ranks; r++) {
        ls_comm *world;
        ls_mesh *m;

        TRY(ls_comm_open("plan:", r, ranks, &world));
        TRY(ls_mesh_open(world, shape, &m));
        int size = ls_mesh_size(m, group);
        int stride = group == LS_GROUP_TP ? 1 : group == LS_GROUP_DP ? shape->cp * shape->tp : shape->dp * shape->cp * shape->tp;
        int first = r - ls_mesh_index(m, group) * stride;
        groups += first == r && first / MACHINE != (first + (size - 1) * stride) / MACHINE;
        ls_mesh_close(&m);
        ls_comm_close(&world);
    }
    return groups;
}

/* Every place of the grid is taken by one rank. */
static int places_taken(const ls_mesh_shape *m, int ranks)
{
    static char taken[1024];
    int n = 0;

    memset(taken, 0, sizeof taken);
    for (int r = 0; r < ranks; r++) {
        int p[5];

        ls_mesh_place(m, r, p);
        int at = ((p[0] * m->dp + p[1]) * m->cp + p[2]) * m->tp + p[3];
        n += !taken[at];
        taken[at] = 1;
    }
    return n;
}

static int refused(ls_mesh_shape shape, int ranks)
{
    ls_status st = ls_mesh_check(&shape, ranks);

    if (st < 0) lab_say("%s\n", ls_errmsg());
    return st == LS_EINVAL;
}

static void sums(void)
{
    int meshes = 0, whole = 0;

    for (int ranks = 1; ranks <= 32; ranks++)
        for (int pp = 1; pp <= ranks; pp++)
            for (int cp = 1; pp * cp <= ranks; cp++)
                for (int tp = 1; pp * cp * tp <= ranks; tp++) {
                    ls_mesh_shape m = { pp, -1, 1, cp, tp, 1 };

                    if (ls_mesh_check(&m, ranks) < 0) continue;
                    meshes++;
                    whole += m.pp * m.dp * m.cp * m.tp == ranks && places_taken(&m, ranks) == ranks;
                }
    lab_equal("meshes of 1 .. 32 ranks: product = ranks, each place taken once", meshes, whole, 0);
}

/* The only number of ranks that these sizes accept. */
static void product(void)
{
    int tp = (int)lab_size("tp"), pp = (int)lab_size("pp"), dp = (int)lab_size("dp"), accepted = 0, ranks = 0;
    char what[80];

    for (int n = 1; n <= 2 * tp * pp * dp; n++) {
        ls_mesh_shape m = { pp, dp, 1, 1, tp, 1 };

        if (ls_mesh_check(&m, n) < 0) continue;
        accepted++;
        ranks = n;
    }
    snprintf(what, sizeof what, "tp %d x pp %d x dp %d: ranks", tp, pp, dp);
    lab_equal(what, (double)tp * pp * dp, ranks, 0);
    lab_check("        numbers of ranks that these three accept", 1, accepted, 0);
}

/* Bytes that rank 0 sends in `calls` all-reduces of `count` bf16 over a group. */
static double reduced(const ls_mesh *m, ls_group group, double calls, size_t count)
{
    return calls * (double)ls_comm_bytes_of(ls_mesh_comm(m, group), LS_COLLECTIVE_ALL_REDUCE, count, NULL, LS_BF16);
}

static void traffic(const ls_mesh_shape *shape)
{
    size_t activation = (size_t)4 * 4096 * 4096;        /* elements on a rank: half of the samples */
    size_t weights = (size_t)12 * 4096 * 4096 * 16 / 4; /* 16 blocks over tp 4 */
    ls_comm *world;
    ls_mesh *m;

    TRY(ls_comm_open("plan:", 0, 16, &world));
    TRY(ls_mesh_open(world, shape, &m));
    double tensor = reduced(m, LS_GROUP_TP, 4 * 16, activation);
    double data = reduced(m, LS_GROUP_DATA, 1, weights);
    double pipeline = (double)ls_comm_bytes_of(ls_mesh_comm(m, LS_GROUP_PP), LS_COLLECTIVE_SEND, activation, NULL, LS_BF16);
    ls_mesh_close(&m);
    ls_comm_close(&world);
    lab_say("\nGB that a rank sends in a step: tp %.2f, dp %.2f, pp %.2f\n\n", tensor / 1e9, data / 1e9, pipeline / 1e9);
    lab_above("tp's bytes / dp's", 1, tensor / data);
    lab_above("dp's bytes / pp's", 1, data / pipeline);
    lab_not_measurable("cost of a mesh that breaks the rule",
                       "why: this is one machine, without a slow link between ranks; needs two machines");
}

LAB(m1_mesh, "the mesh", { "tp", "tensor-parallel ranks", 4, 1, 32 }, { "pp", "pipeline stages", 2, 1, 32 },
    { "dp", "data-parallel ranks", 2, 1, 32 })
{
    ls_mesh_shape m = { 2, 2, 1, 1, 4, 1 };
    char *text;

    TRY(ls_mesh_text(&m, MACHINE, &text));
    lab_say("%s\nrefused:\n", text);
    ls_free(text);
    int no = refused((ls_mesh_shape){ 2, 3, 1, 1, 4, 1 }, 16) + refused((ls_mesh_shape){ 3, -1, 1, 1, 4, 1 }, 16) +
             refused((ls_mesh_shape){ 2, 2, 1, 1, 4, 4 }, 16);
    lab_say("\n");
    lab_open("M1");
    lab_equal("what does not multiply or divide: refused", 3, no, 0);
    sums();
    product();
    lab_equal("2 machines of 8: tp groups that cross machines", 0, crossing(&m, LS_GROUP_TP, 16), 0);
    lab_equal("dp groups that do", 0, crossing(&m, LS_GROUP_DP, 16), 0);
    lab_equal("pp groups that do: all 8", 8, crossing(&m, LS_GROUP_PP, 16), 0);
    traffic(&m);
    return lab_close();
}
