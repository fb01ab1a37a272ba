/* helper_golden.c - see helper_golden.h. */
#include "helper_golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/device.h"

static void try(ls_status st)
{
    if (st < 0)
        fail_msg("%s", ls_errmsg());
}

void golden_path(char *path, size_t room, const char *name, const char *file)
{
    const char *folder = getenv("LOCKSTEP_TESTS");

    snprintf(path, room, "%s/golden/%s%s%s", folder ? folder : TEST_DIR, name, *file ? "/" : "", file);
}

const char *golden_device(void)
{
    const char *name = getenv("LOCKSTEP_DEVICE");

    return name ? name : "cpu";
}

ls_status golden_store_new(ls_dtype type, ls_store **out)
{
    ls_store_options o = { golden_device(), type, 1, 0, 0 };

    return ls_store_new(&o, out);
}

ls_status golden_device_choose(char *name, size_t room)
{
    const struct device *d = device_find(golden_device());
    struct device_facts facts;
    int processors;

    snprintf(name, room, "%s", golden_device());
    if (!d)
        return LS_EUNSUPPORTED;
    if (!d->count)
        return LS_OK;
    LS_TRY(d->count(&processors));
    LS_TRY(d->choose(0, &facts));
    snprintf(name, room, "%s", facts.name);
    return LS_OK;
}

static struct safetensors *open_file(const char *name, const char *file)
{
    struct safetensors *f;
    char path[512];

    golden_path(path, sizeof path, name, file);
    try(safetensors_open(path, &f));
    return f;
}

void golden_open(const char *name, struct golden *out)
{
    char path[512];

    golden_path(path, sizeof path, name, "");
    try(ls_model_read_hf(path, &out->model));
    out->model.z_coef = out->model.experts ? 0.01 : 0; /* not a setting of Hugging Face */
    out->model.aux_over_micro_batch = 1;               /* over the whole batch, as in PyTorch's numbers and in transformers */
    out->weights = open_file(name, "model.safetensors");
    out->numbers = open_file(name, "golden.safetensors");
}

void golden_close(struct golden *g)
{
    safetensors_close(&g->weights);
    safetensors_close(&g->numbers);
}

static float *widen(const struct safetensor *t)
{
    float *x = malloc(t->count * sizeof *x);
    void *aligned = malloc(t->bytes);

    assert_true(x && aligned && t->type != LS_DTYPES);
    memcpy(aligned, t->data, t->bytes);
    ls_convert(x, LS_F32, aligned, t->type, t->count);
    free(aligned);
    return x;
}

float *golden_numbers(const struct safetensors *f, const char *name, size_t *count)
{
    const struct safetensor *t = safetensors_find(f, name);

    if (!t)
        fail_msg("%s has no '%s'", safetensors_path(f), name);
    *count = t->count;
    return widen(t);
}

/* Reads the tensor hf_name, of which w is a part (or which is one tensor of a stacked w), as w's rows. */
static float *golden_tensor(const struct safetensors *f, const char *prefix, const char *hf_name, const struct model_weight *w)
{
    size_t rows = w->size[w->stacked ? 1 : 0], columns = w->ndim > 1 ? w->size[w->ndim - 1] : 1, first = (size_t)w->part * rows;
    char name[160];
    float *ours;

    snprintf(name, sizeof name, "%s%s", prefix, hf_name);
    const struct safetensor *t = safetensors_find(f, name);
    if (!t)
        return NULL;
    assert_int_equal(t->ndim, w->hf_ndim);
    assert_int_equal(t->size[0], w->hf_size[0]);
    assert_true(t->ndim == 1 || t->size[1] == w->hf_size[1]);
    float *hf = widen(t);
    ours = malloc(rows * columns * sizeof *ours);
    assert_non_null(ours);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            ours[r * columns + c] = w->transposed ? hf[c * w->hf_size[1] + first + r] : hf[(first + r) * columns + c];
    free(hf);
    return ours;
}

float *golden_weight(const struct safetensors *f, const char *prefix, const struct model_weight *w)
{
    size_t count = w->size[1] * w->size[2];
    const char *star = strchr(w->hf, '*');
    float *all, *one;
    char name[MODEL_NAME_BYTES];

    if (!w->stacked)
        return golden_tensor(f, prefix, w->hf, w);
    all = malloc(w->stacked * count * sizeof *all);
    assert_true(all && star);
    for (size_t e = 0; e < w->stacked; e++) {
        snprintf(name, sizeof name, "%.*s%zu%s", (int)(star - w->hf), w->hf, e, star + 1);
        one = golden_tensor(f, prefix, name, w);
        if (!one) {
            free(all);
            return NULL;
        }
        memcpy(all + e * count, one, count * sizeof *all);
        free(one);
    }
    return all;
}

void golden_fill(const struct golden *g, ls_store *s)
{
    struct model_weight w;

    assert_int_equal(ls_store_count(s), model_weight_count(&g->model));
    for (size_t i = 0; i < ls_store_count(s); i++) {
        model_weight_at(&g->model, i, &w);
        assert_string_equal(ls_store_name(s, i), w.name);
        float *x = golden_weight(g->weights, "", &w);
        if (!x)
            fail_msg("%s has no '%s'", safetensors_path(g->weights), w.hf);
        try(ls_store_set(s, i, x, LS_F32, w.size[0] * (w.ndim > 1 ? w.size[1] : 1) * (w.ndim > 2 ? w.size[2] : 1)));
        free(x);
    }
}

double norm_of(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

double distance(const float *x, const float *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sqrt(sum);
}
