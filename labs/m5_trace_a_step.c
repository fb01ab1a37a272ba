/* M5 - one training step of tp x pp x dp, narrated rank by rank: each replica takes its samples, each stage computes with all-reduces over
 * tp, activations and their gradients go between stages, gradients are summed over the replicas, and every rank updates.
 *
 * A GPT-2 under 1F1B and ZeRO-1, with the embedding as output layer too, in bf16. Each rank's programs are compiled, not run, and their
 * collectives are listed in the order in which they run: what, how often, how large, with whom, what for. Messages between stages are
 * those of the schedule. Corrected: a step has more kinds of communication than the three that people name. The embedding is sharded over
 * tp, so its rows and the loss need tp as well; the first and the last stage sum the gradient of the embedding that they share; clipping
 * needs the norm over all ranks; ZeRO-1 gathers the updated weights. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { RANKS_SHOWN = 8, KINDS = 9 };

/* What a collective is for. */
enum kind { ROWS, PARTIAL, STATISTICS, INPUT_GRADIENTS, SENDS, GRADIENT_SUMS, SHARED, NORM, WEIGHTS };
static const char *const kind_text[KINDS] = {
    "rows of the embedding that this rank's part of the vocabulary does not have",
    "partial sums of row-parallel matmuls",
    "statistics of logits whose vocabulary is sharded",
    "partial input gradients of column-parallel matmuls",
    "activations to the next stage and gradients to the one before",
    "gradients, summed over the replicas, each keeps its shard",
    "gradient of the embedding that the first and the last stage share",
    "norm of all gradients, for clipping",
    "updated weights of the other replicas' shards",
};

static int T, P, K, M, ranks;

struct trace {
    struct net net; ls_comm *world; ls_mesh *mesh; ls_store *store; ls_pipeline_schedule schedule; ls_pipeline *pipeline;
    ls_program *update;
};

static struct net trace_net(void)
{
    size_t width = (size_t)lab_size("width");
    struct net n = net_gpt2((size_t)lab_size("layers"), width / 8, (size_t)lab_size("seq-len"));

    n.model.heads = width >= 1024 ? width / 128 : width / 8;
    n.model.tied = 1;
    n.model.vocab = 512;
    n.type = LS_BF16;
    n.samples = M * K;
    n.shape.tp = T;
    n.shape.pp = P;
    n.shape.dp = K;
    n.data.zero = 1;
    n.optimizer.clip = 1;
    return n;
}

static ls_status trace_build(void *ctx, ls_program *p, const ls_stage *stage)
{
    struct trace *t = ctx;
    ls_partition_options o = t->net.options;
    size_t size[2] = { 1, t->net.time };
    ls_value x = ls_input(p, "x", LS_I32, 2, size), y = ls_input(p, "y", LS_I32, 2, size),
             tokens = ls_input(p, "tokens", LS_F32, 1, (size_t[]){ 1 });

    ls_backward(p, ls_output(p, "loss", ls_model_loss(p, &t->net.model, x, y, tokens, LS_NONE)));
    o.stage = *stage;
    LS_TRY(ls_partition(p, t->mesh, &t->net.model, &o));
    return ls_data_parallel_mesh(p, t->mesh, &t->net.data);
}

/* The program as that rank would compile it. */
static void trace_open(int rank, struct trace *t)
{
    ls_pipeline_options o = { .schedule = &t->schedule, .build = trace_build, .ctx = t, .compile = LS_COMPILE_DEFAULTS };
    ls_store_options so = { "cpu", LS_BF16, 1, 1, 0 };
    ls_compile_options plan = { .every = 1, .plan_only = 1 };

    *t = (struct trace){ .net = trace_net() };
    o.compile.plan_only = 1;
    TRY(ls_comm_open("plan:", rank, ranks, &t->world));
    TRY(ls_mesh_open(t->world, &t->net.shape, &t->mesh));
    TRY(ls_store_new(&so, &t->store));
    TRY(ls_pipeline_schedule_make("1f1b", P, 1, M, &t->schedule));
    TRY(ls_pipeline_open(t->store, t->mesh, &o, &t->pipeline));
    TRY(ls_program_new(t->store, &t->update));
    TRY(ls_optimizer_append(t->update, &t->net.optimizer));
    TRY(ls_data_parallel_mesh(t->update, t->mesh, &t->net.data));
    TRY(ls_program_compile(t->update, &plan));
}

