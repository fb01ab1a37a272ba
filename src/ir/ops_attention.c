/* ops_attention.c - embeddings, rotary embeddings, attention, caches. */
#include "ir/program.h"

#include <math.h>
#include <string.h>

static bool is_i32(ls_program *p, const char *op, const char *name, ls_value x)
{
    if (!program_ok(p)) return false;
    if (!x.id || program_value(p, x)->dtype != LS_I32) {
        program_fail(p, "%s: %s must be of type i32%s", op, name, x.id ? "" : ", it is missing");
        return false;
    }
    return true;
}

ls_value ls_embedding(ls_program *p, ls_value ids, ls_value w)
{
    size_t size[LS_DIMS];

    if (!is_i32(p, "embedding", "ids", ids) || !program_operand(p, "embedding", "w", w, LS_DTYPES)) return LS_NONE;
    ids = ls_contiguous(p, ids);
    w = ls_contiguous(p, w);
    const struct value *i = program_value(p, ids);
    const struct value *t = program_value(p, w);
    if (t->ndim != 2 || i->ndim + 1 > LS_DIMS)
        return program_fail(p, "embedding: w has %d dims, ids have %d; expected w [V,C]", t->ndim, i->ndim);
    memcpy(size, i->size, sizeof size);
    size[i->ndim] = t->size[1];
    program_bound(p, ids, 0, (int64_t)t->size[0] - 1);
    ls_value y = program_new_value(p, "embedding", t->dtype, i->ndim + 1, size);
    return program_emit(p, OP_EMBEDDING, NULL, 2, (ls_value[]){ ids, w }, 1, &y);
}

ls_value ls_rope_table(ls_program *p, ls_value positions, size_t head_size, const ls_rope *rope)
{
    static const ls_rope defaults = LS_ROPE_DEFAULTS;
    const ls_rope *r = rope ? rope : &defaults;
    struct op_attr attr = { .rope = { r->theta, r->factor, r->low_freq_factor, r->high_freq_factor, r->original_positions } };

    if (!is_i32(p, "rope_table", "positions", positions)) return LS_NONE;
    if (program_value(p, positions)->ndim != 1 || head_size % 2 || !head_size)
        return program_fail(p, "rope_table: positions have %d dims and the head size is %zu; [T] and an even size are expected",
                            program_value(p, positions)->ndim, head_size);
    if (!(r->theta > 0) || !(r->factor > 0) || (r->factor != 1.0 && !(r->high_freq_factor > r->low_freq_factor)))
        return program_fail(p, "rope_table: theta %g, factor %g, low %g, high %g; theta and factor > 0 and high > low are expected",
                            r->theta, r->factor, r->low_freq_factor, r->high_freq_factor);
    ls_value table = program_new_value(p, "rope_table", ls_store_settings(p->store).type == LS_F64 ? LS_F64 : LS_F32, 2,
                                       (size_t[]){ program_value(p, positions)->size[0], head_size });
    return program_emit(p, OP_ROPE_TABLE, &attr, 1, &positions, 1, &table);
}

ls_value ls_rope_apply(ls_program *p, ls_value x, ls_value table)
{
    struct op_attr attr = { .rotate = { 0 } };
    char xs[96], ts[96];
    size_t size[LS_DIMS];

    if (!program_operand(p, "rope", "x", x, LS_DTYPES) || !program_operand(p, "rope", "table", table, LS_DTYPES)) return LS_NONE;
    const struct value *v = program_value(p, x);
    const struct value *t = program_value(p, table);
    if (v->ndim != 4 || t->ndim != 2 || v->size[1] != t->size[0] || v->size[3] != t->size[1])
        return program_fail(p, "rope: x is %s, table is %s; expected [B,T,H,D] and [T,D]", value_shape(v, xs), value_shape(t, ts));
    memcpy(size, v->size, sizeof size);
    ls_value y = program_new_value(p, "rope", v->dtype, 4, size);
    return program_emit(p, OP_ROPE, &attr, 2, (ls_value[]){ x, table }, 1, &y);
}

/* The last dim must be dense: kernels read heads as rows. */
static ls_value dense_rows(ls_program *p, ls_value x)
{
    const struct value *v = program_value(p, x);

    return v->stride[v->ndim - 1] == 1 || v->size[v->ndim - 1] == 1 ? x : ls_contiguous(p, x);
}

