/* launch_child.c - fork and exec of one rank.
 *
 * The parent allocates everything before the fork. Between fork and exec the child makes only system calls.
 */
#include "train/launch/launch_child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"

/* ---- environment ---- */

enum variable { RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT, COMM, THREADS, VARIABLES };
static const char *const launch_child_names[VARIABLES] = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_COMM", "LOCKSTEP_THREADS",
};

struct environment {
    char **list;
    char own[VARIABLES][64];
};

static bool is_own(const char *entry)
{
    for (int i = 0; i < VARIABLES; i++) {
        size_t length = strlen(launch_child_names[i]);

        if (strncmp(entry, launch_child_names[i], length) == 0 && entry[length] == '=') return true;
    }
    return false;
}

static void fill_own(const struct child_args *s, struct environment *e)
{
    const int number[VARIABLES] = { [RANK] = s->rank,      [LOCAL_RANK] = s->rank, [WORLD_SIZE] = s->ranks, [LOCAL_WORLD_SIZE] = s->ranks,
                                    [MASTER_PORT] = 29500, [THREADS] = s->threads };

    for (int i = 0; i < VARIABLES; i++) snprintf(e->own[i], sizeof e->own[i], "%s=%d", launch_child_names[i], number[i]);
    snprintf(e->own[MASTER_ADDR], sizeof e->own[MASTER_ADDR], "%s=127.0.0.1", launch_child_names[MASTER_ADDR]);
    snprintf(e->own[COMM], sizeof e->own[COMM], "%s=shm:fd:%d", launch_child_names[COMM], s->region_fd);
}

static ls_status environment_make(const struct child_args *s, struct environment *e)
{
    size_t count = 0, n = 0;

    while (environ[count]) count++;
    e->list = mem_array(MEM_OTHER, count + VARIABLES + 1, sizeof *e->list);
    if (!e->list) return LS_ENOMEM;
    for (size_t i = 0; i < count; i++)
        if (!is_own(environ[i])) e->list[n++] = environ[i];
    fill_own(s, e);
    for (int i = 0; i < VARIABLES; i++) e->list[n++] = e->own[i];
    return LS_OK;
}

/* ---- the child ---- */

static void child_exit(const char *what)
{
    dprintf(STDERR_FILENO, "lockstep: cannot start: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void set_streams(const struct child_args *s, int out, int err)
{
    if (dup2(err, STDERR_FILENO) < 0) child_exit("standard error");
    if (out >= 0 && dup2(out, STDOUT_FILENO) < 0) child_exit("standard output");
    if (s->rank == 0 && !isatty(STDIN_FILENO)) return;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) child_exit("/dev/null");
}

static void set_signals(const struct child_args *s)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };

    sigaction(SIGPIPE, &s->pipe, NULL);
    sigaction(SIGUSR1, &ignore, NULL);
    sigprocmask(SIG_SETMASK, s->mask, NULL);
}

_Noreturn static void child_exec(const struct child_args *s, char **list, pid_t parent, int out, int err)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* the launcher died before prctl() */
    setpgid(0, 0);
    set_streams(s, out, err);
    if (s->bind && sched_setaffinity(0, sizeof *s->bind, s->bind) != 0) child_exit("binding to processors");
    set_signals(s);
    execve("/proc/self/exe", s->argv, list);
    child_exit("/proc/self/exe");
    _exit(1);
}

/* ---- the launcher ---- */

static ls_status open_pipe(const struct child_args *s, int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        return ls_fail(LS_EIO, "rank %d of %d: cannot open a pipe for its output: %s", s->rank, s->ranks, strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return LS_OK;
}

static void close_pipe(int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) close(ends[i]);
}

static ls_status launch_child_start(const struct child_args *s, char **list, int out, int err, pid_t *pid)
{
    pid_t parent = getpid(), child = fork();

    if (child < 0) return ls_fail(LS_EIO, "rank %d of %d: cannot start a process: %s", s->rank, s->ranks, strerror(errno));
    if (child == 0) child_exec(s, list, parent, out, err);
    setpgid(child, child); /* the child does the same; whichever runs first takes effect */
    *pid = child;
    return LS_OK;
}

ls_status child_start(const struct child_args *s, pid_t *pid, int *out, int *err)
{
    struct environment e;
    int o[2] = { -1, -1 }, r[2] = { -1, -1 };

    LS_TRY(environment_make(s, &e));
    ls_status st = open_pipe(s, r);
    if (st == LS_OK && s->rank > 0) st = open_pipe(s, o);
    if (st == LS_OK) st = launch_child_start(s, e.list, o[1], r[1], pid);
    if (st == LS_OK) {
        *out = o[0];
        *err = r[0];
        o[0] = r[0] = -1;
    }
    close_pipe(o);
    close_pipe(r);
    mem_free(e.list);
    return st;
}
