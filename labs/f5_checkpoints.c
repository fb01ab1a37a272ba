/* F5 - checkpoints: parameters, optimizer state, data position and random state; sharded, each rank its own part; a run that is killed at
 * any time continues from a complete one, as if it had not been killed. Asynchronous writes are what large runs add.
 *
 * W4 - it is said that only rank 0 writes checkpoints. That is right where the state is replicated; if it is sharded, every rank writes its
 * shard.
 *
 * What a checkpoint holds is read from its manifest. Ranks save together under ZeRO-3 and under DDP. A process that saves is killed at the
 * return of each of its system calls, one after another, so at each of its writes. A run is killed after each of its steps and started
 * again; it counts the samples whose updates are in its weights. */
#include <sys/ptrace.h>
#include "lab_command.h"
#include "lab_train.h"
#include "lockstep/checkpoint.h"

enum { STEPS = 6, EVERY = 2, SAMPLES = 8, KILLS_MOST = 2000 };

static char root[COMMAND_PATH];

static struct job saved_job(ls_dtype type)
{
    struct job j = job_of(1, 32);

    j.type = type;
    j.samples = SAMPLES;
    return j;
}

static ls_train_state state_at(uint64_t step)
{
    ls_train_state s = { .step = step, .samples = step * SAMPLES, .tokens = step * SAMPLES * TIME, .seed = 1, .schedule_steps = STEPS };

    snprintf(s.optimizer, sizeof s.optimizer, "adamw");
    snprintf(s.compute, sizeof s.compute, "f32");
    return s;
}

/* ---- what is in it ---- */

struct content {
    double elements[2];                 /* elements of parameters; elements of masters and moments */
    double bytes, most, first, moments; /* bytes of all tensors; of the rank that writes most; of rank 0; of the moments */
};

static struct content content_of(const char *path)
{
    struct content c = { { 0 }, 0, 0, 0, 0 };
    double rank[64] = { 0 };
    ls_checkpoint_info *info;

    TRY(ls_checkpoint_inspect(path, &info));
    for (size_t e = 0; e < info->nentries; e++) {
        const ls_checkpoint_entry *x = &info->entries[e];
        const char *at = strchr(info->files[x->file].name, '_'); /* parameters_0002_of_0004.safetensors */
        double n = 1;

        for (int d = 0; d < x->ndim; d++) n *= (double)x->extent[d];
        c.elements[strcmp(x->kind, "parameter") != 0] += n;
        c.bytes += n * (double)ls_dtype_bytes(x->type);
        if (strcmp(x->kind, "m") == 0 || strcmp(x->kind, "v") == 0) c.moments += n * (double)ls_dtype_bytes(x->type);
        if (at) rank[atoi(at + 1) % 64] += n * (double)ls_dtype_bytes(x->type);
    }
    for (int r = 0; r < 64; r++) c.most = rank[r] > c.most ? rank[r] : c.most;
    c.first = rank[0];
    ls_checkpoint_info_release(&info);
    return c;
}

/* Saves after one step over the ranks of comm. */
static void save_trained(ls_comm *comm, ls_dtype type, int zero, const char *name)
{
    struct job j = saved_job(type);
    struct training t;
    ls_train_state s = state_at(1);
    char path[COMMAND_PATH + 16];

    j.data.zero = zero;
    j.samples = comm ? 8 * ls_comm_size(comm) : SAMPLES;
    snprintf(path, sizeof path, "%s/%s", root, name);
    training_open(&j, comm, 0, &t);
    training_step(&t, 0);
    if (comm)
        TRY(ls_checkpoint_save_ranks(comm, path, t.store, &j.model, &s, NULL));
    else
        TRY(ls_checkpoint_save(path, t.store, &j.model, &s, NULL));
    training_close(&t);
}

static void save_zero(ls_comm *comm, int rank, int n, void *shared)
{
    (void)rank, (void)n, (void)shared;
    save_trained(comm, LS_F32, 0, "zero0");
    save_trained(comm, LS_F32, 3, "zero3");
}

