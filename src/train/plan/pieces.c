/* pieces.c - see pieces.h. */
#include "train/plan/pieces.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "parallel/pipeline/stage.h"

/* Which stage of a pipeline a piece is. */
enum place { PLACE_ONLY, PLACE_FIRST, PLACE_MIDDLE, PLACE_LAST };
enum { BLOCKS_MOST = 4, BLOCKS_BASE = 3, PROGRAMS = 2 };
enum { STAGES = 3 };  /* a pipeline's piece is compiled in a pipeline of so many stages */
enum { SHARING = 8 }; /* and for so many ranks, times ep, and twice as many; fewer ranks are compiled as they are */

/* The layout that a piece is compiled in, and the piece of it. No padding: keys are compared as bytes. */
struct piece_key {
    ls_layout layout;
    int place, blocks;
};

/* Bytes of a rank; of a pipeline's activations, `slot` once per micro-batch in flight. */
struct piece_bytes {
    double all, slot;
};

struct piece {
    struct piece_key key;
    struct tape tape[PROGRAMS];       /* the chunk's and the optimizer's, or one with all */
    struct piece_bytes bytes, shared; /* bytes + shared / (ranks that share optimizer state) */
    int tapes;
};

/* Slots of every rank's chunks under a schedule. */
struct in_flight {
    const char *schedule; /* a constant */
    int pp, vpp, micro_batches;
    int *slots; /* [pp][vpp] */
};

struct pieces {
    const struct plan_job *job;
    const struct cluster *cluster;
    int seq_len;
    double block, before, after; /* FLOPs of a forward, for balancing stages */
    struct piece *piece;
    int *bucket, buckets, count, room, compiled; /* bucket: 1 + index of a piece; 0: free */
    int **begin;                                 /* [layers + 1] first blocks of so many balanced stages; NULL: not asked for yet */
    struct in_flight *in_flight;
    int flights, flight_room;
};

/* ---- opening ---- */

/* FLOPs of a block, and of what comes before and after the blocks. */
static ls_status measure_blocks(struct pieces *p)
{
    struct task_model model = *p->job->model;
    ls_store_options options = { .type = LS_F32, .device = p->job->step.device };
    double cost[2];
    ls_store *store = NULL;
    ls_program *program = NULL;

    model.transformer.layers = 2;
    LS_TRY(ls_store_new(&options, &store));
    ls_status st = ls_program_new(store, &program);
    if (st == LS_OK) {
        task_loss(program, &model, 1, (size_t)p->seq_len, true);
        st = ls_program_status(program);
    }
    if (st == LS_OK) {
        stage_costs(program, cost, &p->before, &p->after);
        p->block = cost[0];
    }
    ls_program_release(&program);
    ls_store_release(&store);
    return st;
}

ls_status pieces_open(const struct plan_job *j, const struct cluster *c, int seq_len, struct pieces **out)
{
    struct pieces *p = mem_array(MEM_OTHER, 1, sizeof *p);
    ls_status st = LS_ENOMEM;

    if (!p) return LS_ENOMEM;
    *p = (struct pieces){ .job = j, .cluster = c, .seq_len = seq_len, .buckets = 1 << 12 };
    p->bucket = mem_array(MEM_OTHER, (size_t)p->buckets, sizeof *p->bucket);
    p->begin = mem_array(MEM_OTHER, j->model->transformer.layers + 1, sizeof *p->begin);
    if (p->bucket && p->begin) st = measure_blocks(p);
    if (st == LS_OK)
        *out = p;
    else
        pieces_close(&p);
    return st;
}

static void piece_free(struct piece *x)
{
    for (int i = 0; i < PROGRAMS; i++) tape_free(&x->tape[i]);
}

void pieces_close(struct pieces **out)
{
    struct pieces *p = *out;

    *out = NULL;
    if (!p) return;
    for (int i = 0; i < p->count; i++) piece_free(&p->piece[i]);
    for (size_t i = 0; p->begin && i <= p->job->model->transformer.layers; i++) mem_free(p->begin[i]);
    for (int i = 0; i < p->flights; i++) mem_free(p->in_flight[i].slots);
    mem_free(p->piece);
    mem_free(p->bucket);
    mem_free(p->begin);
    mem_free(p->in_flight);
    mem_free(p);
}

int pieces_compiled(const struct pieces *p) { return p->compiled; }

/* ---- compiling a piece ---- */