static void trace_close(struct trace *t)
{
    ls_program_release(&t->update);
    ls_pipeline_close(&t->pipeline);
    ls_pipeline_schedule_free(&t->schedule);
    ls_store_release(&t->store);
    ls_mesh_close(&t->mesh);
    ls_comm_close(&t->world);
}

/* ---- one rank's collectives ---- */

/* Collectives of one kind. bytes: bytes of all their buffers; times: number per step; in_layers: how many belong to layers. */
struct line { enum kind kind; const char *op; int segment, calls, in_layers, times, ranks; double bytes, sent; };
enum { LINES = 2 * KINDS };
struct account { struct line line[LINES]; int lines; double sent[KINDS], planned, messages, message_bytes; };

static enum kind trace_kind(const ls_instruction *i)
{
    if (i->segment == LS_OPTIMIZER_STEP && i->elements == 1) return NORM;
    if (i->axis == LS_AXIS_PP) return SHARED;
    if (i->segment == LS_OPTIMIZER_STEP) return WEIGHTS;
    if (i->axis == LS_AXIS_DP) return GRADIENT_SUMS;
    if (i->segment == LS_BACKWARD && i->collective == LS_COLLECTIVE_ALL_REDUCE) return INPUT_GRADIENTS;
    if (i->collective != LS_COLLECTIVE_ALL_REDUCE) return STATISTICS;
    return i->block[0] ? PARTIAL : ROWS;
}

/* Bytes that a rank sends in one: 2 (n-1)/n of an all-reduce's buffer, half of that for its two halves. */
static double trace_sent(const ls_instruction *i, double bytes)
{
    return (i->collective == LS_COLLECTIVE_ALL_REDUCE ? 2 : 1) * (i->ranks - 1.0) / i->ranks * bytes;
}

static void trace_add(struct account *t, const ls_instruction *i)
{
    double bytes = (double)i->elements * (double)ls_dtype_bytes(i->in[0].dtype);
    struct line l = { trace_kind(i), i->op, i->segment, 1, i->block[0] != '\0', 1, i->ranks, bytes, trace_sent(i, bytes) }, *last;

    if (i->segment != LS_OPTIMIZER_STEP && i->when == LS_WHEN_ALWAYS) l.times = M;
    t->sent[l.kind] += l.sent * l.times;
    for (int k = 0; k < t->lines; k++) {
        last = &t->line[k];
        if (last->kind != l.kind || last->segment != l.segment || strcmp(last->op, l.op) != 0) continue;
        last->calls++;
        last->bytes += l.bytes;
        last->in_layers += l.in_layers;
        return;
    }
    if (t->lines < LINES) t->line[t->lines++] = l;
}

static void trace_program(struct account *t, const ls_program *p)
{
    struct instructions l = instructions_of(p);

    for (int k = 0; k < l.n; k++)
        if (l.at[k].exchange == LS_EXCHANGE_START) trace_add(t, &l.at[k]);
    free(l.at);
}

static struct account trace_account(struct trace *t)
{
    ls_program *p = ls_pipeline_program(t->pipeline, 0);
    struct account out = { 0 };
    size_t messages;

    trace_program(&out, p);
    trace_program(&out, t->update);
    out.message_bytes = (double)ls_pipeline_bytes(t->pipeline, &messages);
    out.messages = (double)messages;
    out.sent[SENDS] = out.message_bytes;
    for (int c = 0; c < LS_COLLECTIVES; c++) {
        double always = (double)ls_program_comm_bytes(p, LS_FORWARD | LS_BACKWARD, c, NULL);

        out.planned += (M - 1) * always + (double)ls_program_comm_bytes(p, LS_FORWARD | LS_BACKWARD | LS_LAST, c, NULL) +
                       (double)ls_program_comm_bytes(t->update, WHOLE_STEP, c, NULL);
    }
    return out;
}

/* ---- in words ---- */

