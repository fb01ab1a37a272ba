/* plan_public.c - a program of the shared library that plans as `lockstep plan` does, and prints the figures under the same keys, for
 * test_plan_public.sh:
 *
 *   plan_public plan CLUSTER OPTIONS..     of a layout; CLUSTER "": bytes for this computer
 *   plan_public search CLUSTER OPTIONS..   --launch.ranks is theirs; a layout's options are fixed
 *   plan_public example CLUSTER            the calls in plan.h's first comment
 *   plan_public clusters                   facts of the built-in ones
 */
#include <lockstep/plan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An option that is an int of the layout, and its bit in a search. */
static const struct plan_field {
    const char *option;
    size_t at;
    unsigned fix;
} fields[] = {
    { "parallel.pp", offsetof(ls_layout, pp), LS_PLAN_FIX_PP },
    { "parallel.vpp", offsetof(ls_layout, vpp), LS_PLAN_FIX_VPP },
    { "parallel.dp", offsetof(ls_layout, dp), LS_PLAN_FIX_DP },
    { "parallel.cp", offsetof(ls_layout, cp), LS_PLAN_FIX_CP },
    { "parallel.tp", offsetof(ls_layout, tp), LS_PLAN_FIX_TP },
    { "parallel.ep", offsetof(ls_layout, ep), LS_PLAN_FIX_EP },
    { "parallel.zero", offsetof(ls_layout, zero), LS_PLAN_FIX_ZERO },
    { "parallel.replicate", offsetof(ls_layout, replicate), LS_PLAN_FIX_REPLICATE },
    { "parallel.sp", offsetof(ls_layout, sp), LS_PLAN_FIX_SP },
    { "train.micro_batch", offsetof(ls_layout, micro_batch), LS_PLAN_FIX_MICRO_BATCH },
    { "train.accumulate", offsetof(ls_layout, micro_batches), 0 },
    { "data.seq_len", offsetof(ls_layout, seq_len), 0 },
    { "precision.master", offsetof(ls_layout, master), 0 },
    { "parallel.prefetch", offsetof(ls_layout, prefetch), 0 },
    { "parallel.overlap", offsetof(ls_layout, overlap), 0 },
};

struct planning {
    ls_model model;
    ls_layout layout;
    ls_plan_options options;
    int ranks;
    unsigned fixed;
};

static int number_of(const char *value) { return strcmp(value, "true") == 0 ? 1 : strcmp(value, "false") == 0 ? 0 : atoi(value); }

static int choice_of(const char *value, const char *first, const char *second)
{
    return strcmp(value, first) == 0 ? 0 : strcmp(value, second) == 0 ? 1 : 2;
}

/* Options that are no int. */
static ls_status take_other(struct planning *p, const char *name, const char *value)
{
    if (strcmp(name, "model.preset") == 0) return ls_model_preset(value, &p->model);
    if (strcmp(name, "launch.ranks") == 0)
        p->ranks = atoi(value);
    else if (strcmp(name, "train.global_batch") == 0)
        p->options.global_batch = (size_t)atoi(value);
    else if (strcmp(name, "data.val_fraction") == 0)
        p->options.evaluates = atof(value) > 0;
    else if (strcmp(name, "run.memory_limit") == 0)
        p->options.memory_limit = (size_t)atoll(value);
    else if (strcmp(name, "parallel.schedule") == 0)
        p->layout.schedule = value, p->fixed |= LS_PLAN_FIX_SCHEDULE;
    else if (strcmp(name, "recompute.mode") == 0)
        p->layout.recompute = (ls_recompute)choice_of(value, "none", "selective"), p->fixed |= LS_PLAN_FIX_RECOMPUTE;
    else if (strcmp(name, "precision.compute") == 0)
        p->layout.compute = strcmp(value, "bf16") == 0 ? LS_BF16 : LS_F32;
    else if (strcmp(name, "optim.offload") == 0)
        p->layout.offload = (ls_offload)choice_of(value, "none", "cpu"), p->fixed |= LS_PLAN_FIX_OFFLOAD;
    else if (strcmp(name, "optim.name") == 0)
        p->layout.optimizer = strcmp(value, "sgd") == 0 ? LS_SGD : LS_ADAMW;
    else
        return ls_fail(LS_EINVAL, "%s: plan_public.c does not know it", name);
    return LS_OK;
}

