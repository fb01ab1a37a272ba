/* hf_tensors.c - lists the tensors of a Hugging Face folder from the model's table of weights. */
#include "checkpoint/hf/hf_tensors.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "runtime/store.h"

enum { LOOK_BACK = 4 }; /* parts of a tensor follow each other, alternating with the bias's */

static struct hf_tensor *find_back(struct hf_tensor *list, size_t n, const char *name)
{
    for (size_t back = 1; back <= MIN(n, LOOK_BACK); back++)
        if (strcmp(list[n - back].part[0].hf, name) == 0) return &list[n - back];
    return NULL;
}

/* "experts.*.w1" -> "experts.3.w1" */
static void name_stacked(char *hf, size_t index)
{
    char whole[MODEL_NAME_BYTES];

    memcpy(whole, hf, sizeof whole);
    char *star = strchr(whole, '*');
    ASSERT(star);
    *star = '\0';
    int n = snprintf(hf, MODEL_NAME_BYTES, "%s%zu%s", whole, index, star + 1);
    ASSERT(n > 0 && n < MODEL_NAME_BYTES);
}

static size_t count_tensors(const ls_model *m)
{
    struct model_weight w;
    size_t n = 0;

    for (size_t i = 0; i < model_weight_count(m); i++) {
        model_weight_at(m, i, &w);
        n += MAX(w.stacked, (size_t)1);
    }
    return n;
}

ls_status hf_tensors_of(const ls_model *m, struct hf_tensor **out, size_t *count)
{
    size_t weights = model_weight_count(m), n = 0;
    struct hf_tensor *list = mem_array(MEM_OTHER, count_tensors(m), sizeof *list);
    struct model_weight w;

    if (!list) return LS_ENOMEM;
    for (size_t i = 0; i < weights; i++) {
        model_weight_at(m, i, &w);
        struct hf_tensor *t = w.part ? find_back(list, n, w.hf) : &list[n++];
        ASSERT(t && w.part == t->parts && w.parts <= HF_PARTS);
        t->part[t->parts++] = w;
        for (size_t e = 1; e < w.stacked; e++) {
            list[n] = *t;
            list[n].index = e;
            name_stacked(list[n++].part[0].hf, e);
        }
        if (w.stacked) name_stacked(t->part[0].hf, 0);
    }
    for (size_t i = 0; i < n; i++) ASSERT(list[i].parts == list[i].part[0].parts);
    *out = list;
    *count = n;
    return LS_OK;
}

ls_status hf_find_parameter(const ls_store *s, const struct model_weight *w, size_t *index)
{
    int i = ls_store_find(s, w->name);

    if (i < 0) return ls_fail(LS_EINVAL, "the store has no parameter '%s' of the model", w->name);
    bool same = ls_store_ndim(s, (size_t)i) == w->ndim;
    for (int d = 0; same && d < w->ndim; d++) same = ls_store_size(s, (size_t)i, d) == w->size[d];
    if (!same)
        return ls_fail(LS_EINVAL, "the store's parameter '%s' differs in shape from the model's, whose first dim is %zu", w->name,
                       w->size[0]);
    *index = (size_t)i;
    return LS_OK;
}

/* Outputs [first, first + R) of the tensor are the R rows of w, C elements each. */
static size_t hf_tensors_rows_of(const struct model_weight *w) { return w->size[w->stacked ? 1 : 0]; }
static size_t columns_of(const struct model_weight *w) { return w->ndim > 1 ? w->size[w->ndim - 1] : 1; }
size_t hf_part_count(const struct model_weight *w) { return hf_tensors_rows_of(w) * columns_of(w); }

void hf_place(void *hf, const void *own, const struct model_weight *w, size_t esize)
{
    size_t rows = hf_tensors_rows_of(w), columns = columns_of(w), first = (size_t)w->part * rows, outputs = w->hf_size[1];
    char *to = hf;
    const char *from = own;

    if (!w->transposed) {
        memcpy(to + first * columns * esize, from, rows * columns * esize);
        return;
    }
    for (size_t c = 0; c < columns; c++)
        for (size_t r = 0; r < rows; r++) memcpy(to + (c * outputs + first + r) * esize, from + (r * columns + c) * esize, esize);
}

struct picking {
    char *own;
    const char *hf; /* the first output of the part */
    size_t columns, outputs, esize;
};

/* Rows [begin, end) of own[R,C], the columns of hf[C,outputs]: a few at a time, which share the lines of the cache that are read. */
static void pick_rows(void *ctx, size_t begin, size_t end, int thread)
{
    enum { ROWS = 16 };
    const struct picking *p = ctx;

    (void)thread;
    for (size_t first = begin; first < end; first += ROWS) {
        size_t rows = MIN(end - first, (size_t)ROWS);

        for (size_t c = 0; c < p->columns; c++) {
            const char *from = p->hf + (c * p->outputs + first) * p->esize;
            char *to = p->own + (first * p->columns + c) * p->esize;

            if (p->esize == sizeof(float))
                for (size_t r = 0; r < rows; r++) memcpy(to + r * p->columns * sizeof(float), from + r * sizeof(float), sizeof(float));
            else
                for (size_t r = 0; r < rows; r++) memcpy(to + r * p->columns * p->esize, from + r * p->esize, p->esize);
        }
    }
}

void hf_pick(void *own, const void *hf, const struct model_weight *w, size_t esize)
{
    size_t rows = hf_tensors_rows_of(w), columns = columns_of(w), first = (size_t)w->part * rows;
    struct picking p = { own, (const char *)hf + first * esize, columns, w->hf_size[1], esize };

    if (w->transposed)
        threads_for(rows, 16, pick_rows, &p);
    else
        memcpy(own, (const char *)hf + first * columns * esize, rows * columns * esize);
}

const void *hf_pick_in_place(const void *hf, const struct model_weight *w, size_t esize)
{
    const char *from = (const char *)hf + (size_t)w->part * hf_tensors_rows_of(w) * columns_of(w) * esize;

    return w->transposed || w->stacked || (uintptr_t)from % esize ? NULL : from;
}

ls_status hf_declare(ls_store *s, const ls_model *m)
{
    struct model_weight w;
    int index;

    for (size_t i = 0; i < model_weight_count(m); i++) {
        model_weight_at(m, i, &w);
        LS_TRY(store_declare(s, w.name, (ls_init){ LS_INIT_ZEROS, 0 }, w.ndim, w.size, &index));
    }
    return LS_OK;
}