/* The ranks of a group, of which this rank is one: with their numbers if they are few. */
static void trace_group(char *out, size_t room, const struct line *l, int rank)
{
    int stride = l->kind == GRADIENT_SUMS || l->kind == WEIGHTS ? T : l->kind == SHARED ? (P - 1) * T * K : 1,
        first = stride == 1 ? rank / T * T : stride == T ? rank / (T * K) * T * K + rank % T : rank % (T * K), n = 0;

    snprintf(out, room, l->kind == NORM ? "all ranks" : "%d ranks", l->ranks);
    if (l->kind == NORM || l->ranks > 4) return;
    n = snprintf(out, room, "ranks");
    for (int k = 0; k < l->ranks; k++) n += snprintf(out + n, room - (size_t)n, " %d", first + k * stride);
}

static void trace_say_lines(const struct account *t, int segment, int rank)
{
    char group[80];

    for (int k = 0; k < t->lines; k++) {
        const struct line *l = &t->line[k];

        if (l->segment != segment) continue;
        trace_group(group, sizeof group, l, rank);
        lab_say("            %3d x %-14s %9.1f KB, %s%s: %s\n", l->calls, l->op, l->bytes / 1e3, group,
                segment != LS_OPTIMIZER_STEP && l->times == 1 && M > 1 ? ", after the last micro-batch" : "", kind_text[l->kind]);
    }
}

static void trace_say(struct trace *t, const struct account *account, int rank)
{
    int stage = ls_mesh_index(t->mesh, LS_GROUP_PP), far = T * K;
    ls_stage s = ls_pipeline_stage_of(t->pipeline, 0);
    double kb = account->message_bytes / fmax(1, account->messages) / 1e3;

    lab_say("rank %d: stage %d, replica %d, part %d of the matrices: 1/%d of layers %d to %d\n", rank, stage,
            ls_mesh_index(t->mesh, LS_GROUP_DP), ls_mesh_index(t->mesh, LS_GROUP_TP), T, s.begin, s.end - 1);
    if (stage == 0) lab_say("   forward   takes the next of its %d micro-batches, of 1 sample\n", M);
    if (stage > 0) lab_say("   forward   receives a micro-batch's activations from rank %d, %.1f KB\n", rank - far, kb);
    trace_say_lines(account, LS_FORWARD, rank);
    if (stage < P - 1) lab_say("             sends its activations to rank %d, %.1f KB\n", rank + far, kb);
    if (stage < P - 1) lab_say("   backward  receives their gradient from rank %d\n", rank + far);
    if (stage == P - 1) lab_say("   backward  begins at the loss\n");
    trace_say_lines(account, LS_BACKWARD, rank);
    if (stage > 0) lab_say("             sends the gradient of its input to rank %d\n", rank - far);
    lab_say("   update    once, after %d forwards and %d backwards\n", M, M);
    trace_say_lines(account, LS_OPTIMIZER_STEP, rank);
    lab_say("\n");
}

/* ---- rows ---- */

static int trace_count(const struct account *t, enum kind kind, int in_layers)
{
    int n = 0;

    for (int k = 0; k < t->lines; k++)
        if (t->line[k].kind == kind) n += in_layers ? t->line[k].in_layers : t->line[k].calls;
    return n;
}

static double kinds_of(const struct account *t, int stages)
{
    int n = 0;

    for (int kind = 0; kind < KINDS; kind++) {
        double bytes = 0;

        for (int k = 0; k < stages; k++) bytes += t[k].sent[kind];
        n += bytes > 0;
    }
    return n;
}

