/* fault_list.h - the table of all injected faults: a row each, grouped by kind.
 *
 *     X(id, name, what it does, when or after, arm, where it is idle...)
 *
 *   id, name  FAULT_id; the name is the value of the kind's option, or the option itself
 *   what      the sentence of `lockstep help faults`
 *   when      of a step's faults the pass after which the program is edited (enum edit_after without its prefix), or HOOK; of the others
 *             when a run arms them (enum fault_when without its prefix); STEP: each micro-batch does; TEST: tests do
 *   arm       the function that injects the fault: edit_NAME() in fault_forward.c or fault_sums.c, a hook of faults.h, slow_NAME() in
 *             fault_slow.c, call_NAME() in fault_points.c, or a function of fault_points.h or fault_values.c
 *   idle      IDLE(condition, because): layouts in which the fault would change nothing are refused, so that it is not taken for an
 *             undetected fault. Conditions use the names that fault_rules.c and fault_slow.c define (dp, tp, m, c, ...)
 *
 * The enum, the choices of options, `lockstep help faults` and the refusals are generated from these rows. The code of passes, ops and
 * lower floors contains no fault: passes call struct edit (passes/passes.h), and mem_fault, file_fault, comm_call_fault, comm_delay_fault,
 * loader_fault and struct run_fault are pointers that are NULL unless a fault is armed.
 */
#ifndef LS_TRAIN_FAULTS_FAULT_LIST_H
#define LS_TRAIN_FAULTS_FAULT_LIST_H

