/* patterns.c - see patterns.h. */
#include "train/plan/patterns.h"

#include <string.h>
#include "base/base.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "parallel/layout.h"

enum { STAGES = 3 };  /* a pattern with a pipeline is compiled in a pipeline of this many stages, */
enum { SAMPLES = 2 }; /* with this many samples, and with twice as many (or more: add_pattern()) if the micro-batch has more than one */
enum { SAMPLES_MOST = 4 }; /* programs of more samples take long to compile */
/* If more ranks than this (times ep) share optimizer state, a pattern is compiled for this many and for twice as many. With offloading the
 * number is larger: the shards that few ranks load are larger than everything else that is communicated, those of many ranks are not. */
enum { SHARING = 2, SHARING_LOADED = 8 };

struct patterns {
    const struct plan_job *job;
    const struct cluster *cluster;
    struct pattern *pattern;
    int *bucket, buckets, count, room, compiled; /* bucket: 1 + index of a pattern; 0: free */
};

ls_status patterns_open(const struct plan_job *j, const struct cluster *c, struct patterns **out)
{
    struct patterns *p = mem_array(MEM_OTHER, 1, sizeof *p);

    if (!p) return LS_ENOMEM;
    *p = (struct patterns){ .job = j, .cluster = c, .buckets = 1 << 12 };
    p->bucket = mem_array(MEM_OTHER, (size_t)p->buckets, sizeof *p->bucket);
    if (!p->bucket) {
        patterns_close(&p);
        return LS_ENOMEM;
    }
    *out = p;
    return LS_OK;
}

static void pattern_free(struct pattern *x)
{
    for (int i = 0; i < PROGRAMS; i++) tape_free(&x->tape[i]);
}

void patterns_close(struct patterns **out)
{
    struct patterns *p = *out;

    *out = NULL;
    if (!p) return;
    for (int i = 0; i < p->count; i++) pattern_free(&p->pattern[i]);
    mem_free(p->pattern);
    mem_free(p->bucket);
    mem_free(p);
}

int patterns_compiled(const struct patterns *p) { return p->compiled; }
struct pattern *patterns_at(const struct patterns *p, int i) { return &p->pattern[i]; }

/* ---- compiling a pattern ---- */

double pattern_sharing(const ls_layout *l) { return (double)l->dp / MAX(l->replicate, 1) * l->cp; }

/* The small layout in which the pattern of l is compiled. *shares: l has more ranks that share optimizer state, so what they share must be
 * scaled. */
static ls_layout pattern_layout(const ls_layout *l, int blocks, bool *shares)
{
    static const char *const stages[BLOCKS_MOST + 1] = { "", "1,1,1", "2,2,2", "3,3,3", "4,4,4" };
    ls_layout out = *l;
    int copies = l->replicate > 1 ? 2 : 1, sharing = l->dp / MAX(l->replicate, 1);
    int most = (l->offload || l->offload_parameters ? SHARING_LOADED : SHARING) * l->ep;

    out.pp = l->pp > 1 ? STAGES : 1;
    out.vpp = 1;
    out.schedule = l->pp == 1 ? NULL : layout_splits(l) ? "zb-h1" : "1f1b";
    out.stages = l->pp > 1 ? stages[blocks] : NULL;
    out.micro_batch = MIN(l->micro_batch, SAMPLES);
    out.micro_batches = STAGES; /* the programs do not depend on it */
    *shares = l->zero && sharing > most;
    out.replicate = copies;
    out.dp = copies * MIN(sharing, most);
    return out;
}

static ls_status read_evaluation(const struct step *s, struct pattern *out)
{
    ls_cost cost;

    LS_TRY(evaluation_plan(s, &cost));
    out->bytes.all.fixed = (double)cost.activations;
    out->bytes.communication.fixed = (double)cost.communication;
    return LS_OK;
}