/* t: traces of the first rank of each stage. parameters: number on the rank of stage `at`. */
static void trace_rows(const struct account *t, int at, double parameters)
{
    int L = (int)lab_size("layers");
    double message = 2.0 * (double)lab_size("seq-len") * (double)lab_size("width"), each = 2.0 * (T - 1) / T * message;
    double tensor = t[at].sent[ROWS] + t[at].sent[PARTIAL] + t[at].sent[INPUT_GRADIENTS], off = 0;
    double data = t[at].sent[GRADIENT_SUMS] + t[at].sent[WEIGHTS];
    char what[100];

    snprintf(what, sizeof what, "L = %d, pp %d: all-reduces in a stage's layers, forward of a micro-batch", L, P);
    lab_equal(what, 2.0 * L / P, trace_count(&t[at], PARTIAL, 1), 0);
    snprintf(what, sizeof what, "L = %d, pp %d: all-reduces in a stage's layers, backward of a micro-batch", L, P);
    lab_equal(what, 2.0 * L / P, trace_count(&t[at], INPUT_GRADIENTS, 1), 0);
    snprintf(what, sizeof what, "M = %d: messages of a first stage's rank to the next stage", M);
    lab_equal(what, M, t[0].messages, 0);
    lab_equal("        bytes of one, b s d of 2 bytes", message, t[0].message_bytes / t[0].messages, 0);
    lab_equal("gradient sums over dp: once in a step, of all parameters of the rank", 1,
              t[at].sent[GRADIENT_SUMS] / (4 * parameters * (K - 1) / K), 1e-6);
    lab_corrected("kinds of communication in a step", '=', 3, KINDS, kinds_of(t, P), 0,
                  "why: also the sharded embedding, the loss, the shared embedding's gradient, the norm, updated weights");
    snprintf(what, sizeof what, "sent over tp by a rank of stage %d in a step [MB]", at);
    lab_check(what, (4.0 * L / P + (at == 0)) * M * each / 1e6, tensor / 1e6, 1e-9);
    snprintf(what, sizeof what, "sent over dp by a rank of stage %d in a step [MB]", at);
    lab_check(what, 6.0 * parameters * (K - 1) / K / 1e6, data / 1e6, 1e-6);
    snprintf(what, sizeof what, "sent over pp by a rank of stage %d in a step [MB]", at);
    lab_check(what, (at == 0 ? 1 : 2) * M * message / 1e6, t[at].message_bytes / 1e6, 1e-9);
    for (int k = 0; k < P; k++) {
        double sum = 0;

        for (int kind = 0; kind < KINDS; kind++) sum += kind == SENDS ? 0 : t[k].sent[kind];
        off = fmax(off, fabs(sum - t[k].planned));
    }
    lab_check_below("these collectives, off from what the programs send but for the norm's one number [bytes]", 9 * log2(ranks), off);
}

LAB(m5_trace_a_step, "one step, rank by rank", { "tp", "tensor-parallel ranks", 2, 2, 16 }, { "pp", "pipeline stages", 2, 2, 16 },
    { "dp", "data-parallel ranks", 2, 2, 64 }, { "layers", "layers of the model, a multiple of pp", 4, 2, 128 },
    { "micro-batches", "micro-batches of a replica and step, of 1 sample", 4, 1, 64 },
    { "width", "width of the model, a multiple of 128", 128, 128, 16384 }, { "seq-len", "tokens of a sample", 32, 16, 8192 })
{
    struct account *account = calloc((size_t)lab_size("pp"), sizeof *account);
    double parameters = 0;

    if (lab_size("layers") % lab_size("pp") || lab_size("width") % 128) {
        fprintf(stderr, "lab m5_trace_a_step: %ld layers are not divisible by %ld stages, or width %ld by 128\n", lab_size("layers"),
                lab_size("pp"), lab_size("width"));
        exit(1);
    }
    T = (int)lab_size("tp");
    P = (int)lab_size("pp");
    K = (int)lab_size("dp");
    M = (int)lab_size("micro-batches");
    ranks = T * P * K;
    if (!account) exit(1);
    lab_say("tp %d x pp %d x dp %d = %d ranks; %d layers of width %ld, %d micro-batches of 1 x %ld tokens a replica\n\n", T, P, K, ranks,
            (int)lab_size("layers"), lab_size("width"), M, lab_size("seq-len"));
    for (int r = 0; r < ranks; r++) {
        int stage = r / (T * K);
        struct trace t;

        if (ranks > RANKS_SHOWN && r % (T * K)) continue;  /* one of each stage */
        trace_open(r, &t);
        struct account x = trace_account(&t);
        trace_say(&t, &x, r);
        if (r % (T * K) == 0) account[stage] = x;
        if (r % (T * K) == 0 && stage == (P > 2)) parameters = (double)ls_program_cost(t.update).parameters / 2;
        trace_close(&t);
    }
    lab_open("M5");
    trace_rows(account, P > 2, parameters);
    free(account);
    return lab_close();
}
