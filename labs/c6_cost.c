/* C6 - 440 MB of weights take about 0.7 ms on NVLink (600 GB/s) and about 10 ms on InfiniBand (50 GB/s).
 *
 * A cost model: the bytes that the library counts for a call, divided by a link's quoted speed. No such link is measured. Corrected:
 * "about 10 ms" is 8.8; NVLink's 600 GB/s are for both directions together, InfiniBand's 50 for one; and in an all-reduce of n ranks
 * each rank sends 2 D (n-1)/n bytes, not D. PCIe is quoted both ways: 16 GT/s a lane for version 4 with 128 of 130 bits payload. */
#include "lab.h"

/* Bytes that a rank of n sends in one call; count: number of f32 elements. */
static double cost_sent(int n, ls_collective c, size_t count)
{
    ls_comm *comm;

    TRY(ls_comm_open("plan:", 0, n, &comm));
    double bytes = (double)ls_comm_bytes_of(comm, c, count, NULL, LS_F32);
    ls_comm_close(&comm);
    return bytes;
}

/* Both directions of 16 lanes, bytes/s; payload: bits of 130 that are not encoding. */
static double pcie(double transfers_per_lane, double payload) { return 2 * 16 * transfers_per_lane * payload / 130 / 8; }

/* The factor by which the same bytes take longer on the second link than on the first. */
static void put_links(double bytes)
{
    double nvlink3 = bytes / 600e9, nvlink4 = bytes / 900e9;

    lab_check("PCIe 4 x16 against NVLink 3, both ways, 64 and 600 GB/s: times as long", 9.4, bytes / pcie(16e9, 130) / nvlink3, 0.005);
    lab_check("PCIe 5 x16 against NVLink 4, both ways, 128 and 900 GB/s: times as long", 7.03, bytes / pcie(32e9, 130) / nvlink4, 0.005);
    lab_check("PCIe 4 without its encoding (128 of 130 bits) against NVLink 3: times as long", 9.52, bytes / pcie(16e9, 128) / nvlink3,
              0.005);
    lab_check("InfiniBand of 50 GB/s against NVLink 3, one way each: times as long", 6, bytes / 50e9 / (2 * nvlink3), 1e-12);
    lab_check("InfiniBand of 25 GB/s against NVLink 4, one way each: times as long", 18, bytes / 25e9 / (2 * nvlink4), 1e-12);
}

LAB(c6_cost, "seconds of a ring", { "megabytes", "size of the weights in MB", 440, 4, 1000000 },
    { "ranks", "ranks of the all-reduce", 8, 3, 1024 })
{
    const double nvlink = 600e9, one_way = 300e9, infiniband = 50e9;
    int n = (int)lab_size("ranks");
    double bytes = 1e6 * (double)lab_size("megabytes"), of = bytes / 440e6, least = 2.0 * (n - 1) / n;
    double once = cost_sent(2, LS_COLLECTIVE_SEND, (size_t)bytes / 4), sum = cost_sent(n, LS_COLLECTIVE_ALL_REDUCE, (size_t)bytes / 4);
    char what[80];

    lab_open("C6");
    lab_equal("one send to one peer [bytes]", bytes, once, 0);
    lab_equal("NVLink, 600 GB/s: one send [ms]", 0.7 * of, once / nvlink * 1e3, 0.05);
    lab_corrected("InfiniBand, 50 GB/s: one send [ms]", '=', 10 * of, 8.8 * of, once / infiniband * 1e3, 1e-3,
                  "why: 440 MB / 50 GB/s; \"about 10\" rounds it up by an eighth");
    lab_corrected("NVLink in one direction, 300 GB/s: one send [ms]", '=', 0.7 * of, 1.467 * of, once / one_way * 1e3, 1e-3,
                  "why: NVLink is quoted for both directions together, networks for one: NVLink is 6 times faster, not 12");
    snprintf(what, sizeof what, "sent by each of %d ranks in an all-reduce [bytes]", n);
    lab_corrected(what, '=', bytes, bytes * least, sum, 1e-6, "why: 2 (n-1)/n times the tensor, 1.75 for 8; the claim counts it once");
    snprintf(what, sizeof what, "InfiniBand: an all-reduce of %d ranks [ms]", n);
    lab_corrected(what, '=', 10 * of, 8.8 * of * least, sum / infiniband * 1e3, 1e-3,
                  "why: 1.75 times 8.8 for 8 ranks; a reduce-scatter or an all-gather is half of it");
    put_links(once);
    lab_not_measurable("measured time of a transfer on such links",
                       "why: this machine has no NVLink and no InfiniBand; needs two GPUs and two nodes");
    return lab_close();
}
