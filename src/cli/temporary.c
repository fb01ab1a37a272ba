/* temporary.c - a temporary folder and its guard. */
#include "cli/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

static void close_all_but(int keep)
{
    long most = sysconf(_SC_OPEN_MAX);

    if ((keep == 0 || close_range(0, (unsigned)keep - 1, 0) == 0) && close_range((unsigned)keep + 1, ~0u, 0) == 0) return;
    /* a kernel before 5.9 */
    for (int fd = 0; fd < MIN(most, 65536L); fd++)
        if (fd != keep) close(fd);
}

/* Waits for the end of file, which means that every other process with the pipe has ended, and removes the folder. */
_Noreturn static void guard(const char *path, int pipe)
{
    static const int ignored[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE };
    char byte;

    sigset_t none;

    setsid();
    for (size_t i = 0; i < COUNT_OF(ignored); i++) signal(ignored[i], SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close_all_but(pipe);
    while (read(pipe, &byte, 1) < 0 && errno == EINTR) continue;
    file_remove_tree(path);
    _exit(0);
}

/* Starts the guard through an intermediate child that exits at once, so that the guard is not a child of this process. */
static ls_status start_guard(const char *path, int ends[2])
{
    pid_t between = fork();
    int ended = 0;

    if (between < 0) return ls_fail(LS_EIO, "%s: cannot start the process that removes it: %s", path, strerror(errno));
    if (between == 0) {
        close(ends[1]);
        pid_t child = fork();
        if (child == 0) guard(path, ends[0]);
        _exit(child < 0);
    }
    while (waitpid(between, &ended, 0) < 0 && errno == EINTR) continue;
    return ended == 0 ? LS_OK : ls_fail(LS_EIO, "%s: cannot start the process that removes it", path);
}

/* The writing end survives exec, so the ranks have it too. */
static ls_status open_guard(struct temporary *t)
{
    int ends[2];

    if (pipe(ends) != 0) return ls_fail(LS_EIO, "%s: cannot open a pipe: %s", t->path, strerror(errno));
    t->pipe = ends[1];
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    ls_status st = start_guard(t->path, ends);
    close(ends[0]);
    return st;
}

ls_status temporary_open(const char *name, struct temporary *out)
{
    const char *tmp = getenv("TMPDIR");
    struct temporary t = { .pipe = -1, .path = file_path("%s/%s-XXXXXX", tmp && *tmp ? tmp : "/tmp", name) };
    sigset_t all, before;

    if (!t.path) return LS_ENOMEM;
    sigfillset(&all); /* no signal between the folder and its guard */
    sigprocmask(SIG_BLOCK, &all, &before);
    bool made = mkdtemp(t.path) != NULL;
    ls_status st = made ? open_guard(&t) : ls_fail(LS_EIO, "%s: cannot create a folder: %s", t.path, strerror(errno));
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (st == LS_OK) {
        *out = t;
        return LS_OK;
    }
    if (t.pipe >= 0) close(t.pipe);
    if (made) rmdir(t.path); /* there is no guard */
    mem_free(t.path);
    return st;
}

ls_status temporary_close(struct temporary *t)
{
    if (!t->path) return LS_OK;
    ls_status st = file_remove_tree(t->path);
    close(t->pipe);
    mem_free(t->path);
    *t = (struct temporary){ 0 };
    return st;
}
