/* model_json.h - a model's description as a JSON object, which makes a checkpoint self-contained.
 *
 * {"architecture": "gpt2" or another name of LS_FAMILY_MAP, "layers": 2, ... every field of ls_model by its name ..., "rope": {...}}
 * Sizes are integers, rates are reals, flags are booleans, the seed is a text of decimal digits (JSON's integers end at 2^63).
 */
#ifndef LS_CHECKPOINT_MODEL_JSON_H
#define LS_CHECKPOINT_MODEL_JSON_H

#include "base/json.h"
#include "lockstep/nn.h"

void model_json_put(struct json_out *j, const char *key, const ls_model *m);
/* Every field must be present, and ls_model_check() must pass. Messages start with `what`. */
ls_status model_json_get(const json_node *n, const char *what, ls_model *out);

/* An unsigned 64-bit number as a text of decimal digits. */
void json_put_u64(struct json_out *j, const char *key, uint64_t value);
ls_status json_get_u64(const json_node *object, const char *key, const char *what, uint64_t *out);

#endif
