/* fault_edit.c - functions that edit the instruction lists of a program. */
#include "train/faults/fault_edit.h"

#include <string.h>

const struct value *root_value(const ls_program *p, ls_value v) { return &p->values[p->values[v.id].root]; }

bool reads(const struct instruction *i, ls_value v)
{
    for (int k = 0; k < i->nin; k++)
        if (v.id && i->in[k].id == v.id) return true;
    return false;
}

void list_remove(struct list *l, int at)
{
    l->n--;
    memmove(&l->at[at], &l->at[at + 1], (size_t)(l->n - at) * sizeof *l->at);
}

void list_move_tail(struct list *l, int from, int at)
{
    for (int n = from; n < l->n; n++, at++) {
        struct instruction i = l->at[n];

        memmove(&l->at[at + 1], &l->at[at], (size_t)(n - at) * sizeof *l->at);
        l->at[at] = i;
    }
}

ls_value value_clone(ls_program *p, const char *what, ls_value v)
{
    struct value x = *program_value(p, v);
    ls_value y = program_new_value(p, what, x.dtype, x.ndim, x.size);

    if (y.id) memcpy(program_value(p, y)->place, x.place, sizeof x.place);
    return y;
}

struct cursor cursor_in(ls_program *p, enum segment s, const struct instruction *i)
{
    return program_cursor_begin(p, (struct cursor){ s, i->phase, i->when, i->block, 0 });
}

static bool is_wait_of(const struct instruction *i, int id) { return instruction_is_wait(i) && instruction_exchange(i)->id == id; }

void exchange_remove(ls_program *p, enum segment s, int at)
{
    int id = instruction_exchange(&p->list[s].at[at])->id;

    list_remove(&p->list[s], at);
    for (int k = 0; k < SEGMENTS; k++)
        for (int n = p->list[k].n - 1; n >= 0; n--)
            if (is_wait_of(&p->list[k].at[n], id)) list_remove(&p->list[k], n);
}

void exchange_repeat(ls_program *p, enum segment s, int at)
{
    struct instruction i = p->list[s].at[at];
    struct exchange again = *instruction_exchange(&i);
    int end = p->list[s].n;
    struct cursor before = cursor_in(p, s, &i);

    program_exchange_start(p, &again, i.in[0], i.out[0]);
    program_exchange_wait(p, &again, i.in[0], i.out[0]);
    program_cursor_end(p, before);
    if (program_ok(p)) list_move_tail(&p->list[s], end, at);
}
