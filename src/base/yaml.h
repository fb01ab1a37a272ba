/* yaml.h - the subset of YAML that a config file may use, as flat (key, value, line) entries; the only place that uses libyaml.
 *
 *   train:               # a section: a mapping of scalars           -> "train.steps", "1000", line 2
 *     steps: 1000
 *   optim.lr: "3e-4"     # a dotted key at the top                   -> "optim.lr", "3e-4", line 3
 *
 * One document, at most 1 MiB and MOST_KEYS keys. Scalars are plain or quoted and stay text: the option decides what `no` or `1e3` means.
 * Anchors, aliases, tags, sequences, deeper mappings, block scalars, duplicate keys or sections, and keys without a value are rejected in
 * one line that starts with "file:line: ".
 */
#ifndef LS_BASE_YAML_H
#define LS_BASE_YAML_H

#include <stddef.h>
#include "lockstep/status.h"

/* A failure ends the walk; "file:line: " is put before its message. key and value are valid during the call. */
typedef ls_status yaml_entry_fn(void *ctx, const char *key, const char *value, int line);

ls_status yaml_parse(const char *text, size_t bytes, const char *what, yaml_entry_fn *fn, void *ctx);
ls_status yaml_read(const char *path, yaml_entry_fn *fn, void *ctx);

#endif
