/* program.c - building a program: values, views, instructions, sticky errors. */
#include "passes/streams.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "lockstep/hook.h"

ls_status ls_program_new(ls_store *store, ls_program **out)
{
    ls_program *p = mem_zalloc(MEM_OTHER, sizeof *p);

    if (!p) return LS_ENOMEM;
    p->store = store;
    p->values = mem_array(MEM_OTHER, 64, sizeof *p->values);
    p->blocks = mem_array(MEM_OTHER, 8, sizeof *p->blocks);
    if (!p->values || !p->blocks) {
        ls_program_release(&p);
        return LS_ENOMEM;
    }
    p->values_room = 64;
    p->nvalues = 1;
    p->nblocks = 1;
    *out = p;
    return LS_OK;
}

void ls_program_release(ls_program **pp)
{
    ls_program *p = pp ? *pp : NULL;

    if (!p) return;
    unbind(p);
    ls_program_unhook(p);
    if (p->arguments.partition.release) p->arguments.partition.release(p->arguments.partition.ctx);
    if (p->arguments.distribution.release) p->arguments.distribution.release(p->arguments.distribution.ctx);
    streams_clear(p);
    for (int s = 0; s < SEGMENTS; s++) list_free(&p->list[s]);
    mem_free(p->even);
    for (int k = 0; k < p->ncounts; k++) mem_free(p->counts[k]);
    mem_free(p->counts);
    for (int v = 1; v < p->nvalues; v++) ls_tensor_release(&p->values[v].tensor);
    names_rewind(&p->names, (struct names){ 0 });
    for (int b = 1; b < p->nblocks; b++) mem_free(p->blocks[b]);
    mem_free(p->blocks);
    mem_free(p->values);
    mem_free(p->of_param.last);
    mem_free(p->of_unit.last);
    mem_free(p);
    *pp = NULL;
}

ls_status ls_program_status(const ls_program *p) { return p->status < 0 ? ls_fail(p->status, "%s", p->message) : LS_OK; }

ls_store *ls_program_store(ls_program *p) { return p->store; }

bool program_ok(const ls_program *p) { return p->status >= 0; }

void program_bound(ls_program *p, ls_value x, int64_t least, int64_t most)
{
    struct value *root = &p->values[p->values[x.id].root];

    root->least = MAX(root->least, least);
    root->most = MIN(root->most, most);
}

/* Keeps only the first failure; its message is `text`. */
static ls_value stick(ls_program *p, ls_status st, const char *text)
{
    if (program_ok(p)) {
        p->status = st;
        snprintf(p->message, sizeof p->message, "%s", text);
    }
    return LS_NONE;
}

ls_value program_fail(ls_program *p, const char *fmt, ...)
{
    char text[512];
    int n = 0;
    va_list ap;

    if (p->builder.cursor.block) n = snprintf(text, sizeof text, "%s: ", p->blocks[p->builder.cursor.block]);
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    va_end(ap);
    return stick(p, LS_EINVAL, text);
}

ls_value program_fail_by(ls_program *p, ls_status st) { return stick(p, st, ls_errmsg()); }

struct value *program_value(ls_program *p, ls_value v)
{
    ASSERT(v.id > 0 && v.id < p->nvalues);
    return &p->values[v.id];
}

bool value_is_contiguous(const struct value *v)
{
    ptrdiff_t want = 1;

    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->size[d] != 1 && v->stride[d] != want) return false;
        want *= (ptrdiff_t)v->size[d];
    }
    return true;
}

size_t value_count(const struct value *v)
{
    size_t n = 1;

    for (int d = 0; d < v->ndim; d++) n *= v->size[d];
    return n;
}

char *value_shape(const struct value *v, char *text)
{
    int n = sprintf(text, "[");

    for (int d = 0; d < v->ndim; d++) n += snprintf(text + n, (size_t)(90 - n), d ? ",%zu" : "%zu", v->size[d]);
    strcpy(text + n, "]");
    return text;
}

struct view value_view(const struct value *v, void *root_data)
{
    struct view w = { .dtype = v->dtype, .ndim = v->ndim };

    w.data = root_data ? (char *)root_data + v->offset * (ptrdiff_t)ls_dtype_bytes(v->dtype) : NULL;
    for (int d = 0; d < v->ndim; d++) {
        w.size[d] = v->size[d];
        w.stride[d] = v->stride[d];
    }
    return w;
}

/* Adds a zeroed value named "BLOCK/what"; returns 0 and fails the program if there is no memory. */
static int grow_values(ls_program *p, const char *what)
{
    if (p->nvalues == p->values_room) {
        struct value *grown = mem_resize(p->values, 2 * (size_t)p->values_room * sizeof *grown);

        if (!grown) return stick(p, LS_ENOMEM, ls_errmsg()).id;
        p->values = grown;
        p->values_room *= 2;
    }
    struct value *v = &p->values[p->nvalues];
    memset(v, 0, sizeof *v);
    v->name = names_add(&p->names, p->builder.cursor.block ? p->blocks[p->builder.cursor.block] : NULL, what);
    if (!v->name) return stick(p, LS_ENOMEM, ls_errmsg()).id;
    v->param = -1;
    v->unit = -1;
    v->time_dim = -1;
    v->block = p->builder.cursor.block;
    v->least = INT32_MIN;
    v->most = INT32_MAX;
    return p->nvalues++;
}

