/* helper_stub_child.h - code that runs in a process of its own, since the stub of the CUDA runtime reads its settings once and ends the
 * process that breaks a contract. The test itself must not have loaded the module yet. */
#ifndef LS_TESTS_HELPER_STUB_CHILD_H
#define LS_TESTS_HELPER_STUB_CHILD_H

struct child {
    int code;       /* exit code; -1: a signal */
    char err[2048]; /* what it wrote to stderr */
};

/* fn's result is the exit code; settings: LOCKSTEP_CUDA_STUB. */
struct child child_run(const char *settings, int (*fn)(void));

#endif
