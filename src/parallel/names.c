/* names.c - parameters cut by name: one table of patterns, and what the store is told of it. */
#include "parallel/partition.h"

#include <string.h>

/* What a dim counts: by heads whole, by anything else element by element. */
enum unit { UNIT_QUERY, UNIT_KEY, UNIT_FFN, UNIT_VOCAB, UNIT_EXPERT, UNIT_EXPERT_FFN, UNIT_SHARED_FFN };

/* '*' in front: any name that ends so. A name may stand in several rows, one a dim. */
struct name_row { const char *pattern; ls_axis axis; int dim; enum unit unit; };

static const struct name_row rows[] = {
    /* GPT-2 */
    { "wte.weight", LS_AXIS_TP, 0, UNIT_VOCAB },
    { "*.attn.q.weight", LS_AXIS_TP, 0, UNIT_QUERY },
    { "*.attn.q.bias", LS_AXIS_TP, 0, UNIT_QUERY },
    { "*.attn.k.weight", LS_AXIS_TP, 0, UNIT_KEY },
    { "*.attn.k.bias", LS_AXIS_TP, 0, UNIT_KEY },
    { "*.attn.v.weight", LS_AXIS_TP, 0, UNIT_KEY },
    { "*.attn.v.bias", LS_AXIS_TP, 0, UNIT_KEY },
    { "*.attn.proj.weight", LS_AXIS_TP, 1, UNIT_QUERY },
    { "*.mlp.fc.weight", LS_AXIS_TP, 0, UNIT_FFN },
    { "*.mlp.fc.bias", LS_AXIS_TP, 0, UNIT_FFN },
    { "*.mlp.proj.weight", LS_AXIS_TP, 1, UNIT_FFN },
    /* Llama */
    { "model.embed_tokens.weight", LS_AXIS_TP, 0, UNIT_VOCAB },
    { "*.self_attn.q_proj.weight", LS_AXIS_TP, 0, UNIT_QUERY },
    { "*.self_attn.k_proj.weight", LS_AXIS_TP, 0, UNIT_KEY },
    { "*.self_attn.v_proj.weight", LS_AXIS_TP, 0, UNIT_KEY },
    { "*.self_attn.o_proj.weight", LS_AXIS_TP, 1, UNIT_QUERY },
    { "*.mlp.gate_proj.weight", LS_AXIS_TP, 0, UNIT_FFN },
    { "*.mlp.up_proj.weight", LS_AXIS_TP, 0, UNIT_FFN },
    { "*.mlp.down_proj.weight", LS_AXIS_TP, 1, UNIT_FFN },
    /* experts */
    { "*.mlp.experts.gate_proj.weight", LS_AXIS_EP, 0, UNIT_EXPERT },
    { "*.mlp.experts.gate_proj.weight", LS_AXIS_TP, 1, UNIT_EXPERT_FFN },
    { "*.mlp.experts.up_proj.weight", LS_AXIS_EP, 0, UNIT_EXPERT },
    { "*.mlp.experts.up_proj.weight", LS_AXIS_TP, 1, UNIT_EXPERT_FFN },
    { "*.mlp.experts.down_proj.weight", LS_AXIS_EP, 0, UNIT_EXPERT },
    { "*.mlp.experts.down_proj.weight", LS_AXIS_TP, 2, UNIT_EXPERT_FFN },
    { "*.mlp.shared_experts.gate_proj.weight", LS_AXIS_TP, 0, UNIT_SHARED_FFN },
    { "*.mlp.shared_experts.up_proj.weight", LS_AXIS_TP, 0, UNIT_SHARED_FFN },
    { "*.mlp.shared_experts.down_proj.weight", LS_AXIS_TP, 1, UNIT_SHARED_FFN },
    /* both, untied */
    { "lm_head.weight", LS_AXIS_TP, 0, UNIT_VOCAB },
};

static bool matches(const char *pattern, const char *name)
{
    size_t n = strlen(name), k = strlen(pattern);

    if (pattern[0] != '*')
        return strcmp(pattern, name) == 0;
    return n + 1 >= k && strcmp(name + n + 1 - k, pattern + 1) == 0;
}

static const char *unit_name(enum unit u)
{
    static const char *const names[] = { "query heads", "key heads", "elements of the ffn", "vocabulary entries", "experts",
                                         "elements of an expert's ffn", "elements of the shared ffn" };

    return names[u];
}

/* Fewer key heads than ranks: every rank has all of them, and takes what it needs. */
static bool is_shared(const struct cutter *c, enum unit u) { return u == UNIT_KEY && c->d->m.kv_heads < (size_t)c->n[LS_AXIS_TP]; }

static struct piece unit_piece(const struct cutter *c, const struct name_row *row)
{
    const ls_model *m = &c->d->m;
    size_t group = m->kv_heads >= (size_t)c->n[LS_AXIS_TP] ? m->heads / m->kv_heads : 1;  /* whole groups beside their key head */

