/* helper_child.c - see helper_child.h. */
#include "helper_child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct child child_run(const char *settings, int (*fn)(void))
{
    struct child c = { .code = -1 };
    size_t have = 0;
    ssize_t n;
    int fd[2], status;

    fflush(NULL);
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        close(fd[1]);
        if (settings)
            setenv("LOCKSTEP_CUDA_STUB", settings, 1);
        signal(SIGSEGV, SIG_DFL); /* not cmocka's, which would continue with the next test */
        signal(SIGABRT, SIG_DFL);
        status = fn();
        fflush(NULL);
        _exit(status);
    }
    close(fd[1]);
    while (have < sizeof c.err - 1 && (n = read(fd[0], c.err + have, sizeof c.err - 1 - have)) > 0)
        have += (size_t)n;
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status))
        c.code = WEXITSTATUS(status);
    else
        c.signal = WTERMSIG(status);
    return c;
}

void child_expect(const struct child *c, int code, const char *text)
{
    if ((code >= 0 ? c->code != code : c->signal != -code) || !strstr(c->err, text))
        fail_msg("exit code %d, signal %d, '%s'; expected %d and '%s'", c->code, c->signal, c->err, code, text);
}
