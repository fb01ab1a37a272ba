/* async.c - see async.h.
 *
 * Messages: a worker sends words (enum push) and the flat gradients of the store's units; rank 0 answers with words (enum pull) and the
 * units' parameters. Rank 0 receives the words of all workers at once, and the gradients of the one that it takes, into its own gradients.
 */
#include "train/run/async.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "runtime/store.h"
#include "train/run/stop.h"

enum { LEAD = 64 }; /* steps that a worker may be ahead of the slowest */

enum push {
    PUSH_VERSION, /* updates that the parameters had */
    PUSH_LOSS,
    PUSH_TOKENS,
    PUSH_STOP, /* the signal to exit by; a checkpoint is requested */
    PUSH_SAVE,
    PUSH_PEAK,
    PUSH_TIME,
    PUSH_MEMORY = PUSH_TIME + METRICS_TIMES,
    PUSH_WORDS = PUSH_MEMORY + MEM_CATEGORIES
};
enum pull { PULL_VERSION, PULL_LIMIT, PULL_WORDS }; /* updates of these parameters; the step after which the worker stops */

/* ---- units ---- */

static size_t unit_bytes(const ls_store *s, int g, enum store_kind kind)
{
    return store_unit_at(s, g)->total * ls_dtype_bytes(store_unit_type(s, g, kind));
}

size_t async_sent(const struct step *s, size_t *calls)
{
    bool serves = s->ranks.rank == 0;
    size_t bytes = sizeof(double) * (serves ? PULL_WORDS : PUSH_WORDS), times = serves ? (size_t)s->ranks.size - 1 : 1;

    *calls = 0;
    if (s->layout.method != LS_METHOD_ASYNC || s->ranks.size == 1) return 0;
    for (int g = 0; g < store_units(s->store); g++) bytes += unit_bytes(s->store, g, serves ? STORE_VALUE : STORE_GRAD);
    *calls = times * (size_t)(1 + store_units(s->store));
    return times * bytes;
}

typedef ls_status move_fn(ls_comm *comm, void *data, size_t bytes, int peer);

static ls_status send_to(ls_comm *comm, void *data, size_t bytes, int peer) { return ls_send(comm, data, bytes, LS_U8, peer, NULL); }
static ls_status receive_from(ls_comm *comm, void *data, size_t bytes, int peer) { return ls_recv(comm, data, bytes, LS_U8, peer, NULL); }
static ls_status broadcast_of(ls_comm *comm, void *data, size_t bytes, int root)
{
    return ls_broadcast(comm, data, bytes, LS_U8, root, NULL);
}

static ls_status move_units(const struct trainer *t, enum store_kind kind, move_fn *move, int peer)
{
    const ls_store *s = t->step.store;

    for (int g = 0; g < store_units(s); g++) LS_TRY(move(t->ranks.comm, store_unit_data(s, g, kind, NULL), unit_bytes(s, g, kind), peer));
    return LS_OK;
}

/* ---- a worker ---- */

/* Ends the job with this thread's message: the other ranks may wait for this one. */
static ls_status async_fail(const struct trainer *t, ls_status st)
{
    char line[1024];

    snprintf(line, sizeof line, "%s", ls_errmsg());
    comm_fail(t->ranks.comm, st);
    return ls_fail(st, "%s", line);
}

static ls_status async_gradient(struct trainer *t, struct metrics *m)
{
    ls_comm_count comm[LS_COLLECTIVES];
    double began = base_now();
    size_t tokens;

    LS_TRY(samples_fetch(&t->step, &t->samples, t->state.samples));
    double fetched = base_now();
    trainer_read_comm(comm);
    ls_status st = step_gradients(&t->step, t->state.step, &m->loss, &tokens);
    if (st < 0) return async_fail(t, st);
    m->tokens = tokens;
    m->time[METRICS_DATA] = fetched - began;
    m->time[METRICS_COMPUTE] = base_now() - fetched;
    return LS_OK;
}

