/* comm_mpi.c - collectives of an MPI, timed in the same way as `lockstep bench comm`; for comm_peer.py.
 *
 *     mpicc -O2 bench/comm_mpi.c -o comm_mpi; mpirun -np 2 ./comm_mpi all_reduce 1024 1048576 268435456
 * prints for each size (bytes): op, bytes of the complete buffer, seconds of one call out of place and in place (mean over the timed calls,
 * of the slowest rank).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 3 };

static int rank, n;

static void call(const char *op, const float *send, float *recv, int count, int in_place)
{
    int block = count / n;

    if (strcmp(op, "all_reduce") == 0)
        MPI_Allreduce(in_place ? MPI_IN_PLACE : (const void *)send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (strcmp(op, "all_gather") == 0)
        MPI_Allgather(in_place ? MPI_IN_PLACE : (const void *)send, block, MPI_FLOAT, recv, block, MPI_FLOAT, MPI_COMM_WORLD);
    else if (in_place)
        MPI_Reduce_scatter_block(MPI_IN_PLACE, recv, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        MPI_Reduce_scatter_block(send, recv, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double time_calls(const char *op, const float *send, float *recv, int count, int in_place, int iterations)
{
    double seconds, most;

    for (int i = 0; i < WARMUP; i++) call(op, send, recv, count, in_place);
    MPI_Barrier(MPI_COMM_WORLD);
    seconds = MPI_Wtime();
    for (int i = 0; i < iterations; i++) call(op, send, recv, count, in_place);
    seconds = (MPI_Wtime() - seconds) / iterations;
    MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    if (argc < 3) {
        if (rank == 0) fprintf(stderr, "usage: comm_mpi all_reduce|all_gather|reduce_scatter BYTES...\n");
        MPI_Finalize();
        return 2;
    }
    size_t most = 0;

    for (int i = 2; i < argc; i++) most = strtoull(argv[i], NULL, 10) > most ? strtoull(argv[i], NULL, 10) : most;
    float *send = malloc(most), *recv = malloc(most);

    for (size_t i = 0; i < most / 4; i++) send[i] = recv[i] = 1e-30f;
    for (int i = 2; i < argc; i++) {
        size_t bytes = strtoull(argv[i], NULL, 10);
        int count = (int)(bytes / sizeof *send), iterations = bytes < 1 << 16 ? 1000 : bytes < 1 << 22 ? 100 : bytes < 1 << 26 ? 10 : 3;
        double out = time_calls(argv[1], send, recv, count, 0, iterations);
        double in = time_calls(argv[1], send, recv, count, 1, iterations);

        if (rank == 0) printf("%s %zu %.9f %.9f\n", argv[1], bytes, out, in);
    }
    free(send);
    free(recv);
    MPI_Finalize();
    return 0;
}
