/* seconds.h - how long instructions take on the machine of a file.
 *
 * If the file has a measured curve for an instruction, it gives the time (cluster.h). Otherwise:
 * A kernel: the longer of its FLOPs at the share of the peak that kernels of its kind reach, and its bytes at the share of the bandwidth;
 * and what every launch takes. Where the file says how many units compute tiles of a matmul, the FLOPs of a matmul are those of all the
 * tiles that its units could compute in the time, also of the parts that are beyond its output or idle. A collective over n ranks of B
 * bytes (of the complete buffer) by the ring's steps:
 *
 *   all_gather, reduce_scatter   (n - 1) latency + (n - 1) / n B / bandwidth
 *   all_reduce                   twice that
 *   all_to_all                   latency + the longer of what goes to ranks of the node and what goes to others
 *   broadcast                    (n - 1) latency + B / bandwidth
 *   message                      latency + B / bandwidth
 *
 * Of a group with k ranks in each of several nodes, a rank's share of what leaves the node is 1 / k: the k rings leave it by k adapters. So
 * the bandwidth of a ring is the smaller of the node's and k times the network's, and of its steps those between nodes have the network's
 * latency. Where a group has m ranks in each of several pods, its rings share the pod's links with those of the other groups, n / m of them
 * of n ranks: its ring is at most m times a processor's share of the spine. What an all_to_all sends to other nodes, and a message to one,
 * leaves by the rank's own adapter. The ring's steps: Thakur, Rabenseifner and Gropp 2005. What is offloaded takes its bytes / the
 * bandwidth between a processor and its host's memory, or what the host's disks read or write for it, whichever takes longer.
 */
#ifndef LS_PLAN_SECONDS_H
#define LS_PLAN_SECONDS_H

#include <stdbool.h>
#include "ir/program.h"
#include "parallel/mesh/mesh.h"
#include "plan/cluster.h"

/* What a rank waits for: collectives, by axis, and loads and saves of what is offloaded. */
enum { SECONDS_OFFLOAD = LS_AXES, SECONDS_WAITS };
const char *seconds_wait_name(int wait); /* "dp", "offload" */

/* What kind of limit an instruction has. */
enum seconds_kind { SECONDS_MATMUL, SECONDS_ATTENTION, SECONDS_MEMORY, SECONDS_KINDS };
const char *seconds_kind_name(enum seconds_kind kind);

/* What a kernel does: the seconds of its bytes and of its FLOPs at the shares that kernels of its kind reach; both are in proportion to its
 * size. */
struct seconds_work {
    enum seconds_kind kind;
    double moved, computed;
    double rows, columns; /* shape of a plain matmul's output, from which its tiles are counted; 0: not counted */
};
/* The name of an instruction's curve in a machine file (cluster.h), and the size by which it is measured; false: it does nothing. */
bool seconds_curve_of(const ls_program *p, const struct instruction *i, char name[CURVE_NAME], double *size);
/* The work of an instruction that is not a collective. False: it does nothing, as a view. */
bool seconds_work_of(const struct cluster *c, const ls_program *p, const struct instruction *i, struct seconds_work *out);
/* The seconds in which a matmul casts its first operand to low precision, in the two layouts in which it and the weight gradient read it:
 * the input, and in the backward the gradient of the output. 0: nothing. */
double seconds_of_cast(const struct cluster *c, const ls_program *p, const struct instruction *i);
/* launches: kernels that the work is divided into. */
double seconds_of_work(const struct cluster *c, const struct seconds_work *w, double launches);

/* Where the ranks of a group are. slowed: factor on the time of bytes over the network; 1 if unknown. */
struct seconds_group {
    int ranks, nodes, pods;
    double slowed;
};
struct seconds_group seconds_group_of(const struct cluster *c, const struct mesh_position *at);
/* bytes: size of the complete buffer over all ranks of the group; for an all_to_all of this rank's rows, including the share that it keeps;
 * for a message of the message. */
double seconds_of_collective(const struct cluster *c, const struct seconds_group *g, ls_collective op, double bytes);

/* A load or a save of what is offloaded, which is in a file or in the host's memory. */
struct seconds_copy {
    bool file, save;
};
double seconds_of_copy(const struct cluster *c, struct seconds_copy copy, double bytes);

#endif
