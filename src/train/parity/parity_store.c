/* parity_store.c - writes a store's state to a file, and loads a state from a file. */
#include "train/parity/parity_store.h"

#include <math.h>
#include "base/base.h"
#include "base/mem.h"
#include "runtime/store.h"

enum { CHUNK = 4096 };

static const struct {
    enum parity_record record;
    const char *state;
} states[] = { { RECORD_M, "m" }, { RECORD_V, "v" } };
_Static_assert(COUNT_OF(states) == PARITY_STATES, "a writer counts these");

static size_t count_of(const ls_store *s, size_t i)
{
    size_t count = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++) count *= ls_store_size(s, i, d);
    return count;
}

static bool has_state(const ls_store *s, size_t i, const char *name)
{
    for (int k = 0; k < ls_store_states(s, i); k++)
        if (strcmp(ls_store_state_name(s, i, k), name) == 0) return true;
    return false;
}

/* ---- writing ---- */

ls_status parity_put(struct parity_writer *w, enum parity_record r, uint64_t step, size_t parameter, const void *data, size_t count)
{
    uint32_t kind[2] = { r, (uint32_t)step };
    uint64_t sizes[2] = { parameter, count };

    if (!w->out) return LS_OK;
    LS_TRY(file_writer_put(w->out, kind, sizeof kind));
    LS_TRY(file_writer_put(w->out, sizes, sizeof sizes));
    return file_writer_put(w->out, data, count * parity_record_bytes(r));
}

static ls_status put_parameters(struct parity_writer *w)
{
    const ls_store *s = w->step->store;

    for (size_t i = 0; w->out && i < ls_store_count(s); i++) {
        struct parity_shape shape = { count_of(s, i), (uint64_t)ls_store_ndim(s, i), (uint64_t)ls_store_is_frozen(s, i),
                                      store_sign_rate(s, i) };
        const char *name = ls_store_name(s, i);
        uint32_t kind[2] = { RECORD_PARAMETER, 0 };
        uint64_t sizes[2] = { i, strlen(name) };

        LS_TRY(file_writer_put(w->out, kind, sizeof kind));
        LS_TRY(file_writer_put(w->out, sizes, sizeof sizes));
        LS_TRY(file_writer_put(w->out, &shape, sizeof shape));
        LS_TRY(file_writer_put(w->out, name, strlen(name)));
    }
    return LS_OK;
}

ls_status parity_writer_open(const struct step *s, file_writer *out, struct parity_writer *w)
{
    size_t most = 1, n = ls_store_count(s->store);

    for (size_t i = 0; i < n; i++)
        if (count_of(s->store, i) > most) most = count_of(s->store, i);
    *w = (struct parity_writer){ .step = s, .out = out };
    w->full = mem_array(MEM_OTHER, most, sizeof *w->full);
    w->stale = mem_array(MEM_OTHER, n + 1, sizeof *w->stale);
    w->here = mem_array(MEM_OTHER, n + 1, sizeof *w->here);
    w->states = mem_array(MEM_OTHER, n + 1, sizeof *w->states);
    if (!w->full || !w->stale || !w->here || !w->states) return LS_ENOMEM;
    for (size_t i = 0; i < n; i++) w->here[i] = store_is_here(s->store, i);
    LS_TRY(ranks_sum_int(&s->ranks, w->here, n));
    return put_parameters(w);
}

void parity_writer_close(struct parity_writer *w)
{
    mem_free(w->full);
    mem_free(w->stale);
    mem_free(w->here);
    mem_free(w->states);
    *w = (struct parity_writer){ 0 };
}

/* Reads tensor i into w->full. Every rank takes part, because sharded tensors are gathered, and receives what the file contains: what rank
 * 0 read, or what ls_store_read() assembled from all ranks. A tensor that no rank has becomes NaN. */
