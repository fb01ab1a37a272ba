/* manifest_check.c - the index by tensor, and the consistency checks of a manifest. */
#include "checkpoint/manifest.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { SHARDS_MOST = 1 << 14 }; /* shards of one tensor: each pair of them is compared */

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static ls_status check_files(const ls_checkpoint_info *info, const char *what)
{
    const char **name = mem_array(MEM_OTHER, info->nfiles, sizeof *name);
    ls_status st = LS_OK;

    if (!name) return LS_ENOMEM;
    for (size_t i = 0; i < info->nfiles; i++) name[i] = info->files[i].name;
    if (info->nfiles) qsort(name, info->nfiles, sizeof *name, by_text);
    for (size_t i = 1; i < info->nfiles && st == LS_OK; i++)
        if (strcmp(name[i - 1], name[i]) == 0) st = ls_fail(LS_EFORMAT, "%s: the file %s is listed twice", what, name[i]);
    mem_free(name);
    return st;
}

static int compare_tensor(const char *kind, const char *name, const ls_checkpoint_entry *e)
{
    int order = strcmp(kind, e->kind);

    return order ? order : strcmp(name, e->name);
}

static int by_tensor(const void *a, const void *b)
{
    const ls_checkpoint_entry *x = *(ls_checkpoint_entry *const *)a, *y = *(ls_checkpoint_entry *const *)b;
    int order = compare_tensor(x->kind, x->name, y);

    for (int d = 0; order == 0 && d < MIN(x->ndim, y->ndim); d++) order = (x->offset[d] > y->offset[d]) - (x->offset[d] < y->offset[d]);
    return order;
}

static size_t volume(int ndim, const size_t *size)
{
    size_t n = 1;

    for (int d = 0; d < ndim; d++) n *= size[d];
    return n;
}

static bool overlap(const ls_checkpoint_entry *a, const ls_checkpoint_entry *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] >= b->offset[d] + b->extent[d] || b->offset[d] >= a->offset[d] + a->extent[d]) return false;
    return true;
}

/* ---- positions, for messages ---- */

enum { PLACE_ROOM = LS_DIMS * 24 };

/* "[2,3]" */
static const char *place_text(char out[PLACE_ROOM], int ndim, const size_t *at)
{
    size_t n = (size_t)sprintf(out, "[");

    for (int d = 0; d < ndim; d++) n += (size_t)sprintf(out + n, "%s%zu", d ? "," : "", at[d]);
    strcpy(out + n, "]");
    return out;
}

static const char *where_both_begin(char out[PLACE_ROOM], const ls_checkpoint_entry *a, const ls_checkpoint_entry *b)
{
    size_t at[LS_DIMS];

    for (int d = 0; d < a->ndim; d++) at[d] = MAX(a->offset[d], b->offset[d]);
    return place_text(out, a->ndim, at);
}

static const ls_checkpoint_entry *shard_at(const ls_checkpoint_entry *const *shard, size_t n, const size_t *at)
{
    for (size_t i = 0; i < n; i++) {
        const ls_checkpoint_entry *e = shard[i];
        int d = 0;

        while (d < e->ndim && at[d] >= e->offset[d] && at[d] - e->offset[d] < e->extent[d]) d++;
        if (d == e->ndim) return e;
    }
    return NULL;
}

/* The first position from `at` on, row-major in dims d and after, that no shard covers. Skips covered ranges: to reach[d], the end of the
 * first shard found there. */
static bool find_hole(const ls_checkpoint_entry *const *shard, size_t n, int d, size_t *at, size_t *reach)
{
    const ls_checkpoint_entry *shape = shard[0];

    for (at[d] = 0; at[d] < shape->size[d]; at[d] = reach[d]) {
        reach[d] = shape->size[d];
        if (d + 1 < shape->ndim) {
            if (find_hole(shard, n, d + 1, at, reach)) return true;
            continue;
        }
        const ls_checkpoint_entry *e = shard_at(shard, n, at);

        if (!e) return true;
        for (int k = 0; k <= d; k++) reach[k] = MIN(reach[k], e->offset[k] + e->extent[k]);
    }
    return false;
}

