/* weights.c - the families' tables of weights, expanded for one model. */
#include "models/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "models/hf.h"
#include "ir/ir.h"

size_t model_dim_size(const ls_model *m, enum model_dim d)
{
    const size_t size[MODEL_DIMS] = {
        [DIM_NONE] = 1,
        [DIM_VOCAB] = m->vocab,
        [DIM_POSITIONS] = m->max_positions,
        [DIM_WIDTH] = m->width,
        [DIM_QUERY] = m->heads * m->head_size,
        [DIM_KEY] = m->kv_heads * m->head_size,
        [DIM_FFN] = m->ffn,
        [DIM_HEAD] = m->head_size,
        [DIM_EXPERTS] = m->experts,
        [DIM_STACK] = m->experts,
        [DIM_EXPERT_FFN] = m->expert_ffn,
        [DIM_SHARED_FFN] = m->shared_ffn,
        [DIM_BALANCED] = m->router_bias_rate > 0 ? m->experts : 0,
    };

    return size[d];
}

static ls_init init_of(const ls_model *m, enum weight_init kind)
{
    switch (kind) {
    case INIT_NORMAL: return (ls_init){ LS_INIT_NORMAL, m->init_std };
    case INIT_RESIDUAL: return (ls_init){ LS_INIT_NORMAL, m->init_std / sqrt(2.0 * (double)m->layers) };
    case INIT_ONES: return (ls_init){ LS_INIT_ONES, 0 };
    case INIT_ZEROS: return (ls_init){ LS_INIT_ZEROS, 0 };
    }
    ASSERT(!"a kind of the table");
    return (ls_init){ LS_INIT_ZEROS, 0 };
}

static void name_layer(char *out, const char *prefix, const char *layers, long layer, const char *name)
{
    int n = layer == NO_LAYER ? snprintf(out, MODEL_NAME_BYTES, "%s%s", prefix, name)
                              : snprintf(out, MODEL_NAME_BYTES, "%s%s.%ld.%s", prefix, layers, layer, name);

    ASSERT(n > 0 && n < MODEL_NAME_BYTES);
}

static void weights_describe(const ls_model *m, const struct weight_row *row, long layer, struct model_weight *out)
{
    const struct family *f = model_family(m);
    size_t rows = model_dim_size(m, row->rows), columns = model_dim_size(m, row->columns);
    size_t outputs = rows * (size_t)row->parts;

    memset(out, 0, sizeof *out);
    name_layer(out->name, "", f->layer, layer, row->name);
    name_layer(out->hf, row->place == PLACE_UNTIED ? "" : f->hf_prefix, f->layer, layer, row->hf);
    out->stacked = row->stacked ? m->experts : 0;
    if (row->stacked) out->size[out->ndim++] = m->experts;
    out->size[out->ndim++] = rows;
    if (row->columns != DIM_NONE) out->size[out->ndim++] = columns;
    out->hf_ndim = row->columns == DIM_NONE ? 1 : 2;
    out->hf_size[0] = row->transposed ? columns : outputs;
    out->hf_size[1] = row->transposed ? outputs : columns;
    out->init = init_of(m, row->init);
    out->transposed = row->transposed;
    out->part = row->part;
    out->parts = row->parts;
}

/* Elements of one weight of the row; 0: the model has none. */
static double row_elements(const ls_model *m, const struct weight_row *row)
{
    return (double)model_dim_size(m, row->rows) * (double)model_dim_size(m, row->columns) * (row->stacked ? (double)m->experts : 1.0);
}

static size_t rows_in(const ls_model *m, enum weight_place place)
{
    const struct family *f = model_family(m);
    size_t n = 0;

    for (int i = 0; i < f->nrows; i++) n += f->rows[i].place == place && row_elements(m, &f->rows[i]) > 0;
    return n;
}

size_t model_weight_count(const ls_model *m)
{
    return rows_in(m, PLACE_BEFORE) + m->layers * rows_in(m, PLACE_LAYER) + rows_in(m, PLACE_AFTER) +
           (m->tied ? 0 : rows_in(m, PLACE_UNTIED));
}

/* Row k of those for `place`, counted from 0. */
static const struct weight_row *row_at(const ls_model *m, enum weight_place place, size_t k)
{
    const struct family *f = model_family(m);

    for (int i = 0; i < f->nrows; i++)
        if (f->rows[i].place == place && row_elements(m, &f->rows[i]) > 0 && k-- == 0) return &f->rows[i];
    ASSERT(!"a row of the table");
    return NULL;
}

