/* bind.c - the last pass: gives each value its bytes and each instruction its call, in the order in which they run.
 *
 * bind_pass() allocates the arenas and resolves every pointer once. Operands in a slot are resolved again when another slot is selected.
 */
#include "ir/op_info.h"

#include "base/mem.h"
#include "base/pulse.h"
#include "runtime/arena_bytes.h"
#include "runtime/exchange.h"
#include "runtime/graphs.h"
#include "runtime/multi_launch.h"
#include "runtime/store.h"
#include "passes/streams.h"

static const struct device *device_of(const ls_program *p) { return store_device(p->store); }

static struct bytes_home home_of(const ls_program *p, enum arena a)
{
    const struct device *device = store_device(p->store);

    if (a == ARENA_COMMUNICATION) return (struct bytes_home){ device, p->arguments.arena_comm, MEM_COMMUNICATION };
    return (struct bytes_home){ device, NULL, MEM_ACTIVATIONS };
}

static size_t arena_size(const ls_program *p, enum arena a)
{
    return p->results.arena_bytes[a] * (size_t)(a == ARENA_SLOT ? program_slots(p) : 1);
}

/* ---- the state of each instruction ---- */

struct instruction_run *instruction_run(const ls_program *p, const struct instruction *i)
{
    struct instruction_run *first = p->run.instruction;

    for (int s = 0; s < SEGMENTS; first += p->list[s++].n) {
        uintptr_t from = (uintptr_t)p->list[s].at, bytes = (uintptr_t)i - from;

        if (bytes < (size_t)p->list[s].n * sizeof *i) return first + bytes / sizeof *i;
    }
    ASSERT(!"an instruction of the program");
    return NULL;
}

struct call *instruction_bound(const ls_program *p, const struct instruction *i) { return instruction_run(p, i)->call; }

/* Returns the number of instructions. *calls: how many of them have a call, which all have except views. */
static size_t count_instructions(const ls_program *p, size_t *calls)
{
    size_t all = 0;

    *calls = 0;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, all++) *calls += !instruction_is_view(&p->list[s].at[n]);
    return all;
}

ls_status runs_reserve(ls_program *p)
{
    size_t calls, all = count_instructions(p, &calls), bytes = all * sizeof(struct instruction_run) + calls * sizeof(struct call);

    LS_TRY(mem_take(MEM_OTHER, bytes));
    p->run.reserved = bytes;
    return LS_OK;
}

static void runs_unreserve(ls_program *p)
{
    if (p->run.reserved) mem_give(MEM_OTHER, p->run.reserved);
    p->run.reserved = 0;
}

static ls_status runs_allocate(ls_program *p)
{
    size_t calls, all = count_instructions(p, &calls);
    struct instruction_run *r;
    struct call *c;

    runs_unreserve(p);
    r = p->run.instruction = mem_array(MEM_OTHER, all, sizeof *r);
    c = p->run.calls = mem_array(MEM_OTHER, calls, sizeof *c);
    if (!r || !c) return LS_ENOMEM;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, r++) {
            if (instruction_is_view(&p->list[s].at[n])) continue;
            r->call = c++;
            instruction_call(p, &p->list[s].at[n], r->call);
        }
    return LS_OK;
}

static void runs_free(ls_program *p)
{
    struct instruction_run *r = p->run.instruction;

    runs_unreserve(p);
    for (int s = 0; r && s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, r++) {
            const struct kernel *k = p->list[s].at[n].kernel;

            if (k && r->call && r->call->state && k->release) k->release(r->call);
            shuffle_unbind(p, r);
        }
    mem_free(p->run.instruction);
    p->run.instruction = NULL;
    mem_free(p->run.calls);
    p->run.calls = NULL;
}