static bool splits(const ls_layout *l) { return l->pp > 1 && l->schedule && strncmp(l->schedule, "zb-", 3) == 0; }

static double sharing_of(const ls_layout *l) { return (double)l->dp / MAX(l->replicate, 1) * l->cp; }

/* The layout that stands for l. twice: the number of ranks that share optimizer state does not matter but for what they share. */
static ls_layout piece_layout(const ls_layout *l, int blocks, bool *twice)
{
    static const char *const stages[BLOCKS_MOST + 1] = { "", "1,1,1", "2,2,2", "3,3,3", "4,4,4" };
    ls_layout out = *l;
    int copies = l->replicate > 1 ? 2 : 1, sharing = l->dp / MAX(l->replicate, 1);

    out.pp = l->pp > 1 ? STAGES : 1;
    out.vpp = 1;
    out.schedule = l->pp == 1 ? NULL : splits(l) ? "zb-h1" : "1f1b";
    out.stages = l->pp > 1 ? stages[blocks] : NULL;
    out.micro_batches = MIN(l->micro_batches, STAGES);
    *twice = l->zero && sharing > SHARING * l->ep;
    out.replicate = copies;
    out.dp = copies * MIN(sharing, SHARING * l->ep);
    return out;
}

static ls_status read_step(const struct pieces *p, const struct step *s, struct piece *out)
{
    const ls_program *program;
    ls_cost cost = step_cost(s), evaluation = { 0 };

    for (out->tapes = 0; (program = step_program(s, out->tapes)); out->tapes++) {
        ASSERT(out->tapes < PROGRAMS);
        LS_TRY(tape_make(p->cluster, s, program, &out->tape[out->tapes]));
    }
    if (p->job->evaluates) LS_TRY(evaluation_plan(s, &evaluation));
    out->bytes.all = (double)(cost.parameters + cost.gradients + cost.optimizer + cost.activations + cost.communication +
                              evaluation.activations + evaluation.communication);
    if (!s->pipeline) return LS_OK;
    program = ls_pipeline_program(s->pipeline, 0);
    out->bytes.slot = (double)program->arena_bytes[ARENA_SLOT];
    out->bytes.all -= out->bytes.slot * program_slots(program);
    return LS_OK;
}

/* Compiles the piece of the key, but with dp ranks. */
static ls_status piece_compile(struct pieces *p, const struct piece_key *key, int dp, struct piece *out)
{
    struct task_model model = *p->job->model;
    struct plan_job job = *p->job;
    ls_layout l = key->layout;
    int stage = key->place == PLACE_ONLY ? 0 : key->place - PLACE_FIRST;
    struct ranks ranks;
    struct step s;

    pulse();
    *out = (struct piece){ .key = *key };
    l.dp = dp;
    model.transformer.layers = (size_t)(key->blocks * l.pp);
    job.step.global = (size_t)l.micro_batch * (size_t)l.micro_batches * (size_t)l.dp;
    LS_TRY(ranks_plan(&l, (int)(ls_layout_ranks(&l) / l.pp) * (stage + 1) - 1, &ranks));
    ls_status st = step_open(&model, &l, &job.step, &ranks, true, &s);
    if (st == LS_OK) {
        st = read_step(p, &s, out);
        step_close(&s);
    }
    ranks_close(&ranks);
    if (st < 0) piece_free(out);
    p->compiled++;
    return st;
}

/* Splits values at two numbers of ranks, a at `ranks` and b at twice as many, into a part that stays and one that they share. */
static void split_value(double a, double b, double ranks, double *value, double *shared)
{
    *shared = 2 * ranks * (a - b);
    *value = a - *shared / ranks;
}

static double update_seconds(const struct tape *t)
{
    double sum = 0;

    for (int n = t->begin[SEG_OPTIMIZER]; n < t->begin[SEGMENTS]; n++) sum += t->entry[n].kind == TAPE_KERNEL ? t->entry[n].value : 0;
    return sum;
}

/* A rank's shard touches fewer parameters the more ranks there are, so the updates are split as a whole. */
static void split_updates(struct tape *a, const struct tape *b, double ranks)
{
    double sum = update_seconds(a), value, shared;

    split_value(sum, update_seconds(b), ranks, &value, &shared);
    for (int n = a->begin[SEG_OPTIMIZER]; n < a->begin[SEGMENTS]; n++) {
        struct tape_entry *x = &a->entry[n];

        if (x->kind != TAPE_KERNEL) continue;
        x->shared = x->value / sum * shared;
        x->value *= value / sum;
    }
}

