/* helper_distributed.c - models trained on ranks under a layout, and compared with one rank: helper_distributed.h. */
#include "helper_distributed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "helper_faults.h"
#include "runtime/store.h"

static const ls_model distributed_models[NETS] = {
    [NET_GPT2] = { .architecture = LS_GPT2, .layers = 3, .width = 16, .heads = 2, .kv_heads = 2, .ffn = 24, .vocab = 37,
                   .max_positions = DIST_TIME, .tied = 1, .norm_eps = 1e-5, .init_std = 0.2 },
    [NET_LLAMA] = { .architecture = LS_LLAMA, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2, .ffn = 24, .vocab = 37,
                    .max_positions = DIST_TIME, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2 },
    [NET_LLAMA_TIED] = { .architecture = LS_LLAMA, .layers = 3, .width = 16, .heads = 4, .kv_heads = 2, .ffn = 24, .vocab = 37,
                         .max_positions = DIST_TIME, .tied = 1, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2 },
    [NET_EVEN] = { .architecture = LS_MIXTRAL, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2, .vocab = 37,
                   .max_positions = DIST_TIME,
                   .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2, .experts = 6, .experts_per_token = 2, .expert_ffn = 6,
                   .norm_topk = 1, .aux_coef = 0.1, .z_coef = 0.01 },
    [NET_BIAS] = { .architecture = LS_QWEN3_MOE, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2, .vocab = 37,
                   .max_positions = DIST_TIME,
                   .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2, .experts = 7, .experts_per_token = 2, .expert_ffn = 5,
                   .shared_ffn = 6, .router = LS_ROUTER_SIGMOID, .norm_topk = 1, .router_bias_rate = 0.02 },
};

static const ls_image_model picture = { .channels = 2, .height = 6, .width = 5, .filters = 4, .stages = 2, .blocks = 1, .classes = 5,
                                         .momentum = 0.1, .eps = 1e-5 };

/* ---- the program ---- */

static ls_model model_of(const struct layout *l)
{
    ls_model m = distributed_models[l->net];

    m.layers = l->layers ? l->layers : m.layers;
    return m;
}

static void distributed_build(ls_program *p, const struct layout *l, size_t batch)
{
    ls_value loss, x, y, denominator;
    ls_model m = model_of(l);
    enum net net = l->net;

    if (net == NET_MLP) {
        x = ls_input(p, "x", LS_F32, 2, (size_t[]){ batch, 5 });
        y = ls_input(p, "y", LS_F32, 2, (size_t[]){ batch, 3 });
        loss = ls_mse(p, ls_mlp(p, "mlp", ls_cast(p, x, ls_store_settings(ls_program_store(p)).type), 4, (size_t[]){ 5, 17, 11, 3 }),
                      ls_cast(p, y, ls_store_settings(ls_program_store(p)).type));
        loss = ls_scale(p, loss, (double)batch / DIST_SAMPLES);
    } else if (net == NET_IMAGE) {
        x = ls_input(p, "images", LS_F32, 4, (size_t[]){ batch, picture.channels, picture.height, picture.width });
        y = ls_input(p, "targets", LS_I32, 1, &batch);
        denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
        loss = ls_image_loss(p, &picture, ls_cast(p, x, ls_store_settings(ls_program_store(p)).type), y, denominator, 1);
    } else {
        x = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ batch, DIST_TIME });
        y = ls_input(p, "targets", LS_I32, 2, (size_t[]){ batch, DIST_TIME });
        denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
        if (m.experts)
            ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
        loss = ls_model_loss(p, &m, x, y, denominator, LS_NONE);
    }
    ls_backward(p, ls_output(p, "loss", loss));
}

const ls_model *distributed_model(enum net net) { return &distributed_models[net]; }

/* ---- opening ---- */

struct building { const struct layout *l; struct training *s; };

static ls_status distributed_build_stage(void *ctx, ls_program *p, const ls_stage *stage)
{
    const struct building *b = ctx;
    ls_partition_options partition = b->l->partition;
    ls_model m = model_of(b->l);

    partition.stage = *stage;
    distributed_build(p, b->l, b->s->batch);
    LS_TRY(ls_program_status(p));
    faults_give(p, b->s->mesh);
    LS_TRY(ls_partition(p, b->s->mesh, &m, &partition));
    return ls_data_parallel_mesh(p, b->s->mesh, &b->l->data);
}

