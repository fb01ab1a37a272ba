/* peak_cache.c - reads and writes the file of measured peaks. */
#include "train/run/peak_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/kernel.h"

enum { VERSION = 2 }; /* version of the measurement; increase it when a change makes new results incomparable with old ones */

/* ---- where ---- */

char *peak_cache_path(const char *folder, const ls_machine *m)
{
    char text[600], hex[HASH_ROOM];

    snprintf(text, sizeof text, "%d|%s|%s|%s|%d", VERSION, m->name, m->features, m->isa, m->processors);
    hash_of(text, strlen(text), hex);
    return file_path("%s/peak-%.16s.json", folder, hex);
}

/* ---- entries ---- */

const struct peak_entry *peak_entry_of(const struct peak_entries *e, ls_dtype type, int threads)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->entry[i].type == type && e->entry[i].threads == threads) return &e->entry[i];
    return NULL;
}

double peak_known(const struct peak_entries *e, ls_dtype type, int threads)
{
    double most = 0;

    for (size_t i = 0; i < e->n; i++)
        if (e->entry[i].type == type && e->entry[i].threads <= threads) most = fmax(most, e->entry[i].flops);
    return most;
}

void peak_entry_put(struct peak_entries *e, const struct peak_entry *entry)
{
    const struct peak_entry *same = peak_entry_of(e, entry->type, entry->threads);
    size_t at = same ? (size_t)(same - e->entry) : e->n;

    if (at == PEAK_ENTRIES) {
        at = 0;
        for (size_t i = 1; i < e->n; i++)
            if (e->entry[i].when < e->entry[at].when) at = i;
    }
    e->entry[at] = *entry;
    e->n = MAX(e->n, at + 1);
}

double peak_bound(const ls_machine *m, ls_dtype type, int threads)
{
    static const double hertz = 6e9;
    /* FLOPs per cycle of a core: of a matmul of pairs of 16-bit numbers, and of others with two FMA units. 0: as without this set. */
    static const struct {
        const char *feature;
        double pairs, others;
    } sets[] = { { "amx", 2048, 0 }, { "avx512_bf16", 128, 0 }, { "avx512", 64, 64 }, { "avx2", 32, 32 } };
    double flops = 0;

    for (size_t i = 0; i < COUNT_OF(sets) && flops == 0; i++)
        if (strstr(m->features, sets[i].feature)) flops = ls_dtype_bytes(type) == 2 ? sets[i].pairs : sets[i].others;
    if (flops == 0) flops = 256; /* unknown processors */
    return flops * hertz * MIN(threads, MAX(m->processors, 1));
}

/* ---- reading ---- */

static bool same_text(const json_node *root, const char *key, const char *want)
{
    return strcmp(json_string(json_get(root, key), ""), want) == 0;
}

static bool read_entry(const json_node *n, struct peak_entry *out)
{
    struct peak_entry e = { .threads = (int)json_int(json_get(n, "threads"), 0),
                            .flops = json_real(json_get(n, "flops"), 0),
                            .busy = json_real(json_get(n, "busy"), -1),
                            .when = json_int(json_get(n, "when"), -1) };

    if (ls_dtype_parse(json_string(json_get(n, "type"), ""), &e.type) < 0) return false;
    *out = e;
    return e.threads >= 1 && isfinite(e.flops) && e.flops > 0 && e.busy >= 0 && e.busy <= 1 && e.when >= 0;
}

static ls_status read_entries(const char *path, const json_node *root, const ls_machine *m, struct peak_entries *out)
{
    const json_node *list = json_get(root, "peaks");
    size_t n = json_size(list);

    if (json_int(json_get(root, "version"), 0) != VERSION || !same_text(root, "processor", m->name) ||
        !same_text(root, "features", m->features) || !same_text(root, "isa", m->isa) ||
        json_int(json_get(root, "processors"), 0) != m->processors)
        return ls_fail(LS_EFORMAT, "%s: describes another machine", path);
    if (json_kind_of(list) != JSON_ARRAY || n > PEAK_ENTRIES) return ls_fail(LS_EFORMAT, "%s: malformed file: no list of peaks", path);
    for (size_t i = 0; i < n; i++) {
        struct peak_entry *e = &out->entry[out->n];

        if (!read_entry(json_at(list, i), e)) return ls_fail(LS_EFORMAT, "%s: malformed file: peak %zu", path, i);
        out->n += e->flops <= peak_bound(m, e->type, e->threads);
    }
    return LS_OK;
}

ls_status peak_cache_read(const char *path, const ls_machine *m, struct peak_entries *out)
{
    json_node *root;

    *out = (struct peak_entries){ .n = 0 };
    if (!file_exists(path)) return LS_OK;
    LS_TRY(json_read(path, &root));
    ls_status st = read_entries(path, root, m, out);
    json_close(&root);
    if (st < 0) out->n = 0;
    return st;
}

/* ---- writing ---- */

static void put_entry(struct json_out *j, const struct peak_entry *e)
{
    json_begin_object(j, NULL);
    json_put_string(j, "type", ls_dtype_name(e->type));
    json_put_int(j, "threads", e->threads);
    json_put_real(j, "flops", e->flops);
    json_put_real(j, "busy", e->busy);
    json_put_int(j, "when", e->when);
    json_end_object(j);
}

ls_status peak_cache_write(const char *folder, const char *path, const ls_machine *m, const struct peak_entries *e)
{
    struct json_out j = { 0 };

    LS_TRY(file_make_folders(folder));
    json_begin_object(&j, NULL);
    json_put_int(&j, "version", VERSION);
    json_put_string(&j, "processor", m->name);
    json_put_string(&j, "features", m->features);
    json_put_int(&j, "processors", m->processors);
    json_put_string(&j, "isa", m->isa);
    json_begin_array(&j, "peaks");
    for (size_t i = 0; i < e->n; i++) put_entry(&j, &e->entry[i]);
    json_end_array(&j);
    json_end_object(&j);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) st = file_write(path, j.text, j.bytes);
    json_out_free(&j);
    return st;
}