/* Wrong steps of distributed training, by an edit of the program or by a hook of the step. */
#define FAULT_STEP_MAP(X)                                                                                                                  \
    X(AVERAGE, average, "gradients are averaged over ranks instead of summed", DATA_PARALLEL, average, IDLE(!shared, UNSHARED))            \
    X(SKIP_BUCKET, skip_bucket, "the last gradient reduction is missing", DATA_PARALLEL, skip_bucket, IDLE(!shared, UNSHARED))             \
    X(TWICE, twice, "the first gradient reduction is done twice, or its result is added to a shard twice", DATA_PARALLEL, twice,           \
      IDLE(!shared, UNSHARED))                                                                                                             \
    X(LOCAL_NORM, local_norm, "the gradient norm covers only this rank's shards", DATA_PARALLEL, local_norm,                               \
      IDLE(c->parallel.zero == 0, "with parallel.zero=0 gradients are not sharded, and their norm is not summed over ranks"))              \
    X(BOUNDARY, boundary, "the last element of each range of parameters that a rank updates is not updated", DATA_PARALLEL, boundary,      \
      IDLE(alone, "one rank updates all parameters"))                                                                                      \
    X(MEAN_OF_MEANS, mean_of_means, "each rank divides its loss by its own number of tokens", HOOK, fault_count,                           \
      IDLE(dp <= 1, "with parallel.dp=1 each rank has all samples"))                                                                       \
    X(SEED, seed, "each rank initializes its parameters from a different seed", HOOK, fault_seed, IDLE(alone, "there is only one rank"))   \
    X(EXPERT_TIMES_EP, expert_times_ep, "gradients of experts are multiplied by parallel.ep", DATA_PARALLEL, expert_times_ep,              \
      IDLE(ep <= 1, ONE_EP_RANK))                                                                                                          \
    X(NORM_STAGES, norm_stages, "the gradient norm covers only the first pipeline stage", DATA_PARALLEL, norm_stages,                      \
      IDLE(pp <= 1, ONE_STAGE))                                                                                                            \
    X(NORM_EXPERTS, norm_experts, "the gradient norm covers only the first rank's experts", DATA_PARALLEL, norm_experts,                   \
      IDLE(ep <= 1, ONE_EP_RANK))                                                                                                          \
    X(TIED_UNSUMMED, tied_unsummed, "the gradient of a tied embedding is not summed over the first and last stage", DATA_PARALLEL,         \
      tied_unsummed,                                                                                                                       \
      IDLE(pp <= 1, ONE_STAGE) IDLE(!m->tied, "the model's embedding is not tied")                                                         \
          IDLE(v_stages, "parallel.schedule places stages in a V: the first and the last are on the same rank"))                           \
    X(TP_UNSUMMED, tp_unsummed, "partial gradients of weights that are replicated over tp are not summed", DATA_PARALLEL, tp_unsummed,     \
      IDLE(tp <= 1 || (!norms_partial && heads_divide), NOT_PARTIAL))                                                                      \
    X(TP_TWICE, tp_twice, "partial gradients of weights that are replicated over tp are summed twice", DATA_PARALLEL, tp_twice,            \
      IDLE(tp <= 1 || (!norms_partial && heads_divide), NOT_PARTIAL))                                                                      \
    X(NO_DGRAD_REDUCE, no_dgrad_reduce, "the all-reduce of the input gradient of column-parallel linears is missing", PARTITION,           \
      no_dgrad_reduce, IDLE(tp <= 1 || c->parallel.sp, WITHOUT_SP))                                                                        \
    X(NO_REDUCE, no_reduce, "the all-reduce after row-parallel linears is missing", PARTITION, no_reduce,                                  \
      IDLE(tp <= 1 || c->parallel.sp, WITHOUT_SP))                                                                                         \
    X(NO_PARTIAL, no_partial, "gradients of weights that are replicated over tp are not marked as partial sums", PARTITION, no_partial,    \
      IDLE(tp <= 1 || !norms_partial, NOT_PARTIAL))                                                                                        \
    X(DOUBLE_REDUCE, double_reduce, "the all-reduce or reduce-scatter after row-parallel linears is done twice", PARTITION, double_reduce, \
      IDLE(tp <= 1, "with parallel.tp=1 there is no such reduction"))                                                                      \
    X(WRONG_GROUP, wrong_group, "activations are communicated over the ranks of another mesh axis", PARTITION, wrong_group,                \
      IDLE(tp <= 1 || (dp <= 1 && cp <= 1), "there is no other group; use parallel.tp together with parallel.dp or parallel.cp"))          \
    X(MASK, mask, "dropout masks of activations are indexed from the beginning of a rank's shard of the sequence", PARTITION, mask,        \
      IDLE(m->dropout == 0, "with model.dropout=0 activations have no masks")                                                              \
          IDLE(cp <= 1 && !c->parallel.sp, "the sequence is not sharded; use parallel.cp or parallel.sp"))                                 \
    X(LOSS_TWICE, loss_twice, "the loss is also divided by parallel.cp", PARTITION, loss_twice, IDLE(cp <= 1, UNSHARDED))                  \
    X(LOSS_MEAN, loss_mean, "the loss is divided by the number of tokens in a rank's shard of the sequence", PARTITION, loss_mean,         \
      IDLE(cp <= 1, UNSHARDED))                                                                                                            \
    X(RING_DKV, ring_dkv, "a rank of the attention ring overwrites the dK and dV that previous ranks have accumulated", LOWER, ring_dkv,   \
      IDLE(cp <= 1 || c->parallel.cp_method != CP_METHOD_RING,                                                                             \
           "there is no attention ring; use parallel.cp with parallel.cp_method=ring"))                                                    \
    X(AUX_DROPPED, aux_dropped, "the router losses have no gradient", GRADIENT, aux_dropped, IDLE(!router_loss, NO_ROUTER_LOSS))           \
    X(AUX_TIMES_DP, aux_times_dp, "gradients of the router losses are multiplied by parallel.dp", GRADIENT, aux_times_dp,                  \
      IDLE(!router_loss, NO_ROUTER_LOSS) IDLE(dp <= 1, "with parallel.dp=1 the factor is 1"))                                              \
    X(LOST_LAYERS, lost_layers, "layers that do not divide evenly among the stages are lost", HOOK, fault_appended,                        \
      IDLE(pp <= 1, ONE_STAGE) IDLE((int64_t)m->layers % stages == 0, "the layers divide evenly among the stages")                         \
          IDLE(c->parallel.stages[0], "parallel.stages sets the layers of each stage")                                                     \
              IDLE(m->experts, "it needs a model without experts"))                                                                        \
    X(MOMENTS, moments, "the optimizer's moments are not restored from a checkpoint", HOOK, fault_restored,                                \
      IDLE(!optimizer->moments && c->optim.momentum == 0, "with optim.momentum=0 the optimizer has no moments"))                           \
    X(REROUTE, reroute, "recomputed layers route their tokens again, with capacity for one token per expert", RECOMPUTE, reroute,          \
      IDLE(m->experts == 0, "the model has no experts") IDLE(!recomputes, "no router is recomputed; use recompute.mode=full"))             \
    X(EXPERT_GROUP, expert_group, "gradients of experts are summed over the ranks that share dense parameters", DATA_PARALLEL,             \
      expert_group,                                                                                                                        \
      IDLE(ep <= 1, ONE_EP_RANK) IDLE(dp *cp == ep, "each expert is on one rank, because parallel.ep = parallel.dp x parallel.cp")         \
          IDLE(c->parallel.zero > 0, "with parallel.zero the gradients of experts are sharded over their own ranks; use parallel.zero=0"))

/* Slow parts of a rank. */
#define FAULT_SLOW_MAP(X)                                                                                                                 \
    X(SLOW_COMPUTE, compute,                                                                                                              \
      "the gradients of a step take MS milliseconds longer: that rank computes, and the others wait for it\n"                             \
      "(time.compute and time.exposed of metrics.rank_NNNN.jsonl, --log.per_rank=true)",                                                  \
      OPENING, compute, IDLE(serves, "with parallel.method=async rank 0 computes no gradients"))                                          \
    X(SLOW_LINK, link,                                                                                                                    \
      "each collective and message of the rank begins MS later; with :MB_PER_SECOND, later again by the time of its\n"                    \
      "bytes at that rate (comm.*.seconds, time.exposed, the trace)",                                                                     \
      TRAINING, link,                                                                                                                     \
      IDLE(c->launch.ranks <= 1, "a single rank does not communicate")                                                                    \
          IDLE(config_device_row(c)->accelerator, "it delays calls of the host; use run.device=cpu"))                                     \
    X(SLOW_DISK, disk, "on ranks that write a checkpoint, each write of up to 256 KiB takes MS longer (save_seconds, the log)", TRAINING, \
      disk, IDLE(s.rank > 0 && replicas, "one of the replicas writes checkpoints; use disk:all:MS"))                                      \
    X(SLOW_LOADER, loader, "each micro-batch is read MS later; time.data is the part that the step does not hide", OPENING, loader,       \
      IDLE(serves, "with parallel.method=async rank 0 reads no samples")                                                                  \
          IDLE(receives, "with parallel.method=dataparallel rank 0 reads all samples") IDLE(drawn, "drawn pictures need no loader"))