static ls_status read_full(struct parity_writer *w, size_t i, const char *kind, size_t count)
{
    const ls_store *s = w->step->store;
    ls_comm *comm = w->step->ranks.comm;

    for (size_t k = 0; !w->here[i] && k < count; k++) w->full[k] = NAN;
    if (!w->here[i]) return LS_OK;
    LS_TRY(ls_store_read(s, i, kind, w->full, LS_F32, count));
    return comm && !store_world(s) ? ls_broadcast(comm, w->full, count, LS_F32, 0, NULL) : LS_OK;
}

ls_status parity_put_gradients(struct parity_writer *w, uint64_t step)
{
    const ls_store *s = w->step->store;

    for (size_t i = 0; i < ls_store_count(s); i++) {
        if (ls_store_is_frozen(s, i)) continue;
        LS_TRY(read_full(w, i, "gradient", count_of(s, i)));
        LS_TRY(parity_put(w, RECORD_GRADIENT, step, i, w->full, count_of(s, i)));
    }
    return LS_OK;
}

/* ---- copies ---- */

/* out[k] = element from + k of this rank's box of the full tensor, rounded to the type of the store. */
static void expected_part(const ls_store *s, size_t i, const float *full, size_t from, size_t n, ls_dtype type, float *out)
{
    size_t size[LS_DIMS] = { 0 }, begin[LS_DIMS] = { 0 }, local[LS_DIMS] = { 0 }, global;
    unsigned char rounded[CHUNK * sizeof(double)];
    int dims = ls_store_ndim(s, i);

    for (int d = 0; d < dims; d++) {
        size[d] = ls_store_size(s, i, d);
        begin[d] = store_local_begin(s, i, d);
        local[d] = store_local_size(s, i, d);
    }
    for (size_t at = from, run; at < from + n; at += run) {
        run = store_box_run(dims, size, begin, local, at, from + n, &global);
        memcpy(out + (at - from), full + global, run * sizeof *out);
    }
    ls_convert(rounded, type, out, LS_F32, n);
    ls_convert(out, LS_F32, rounded, type, n);
}

/* Counts the elements that this rank holds and that differ from the full tensor. */
static ls_status count_stale(struct parity_writer *w, size_t i, enum store_kind kind, const char *state)
{
    const ls_store *s = w->step->store;
    ls_dtype type = store_kind_type(s, i, kind);
    float held[CHUNK], expected[CHUNK];
    size_t begin, end, n;

    if (!store_is_here(s, i)) return LS_OK;
    store_held(s, i, kind, &begin, &end);
    for (size_t from = begin; from < end; from += n) {
        n = MIN((size_t)CHUNK, end - from);
        LS_TRY(store_read_part(s, i, kind, state, from, n, held, LS_F32));
        expected_part(s, i, w->full, from, n, type, expected);
        if (memcmp(held, expected, n * sizeof *held) == 0) continue;
        for (size_t k = 0; k < n; k++) w->stale[i] += memcmp(&held[k], &expected[k], sizeof held[k]) != 0;
    }
    return LS_OK;
}

/* ---- states ---- */

static ls_status put_weight(struct parity_writer *w, uint64_t updates, size_t i)
{
    const ls_store *s = w->step->store;
    bool master = store_has_master(s, i);

    LS_TRY(read_full(w, i, master ? "master" : "parameter", count_of(s, i)));
    LS_TRY(parity_put(w, RECORD_WEIGHT, updates, i, w->full, count_of(s, i)));
    LS_TRY(count_stale(w, i, STORE_VALUE, NULL));
    return master ? count_stale(w, i, STORE_STATE, "master") : LS_OK;
}

/* How many ranks have each state of each parameter. */
static ls_status count_states(struct parity_writer *w)
{
    const ls_store *s = w->step->store;
    size_t n = ls_store_count(s);

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < COUNT_OF(states); k++) w->states[i][k] = has_state(s, i, states[k].state);
    return ranks_sum_int(&w->step->ranks, w->states[0], n * COUNT_OF(states));
}

