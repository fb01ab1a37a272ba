/* cache.c - the keys and values of tokens seen so far, per layer, kept between runs of a decoding program. */
#include "models/model.h"

#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"

ls_status ls_cache_new(const char *device, const ls_model *model, ls_dtype type, size_t batch, size_t positions, ls_cache **out)
{
    ls_model m = *model;
    ls_status st;
    ls_cache *c;

    LS_TRY(ls_model_check(&m));
    if (batch == 0 || positions == 0 || positions > m.max_positions)
        return ls_fail(LS_EINVAL, "cache: batch is %zu and positions %zu; batch must be at least 1, positions 1 to %zu (max_positions)",
                       batch, positions, m.max_positions);
    c = mem_zalloc(MEM_OTHER, sizeof *c);
    if (!c) return LS_ENOMEM;
    c->k = mem_array(MEM_OTHER, 2 * m.layers, sizeof *c->k);
    if (!c->k) {
        st = LS_ENOMEM;
        goto release;
    }
    c->v = c->k + m.layers;
    c->layers = m.layers;
    c->batch = batch;
    c->positions = positions;
    for (size_t i = 0; i < 2 * m.layers; i++) {
        st = ls_tensor_new(device, type, 4, (size_t[]){ batch, positions, m.kv_heads, m.head_size }, LS_OTHER, &c->k[i]);
        if (st < 0) goto release;
    }
    *out = c;
    return LS_OK;

release:
    ls_cache_release(&c);
    return st;
}

void ls_cache_release(ls_cache **cp)
{
    ls_cache *c = cp ? *cp : NULL;

    if (!c) return;
    for (size_t i = 0; c->k && i < 2 * c->layers; i++) ls_tensor_release(&c->k[i]);
    mem_free(c->k);
    mem_free(c);
    *cp = NULL;
}

ls_value cache_append(ls_program *p, ls_tensor *cache, char which, size_t layer, size_t text, ls_value x, ls_value position)
{
    char name[64];

    snprintf(name, sizeof name, "cache.%zu.%zu.%c", text, layer, which);
    return ls_cache_write(p, ls_bind(p, name, cache), x, position);
}
