/* F8 - a bad step is replayed from the checkpoint before it. If the same samples give the same bits again, the run is deterministic and
 * the cause is in what the checkpoint and the samples hold; if the spike then follows a sample into another batch, the cause is that
 * sample; if the spike does not come back at all, it was the machine.
 *
 * --ranks ranks train a small Llama, save, and take one more step, once undisturbed and twice bad: one sample has wrong targets, or a bit
 * of one weight of the last rank flips. Then other processes load the checkpoint and replay that step with the same samples, with those of
 * the next step, and with the bad sample among those. What is compared are the bits of all weights. */
#include "lab_command.h"
#include "lab_train.h"
#include "lockstep/checkpoint.h"

enum { BEFORE = 120, EACH = 4, RANKS_MOST = 8, REPLAYS = 3, NONE = -1, BAD_SAMPLE = 1, FLIPPED = 26 };

/* How a step is taken: with the samples of which step, which of them has wrong targets, and whether the bit flips. */
struct kind {
    int samples_of, bad_sample, flips;
};

enum { UNDISTURBED, POISONED, BROKEN, RUNS };
static const struct kind run_kind[RUNS] = { { BEFORE, NONE, 0 }, { BEFORE, BAD_SAMPLE, 0 }, { BEFORE, NONE, 1 } };

/* Replays: the poisoned step three times, and others. AFTER_FLIP: the step in which a bit flipped. WEIGHTS_ALONE: without the moments. */
enum { WITHOUT_SAMPLE = REPLAYS, NEXT_SAMPLES, MOVED_SAMPLE, AFTER_FLIP, WEIGHTS_ALONE, KINDS };
static const struct kind replay_kind[KINDS] = {
    { BEFORE, BAD_SAMPLE, 0 }, { BEFORE, BAD_SAMPLE, 0 },     { BEFORE, BAD_SAMPLE, 0 }, { BEFORE, NONE, 0 },
    { BEFORE + 1, NONE, 0 },   { BEFORE + 1, BAD_SAMPLE, 0 }, { BEFORE, NONE, 0 },       { BEFORE, BAD_SAMPLE, 0 },
};

struct step_result {
    double norm;   /* norm of the gradient over all ranks */
    uint64_t hash; /* of this rank's weights after the step */
};
struct replay {
    char root[COMMAND_PATH];
    struct step_result run[RUNS][RANKS_MOST], again[KINDS][RANKS_MOST];
};

/* ---- a step ---- */

static void replay_open(ls_comm *comm, int n, struct training *t)
{
    struct job j = job_of(2, 32);

    j.samples = EACH * n;
    training_open(&j, comm, 0, t);
}

/* The samples of step `number`, of which one has targets that contradict the rule of all others. */
static void step_samples(struct training *t, int number, int bad_sample)
{
    int32_t x[EACH * TIME], y[EACH * TIME];
    float tokens = (float)(t->job.samples * TIME);

    for (int i = 0; i < EACH; i++) {
        unsigned sample = (unsigned)(t->rank * EACH + i), token = mixed((unsigned)number, sample, 0) % VOCAB;

        for (int k = 0; k < TIME; k++) {
            x[i * TIME + k] = (int32_t)token;
            token = (5 * token + 7) % VOCAB;
            y[i * TIME + k] = (int32_t)(bad_sample == (int)sample ? (token + VOCAB / 2) % VOCAB : token);
        }
    }
    TRY(ls_program_write(t->program, "x", x, LS_I32, EACH * TIME));
    TRY(ls_program_write(t->program, "y", y, LS_I32, EACH * TIME));
    TRY(ls_program_write(t->program, "tokens", &tokens, LS_F32, 1));
}

/* Flips an exponent bit of the first weight that it multiplies by 256, to a value between 1 and 2. */
static void flip_a_bit(struct training *t)
{
    int found = ls_store_find(t->store, "model.layers.0.mlp.down_proj.weight");
    size_t i = (size_t)found, n = parameter_count(t->store, i), k = 0;
    float *w = malloc(n * sizeof *w);
    uint32_t bits;

    if (!w || found < 0) exit(1);
    TRY(ls_store_read(t->store, i, "parameter", w, LS_F32, n));
    while (k < n && (fabsf(w[k]) < 1.0f / 256 || fabsf(w[k]) >= 2.0f / 256)) k++;
    if (k == n) exit(1);
    memcpy(&bits, &w[k], sizeof bits);
    bits ^= 1u << FLIPPED;
    memcpy(&w[k], &bits, sizeof bits);
    TRY(ls_store_set(t->store, i, w, LS_F32, n));
    free(w);
}

static struct step_result f8_step_of(struct training *t, int step, const struct kind *k)
{
    if (k->flips && t->rank == t->n - 1) flip_a_bit(t);
    ls_store_zero_grad(t->store);
    step_samples(t, k->samples_of, k->bad_sample);
    TRY(ls_program_run(t->program, LS_FORWARD | LS_BACKWARD | LS_LAST));
    training_update(t, step);
    return (struct step_result){ ls_optimizer_norm(t->program), training_hash(t) };
}

/* ---- the runs, and the replays in other processes ---- */