void unbind(ls_program *p)
{
    device_of(p)->sync(); /* the result does not matter here */
    exchange_drop_all(p);
    store_offload_drop(p->store);
    graphs_unbind(p);
    multi_unbind(p);
    streams_unbind(p);
    staged_release(p);
    mem_free(p->run.work);
    p->run.work = NULL;
    mem_free(p->run.last_run);
    p->run.last_run = NULL;
    mem_free(p->run.tag);
    p->run.tag = NULL;
    mem_free(p->run.slot_operands);
    p->run.slot_operands = NULL;
    p->run.nslot_operands = p->run.slot = 0;
    runs_free(p);
    for (int a = 0; a < ARENAS; a++) {
        struct bytes_home home = home_of(p, (enum arena)a);

        bytes_free(&home, p->run.block[a], arena_size(p, (enum arena)a));
        p->run.block[a] = p->run.arena[a] = NULL;
    }
}

static void *unit_data(const ls_program *p, const struct value *v)
{
    enum store_kind kind = v->role == LS_ROLE_PARAMETER ? STORE_VALUE : v->role == LS_ROLE_GRADIENT ? STORE_GRAD : STORE_STATE;

    return store_unit_data(p->store, v->unit, kind, v->state);
}

static char *slot_base(const ls_program *p)
{
    return (char *)p->run.arena[ARENA_SLOT] + (size_t)p->run.slot * p->results.arena_bytes[ARENA_SLOT];
}

/* The first byte of v's root, which owns the bytes. */
static void *root_data(const ls_program *p, int v)
{
    const struct value *root = &p->values[p->values[v].root];

    if (root->unit >= 0) return unit_data(p, root);
    switch (root->role) {
    case LS_ROLE_PARAMETER: return ls_tensor_data(ls_store_value(p->store, (size_t)root->param));
    case LS_ROLE_GRADIENT: return ls_tensor_data(ls_store_grad(p->store, (size_t)root->param));
    case LS_ROLE_OPTIMIZER: return ls_tensor_data(ls_store_state(p->store, (size_t)root->param, root->state));
    case LS_ROLE_BOUND: return ls_tensor_data(root->tensor);
    default: return (root->arena == ARENA_SLOT ? slot_base(p) : (char *)p->run.arena[root->arena]) + root->at;
    }
}

static bool in_slot(const ls_program *p, ls_value x) { return p->values[p->values[x.id].root].arena == ARENA_SLOT; }

/* Records an operand that is in a slot, so that its pointer follows the selected slot. */
static void follow_slot(ls_program *p, ls_value x, void **data)
{
    if (in_slot(p, x))
        p->run.slot_operands[p->run.nslot_operands++] = (struct slot_operand){ data, (size_t)((char *)*data - slot_base(p)) };
}

void *program_data(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return (char *)root_data(p, x->root) + x->offset * (ptrdiff_t)ls_dtype_bytes(x->dtype);
}

static ls_status bind_instruction(ls_program *p, const struct instruction *i)
{
    struct call *c = instruction_bound(p, i);

    for (int k = 0; k < i->nin; k++)
        if (i->in[k].id) c->in[k] = value_view(&p->values[i->in[k].id], root_data(p, i->in[k].id));
    for (int k = 0; k < i->nout; k++)
        if (i->out[k].id) c->out[k] = value_view(&p->values[i->out[k].id], root_data(p, i->out[k].id));
    for (int k = 0; k < i->nin; k++) follow_slot(p, i->in[k], &c->in[k].data);
    for (int k = 0; k < i->nout; k++) follow_slot(p, i->out[k], &c->out[k].data);
    c->scratch = i->scratch_bytes ? (char *)p->run.arena[ARENA_ACTIVATIONS] + i->scratch_at : NULL;
    pulse();
    return i->kernel && i->kernel->prepare ? i->kernel->prepare(c) : LS_OK;
}