static ls_status read_step(const struct patterns *p, const struct step *s, struct pattern *out)
{
    const ls_program *program;
    ls_cost cost = step_cost(s);

    for (out->tapes = 0; (program = step_program(s, out->tapes)); out->tapes++) {
        ASSERT(out->tapes < PROGRAMS);
        LS_TRY(tape_make(p->cluster, s, program, &out->tape[out->tapes]));
    }
    out->bytes.parameters.fixed = (double)cost.parameters;
    out->bytes.gradients.fixed = (double)cost.gradients;
    out->bytes.optimizer.fixed = (double)cost.optimizer;
    out->bytes.all.fixed = (double)(cost.parameters + cost.gradients + cost.optimizer + cost.activations);
    out->bytes.communication.fixed = (double)cost.communication;
    if (p->cluster->serial)
        out->bytes.all.fixed += (double)cost.offload; /* with a cpu, the host's memory is the rank's own */
    else
        out->bytes.host.fixed = (double)cost.offload;
    if (!s->pipeline) return LS_OK;
    program = ls_pipeline_program(s->pipeline, 0);
    out->bytes.slot.fixed = (double)program->results.arena_bytes[ARENA_SLOT];
    out->bytes.all.fixed -= out->bytes.slot.fixed * program_slots(program);
    return LS_OK;
}

/* Compiles the key's pattern with its samples and its ranks multiplied by these factors. */
static ls_status pattern_compile(const struct patterns *p, const struct pattern_key *key, int samples, int ranks_by, struct pattern *out)
{
    struct task_model model = *p->job->model;
    struct plan_job job = *p->job;
    ls_layout l = key->layout;
    int stage = key->place == PLACE_ONLY ? 0 : key->place - PLACE_FIRST;
    struct ranks ranks;
    struct step s;

    pulse();
    *out = (struct pattern){ .key = *key };
    l.micro_batch *= samples;
    l.dp *= ranks_by;
    model.transformer.layers = (size_t)(key->blocks * l.pp);
    job.step.global = (size_t)l.micro_batch * (size_t)l.micro_batches * (size_t)l.dp;
    LS_TRY(ranks_plan(&l, (int)(ls_layout_ranks(&l) / l.pp) * (stage + 1) - 1, &ranks));
    ls_status st = step_open(&model, &l, &job.step, &ranks, true, &s);
    if (st == LS_OK) {
        st = key->evaluation ? read_evaluation(&s, out) : read_step(p, &s, out);
        step_close(&s);
    }
    ranks_close(&ranks);
    if (st < 0) pattern_free(out);
    return st;
}

/* The same program with `samples` and `ranks`, with more samples, and with twice as many ranks. A variant that was not compiled is `base`,
 * because nothing depends on its variable. */
struct differences {
    const struct pattern *base, *sample, *shared;
    double samples, ranks;
};

static void fit(const struct differences *d, double base, double sample, double shared, struct tape_quantity *q)
{
    q->sample = (sample - base) / d->samples;
    q->shared = 2 * d->ranks * (base - shared);
    q->fixed = base - q->sample * d->samples - q->shared / d->ranks;
}

static void fit_entries(const struct differences *d, int tape, int from, int to, struct tape *out)
{
    for (int n = from; n < to; n++) {
        struct tape_entry *x = &out->entry[n];
        const struct tape_entry *more = &d->sample->tape[tape].entry[n], *less = &d->shared->tape[tape].entry[n];

        fit(d, x->moved.fixed, more->moved.fixed, less->moved.fixed, &x->moved);
        fit(d, x->computed.fixed, more->computed.fixed, less->computed.fixed, &x->computed);
        fit(d, x->rows.fixed, more->rows.fixed, less->rows.fixed, &x->rows);
        fit(d, x->columns.fixed, more->columns.fixed, less->columns.fixed, &x->columns);
    }
}

/* The kernels of a tape between exchanges. */
struct updates {
    int from, to; /* entries from .. to - 1; `to` is an exchange or the end */
    double moved, launches;
};

static struct updates updates_from(const struct tape *t, int from)
{
    struct updates u = { .from = from, .to = from };

    for (; u.to < t->begin[SEGMENTS] && t->entry[u.to].kind == TAPE_KERNEL; u.to++) u.moved += t->entry[u.to].moved.fixed, u.launches++;
    return u;
}

static void fit_run(const struct differences *d, const struct updates *base, const struct updates *less, struct tape *out)
{
    struct tape_quantity moved, launches;

    fit(d, base->moved, base->moved, less->moved, &moved);
    fit(d, base->launches, base->launches, less->launches, &launches);
    for (int n = base->from; n < base->to; n++) {
        double share = base->moved > 0 ? out->entry[n].moved.fixed / base->moved : 0;

        out->entry[n].moved = (struct tape_quantity){ share * moved.fixed, 0, share * moved.shared };
        out->entry[n].launches = (struct tape_quantity){ launches.fixed / base->launches, 0, launches.shared / base->launches };
    }
}

