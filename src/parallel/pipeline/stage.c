/* stage.c - extracts one pipeline stage from a complete forward; stage.h says what belongs to which stage. */
#include "parallel/pipeline/stage.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"
#include "parallel/layout.h"

/* Where an instruction belongs, relative to the stage. SPLIT: a sum with terms from several sides. */
enum side { BEFORE, MINE, AFTER, ANYWHERE, SPLIT };

struct extraction {
    ls_program *p;
    ls_stage stage;
    int n, nvalues;  /* number of instructions and values of the complete forward */
    int *maker;      /* by value id: the first instruction that writes it, + 1; 0: a leaf */
    bool *depends;   /* by value id: depends on a parameter */
    enum side *side; /* by instruction */
    bool *keep;      /* by instruction */
    bool *used;      /* by value id: a kept instruction reads or writes it, or a view of it */
};

static const struct instruction *at(const struct extraction *c, int n) { return &c->p->list[SEG_FORWARD].at[n]; }

static int root_of(const struct extraction *c, ls_value v) { return c->p->values[v.id].root; }

static void extraction_close(struct extraction *c)
{
    mem_free(c->maker);
    mem_free(c->depends);
    mem_free(c->side);
    mem_free(c->keep);
    mem_free(c->used);
}

/* ---- assigning instructions to sides ---- */

static void find_dependence(struct extraction *c)
{
    for (int v = 1; v < c->nvalues; v++) c->depends[v] = c->p->values[v].role == LS_ROLE_PARAMETER;
    for (int n = 0; n < c->n; n++) {
        const struct instruction *i = at(c, n);
        bool depends = false;

        for (int k = 0; k < i->nin; k++) depends = depends || (i->in[k].id && c->depends[i->in[k].id]);
        for (int k = 0; k < i->nout; k++)
            if (i->out[k].id) {
                int root = root_of(c, i->out[k]);

                c->depends[i->out[k].id] = c->depends[i->out[k].id] || depends;
                c->depends[root] = c->depends[root] || depends;
                if (!c->maker[i->out[k].id]) c->maker[i->out[k].id] = n + 1;
            }
    }
}

/* The side of block b, 1 .. nblocks - 1. */
static enum side side_of_block(const struct extraction *c, int b)
{
    return b - 1 < c->stage.begin ? BEFORE : b - 1 >= c->stage.end ? AFTER : MINE;
}

static enum side front_side(const struct extraction *c) { return c->stage.index == 0 ? MINE : BEFORE; }
static enum side tail_side(const struct extraction *c) { return c->stage.index == c->stage.stages - 1 ? MINE : AFTER; }

/* Assigns sides by position only. */
static void place_instructions(struct extraction *c)
{
    enum side now = front_side(c);
    int last = -1;

    for (int n = 0; n < c->n; n++) last = at(c, n)->block ? n : last;
    for (int n = 0; n < c->n; n++) {
        now = n > last ? tail_side(c) : at(c, n)->block ? side_of_block(c, at(c, n)->block) : now;
        c->side[n] = now;
    }
}

static bool is_free(const struct extraction *c, const struct instruction *i)
{
    for (int k = 0; k < i->nout; k++)
        if (i->out[k].id && c->depends[root_of(c, i->out[k])]) return false;
    return true;
}

static enum side side_of_maker(const struct extraction *c, int v) { return c->maker[v] ? c->side[c->maker[v] - 1] : ANYWHERE; }

/* A view has the side of its own instruction, or else that of the instruction that wrote its bytes. */
static enum side side_of_value(const struct extraction *c, ls_value v)
{
    enum side s = side_of_maker(c, v.id);

    return s == ANYWHERE ? side_of_maker(c, root_of(c, v)) : s;
}

/* True for a scalar that is a linear function of others: its terms can be summed separately. */
static bool is_sum(const struct extraction *c, const struct instruction *i)
{
    return value_count(&c->p->values[i->out[0].id]) == 1 && (op_info(i->op)->traits & TRAIT_LINEAR);
}

/* Such a scalar has the side of its terms. */
static enum side side_of_sum(const struct extraction *c, int n)
{
    enum side one = ANYWHERE;

    for (int k = 0; k < at(c, n)->nin; k++) {
        enum side s = at(c, n)->in[k].id ? side_of_value(c, at(c, n)->in[k]) : ANYWHERE;

        if (one != ANYWHERE && s != ANYWHERE && s != one) return SPLIT;
        one = one == ANYWHERE ? s : one;
    }
    return one == ANYWHERE ? c->side[n] : one;
}