static struct content content_in(const char *name, uint64_t step)
{
    char path[COMMAND_PATH + 64];

    snprintf(path, sizeof path, "%s/%s/step_%08d", root, name, (int)step);
    return content_of(path);
}

/* ---- killed while it saves ---- */

struct kills {
    int tried, old, new, broken, traced;
};

/* Saves in a process that is killed at the return of its nth system call. 1: it died, 0: it came through, -1: tracing is not permitted
 * here. */
static int save_and_kill(struct training *t, const char *path, int nth)
{
    ls_train_state s = state_at(2);
    int status;
    pid_t child = fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(2);
        raise(SIGSTOP);
        _exit(ls_checkpoint_save(path, t->store, &t->job.model, &s, NULL) != LS_OK);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return -1;
    for (int i = 0; i < 2 * nth; i++) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child) return -1;
        if (WIFEXITED(status)) return WEXITSTATUS(status) ? -1 : 0;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
}

/* Step 1 is saved; then a save of step 2 is killed, again and again, one system call later each time. */
static struct kills kill_saves(void)
{
    struct job j = saved_job(LS_F32);
    struct kills k = { 0, 0, 0, 0, 1 };
    struct training t, loaded;
    ls_train_state s = state_at(1), found;
    char at[COMMAND_PATH + 16], *path;
    int died = 1;

    snprintf(at, sizeof at, "%s/kills", root);
    training_open(&j, NULL, 0, &t);
    training_open(&j, NULL, 0, &loaded);
    training_step(&t, 0);
    uint64_t before = training_hash(&t);
    TRY(ls_checkpoint_save(at, t.store, &j.model, &s, NULL));
    training_step(&t, 1);
    uint64_t after = training_hash(&t);
    for (int nth = 1; died == 1 && nth < KILLS_MOST; nth++) {
        died = save_and_kill(&t, at, nth);
        if (died < 0) k.traced = 0;
        if (died != 1) break;
        k.tried++;
        if (ls_checkpoint_latest(at, &path) < 0 || !path || ls_checkpoint_verify(path) < 0
            || ls_checkpoint_load(path, loaded.store, LS_LOAD_OPTIMIZER, &found) < 0) {
            k.broken++;
            continue;
        }
        uint64_t hash = training_hash(&loaded);
        k.old += found.step == 1 && hash == before;
        k.new += found.step == 2 && hash == after;
        if (found.step == 2) folder_remove(path);
        ls_free(path);
    }
    training_close(&loaded);
    training_close(&t);
    return k;
}

/* ---- killed after a step ---- */

struct killed_run {
    int used[STEPS * SAMPLES]; /* times that a sample is in the weights, by its number over all steps */
    uint64_t hash;
};

/* Trains from the newest checkpoint of `at` to step `last` and saves every EVERY steps, but not the last one. The samples of a step begin
 * at the checkpoint's position. */
static void train_until(const char *at, int last, struct killed_run *out)
{
    struct job j = saved_job(LS_F32);
    struct training t;
    ls_train_state s = state_at(0);
    char *path;

    training_open(&j, NULL, 0, &t);
    TRY(ls_checkpoint_latest(at, &path));
    if (path) TRY(ls_checkpoint_load(path, t.store, LS_LOAD_OPTIMIZER, &s));
    ls_free(path);
    for (uint64_t i = s.samples; i < STEPS * SAMPLES; i++) out->used[i] = 0; /* their updates were lost with the process */
    while (s.step < (uint64_t)last) {
        training_step(&t, (int)(s.samples / SAMPLES));
        for (int i = 0; i < SAMPLES; i++) out->used[(int)s.samples + i]++;
        s = state_at(s.step + 1);
        if (s.step % EVERY == 0 && s.step < (uint64_t)last) TRY(ls_checkpoint_save(at, t.store, &j.model, &s, NULL));
    }
    out->hash = training_hash(&t);
    training_close(&t);
}

