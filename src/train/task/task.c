/* task.c - the rows of all tasks, and functions that depend only on their facts. */
#include "train/task/task.h"

#include <string.h>
#include "base/base.h"
#include "parallel/layout.h"

static const struct task *const tasks[] = {
#define TASK_ROW(name) &task_##name,
    TASK_MAP(TASK_ROW)
#undef TASK_ROW
};

const struct task *task_at(int i) { return i < (int)COUNT_OF(tasks) ? tasks[i] : NULL; }

static bool has_preset(const struct task *t, const char *name)
{
    for (int i = 0; t->preset(i); i++)
        if (strcmp(t->preset(i), name) == 0) return true;
    return false;
}

const struct task *task_of(const struct config *c)
{
    for (size_t k = 1; k < COUNT_OF(tasks) && !c->model.hf[0]; k++)
        if (has_preset(tasks[k], c->model.preset)) return tasks[k];
    return tasks[0];
}

const char *task_preset(int i)
{
    for (size_t k = 0; k < COUNT_OF(tasks); k++) {
        int n = 0;

        while (tasks[k]->preset(n)) n++;
        if (i < n) return tasks[k]->preset(i);
        i -= n;
    }
    return NULL;
}

ls_status task_model_of(const struct config *c, size_t vocab, struct task_model *out) { return task_of(c)->model(c, vocab, out); }

const ls_model *task_transformer(const struct task_model *m) { return m->task->transformer ? &m->transformer : NULL; }

struct task_model task_model_of_transformer(const ls_model *m)
{
    size_t k = 0;

    while (!tasks[k]->transformer) k++;
    return (struct task_model){ .task = tasks[k], .transformer = *m };
}

ls_status task_check_layout(const struct task_model *m, const ls_layout *l)
{
    LS_TRY(ls_layout_check(task_transformer(m), l));
    return layout_check_async(l, m->task->batch_norm ? "batch norms" : NULL);
}

size_t task_length(const struct task *t, const struct config *c) { return t->sequences ? (size_t)c->data.seq_len : 1; }

ls_value task_loss(ls_program *p, const struct task_model *m, size_t batch, size_t seq_len, bool training)
{
    struct task_inputs in = { .batch = batch, .seq_len = seq_len };

    in.targets = ls_input(p, "targets", LS_I32, 2, (size_t[]){ batch, seq_len });
    in.denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    return m->task->loss(p, m, &in, training);
}
