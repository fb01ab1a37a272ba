/* L1 - a backend (NCCL, Gloo, MPI, shared memory) is only the transport under the same collectives: what a collective leaves and the bytes
 * that a rank sends are those of its algorithm, not of the transport.
 *
 * The same all-reduce, reduce-scatter and all-gather run over shared memory and, where an mpirun is installed, over Open MPI and MPICH; the
 * lab starts itself under mpirun for that. The plan's transport, which moves nothing, says beforehand how many bytes there will be. Results
 * are compared bit by bit.
 *
 * Corrected: the same result is not the same bits. Each transport adds in an order of its own, so from three ranks on a sum of floats
 * differs in its last bit; sums of small integers, which are exact, and gathers do not differ. */
#include "lab_launch.h"
#include "lockstep/dtype.h"

enum { RANKS_MOST = 8, BLOCK = 999, COLLECTIVES_RUN = 3 };

static const ls_collective collective[COLLECTIVES_RUN] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_REDUCE_SCATTER,
                                                           LS_COLLECTIVE_ALL_GATHER };

/* What one rank saw of each collective: a hash of its result, for numbers whose sums are exact and for others, the bytes that it sent, and
 * how far the other sums are from those in double. */
struct found { uint64_t exact[COLLECTIVES_RUN], hash[COLLECTIVES_RUN], bytes[COLLECTIVES_RUN]; double off; };

static uint64_t hash_bits(const float *x, size_t count)
{
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < count * sizeof *x; i++) hash = (hash ^ ((const unsigned char *)x)[i]) * 1099511628211u;
    return hash;
}

/* Element i of a rank: between -1 and 1 with all bits of a float in use, or an integer. */
static float l1_element(int rank, size_t i, int exact)
{
    double x = sin(1.0 + 12.9898 * (double)i + 78.233 * rank);

    return (float)(exact ? floor(100 * x) : x);
}

/* The three collectives on these numbers; hashes of the results. Returns how far the sums are from those in double. */
static double collectives_run(ls_comm *comm, int rank, int n, int exact, uint64_t *hash)
{
    static float x[RANKS_MOST * BLOCK], y[RANKS_MOST * BLOCK];
    size_t all = (size_t)n * BLOCK;
    double off = 0;

    for (size_t i = 0; i < all; i++) x[i] = l1_element(rank, i, exact);
    TRY(ls_all_reduce(comm, x, y, all, LS_F32, LS_SUM, NULL));
    hash[0] = hash_bits(y, all);
    for (size_t i = 0; i < all; i++) {
        double sum = 0;

        for (int r = 0; r < n; r++) sum += l1_element(r, i, exact);
        off = fmax(off, fabs(y[i] - sum));
    }
    TRY(ls_reduce_scatter(comm, x, y, BLOCK, LS_F32, LS_SUM, NULL));
    hash[1] = hash_bits(y, BLOCK);
    TRY(ls_all_gather(comm, x, y, BLOCK, LS_F32, NULL));
    hash[2] = hash_bits(y, all);
    return off;
}

static void transport_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;

    f->off = collectives_run(comm, rank, n, 0, f->hash);
    for (int c = 0; c < COLLECTIVES_RUN; c++) f->bytes[c] = ls_comm_counters(comm, collective[c]).bytes;
    collectives_run(comm, rank, n, 1, f->exact);
}

/* ---- under mpirun ---- */

static const char *either(const char *a, const char *b) { return getenv(a) ? getenv(a) : getenv(b); }

/* This process is a rank that the lab started: it writes its results to FILE.RANK. */
static int rank_of_mpi(const char *file)
{
    const char *rank = either("OMPI_COMM_WORLD_RANK", "PMI_RANK"), *size = either("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    struct found f[RANKS_MOST] = { 0 };
    char path[256];
    ls_comm *comm;

    if (!rank || !size || atoi(rank) >= RANKS_MOST) exit(1);
    TRY(ls_comm_open("mpi:", atoi(rank), atoi(size), &comm));
    transport_run(comm, atoi(rank), atoi(size), f);
    ls_comm_close(&comm);
    snprintf(path, sizeof path, "%s.%d", file, atoi(rank));
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(&f[atoi(rank)], sizeof *f, 1, out) != 1 || fclose(out) != 0) exit(1);
    return 0;
}

