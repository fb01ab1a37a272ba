/* helper_child.h - code that runs in a child process: code that must end it, or that needs a fresh one. The stub of the CUDA runtime
 * reads its settings once and ends the process that breaks a contract; a test of it must not have loaded the module before. */
#ifndef LS_TESTS_HELPER_CHILD_H
#define LS_TESTS_HELPER_CHILD_H

struct child {
    int code;       /* exit code; -1: a signal */
    int signal;     /* the signal that ended it, or 0 */
    char err[2048]; /* what it wrote to stderr */
};

/* fn's result is the exit code; settings: the value of LOCKSTEP_CUDA_STUB; NULL: unchanged. */
struct child child_run(const char *settings, int (*fn)(void));

/* Fails unless the child ended with this exit code (a negative code: by the signal -code) and its stderr contains this text. */
void child_expect(const struct child *c, int code, const char *text);

#endif