/* Checks that a parameter that is read directly is complete on this rank, and that its unit holds the kind that is read. */
static ls_status check_held(const ls_program *p, ls_value x)
{
    static const char *const what[] = { [LS_ROLE_PARAMETER] = "value", [LS_ROLE_GRADIENT] = "gradient", [LS_ROLE_OPTIMIZER] = "state" };
    const struct value *v = x.id ? &p->values[p->values[x.id].root] : NULL;

    if (v && v->unit >= 0 && !unit_data(p, v))
        return ls_fail(LS_EINVAL, "'%s': all parameters of the unit are frozen, so it does not exist", v->name);
    if (!v || v->param < 0 || v->role == LS_ROLE_ACTIVATION) return LS_OK;
    const ls_tensor *t = v->role == LS_ROLE_PARAMETER  ? ls_store_value(p->store, (size_t)v->param)
                         : v->role == LS_ROLE_GRADIENT ? ls_store_grad(p->store, (size_t)v->param)
                                                       : ls_store_state(p->store, (size_t)v->param, v->state);
    if (!t || ls_tensor_count(t) != value_count(v))
        return ls_fail(
            LS_EINVAL,
            "%s of parameter '%s' is sharded or lives on another rank; compile this program with the layout that created the store",
            what[v->role], ls_store_name(p->store, (size_t)v->param));
    return LS_OK;
}

static size_t count_slot_operands(const ls_program *p)
{
    size_t count = 0;

    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int k = 0; !instruction_is_view(i) && k < i->nin; k++) count += in_slot(p, i->in[k]);
            for (int k = 0; !instruction_is_view(i) && k < i->nout; k++) count += in_slot(p, i->out[k]);
        }
    return count;
}

static ls_status execute_allocate(ls_program *p)
{
    LS_TRY(ls_store_allocate(p->store));
    for (int a = 0; a < ARENAS; a++) {
        struct bytes_home home = home_of(p, (enum arena)a);

        if (a != ARENA_ACTIVATIONS && !p->results.arena_bytes[a]) continue;
        p->run.block[a] = bytes_alloc(&home, arena_size(p, (enum arena)a));
        if (!p->run.block[a]) return device_no_memory(home.device);
        p->run.arena[a] = p->run.block[a];
        if (a == ARENA_COMMUNICATION) p->run.arena[a] = (char *)p->run.block[a] + (0 - (uintptr_t)p->run.block[a]) % p->results.comm_align;
    }
    p->run.work = mem_array(MEM_OTHER, (size_t)p->builder.exchanges, sizeof *p->run.work);
    p->run.last_run = mem_array(MEM_OTHER, (size_t)program_slots(p), sizeof *p->run.last_run);
    p->run.tag = mem_array(MEM_OTHER, (size_t)program_slots(p), sizeof *p->run.tag);
    p->run.slot_operands = mem_array(MEM_OTHER, count_slot_operands(p), sizeof *p->run.slot_operands);
    return p->run.work && p->run.last_run && p->run.tag && p->run.slot_operands ? LS_OK : LS_ENOMEM;
}

ls_status bind_pass(ls_program *p)
{
    LS_TRY(execute_allocate(p));
    LS_TRY(runs_allocate(p));
    LS_TRY(streams_bind(p));
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            if (instruction_is_view(i)) continue;
            p->results.wants_last = p->results.wants_last || ((s == SEG_BACKWARD || s == SEG_WEIGHTS) && i->when == LS_WHEN_LAST);
            for (int k = 0; k < i->nin; k++) LS_TRY(check_held(p, i->in[k]));
            for (int k = 0; k < i->nout; k++) LS_TRY(check_held(p, i->out[k]));
            LS_TRY(bind_instruction(p, i));
            LS_TRY(shuffle_bind(p, i));
        }
    LS_TRY(multi_bind(p));
    return graphs_bind(p);
}

/* ---- slots ---- */

ls_status ls_program_select(ls_program *p, int slot)
{
    if (!p->run.runnable) return ls_fail(LS_EINVAL, "select: the program is not compiled to run");
    if (slot < 0 || slot >= program_slots(p))
        return ls_fail(LS_EINVAL, "select: slot %d does not exist; the program has %d", slot, program_slots(p));
    p->run.slot = slot;
    char *base = slot_base(p);
    for (int k = 0; k < p->run.nslot_operands; k++) *p->run.slot_operands[k].data = base + p->run.slot_operands[k].at;
    return LS_OK;
}