static ls_status async_exchange(struct trainer *t, const struct metrics *m, double pull[PULL_WORDS])
{
    double push[PUSH_WORDS] = {
        [PUSH_VERSION] = pull[PULL_VERSION], [PUSH_LOSS] = m->loss,          [PUSH_TOKENS] = (double)m->tokens,
        [PUSH_STOP] = stop_requested(),      [PUSH_SAVE] = stop_take_save(), [PUSH_PEAK] = (double)m->memory.total_peak
    };

    memcpy(push + PUSH_TIME, m->time, sizeof m->time);
    for (int c = 0; c < MEM_CATEGORIES; c++) push[PUSH_MEMORY + c] = (double)m->memory.peak[c];
    LS_TRY(ls_send(t->ranks.comm, push, PUSH_WORDS, LS_F64, 0, NULL));
    LS_TRY(move_units(t, STORE_GRAD, send_to, 0));
    LS_TRY(ls_recv(t->ranks.comm, pull, PULL_WORDS, LS_F64, 0, NULL));
    return move_units(t, STORE_VALUE, receive_from, 0);
}

static struct metrics async_metrics(const struct trainer *t, uint64_t step)
{
    return (struct metrics){
        .bubble = -1, .step = step, .lr = ls_schedule_lr(&t->schedule, step - 1), .grad_norm = NAN, .axis = { -1, -1, -1, -1, -1 }
    };
}

static ls_status async_work(struct trainer *t, uint64_t limit, struct metrics *m)
{
    double pull[PULL_WORDS] = { [PULL_VERSION] = 0, [PULL_LIMIT] = (double)limit };

    while (t->state.step < (uint64_t)pull[PULL_LIMIT]) {
        double began = base_now();

        mem_reset_peak();
        cost_begin(&t->cost);
        *m = async_metrics(t, t->state.step + 1);
        LS_TRY(async_gradient(t, m));
        mem_read(&m->memory);
        double sent = base_now();
        LS_TRY(async_exchange(t, m, pull));
        m->time[METRICS_EXPOSED] = base_now() - sent;
        t->state.step++;
        t->state.samples += t->step.global;
        m->step_seconds = base_now() - began;
        cost_end(&t->cost, m);
        LS_TRY(run_folder_put_own(&t->folder, m));
    }
    return LS_OK;
}

/* ---- the server ---- */

struct async_worker {
    uint64_t next; /* the step whose gradient comes next: the number of gradients received */
    double push[PUSH_WORDS];
    bool answered; /* it has received parameters, and computes */
};

/* The sums of a step that is not complete. */
struct async_sums {
    double loss, tokens, norm, stale, stale_most, time[METRICS_TIMES];
    int updates;
};

struct async_server {
    struct trainer *t;
    const struct trainer_watch *w;
    int n; /* workers; worker i is rank i + 1 */
    struct async_worker *worker;
    ls_work **words;                  /* [n] what is received next from each; NULL: nothing */
    uint64_t first, done, limit;      /* steps at the start, completed so far, and after which all workers stop */
    uint64_t version;                 /* updates since the start */
    int turn;                         /* the next worker, with parallel.async_turns */
    bool stops;                       /* the limit was lowered */
    int stop, save;                   /* the signal to exit by; a checkpoint is requested */
    double ended;                     /* base_now() when the last step was completed */
    struct async_sums sums[LEAD + 1]; /* sums by step */
    struct mem_stats memory;          /* the largest of any rank in the step */
    ls_comm_count comm[LS_COLLECTIVES];
};

static struct async_sums *sums_of(struct async_server *s, uint64_t step) { return &s->sums[step % (LEAD + 1)]; }

static ls_status async_expect(struct async_server *s, int i)
{
    return ls_recv(s->t->ranks.comm, s->worker[i].push, PUSH_WORDS, LS_F64, i + 1, &s->words[i]);
}

static ls_status async_answer(struct async_server *s, int i)
{
    double pull[PULL_WORDS] = { [PULL_VERSION] = (double)s->version, [PULL_LIMIT] = (double)s->limit };

    LS_TRY(ls_send(s->t->ranks.comm, pull, PULL_WORDS, LS_F64, i + 1, NULL));
    LS_TRY(move_units(s->t, STORE_VALUE, send_to, i + 1));
    s->worker[i].answered = true;
    return s->worker[i].next < s->limit ? async_expect(s, i) : LS_OK;
}