static ls_value attention_of(ls_program *p, ls_value q, ls_value k, ls_value v, int causal, ls_value length, struct attention_drop drop,
                             ls_value step)
{
    struct op_attr attr = { .attention = { .causal = causal, .drop = drop } };
    char qs[96], ks[96], vs[96];
    size_t size[4], stat[3];

    if (!program_operand(p, "attention", "q", q, LS_DTYPES) || !program_operand(p, "attention", "k", k, program_value(p, q)->dtype) ||
        !program_operand(p, "attention", "v", v, program_value(p, q)->dtype))
        return LS_NONE;
    q = dense_rows(p, q);
    k = dense_rows(p, k);
    v = dense_rows(p, v);
    if (!program_ok(p)) return LS_NONE;
    const struct value *a = program_value(p, q);
    const struct value *b = program_value(p, k);
    const struct value *c = program_value(p, v);
    if (a->ndim != 4 || b->ndim != 4 || !program_same_shape(p, k, v) || a->size[0] != b->size[0] || a->size[3] != b->size[3] ||
        !b->size[2] || a->size[2] % b->size[2])
        return program_fail(p, "attention: q is %s, k is %s, v is %s; expected q [B,T,H,D], k and v [B,S,G,D], H a multiple of G",
                            value_shape(a, qs), value_shape(b, ks), value_shape(c, vs));
    if (causal && !length.id && b->size[1] < a->size[1])
        return program_fail(p, "attention: causal attention needs at least as many keys as queries: %zu queries, %zu keys", a->size[1],
                            b->size[1]);
    if (length.id && !is_i32(p, "attention", "length", length)) return LS_NONE;
    if (length.id) program_bound(p, length, causal ? (int64_t)a->size[1] : 1, (int64_t)b->size[1]);
    if (step.id && a->size[1] != b->size[1])
        return program_fail(p, "attention: dropout needs as many keys as queries: %zu queries, %zu keys", a->size[1], b->size[1]);
    attr.attention.scale = 1.0 / sqrt((double)a->size[3]);
    attr.attention.drop.heads = a->size[2];
    attr.attention.drop.full = a->size[1];
    memcpy(size, a->size, sizeof size);
    memcpy(stat, (size_t[]){ size[0], size[2], size[1] }, sizeof stat);
    ls_dtype type = a->dtype;
    ls_value o = program_new_value(p, "attention", type, 4, size);
    ls_value lse = program_new_value(p, "lse", type == LS_F64 ? LS_F64 : LS_F32, 3, stat);
    return program_emit(p, OP_ATTENTION, &attr, step.id ? 5 : 4, (ls_value[]){ q, k, v, length, step }, 2, (ls_value[]){ o, lse });
}

ls_value ls_attention(ls_program *p, ls_value q, ls_value k, ls_value v, int causal, ls_value length)
{
    return attention_of(p, q, k, v, causal, length, (struct attention_drop){ 0 }, LS_NONE);
}

ls_value ls_attention_dropout(ls_program *p, const char *name, ls_value q, ls_value k, ls_value v, int causal, double probability,
                              uint64_t seed, ls_value step)
{
    struct attention_drop drop = { .p = probability, .seed = seed };

    if (!program_ok(p) || !program_drops(p, name, probability, step)) return LS_NONE;
    drop.stream = program_site_stream(p, name);
    return attention_of(p, q, k, v, causal, LS_NONE, drop, probability > 0 ? step : LS_NONE);
}

ls_value ls_cache_write(ls_program *p, ls_value cache, ls_value x, ls_value position)
{
    char cs[96], xs[96];

    if (!program_operand(p, "cache_write", "cache", cache, LS_DTYPES) ||
        !program_operand(p, "cache_write", "x", x, program_value(p, cache)->dtype) || !is_i32(p, "cache_write", "position", position))
        return LS_NONE;
    x = ls_contiguous(p, x);
    const struct value *c = program_value(p, cache);
    const struct value *v = program_value(p, x);
    if (c->role != LS_ROLE_BOUND || c->ndim != 4 || v->ndim != 4 || c->size[0] != v->size[0] || c->size[1] < v->size[1] ||
        c->size[2] != v->size[2] || c->size[3] != v->size[3])
        return program_fail(p, "cache_write: cache is %s%s, x is %s; expected a bound [B,S,G,D] and [B,T,G,D] with T <= S",
                            value_shape(c, cs), c->role == LS_ROLE_BOUND ? "" : " and not bound", value_shape(v, xs));
    program_bound(p, position, 0, (int64_t)(c->size[1] - v->size[1]));
    return program_emit(p, OP_CACHE_WRITE, NULL, 2, (ls_value[]){ x, position }, 1, &cache);
}