/* The more ranks there are, the fewer parameters a rank's shard touches, so the updates between two exchanges are fitted together. */
static void fit_updates(const struct differences *d, int tape, struct tape *out)
{
    const struct tape *less = &d->shared->tape[tape];
    int n = out->begin[SEG_OPTIMIZER], m = less->begin[SEG_OPTIMIZER];

    while (n <= out->begin[SEGMENTS] && m <= less->begin[SEGMENTS]) {
        struct updates a = updates_from(out, n), b = updates_from(less, m);

        if (less == out) return;
        fit_run(d, &a, &b, out);
        if (a.to < out->begin[SEGMENTS] && b.to < less->begin[SEGMENTS]) {
            struct tape_quantity *q = &out->entry[a.to].moved;

            fit(d, q->fixed, q->fixed, less->entry[b.to].moved.fixed, q);
        }
        n = a.to + 1;
        m = b.to + 1;
    }
}

static void fit_pattern(const struct differences *d, struct pattern *out)
{
    const struct pattern_bytes base = out->bytes, sample = d->sample->bytes, shared = d->shared->bytes;

#define FIT(part) fit(d, base.part.fixed, sample.part.fixed, shared.part.fixed, &out->bytes.part)
    FIT(all);
    FIT(parameters);
    FIT(gradients);
    FIT(optimizer);
    FIT(slot);
    FIT(host);
    FIT(communication);
#undef FIT
    for (int i = 0; i < out->tapes; i++) {
        struct tape *t = &out->tape[i];

        fit_entries(d, i, 0, t->begin[SEG_OPTIMIZER], t);
        fit_updates(d, i, t);
        fit(d, t->message.fixed, d->sample->tape[i].message.fixed, d->shared->tape[i].message.fixed, &t->message);
    }
}

/* Programs for different numbers of ranks are the same up to the optimizer. */
static bool same_programs(const struct pattern *a, const struct pattern *b)
{
    for (int i = 0; i < a->tapes; i++)
        if (memcmp(a->tape[i].begin, b->tape[i].begin, (SEG_OPTIMIZER + 1) * sizeof *a->tape[i].begin) != 0) return false;
    return a->tapes == b->tapes;
}

static ls_status fail_pattern(void)
{
    return ls_fail(LS_EUNSUPPORTED,
                   "a search is not possible: the programs of this model differ with the ranks that share optimizer state");
}

/* A pattern that is being made: the program of its key, one with more samples, and one with twice as many ranks. */
enum variant { VARIANT_BASE, VARIANT_SAMPLE, VARIANT_SHARED, VARIANTS };
struct pattern_made {
    struct pattern_key key;
    bool wanted[VARIANTS];
    struct pattern variant[VARIANTS];
};

static void made_free(struct pattern_made *m)
{
    for (int v = 0; v < VARIANTS; v++) pattern_free(&m->variant[v]);
}

/* Fits the compiled programs. The caller owns *out, the pattern. */
static ls_status made_fit(struct pattern_made *m, struct pattern *out)
{
    const ls_layout *l = &m->key.layout;
    struct pattern *base = &m->variant[VARIANT_BASE];
    const struct pattern *sample = m->wanted[VARIANT_SAMPLE] ? &m->variant[VARIANT_SAMPLE] : base;
    const struct pattern *shared = m->wanted[VARIANT_SHARED] ? &m->variant[VARIANT_SHARED] : base;

    base->apart = !same_programs(base, sample);
    if (!same_programs(base, shared)) return fail_pattern();
    fit_pattern(&(struct differences){ base, base->apart ? base : sample, shared, l->micro_batch, pattern_sharing(l) }, base);
    *out = *base;
    *base = (struct pattern){ 0 };
    return LS_OK;
}

/* ---- the table of patterns ---- */

static int *find_bucket(const struct patterns *p, int *bucket, int buckets, const struct pattern_key *key)
{
    uint64_t at = hash_words_of(key, sizeof *key).low & (uint64_t)(buckets - 1);

    while (bucket[at] && memcmp(&p->pattern[bucket[at] - 1].key, key, sizeof *key) != 0) at = (at + 1) & (uint64_t)(buckets - 1);
    return &bucket[at];
}

