/* trace.c - a timeline of every rank.
 *
 * The file has Chrome's trace event format ("JSON object format"): traceEvents of phase X (complete) have ts and dur in microseconds, the
 * rank as pid and the row as tid; phase M names processes and rows. A message is drawn as an arrow: an event of phase s at its send and one
 * of phase f with the same id at its receive.
 */
#include "train/run/trace.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "ir/program.h"

struct event {
    const ls_program *program;
    const struct instruction *instruction; /* NULL: an operation of a comm */
    ls_collective op;
    uint64_t bytes, arrow; /* arrow: id of a message; 0: none */
    char group[16];        /* name of the comm */
    double began, ended;
};

struct trace {
    struct step *step;    /* borrowed */
    pthread_mutex_t lock; /* the progress thread adds events of comms */
    struct event *event;  /* [TRACE_MOST] */
    size_t count, missed;
    double zero, shift; /* time 0 of the trace; what is added to this machine's clock to match rank 0's */
};

static void trace_add(struct trace *t, struct event e)
{
    pthread_mutex_lock(&t->lock);
    if (t->count < TRACE_MOST)
        t->event[t->count++] = e;
    else
        t->missed++;
    pthread_mutex_unlock(&t->lock);
}

static void on_instruction(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended)
{
    trace_add(ctx, (struct event){ .program = p, .instruction = i, .began = began, .ended = ended });
}

/* The id of a message's arrow: the same at its send and its receive, and different from that of any other message. */
static uint64_t arrow_of(const struct comm_seen *e)
{
    bool send = e->op == LS_COLLECTIVE_SEND;
    uint64_t part[4] = { e->group, e->sequence, (uint64_t)(send ? e->rank : e->peer), (uint64_t)(send ? e->peer : e->rank) }, id = 0;

    for (int i = 0; i < 4; i++) {
        id = (id ^ part[i]) * 0x9e3779b97f4a7c15u;
        id ^= id >> 29;
    }
    return id >> 16 | 1; /* readers keep ids in doubles */
}

static void on_comm(void *ctx, const struct comm_seen *e)
{
    struct event event = { .op = e->op, .bytes = e->bytes, .arrow = e->peer < 0 ? 0 : arrow_of(e), .began = e->started, .ended = e->ended };

    snprintf(event.group, sizeof event.group, "%s", e->name);
    trace_add(ctx, event);
}

/* Ranks of one machine share a clock. The clock of another machine is set to rank 0's, with an error of a message's delay. */
static ls_status set_clock(struct trace *t, const struct ranks *r)
{
    double zero;

    if (r->comm) LS_TRY(ls_barrier(r->comm));
    double now = zero = base_now();
    if (r->comm) LS_TRY(ls_broadcast(r->comm, &zero, 1, LS_F64, 0, NULL));
    t->zero = zero;
    t->shift = now - zero < -1 || now - zero > 1 ? zero - now : 0;
    return LS_OK;
}

static void watch_programs(const struct trace *t, program_watch_fn *fn, void *ctx)
{
    ls_program *p;

    for (int i = 0; (p = step_program(t->step, i)); i++) program_watch(p, fn, ctx);
}

size_t trace_bytes(void) { return sizeof(struct trace) + TRACE_MOST * sizeof(struct event); }

ls_status trace_open(struct step *s, struct trace **out)
{
    struct trace *t = mem_zalloc(MEM_OTHER, sizeof *t);
    ls_status st = t ? LS_OK : LS_ENOMEM;

    if (st == LS_OK) pthread_mutex_init(&t->lock, NULL);
    if (st == LS_OK) t->event = mem_array(MEM_OTHER, TRACE_MOST, sizeof *t->event);
    if (st == LS_OK && !t->event) st = LS_ENOMEM;
    if (st == LS_OK) st = set_clock(t, &s->ranks);
    if (st < 0) {
        trace_close(&t);
        return st;
    }
    t->step = s;
    watch_programs(t, on_instruction, t);
    comm_watch(on_comm, t);
    *out = t;
    return LS_OK;
}

void trace_forget(struct trace *t)
{
    pthread_mutex_lock(&t->lock);
    t->count = t->missed = 0;
    pthread_mutex_unlock(&t->lock);
}

void trace_close(struct trace **tp)
{
    struct trace *t = *tp;

    if (!t) return;
    comm_watch(NULL, NULL);
    if (t->step) watch_programs(t, NULL, NULL);
    pthread_mutex_destroy(&t->lock);
    mem_free(t->event);
    mem_free(t);
    *tp = NULL;
}

/* ---- as text ---- */

static void name_of(const struct event *e, char *out, size_t room)
{
    const struct instruction *i = e->instruction;

    if (!i) {
        snprintf(out, room, "%s %s", ls_collective_name(e->op), e->group);
        return;
    }
    int v = i->nout && i->out[0].id ? i->out[0].id : i->nin ? i->in[0].id : 0;
    snprintf(out, room, "%s %s", program_op_name(i->op), v ? e->program->values[v].name : "");
}

static void put_event(const struct trace *t, const struct event *e, int rank, struct json_out *j)
{
    char name[160];

    name_of(e, name, sizeof name);
    json_begin_object(j, NULL);
    json_put_string(j, "name", name);
    json_put_string(j, "cat", e->instruction ? phase_name(e->instruction->phase) : "communication");
    json_put_string(j, "ph", "X");
    json_put_real(j, "ts", 1e6 * (e->began + t->shift - t->zero));
    json_put_real(j, "dur", 1e6 * (e->ended - e->began));
    json_put_int(j, "pid", rank);
    json_put_int(j, "tid", e->instruction ? TRACE_ROW_PROGRAM : TRACE_ROW_COMMUNICATION);
    if (!e->instruction) {
        json_begin_object(j, "args");
        json_put_int(j, "bytes", (int64_t)e->bytes);
        json_end_object(j);
    }
    json_end_object(j);
}