static int mpi_run(const char *kind, int n, struct found *f)
{
    char ranks[16], *words[] = { "lab", "l1_transports", "--ranks", ranks, "--json", NULL };
    struct launched *l = calloc(1, sizeof *l);
    char folder[] = "/tmp/lockstep-lab-XXXXXX", variable[64], path[64];
    int good = 1;

    if (!l || !mkdtemp(folder)) exit(1);
    snprintf(ranks, sizeof ranks, "%d", n);
    snprintf(variable, sizeof variable, "LAB_L1=%s/rank", folder);
    launch_mpi(l, kind, n, variable, words);
    for (int r = 0; r < n; r++) {
        snprintf(path, sizeof path, "%s/rank.%d", folder, r);
        FILE *in = fopen(path, "rb");
        good &= in && fread(&f[r], sizeof *f, 1, in) == 1;
        if (in) fclose(in);
        remove(path);
    }
    remove(folder);
    if (!good) fprintf(stderr, "mpirun.%s ended with status %d: %s\n", kind, l->status, l->text);
    free(l);
    return good;
}

/* ---- rows ---- */

static double planned_bytes(ls_collective c, int n)
{
    ls_comm *comm;

    TRY(ls_comm_open("plan:", 0, n, &comm));
    double bytes = (double)ls_comm_bytes_of(comm, c, (size_t)BLOCK * (c == LS_COLLECTIVE_ALL_REDUCE ? (size_t)n : 1), NULL, LS_F32);
    ls_comm_close(&comm);
    return bytes;
}

static void l1_put_bytes(const char *name, int n, const struct found *f)
{
    double whole = 4.0 * BLOCK * n, off = 0;
    char what[80];

    for (int c = 0; c < COLLECTIVES_RUN; c++)
        for (int r = 0; r < n; r++) off += fabs((double)f[r].bytes[c] - planned_bytes(collective[c], n));
    snprintf(what, sizeof what, "%s, %d ranks: all-reduce, a rank sends [of the tensor]", name, n);
    lab_equal(what, 2.0 * (n - 1) / n, (double)f[0].bytes[0] / whole, 1e-12);
    lab_equal("       bytes by which any collective of any rank differs from the plan", 0, off, 0);
    lab_check("       all-reduce, off from sums in double by", 0, f[0].off, 1e-6 * n);
}

static void put_bits(int n, const struct found *f, const struct found *shm)
{
    int exact = 0, gathered = 0, summed = 0;

    for (int r = 0; r < n; r++) {
        exact += memcmp(f[r].exact, shm[r].exact, sizeof f->exact) != 0;
        gathered += f[r].hash[2] != shm[r].hash[2];
        summed += f[r].hash[0] != shm[r].hash[0];
    }
    lab_equal("       integers, any collective: ranks with other bits than in shared memory", 0, exact, 0);
    lab_equal("       floats, all-gather: ranks with other bits", 0, gathered, 0);
    if (n == 2) lab_equal("       floats, all-reduce: ranks with other bits", 0, summed, 0);
    else
        lab_corrected("       floats, all-reduce: ranks with other bits", '=', 0, n, summed, 0,
                      "why: a sum of three or more floats depends on the order, which is the transport's; on all ranks it is the same");
}

LAB(l1_transports, "one collective over every transport", { "ranks", "ranks", 4, 2, RANKS_MOST })
{
    static const char *const kind[] = { "openmpi", "mpich" }, *const name[] = { "Open MPI", "MPICH" };
    int n = (int)lab_size("ranks");
    struct found *shm, *mpi;

    if (getenv("LAB_L1")) return rank_of_mpi(getenv("LAB_L1"));
    shm = lab_shared(RANKS_MOST * sizeof *shm);
    mpi = calloc(RANKS_MOST, sizeof *mpi);
    if (!mpi) exit(1);
    lab_ranks(n, transport_run, shm);
    lab_open("L1");
    l1_put_bytes("shared memory", n, shm);
    for (int k = 0; k < 2; k++)
        if (launch_has_mpi(kind[k])) {
            if (!mpi_run(kind[k], n, mpi)) exit(1);
            l1_put_bytes(name[k], n, mpi);
            put_bits(n, mpi, shm);
        } else {
            lab_not_measurable(name[k], "why: its mpirun is not installed here, or the command was built without it");
        }
    lab_not_measurable("NCCL", "why: needs two GPUs; 'lockstep train -n 2 --run.device=cuda --launch.comm=nccl' uses it there");
    free(mpi);
    lab_unshare(shm, RANKS_MOST * sizeof *shm);
    return lab_close();
}
