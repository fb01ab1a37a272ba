#include "helper_launch_rank.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/comm.h"

static int rank_number(void) { return atoi(getenv("RANK")); }
static bool rank_is(const char *rank) { return rank_number() == atoi(rank); }

_Noreturn void launch_sleep_on(void)
{
    signal(SIGTERM, SIG_IGN);
    for (;;) pause();
}

static const char *value(const char *name) { return getenv(name) ? getenv(name) : "(none)"; }

static int say_environment(void)
{
    char null[256] = "";
    cpu_set_t set;
    sigset_t blocked;

    sched_getaffinity(0, sizeof set, &set);
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    ssize_t n = readlink("/proc/self/fd/0", null, sizeof null - 1);
    const char *colon = strrchr(value("LOCKSTEP_COMM"), ':');
    bool inherited = colon && fcntl(atoi(colon + 1), F_GETFD) == 0;
    fprintf(stderr, "env %s %s %s %s %s %s %s %.7s omp=%s inherited=%d group=%d null=%d bound=%d term=%d int=%d\n", value("RANK"),
            value("LOCAL_RANK"), value("WORLD_SIZE"), value("LOCAL_WORLD_SIZE"), value("GROUP_RANK"), value("MASTER_ADDR"),
            value("MASTER_PORT"), value("LOCKSTEP_COMM"), value("OMP_NUM_THREADS"), inherited,
            getpgrp() == getpid(), n > 0 && strcmp(null, "/dev/null") == 0, CPU_COUNT(&set), sigismember(&blocked, SIGTERM),
            sigismember(&blocked, SIGINT));
    return 0;
}

static int flood(void)
{
    for (int i = 0; i < FLOOD_LINES; i++) {
        fprintf(stderr, "line %d of rank %d: %.*s.\n", i, rank_number(), i % 90,
                "################################################################################################");
        if (i % 3 == 0) printf("out %d of rank %d.\n", i, rank_number());
    }
    return 0;
}

/* A group member, and one that left for a session of its own. */
static void leave_children(void)
{
    for (int i = 0; i < 2; i++) {
        if (fork() != 0) continue;
        if (i == 1) {
            setsid();
            if (fork() != 0) _exit(0);
        }
        launch_sleep_on();
    }
}

static void on_signal(int s)
{
    const char *text = s == SIGUSR1 ? "usr1\n" : s == SIGINT ? "int\n" : s == SIGHUP ? "hup\n" : "term\n";
    ssize_t done = write(STDERR_FILENO, text, strlen(text));

    if (s != SIGUSR1 || done < 0) _exit(0);
}

static void on_ignored_signal(int s)
{
    ssize_t done = write(STDERR_FILENO, "ignored\n", 8);

    (void)s;
    (void)done;
}

/* Until a file of the case's folder, which is the TMPDIR of its ranks, contains this text. */
static void wait_for_line(const char *name, const char *words)
{
    for (bool found = false; !found; usleep(1000)) {
        char *path = file_path("%s/%s", value("TMPDIR"), name), *text = NULL;

        found = path && file_read(path, &text, NULL) == LS_OK && strstr(text, words);
        mem_free(text);
        mem_free(path);
    }
}

/* Rank `who` announces to all ranks why the job ends, and is killed before it can report it itself, or waits until it is killed.
 * Another rank fails, too. */
static int name_cause(const char *who, bool stays)
{
    ls_comm *c = NULL;
    char byte;

    if (ls_comm_open(getenv("LOCKSTEP_COMM"), rank_number(), atoi(getenv("WORLD_SIZE")), &c) != LS_OK) return 9;
    if (rank_is(who)) {
        ls_fail(LS_EINVAL, "the gradient is NaN");
        comm_fail(c, LS_EINVAL);
        if (stays) launch_sleep_on();
        raise(SIGKILL);
    }
    ls_status st = ls_recv(c, &byte, 1, LS_U8, atoi(who), NULL);
    fprintf(stderr, "lockstep probe: rank %d: stopped by %s\n", rank_number(), ls_errmsg());
    return st == LS_EINVAL ? 1 : 9;
}

int launch_rank_main(const char *what, const char *who)
{
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ);
    if (strcmp(what, "zero") == 0) return 0;
    if (strcmp(what, "env") == 0) return say_environment();
    if (strcmp(what, "flood") == 0) return flood();
    if (strcmp(what, "lines") == 0) {
        if (!rank_is("1")) return 0;
        fprintf(stderr, "one\n\n[three]\n%05000d\nlockstep probe: held, but not the end\n", 7);
        printf("on standard output\n");
        fprintf(stderr, "no end");
        return 0;
    }
    if (strcmp(what, "out0") == 0) return rank_is("0") ? printf("{\"json\":1}\n") < 0 : 0;
    if (strcmp(what, "both") == 0) {
        fprintf(stderr, "lockstep probe: the text is not there\n");
        return 1;
    }
    if (strcmp(what, "blame") == 0) {  /* the other ranks report rank 1 before it fails */
        if (!rank_is("1")) {
            fprintf(stderr, "lockstep probe: rank 1 did not call it\n");
            return 3;
        }
        wait_for_line("log/rank_0000.err", "did not call it");
        wait_for_line("log/rank_0002.err", "did not call it");
        fprintf(stderr, "lockstep probe: the disk is full\n");
        return 1;
    }
    if (strncmp(what, "name", 4) == 0) return name_cause(who, strcmp(what, "name-stay") == 0);
    if (strcmp(what, "threes") == 0) {
        fprintf(stderr, "lockstep probe: rank 1 did not call it\n");
        return 3;
    }
    if (strcmp(what, "family") == 0) {
        leave_children();
        return 0;
    }
    if (strcmp(what, "obey") == 0) {
        signal(SIGUSR1, on_signal);
        signal(SIGTERM, on_signal);
        signal(SIGINT, on_signal);
        signal(SIGHUP, on_signal);
        fprintf(stderr, "ready\n");
        for (;;) pause();
    }
    if (strcmp(what, "stubborn") == 0) {
        signal(SIGTERM, on_ignored_signal);
        fprintf(stderr, "ready\n");
        for (;;) pause();
    }
    if (!rank_is(who)) {
        if (strcmp(what, "family-exit") == 0) leave_children();
        launch_sleep_on();
    }
    if (strcmp(what, "kill") == 0) raise(SIGKILL);
    if (strcmp(what, "abort") == 0) abort();
    fprintf(stderr, "working\nlockstep probe: the disk is full\n");
    return 7;
}

pid_t launch_ranks(int ranks, const char *what, const char *who, bool bind)
{
    char *const argv[] = { "test_launch", "--rank", (char *)what, (char *)who, NULL };

    return case_launch(ranks, argv, bind);
}

int launch_ranks_run(int ranks, const char *what, const char *who)
{
    int code = case_finish(launch_ranks(ranks, what, who, false));

    case_nothing_is_left();
    return code;
}

int line_count(const char *text)
{
    int n = 0;

    for (; *text; text++) n += *text == '\n';
    return n;
}

void launch_signals_reset(void)
{
    static const int sent[] = { SIGINT, SIGHUP, SIGTERM };

    for (size_t i = 0; i < COUNT_OF(sent); i++) signal(sent[i], SIG_DFL);
}