/* Lets no worker begin a step that no worker has begun yet. */
static void async_stop(struct async_server *s)
{
    uint64_t limit = s->done + 1;

    if (s->stops) return;
    s->stops = true;
    for (int i = 0; i < s->n; i++) limit = MAX(limit, s->worker[i].next + (s->worker[i].answered && s->worker[i].next < s->limit));
    s->limit = MIN(limit, s->limit);
}

static void async_note(struct async_server *s, const struct async_worker *from, double norm)
{
    struct async_sums *x = sums_of(s, from->next);
    double stale = (double)s->version - from->push[PUSH_VERSION];

    x->loss += from->push[PUSH_LOSS] * from->push[PUSH_TOKENS];
    x->tokens += from->push[PUSH_TOKENS];
    x->norm += norm;
    x->stale += stale;
    x->stale_most = fmax(x->stale_most, stale);
    x->updates++;
    for (int i = 0; i < METRICS_TIMES; i++) x->time[i] += from->push[PUSH_TIME + i];
    s->memory.total_peak = MAX(s->memory.total_peak, (size_t)from->push[PUSH_PEAK]);
    for (int c = 0; c < MEM_CATEGORIES; c++) s->memory.peak[c] = MAX(s->memory.peak[c], (size_t)from->push[PUSH_MEMORY + c]);
}

/* Updates with the gradient of worker i, whose words have arrived. */
static ls_status async_apply(struct async_server *s, int i)
{
    struct trainer *t = s->t;
    struct async_worker *from = &s->worker[i];
    uint64_t before = s->first * (uint64_t)s->n;
    double norm;

    LS_TRY(move_units(t, STORE_GRAD, receive_from, i + 1));
    LS_TRY(step_set(&t->step, ls_schedule_lr(&t->schedule, from->next), before + s->version + 1));
    ls_status st = step_update(&t->step, before + s->version + 1, &norm);
    if (st < 0) return st == LS_EINVAL ? async_fail(t, st) : st;
    async_note(s, from, norm);
    s->version++;
    from->next++;
    from->answered = false;
    s->stop = MAX(s->stop, MAX((int)from->push[PUSH_STOP], stop_requested()));
    if (from->push[PUSH_SAVE] != 0 || stop_take_save()) s->save = 1;
    if (s->stop || s->save) async_stop(s);
    return LS_OK;
}

/* Computes the figures of step s->done, whose gradients have all arrived; the next step begins. */
static void async_complete(struct async_server *s, struct metrics *m)
{
    struct async_sums *x = sums_of(s, s->done);
    struct trainer *t = s->t;
    struct mem_stats own;
    double now = base_now();

    *m = async_metrics(t, ++s->done);
    m->loss = x->loss / x->tokens;
    m->grad_norm = x->norm / x->updates;
    m->tokens = (uint64_t)x->tokens;
    m->updates = (uint64_t)x->updates;
    m->stale = x->stale / x->updates;
    m->stale_most = (uint64_t)x->stale_most;
    for (int i = 0; i < METRICS_TIMES; i++) m->time[i] = x->time[i] / x->updates;
    *x = (struct async_sums){ 0 };
    t->state.step = m->step;
    t->state.grad_norm = t->step.norm;
    t->state.samples += t->step.global;
    t->state.tokens += m->tokens;
    m->tokens_seen = t->state.tokens;
    double exposed = m->time[METRICS_EXPOSED];
    trainer_note_comm(m, s->comm);
    m->time[METRICS_EXPOSED] = exposed;
    mem_read(&own);
    m->memory = own;
    m->step_seconds = now - s->ended;
    m->save_seconds = t->save_seconds;
    cost_end(&t->cost, m);
    m->memory.total_peak = MAX(own.total_peak, s->memory.total_peak);
    for (int c = 0; c < MEM_CATEGORIES; c++) m->memory.peak[c] = MAX(own.peak[c], s->memory.peak[c]);
    trainer_note_step(t, m, now - s->ended);
    s->ended = now;
    cost_begin(&t->cost);
    trainer_read_comm(s->comm);
    mem_reset_peak();
}