/* Puts one end of an arrow, which leads from the beginning of the send to the end of the receive. */
static void put_arrow(const struct trace *t, const struct event *e, int rank, struct json_out *j)
{
    bool send = e->op == LS_COLLECTIVE_SEND;

    json_begin_object(j, NULL);
    json_put_string(j, "name", "message");
    json_put_string(j, "cat", "message");
    json_put_string(j, "ph", send ? "s" : "f");
    if (!send) json_put_string(j, "bp", "e");
    json_put_int(j, "id", (int64_t)e->arrow);
    json_put_real(j, "ts", 1e6 * ((send ? e->began : e->ended) + t->shift - t->zero));
    json_put_int(j, "pid", rank);
    json_put_int(j, "tid", TRACE_ROW_COMMUNICATION);
    json_end_object(j);
}

/* kind: "process_name" or "thread_name". */
static void put_name(struct json_out *j, const char *kind, int rank, int row, const char *name)
{
    json_begin_object(j, NULL);
    json_put_string(j, "name", kind);
    json_put_string(j, "ph", "M");
    json_put_int(j, "pid", rank);
    json_put_int(j, "tid", row);
    json_begin_object(j, "args");
    json_put_string(j, "name", name);
    json_end_object(j);
    json_end_object(j);
}

void trace_put_names(struct json_out *j, int rank, const char *name)
{
    put_name(j, "process_name", rank, TRACE_ROW_PROGRAM, name);
    put_name(j, "thread_name", rank, TRACE_ROW_PROGRAM, "program");
    put_name(j, "thread_name", rank, TRACE_ROW_COMMUNICATION, "communication");
}

/* This rank's events as a JSON array. */
static ls_status put_all(struct trace *t, int rank, struct json_out *j)
{
    char name[32];

    snprintf(name, sizeof name, "rank %d", rank);
    json_begin_array(j, NULL);
    trace_put_names(j, rank, name);
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->count; i++) {
        put_event(t, &t->event[i], rank, j);
        if (t->event[i].arrow) put_arrow(t, &t->event[i], rank, j);
    }
    pthread_mutex_unlock(&t->lock);
    json_end_array(j);
    if (t->missed) log_line(LOG_WARN, "the trace ends after %d events; %zu came later", TRACE_MOST, t->missed);
    return json_out_status(j);
}

/* ---- all ranks in one file ---- */

static ls_status trace_put_rank(file_writer *w, int rank, const char *array, size_t bytes)
{
    if (rank > 0) LS_TRY(file_writer_put(w, ",\n", 2));
    return file_writer_put(w, array + 1, bytes - 2); /* without the brackets */
}

/* Rank 0 receives the arrays one after another. It reports a disk error after the last one, so that no rank is left waiting. */
static ls_status take_rank(const struct ranks *r, file_writer *w, int from)
{
    int64_t bytes;

    LS_TRY(ls_recv(r->comm, &bytes, 1, LS_I64, from, NULL));
    char *array = mem_alloc(MEM_OTHER, (size_t)bytes);
    if (!array) return LS_ENOMEM;
    ls_status st = ls_recv(r->comm, array, (size_t)bytes, LS_U8, from, NULL);
    if (st == LS_OK && w) st = trace_put_rank(w, from, array, (size_t)bytes);
    mem_free(array);
    return st;
}

static ls_status trace_give(const struct ranks *r, const struct json_out *j)
{
    int64_t bytes = (int64_t)j->bytes;

    LS_TRY(ls_send(r->comm, &bytes, 1, LS_I64, 0, NULL));
    return ls_send(r->comm, j->text, j->bytes, LS_U8, 0, NULL);
}

static char *trace_path(const char *folder, uint64_t first)
{
    return first ? file_path("%s/trace_step_%08" PRIu64 ".json", folder, first) : file_path("%s/trace.json", folder);
}

/* Frees path; NULL means that there was no memory for it. */
static ls_status trace_gather(const struct ranks *r, const struct json_out *j, char *path)
{
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", tail[] = "\n]}\n";
    file_writer *w = NULL;
    ls_status st = path ? file_writer_open(path, &w) : LS_ENOMEM;

    if (st == LS_OK) st = file_writer_put(w, head, sizeof head - 1);
    if (st == LS_OK) st = trace_put_rank(w, 0, j->text, j->bytes);
    for (int from = 1; from < r->size; from++) {
        ls_status took = take_rank(r, st == LS_OK ? w : NULL, from);

        if (st == LS_OK) st = took;
    }
    if (st == LS_OK) st = file_writer_put(w, tail, sizeof tail - 1);
    if (st == LS_OK) st = file_writer_publish(&w);
    file_writer_abandon(&w);
    mem_free(path);
    return st;
}

ls_status trace_write(struct trace *t, const struct ranks *ranks, const char *folder, uint64_t first)
{
    struct json_out j = { 0 };
    ls_status st = put_all(t, ranks->rank, &j);

    if (st == LS_OK) st = ranks->rank == 0 ? trace_gather(ranks, &j, trace_path(folder, first)) : trace_give(ranks, &j);
    json_out_free(&j);
    return st;
}