static void settle_sides(struct extraction *c)
{
    for (int n = 0; n < c->n; n++)
        if (is_free(c, at(c, n)))
            c->side[n] = ANYWHERE;
        else if (instruction_is_view(at(c, n)))
            c->side[n] = side_of_value(c, at(c, n)->in[0]) == SPLIT ? SPLIT : ANYWHERE;
        else if (is_sum(c, at(c, n)))
            c->side[n] = side_of_sum(c, n);
}

/* True if n writes a program output: with side ANYWHERE it stays at its position. */
static bool makes_output(const struct extraction *c, int n)
{
    for (int k = 0; k < at(c, n)->nout; k++)
        if (at(c, n)->out[k].id && c->p->values[at(c, n)->out[k].id].role == LS_ROLE_OUTPUT) return true;
    return false;
}

static bool is_used(const struct extraction *c, int n)
{
    for (int k = 0; k < at(c, n)->nout; k++)
        if (at(c, n)->out[k].id && c->used[at(c, n)->out[k].id]) return true;
    return false;
}

static void use(struct extraction *c, ls_value v)
{
    if (v.id) c->used[v.id] = c->used[root_of(c, v)] = true;
}

/* Walks backwards, so that readers are known. here[n]: by position. The last stage adds the ANYWHERE terms to a split sum. */
static void choose_kept(struct extraction *c, const enum side *here)
{
    bool last = c->stage.index == c->stage.stages - 1;

    for (int n = c->n - 1; n >= 0; n--) {
        for (int k = 0; last && c->side[n] == SPLIT && k < at(c, n)->nin; k++)
            if (at(c, n)->in[k].id && side_of_value(c, at(c, n)->in[k]) == ANYWHERE) use(c, at(c, n)->in[k]);
        c->keep[n] = c->side[n] == MINE || (c->side[n] == ANYWHERE && (is_used(c, n) || (here[n] == MINE && makes_output(c, n))));
        for (int k = 0; c->keep[n] && k < at(c, n)->nin; k++) use(c, at(c, n)->in[k]);
        for (int k = 0; c->keep[n] && k < at(c, n)->nout; k++) use(c, at(c, n)->out[k]);
    }
}

/* ---- the value that crosses a boundary ---- */

static const char *block_name(const struct extraction *c, int model_block)
{
    return model_block + 1 < c->p->nblocks ? c->p->blocks[model_block + 1] : "the end";
}

/* Records that v is written before the start of model block `block` and read from there on. */
static ls_status cross(const struct extraction *c, int v, int block, int *crossing)
{
    if (*crossing && *crossing != v)
        return ls_fail(LS_EINVAL, "stage %d of %d: '%s' and '%s' both cross the boundary before %s; only one value can", c->stage.index,
                       c->stage.stages, c->p->values[*crossing].name, c->p->values[v].name, block_name(c, block));
    *crossing = v;
    return LS_OK;
}

static ls_status check_operand(const struct extraction *c, int n, ls_value v, int *in, int *out)
{
    int root = v.id ? root_of(c, v) : 0;
    enum side reader = c->side[n], maker = v.id ? side_of_value(c, v) : ANYWHERE;

    if (maker == SPLIT && reader != SPLIT)
        return ls_fail(LS_EINVAL, "stage %d of %d: %s in '%s' reads '%s', a sum over blocks of several stages", c->stage.index,
                       c->stage.stages, program_op_name(at(c, n)->op), at(c, n)->block ? c->p->blocks[at(c, n)->block] : "",
                       c->p->values[root].name);
    if (maker == ANYWHERE || reader == ANYWHERE || reader == SPLIT || maker == reader) return LS_OK;
    if (maker > reader)
        return ls_fail(LS_EINVAL, "stage %d of %d: '%s' is computed after the block that reads it; blocks must be in order", c->stage.index,
                       c->stage.stages, c->p->values[root].name);
    if (maker == BEFORE) LS_TRY(cross(c, root, c->stage.begin, in));
    return reader == AFTER ? cross(c, root, c->stage.end, out) : LS_OK;
}

static ls_status find_crossing(const struct extraction *c, int *in, int *out)
{
    bool first = c->stage.index == 0, last = c->stage.index == c->stage.stages - 1;

    *in = *out = 0;
    for (int n = 0; n < c->n; n++) {
        for (int k = 0; k < at(c, n)->nin; k++) LS_TRY(check_operand(c, n, at(c, n)->in[k], in, out));
        for (int k = 0; k < at(c, n)->nout; k++) LS_TRY(check_operand(c, n, at(c, n)->out[k], in, out));
    }
    if ((!first && !*in) || (!last && !*out))
        return ls_fail(LS_EINVAL, "stage %d of %d: nothing crosses the boundary before %s", c->stage.index, c->stage.stages,
                       block_name(c, !first && !*in ? c->stage.begin : c->stage.end));
    if (*in && *in == *out)
        return ls_fail(LS_EINVAL, "stage %d of %d: '%s' passes through blocks %d to %d unchanged", c->stage.index, c->stage.stages,
                       c->p->values[*in].name, c->stage.begin, c->stage.end - 1);
    return LS_OK;
}

