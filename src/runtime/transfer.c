/* transfer.c - copies between the host and a program's inputs, outputs and bound values, which the caller names.
 *
 * Where the host cannot access the device's memory, each value has a staging buffer on the host. A write converts into the buffer, enqueues
 * the copy on the compute stream and returns; it waits only if the previous copy from the same buffer is not complete. A read waits for its
 * copy.
 */
#include "ir/program.h"

#include "base/mem.h"
#include "runtime/store.h"
#include "runtime/stream_set.h"

/* The staging buffer of one value; a program with slots has one per slot. */
struct staged {
    int value, slot;
    void *host;
    struct device_event *copied;
};

static const struct device *device_of(const ls_program *p) { return store_device(p->store); }

/* ---- staging ---- */

static ls_status staged_new(ls_program *p, int value, struct staged **out)
{
    struct staged *grown = mem_resize(p->run.staged, ((size_t)p->run.nstaged + 1) * sizeof *grown);

    if (!grown) return LS_ENOMEM;
    p->run.staged = grown;
    struct staged *s = &grown[p->run.nstaged];
    *s = (struct staged){ .value = value, .slot = p->run.slot };
    s->host = mem_alloc(MEM_OTHER, value_count(&p->values[value]) * ls_dtype_bytes(p->values[value].dtype));
    ls_status st = s->host ? device_of(p)->event_new(&s->copied) : LS_ENOMEM;
    if (st < 0) {
        mem_free(s->host);
        return st;
    }
    p->run.nstaged++;
    *out = s;
    return LS_OK;
}

/* Finds or allocates the value's staging buffer, and waits until it may be written. */
static ls_status staged_take(ls_program *p, int value, struct staged **out)
{
    for (int k = 0; k < p->run.nstaged; k++)
        if (p->run.staged[k].value == value && p->run.staged[k].slot == p->run.slot) {
            *out = &p->run.staged[k];
            return device_of(p)->event_sync(p->run.staged[k].copied);
        }
    return staged_new(p, value, out);
}

void staged_release(ls_program *p)
{
    for (int k = 0; k < p->run.nstaged; k++) {
        device_of(p)->event_free(p->run.staged[k].copied);
        mem_free(p->run.staged[k].host);
    }
    mem_free(p->run.staged);
    p->run.staged = NULL;
    p->run.nstaged = 0;
}

/* The compute stream waits for the other streams that touch root. */
static ls_status gather_streams(const ls_program *p, const struct value *root)
{
    struct stream_set *set = store_streams(p->store);
    const struct device *d = set->device;

    if (set->program != p) return stream_set_join(set);
    for (int k = 1; k < p->results.nstreams; k++) {
        struct set_stream *x = &set->stream[p->results.stream[k].index];

        if (!(root->streams >> MIN(k, 63) & 1)) continue;
        if (!x->marked) LS_TRY(d->event_record(x->end, x->stream));
        LS_TRY(d->event_wait(x->end, set->stream[STREAM_COMPUTE].stream));
    }
    return LS_OK;
}

static ls_status scatter_streams(const ls_program *p, const struct value *root, struct device_event *at)
{
    struct stream_set *set = store_streams(p->store);

    for (int k = 1; k < p->results.nstreams; k++)
        if (root->streams >> MIN(k, 63) & 1) LS_TRY(set->device->event_wait(at, set->stream[p->results.stream[k].index].stream));
    return LS_OK;
}

static ls_status write_staged(ls_program *p, int value, const void *host, ls_dtype type, size_t count)
{
    const struct value *v = &p->values[value];
    struct set_stream *compute = &store_streams(p->store)->stream[STREAM_COMPUTE];
    const struct device *d = device_of(p);
    struct staged *s;

    LS_TRY(staged_take(p, value, &s));
    ls_convert(s->host, v->dtype, host, type, count);
    LS_TRY(gather_streams(p, &p->values[v->root]));
    LS_TRY(d->copy_in(compute->stream, program_data(p, (ls_value){ value }), s->host, count * ls_dtype_bytes(v->dtype)));
    LS_TRY(d->event_record(s->copied, compute->stream));
    compute->busy = true;
    return scatter_streams(p, &p->values[v->root], s->copied);
}

ls_status transfer_out(const ls_program *p, int value, void *host, size_t count, struct device_stream **stream)
{
    struct set_stream *compute = &store_streams(p->store)->stream[STREAM_COMPUTE];
    const struct value *v = &p->values[value];

    LS_TRY(gather_streams(p, &p->values[v->root]));
    compute->busy = true;
    *stream = compute->stream;
    return device_of(p)->copy_out(compute->stream, host, program_data(p, (ls_value){ value }), count * ls_dtype_bytes(v->dtype));
}

static ls_status read_staged(const ls_program *p, int value, void *host, ls_dtype type, size_t count)
{
    const struct value *v = &p->values[value];
    struct device_stream *compute;
    void *stage = mem_alloc(MEM_OTHER, count * ls_dtype_bytes(v->dtype));
    ls_status st = stage ? transfer_out(p, value, stage, count, &compute) : LS_ENOMEM;

    if (st == LS_OK) st = device_of(p)->stream_sync(compute);
    if (st == LS_OK) ls_convert(host, type, stage, v->dtype, count);
    mem_free(stage);
    return st;
}