static void run_rank(ls_comm *comm, int rank, int n, void *shared)
{
    struct replay *p = shared;
    ls_train_state state = { .step = BEFORE, .samples = (uint64_t)(BEFORE * EACH * n), .seed = 1, .optimizer = "adamw", .compute = "f32" };

    for (int r = 0; r < RUNS; r++) {
        struct training t;

        replay_open(comm, n, &t);
        for (int s = 0; s < BEFORE; s++) f8_step_of(&t, s, &(struct kind){ s, NONE, 0 });
        if (r == UNDISTURBED) TRY(ls_checkpoint_save_ranks(comm, p->root, t.store, &t.job.model, &state, NULL));
        p->run[r][rank] = f8_step_of(&t, BEFORE, &run_kind[r]);
        training_close(&t);
    }
}

static void replay_rank(ls_comm *comm, int rank, int n, void *shared)
{
    struct replay *p = shared;
    char *path;

    TRY(ls_checkpoint_latest(p->root, &path));
    for (int k = 0; k < KINDS; k++) {
        struct training t;
        ls_train_state state;

        replay_open(comm, n, &t);
        TRY(ls_checkpoint_load(path, t.store, k == WEIGHTS_ALONE ? 0 : LS_LOAD_OPTIMIZER, &state));
        p->again[k][rank] = f8_step_of(&t, (int)state.step, &replay_kind[k]);
        training_close(&t);
    }
    ls_free(path);
}

static int ranks_that_differ(const struct step_result *a, const struct step_result *b, int n)
{
    int count = 0;

    for (int r = 0; r < n; r++) count += a[r].hash != b[r].hash;
    return count;
}

/* Ranks whose weights are not those of rank 0 after the same step. */
static int replicas_that_differ(const struct step_result *a, int n)
{
    int count = 0;

    for (int r = 1; r < n; r++) count += a[r].hash != a[0].hash;
    return count;
}

static void say_step(const char *what, const struct step_result *s)
{
    lab_say("  %-52s %10.4f   %016llx\n", what, s->norm, (unsigned long long)s->hash);
}

LAB(f8_replay, "a bad step, replayed", { "ranks", "ranks of the run", 2, 2, RANKS_MOST })
{
    struct replay *p = lab_shared(sizeof *p);
    int n = (int)lab_size("ranks"), differ = 0, norms = 0;

    folder_new(p->root);
    lab_ranks(n, run_rank, p);
    lab_ranks(n, replay_rank, p); /* in new processes */
    folder_remove(p->root);
    struct step_result *usual = p->run[UNDISTURBED], *poisoned = p->run[POISONED], *broken = p->run[BROKEN];
    struct step_result *clean = p->again[WITHOUT_SAMPLE], *next = p->again[NEXT_SAMPLES], *moved = p->again[MOVED_SAMPLE],
                       *after_flip = p->again[AFTER_FLIP];
    for (int k = 0; k < REPLAYS; k++) {
        differ += ranks_that_differ(p->again[k], poisoned, n) > 0;
        norms += p->again[k][0].norm == poisoned[0].norm;
    }
    lab_say("step %d of %d ranks: gradient norm, and a hash of rank 0's weights after it\n", BEFORE, n);
    say_step("undisturbed", usual);
    say_step("one sample has wrong targets", poisoned);
    say_step("replayed", p->again[0]);
    say_step("replayed without that sample's wrong targets", clean);
    say_step("replayed with the next step's samples", next);
    say_step("replayed with those, and the wrong targets among them", moved);
    say_step("replayed from the weights alone", p->again[WEIGHTS_ALONE]);
    say_step("a bit of a weight of the last rank flips", broken);
    say_step("replayed", after_flip);
    lab_say("\n");
    lab_open("F8");
    lab_check_above("a sample with wrong targets: gradient norm of its step / undisturbed", 5, poisoned->norm / usual->norm);
    lab_equal("       replayed with the same samples: replays with other bits than the bad step", 0, differ, 0);
    lab_equal("       replays with the same gradient norm, to the last bit", REPLAYS, norms, 0);
    lab_below("       other samples, same checkpoint: gradient norm / undisturbed", 2, next->norm / usual->norm);
    lab_above("       the sample among those others: gradient norm / without it", 5, moved->norm / next->norm);
    lab_equal("       the step without it: ranks with other bits than undisturbed", 0, ranks_that_differ(clean, usual, n), 0);
    lab_check("       replayed without the moments: ranks with other bits than the bad step", n,
              ranks_that_differ(p->again[WEIGHTS_ALONE], poisoned, n), 0);
    lab_check_above("a bit flips on one rank: gradient norm of its step / undisturbed", 1.5, broken->norm / usual->norm);
    lab_check("       ranks with other bits than undisturbed after it: the sum spreads it", n,
              ranks_that_differ(broken, usual, n), 0);
    lab_equal("       replayed with the same samples: ranks with other bits than undisturbed", 0,
              ranks_that_differ(after_flip, usual, n), 0);
    lab_check("       ranks whose weights are not rank 0's: after the flip, the one that it hit", 1, replicas_that_differ(broken, n), 0);
    lab_check("       ranks whose weights are not rank 0's: after the replay", 0, replicas_that_differ(after_flip, n), 0);
    lab_not_measurable("a fault that comes back on one machine only",
                       "the replay must run on that machine and on another of the same kind; needs two machines");
    lab_unshare(p, sizeof *p);
    return lab_close();
}