/* A state that some rank has is read by all ranks. */
static ls_status put_optimizer(struct parity_writer *w, uint64_t updates, size_t i)
{
    const ls_store *s = w->step->store;

    for (size_t k = 0; k < COUNT_OF(states); k++) {
        if (!w->states[i][k]) continue;
        LS_TRY(read_full(w, i, states[k].state, count_of(s, i)));
        LS_TRY(parity_put(w, states[k].record, updates, i, w->full, count_of(s, i)));
        LS_TRY(count_stale(w, i, STORE_STATE, states[k].state));
    }
    return LS_OK;
}

ls_status parity_put_state(struct parity_writer *w, uint64_t updates)
{
    size_t n = ls_store_count(w->step->store);

    memset(w->stale, 0, n * sizeof *w->stale);
    LS_TRY(count_states(w));
    for (size_t i = 0; i < n; i++) {
        LS_TRY(put_weight(w, updates, i));
        LS_TRY(put_optimizer(w, updates, i));
    }
    LS_TRY(ranks_sum_int(&w->step->ranks, w->stale, n));
    for (size_t i = 0; i < n; i++) {
        double stale = (double)w->stale[i];

        LS_TRY(parity_put(w, RECORD_COPIES, updates, i, &stale, 1));
    }
    return LS_OK;
}

/* ---- reading ---- */

static ls_status parity_store_place_of(const struct parity_file *f, enum parity_record r, uint64_t updates, const ls_store *s, size_t i,
                                       struct parity_place *out)
{
    static const struct parity_parameter none = { .name = "nothing" };
    const struct parity_parameter *recorded = i < f->parameters ? &f->parameter[i] : &none;
    const char *what = r == RECORD_WEIGHT ? "weight" : r == RECORD_M ? "optimizer state 'm'" : "optimizer state 'v'";

    if (strcmp(recorded->name, ls_store_name(s, i)) != 0 || recorded->shape.elements != count_of(s, i))
        return ls_fail(LS_EINVAL, "the two sides have different tensors: '%s' [%llu] and '%s' [%zu]", recorded->name,
                       (unsigned long long)recorded->shape.elements, ls_store_name(s, i), count_of(s, i));
    *out = parity_file_find(f, r, updates, i);
    return out->data
               ? LS_OK
               : ls_fail(LS_EINVAL, "%s: no %s of '%s' after %llu updates", f->path, what, recorded->name, (unsigned long long)updates);
}

static ls_status take_record(const struct parity_place *p, ls_store *s, size_t i, const char *state, float *full)
{
    memcpy(full, p->data, p->count * sizeof *full); /* records are not aligned */
    return state ? ls_store_write(s, i, state, full, LS_F32, p->count) : ls_store_set(s, i, full, LS_F32, p->count);
}

static ls_status take_parameter(const struct parity_file *f, uint64_t updates, ls_store *s, size_t i)
{
    float *full = mem_array(MEM_OTHER, count_of(s, i), sizeof *full);
    struct parity_place p;
    ls_status st = full ? parity_store_place_of(f, RECORD_WEIGHT, updates, s, i, &p) : LS_ENOMEM;

    if (st == LS_OK) st = take_record(&p, s, i, NULL, full);
    for (size_t k = 0; k < COUNT_OF(states) && st == LS_OK; k++) {
        if (!has_state(s, i, states[k].state)) continue;
        st = parity_store_place_of(f, states[k].record, updates, s, i, &p);
        if (st == LS_OK) st = take_record(&p, s, i, states[k].state, full);
    }
    mem_free(full);
    return st;
}

ls_status parity_take_state(const struct parity_file *f, uint64_t updates, ls_store *store)
{
    for (size_t i = 0; i < ls_store_count(store); i++) LS_TRY(take_parameter(f, updates, store, i));
    return LS_OK;
}
