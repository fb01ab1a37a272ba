/* F3 - a hang is one rank that is missing from a collective: all others wait. A deadline ends the wait, the verdict names the missing rank
 * on every rank, and not only in rank 0's log; the command ends with exit code 3.
 *
 * First the library: of --ranks ranks the last does not call an all-reduce, and returns only after all others have got their verdicts. Then
 * ranks call different collectives. Then `lockstep train` on two ranks, of which one is killed or suspended after its third step, fails by
 * itself, or has a NaN. */
#include <sys/stat.h>
#include "lab_command.h"

enum { MISSING, MISMATCH, HANGS };

struct hang {
    int called, done; /* ranks that have made the call of which one is missing; that have their verdict */
    struct {
        ls_status status[HANGS];
        char line[HANGS][300];
    } rank[16];
};

static void hang_wait(const int *count, int least)
{
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < least) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

static void hang_note(struct hang *h, int rank, int kind, ls_status st)
{
    h->rank[rank].status[kind] = st;
    if (st < 0) snprintf(h->rank[rank].line[kind], sizeof h->rank[rank].line[kind], "%s", ls_errmsg());
}

/* The short timeout begins when all others have made the call: none of these is late because the machine is busy. */
static void missing_rank(ls_comm *comm, int rank, int n, void *shared)
{
    float x[4] = { 1, 2, 3, 4 };
    struct hang *h = shared;
    ls_work *work = NULL;

    TRY(ls_barrier(comm));
    if (rank == n - 1) {
        hang_wait(&h->done, n - 1);
        return;
    }
    TRY(ls_all_reduce(comm, x, x, 4, LS_F32, LS_SUM, &work));
    __atomic_add_fetch(&h->called, 1, __ATOMIC_RELEASE);
    hang_wait(&h->called, n - 1);
    ls_comm_set_timeout(comm, 1);
    hang_note(h, rank, MISSING, ls_work_wait(&work));
    __atomic_add_fetch(&h->done, 1, __ATOMIC_RELEASE);
}

static void mismatch_rank(ls_comm *comm, int rank, int n, void *shared)
{
    float x[4] = { 1, 2, 3, 4 };
    ls_status st = ls_barrier(comm); /* a mismatch may reach a rank that is still in here */

    ls_comm_set_timeout(comm, 30);
    if (st == LS_OK) st = rank == n - 1 ? ls_barrier(comm) : ls_all_reduce(comm, x, x, 4, LS_F32, LS_SUM, NULL);
    hang_note(shared, rank, MISMATCH, st);
}

/* How many ranks got this status and a line with these words. */
static int verdicts(const struct hang *h, int n, int kind, ls_status status, const char *words)
{
    int count = 0;

    for (int r = 0; r < n; r++) count += h->rank[r].status[kind] == status && strstr(h->rank[r].line[kind], words);
    return count;
}

/* ---- faults in rank 1 of a run ---- */

enum { FAULT_KILLED, FAULT_SUSPENDED, FAULT_OWN_ERROR, FAULT_NAN, FAULTS };

struct ended {
    int code, lines, named, logs; /* exit code; lines on standard error, and whether they say who and what; logs of ranks */
};

static const char *const fault_line[FAULTS] = { "rank 1 was killed", "rank 1 was stopped", "rank 1: run/log/rank_0001.log: cannot open",
                                                "first: element" };

/* Runs two ranks of `lockstep train`, of which rank 1 is killed or suspended after its third step, cannot open its log, or has a NaN. Only
 * a suspended rank takes the timeout. */
static struct ended train_with(int fault)
{
    char folder[COMMAND_PATH], path[COMMAND_PATH + 64];
    struct ended e = { 0 };
    pid_t rank;

