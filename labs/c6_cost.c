/* C6 - 440 MB of weights take about 0.7 ms on NVLink (600 GB/s) and about 10 ms on InfiniBand (50 GB/s).
 *
 * Corrected: that is D / bandwidth, the time in which the bytes pass a link once. An all-reduce of n ranks carries
 * 2 D (n-1)/n over each rank's link, nearly twice as much. The bytes are the library's own count of one call on 8 ranks. */
#include "lab.h"

#define PARAMETERS 110e6  /* f32: 440 MB */

int main(void)
{
    static const struct { const char *name; double bandwidth, claimed; } links[] = {
        { "NVLink, 600 GB/s", 600e9, 0.7 }, { "InfiniBand, 50 GB/s", 50e9, 10 },
    };
    ls_comm *comm;
    double d = PARAMETERS * 4, bytes;
    char what[80];

    TRY(ls_comm_open("plan:", 0, 8, &comm));
    bytes = (double)ls_comm_bytes_of(comm, LS_COLLECTIVE_ALL_REDUCE, (size_t)PARAMETERS, NULL, LS_F32);
    ls_comm_close(&comm);
    lab_open("C6", "440 MB: about 0.7 ms on NVLink, about 10 ms on InfiniBand");
    lab_equal("bytes that an all-reduce of 8 ranks sends from each: 2 D (n-1)/n", 2 * d * 7 / 8, bytes, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "%s: the bytes once over a link, ms", links[i].name);
        lab_equal(what, links[i].claimed, d / links[i].bandwidth * 1e3, 0.15);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "corrected: %s, all-reduce of 8 ranks, ms", links[i].name);
        lab_equal(what, 1.75 * d / links[i].bandwidth * 1e3, bytes / links[i].bandwidth * 1e3, 1e-9);
    }
    printf("\nThe claim's times are right for the bytes passing once (a broadcast, or half an all-reduce).\n"
           "The all-reduce of the gradients takes 1.75 times as long on 8 ranks, near 2 times on many.\n");
    return lab_close();
}