static ls_status compile_pipeline(const struct layout *l, struct training *s, ls_compile_options co)
{
    struct building b = { l, s };
    ls_pipeline_options o = { .schedule = &s->schedule, .build = distributed_build_stage, .ctx = &b, .compile = co };

    if (l->schedule[0] == '/')
        LS_TRY(ls_pipeline_schedule_read(l->schedule, &s->schedule));
    else
        LS_TRY(ls_pipeline_schedule_make(l->schedule, l->mesh.pp, l->chunks ? l->chunks : 1, s->accumulate, &s->schedule));
    LS_TRY(ls_pipeline_open(s->store, s->mesh, &o, &s->pipeline));
    LS_TRY(ls_optimizer_append(s->program, &s->optimizer));
    LS_TRY(ls_data_parallel_mesh(s->program, s->mesh, &l->data));
    return ls_program_compile(s->program, &(ls_compile_options){ .every = 1, .plan_only = co.plan_only });
}

static ls_status compile(const struct layout *l, ls_comm *comm, struct training *s, ls_compile_options co)
{
    ls_model m = model_of(l);

    LS_TRY(ls_program_new(s->store, &s->program));
    if (comm) faults_give(s->program, s->mesh);
    if (l->schedule)
        return compile_pipeline(l, s, co);
    distributed_build(s->program, l, s->batch);
    LS_TRY(ls_program_status(s->program));
    LS_TRY(ls_optimizer_append(s->program, &s->optimizer));
    if (l->meshed) {
        LS_TRY(ls_partition(s->program, s->mesh, &m, &l->partition));
        LS_TRY(ls_data_parallel_mesh(s->program, s->mesh, &l->data));
    } else if (comm) {
        LS_TRY(ls_data_parallel(s->program, comm, &l->data));
    }
    return ls_program_compile(s->program, &co);
}

static ls_status find_samples(const struct layout *l, ls_comm *comm, struct training *s)
{
    s->n = comm ? ls_comm_size(comm) : 1;
    s->rank = comm ? ls_comm_rank(comm) : 0;
    s->comm = comm;
    if (l->meshed) {
        LS_TRY(ls_mesh_open(comm, &l->mesh, &s->mesh));
        s->n = ls_mesh_size(s->mesh, LS_GROUP_DP);
        s->rank = ls_mesh_index(s->mesh, LS_GROUP_DP);
    }
    s->batch = (size_t)(DIST_SAMPLES / (s->n * s->accumulate));
    return LS_OK;
}

ls_status distributed_open(const struct layout *l, ls_comm *comm, bool plan_only, struct training *out)
{
    ls_store_options so = { l->device ? l->device : "cpu", l->type, 1, 7, 0 };
    ls_compile_options co = LS_COMPILE_DEFAULTS;
    struct training s = { .accumulate = l->accumulate ? l->accumulate : 1 };

    s.optimizer = (ls_optimizer){ .kind = l->optimizer, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .momentum = 0.9,
                                  .trust_coefficient = 0.02,
                                  .weight_decay = 0.1, .clip = 0.5 };
    if (l->optimizer == LS_ADAM || l->optimizer == LS_ADAMW || l->optimizer == LS_LAMB)
        s.optimizer.momentum = 0;
    co.recompute = l->recompute;
    co.every = 2;
    co.split_backward = l->split;
    co.fuse_loss = l->net == NET_GPT2 || l->net == NET_LLAMA || l->net == NET_BIAS;
    co.plan_only = plan_only;
    LS_TRY(ls_store_new(&so, &s.store));
    ls_status st = find_samples(l, comm, &s);
    if (st == LS_OK) st = compile(l, comm, &s, co);
    if (st == LS_OK) *out = s;
    else distributed_close(&s);
    return st;
}

void distributed_close(struct training *s)
{
    readback_close(&s->readback);
    ls_program_release(&s->program);
    ls_pipeline_close(&s->pipeline);
    ls_pipeline_schedule_free(&s->schedule);
    ls_store_release(&s->store);
    ls_mesh_close(&s->mesh);
}

/* ---- a step ---- */

static unsigned hash(unsigned a, unsigned b, unsigned c)
{
    unsigned x = a * 2654435761u + b * 40503u + c * 97u + 12345u;

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return x * 3266489917u >> 8;
}