static ls_status take_option(struct planning *p, char *word)
{
    char *value = strchr(word, '=');

    if (strncmp(word, "--", 2) != 0 || !value) return ls_fail(LS_EINVAL, "'%s' is not an option", word);
    *value++ = '\0';
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(word + 2, fields[i].option) != 0) continue;
        *(int *)((char *)&p->layout + fields[i].at) = number_of(value);
        p->fixed |= fields[i].fix;
        return LS_OK;
    }
    return take_other(p, word + 2, value);
}

/* ---- printing ---- */

static const char *const wait_keys[LS_PLAN_WAITS] = { [LS_AXIS_PP] = "pp", [LS_AXIS_DP] = "dp", [LS_AXIS_CP] = "cp", [LS_AXIS_EP] = "ep",
                                                      [LS_AXIS_TP] = "tp", [LS_PLAN_OFFLOAD] = "offload" };

/* Writes a real number, which JSON tells from an integer by its point or exponent. */
static void put_real(const char *key, double value)
{
    char number[32];

    snprintf(number, sizeof number, "%.17g", value);
    printf("\"%s\":%s%s", key, number, strpbrk(number, ".e") ? "" : ".0");
}

static void put_waits(const char *key, const double *seconds)
{
    printf(",\"%s\":{", key);
    for (int a = 0; a < LS_PLAN_WAITS; a++) {
        if (a) printf(",");
        put_real(wait_keys[a], seconds[a]);
    }
    printf("}");
}

static void put_seconds(const ls_plan *p)
{
    const ls_plan_seconds *s = &p->seconds;
    const struct {
        const char *key;
        double value;
    } parts[] = { { "units_per_second", p->tokens_per_second }, { "mfu", p->mfu }, { "hfu", p->hfu },
                  { "matmul", s->matmul }, { "attention", s->attention },
                  { "memory_bound", s->memory_bound }, { "optimizer", s->optimizer }, { "recomputed", s->recomputed },
                  { "bubble", s->bubble } };

    printf(",\"seconds\":{");
    put_real("step", s->step);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        printf(",");
        put_real(parts[i].key, parts[i].value);
    }
    if (p->price_of_million > 0) {
        printf(",");
        put_real("price_of_million", p->price_of_million);
    }
    put_waits("exposed", s->exposed);
    put_waits("hidden", s->hidden);
    printf("}");
}

static void put_plan(const ls_plan *p)
{
    const ls_plan_bytes *b = &p->bytes;
    const char *comma = "";

    printf("{\"tokens_per_step\":%.0f,", p->tokens);
    put_real("model_flops_per_step", p->model_flops);
    printf(",");
    put_real("executed_flops_per_step", p->executed_flops);
    printf(",\"rank\":%d,\"limit\":%zu,\"fits\":%s,\"offload\":{\"host\":%zu}", b->rank, b->limit, b->fits ? "true" : "false",
           b->host);
    printf(",\"memory\":{\"parameters\":%zu,\"gradients\":%zu,\"optimizer\":%zu,\"activations\":%zu,\"communication\":%zu,"
           "\"offload\":%zu,\"total\":%zu,\"other\":%zu,\"group_buffers\":%zu}",
           b->parameters, b->gradients, b->optimizer, b->activations, b->communication, b->offload, b->total, b->other, b->group_buffers);
    put_seconds(p);
    printf(",\"comm\":{");
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        if (p->calls[op] == 0) continue;
        printf("%s\"%s\":{\"calls\":%zu,\"bytes\":%zu}", comma, ls_collective_name((ls_collective)op), p->calls[op], p->sent[op]);
        comma = ",";
    }
    printf("}}\n");
}

static void put_fastest(const ls_plan_fastest *f)
{
    printf("{\"checked\":%lld,\"priced\":%lld,\"fit\":%lld,\"fastest\":[", (long long)f->checked, (long long)f->priced, (long long)f->fit);
    for (int i = 0; i < f->count; i++) {
        printf("%s{\"compiled\":%s,", i ? "," : "", f->found[i].compiled ? "true" : "false");
        put_real("seconds", f->found[i].seconds);
        printf(",");
        put_real("bytes", f->found[i].bytes);
        printf("}");
    }
    printf("]}\n");
}

