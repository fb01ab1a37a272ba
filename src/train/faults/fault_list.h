/* fault_list.h - the table of the faults that --debug.fault injects, one row per fault.
 *
 *     X(id, name, what it does, after, edit, where it is idle...)
 *
 *   id, name   FAULT_id, and the value of the option
 *   after      the pass after which the program is edited (enum edit_after without its prefix); NONE: the fault is not a program edit;
 *              faults.h names the function that applies it
 *   edit       edit_NAME() in fault_forward.c or fault_sums.c
 *   idle       IDLE(condition, because): layouts in which the fault would change nothing are refused, so that it is not taken for an
 *              undetected fault. Conditions use the names that fault_rules.c defines (dp, tp, m, c, ...)
 *
 * The enum, the choices of the option, `lockstep help faults` and the refusals are generated from these rows.
 */
#ifndef LS_TRAIN_FAULTS_FAULT_LIST_H
#define LS_TRAIN_FAULTS_FAULT_LIST_H

#define FAULT_MAP(X)                                                                                                                       \
    X(AVERAGE, average, "gradients are averaged over ranks instead of summed", DATA_PARALLEL, average, IDLE(!shared, UNSHARED))            \
    X(SKIP_BUCKET, skip_bucket, "the last gradient reduction is missing", DATA_PARALLEL, skip_bucket, IDLE(!shared, UNSHARED))             \
    X(TWICE, twice, "the first gradient reduction is done twice, or its result is added to a shard twice", DATA_PARALLEL, twice,           \
      IDLE(!shared, UNSHARED))                                                                                                             \
    X(LOCAL_NORM, local_norm, "the gradient norm covers only this rank's shards", DATA_PARALLEL, local_norm,                               \
      IDLE(c->parallel.zero == 0, "with parallel.zero=0 gradients are not sharded, and their norm is not summed over ranks"))              \
    X(BOUNDARY, boundary, "the last element of each range of parameters that a rank updates is not updated", DATA_PARALLEL, boundary,      \
      IDLE(alone, "one rank updates all parameters"))                                                                                      \
    X(MEAN_OF_MEANS, mean_of_means, "each rank divides its loss by its own number of tokens", NONE, none,                                  \
      IDLE(dp <= 1, "with parallel.dp=1 each rank has all samples"))                                                                       \
    X(SEED, seed, "each rank initializes its parameters from a different seed", NONE, none, IDLE(alone, "there is only one rank"))         \
    X(EXPERT_TIMES_EP, expert_times_ep, "gradients of experts are multiplied by parallel.ep", DATA_PARALLEL, expert_times_ep,              \
      IDLE(ep <= 1, ONE_EP_RANK))                                                                                                          \
    X(NORM_STAGES, norm_stages, "the gradient norm covers only the first pipeline stage", DATA_PARALLEL, norm_stages,                      \
      IDLE(pp <= 1, ONE_STAGE))                                                                                                            \
    X(NORM_EXPERTS, norm_experts, "the gradient norm covers only the first rank's experts", DATA_PARALLEL, norm_experts,                   \
      IDLE(ep <= 1, ONE_EP_RANK))                                                                                                          \
    X(TIED_UNSUMMED, tied_unsummed, "the gradient of a tied embedding is not summed over the first and last stage", DATA_PARALLEL,         \
      tied_unsummed,                                                                                                                       \
      IDLE(pp <= 1, ONE_STAGE) IDLE(!m->tied, "the model's embedding is not tied")                                                         \
          IDLE(zb_v, "with parallel.schedule=zb-v the first and the last stage are on the same rank"))                                     \
    X(TP_UNSUMMED, tp_unsummed, "partial gradients of weights that are replicated over tp are not summed", DATA_PARALLEL, tp_unsummed,     \
      IDLE(tp <= 1 || (!slices && heads_divide), NOT_PARTIAL))                                                                             \
    X(TP_TWICE, tp_twice, "partial gradients of weights that are replicated over tp are summed twice", DATA_PARALLEL, tp_twice,            \
      IDLE(tp <= 1 || (!slices && heads_divide), NOT_PARTIAL))                                                                             \
    X(NO_DGRAD_REDUCE, no_dgrad_reduce, "the all-reduce of the input gradient of column-parallel linears is missing", PARTITION,           \
      no_dgrad_reduce, IDLE(tp <= 1 || c->parallel.sp, WITHOUT_SP))                                                                        \
    X(NO_REDUCE, no_reduce, "the all-reduce after row-parallel linears is missing", PARTITION, no_reduce,                                  \
      IDLE(tp <= 1 || c->parallel.sp, WITHOUT_SP))                                                                                         \
    X(NO_PARTIAL, no_partial, "gradients of weights that are replicated over tp are not marked as partial sums", PARTITION, no_partial,    \
      IDLE(tp <= 1 || !slices, NOT_PARTIAL))                                                                                               \
    X(DOUBLE_REDUCE, double_reduce, "the all-reduce or reduce-scatter after row-parallel linears is done twice", PARTITION, double_reduce, \
      IDLE(tp <= 1, "with parallel.tp=1 there is no such reduction"))                                                                      \
    X(WRONG_GROUP, wrong_group, "activations are communicated over the ranks of another mesh axis", PARTITION, wrong_group,                \
      IDLE(tp <= 1 || (dp <= 1 && cp <= 1), "there is no other group; use parallel.tp together with parallel.dp or parallel.cp"))          \
    X(MASK, mask, "dropout masks of activations are indexed from the beginning of a rank's slice of the sequence", PARTITION, mask,        \
      IDLE(m->dropout == 0, "with model.dropout=0 activations have no masks")                                                              \
          IDLE(cp <= 1 && !c->parallel.sp, "the sequence is not sharded; use parallel.cp or parallel.sp"))                                 \
    X(LOSS_TWICE, loss_twice, "the loss is also divided by parallel.cp", PARTITION, loss_twice, IDLE(cp <= 1, UNSLICED))                   \
    X(LOSS_MEAN, loss_mean, "the loss is divided by the number of tokens in a rank's slice of the sequence", PARTITION, loss_mean,         \
      IDLE(cp <= 1, UNSLICED))                                                                                                             \
    X(RING_DKV, ring_dkv, "a rank of the attention ring overwrites the dK and dV that previous ranks have accumulated", LOWER, ring_dkv,   \
      IDLE(cp <= 1 || c->parallel.cp_method != CP_METHOD_RING,                                                                             \
           "there is no attention ring; use parallel.cp with parallel.cp_method=ring"))                                                    \
    X(AUX_DROPPED, aux_dropped, "the router losses have no gradient", GRADIENT, aux_dropped, IDLE(!router_loss, NO_ROUTER_LOSS))           \
    X(AUX_TIMES_DP, aux_times_dp, "gradients of the router losses are multiplied by parallel.dp", GRADIENT, aux_times_dp,                  \
      IDLE(!router_loss, NO_ROUTER_LOSS) IDLE(dp <= 1, "with parallel.dp=1 the factor is 1"))                                              \
    X(LOST_LAYERS, lost_layers, "layers that do not divide evenly among the stages are lost", NONE, none,                                  \
      IDLE(pp <= 1, ONE_STAGE) IDLE((int64_t)m->layers % stages == 0, "the layers divide evenly among the stages")                         \
          IDLE(c->parallel.stages[0], "parallel.stages sets the layers of each stage")                                                     \
              IDLE(m->experts, "it needs a model without experts"))                                                                        \
    X(MOMENTS, moments, "the optimizer's moments are not restored from a checkpoint", NONE, none,                                          \
      IDLE(c->optim.name == LS_SGD && c->optim.momentum == 0, "optim.name=sgd with optim.momentum=0 has no moments"))                      \
    X(REROUTE, reroute, "recomputed layers route their tokens again, with capacity for one token per expert", RECOMPUTE, reroute,          \
      IDLE(m->experts == 0, "the model has no experts") IDLE(!recomputes, "no router is recomputed; use recompute.mode=full"))             \
    X(EXPERT_GROUP, expert_group, "gradients of experts are summed over the ranks that share dense parameters", DATA_PARALLEL,             \
      expert_group,                                                                                                                        \
      IDLE(ep <= 1, ONE_EP_RANK) IDLE(dp *cp == ep, "each expert is on one rank, because parallel.ep = parallel.dp x parallel.cp")         \
          IDLE(c->parallel.zero > 0, "with parallel.zero the gradients of experts are sharded over their own ranks; use parallel.zero=0"))

/* Reasons that several rows share. */
#define UNSHARED       "gradients are summed over parallel.dp and parallel.cp, which are 1"
#define ONE_EP_RANK    "with parallel.ep=1 the experts are not sharded"
#define ONE_STAGE      "with parallel.pp=1 there is one stage"
#define NOT_PARTIAL    "gradients of replicated weights are not partial sums here; use parallel.tp with parallel.sp"
#define WITHOUT_SP     "it needs parallel.tp without parallel.sp"
#define UNSLICED       "with parallel.cp=1 the sequence is not sharded"
#define NO_ROUTER_LOSS "the model's routers have no loss"

enum fault {
    FAULT_NONE,
#define FAULT_ENUM(id, ...) FAULT_##id,
    FAULT_MAP(FAULT_ENUM)
#undef FAULT_ENUM
        FAULTS
};

/* "none|average|..." */
#define FAULT_CHOICE(id, name, ...) "|" #name
#define FAULT_CHOICES               "none" FAULT_MAP(FAULT_CHOICE)

#endif