/* The same in a process of its own, which is killed at the end. */
static void train_and_die(const char *at, int last, struct killed_run *out)
{
    pid_t child;
    int status;

    fflush(stdout);
    if ((child = fork()) == 0) {
        train_until(at, last, out);
        raise(SIGKILL);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    exit(1);
}

LAB(f5_checkpoints, "checkpoints", { "ranks", "ranks that save together", 8, 2, 8 })
{
    struct killed_run *run = lab_shared(STEPS * sizeof *run), *whole = run; /* run[last] was killed after step `last` */
    int n = (int)lab_size("ranks"), differ = 0, twice = 0, never = 0;
    char at[COMMAND_PATH + 32];

    folder_new(root);
    lab_ranks(n, save_zero, NULL); /* processes before this one has threads */
    snprintf(at, sizeof at, "%s/whole", root);
    train_and_die(at, STEPS, whole);
    for (int last = 1; last < STEPS; last++) {
        snprintf(at, sizeof at, "%s/killed_%d", root, last);
        train_and_die(at, last, &run[last]);
        train_and_die(at, STEPS, &run[last]);
        differ += run[last].hash != whole->hash;
        for (int i = 0; i < STEPS * SAMPLES; i++) twice += run[last].used[i] > 1, never += run[last].used[i] == 0;
    }
    save_trained(NULL, LS_F32, 0, "f32");
    save_trained(NULL, LS_BF16, 0, "bf16");
    struct content f32 = content_in("f32", 1);
    struct content bf16 = content_in("bf16", 1);
    struct content zero0 = content_in("zero0", 1);
    struct content zero3 = content_in("zero3", 1);
    struct kills k = kill_saves();
    folder_remove(root);
    lab_say("a save is killed at each of %d system calls: %d times step 1 is left, %d times step 2\n\n", k.tried, k.old, k.new);
    lab_open("F5");
    lab_check("fp32 and Adam: bytes per parameter", 12, f32.bytes / f32.elements[0], 0);
    lab_check("fp32 and Adam: share of the bytes that is moments", 2.0 / 3, f32.moments / f32.bytes, 1e-9);
    lab_check("bf16 with fp32 masters and Adam: bytes per parameter", 14, bf16.bytes / bf16.elements[0], 0);
    lab_equal("ZeRO-3, ranks save together: elements saved / of the state", 1,
              (zero3.elements[0] + zero3.elements[1]) / (f32.elements[0] + f32.elements[1]), 0);
    lab_equal("ZeRO-3: share of the bytes that the busiest rank writes", 1.0 / n, zero3.most / zero3.bytes, 0.05);
    if (k.traced) {
        lab_check_above("a save is killed at each system call: kills", 20, k.tried);
        lab_equal("a save is killed: kills that leave no complete checkpoint", 0, k.broken, 0);
        lab_equal("a save is killed: the newest is the old step or the new one, all bits / kills", 1, (double)(k.old + k.new) / k.tried, 0);
    } else {
        lab_not_measurable("a save is killed at each system call", "this system lets no process trace another; ptrace is needed");
    }
    lab_equal("killed after each step and resumed: runs with other weights than the undisturbed", 0, differ, 0);
    lab_equal("killed after each step and resumed: samples that are in the weights twice", 0, twice, 0);
    lab_check("killed after each step and resumed: samples that are not in the weights", 0, never, 0);
    lab_not_measurable("asynchronous writes: seconds that training waits",
                       "saves are synchronous here: every rank writes its part and waits; 'lockstep sim --stall --write' plays both");
    lab_open("W4");
    lab_corrected("ZeRO-3: share of the bytes that rank 0 writes", '=', 1, 1.0 / n, zero3.first / zero3.bytes, 0.05,
                  "why: every rank writes its shard; rank 0 alone would have to gather all shards first");
    lab_equal("DDP: share of the bytes that rank 0 writes", 1, zero0.first / zero0.bytes, 0);
    lab_unshare(run, STEPS * sizeof *run);
    return lab_close();
}