/* Later samples have fewer targets, so ranks count different numbers of them. */
static int target(int step, size_t sample, size_t t)
{
    unsigned h = hash((unsigned)step + 100, (unsigned)sample, (unsigned)t);

    return h % (DIST_SAMPLES + 4) < sample ? -1 : (int)(h / 64 % 37);
}

static ls_status write_if(ls_program *p, const char *name, const void *host, ls_dtype type, size_t count)
{
    return ls_program_has(p, name) ? ls_program_write(p, name, host, type, count) : LS_OK;
}

/* Writes this rank's shard of every sample over cp. */
static ls_status write_tokens(const struct training *s, const struct layout *l, ls_program *p, int step, size_t first)
{
    int32_t tokens[DIST_SAMPLES * DIST_TIME], targets[DIST_SAMPLES * DIST_TIME];
    float samples[2] = { (float)s->batch, DIST_SAMPLES };
    size_t begin[2] = { 0 }, end[2] = { DIST_TIME }, n = 0;
    int ranges = l->meshed ? ls_cp_ranges(s->mesh, l->partition.cp_method, DIST_TIME, begin, end) : 1;
    float valid = 0;

    for (size_t i = 0; i < DIST_SAMPLES * DIST_TIME; i++)
        valid += target(step, i / DIST_TIME, i % DIST_TIME) >= 0;
    for (size_t i = first; i < first + s->batch; i++)
        for (int k = 0; k < ranges; k++)
            for (size_t t = begin[k]; t < end[k]; t++, n++) {
                tokens[n] = (int32_t)(hash((unsigned)step, (unsigned)i, (unsigned)t) % 37);
                targets[n] = target(step, i, t);
            }
    LS_TRY(write_if(p, "samples", samples, LS_F32, 2));
    LS_TRY(write_if(p, "tokens", tokens, LS_I32, n));
    LS_TRY(write_if(p, "targets", targets, LS_I32, n));
    return write_if(p, "denominator", &valid, LS_F32, 1);
}

static ls_status write_points(const struct training *s, int step, size_t first)
{
    float x[DIST_SAMPLES * 5], y[DIST_SAMPLES * 3];

    for (size_t i = 0; i < s->batch * 5; i++)
        x[i] = (float)(hash((unsigned)step, (unsigned)(first + i / 5), (unsigned)(i % 5)) % 2001) / 1000 - 1;
    for (size_t i = 0; i < s->batch * 3; i++)
        y[i] = (float)(hash((unsigned)step + 50, (unsigned)(first + i / 3), (unsigned)(i % 3)) % 2001) / 1000 - 1;
    LS_TRY(ls_program_write(s->program, "x", x, LS_F32, s->batch * 5));
    return ls_program_write(s->program, "y", y, LS_F32, s->batch * 3);
}

/* Every fifth sample is padding. */
static ls_status write_images(const struct training *s, int step, size_t first)
{
    enum { PIXELS = 2 * 6 * 5 };
    float x[DIST_SAMPLES * PIXELS], valid = 0;
    int32_t y[DIST_SAMPLES];

    for (size_t i = 0; i < DIST_SAMPLES; i++)
        valid += i % 5 != 4;
    for (size_t i = 0; i < s->batch * PIXELS; i++)
        x[i] = (float)(hash((unsigned)step, (unsigned)(first + i / PIXELS), (unsigned)(i % PIXELS)) % 2001) / 1000 - 1;
    for (size_t i = 0; i < s->batch; i++)
        y[i] = (first + i) % 5 == 4 ? -1 : (int32_t)(hash((unsigned)step + 7, (unsigned)(first + i), 0) % 5);
    LS_TRY(ls_program_write(s->program, "images", x, LS_F32, s->batch * PIXELS));
    LS_TRY(ls_program_write(s->program, "targets", y, LS_I32, s->batch));
    return ls_program_write(s->program, "denominator", &valid, LS_F32, 1);
}

/* ---- micro-batches of a pipeline ---- */

struct feeding { struct training *s; const struct layout *l; int step; double sum; };

static ls_status distributed_feed(void *ctx, ls_program *p, int chunk, int micro)
{
    const struct feeding *f = ctx;

    (void)chunk;
    return write_tokens(f->s, f->l, p, f->step, (size_t)(f->s->rank * f->s->accumulate + micro) * f->s->batch);
}

static ls_status take_loss(void *ctx, ls_program *p, int chunk, int micro)
{
    struct feeding *f = ctx;

    (void)chunk;
    (void)micro;
    return ls_program_has(p, "loss") ? readback_add(&f->s->readback, p, "loss", &f->sum, 1) : LS_OK;
}