/* Makes room for one more. */
static ls_status grow_patterns(struct patterns *p)
{
    int buckets = 2 * p->buckets, *bucket;

    if (p->count == p->room) {
        struct pattern *grown = mem_resize(p->pattern, (size_t)(2 * p->room + 64) * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        p->pattern = grown;
        p->room = 2 * p->room + 64;
    }
    if (2 * p->count < p->buckets) return LS_OK;
    bucket = mem_array(MEM_OTHER, (size_t)buckets, sizeof *bucket);
    if (!bucket) return LS_ENOMEM;
    for (int i = 0; i < p->count; i++) *find_bucket(p, bucket, buckets, &p->pattern[i].key) = i + 1;
    mem_free(p->bucket);
    p->bucket = bucket;
    p->buckets = buckets;
    return LS_OK;
}

struct pattern_want {
    struct pattern_key key;
    bool shares; /* pattern_layout()'s */
};

/* Programs that are compiled at the same time, for up to WANTED_MOST patterns. */
enum { WANTED_MOST = 8 * ROLES };
struct compilation {
    const struct patterns *patterns;
    struct pattern_made made[WANTED_MOST];
    struct {
        int made;
        enum variant variant;
    } task[WANTED_MOST * VARIANTS];
    int mades, tasks;
};

static void compilation_add(struct compilation *c, const struct pattern_want *w)
{
    struct pattern_made *m = &c->made[c->mades];

    *m = (struct pattern_made){ .key = w->key, .wanted = { true, w->key.layout.micro_batch == SAMPLES, w->shares } };
    for (int v = 0; v < VARIANTS; v++) {
        if (!m->wanted[v]) continue;
        c->task[c->tasks].made = c->mades;
        c->task[c->tasks++].variant = (enum variant)v;
    }
    c->mades++;
}

static ls_status compilation_task(void *ctx, int task)
{
    struct compilation *c = ctx;
    struct pattern_made *m = &c->made[c->task[task].made];
    enum variant v = c->task[task].variant;

    return pattern_compile(c->patterns, &m->key, v == VARIANT_SAMPLE ? 2 : 1, v == VARIANT_SHARED ? 2 : 1, &m->variant[v]);
}

static bool is_made(const struct patterns *p, const struct pattern_want *w) { return *find_bucket(p, p->bucket, p->buckets, &w->key); }

/* Makes the patterns that are not in the table yet. */
static ls_status patterns_make(struct patterns *p, const struct pattern_want *want, int n)
{
    struct compilation c;

    ASSERT(n <= WANTED_MOST);
    c.patterns = p;
    c.mades = c.tasks = 0;
    for (int i = 0; i < n; i++) {
        bool twice = false;

        for (int k = 0; k < i; k++) twice |= memcmp(&want[k].key, &want[i].key, sizeof want[k].key) == 0;
        if (!twice && !is_made(p, &want[i])) compilation_add(&c, &want[i]);
    }
    ls_status st = plan_tasks(p->job, c.tasks, compilation_task, &c);
    p->compiled += c.tasks;
    for (int i = 0; i < c.mades; i++) {
        if (st == LS_OK) st = grow_patterns(p);
        if (st == LS_OK) st = made_fit(&c.made[i], &p->pattern[p->count]);
        made_free(&c.made[i]);
        if (st == LS_OK) *find_bucket(p, p->bucket, p->buckets, &c.made[i].key) = ++p->count;
    }
    return st;
}

static ls_status add_term(struct patterns *p, const struct pattern_want *w, struct pattern_term term, struct pattern_sum *out)
{
    int *bucket = find_bucket(p, p->bucket, p->buckets, &w->key);

    if (!*bucket) {
        LS_TRY(patterns_make(p, w, 1));
        bucket = find_bucket(p, p->bucket, p->buckets, &w->key);
    }
    term.pattern = *bucket - 1;
    out->term[out->n++] = term;
    return LS_OK;
}

/* If the pattern `own` is valid only for its own micro-batch, the stage is a weighted sum of two: the pattern with the power of 2 below the
 * micro-batch, at most SAMPLES_MOST, and the one with twice as many samples, since time and bytes are proportional to samples. share[2]:
 * the weight of each. */
static void apart_wants(const struct pattern_stage *s, const struct pattern_want *own, struct pattern_want want[2], double share[2])
{
    int samples = SAMPLES;

    while (2 * samples <= MIN(s->layout->micro_batch, SAMPLES_MOST)) samples *= 2;
    share[1] = (double)s->layout->micro_batch / samples - 1;
    share[0] = 1 - share[1];
    for (int k = 0; k < 2; k++) {
        want[k] = *own;
        want[k].key.layout.micro_batch = samples << k;
    }
}

/* True if the pattern, which exists, is valid only for its own micro-batch, and the stage has another. */
static bool is_apart(const struct patterns *p, const struct pattern_stage *s, int pattern)
{
    return p->pattern[pattern].apart && s->layout->micro_batch > SAMPLES;
}

static ls_status add_pattern(struct patterns *p, const struct pattern_stage *s, const struct pattern_want *w, struct pattern_term term,
                             struct pattern_sum *out)
{
    struct pattern_want want[2];
    double times = term.times, share[2];

    term.share = 1;
    term.samples = s->layout->micro_batch;
    LS_TRY(add_term(p, w, term, out));
    if (!is_apart(p, s, out->term[out->n - 1].pattern)) return LS_OK;
    out->n--;
    apart_wants(s, w, want, share);
    for (int k = 0; k < 2; k++) {
        term.samples = want[k].key.layout.micro_batch;
        term.share = share[k];
        term.times = times * share[k];
        if (share[k] != 0) LS_TRY(add_term(p, &want[k], term, out));
    }
    return LS_OK;
}

static struct pattern_want want_of(const struct pattern_stage *s, enum pattern_place place, int blocks)
{
    struct pattern_want w;

    memset(&w, 0, sizeof w);
    w.key.layout = pattern_layout(s->layout, blocks, &w.shares);
    w.key.place = (int)place;
    w.key.blocks = blocks;
    w.key.evaluation = s->evaluation;
    return w;
}

/* The patterns whose sum a stage is, each in its role; returns how many. *more: blocks of the stage beyond those of its own pattern. */
static int wants_of(const struct pattern_stage *s, struct pattern_want want[ROLES], double *more)
{
    int own = MAX(1, MIN(s->blocks, BLOCKS_BASE));                                 /* a stage without blocks has one less than one */
    enum pattern_place plain = s->place == PLACE_ONLY ? PLACE_ONLY : PLACE_MIDDLE; /* place of the further blocks of a longer stage */

    *more = s->blocks - own;
    want[ROLE_OWN] = want_of(s, s->place, own);
    if (*more == 0) return 1;
    want[ROLE_LESS] = want_of(s, plain, BLOCKS_BASE);
    want[ROLE_MORE] = want_of(s, plain, BLOCKS_MOST);
    return ROLES;
}

ls_status patterns_prepare(struct patterns *p, const struct pattern_stage *s, int n)
{
    struct pattern_want want[WANTED_MOST];
    int wants = 0;
    double more;

    for (int i = 0; i < n; i++) {
        int more_wants = wants_of(&s[i], &want[wants], &more);

        if (is_made(p, &want[wants])) continue;
        wants += more_wants;
        if (wants <= WANTED_MOST - ROLES) continue;
        LS_TRY(patterns_make(p, want, wants));
        wants = 0;
    }
    return wants ? patterns_make(p, want, wants) : LS_OK;
}

bool patterns_made(const struct patterns *p, const struct pattern_stage *s)
{
    struct pattern_want want[ROLES], apart[2];
    double more, share[2];
    int n = wants_of(s, want, &more);

    for (int i = 0; i < n; i++) {
        int made = *find_bucket(p, p->bucket, p->buckets, &want[i].key);

        if (!made) return false;
        if (!is_apart(p, s, made - 1)) continue;
        apart_wants(s, &want[i], apart, share);
        for (int k = 0; k < 2; k++)
            if (share[k] != 0 && !is_made(p, &apart[k])) return false;
    }
    return true;
}

ls_status patterns_sum(struct patterns *p, const struct pattern_stage *s, struct pattern_sum *out)
{
    struct pattern_want want[ROLES];
    double more;
    int n = wants_of(s, want, &more);
    const double times[ROLES] = { [ROLE_OWN] = 1, [ROLE_LESS] = -more, [ROLE_MORE] = more };

    out->n = 0;
    if (!is_made(p, &want[0])) LS_TRY(patterns_make(p, want, n));
    for (int i = 0; i < n; i++)
        LS_TRY(add_pattern(p, s, &want[i], (struct pattern_term){ .role = (enum pattern_role)i, .times = times[i] }, out));
    return LS_OK;
}
