/* parity_gates.c - finds and sets gates right after the last instruction that writes the input of a ReLU before the ReLU's gradient reads
 * it. That instruction is in forward or in a recomputation. Layers are numbered in the order of their gradients in backward, which is the
 * same in all layouts.
 */
#include "train/parity/parity_gates.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include "base/base.h"
#include "base/mem.h"
#include "ir/op_info.h"

struct layer {
    const struct instruction *writer;
    int root;
    size_t seen; /* micro-batches of this step so far */
};

struct parity_gates {
    const struct step *step;
    const struct parity_file *follow;
    double threshold;
    struct layer *layer;
    size_t layers, first_row;
    struct parity_gate *found, *taken; /* gates of this rank; gates of the reference in this step, sorted */
    size_t count, room, known;
    uint64_t index;
    int64_t set; /* gates whose sign was taken from the reference */
    ls_status status;
};

static int compare_gates(const void *x, const void *y)
{
    const struct parity_gate *a = x, *b = y;

    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    if (a->sample != b->sample) return a->sample < b->sample ? -1 : 1;
    return a->element < b->element ? -1 : a->element > b->element;
}

/* ---- finding the writers ---- */

static bool is_relu_gradient(const struct instruction *i)
{
    return (op_info(i->op)->traits & TRAIT_GATES) && i->attr.unary.kind == UNARY_RELU;
}

static bool writes(const ls_program *p, const struct instruction *i, int root)
{
    for (int k = 0; !instruction_is_view(i) && k < i->nout; k++)
        if (i->out[k].id && p->values[i->out[k].id].root == root) return true;
    return false;
}

/* The last instruction before number `before` of backward that writes the value. */
static const struct instruction *last_writer(const ls_program *p, int root, int before)
{
    const struct instruction *found = NULL;

    for (int n = 0; n < p->list[SEG_FORWARD].n; n++)
        if (writes(p, &p->list[SEG_FORWARD].at[n], root)) found = &p->list[SEG_FORWARD].at[n];
    for (int n = 0; n < before; n++)
        if (writes(p, &p->list[SEG_BACKWARD].at[n], root)) found = &p->list[SEG_BACKWARD].at[n];
    return found;
}

static ls_status find_layers(struct parity_gates *g)
{
    const ls_program *p = g->step->program;
    const struct list *l = &p->list[SEG_BACKWARD];

    g->layer = mem_array(MEM_OTHER, (size_t)l->n + 1, sizeof *g->layer);
    if (!g->layer) return LS_ENOMEM;
    for (int n = 0; n < l->n; n++) {
        if (!is_relu_gradient(&l->at[n])) continue;
        int root = p->values[l->at[n].in[0].id].root;

        g->layer[g->layers++] = (struct layer){ last_writer(p, root, n), root, 0 };
    }
    return LS_OK;
}

/* ---- a step ---- */

