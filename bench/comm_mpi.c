/* comm_mpi.c - collectives of an MPI, timed in the same way as `lockstep bench comm`; for comm_peer.py.
 *
 *     mpicc -O2 bench/comm_mpi.c -o comm_mpi; mpirun -np 2 ./comm_mpi all_reduce 1024:1000 1048576:100
 * takes BYTES:CALLS of each size and prints: op, bytes of the complete buffer, then median, minimum and maximum of the seconds of a call
 * out of place, and the same in place; nan for a form that the operation does not have. The time of a call is from the end of the previous
 * call to its own end, on the slowest rank.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMUP = 3 };

static int rank, n;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void call(const char *op, const float *send, float *recv, int count, int in_place)
{
    const void *from = in_place ? MPI_IN_PLACE : (const void *)send;
    int block = count / n, next = (rank + 1) % n, before = (rank + n - 1) % n;

    if (strcmp(op, "all_reduce") == 0)
        MPI_Allreduce(from, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (strcmp(op, "all_gather") == 0)
        MPI_Allgather(from, block, MPI_FLOAT, recv, block, MPI_FLOAT, MPI_COMM_WORLD);
    else if (strcmp(op, "reduce_scatter") == 0)
        MPI_Reduce_scatter_block(from, recv, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (strcmp(op, "all_to_all") == 0)
        MPI_Alltoall(from, block, MPI_FLOAT, recv, block, MPI_FLOAT, MPI_COMM_WORLD);
    else if (strcmp(op, "broadcast") == 0)
        MPI_Bcast(recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else
        MPI_Sendrecv(send, count, MPI_FLOAT, next, 0, recv, count, MPI_FLOAT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* of[3]: median, minimum, maximum. */
static void time_calls(const char *op, const float *send, float *recv, int count, int in_place, int calls, double of[3])
{
    double *took = malloc((size_t)calls * sizeof *took), after;

    for (int i = 0; i < WARMUP; i++) call(op, send, recv, count, in_place);
    MPI_Barrier(MPI_COMM_WORLD);
    double before = now();
    for (int i = 0; i < calls; i++) {
        call(op, send, recv, count, in_place);
        after = now();
        took[i] = after - before;
        before = after;
    }
    MPI_Allreduce(MPI_IN_PLACE, took, calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(took, (size_t)calls, sizeof *took, ascending);
    of[0] = (took[(calls - 1) / 2] + took[calls / 2]) / 2, of[1] = took[0], of[2] = took[calls - 1];
    free(took);
}

static void time_size(const char *op, const float *send, float *recv, size_t bytes, int calls)
{
    int has_out = strcmp(op, "broadcast") != 0, has_in = strcmp(op, "sendrecv") != 0, count = (int)(bytes / sizeof *send);
    double out[3] = { NAN, NAN, NAN }, in[3] = { NAN, NAN, NAN };

    if (has_out) time_calls(op, send, recv, count, 0, calls, out);
    if (has_in) time_calls(op, send, recv, count, 1, calls, in);
    if (rank == 0) printf("%s %zu %.9f %.9f %.9f %.9f %.9f %.9f\n", op, bytes, out[0], out[1], out[2], in[0], in[1], in[2]);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (argc < 3) {
        if (rank == 0) fputs("usage: comm_mpi all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|sendrecv BYTES:CALLS...\n", stderr);
        MPI_Finalize();
        return 2;
    }
    size_t most = 0;

    for (int i = 2; i < argc; i++) most = strtoull(argv[i], NULL, 10) > most ? strtoull(argv[i], NULL, 10) : most;
    float *send = malloc(most), *recv = malloc(most);

    for (size_t i = 0; i < most / 4; i++) send[i] = recv[i] = 1e-30f;
    for (int i = 2; i < argc; i++) time_size(argv[1], send, recv, strtoull(argv[i], NULL, 10), atoi(strchr(argv[i], ':') + 1));
    free(send);
    free(recv);
    MPI_Finalize();
    return 0;
}
