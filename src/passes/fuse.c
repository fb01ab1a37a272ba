/* fuse.c - pairs of instructions that one kernel of the device computes: a matmul, and what its epilogue can do on the way (OP_FUSION_MAP).
 *
 * The second of a pair comes right after the first, in the same phase, and reads one value that the first reads or writes. One instruction
 * replaces both if the device has a kernel for it, other than the reference, of no lower priority than the first's. A device without
 * such kernels, like the cpu, has the program as it was. A value that the first writes and only the second reads is not written.
 */
#include "ir/program.h"

#include "base/mem.h"
#include "passes/passes.h"
#include "runtime/store.h"

enum fused_operand { FUSED_in, FUSED_out };

static const struct fusion {
    int op, first, second;
    enum fused_operand link;
} fusions[] = {
#define FUSION(id, one, two, operand) { OP_##id, OP_##one, OP_##two, FUSED_##operand },
    OP_FUSION_MAP(FUSION)
#undef FUSION
};

/* How many operands of instructions are in each value's bytes, by root. */
static int *uses_of(const ls_program *p)
{
    int *uses = mem_array(MEM_OTHER, (size_t)p->nvalues, sizeof *uses);

    for (int s = 0; s < SEGMENTS && uses; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int k = 0; k < i->nin; k++) uses[p->values[i->in[k].id].root]++;
            for (int k = 0; k < i->nout; k++) uses[p->values[i->out[k].id].root]++;
        }
    return uses;
}

/* True if the first writes it, only the second reads it, and it is not kept. */
static bool fuse_drops(const ls_program *p, const int *uses, ls_value x)
{
    const struct value *v = &p->values[x.id];

    return v->root == x.id && v->role == LS_ROLE_ACTIVATION && !v->keep && uses[x.id] == 2;
}

static bool fuse_matches(const struct fusion *f, const struct instruction *i, const struct instruction *j)
{
    ls_value link = f->link == FUSED_in ? i->in[0] : i->out[0];

    return i->op == f->first && j->op == f->second && j->nin == 1 && link.id && j->in[0].id == link.id && j->phase == i->phase &&
           j->block == i->block && j->when == i->when && i->nout + j->nout <= CALL_OPERANDS;
}

static struct instruction fuse_instruction(const ls_program *p, const int *uses, const struct fusion *f, const struct instruction *i,
                                           const struct instruction *j)
{
    struct instruction both = *i;

    both.op = f->op;
    both.attr = j->attr;
    for (int k = 0; k < j->nout; k++) both.out[both.nout++] = j->out[k];
    if (f->link == FUSED_out && fuse_drops(p, uses, i->out[0])) both.out[0] = LS_NONE;
    return both;
}

static const struct kernel *fuse_kernel(const ls_program *p, const struct instruction *i)
{
    struct call c;

    instruction_call(p, i, &c);
    return kernel_choose(&c, store_device(p->store));
}

/* True if *both, which computes i and j, is faster than the two. */
static bool fuse_pays(const ls_program *p, const struct instruction *i, const struct instruction *both)
{
    const struct kernel *k = fuse_kernel(p, both), *alone = k && k->priority > PRIORITY_REFERENCE ? fuse_kernel(p, i) : NULL;

    return alone && k->priority >= alone->priority;
}

static bool fuse_pair(const ls_program *p, const int *uses, const struct instruction *i, const struct instruction *j,
                      struct instruction *both)
{
    for (size_t f = 0; f < COUNT_OF(fusions); f++) {
        if (!fuse_matches(&fusions[f], i, j)) continue;
        *both = fuse_instruction(p, uses, &fusions[f], i, j);
        if (fuse_pays(p, i, both)) return true;
    }
    return false;
}

ls_status fuse_pass(ls_program *p)
{
    LS_TRY(kernel_table_add(store_device(p->store)));
    int *uses = uses_of(p);
    if (!uses) return LS_ENOMEM;
    for (int s = 0; s < SEGMENTS; s++) {
        struct list *l = &p->list[s];
        int kept = 0;

        for (int n = 0; n < l->n; n++) {
            struct instruction both;

            if (n + 1 < l->n && fuse_pair(p, uses, &l->at[n], &l->at[n + 1], &both))
                n++;
            else
                both = l->at[n];
            l->at[kept++] = both;
        }
        l->n = kept;
    }
    mem_free(uses);
    return LS_OK;
}