static ls_status add_gate(struct parity_gates *g, const struct parity_gate *gate)
{
    if (g->count == g->room) {
        size_t room = g->room ? 2 * g->room : 64;
        struct parity_gate *grown = mem_resize(g->found, room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        g->found = grown;
        g->room = room;
    }
    g->found[g->count++] = *gate;
    return LS_OK;
}

static double root_mean_square(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sqrt(sum / (double)MAX(n, (size_t)1));
}

/* If the reference has the input on the other side of zero, moves it there. */
static ls_status follow_gate(struct parity_gates *g, struct parity_gate gate, void *data, ls_dtype type, size_t at)
{
    const struct parity_gate *other = g->known ? bsearch(&gate, g->taken, g->known, sizeof gate, compare_gates) : NULL;

    if (other && other->open != gate.open) {
        float x = other->open ? FLT_MIN : 0;

        ls_convert((char *)data + at * ls_dtype_bytes(type), type, &x, LS_F32, 1);
        gate.open = other->open;
        g->set++;
    }
    return add_gate(g, &gate);
}

static ls_status check_layer(struct parity_gates *g, size_t index, const struct view *v)
{
    const struct step *s = g->step;
    struct layer *l = &g->layer[index];
    size_t count = view_count(v), each = count / s->batch, first = l->seen++ * s->batch, own = s->end - s->begin;
    size_t rows = own > first ? MIN(own - first, s->batch) : 0;
    float *x = mem_array(MEM_OTHER, count, sizeof *x);
    ls_status st = x ? LS_OK : LS_ENOMEM;

    if (x) ls_convert(x, LS_F32, v->data, v->dtype, count);
    double near = x ? g->threshold * root_mean_square(x, count) : 0;

    for (size_t i = 0; i < rows * each && st == LS_OK; i++) {
        struct parity_gate gate = { (uint32_t)index, x[i] > 0, s->begin + first + i / each, i % each };

        if (fabs(x[i]) <= near) st = follow_gate(g, gate, v->data, v->dtype, i);
    }
    mem_free(x);
    return st;
}

/* A layer and the output of its writer that is the ReLU's input. */
struct writer {
    struct parity_gates *g;
    size_t layer;
    int out;
};

static ls_status check_writer(void *ctx, const struct call *c)
{
    const struct writer *w = ctx;

    return check_layer(w->g, w->layer, &c->out[w->out]);
}

static void watch_gates(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended)
{
    struct parity_gates *g = ctx;

    (void)began;
    (void)ended;
    for (size_t n = 0; n < g->layers; n++)
        for (int k = 0; g->layer[n].writer == i && k < i->nout; k++)
            if (i->out[k].id && p->values[i->out[k].id].root == g->layer[n].root && g->status == LS_OK)
                g->status = program_operands(p, i, check_writer, &(struct writer){ g, n, k });
}

/* ---- open and close ---- */

ls_status parity_gates_open(const struct step *s, double threshold, const struct parity_file *follow, struct parity_gates **out)
{
    struct parity_gates *g;

    *out = NULL;
    if (!s->model.task->relu) return LS_OK;
    g = mem_zalloc(MEM_OTHER, sizeof *g);
    if (!g) return LS_ENOMEM;
    g->step = s;
    g->follow = follow;
    g->threshold = threshold;
    ls_status st = find_layers(g);
    if (st == LS_OK) program_watch(s->program, watch_gates, g);
    if (st == LS_OK)
        *out = g;
    else
        parity_gates_close(&g);
    return st;
}

void parity_gates_close(struct parity_gates **gp)
{
    struct parity_gates *g = *gp;

    if (!g) return;
    program_watch(g->step->program, NULL, NULL);
    mem_free(g->layer);
    mem_free(g->found);
    mem_free(g->taken);
    mem_free(g);
    *gp = NULL;
}

ls_status parity_gates_begin(struct parity_gates *g, uint64_t step)
{
    if (!g) return LS_OK;
    g->index = step;
    g->count = g->known = 0;
    g->set = 0;
    for (size_t n = 0; n < g->layers; n++) g->layer[n].seen = 0;
    if (!g->follow) return LS_OK;
    struct parity_place p = parity_file_find(g->follow, RECORD_GATES, step, 0);
    mem_free(g->taken);
    g->taken = mem_array(MEM_OTHER, p.count + 1, sizeof *g->taken);
    if (!g->taken) return LS_ENOMEM;
    if (p.count) memcpy(g->taken, p.data, p.count * sizeof *g->taken);
    g->known = p.count;
    return LS_OK;
}

/* Gathers the gates of all ranks on every rank. */
static ls_status parity_gates_gather(const struct parity_gates *g, struct parity_gate **all, size_t *count)
{
    const struct ranks *r = &g->step->ranks;
    size_t mine = g->count * sizeof **all, total = 0, *bytes = mem_array(MEM_OTHER, (size_t)r->size, sizeof *bytes);
    int64_t *each = mem_array(MEM_OTHER, (size_t)r->size, sizeof *each), own = (int64_t)mine;
    ls_status st = bytes && each ? LS_OK : LS_ENOMEM;

    if (st == LS_OK && r->comm)
        st = ls_all_gather(r->comm, &own, each, 1, LS_I64, NULL);
    else if (st == LS_OK)
        each[0] = own;
    for (int k = 0; st == LS_OK && k < r->size; k++) total += bytes[k] = (size_t)each[k];
    if (st == LS_OK) *all = mem_alloc(MEM_OTHER, total + 1);
    if (st == LS_OK && !*all) st = LS_ENOMEM;
    const void *found = g->count ? (const void *)g->found : *all;
    if (st == LS_OK && r->comm && total)
        st = ls_all_gather_v(r->comm, found, *all, bytes, LS_U8, NULL);
    else if (st == LS_OK && mine)
        memcpy(*all, g->found, mine);
    *count = total / sizeof **all;
    mem_free(bytes);
    mem_free(each);
    return st;
}

ls_status parity_gates_end(struct parity_gates *g, struct parity_writer *w)
{
    struct parity_gate *all = NULL;
    size_t count = 0;

    if (!g) return LS_OK;
    LS_TRY(g->status);
    LS_TRY(ranks_sum_int(&g->step->ranks, &g->set, 1));
    ls_status st = parity_gates_gather(g, &all, &count);
    double set = (double)g->set;
    if (st == LS_OK) qsort(all, count, sizeof *all, compare_gates);
    if (st == LS_OK) st = parity_put(w, RECORD_GATES, g->index, 0, all, count);
    if (st == LS_OK) st = parity_put(w, RECORD_TAKEN, g->index, 0, &set, 1);
    mem_free(all);
    return st;
}
