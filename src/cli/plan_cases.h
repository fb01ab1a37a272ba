/* plan_cases.h - `lockstep plan --cases FILE.csv --out FILE.csv`: predicts the runs of a table, one per row.
 *
 * Columns that are read: row_id, layers, hidden, ffn_hidden, glu, heads, kv_heads, vocab, tied_emb, seq; gpus, gpu_type, gpus_per_node,
 * internode_gbps_per_gpu; tp, pp, dp, cp, ep, vpp, zero_stage, micro_batch, global_batch, sequence_parallel, recompute, precision,
 * flash_attn, schedule, source, model. The machine is the built-in one whose processor gpu_type names, with the processors of a node and
 * the network of the row; or that of --machine, if gpu_type names none. If gpu_type names the processor of --machine, its efficiencies are
 * used instead of those of the built-in machine: tools/plan_fit.py fits them.
 *
 * Columns that are written: row_id, step_seconds, memory_gb (of the rank that holds the most, in 2^30 bytes, as the programs that publish
 * memory count it), fits (1 or 0), assumed: the values assumed for what is not published, and where the planner differs from the run. If
 * the source names a known framework (plan/framework.h), memory is that framework's. Values of tp, pp, vpp, the ZeRO stage and the
 * micro-batch that are not published are searched: the fastest layout that fits is used, and the range of seconds is noted. A row that
 * cannot be predicted has only row_id and `assumed`, which gives the reason, and fits 0 if it has more stages than blocks.
 */
#ifndef LS_CLI_PLAN_CASES_H
#define LS_CLI_PLAN_CASES_H

#include "cli/args.h"
#include "plan/cluster.h"

/* machine NULL: none was given. */
ls_status plan_cases_run(const char *in, const char *out, const struct cluster *machine);

#endif
