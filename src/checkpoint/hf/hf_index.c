/* hf_index.c - reading the index of a sharded folder. */
#include "checkpoint/hf/hf_index.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static ls_status read_map(struct hf_index *x, const char *what)
{
    size_t kept = 0;

    x->map = json_get(x->root, "weight_map");
    size_t n = json_size(x->map);
    if (json_kind_of(x->map) != JSON_OBJECT || n == 0)
        return ls_fail(LS_EFORMAT, "%s: \"weight_map\" is not an object of tensors and files", what);
    x->file = mem_array(MEM_OTHER, n, sizeof *x->file);
    if (!x->file) return LS_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *tensor, *file = json_string(json_member(x->map, i, &tensor), NULL);

        if (!file || !file_is_basename(file))
            return ls_fail(LS_EFORMAT, "%s: tensor %zu of \"weight_map\" is not in a file of this folder; expected a bare file name", what,
                           i);
        x->file[i] = file;
    }
    qsort(x->file, n, sizeof *x->file, by_text);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || strcmp(x->file[kept - 1], x->file[i]) != 0) x->file[kept++] = x->file[i];
    x->nfiles = kept;
    return LS_OK;
}

ls_status hf_index_parse(const char *text, size_t bytes, const char *what, struct hf_index *out)
{
    struct hf_index x = { 0 };
    ls_status st = json_parse(text, bytes, what, &x.root);

    if (st == LS_OK) st = read_map(&x, what);
    if (st == LS_OK)
        *out = x;
    else
        hf_index_free(&x);
    return st;
}

void hf_index_free(struct hf_index *x)
{
    mem_free(x->file);
    json_close(&x->root);
    *x = (struct hf_index){ 0 };
}
