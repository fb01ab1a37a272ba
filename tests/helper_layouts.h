/* helper_layouts.h - a synthetic model distributed over ranks in every way that a store supports: stages, boxes, experts, shards and
 * replicas. */
#ifndef HELPER_LAYOUTS_H
#define HELPER_LAYOUTS_H

#include "helper_forked.h"
#include "runtime/store.h"

/* Rank (pp * DP + dp) * TP + tp. Parameter i is in stage i % PP; it is sharded over tp along one dim or replicated; the one of
 * experts is also sharded over EP consecutive data-parallel ranks. Groups are sharded over DP / REPLICATE ranks, the experts' over none. */
struct layout { const char *name; int pp, dp, tp, ep, replicate; unsigned sharded; enum store_backing backing; };

enum { LAYOUTS = 12, LAYOUT_PARAMETERS = 7, LAYOUT_MOST = 420 };
extern const struct layout layouts[LAYOUTS];
enum { SHARD_VALUES = 1 << STORE_VALUE, SHARD_STATES = 1 << STORE_STATE };

int    layout_ranks(const struct layout *l);
/* This rank's store: declared, sharded, grouped, allocated; zeros. data: the ranks over which its groups are sharded. */
struct laid { ls_store *store; ls_comm *data; };
void   layout_open(const struct layout *l, ls_comm *world, ls_dtype type, struct laid *out);
void   layout_close(struct laid *laid);
/* Fills this rank's part of everything with bits that depend only on parameter, kind and place, or compares it with them. */
void   layout_fill(ls_store *s);
void   layout_check(const ls_store *s);

#endif