/* ---- operands of an instruction ---- */

/* Makes *v a host copy of itself, in *stage. Its elements are valid after a wait for the instruction's stream. */
static ls_status operand_out(const ls_program *p, struct device_stream *stream, struct view *v, char **stage)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (!view_given(v) || !view_reach(v, &low, &high)) return LS_OK;
    size_t bytes = (size_t)((high - low + 1) * esize);
    *stage = mem_alloc(MEM_OTHER, bytes);
    if (!*stage) return LS_ENOMEM;
    LS_TRY(device_of(p)->copy_out(stream, *stage, (const char *)v->data + low * esize, bytes));
    v->data = *stage - low * esize;
    return LS_OK;
}

static ls_status operand_back(const ls_program *p, struct device_stream *stream, const struct view *v, const char *stage)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (!stage) return LS_OK;
    view_reach(v, &low, &high);
    return device_of(p)->copy_in(stream, (char *)v->data + low * esize, stage, (size_t)((high - low + 1) * esize));
}

/* Copies the outputs back, and records the end of the instruction again, after the copies. */
static ls_status operands_back(const ls_program *p, const struct instruction_run *r, char *const *stage)
{
    const struct call *c = r->call;

    for (int k = 0; k < c->nout; k++) LS_TRY(operand_back(p, c->stream, &c->out[k], stage[k]));
    LS_TRY(device_of(p)->stream_sync(c->stream));
    return r->end ? device_of(p)->event_record(r->end, c->stream) : LS_OK;
}

ls_status program_operands(const ls_program *p, const struct instruction *i, program_operands_fn *fn, void *ctx)
{
    const struct instruction_run *r = instruction_run(p, i);
    struct call c = *r->call;
    char *stage[2 * CALL_OPERANDS] = { 0 };
    ls_status st = LS_OK;

    if (device_of(p)->host_visible) return fn(ctx, r->call);
    for (int k = 0; k < i->nout && st == LS_OK; k++) st = operand_out(p, c.stream, &c.out[k], &stage[k]);
    for (int k = 0; k < i->nin && st == LS_OK; k++) st = operand_out(p, c.stream, &c.in[k], &stage[CALL_OPERANDS + k]);
    if (st == LS_OK) st = device_of(p)->stream_sync(c.stream);
    if (st == LS_OK) st = fn(ctx, &c);
    if (st == LS_OK) st = operands_back(p, r, stage);
    for (size_t k = 0; k < COUNT_OF(stage); k++) mem_free(stage[k]);
    return st;
}

/* ---- by name ---- */

ls_status transfer_find(const ls_program *p, const char *name, size_t count, int *out)
{
    ls_value v = program_find(p, name);

    if (!p->run.runnable) return ls_fail(LS_EINVAL, "'%s': the program is not compiled to run", name);
    if (!v.id) return ls_fail(LS_EINVAL, "'%s': no input, output or bound value of that name", name);
    if (!p->values[p->values[v.id].root].used && p->values[v.id].role == LS_ROLE_OUTPUT)
        return ls_fail(LS_EINVAL, "'%s': this program makes no such output", name);
    if (value_count(&p->values[v.id]) != count)
        return ls_fail(LS_EINVAL, "'%s' has %zu elements, %zu were given", name, value_count(&p->values[v.id]), count);
    *out = v.id;
    return LS_OK;
}

/* Checks indices where they enter the program: kernels do not check them. */
static ls_status transfer_check_range(const struct value *v, const void *host, ls_dtype type, size_t count)
{
    enum { AT_ONCE = 256 };
    int64_t x[AT_ONCE];

    for (size_t i = 0; v->dtype == LS_I32 && i < count; i++) {
        if (i % AT_ONCE == 0) ls_convert(x, LS_I64, (const char *)host + i * ls_dtype_bytes(type), type, MIN(count - i, (size_t)AT_ONCE));
        int64_t one = x[i % AT_ONCE];
        if (one < v->least || one > v->most)
            return ls_fail(LS_EINVAL, "'%s': element %zu is %lld; %lld to %lld is possible", v->name, i, (long long)one,
                           (long long)v->least, (long long)v->most);
    }
    return LS_OK;
}

ls_status ls_program_write(ls_program *p, const char *name, const void *host, ls_dtype type, size_t count)
{
    int value;

    LS_TRY(transfer_find(p, name, count, &value));
    const struct value *v = &p->values[value];
    if (ls_dtype_is_float(type) != ls_dtype_is_float(v->dtype))
        return ls_fail(LS_EINVAL, "'%s' is %s, %s was given", name, ls_dtype_name(v->dtype), ls_dtype_name(type));
    LS_TRY(transfer_check_range(v, host, type, count));
    if (!device_of(p)->host_visible) return write_staged(p, value, host, type, count);
    ls_convert(program_data(p, (ls_value){ value }), v->dtype, host, type, count);
    return LS_OK;
}

ls_status ls_program_read(const ls_program *p, const char *name, void *host, ls_dtype type, size_t count)
{
    int value;

    LS_TRY(transfer_find(p, name, count, &value));
    if (!device_of(p)->host_visible) return read_staged(p, value, host, type, count);
    ls_convert(host, type, program_data(p, (ls_value){ value }), p->values[value].dtype, count);
    return LS_OK;
}