/* ---- analysis ---- */

static ls_status stage_look(ls_program *p, const ls_stage *stage, struct extraction *out)
{
    struct extraction c = { .p = p, .stage = *stage, .n = p->list[SEG_FORWARD].n, .nvalues = p->nvalues };
    enum side *here = mem_array(MEM_OTHER, (size_t)c.n + 1, sizeof *here);

    c.maker = mem_array(MEM_OTHER, (size_t)c.nvalues, sizeof *c.maker);
    c.depends = mem_array(MEM_OTHER, (size_t)c.nvalues, sizeof *c.depends);
    c.used = mem_array(MEM_OTHER, (size_t)c.nvalues, sizeof *c.used);
    c.side = mem_array(MEM_OTHER, (size_t)c.n + 1, sizeof *c.side);
    c.keep = mem_array(MEM_OTHER, (size_t)c.n + 1, sizeof *c.keep);
    if (!here || !c.maker || !c.depends || !c.used || !c.side || !c.keep) {
        mem_free(here);
        extraction_close(&c);
        return LS_ENOMEM;
    }
    find_dependence(&c);
    place_instructions(&c);
    memcpy(here, c.side, (size_t)c.n * sizeof *here);
    settle_sides(&c);
    choose_kept(&c, here);
    mem_free(here);
    *out = c;
    return LS_OK;
}

ls_status stage_reads(ls_program *p, const ls_stage *stage, bool *reads)
{
    struct extraction c;

    LS_TRY(ls_program_status(p));
    LS_TRY(layout_check_stage(stage, p->nblocks - 1));
    LS_TRY(stage_look(p, stage, &c));
    for (int v = 1; v < c.nvalues; v++)
        if (p->values[v].role == LS_ROLE_PARAMETER && p->values[v].param >= 0) reads[p->values[v].param] = c.used[v];
    extraction_close(&c);
    return LS_OK;
}

void stage_costs(const ls_program *p, double *cost, double *before, double *after)
{
    const struct list *l = &p->list[SEG_FORWARD];
    int now = 0; /* block of the last instruction seen in a block */

    *before = *after = 0;
    for (int b = 0; b < p->nblocks - 1; b++) cost[b] = 0;
    for (int n = 0; n < l->n; n++) {
        now = l->at[n].block ? l->at[n].block : now;
        *(l->at[n].block ? &cost[l->at[n].block - 1] : now ? after : before) += flops_of(p, &l->at[n]);
    }
}

/* ---- extraction ---- */

/* Before ls_output() gives the name to another value. */
static void forget(ls_program *p, int v)
{
    struct value *x = &p->values[v];
    x->name = "elsewhere";
    x->role = LS_ROLE_ACTIVATION;
    x->keep = false;
    ls_tensor_release(&x->tensor);
}

static ls_status name_value(ls_program *p, int v, const char *name, ls_role role)
{
    struct value *x = &p->values[v];
    const char *copy = names_add(&p->names, NULL, name);

    if (!copy) return LS_ENOMEM;
    x->name = copy;
    x->role = role;
    x->keep = true;
    return LS_OK;
}

/* The sum of this stage's terms of v; LS_NONE: it has none. complete: the list of all instructions. */
static ls_value shares(struct extraction *c, const struct instruction *complete, ls_value v)
{
    enum side s = side_of_value(c, v);
    ls_value in[2] = { LS_NONE, LS_NONE };
    struct value x = *program_value(c->p, v);

    if (s == ANYWHERE) return c->stage.index == c->stage.stages - 1 ? v : LS_NONE;
    if (s != SPLIT) return s == MINE ? v : LS_NONE;
    const struct instruction *i = &complete[c->maker[v.id] - 1];
    for (int k = 0; k < i->nin; k++) in[k] = shares(c, complete, i->in[k]);
    if ((op_info(i->op)->traits & TRAIT_SUM) && (!in[0].id || !in[1].id)) return in[0].id ? in[0] : in[1];
    if (!in[0].id) return LS_NONE;
    if (instruction_is_view(i)) return ls_reshape(c->p, in[0], x.ndim, x.size);
    return program_emit(c->p, i->op, &i->attr, i->nin, in, 1, (ls_value[]){ program_new_value(c->p, "share", x.dtype, x.ndim, x.size) });
}