/* ---- what it plans ---- */

static ls_status plan_one(const struct planning *p, const ls_cluster *c)
{
    ls_plan plan;

    LS_TRY(ls_plan_layout(&p->model, &p->layout, c, &p->options, &plan));
    put_plan(&plan);
    return LS_OK;
}

/* The fastest layout has as many ranks as it was searched for, and its own plan has its figures. */
static ls_status plan_search(const struct planning *p, const ls_cluster *c)
{
    ls_plan_space space = { .ranks = p->ranks, .base = p->layout, .fixed = p->fixed };
    ls_plan_fastest f;
    ls_plan plan;

    LS_TRY(ls_plan_search(&p->model, &space, c, &p->options, &f));
    put_fastest(&f);
    LS_TRY(ls_plan_layout(&p->model, &f.found[0].layout, c, &p->options, &plan));
    if (f.compiled < 1 || ls_layout_ranks(&f.found[0].layout) != p->ranks || plan.seconds.step != f.found[0].seconds ||
        (double)plan.bytes.total != f.found[0].bytes || !plan.bytes.fits)
        return ls_fail(LS_EINVAL, "the fastest layout takes %.17g s and %.0f bytes, by its plan %.17g s and %zu bytes", f.found[0].seconds,
                       f.found[0].bytes, plan.seconds.step, plan.bytes.total);
    return LS_OK;
}

static ls_status example(const ls_model *model, const ls_cluster *cluster)
{
    ls_layout l = ls_layout_default();
    ls_plan plan;
    l.dp = 8, l.tp = 2, l.zero = 1, l.seq_len = 4096, l.compute = LS_BF16;
    LS_TRY(ls_plan_layout(model, &l, cluster, NULL, &plan));
    printf("%g s a step, MFU %.3f, %zu bytes\n", plan.seconds.step, plan.mfu, plan.bytes.total);

    ls_plan_space space = { .ranks = 16, .base = l, .fixed = LS_PLAN_FIX_TP }; // 16 ranks, tp stays 2
    ls_plan_options options = { .global_batch = 64 };
    ls_plan_fastest fastest;
    LS_TRY(ls_plan_search(model, &space, cluster, &options, &fastest));
    LS_TRY(ls_plan_layout(model, &fastest.found[0].layout, cluster, &options, &plan));
    return fastest.found[0].layout.tp == 2 && plan.seconds.step == fastest.found[0].seconds ? LS_OK : ls_fail(LS_EINVAL, "tp was not kept");
}

static ls_status list_clusters(void)
{
    for (int i = 0; ls_cluster_builtin(i); i++) {
        ls_cluster *cluster;

        LS_TRY(ls_cluster_read(ls_cluster_builtin(i), &cluster));
        ls_cluster_facts f = ls_cluster_facts_of(cluster);
        printf("%s: %s, %s, %d a node, %g bf16, %g bytes, %g %s\n", ls_cluster_builtin(i), f.name, f.processor, f.ranks_per_node,
               f.flops[LS_BF16], f.memory, f.price, f.currency);
        ls_cluster_release(&cluster);
    }
    return LS_OK;
}

static ls_status run(int argc, char **argv)
{
    struct planning p = { .layout = ls_layout_default() };
    ls_cluster *c = NULL;
    ls_status st = ls_model_preset("llama-tiny", &p.model);

    for (int i = 3; st == LS_OK && i < argc; i++) st = take_option(&p, argv[i]);
    if (st == LS_OK && argc > 2 && *argv[2]) st = ls_cluster_read(argv[2], &c);
    if (st == LS_OK)
        st = strcmp(argv[1], "plan") == 0     ? plan_one(&p, c)
             : strcmp(argv[1], "search") == 0 ? plan_search(&p, c)
             : strcmp(argv[1], "example") == 0 ? example(&p.model, c)
                                               : list_clusters();
    ls_cluster_release(&c);
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    if (run(argc, argv) == LS_OK) return 0;
    fprintf(stderr, "plan_public: %s\n", ls_errmsg());
    return 1;
}
