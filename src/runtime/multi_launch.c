/* multi_launch.c - see multi_launch.h. */
#include "runtime/multi_launch.h"

#include "base/mem.h"
#include "device/device.h"
#include "kernels/op_shapes.h"
#include "runtime/store.h"

/* Room for the calls of the longest launch. */
struct multi {
    const struct call **call;
    struct device_access *access;
};

enum { MULTI_MOST = 256 }; /* instructions of one launch */

/* ---- which instructions ---- */

int multi_reach(const ls_program *p, enum segment s, int n)
{
    const struct instruction *first = &p->list[s].at[n];
    int end = n + 1;

    if (!first->kernel || !first->kernel->run_many) return end;
    for (int k = end; k < p->list[s].n && k < n + MULTI_MOST; k++) {
        const struct instruction *i = &p->list[s].at[k];

        if (instruction_is_view(i)) continue;
        if (i->kernel != first->kernel || i->when != first->when) break;
        end = k + 1;
    }
    return end;
}

/* What a bound call touches. */
struct touch {
    const char *begin, *end;
    bool write, adds; /* adds: by "+=" */
};
struct touches {
    struct touch at[CALL_ACCESSES];
    int n;
};

static void touch_add(struct touches *t, const char *begin, ptrdiff_t bytes, bool write, bool adds)
{
    t->at[t->n++] = (struct touch){ begin, begin + bytes, write, adds };
}

static void touch_view(struct touches *t, const struct view *v, bool write, bool adds)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (view_given(v) && view_reach(v, &low, &high))
        touch_add(t, (const char *)v->data + low * esize, (high - low + 1) * esize, write, adds);
}

static struct touches touches_of(const ls_program *p, const struct instruction *i)
{
    const struct call *c = instruction_bound(p, i);
    struct touches t = { .n = 0 };

    for (int k = 0; k < c->nin; k++) touch_view(&t, &c->in[k], false, false);
    for (int k = 0; k < c->nout; k++) touch_view(&t, &c->out[k], true, op_adds(c->op, k));
    if (i->scratch_bytes) touch_add(&t, c->scratch, (ptrdiff_t)i->scratch_bytes, true, false);
    return t;
}

static bool adds_to(const struct touches *t, const struct touch *x)
{
    for (int k = 0; k < t->n; k++)
        if (t->at[k].adds && t->at[k].begin == x->begin && t->at[k].end == x->end) return true;
    return false;
}

/* One writes what the other touches. before: the call before b; what it, a and b add to they share. */
static bool touches_conflict(const struct touches *a, const struct touches *b, const struct touches *before)
{
    for (int k = 0; k < a->n; k++)
        for (int m = 0; m < b->n; m++) {
            const struct touch *x = &a->at[k], *y = &b->at[m];
            bool shared = x->adds && y->adds && x->begin == y->begin && x->end == y->end && adds_to(before, y);

            if ((x->write || y->write) && x->begin < y->end && y->begin < x->end && !shared) return true;
        }
    return false;
}

/* The end of the launch that begins with instruction n; *calls: of how many. all: room for MULTI_MOST. */
static int multi_end(const ls_program *p, enum segment s, int n, struct touches *all, int *calls)
{
    const struct instruction *at = p->list[s].at;
    int last = n, reach = multi_reach(p, s, n);

    *calls = 1;
    if (reach > n + 1) all[0] = touches_of(p, &at[n]);
    for (int k = n + 1; k < reach; k++) {
        if (instruction_is_view(&at[k])) continue;
        if (at[k].waits || at[last].waited_for) break;
        all[*calls] = touches_of(p, &at[k]);
        for (int m = 0; m < *calls; m++)
            if (touches_conflict(&all[m], &all[*calls], &all[*calls - 1])) return last + 1;
        last = k;
        ++*calls;
    }
    return last + 1;
}

/* ---- binding ---- */

ls_status multi_find(ls_program *p, int *most)
{
    struct touches *all = mem_array(MEM_OTHER, MULTI_MOST, sizeof *all);
    int calls;

    if (!all) return LS_ENOMEM;
    *most = 0;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0, end; n < p->list[s].n; n = end) {
            const struct instruction *i = &p->list[s].at[n];

            end = n + 1;
            if (instruction_is_view(i)) continue;
            end = multi_end(p, (enum segment)s, n, all, &calls);
            instruction_run(p, i)->multi = end - n;
            *most = MAX(*most, calls);
        }
    mem_free(all);
    return LS_OK;
}

ls_status multi_bind(ls_program *p)
{
    int most;

    if (store_device(p->store)->immediate) return LS_OK;
    LS_TRY(multi_find(p, &most));
    if (most < 2) return LS_OK;
    p->run.multi = mem_zalloc(MEM_OTHER, sizeof *p->run.multi);
    if (!p->run.multi) return LS_ENOMEM;
    p->run.multi->call = mem_array(MEM_OTHER, (size_t)most, sizeof *p->run.multi->call);
    p->run.multi->access = mem_array(MEM_OTHER, (size_t)most * CALL_ACCESSES, sizeof *p->run.multi->access);
    return p->run.multi->call && p->run.multi->access ? LS_OK : LS_ENOMEM;
}

void multi_unbind(ls_program *p)
{
    if (!p->run.multi) return;
    mem_free(p->run.multi->call);
    mem_free(p->run.multi->access);
    mem_free(p->run.multi);
    p->run.multi = NULL;
}

/* ---- running ---- */

int multi_count(const ls_program *p, const struct instruction *i)
{
    if (!p->run.multi || program_launches_singly(p)) return 1;
    return MAX(instruction_run(p, i)->multi, 1);
}

ls_status multi_launch(ls_program *p, const struct instruction *i, int count)
{
    const struct instruction_run *r = instruction_run(p, i);
    const struct multi *m = p->run.multi;
    int n = 0;

    for (int k = 0; k < count; k++)
        if (!instruction_is_view(&i[k])) m->call[n++] = r[k].call;
    return kernel_launch_many(store_device(p->store), i->kernel, m->call, n, m->access);
}