/* Replaces sums over several stages (outputs and the loss) by this stage's terms. */
static ls_status split_sums(struct extraction *c, const struct instruction *complete)
{
    ls_value loss = c->p->loss;

    if (loss.id) c->p->loss = shares(c, complete, loss);
    for (int v = 1; v < c->nvalues && program_ok(c->p); v++) {
        ls_value share = { v };
        char name[256];

        if (c->p->values[v].role != LS_ROLE_OUTPUT || side_of_value(c, share) != SPLIT) continue;
        share = v == loss.id ? c->p->loss : shares(c, complete, share);
        snprintf(name, sizeof name, "%s", c->p->values[v].name);
        forget(c->p, v);
        if (share.id && program_value(c->p, share)->role == LS_ROLE_OUTPUT)
            share = program_copy(c->p, share, program_value(c->p, share)->dtype);
        if (share.id) ls_output(c->p, name, share);
    }
    return ls_program_status(c->p);
}

/* Reduces the list to the kept instructions; the complete list moves to *complete. */
static ls_status rebuild(struct extraction *c, struct list *complete)
{
    struct list *l = &c->p->list[SEG_FORWARD], kept = { 0 };

    for (int n = 0; n < c->n; n++)
        if (c->keep[n] && list_push(&kept, &l->at[n]) < 0) {
            list_free(&kept);
            return LS_ENOMEM;
        }
    *complete = *l;
    *l = kept;
    return LS_OK;
}

static ls_status forget_unused(struct extraction *c)
{
    for (int v = 1; v < c->nvalues; v++) {
        ls_role r = c->p->values[v].role;

        if (!c->used[v] && (r == LS_ROLE_INPUT || r == LS_ROLE_OUTPUT || r == LS_ROLE_BOUND) && side_of_value(c, (ls_value){ v }) != SPLIT)
            forget(c->p, v);
    }
    return LS_OK;
}

static ls_status make_ends(struct extraction *c, int in, int out)
{
    ls_program *p = c->p;

    if (in) {
        LS_TRY(name_value(p, in, "stage.in", LS_ROLE_INPUT));
        p->results.stage.in = (ls_value){ in };
    }
    if (!out) return LS_OK;
    if (p->values[out].role != LS_ROLE_ACTIVATION) /* it is an output already, whose name stays */
        out = program_copy(p, (ls_value){ out }, p->values[out].dtype).id;
    LS_TRY(ls_program_status(p));
    LS_TRY(name_value(p, out, "stage.out", LS_ROLE_OUTPUT));
    p->results.stage.out = (ls_value){ out };
    return LS_OK;
}

static ls_status apply(struct extraction *c)
{
    struct list complete = { 0 };
    int in, out;

    LS_TRY(find_crossing(c, &in, &out));
    if (in) c->used[in] = true;
    LS_TRY(rebuild(c, &complete));
    ls_status st = forget_unused(c);
    if (st == LS_OK) st = split_sums(c, complete.at);
    if (st == LS_OK) st = make_ends(c, in, out);
    list_free(&complete);
    return st;
}

ls_status stage_extract(ls_program *p, const ls_stage *stage)
{
    struct extraction c;

    LS_TRY(ls_program_status(p));
    if (stage->stages <= 1) return LS_OK;
    LS_TRY(layout_check_stage(stage, p->nblocks - 1));
    LS_TRY(stage_look(p, stage, &c));
    ls_status st = apply(&c);
    extraction_close(&c);
    return st;
}

/* ---- stages that are alike ---- */

/* The blocks of a rank's chunk; 0: it is at an end of the model. */
static int inner_blocks(const ls_pipeline_schedule *s, const int *begin, int rank, int chunk)
{
    int stage = ls_pipeline_stage(s, rank, chunk);

    return stage == 0 || stage == s->stages * s->chunks - 1 ? 0 : begin[stage + 1] - begin[stage];
}

static bool chunks_alike(const ls_pipeline_schedule *s, const int *begin, int a, int b)
{
    for (int k = 0; k < s->chunks; k++)
        if (inner_blocks(s, begin, a, k) == 0 || inner_blocks(s, begin, a, k) != inner_blocks(s, begin, b, k)) return false;
    return true;
}

int stage_twin(const ls_layout *l, const ls_pipeline_schedule *s, const int *begin, int rank)
{
    bool counts = l->recompute > LS_RECOMPUTE_FULL || (l->zero == 3 && l->fsdp_unit > 1);

    for (int other = 0; !counts && other < rank; other++)
        if (chunks_alike(s, begin, other, rank)) return other;
    return rank;
}
