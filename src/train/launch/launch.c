/* launch.c - the parent process of N ranks: one loop over signals, output and exits. */
#include "train/launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/mem.h"
#include "comm/transports/shm/region.h"
#include "train/launch/launch_child.h"
#include "train/launch/launch_job.h"
#include "train/run/stop.h"

static const double GRACE = 1;  /* seconds after the first failure in which the other ranks may exit by themselves */
static const double ABSENT = 1; /* a poll that returns this many seconds late means that the launcher itself was stopped */

/* ---- signals to all ranks ---- */

static void signal_ranks(struct job *j, int signal_number)
{
    for (int i = 0; i < j->n; i++)
        if (j->pid[i]) kill(j->pid[i], signal_number);
}

/* Signals the process groups of the ranks, since a rank may have started processes. */
static void signal_groups(struct job *j, int signal_number)
{
    for (int i = 0; i < j->n; i++)
        if (j->pid[i]) kill(-j->pid[i], signal_number);
}

static void kill_all(struct job *j)
{
    j->killed = true;
    for (int i = 0; i < j->n; i++)
        if (j->pid[i]) j->child[i].by_us = true;
    signal_groups(j, SIGKILL);
    signal_ranks(j, SIGKILL);
}

/* ---- ranks that stop or end ---- */

/* Reads which ranks were stopped or continued. Once the ranks are being killed, the state before the kill is kept for the report. */
static void check_stops(struct job *j)
{
    for (int i = 0; i < j->n && !j->killed; i++) {
        if (!j->pid[i] || !stop_look(&j->stop[i], j->pid[i])) continue;
        region_note_continued(j->region, i);
        stops_shift(j->stop, j->n);
    }
}

static bool only_stopped_left(const struct job *j)
{
    for (int i = 0; i < j->n; i++)
        if (j->pid[i] && !j->stop[i].signal) return false;
    return true;
}

static void note_gone(struct job *j, int i)
{
    const struct child *c = &j->child[i];
    char how[96], line[160];

    snprintf(line, sizeof line, "%s%s", child_ended(c, how), child_failed(c) ? "" : " while others needed it");
    region_note_gone(j->region, i, line);
}

static void note_failure(struct job *j, int i)
{
    note_gone(j, i);
    if (j->failed < 0 || (child_blames(&j->child[j->failed]) && !child_blames(&j->child[i]))) j->failed = i;
    if (j->deadline == 0) j->deadline = base_now() + GRACE;
}

/* Kills the process group of rank i while its number is still valid. A rank that exits with 0 but has not closed its comm is reported to
 * the others, too, since they may still wait for it. */
static void reap(struct job *j, int i, const siginfo_t *info)
{
    struct child *c = &j->child[i];

    kill(-j->pid[i], SIGKILL);
    waitpid(j->pid[i], NULL, 0);
    j->pid[i] = 0;
    j->left--;
    if (info->si_code == CLD_EXITED)
        c->code = info->si_status;
    else
        c->signal = info->si_status;
    if (c->signal != SIGKILL) c->by_us = false;
    if (child_failed(c))
        note_failure(j, i);
    else if (!c->by_us && !region_has_left(j->region, i))
        note_gone(j, i);
    if (j->deadline > 0 && only_stopped_left(j)) j->deadline = base_now(); /* no rank is left that could exit by itself */
    rank_output_finish(&c->output, &j->console);
    if (!c->by_us && (c->signal || !c->code)) rank_output_release(&c->output, &j->console);
}

/* A rank was stopped for longer than the timeout: the others exit, as after a failure. The rank stays stopped until it is killed. */
static void end_overdue(struct job *j, int i)
{
    char line[160];

    snprintf(line, sizeof line, "was stopped by signal %d (%s) and not continued within %g s", j->stop[i].signal,
             strsignal(j->stop[i].signal), j->launch->timeout);
    region_note_stopped(j->region, i, line);
    j->failed = j->overdue = i;
    j->deadline = base_now() + GRACE;
}