    folder_new(folder);
    snprintf(path, sizeof path, "%s/text.txt", folder);
    folder_write_text(path);
    for (const char *part = "run\0run/log\0run/log/rank_0001.log\0"; fault == FAULT_OWN_ERROR && *part; part += strlen(part) + 1) {
        snprintf(path, sizeof path, "%s/%s", folder, part);
        if (mkdir(path, 0700) != 0) exit(1);
    }
    struct command_run c = command_start(folder, "train -n 2 --data.text=text.txt --model.preset=llama-tiny --model.layers=1 --data.seq_len=16 "
                              "--train.global_batch=4 --train.eval_every=0 --launch.threads=1 --train.steps=1000000 --launch.timeout=%d "
                              "--run.measure_peak=off --run.dir=run%s",
                      fault == FAULT_SUSPENDED ? 10 : 120,
                      fault == FAULT_NAN ? " --debug.non_finite=3:1:0:model.layers.0.mlp.down_proj.weight.grad" : "");
    if (fault <= FAULT_SUSPENDED && command_reached(&c, "run/metrics.jsonl", 3) && (rank = command_rank(&c, 1)) > 0)
        kill(rank, fault == FAULT_KILLED ? SIGKILL : SIGSTOP);
    e.code = command_wait(&c);
    const char *said = command_said(&c, "err.txt");
    e.named = strstr(said, "rank 1") && strstr(said, fault_line[fault]);
    snprintf(path, sizeof path, "%s/err.txt", folder);
    e.lines = file_lines(path);
    lab_say("    %s", said);
    for (int r = 0; r < 2; r++) {
        snprintf(path, sizeof path, "%s/run/log/rank_%04d.log", folder, r);
        e.logs += file_lines(path) > 0;
    }
    folder_remove(folder);
    return e;
}

LAB(f3_hang, "a rank that is missing from a collective", { "ranks", "ranks, of which the last is missing", 4, 2, 16 })
{
    struct hang *h = lab_shared(sizeof *h);
    struct ended e[FAULTS];
    int n = (int)lab_size("ranks"), named = 0;
    char name[32];

    snprintf(name, sizeof name, "rank %d", n - 1);
    lab_ranks(n, missing_rank, h);
    lab_ranks(n, mismatch_rank, h);
    lab_say("the last rank makes no call:           \"%s\"\n", h->rank[0].line[MISSING]);
    lab_say("the last rank makes a different call:  \"%s\"\n", h->rank[0].line[MISMATCH]);
    lab_say("train, with a fault in rank 1:\n");
    for (int fault = 0; fault < FAULTS; fault++) {
        e[fault] = train_with(fault);
        named += e[fault].named && e[fault].lines == 1;
    }
    lab_say("\n");
    lab_open("F3");
    lab_equal("a rank is missing: ranks that the deadline ends", n - 1, verdicts(h, n, MISSING, LS_ETIMEOUT, ""), 0);
    lab_equal("a rank is missing: ranks whose line names it", n - 1, verdicts(h, n, MISSING, LS_ETIMEOUT, name), 0);
    lab_equal("another collective on one rank: ranks that fail, long before the deadline", n, verdicts(h, n, MISMATCH, LS_EPEER, ""), 0);
    lab_check("another collective on one rank: ranks whose line names the call", n, verdicts(h, n, MISMATCH, LS_EPEER, "barrier"), 0);
    lab_equal("train, a rank is killed: exit code", 3, e[FAULT_KILLED].code, 0);
    lab_equal("train, a rank is suspended: exit code", 3, e[FAULT_SUSPENDED].code, 0);
    lab_check("train, a rank cannot open its log: exit code", 1, e[FAULT_OWN_ERROR].code, 0);
    lab_check("train, a rank has a NaN in its gradient: exit code", 1, e[FAULT_NAN].code, 0);
    lab_equal("train: faults after which one line names the rank and the kind", FAULTS, named, 0);
    lab_check("train: logs, one of each rank", 2, e[FAULT_KILLED].logs, 0);
    lab_unshare(h, sizeof *h);
    return lab_close();
}