static uint64_t async_slowest(const struct async_server *s)
{
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < s->n; i++) least = MIN(least, s->worker[i].next);
    return least;
}

/* The worker whose gradient is applied next. */
static int async_choose(struct async_server *s)
{
    if (!s->t->config->parallel.async_turns) return comm_wait_any(s->words, s->n);
    while (!s->words[s->turn % s->n]) s->turn++;
    int i = s->turn++ % s->n;
    return i;
}

/* Answers the workers that are not too far ahead. */
static ls_status async_answer_all(struct async_server *s)
{
    for (int i = 0; i < s->n; i++)
        if (!s->worker[i].answered && s->worker[i].next < s->done + LEAD) LS_TRY(async_answer(s, i));
    return LS_OK;
}

/* m: the figures of the last step, which is not recorded yet, because all ranks do so together. */
static ls_status async_serve(struct async_server *s, struct metrics *m)
{
    for (int i = 0; i < s->n; i++) LS_TRY(async_expect(s, i));
    while (s->done < s->limit) {
        int i = async_choose(s);

        LS_TRY(ls_work_wait(&s->words[i]));
        LS_TRY(async_apply(s, i));
        while (s->done < MIN(async_slowest(s), s->limit)) {
            async_complete(s, m);
            if (s->done < s->limit) LS_TRY(trainer_after_step(s->t, s->w, m, false));
        }
        LS_TRY(async_answer_all(s));
    }
    return LS_OK;
}

static ls_status async_server_run(struct trainer *t, const struct trainer_watch *w, uint64_t limit, struct metrics *m)
{
    int n = t->ranks.size - 1;
    struct async_server s = { .t = t, .w = w, .n = n, .first = t->state.step, .done = t->state.step, .limit = limit, .ended = base_now() };
    ls_status st = LS_ENOMEM;

    s.worker = mem_array(MEM_OTHER, (size_t)n, sizeof *s.worker);
    s.words = mem_array(MEM_OTHER, (size_t)n, sizeof *s.words);
    cost_begin(&t->cost);
    trainer_read_comm(s.comm);
    mem_reset_peak();
    for (int i = 0; s.worker && s.words && i < n; i++) {
        s.worker[i] = (struct async_worker){ .next = s.first, .answered = true };
        s.words[i] = NULL;
    }
    if (s.worker && s.words) st = async_serve(&s, m);
    t->stop = s.stop;
    t->save = s.save;
    for (int i = 0; s.words && i < n; i++) ls_work_wait(&s.words[i]); /* after a failure they have ended with it */
    mem_free(s.worker);
    mem_free(s.words);
    return st;
}

/* ---- all together ---- */

/* After the same step all ranks have the parameters and the state of rank 0. */
static ls_status async_join(struct trainer *t)
{
    double state[] = { (double)t->state.tokens, t->stop, t->save };

    LS_TRY(move_units(t, STORE_VALUE, broadcast_of, 0));
    LS_TRY(ls_broadcast(t->ranks.comm, state, COUNT_OF(state), LS_F64, 0, NULL));
    t->state.tokens = (uint64_t)state[0];
    t->stop = (int)state[1];
    t->save = state[2] > 0;
    return LS_OK;
}

ls_status async_advance(struct trainer *t, const struct trainer_watch *w, uint64_t steps)
{
    uint64_t limit = t->state.step + 1;
    struct metrics m;

    t->save = 0;
    while (limit < steps && !trainer_is_due(t, limit)) limit++;
    if (t->ranks.rank == 0)
        LS_TRY(async_server_run(t, w, limit, &m));
    else
        LS_TRY(async_work(t, limit, &m));
    LS_TRY(cost_settle(&t->cost, t->step.store));
    LS_TRY(async_join(t));
    return trainer_after_step(t, w, &m, t->state.step == steps);
}
