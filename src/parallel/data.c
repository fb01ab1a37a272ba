/* data.c - data parallelism: the public call, and the order of the pass. */
#include "parallel/data.h"

#include <string.h>
#include "base/mem.h"
#include "comm/comm.h"

/* ---- planted bugs ---- */

static enum data_bug planted;
static bool unchecked_run;

ls_status data_plant(const char *bug, bool unchecked)
{
    static const char *const names[] = { "none", "average", "skip_bucket", "twice", "local_norm", "boundary" };

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(bug ? bug : "none", names[i]) == 0) {
            planted = (enum data_bug)i;
            unchecked_run = unchecked && i;
            return LS_OK;
        }
    return ls_fail(LS_EINVAL, "no bug '%s' can be planted; average, skip_bucket, twice, local_norm, boundary are there", bug);
}

bool data_has(enum data_bug bug) { return planted == bug; }
bool data_unchecked(void) { return unchecked_run; }

/* ---- the pass ---- */

static ls_status spread(struct pass *a)
{
    if (data_is_spread(a) && a->p->options.split_backward)
        return ls_fail(LS_EUNSUPPORTED, "data parallelism: not with split_backward, whose weight gradients become final in a "
                       "segment of their own");
    LS_TRY(units_form(a));
    if (data_is_spread(a)) {
        LS_TRY(gather_parameters(a));
        LS_TRY(reduce_gradients(a));
    }
    LS_TRY(update_shards(a));
    if (!data_is_spread(a))
        return LS_OK;
    LS_TRY(join_batch_norms(a));
    return data_unchecked() ? LS_OK : check_placements(a->p);
}

static ls_status run_pass(ls_program *p, void *ctx)
{
    struct pass a = { .p = p, .d = ctx };
    ls_status st = spread(&a);

    mem_free(a.unit);
    mem_free(a.order);
    mem_free(a.view);
    return st;
}

/* ---- what a store's programs share ---- */

static int ranks_of(const ls_comm *comm) { return comm ? ls_comm_size(comm) : 1; }

static void data_close(void *ctx)
{
    struct data *d = ctx;

    if (d->shard != d->world)
        ls_comm_close(&d->shard);
    ls_comm_close(&d->replicas);
    mem_free(d->path);
    mem_free(d);
}

/* Consecutive ranks hold one copy; across them are those that hold the same of it. */
struct cut { int each; bool across; };

static int color_of(void *ctx, int rank)
{
    const struct cut *c = ctx;

    return c->across ? rank % c->each : rank / c->each;
}

static ls_status split(struct data *d)
{
    struct cut cut = { ranks_of(d->world) / d->o.replicate, false };

    d->shard = d->world;
    if (d->o.replicate == 1)
        return LS_OK;
    d->shard = NULL;
    LS_TRY(comm_split_by(d->world, color_of, &cut, &d->shard));
    comm_name(d->shard, "shard");
    cut.across = true;
    LS_TRY(comm_split_by(d->world, color_of, &cut, &d->replicas));
    comm_name(d->replicas, "replicas");
    return LS_OK;
}

static ls_status data_open(ls_comm *comm, const ls_data_options *o, struct data **out)
{
    struct data *d = mem_zalloc(MEM_OTHER, sizeof *d);
    ls_status st = LS_OK;

    if (!d)
        return LS_ENOMEM;
    d->o = d->asked = *o;
    d->world = d->shard = comm;
    if (ranks_of(comm) == 1)
        d->o.zero = 0;
    if (o->offload == LS_OFFLOAD_FILE) {
        d->o.offload_path = d->path = mem_strdup(o->offload_path);
        st = d->path ? LS_OK : LS_ENOMEM;
    }
    if (st == LS_OK)
        st = split(d);
    if (st < 0) {
        data_close(d);
        return st;
    }
    *out = d;
    return LS_OK;
}

static ls_status check(const ls_comm *comm, const ls_data_options *o)
{
    int n = ranks_of(comm);

    if (o->zero < 0 || o->zero > 3)
        return ls_fail(LS_EINVAL, "data parallelism: zero %d; 0 to 3 are possible", o->zero);
    if (o->replicate < 1 || n % o->replicate)
        return ls_fail(LS_EINVAL, "data parallelism: %d replicas of every shard over %d ranks; a divisor of %d is wanted",
                       o->replicate, n, n);
    if (o->replicate > 1 && o->zero == 0)
        return ls_fail(LS_EINVAL, "data parallelism: %d replicas with zero 0; nothing is sharded, every rank is a replica",
                       o->replicate);
    if (o->replicate > 1 && o->replicate == n)
        return ls_fail(LS_EINVAL, "data parallelism: %d replicas over %d ranks leave shards of one rank; that is zero 0 with 1",
                       n, n);
    if (o->reduce != LS_F32 && o->reduce != LS_BF16)
        return ls_fail(LS_EINVAL, "data parallelism: gradients travel as f32 or bf16, not %s", ls_dtype_name(o->reduce));
    if (o->bucket_bytes == 0 || o->first_bucket_bytes == 0)
        return ls_fail(LS_EINVAL, "data parallelism: buckets of %zu bytes, the first of %zu; 1 or more are wanted",
                       o->bucket_bytes, o->first_bucket_bytes);
    if ((unsigned)o->offload > LS_OFFLOAD_FILE || (o->offload == LS_OFFLOAD_FILE && !o->offload_path))
        return ls_fail(LS_EINVAL, "data parallelism: offload %d%s", (int)o->offload,
                       o->offload == LS_OFFLOAD_FILE ? " to a file without a folder" : " does not exist");
    return LS_OK;
}

static ls_status check_alike(const struct data *d, const ls_comm *comm, const ls_data_options *o)
{
    const ls_data_options *m = &d->asked;

    if (d->world != comm)
        return ls_fail(LS_EINVAL, "data parallelism: another program of this store is spread over another comm");
    if (m->zero != o->zero || m->replicate != o->replicate || m->reduce != o->reduce || m->offload != o->offload
        || m->accumulate_whole != o->accumulate_whole)
        return ls_fail(LS_EINVAL, "data parallelism: another program of this store has zero %d, replicate %d, reduce %s, offload "
                       "%d, accumulate_whole %d; this one %d, %d, %s, %d, %d", m->zero, m->replicate, ls_dtype_name(m->reduce),
                       (int)m->offload, m->accumulate_whole, o->zero, o->replicate, ls_dtype_name(o->reduce), (int)o->offload,
                       o->accumulate_whole);
    return LS_OK;
}

ls_status ls_data_parallel(ls_program *p, ls_comm *comm, const ls_data_options *options)
{
    static const ls_data_options defaults = LS_DATA_DEFAULTS;
    const ls_data_options *o = options ? options : &defaults;
    struct data *d = store_attached(p->store);

    LS_TRY(ls_program_status(p));
    LS_TRY(check(comm, o));
    if (p->compiled || p->spread.pass)
        return ls_fail(LS_EINVAL, "data parallelism: the program is %s already", p->compiled ? "compiled" : "spread");
    if (d) {
        LS_TRY(check_alike(d, comm, o));
    } else {
        LS_TRY(data_open(comm, o, &d));
        store_attach(p->store, d, data_close);
    }
    if (ranks_of(comm) > 1 || d->o.offload)
        p->spread = (struct spread){ .pass = run_pass, .ctx = d, .comm = d->shard };
    return LS_OK;
}