static void reap_all(struct job *j)
{
    for (int i = 0; i < j->n; i++) {
        siginfo_t info = { 0 };

        if (!j->pid[i]) continue;
        if (waitid(P_PID, (id_t)j->pid[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) reap(j, i, &info);
    }
}

/* ---- signals ---- */

/* Suspends the ranks and this process on SIGTSTP. The grace period does not run meanwhile. */
static void suspend(struct job *j)
{
    double began = base_now();

    signal_groups(j, SIGSTOP);
    raise(SIGSTOP);
    signal_groups(j, SIGCONT);
    if (j->deadline > 0) j->deadline += base_now() - began;
}

static void request_stop(struct job *j, int signal_number)
{
    j->leave = signal_number;
    signal_ranks(j, signal_number);
    if (j->launch->saves) console_announce(&j->console, stop_line(signal_number));
}

static void force(struct job *j)
{
    j->forced = true;
    kill_all(j);
}

static void take_signal(struct job *j, int signal_number)
{
    switch (signal_number) {
    case SIGTSTP: suspend(j); break;
    case SIGUSR1: signal_ranks(j, SIGUSR1); break;
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
        if (!j->leave)
            request_stop(j, signal_number);
        else if (signal_number != SIGHUP)
            force(j); /* a closing terminal may send SIGHUP twice */
    }
}

static void take_signals(struct job *j)
{
    struct signalfd_siginfo s;

    while (read(j->signals, &s, sizeof s) == (ssize_t)sizeof s) take_signal(j, (int)s.ssi_signo);
    check_stops(j);
    reap_all(j);
}

static ls_status signals_begin(struct job *j)
{
    static const int taken[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD };
    struct sigaction ignore = { .sa_handler = SIG_IGN }, usual = { .sa_handler = SIG_DFL };
    struct sigaction now;
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < COUNT_OF(taken); i++) { /* nohup sets SIGHUP to ignored, a shell without job control SIGTSTP */
        bool may_be_ignored = taken[i] == SIGHUP || taken[i] == SIGTSTP;

        if (!may_be_ignored || sigaction(taken[i], NULL, &now) != 0 || now.sa_handler != SIG_IGN) sigaddset(&set, taken[i]);
    }
    j->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (j->signals < 0) return ls_fail(LS_EIO, "cannot watch for signals: %s", strerror(errno));
    sigprocmask(SIG_BLOCK, &set, &j->mask_before);
    sigaction(SIGPIPE, &ignore, &j->pipe_before);
    sigaction(SIGCHLD, &usual, &j->child_before);
    return LS_OK;
}

static void signals_end(struct job *j)
{
    struct signalfd_siginfo s;

    if (j->signals < 0) return;
    while (read(j->signals, &s, sizeof s) == (ssize_t)sizeof s) continue; /* signals that were meant for the ranks */
    close(j->signals);
    sigaction(SIGPIPE, &j->pipe_before, NULL);
    sigaction(SIGCHLD, &j->child_before, NULL);
    sigprocmask(SIG_SETMASK, &j->mask_before, NULL);
}

/* ---- the loop ---- */

/* Time of the next action without an event: the grace period ends, or *rank has been stopped for too long. 0: never. */
static double due(const struct job *j, int *rank)
{
    if (j->killed) return 0;
    return j->deadline > 0 ? j->deadline : stops_due(j->stop, j->pid, j->n, j->launch->timeout, rank);
}

/* Milliseconds until due(), rounded up; -1: no limit. */
static int poll_timeout(const struct job *j)
{
    int rank;
    double at = due(j, &rank), left = at - base_now();

    if (at == 0) return -1;
    return left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1000) + 1;
}

static void take_due(struct job *j)
{
    int rank = -1;
    double at = due(j, &rank);

    if (at == 0 || base_now() < at) return;
    if (j->deadline > 0)
        kill_all(j);
    else
        end_overdue(j, rank);
}

static void fill_polled(struct job *j)
{
    bool room = console_has_room(&j->console);

    j->polled[0] = (struct pollfd){ j->signals, POLLIN, 0 };
    j->polled[1] = (struct pollfd){ j->console.used > 0 ? j->console.fd : -1, POLLOUT, 0 };
    for (int i = 0; i < j->started; i++) {
        const struct rank_output *o = &j->child[i].output;

        j->polled[2 + 2 * i] = (struct pollfd){ room ? o->out.fd : -1, POLLIN, 0 };
        j->polled[3 + 2 * i] = (struct pollfd){ room ? o->err.fd : -1, POLLIN, 0 };
    }
}

/* Handles output before exits: what a rank wrote before it exited is read before it is reaped. Polls only ranks that were started, because
 * poll() rejects a list that is longer than the limit of descriptors. */