/* Wrong values of a step. */
#define FAULT_VALUE_MAP(X)                                                                                                          \
    X(NON_FINITE, non_finite, "an element of a parameter's gradient, or of the output of the first op that reads it, is NaN", STEP, \
      value_nan)

/* Allocations and writes that fail; the argument of the option is the one that does. */
#define FAULT_ALLOCATION_MAP(X) X(FAIL_ALLOC, fail_alloc, "the Nth allocation of a process fails: out of memory", STARTING, mem_fail_at)
#define FAULT_WRITE_MAP(X)      X(FAIL_WRITE, fail_write, "the Nth write into a checkpoint fails: the disk is full", TRAINING, file_fail_at)

/* Wrong collectives and messages. Only tests arm them: comm_inject() of fault_points.h. */
#define FAULT_CALL_MAP(X)                                                                         \
    X(CALL_COUNT, count, "a rank's next call has one element more than the others'", TEST, count) \
    X(CALL_TYPE, type, "a rank's next call has another type than the others'", TEST, type)        \
    X(CALL_OP, op, "a rank's next call is another collective than the others'", TEST, op)         \
    X(CALL_SKIP, skip, "a rank's next call is left out", TEST, skip)

/* X(kind, rows, true if config c injects a fault of the kind, option, heading of `lockstep help faults`; "": listed with the kind before)
 */
#define FAULT_KIND_MAP(X)                                                                                                               \
    X(STEP, FAULT_STEP_MAP, c->debug.fault != FAULT_NONE, "debug.fault",                                                                \
      "--debug.fault=NAME injects a bug of distributed training into 'lockstep train' or one side of 'lockstep parity', which must\n"   \
      "detect it. A fault is refused in layouts where it would change nothing.")                                                        \
    X(SLOW, FAULT_SLOW_MAP, c->debug.slow[0], "debug.slow",                                                                             \
      "--debug.slow=PART:RANK:MS slows a part of one rank (or of all) of 'lockstep train' down; the numbers stay the same:")            \
    X(VALUE, FAULT_VALUE_MAP, c->debug.non_finite[0], "debug.non_finite",                                                               \
      "--debug.non_finite=STEP:RANK:MICRO:NAME, --debug.fail_alloc=N and --debug.fail_write=N inject one failure, which must end the\n" \
      "command with a line that names it:")                                                                                             \
    X(ALLOCATION, FAULT_ALLOCATION_MAP, c->debug.fail_alloc, "debug.fail_alloc", "")                                                    \
    X(WRITE, FAULT_WRITE_MAP, c->debug.fail_write, "debug.fail_write", "")                                                              \
    X(CALL, FAULT_CALL_MAP, false, "",                                                                                                  \
      "The tests of the library also inject wrong collectives, which every rank must report with the rank that is at fault:")

/* Reasons that several rows share. */
#define UNSHARED       "gradients are summed over parallel.dp and parallel.cp, which are 1"
#define ONE_EP_RANK    "with parallel.ep=1 the experts are not sharded"
#define ONE_STAGE      "with parallel.pp=1 there is one stage"
#define NOT_PARTIAL    "gradients of replicated weights are not partial sums here; use parallel.tp with parallel.sp"
#define WITHOUT_SP     "it needs parallel.tp without parallel.sp"
#define UNSHARDED      "with parallel.cp=1 the sequence is not sharded"
#define NO_ROUTER_LOSS "the model's routers have no loss"

/* Numbered in the order of the kinds; debug.fault is one of the first kind, which begins at 1. FAULT_END_kind is the number after its last.
 */
enum fault {
    FAULT_NONE,
#define FAULT_ENUM(id, ...)              FAULT_##id,
#define FAULT_KIND_ENUM(kind, rows, ...) rows(FAULT_ENUM) FAULT_END_##kind, FAULT_LAST_##kind = FAULT_END_##kind - 1,
    FAULT_KIND_MAP(FAULT_KIND_ENUM)
#undef FAULT_KIND_ENUM
#undef FAULT_ENUM
        FAULTS
};

/* "none|average|..." */
#define FAULT_CHOICE(id, name, ...) "|" #name
#define FAULT_CHOICES               "none" FAULT_STEP_MAP(FAULT_CHOICE)

#endif