ls_value program_new_value(ls_program *p, const char *what, ls_dtype type, int ndim, const size_t *size)
{
    size_t count = 1;

    if (!program_ok(p)) return LS_NONE;
    if (p->results.compiled) return program_fail(p, "%s: the program is already compiled; append before compiling", what);
    if (ndim < 0 || ndim > LS_DIMS) return program_fail(p, "%s: %d dims; 0 to %d are possible", what, ndim, LS_DIMS);
    for (int d = 0; d < ndim; d++)
        if (!size_mul(count, size[d], &count) || count > SIZE_MAX / 64)
            return program_fail(p, "%s: its size overflows at dim %d of %zu", what, d, size[d]);
    int id = grow_values(p, what);
    if (!id) return LS_NONE;
    struct value *v = &p->values[id];
    v->dtype = type;
    v->ndim = ndim;
    v->root = id;
    v->bytes = count * ls_dtype_bytes(type);
    for (int d = ndim - 1; d >= 0; d--) {
        v->size[d] = size[d];
        v->stride[d] = d == ndim - 1 ? 1 : v->stride[d + 1] * (ptrdiff_t)size[d + 1];
    }
    return (ls_value){ id };
}

int leaves_last(const struct leaves *l, int key) { return key < l->room ? l->last[key] : 0; }

void leaves_add(ls_program *p, struct leaves *l, int key, ls_value v)
{
    if (key >= l->room) {
        int room = MAX(2 * key, 64);
        int *grown = mem_resize(l->last, (size_t)room * sizeof *grown);

        if (!grown) {
            stick(p, LS_ENOMEM, ls_errmsg());
            return;
        }
        memset(grown + l->room, 0, (size_t)(room - l->room) * sizeof *grown);
        l->last = grown;
        l->room = room;
    }
    p->values[v.id].leaf = l->last[key];
    l->last[key] = v.id;
}

ls_status list_reserve(struct list *l, int room)
{
    if (l->room >= room) return LS_OK;

    struct instruction *grown = mem_resize(l->at, (size_t)room * sizeof *grown);
    if (!grown) return LS_ENOMEM;
    l->at = grown;
    l->room = room;
    return LS_OK;
}

ls_status list_push(struct list *l, const struct instruction *i)
{
    if (l->n == l->room) LS_TRY(list_reserve(l, l->room ? 2 * l->room : 64));
    l->at[l->n++] = *i;
    return LS_OK;
}

void list_free(struct list *l)
{
    mem_free(l->at);
    *l = (struct list){ 0 };
}

ls_value program_view(ls_program *p, ls_value x, struct view_rule rule, int ndim, const size_t *size, const ptrdiff_t *stride,
                      ptrdiff_t offset)
{
    ls_value y = program_new_value(p, "view", program_value(p, x)->dtype, ndim, size);

    if (!y.id) return LS_NONE;
    struct value *v = program_value(p, y);
    const struct value *from = program_value(p, x);
    v->root = from->root;
    v->role = LS_ROLE_ACTIVATION;
    v->offset = from->offset + offset;
    v->bytes = 0;
    memcpy(v->place, from->place, sizeof v->place);
    for (int d = 0; d < ndim; d++) v->stride[d] = stride[d];
    struct instruction *i = program_append(p, OP_VIEW, NULL, 1, &x, 1, &y);
    if (!i) return LS_NONE;
    instruction_set_view(i, &rule);
    program_carry_time(p, i);
    return y;
}

void ls_free(void *p) { mem_free(p); }

const char *instruction_name(const struct instruction *i)
{
    static const char *const waits[LS_COLLECTIVES] = {
#define WAIT_NAME(id, name) "wait " name,
        LS_COLLECTIVE_MAP(WAIT_NAME)
#undef WAIT_NAME
    };

    if (instruction_is_start(i)) return ls_collective_name(instruction_exchange(i)->op);
    if (op_payload(i->op) == PAYLOAD_move) return move_name(instruction_move(i)->kind);
    return instruction_is_wait(i) ? waits[instruction_exchange(i)->op] : program_op_name(i->op);
}

const char *phase_name(ls_phase phase)
{
    static const char *const names[] = { "forward", "recompute", "dgrad", "wgrad", "optimizer", "communicate" };

    return names[phase];
}

const char *segment_name(enum segment s)
{
    static const char *const names[] = { "forward", "backward", "weights", "optimizer" };

    return names[s];
}