static void launch_poll(struct job *j)
{
    int wait = poll_timeout(j);
    double began = base_now();

    fill_polled(j);
    if (poll(j->polled, (nfds_t)(2 + 2 * j->started), wait) < 0) return;
    if (wait >= 0 && base_now() - began > wait / 1000.0 + ABSENT) stops_shift(j->stop, j->n);
    for (int i = 0; i < j->started; i++) {
        struct rank_output *o = &j->child[i].output;

        if (j->polled[2 + 2 * i].revents) rank_output_read(o, &o->out, &j->console);
        if (j->polled[3 + 2 * i].revents) rank_output_read(o, &o->err, &j->console);
    }
    if (j->polled[0].revents) take_signals(j);
    take_due(j);
    console_flush(&j->console, false);
}

static ls_status start_all(struct job *j, cpu_set_t *shares)
{
    struct child_args s = {
        .ranks = j->n,
        .threads = cores_per_rank(j->n),
        .region_fd = region_fd(j->region),
        .argv = j->launch->argv,
        .mask = &j->mask_before,
        .pipe = j->pipe_before,
    };
    bool bind = j->launch->bind && cores_share(j->n, shares);

    for (int i = 0; i < j->n; i++) {
        int out, err;

        s.rank = i;
        s.bind = bind ? &shares[i] : NULL;
        LS_TRY(child_start(&s, &j->pid[i], &out, &err));
        rank_output_open(&j->child[i].output, i, out, err, j->launch->log_folder);
        j->started++;
        j->left++;
    }
    return LS_OK;
}

/* ---- a launch from start to end ---- */

static ls_status launch_job(struct job *j, cpu_set_t *shares, int *code)
{
    char message[REPORT_ROOM];
    ls_status st = start_all(j, shares);

    snprintf(message, sizeof message, "%s", ls_errmsg());
    if (st != LS_OK) kill_all(j);
    reap_all(j);
    while (j->left > 0) launch_poll(j);
    int result = report_settle(j);
    report_ends(j);
    console_flush(&j->console, true);
    if (result) console_wipe(&j->console);
    if (st != LS_OK) return ls_fail(st, "%s", message);
    *code = result;
    return LS_OK;
}

static void close_job(struct job *j)
{
    orphans_end(&j->orphans);
    signals_end(j);
    region_close(&j->region);
    for (int i = 0; j->child && i < j->n; i++) rank_output_close(&j->child[i].output);
    mem_free(j->child);
    mem_free(j->pid);
    mem_free(j->stop);
    mem_free(j->polled);
    mem_free(j);
}

static ls_status open_job(const struct launch *l, struct job *j)
{
    *j = (struct job){ .launch = l, .n = l->ranks, .failed = -1, .overdue = -1, .signals = -1 };
    orphans_begin(&j->orphans);
    console_open(&j->console, STDERR_FILENO);
    j->polled = mem_array(MEM_OTHER, 2 + 2 * (size_t)j->n, sizeof *j->polled);
    j->child = mem_array(MEM_OTHER, (size_t)j->n, sizeof *j->child);
    j->pid = mem_array(MEM_OTHER, (size_t)j->n, sizeof *j->pid);
    j->stop = mem_array(MEM_OTHER, (size_t)j->n, sizeof *j->stop);
    if (!j->polled || !j->child || !j->pid || !j->stop) return LS_ENOMEM;
    for (int i = 0; i < j->n; i++) rank_output_open(&j->child[i].output, i, -1, -1, NULL);
    LS_TRY(region_create(j->n, &j->region));
    return signals_begin(j);
}

ls_status launch_run(const struct launch *l, int *code)
{
    if (l->ranks < 1) return ls_fail(LS_EINVAL, "launch: cannot start %d ranks; use at least 1", l->ranks);
    struct job *j = mem_alloc(MEM_OTHER, sizeof *j);
    cpu_set_t *shares = mem_array(MEM_OTHER, (size_t)l->ranks, sizeof *shares);
    ls_status st = LS_ENOMEM;

    if (j && shares) {
        st = open_job(l, j);
        if (st == LS_OK) st = launch_job(j, shares, code);
        close_job(j);
    } else {
        mem_free(j);
    }
    mem_free(shares);
    return st;
}
