/* ops_leaf.c - leaves (values of the store, inputs, bound tensors), outputs, and blocks. */
#include "ir/program.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "runtime/store.h"
#include "tensor/tensor_over.h"

/* ---- values of the store ---- */

static ls_value find_store_value(const ls_program *p, ls_role role, int param, const char *state)
{
    for (int v = leaves_last(&p->of_param, param); v; v = p->values[v].leaf) {
        const struct value *x = &p->values[v];

        if (x->role == role && x->param == param && (!state || strcmp(x->state, state) == 0)) return (ls_value){ v };
    }
    return LS_NONE;
}

static ls_value store_value(ls_program *p, ls_role role, int param, const char *state, ls_dtype type)
{
    ls_value v = find_store_value(p, role, param, state);
    size_t size[LS_DIMS];
    size_t i = (size_t)param;
    char name[256];

    if (v.id) return v;
    for (int d = 0; d < ls_store_ndim(p->store, i); d++)
        size[d] = p->builder.local ? store_local_size(p->store, i, d) : ls_store_size(p->store, i, d);
    snprintf(name, sizeof name, "%s%s%s", ls_store_name(p->store, i), role == LS_ROLE_GRADIENT ? ".grad" : "", state ? state : "");
    struct cursor before = program_cursor_block(p, 0); /* names of the store get no block prefix */
    v = program_new_value(p, name, type, ls_store_ndim(p->store, i), size);
    program_cursor_end(p, before);
    if (!v.id) return LS_NONE;
    program_value(p, v)->role = role;
    program_value(p, v)->param = param;
    program_value(p, v)->state = state;
    leaves_add(p, &p->of_param, param, v);
    return v;
}

ls_value program_param_value(ls_program *p, int param)
{
    return store_value(p, LS_ROLE_PARAMETER, param, NULL, store_value_type(p->store, (size_t)param));
}

ls_value program_grad_value(ls_program *p, int param)
{
    store_request_grad(p->store, (size_t)param);
    return store_value(p, LS_ROLE_GRADIENT, param, NULL, store_kind_type(p->store, (size_t)param, STORE_GRAD));
}

ls_value program_state_value(ls_program *p, int param, const char *state)
{
    ls_status st = ls_store_add_state(p->store, (size_t)param, state);

    if (st < 0) return program_fail_by(p, st);
    return store_value(p, LS_ROLE_OPTIMIZER, param, state, store_state_type(p->store));
}

ls_value program_find(const ls_program *p, const char *name)
{
    for (int v = 1; v < p->nvalues; v++) {
        const struct value *x = &p->values[v];

        if ((x->role == LS_ROLE_INPUT || x->role == LS_ROLE_OUTPUT || x->role == LS_ROLE_BOUND) && strcmp(x->name, name) == 0)
            return (ls_value){ v };
    }
    return LS_NONE;
}

/* ---- leaves ---- */

static ls_value named(ls_program *p, const char *name, ls_role role, ls_dtype type, int ndim, const size_t *size)
{
    if (!program_ok(p)) return LS_NONE;
    if (program_find(p, name).id) return program_fail(p, "'%s': an input, output or bound value of that name exists already", name);
    struct cursor before = program_cursor_block(p, 0);
    ls_value v = program_new_value(p, name, type, ndim, size);
    program_cursor_end(p, before);
    if (v.id) {
        program_value(p, v)->role = role;
        program_value(p, v)->keep = true;
    }
    return v;
}

ls_value ls_input(ls_program *p, const char *name, ls_dtype type, int ndim, const size_t *size)
{
    return named(p, name, LS_ROLE_INPUT, type, ndim, size);
}

ls_value ls_bind(ls_program *p, const char *name, ls_tensor *t)
{
    size_t size[LS_DIMS];

    for (int d = 0; d < ls_tensor_ndim(t); d++) size[d] = ls_tensor_size(t, d);
    if (!ls_tensor_is_contiguous(t)) return program_fail(p, "'%s': a bound tensor must be contiguous; this one is a strided view", name);
    if (tensor_device(t) != store_device(p->store))
        return program_fail(p, "'%s': the tensor is on device '%s', but the program is on device '%s'", name, tensor_device(t)->name,
                            store_device(p->store)->name);
    ls_value v = named(p, name, LS_ROLE_BOUND, ls_tensor_dtype(t), ls_tensor_ndim(t), size);
    if (v.id) program_value(p, v)->tensor = ls_tensor_retain(t);
    return v;
}

ls_value ls_param(ls_program *p, const char *name, ls_init init, int ndim, const size_t *size)
{
    return ls_param_as(p, name, init, ls_store_settings(p->store).type, ndim, size);
}

ls_value ls_param_as(ls_program *p, const char *name, ls_init init, ls_dtype type, int ndim, const size_t *size)
{
    int index;

    if (!program_ok(p)) return LS_NONE;
    ls_status st = store_declare_as(p->store, name, init, type, ndim, size, &index);
    if (st < 0) return program_fail_by(p, st);
    return program_param_value(p, index);
}

ls_value ls_output(ls_program *p, const char *name, ls_value x)
{
    if (!program_ok(p) || !x.id) return LS_NONE;
    if (p->results.compiled) return program_fail(p, "output '%s': the program is already compiled; append before compiling", name);
    if (program_find(p, name).id) return program_fail(p, "output '%s': an input, output or bound value of that name exists already", name);
    if (program_value(p, x)->role != LS_ROLE_ACTIVATION || program_value(p, x)->root != x.id)
        x = program_value(p, x)->role == LS_ROLE_OUTPUT
                ? (program_fail(p, "output '%s': this value is output '%s' already", name, program_value(p, x)->name), LS_NONE)
                : program_copy(p, x, program_value(p, x)->dtype); /* a view or a leaf is copied */
    if (!x.id) return LS_NONE;
    const char *copy = names_add(&p->names, NULL, name);
    if (!copy) return program_fail_by(p, LS_ENOMEM);
    struct value *v = program_value(p, x);
    v->name = copy;
    v->role = LS_ROLE_OUTPUT;
    v->keep = true;
    return x;
}

void ls_block_begin(ls_program *p, const char *name)
{
    char **grown;

    if (!program_ok(p)) return;
    if (p->builder.cursor.block) {
        program_fail(p, "block '%s' begins inside another block; blocks cannot be nested", name);
        return;
    }
    grown = mem_resize(p->blocks, ((size_t)p->nblocks + 8) * sizeof *grown);
    if (grown) {
        p->blocks = grown;
        p->blocks[p->nblocks] = mem_strdup(name);
    }
    if (!grown || !p->blocks[p->nblocks]) {
        program_fail_by(p, LS_ENOMEM);
        return;
    }
    p->builder.cursor.block = p->nblocks++;
}

void ls_block_end(ls_program *p) { p->builder.cursor.block = 0; }

int ls_value_ndim(const ls_program *p, ls_value x) { return x.id ? p->values[x.id].ndim : 0; }
size_t ls_value_size(const ls_program *p, ls_value x, int dim) { return x.id ? p->values[x.id].size[dim] : 0; }
ls_dtype ls_value_dtype(const ls_program *p, ls_value x) { return p->values[x.id].dtype; }