void model_weight_at(const ls_model *m, size_t i, struct model_weight *out)
{
    size_t before = rows_in(m, PLACE_BEFORE), layer = rows_in(m, PLACE_LAYER), after = rows_in(m, PLACE_AFTER);

    ASSERT(i < model_weight_count(m));
    if (i < before)
        weights_describe(m, row_at(m, PLACE_BEFORE, i), NO_LAYER, out);
    else if ((i -= before) < m->layers * layer)
        weights_describe(m, row_at(m, PLACE_LAYER, i % layer), (long)(i / layer), out);
    else if ((i -= m->layers * layer) < after)
        weights_describe(m, row_at(m, PLACE_AFTER, i), NO_LAYER, out);
    else
        weights_describe(m, row_at(m, PLACE_UNTIED, i - after), NO_LAYER, out);
}

ls_value model_param(ls_program *p, const ls_model *m, const char *name, long layer)
{
    const struct family *f = model_family(m);
    struct model_weight w;

    for (int i = 0; i < f->nrows; i++)
        if (strcmp(f->rows[i].name, name) == 0 && (f->rows[i].place == PLACE_LAYER) == (layer != NO_LAYER)) {
            weights_describe(m, &f->rows[i], layer, &w);
            return ls_param(p, w.name, w.init, w.ndim, w.size);
        }
    ASSERT(!"a weight of the table");
    return LS_NONE;
}

/* A layer's weight without "LAYER.NUMBER.", or NULL. */
static const char *name_in_layer(const struct family *f, const char *name)
{
    size_t n = strlen(f->layer);

    if (strncmp(name, f->layer, n) != 0 || name[n] != '.') return NULL;
    size_t digits = strspn(name + n + 1, "0123456789");
    return digits && name[n + 1 + digits] == '.' ? name + n + digits + 2 : NULL;
}

static const struct weight_row *row_named(const ls_model *m, const char *name)
{
    const struct family *f = model_family(m);
    const char *in_layer = name_in_layer(f, name);

    for (int i = 0; i < f->nrows; i++) {
        const char *key = f->rows[i].place == PLACE_LAYER ? in_layer : name;

        if (key && strcmp(f->rows[i].name, key) == 0) return &f->rows[i];
    }
    return NULL;
}

int model_weight_dims(const ls_model *m, const char *name, enum model_dim out[MODEL_WEIGHT_DIMS])
{
    const struct weight_row *row = row_named(m, name);
    int n = 0;

    if (!row) return 0;
    if (row->stacked) out[n++] = DIM_STACK;
    out[n++] = row->rows;
    if (row->columns != DIM_NONE) out[n++] = row->columns;
    return n;
}

size_t model_normed_inputs(const ls_model *m, const char *name)
{
    const struct weight_row *row = row_named(m, name);

    return row && row->normed ? model_dim_size(m, row->columns) : 0;
}

/* How often a row of the table occurs in the model. */
static size_t times(const ls_model *m, const struct weight_row *row)
{
    return row->place == PLACE_LAYER ? m->layers : row->place == PLACE_UNTIED && m->tied ? 0 : 1;
}

size_t ls_model_parameters(const ls_model *m)
{
    const struct family *f = model_family(m);
    size_t n = 0;

    for (int i = 0; i < f->nrows; i++)
        n += model_dim_size(m, f->rows[i].rows) * model_dim_size(m, f->rows[i].columns) * (f->rows[i].stacked ? m->experts : 1) *
             times(m, &f->rows[i]);
    return n;
}

double model_elements(const ls_model *m, bool products_only)
{
    const struct family *f = model_family(m);
    double n = 0;

    for (int i = 0; i < f->nrows; i++)
        if (f->rows[i].product || !products_only)
            n += row_elements(m, &f->rows[i]) * (double)times(m, &f->rows[i]) *
                 (f->rows[i].stacked && products_only ? (double)m->experts_per_token / (double)m->experts : 1.0);
    return n;
}

double ls_model_flops_per_token(const ls_model *m, size_t t)
{
    double head = m->tied ? (double)m->vocab * (double)m->width : 0.0; /* uses the embedding's row of the table */

    return 6.0 * (model_elements(m, true) + head) + 6.0 * (double)m->layers * (double)m->heads * (double)m->head_size * (double)t;
}

/* ---- names in folders ---- */

const char *hf_name_key(const char *name)
{
    static const char prefix[] = "transformer.";

    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

int hf_name_matches(const char *found, const char *hf) { return strcmp(hf_name_key(found), hf_name_key(hf)) == 0; }

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), k = strlen(tail);

    return n >= k && strcmp(name + n - k, tail) == 0;
}

int hf_name_is_ignored(const ls_model *m, const char *found)
{
    if (m->tied && strcmp(found, "lm_head.weight") == 0) return 1;
    for (const char *const *tail = model_family(m)->hf_ignored; *tail; tail++)
        if (ends_with(found, *tail)) return 1;
    return 0;
}