static void split_piece(struct piece *a, const struct piece *b, double ranks)
{
    struct piece_bytes bytes = a->bytes;

    split_value(bytes.all, b->bytes.all, ranks, &a->bytes.all, &a->shared.all);
    split_value(bytes.slot, b->bytes.slot, ranks, &a->bytes.slot, &a->shared.slot);
    for (int i = 0; i < a->tapes; i++) {
        for (int n = 0; n < a->tape[i].begin[SEG_OPTIMIZER]; n++) {
            struct tape_entry *x = &a->tape[i].entry[n];

            split_value(x->value, b->tape[i].entry[n].value, ranks, &x->value, &x->shared);
        }
        split_updates(&a->tape[i], &b->tape[i], ranks);
    }
}

/* The programs of any number of ranks are the same up to the optimizer. */
static bool same_programs(const struct piece *a, const struct piece *b)
{
    for (int i = 0; i < a->tapes; i++)
        if (memcmp(a->tape[i].begin, b->tape[i].begin, (SEG_OPTIMIZER + 1) * sizeof *a->tape[i].begin) != 0) return false;
    return a->tapes == b->tapes;
}

static ls_status piece_make(struct pieces *p, const struct piece_key *key, bool twice, struct piece *out)
{
    struct piece other;

    LS_TRY(piece_compile(p, key, key->layout.dp, out));
    if (!twice) return LS_OK;
    ls_status st = piece_compile(p, key, 2 * key->layout.dp, &other);
    if (st == LS_OK) {
        if (same_programs(out, &other)) split_piece(out, &other, sharing_of(&key->layout));
        piece_free(&other);
    } else {
        piece_free(out);
    }
    return st;
}

/* ---- the table of pieces ---- */

static uint64_t key_hash(const struct piece_key *key)
{
    const unsigned char *byte = (const unsigned char *)key;
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ byte[i]) * 1099511628211u;
    return h ^ h >> 32;
}

static int *find_bucket(const struct pieces *p, int *bucket, int buckets, const struct piece_key *key)
{
    uint64_t at = key_hash(key) & (uint64_t)(buckets - 1);

    while (bucket[at] && memcmp(&p->piece[bucket[at] - 1].key, key, sizeof *key) != 0) at = (at + 1) & (uint64_t)(buckets - 1);
    return &bucket[at];
}

