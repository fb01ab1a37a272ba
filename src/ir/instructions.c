/* instructions.c - a compiled program's instructions as the public API shows them. */
#include "ir/op_info.h"

#include <string.h>

_Static_assert(LS_OPERANDS == CALL_OPERANDS, "an instruction's operands");

int ls_program_instructions(const ls_program *p)
{
    int n = 0;

    for (int s = 0; s < SEGMENTS && p->results.compiled; s++) n += p->list[s].n;
    return n;
}

static ls_operand operand_of(const ls_program *p, ls_value x)
{
    const struct value *v = &p->values[x.id];
    ls_operand o = { .value = x };

    if (!x.id) return o;
    o.name = v->name;
    o.role = v->role;
    o.dtype = v->dtype;
    o.ndim = v->ndim;
    memcpy(o.size, v->size, sizeof o.size);
    o.bytes = value_count(v) * ls_dtype_bytes(v->dtype);
    o.place = v->place;
    return o;
}

static void put_exchange(ls_instruction *out, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);

    out->exchange = instruction_is_start(i) ? LS_EXCHANGE_START : LS_EXCHANGE_WAIT;
    out->kernel = ls_comm_transport(e->comm);
    out->collective = (int)e->op;
    out->axis = e->axis;
    out->ranks = ls_comm_size(e->comm);
    out->root = e->root;
    out->id = e->id;
    out->elements = e->total;
}

void ls_program_instruction(const ls_program *p, int number, ls_instruction *out)
{
    static const int segments[SEGMENTS] = {
        [SEG_FORWARD] = LS_FORWARD, [SEG_BACKWARD] = LS_BACKWARD, [SEG_WEIGHTS] = LS_WEIGHTS, [SEG_OPTIMIZER] = LS_OPTIMIZER_STEP
    };
    int s = 0;

    ASSERT(number >= 0 && number < ls_program_instructions(p));
    for (; number >= p->list[s].n; s++) number -= p->list[s].n;
    const struct instruction *i = &p->list[s].at[number];
    *out = (ls_instruction){ .segment = segments[s],
                             .op = instruction_name(i),
                             .kernel = i->kernel ? i->kernel->name : "-",
                             .block = p->blocks[i->block] ? p->blocks[i->block] : "",
                             .phase = i->phase,
                             .when = i->when,
                             .nin = i->nin,
                             .nout = i->nout,
                             .flops = i->flops,
                             .bytes = instruction_bytes(p, i),
                             .live = i->live,
                             .stream = i->stream,
                             .nwaits = i->waits,
                             .waits = i->waits ? p->results.wait + i->first_wait : NULL };
    for (int k = 0; k < i->nin; k++) out->in[k] = operand_of(p, i->in[k]);
    for (int k = 0; k < i->nout; k++) out->out[k] = operand_of(p, i->out[k]);
    if (instruction_is_exchange(i)) put_exchange(out, i);
}