    switch (row->unit) {
    case UNIT_QUERY: return (struct piece){ m->heads * m->head_size, group * m->head_size, 0 };
    case UNIT_KEY:   return (struct piece){ m->kv_heads * m->head_size, m->head_size, 0 };
    case UNIT_FFN:   return (struct piece){ m->ffn, 1, 0 };
    case UNIT_VOCAB: return (struct piece){ m->vocab, 1, 0 };
    case UNIT_EXPERT: return (struct piece){ m->experts, 1, 0 };
    case UNIT_EXPERT_FFN: return (struct piece){ m->expert_ffn, 1, 0 };
    case UNIT_SHARED_FFN: return (struct piece){ m->shared_ffn, 1, 0 };
    }
    return (struct piece){ 0 };
}

static ls_status check_row(const struct cutter *c, size_t i, const struct name_row *row, struct piece piece)
{
    size_t units = piece.whole / MAX(piece.grain, 1);
    int n = c->n[row->axis];

    if (row->dim >= ls_store_ndim(c->p->store, i) || ls_store_size(c->p->store, i, row->dim) != piece.whole)
        return ls_fail(LS_EINVAL, "partition: '%s' has %zu elements in dim %d, but the model has %zu (%s)",
                       ls_store_name(c->p->store, i), row->dim < ls_store_ndim(c->p->store, i) ? ls_store_size(c->p->store, i, row->dim) : 0,
                       row->dim, piece.whole, unit_name(row->unit));
    if (units < (size_t)n)
        return ls_fail(LS_EINVAL, "partition: '%s' has %zu %s, fewer than the %d ranks of %s", ls_store_name(c->p->store, i), units,
                       unit_name(row->unit), n, axis_name(row->axis));
    return LS_OK;
}

static ls_status cut_by_row(struct cutter *c, size_t i, const struct name_row *row)
{
    struct piece piece = unit_piece(c, row);
    int n = c->n[row->axis], r = c->rank[row->axis];
    ls_placement *at = &store_placement(c->p->store, i)[row->axis];
    size_t begin = cut_at(piece.whole, piece.grain, r, n);

    if (n == 1)
        return LS_OK;
    if (is_shared(c, row->unit)) {
        at->partial_gradient = 1;  /* of the heads that others take there is nothing here */
        return LS_OK;
    }
    LS_TRY(check_row(c, i, row, piece));
    if (at->kind == LS_SHARD)
        return LS_OK;  /* by another program of this store */
    *at = (ls_placement){ LS_SHARD, row->dim, piece.grain, 0, 0 };
    store_cut(c->p->store, i, row->dim, begin, cut_at(piece.whole, piece.grain, r + 1, n) - begin);
    return LS_OK;
}

static ls_status cut_parameter(struct cutter *c, size_t i)
{
    ls_placement *at = store_placement(c->p->store, i);

    for (size_t k = 0; k < COUNT_OF(rows); k++)
        if (matches(rows[k].pattern, ls_store_name(c->p->store, i)))
            LS_TRY(cut_by_row(c, i, &rows[k]));
    if (c->n[LS_AXIS_CP] > 1)
        at[LS_AXIS_CP].partial_gradient = 1;
    if (at[LS_AXIS_TP].kind == LS_REPLICATE && c->rank[LS_AXIS_TP] != 0)
        store_set_speaker(c->p->store, i, false);
    return LS_OK;
}

/* Whole on every rank because its heads are too few. */
static bool is_entered(const struct cutter *c, const char *name)
{
    for (size_t k = 0; k < COUNT_OF(rows); k++)
        if (rows[k].axis == LS_AXIS_TP && is_shared(c, rows[k].unit) && matches(rows[k].pattern, name))
            return true;
    return false;
}

/* The program's value of a parameter, its gradient or a state takes the box's sizes. */
static void value_cut(struct cutter *c, ls_value v)
{
    const struct value *x = program_value(c->p, v);
    size_t i = (size_t)x->param;
    struct lie *l = lie_of(c, v);

    for (int d = 0; d < x->ndim; d++)
        value_resize(c, v, d, store_local_size(c->p->store, i, d));
    l->learns = x->role == LS_ROLE_PARAMETER && !ls_store_is_frozen(c->p->store, i);
    memcpy(program_value(c->p, v)->place, store_placement(c->p->store, i), sizeof x->place);
    for (int a = 0; a < LS_AXES; a++)
        if (x->place[a].kind == LS_SHARD)
            l->whole[a] = l->size[x->place[a].dim];
    l->enters = l->learns && is_entered(c, ls_store_name(c->p->store, i));
}

ls_status names_cut(struct cutter *c)
{
    for (size_t i = 0; i < ls_store_count(c->p->store); i++)
        if (store_is_here(c->p->store, i))
            LS_TRY(cut_parameter(c, i));
    for (int v = 1; v < c->p->nvalues; v++)
        if (c->p->values[v].param >= 0 && store_is_here(c->p->store, (size_t)c->p->values[v].param))
            value_cut(c, (ls_value){ v });
    return LS_OK;
}