static const char *first_hole(char out[PLACE_ROOM], const ls_checkpoint_entry *const *shard, size_t n)
{
    size_t at[LS_DIMS] = { 0 }, reach[LS_DIMS];

    if (shard[0]->ndim) find_hole(shard, n, 0, at, reach);
    return place_text(out, shard[0]->ndim, at);
}

/* Checks the n shards of one tensor: same type and shape, disjoint, and together as large as the whole. */
static ls_status check_tensor(const ls_checkpoint_entry *const *shard, size_t n, const char *what)
{
    const ls_checkpoint_entry *first = shard[0];
    size_t whole = volume(first->ndim, first->size), covered = 0;
    char place[PLACE_ROOM];

    if (n > SHARDS_MOST) return ls_fail(LS_EFORMAT, "%s: %s '%s': %zu shards; at most %d", what, first->kind, first->name, n, SHARDS_MOST);
    for (size_t i = 0; i < n; i++) {
        if (shard[i]->type != first->type || shard[i]->ndim != first->ndim || memcmp(shard[i]->size, first->size, sizeof first->size) != 0)
            return ls_fail(LS_EFORMAT, "%s: %s '%s': its shards differ in type or in shape", what, first->kind, first->name);
        for (size_t k = 0; k < i; k++)
            if (overlap(shard[k], shard[i]))
                return ls_fail(LS_EFORMAT, "%s: %s '%s': shards %zu and %zu overlap at %s", what, first->kind, first->name, k, i,
                               where_both_begin(place, shard[k], shard[i]));
        covered += volume(shard[i]->ndim, shard[i]->extent);
    }
    if (covered != whole)
        return ls_fail(LS_EFORMAT, "%s: %s '%s': its shards have %zu of %zu elements; %s is missing", what, first->kind, first->name,
                       covered, whole, first_hole(place, shard, n));
    return LS_OK;
}

static ls_status check_tensors(struct manifest *m, const char *what)
{
    ls_checkpoint_info *info = &m->info;
    bool first = true;
    size_t n;

    for (size_t i = 0; i < info->nentries; i += n) {
        const ls_checkpoint_entry *e = m->sorted[i];

        for (n = 1; i + n < info->nentries && compare_tensor(e->kind, e->name, m->sorted[i + n]) == 0;) n++;
        LS_TRY(check_tensor(m->sorted + i, n, what));
        if (strcmp(e->kind, KIND_PARAMETER) != 0) continue;
        if (!first && (e->type == LS_F64) != (info->type == LS_F64))
            return ls_fail(LS_EFORMAT, "%s: parameter '%s' is %s, but others are %s", what, e->name, ls_dtype_name(e->type),
                           ls_dtype_name(info->type));
        if (first || info->type == LS_F32) info->type = e->type;
        first = false;
        if (!size_add(info->parameters, volume(e->ndim, e->size), &info->parameters))
            return ls_fail(LS_EFORMAT, "%s: the number of its parameters overflows", what);
    }
    return LS_OK;
}

ls_status manifest_check(struct manifest *m, const char *what)
{
    LS_TRY(check_files(&m->info, what));
    m->sorted = mem_array(MEM_OTHER, m->info.nentries, sizeof *m->sorted);
    if (!m->sorted) return LS_ENOMEM;
    for (size_t i = 0; i < m->info.nentries; i++) m->sorted[i] = &m->info.entries[i];
    if (m->info.nentries) qsort(m->sorted, m->info.nentries, sizeof *m->sorted, by_tensor);
    return check_tensors(m, what);
}

const ls_checkpoint_entry *const *manifest_find(const struct manifest *m, const char *kind, const char *name, size_t *n)
{
    size_t low = 0, high = m->info.nentries;

    /* everything below low comes before the tensor; nothing from high on does */
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_tensor(kind, name, m->sorted[middle]) > 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*n = 0; low + *n < m->info.nentries && compare_tensor(kind, name, m->sorted[low + *n]) == 0;) ++*n;
    return m->sorted + low;
}