/* Makes room for one more. */
static ls_status grow_pieces(struct pieces *p)
{
    int buckets = 2 * p->buckets, *bucket;

    if (p->count == p->room) {
        struct piece *grown = mem_resize(p->piece, (size_t)(2 * p->room + 64) * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        p->piece = grown;
        p->room = 2 * p->room + 64;
    }
    if (2 * p->count < p->buckets) return LS_OK;
    bucket = mem_array(MEM_OTHER, (size_t)buckets, sizeof *bucket);
    if (!bucket) return LS_ENOMEM;
    for (int i = 0; i < p->count; i++) *find_bucket(p, bucket, buckets, &p->piece[i].key) = i + 1;
    mem_free(p->bucket);
    p->bucket = bucket;
    p->buckets = buckets;
    return LS_OK;
}

/* *out is valid until the next call. */
static ls_status find_piece(struct pieces *p, const ls_layout *l, enum place place, int blocks, struct piece **out)
{
    bool twice;
    struct piece_key key = { .layout = piece_layout(l, blocks, &twice), .place = (int)place, .blocks = blocks };
    int *bucket = find_bucket(p, p->bucket, p->buckets, &key);

    if (!*bucket) {
        LS_TRY(grow_pieces(p));
        LS_TRY(piece_make(p, &key, twice, &p->piece[p->count]));
        bucket = find_bucket(p, p->bucket, p->buckets, &key);
        *bucket = ++p->count;
    }
    *out = &p->piece[*bucket - 1];
    return LS_OK;
}

/* ---- what a layout's stages are made of ---- */

/* begin[stages + 1] of balanced stages; owned by p. */
static ls_status balanced(struct pieces *p, int stages, const int **out)
{
    int layers = (int)p->job->model->transformer.layers, **begin = &p->begin[stages];
    double *cost;

    *out = *begin;
    if (*begin) return LS_OK;
    *begin = mem_array(MEM_OTHER, (size_t)stages + 1, sizeof **begin);
    cost = mem_array(MEM_OTHER, (size_t)layers, sizeof *cost);
    if (!*begin || !cost) {
        mem_free(cost);
        return LS_ENOMEM;
    }
    for (int i = 0; i < layers; i++) cost[i] = p->block;
    ls_status st = ls_pipeline_balance(layers, cost, p->before, p->after, stages, *begin);
    mem_free(cost);
    *out = *begin;
    return st;
}

/* Slots [pp][vpp] of the layout's schedule; owned by p. */
static ls_status slots_of(struct pieces *p, const ls_layout *l, const int **out)
{
    struct in_flight x = { l->schedule, l->pp, l->vpp, l->micro_batches, NULL };
    ls_pipeline_schedule s;

    for (int i = p->flights - 1; i >= 0; i--) {
        const struct in_flight *f = &p->in_flight[i];

        *out = f->slots;
        if (f->schedule == x.schedule && f->pp == x.pp && f->vpp == x.vpp && f->micro_batches == x.micro_batches) return LS_OK;
    }
    if (p->flights == p->flight_room) {
        struct in_flight *grown = mem_resize(p->in_flight, (size_t)(2 * p->flights + 16) * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        p->in_flight = grown;
        p->flight_room = 2 * p->flights + 16;
    }
    LS_TRY(ls_layout_schedule(l, &s));
    x.slots = mem_array(MEM_OTHER, (size_t)(l->pp * l->vpp), sizeof *x.slots);
    for (int r = 0; x.slots && r < l->pp; r++)
        for (int k = 0; k < l->vpp; k++) x.slots[r * l->vpp + k] = ls_pipeline_schedule_slots(&s, r, k);
    ls_pipeline_schedule_free(&s);
    if (!x.slots) return LS_ENOMEM;
    *out = x.slots;
    p->in_flight[p->flights++] = x;
    return LS_OK;
}

static enum place place_of(int stage, int stages)
{
    return stages == 1 ? PLACE_ONLY : stage == 0 ? PLACE_FIRST : stage == stages - 1 ? PLACE_LAST : PLACE_MIDDLE;
}

/* Virtual stage of a rank's chunk. */
static int stage_of(const ls_layout *l, int rank, int chunk)
{
    bool v = l->pp > 1 && l->schedule && strcmp(l->schedule, "zb-v") == 0;

    return v && chunk ? 2 * l->pp - 1 - rank : chunk * l->pp + rank;
}

/* ---- bytes ---- */

static void add_bytes(struct piece_bytes *to, const struct piece *x, double sharing, double times)
{
    to->all += times * (x->bytes.all + x->shared.all / sharing);
    to->slot += times * (x->bytes.slot + x->shared.slot / sharing);
}

static ls_status stage_bytes(struct pieces *p, const ls_layout *l, enum place place, int blocks, struct piece_bytes *out)
{
    double more = blocks - BLOCKS_BASE, sharing = sharing_of(l);
    struct piece *x;

    *out = (struct piece_bytes){ 0 };
    LS_TRY(find_piece(p, l, place, MIN(blocks, BLOCKS_BASE), &x));
    add_bytes(out, x, sharing, more > 0 ? 1 - more : 1);
    if (more <= 0) return LS_OK;
    LS_TRY(find_piece(p, l, place, BLOCKS_MOST, &x));
    add_bytes(out, x, sharing, more);
    return LS_OK;
}

static ls_status layout_bytes(struct pieces *p, const ls_layout *l, const int *begin, double *most)
{
    const int *slots = NULL;

    *most = 0;
    if (l->pp > 1) LS_TRY(slots_of(p, l, &slots));
    for (int r = 0; r < l->pp; r++) {
        double sum = 0;

        for (int k = 0; k < l->vpp; k++) {
            int stage = stage_of(l, r, k);
            struct piece_bytes b;

            LS_TRY(stage_bytes(p, l, place_of(stage, l->pp * l->vpp), begin[stage + 1] - begin[stage], &b));
            sum += b.all + (slots ? slots[r * l->vpp + k] * b.slot : 0);
        }
        *most = MAX(*most, sum);
    }
    return LS_OK;
}

/* ---- seconds ---- */

static void play_piece(const struct pieces *p, struct piece *x, const struct tape_place *where, struct tape_seconds *out)
{
    *out = (struct tape_seconds){ 0 };
    for (int i = 0; i < x->tapes; i++) tape_play(&x->tape[i], p->cluster, where, out);
}

static ls_status stage_seconds(struct pieces *p, const ls_layout *l, enum place place, int blocks, const struct tape_place *where,
                               struct tape_seconds *out)
{
    double more = blocks - BLOCKS_BASE;
    struct tape_seconds base, next;
    struct piece *x;

    LS_TRY(find_piece(p, l, place, MIN(blocks, BLOCKS_BASE), &x));
    play_piece(p, x, where, &base);
    *out = base;
    if (more <= 0) return LS_OK;
    LS_TRY(find_piece(p, l, place, BLOCKS_MOST, &x));
    play_piece(p, x, where, &next);
    tape_seconds_add(out, &next, more);
    tape_seconds_add(out, &base, -more);
    return LS_OK;
}

/* The stages of a layout while it is timed. Stages of the same place and size take the same time. */
enum { KINDS = 8 };
struct timing {
    struct pieces *p;
    const ls_layout *layout;
    const int *begin;
    struct {
        enum place place;
        int blocks;
        struct tape_seconds seconds;
    } kind[KINDS];
    int kinds;
    struct tape_seconds *rank; /* [pp] */
    struct stage_actions actions;
};

static ls_status time_kind(struct timing *t, int stage, int rank, struct tape_seconds *out)
{
    const ls_layout *l = t->layout;
    enum place place = place_of(stage, l->pp * l->vpp);
    int blocks = t->begin[stage + 1] - t->begin[stage];

    for (int i = 0; i < t->kinds; i++) {
        *out = t->kind[i].seconds;
        if (t->kind[i].place == place && t->kind[i].blocks == blocks) return LS_OK;
    }
    struct tape_place where = tape_place_of(t->p->cluster, l, (int)(ls_layout_ranks(l) / l->pp) * (rank + 1) - 1);
    LS_TRY(stage_seconds(t->p, l, place, blocks, &where, out));
    if (t->kinds == KINDS) return LS_OK;
    t->kind[t->kinds].place = place;
    t->kind[t->kinds].blocks = blocks;
    t->kind[t->kinds++].seconds = *out;
    return LS_OK;
}

static ls_status time_ranks(struct timing *t)
{
    const ls_layout *l = t->layout;

    for (int r = 0; r < l->pp; r++) {
        double message = 0;

        for (int k = 0; k < l->vpp; k++) {
            int stage = stage_of(l, r, k);
            struct tape_seconds one;

            LS_TRY(time_kind(t, stage, r, &one));
            message = MAX(message, one.message);
            tape_seconds_add(&t->rank[r], &one, 1);
            stage_actions_put(&t->actions, stage, &one, splits(l));
        }
        t->rank[r].message = message;
    }
    return LS_OK;
}

static ls_status join(struct timing *t, double most, struct price *out)
{
    const ls_layout *l = t->layout;
    ls_pipeline_schedule schedule = { 0 };
    struct step_seconds seconds;

    out->seconds = step_seconds_least(l->pp, l->micro_batches, t->rank);
    out->bounded = l->pp > 1 && out->seconds > most;
    if (l->pp == 1 || out->bounded) return LS_OK;
    LS_TRY(ls_layout_schedule(l, &schedule));
    ls_status st = step_seconds_join(&schedule, l->pp, l->micro_batches, t->rank, &t->actions, &seconds);
    ls_pipeline_schedule_free(&schedule);
    out->seconds = seconds.step;
    return st;
}

ls_status pieces_price(struct pieces *p, const ls_layout *l, double room, double most, struct price *out)
{
    struct timing t = { .p = p, .layout = l };

    *out = (struct price){ .seconds = INFINITY };
    LS_TRY(balanced(p, l->pp * l->vpp, &t.begin));
    LS_TRY(layout_bytes(p, l, t.begin, &out->bytes));
    if (out->bytes > room) return LS_OK;
    LS_TRY(stage_actions_new(l->pp * l->vpp, &t.actions));
    t.rank = mem_array(MEM_OTHER, (size_t)l->pp, sizeof *t.rank);
    ls_status st = t.rank ? time_ranks(&t) : LS_ENOMEM;
    if (st == LS_OK) st = join(&t, most, out);
    mem_free(t.rank);
    stage_actions_free(&t.actions);
    return st;
}