static ls_status run_micro_batches(struct training *s, const struct layout *l, int step, double *sum)
{
    for (int k = 0; k < s->accumulate; k++) {
        size_t first = (size_t)(s->rank * s->accumulate + k) * s->batch;

        LS_TRY(l->net == NET_MLP     ? write_points(s, step, first)
               : l->net == NET_IMAGE ? write_images(s, step, first)
                                     : write_tokens(s, l, s->program, step, first));
        LS_TRY(ls_program_run(s->program, LS_FORWARD | LS_BACKWARD | (l->split ? LS_WEIGHTS : 0) | (k == s->accumulate - 1 ? LS_LAST : 0)));
        LS_TRY(readback_add(&s->readback, s->program, "loss", sum, 1));
    }
    return LS_OK;
}

/* Ranks that differ only in tp have the same loss; in a pipeline the last stage has it. */
static ls_status sum_losses(const struct training *s, double *sum)
{
    if (ls_mesh_index(s->mesh, LS_GROUP_TP) > 0)
        *sum = 0;
    return s->comm ? ls_all_reduce(s->comm, sum, sum, 1, LS_F64, LS_SUM, NULL) : LS_OK;
}

/* What the caller of an asynchronous method does, for f32: rank 0 gets the sum of all gradients; all get rank 0's parameters. */
static ls_status sum_gradients(const struct training *s)
{
    for (int g = 0; g < store_units(s->store); g++) {
        void *x = store_unit_data(s->store, g, STORE_GRAD, NULL);

        LS_TRY(ls_all_reduce(s->comm, x, x, store_unit_at(s->store, g)->total, LS_F32, LS_SUM, NULL));
    }
    return LS_OK;
}

static ls_status send_parameters(const struct training *s)
{
    for (int g = 0; g < store_units(s->store); g++)
        LS_TRY(ls_broadcast(s->comm, store_unit_data(s->store, g, STORE_VALUE, NULL), store_unit_at(s->store, g)->total, LS_F32, 0, NULL));
    return LS_OK;
}

ls_status distributed_step(struct training *s, const struct layout *l, int step, double *loss)
{
    struct feeding f = { s, l, step, 0 };  /* the loss is read back after the update */

    readback_drop(&s->readback);  /* left over from a step that failed */
    ls_store_zero_grad(s->store);
    if (s->pipeline)
        LS_TRY(ls_pipeline_run(s->pipeline, distributed_feed, take_loss, &f));
    else
        LS_TRY(run_micro_batches(s, l, step, &f.sum));
    bool async = s->comm && l->data.method == LS_METHOD_ASYNC;
    if (async) LS_TRY(sum_gradients(s));
    LS_TRY(ls_optimizer_set(s->program, &s->optimizer, l->optimizer == LS_LARS || l->optimizer == LS_SGD ? 0.3 : 0.003,
                            (uint64_t)step + 1));
    LS_TRY(ls_program_run(s->program, LS_OPTIMIZER_STEP));
    if (async) LS_TRY(send_parameters(s));
    LS_TRY(readback_finish(&s->readback));
    LS_TRY(sum_losses(s, &f.sum));
    *loss = f.sum;
    return LS_OK;
}

static size_t elements(const ls_store *s, size_t i)
{
    size_t n = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++)
        n *= ls_store_size(s, i, d);
    return n;
}

static ls_status distributed_read_all(const ls_store *s, const char *kind, float *out)
{
    for (size_t i = 0, at = 0; i < ls_store_count(s); at += elements(s, i++))
        if (!ls_store_is_frozen(s, i) || strcmp(kind, "parameter") == 0)
            LS_TRY(ls_store_read(s, i, kind, out + at, LS_F32, elements(s, i)));
    return LS_OK;
}

static ls_status training_run(struct training *s, const struct layout *l, struct outcome *out)
{
    out->count = ls_store_elements(s->store);
    if (out->count > sizeof out->weight / sizeof *out->weight)
        return LS_EINVAL;
    for (int step = 0; step < DIST_STEPS; step++) {
        LS_TRY(distributed_step(s, l, step, &out->loss[step]));
        out->norm[step] = ls_optimizer_norm(s->program);
        if (step == 0)
            LS_TRY(distributed_read_all(s->store, "gradient", out->first));
    }
    LS_TRY(distributed_read_all(s->store, "gradient", out->last));
    return distributed_read_all(s->store, "parameter", out->weight);
}

