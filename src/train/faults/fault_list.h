/* fault_list.h - every fault that --debug.fault can inject, one row each: everything about it.
 *
 *     X(id, name, what it does, after, edit, where it is idle...)
 *
 *   id, name   FAULT_id, and the choice of the option
 *   after      the pass after which a program is edited (enum edit_after without its prefix); NONE: it is no program edit, and
 *              faults.c says what applies it
 *   edit       edit_NAME() in fault_forward.c or fault_sums.c
 *   idle       IDLE(condition, because): where the fault would change nothing it is rejected, so that it is not mistaken for an undetected
 * one. Conditions read the names that fault_rules.c defines (dp, tp, m, c, ...)
 *
 * The enum, the option's choices, `lockstep help faults` and the refusals are made of these rows.
 */
#ifndef LS_TRAIN_FAULTS_FAULT_LIST_H
#define LS_TRAIN_FAULTS_FAULT_LIST_H

#define FAULT_MAP(X)                                                                                                                       \
    X(AVERAGE, average, "gradients are averaged over ranks instead of summed", DATA_PARALLEL, average, IDLE(!shared, UNSHARED))            \
    X(SKIP_BUCKET, skip_bucket, "the last reduction of gradients is missing", DATA_PARALLEL, skip_bucket, IDLE(!shared, UNSHARED))         \
    X(TWICE, twice, "the first reduction of gradients is made twice, or its sum added twice to a shard", DATA_PARALLEL, twice,             \
      IDLE(!shared, UNSHARED))                                                                                                             \
    X(LOCAL_NORM, local_norm, "the gradient norm is that of this rank's shards", DATA_PARALLEL, local_norm,                                \
      IDLE(c->parallel.zero == 0, "with parallel.zero=0 gradients are not sharded, and their norm is not summed over ranks"))              \
    X(BOUNDARY, boundary, "the last element of each range of parameters that a rank updates is not updated", DATA_PARALLEL, boundary,      \
      IDLE(alone, "one rank updates everything"))                                                                                          \
    X(MEAN_OF_MEANS, mean_of_means, "each rank divides its loss by its own count of tokens", NONE, none,                                   \
      IDLE(dp <= 1, "parallel.dp=1 has all samples"))                                                                                      \
    X(SEED, seed, "each rank initializes its parameters with a seed of its own", NONE, none, IDLE(alone, "there is one rank"))             \
    X(EXPERT_TIMES_EP, expert_times_ep, "gradients of experts are multiplied by parallel.ep", DATA_PARALLEL, expert_times_ep,              \
      IDLE(ep <= 1, UNSPLIT))                                                                                                              \
    X(NORM_STAGES, norm_stages, "only the first pipeline stage counts in the gradient norm", DATA_PARALLEL, norm_stages,                   \
      IDLE(pp <= 1, ONE_STAGE))                                                                                                            \
    X(NORM_EXPERTS, norm_experts, "only the first rank's experts count in the gradient norm", DATA_PARALLEL, norm_experts,                 \
      IDLE(ep <= 1, UNSPLIT))                                                                                                              \
    X(TIED_UNSUMMED, tied_unsummed, "the gradient of a tied embedding is not summed over the first and the last stage", DATA_PARALLEL,     \
      tied_unsummed,                                                                                                                       \
      IDLE(pp <= 1, ONE_STAGE) IDLE(!m->tied, "the model's embedding is not tied")                                                         \
          IDLE(zb_v, "parallel.schedule=zb-v has the first and the last stage on one rank"))                                               \
    X(TP_UNSUMMED, tp_unsummed, "partial gradients of weights that are replicated over tp are not summed", DATA_PARALLEL, tp_unsummed,     \
      IDLE(tp <= 1 || (!slices && heads_divide), ALIKE))                                                                                   \
    X(TP_TWICE, tp_twice, "partial gradients of weights that are replicated over tp are summed twice", DATA_PARALLEL, tp_twice,            \
      IDLE(tp <= 1 || (!slices && heads_divide), ALIKE))                                                                                   \
    X(NO_DGRAD_REDUCE, no_dgrad_reduce, "the all-reduce of the input gradient of column-parallel linears is missing", PARTITION,           \
      no_dgrad_reduce, IDLE(tp <= 1 || c->parallel.sp, WITHOUT_SP))                                                                        \
    X(NO_REDUCE, no_reduce, "the all-reduce after row-parallel linears is missing", PARTITION, no_reduce,                                  \
      IDLE(tp <= 1 || c->parallel.sp, WITHOUT_SP))                                                                                         \
    X(NO_PARTIAL, no_partial, "gradients of weights that are replicated over tp are not marked as partial sums", PARTITION, no_partial,    \
      IDLE(tp <= 1 || !slices, ALIKE))                                                                                                     \
    X(DOUBLE_REDUCE, double_reduce, "the all-reduce or reduce-scatter after row-parallel linears is made twice", PARTITION, double_reduce, \
      IDLE(tp <= 1, "with parallel.tp=1 nothing is reduced"))                                                                              \
    X(WRONG_GROUP, wrong_group, "activations are communicated over the ranks of another axis", PARTITION, wrong_group,                     \
      IDLE(tp <= 1 || (dp <= 1 && cp <= 1), "there is no other group; use parallel.tp together with parallel.dp or parallel.cp"))          \
    X(MASK, mask, "dropout masks are indexed from the beginning of a rank's slice of the sequence", PARTITION, mask,                       \
      IDLE(m->dropout == 0, "model.dropout=0 has no masks")                                                                                \
          IDLE(cp <= 1 && !c->parallel.sp, "every rank has whole sequences; parallel.cp and parallel.sp shard them"))                      \
    X(LOSS_TWICE, loss_twice, "the loss is divided by parallel.cp once more", PARTITION, loss_twice, IDLE(cp <= 1, WHOLE_LOSS))            \
    X(LOSS_MEAN, loss_mean, "the loss is divided by the tokens of a rank's slice of the sequence", PARTITION, loss_mean,                   \
      IDLE(cp <= 1, WHOLE_LOSS))                                                                                                           \
    X(RING_DKV, ring_dkv, "a rank of the attention ring overwrites what ranks before it have added to dK and dV", LOWER, ring_dkv,         \
      IDLE(cp <= 1 || c->parallel.cp_method != CP_METHOD_RING, "no keys are passed around; use parallel.cp with parallel.cp_method=ring")) \
    X(AUX_DROPPED, aux_dropped, "the routers' losses have no gradient", GRADIENT, aux_dropped, IDLE(!router_loss, NO_ROUTER_LOSS))         \
    X(AUX_TIMES_DP, aux_times_dp, "gradients of the routers' losses are multiplied by parallel.dp", GRADIENT, aux_times_dp,                \
      IDLE(!router_loss, NO_ROUTER_LOSS) IDLE(dp <= 1, "parallel.dp=1 is the right factor"))                                               \
    X(LOST_LAYERS, lost_layers, "layers that the stages do not divide evenly are lost", NONE, none,                                        \
      IDLE(pp <= 1, ONE_STAGE) IDLE((int64_t)m->layers % stages == 0, "the stages divide the layers")                                      \
          IDLE(c->parallel.stages[0], "parallel.stages says where the layers are") IDLE(m->experts, "it needs a model without experts"))   \
    X(MOMENTS, moments, "the optimizer's moments are not restored from a checkpoint", NONE, none,                                          \
      IDLE(c->optim.name == LS_SGD && c->optim.momentum == 0, "optim.name=sgd with optim.momentum=0 has no moments"))                      \
    X(REROUTE, reroute, "recomputed layers route their tokens anew, with room for one token per expert", RECOMPUTE, reroute,               \
      IDLE(m->experts == 0, "the model has no experts") IDLE(!recomputes, "no router is recomputed; use recompute.mode=full"))             \
    X(EXPERT_GROUP, expert_group, "gradients of experts are summed over the ranks of dense parameters", DATA_PARALLEL, expert_group,       \
      IDLE(ep <= 1, UNSPLIT) IDLE(dp *cp == ep, "each expert is on one rank, parallel.ep = parallel.dp * parallel.cp")                     \
          IDLE(c->parallel.zero > 0, "with parallel.zero the gradients of experts are sharded over their own ranks; use parallel.zero=0"))

/* The same reason in several rows. */
#define UNSHARED       "gradients are summed over parallel.dp and parallel.cp, which are 1"
#define UNSPLIT        "with parallel.ep=1 the experts are not sharded"
#define ONE_STAGE      "parallel.pp=1 has one stage"
#define ALIKE          "weights that are replicated over parallel.tp do the same work on all ranks; with parallel.sp they do not"
#define WITHOUT_SP     "it needs parallel.tp without parallel.sp"
#define WHOLE_LOSS     "parallel.cp=1 has the whole loss"
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
