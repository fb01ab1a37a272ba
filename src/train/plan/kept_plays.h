/* kept_plays.h - a cache of results of tape_play(), the times of patterns in places of the cluster, which a search needs again and again.
 * It is emptied when it is full.
 */
#ifndef LS_TRAIN_PLAN_KEPT_PLAYS_H
#define LS_TRAIN_PLAN_KEPT_PLAYS_H

#include "base/hash.h"
#include "train/plan/patterns.h"

struct kept_plays;

ls_status kept_plays_open(struct kept_plays **out);
void kept_plays_close(struct kept_plays **k); /* NULL is a no-op */

/* Plays the tapes of pattern number `pattern` at a place, or returns the cached result. stage: tape_place_words() of the place, which does
 * not depend on its samples. */
ls_status kept_play_of(struct kept_plays *k, const struct patterns *p, int pattern, const struct cluster *c, const struct tape_place *at,
                       struct hash_words stage, struct tape_seconds *out);

#endif