ls_status distributed_train(const struct layout *l, ls_comm *comm, struct outcome *out)
{
    struct training s;

    LS_TRY(distributed_open(l, comm, false, &s));
    memset(out, 0, sizeof *out);
    ls_status st = training_run(&s, l, out);
    distributed_close(&s);
    return st;
}

/* ---- comparing ---- */

const char *distributed_name(const struct layout *l, int n, char text[DIST_NAME])
{
    static const char *const nets[] = { "gpt2", "llama", "llama tied", "mlp", "image", "even", "bias" };
    static const char *const optimizers[] = { "sgd", "adam", "adamw", "lamb", "lars" };

    int at = snprintf(text, DIST_NAME,
                      "%s, %s, %s, %d ranks, zero %d, replicate %d, accumulate %d%s, reduce %s, recompute %d, overlap %d%s, offload %d%s",
                      nets[l->net], optimizers[l->optimizer], ls_dtype_name(l->type), n, l->data.zero, l->data.replicate, l->accumulate,
                      l->data.unsharded_accumulation ? " whole" : "", ls_dtype_name(l->data.reduce), (int)l->recompute, l->data.overlap,
                      l->data.reshard_after_forward ? "" : " keep", (int)l->data.offload, l->split ? ", split" : "");

    if (l->meshed)
        snprintf(text + at, (size_t)(DIST_NAME - at), ", pp %d%s%s, chunks %d, dp %d, replicate %d, cp %d %d, tp %d%s, ep %d", l->mesh.pp,
                 l->schedule ? " " : "", l->schedule ? l->schedule : "", l->chunks, l->mesh.dp, l->mesh.replicate, l->mesh.cp,
                 (int)l->partition.cp_method, l->mesh.tp, l->partition.sp ? " sp" : "", l->mesh.ep);
    return text;
}

static double distributed_largest(const float *x, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)x[i]));
    return most;
}

/* A tensor that is zero except for rounding (the bias of attention's keys) is compared relative to the other tensors. */
static const char *distributed_compare(const ls_store *s, const char *what, const float *a, const float *b, double rounding)
{
    static char text[200];
    double all = 0;

    for (size_t i = 0, at = 0; i < ls_store_count(s); at += elements(s, i++))
        if (store_sign_rate(s, i) == 0) /* otherwise its "gradient" is a count of tokens */
            all = fmax(all, distributed_largest(a + at, elements(s, i)));
    for (size_t i = 0, at = 0; i < ls_store_count(s); at += elements(s, i++)) {
        double most = rounding * (distributed_largest(a + at, elements(s, i)) + 0.01 * all);

        for (size_t e = 0; e < elements(s, i); e++)
            if (!(fabs((double)a[at + e] - b[at + e]) <= most)) {
                snprintf(text, sizeof text, "%s of %s: element %zu is %.9g, one rank has %.9g; %.3g is rounding", what,
                         ls_store_name(s, i), e, b[at + e], a[at + e], most);
                return text;
            }
    }
    return NULL;
}

const char *distributed_differs(const struct layout *l, const struct outcome *a, const struct outcome *b, double rounding)
{
    static char text[200];
    struct training s;
    const char *found = NULL;

    for (int k = 0; k < DIST_STEPS; k++)
        if (!(fabs(a->loss[k] - b->loss[k]) <= rounding * a->loss[k]) || !(fabs(a->norm[k] - b->norm[k]) <= rounding * a->norm[k])) {
            snprintf(text, sizeof text, "step %d: loss %.9g, norm %.9g; one rank has %.9g, %.9g", k, b->loss[k], b->norm[k],
                     a->loss[k], a->norm[k]);
            found = text;
            break;
        }
    if (distributed_open(&(struct layout){ .net = l->net, .layers = l->layers, .type = l->type,
                                           .data = LS_DATA_PARALLEL_DEFAULTS }, NULL, true,
                         &s) < 0)
        return ls_errmsg();
    if (!found)
        found = distributed_compare(s.store, "first gradient", a->first, b->first, rounding);
    if (!found)
        found = distributed_compare(s.store, "last gradient", a->last, b->last, rounding);
    if (!found)
        found = distributed_compare(s.store, "weight", a->weight, b->weight, rounding);
    distributed_close(&s);
    return found;
}
