#include "helper_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "comm/transports/shm/region.h"
#include "comm/transports/transport.h"

enum { LEAKED = 23 };

static char *said;  /* this rank's line, in memory that the parent sees; NULL outside of ranks_run */

/* A function of LeakSanitizer, if the test is built with it. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static void say(const char *fmt, va_list args)
{
    if (said) {
        vsnprintf(said, RANKS_LINE, fmt, args);
    } else {
        vfprintf(stderr, fmt, args);
        fputc('\n', stderr);
    }
}

void ranks_say(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
}

_Noreturn void ranks_fail(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    say(fmt, args);
    va_end(args);
    _exit(1);
}

_Noreturn static void be_rank(int rank, int n, const char *where, ranks_body *body, void *ctx, char *line)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    said = line;
    body(rank, n, where, ctx);
    fflush(NULL);
    if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
        ranks_say("leaked memory");
        _exit(LEAKED);
    }
    _exit(0);
}

static void ranks_ended(struct rank_end *e, int status)
{
    e->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    e->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void note_gone(struct region *s, int rank, const struct rank_end *e)
{
    char how[64];

    if (e->signal) snprintf(how, sizeof how, "was killed by signal %d", e->signal);
    else snprintf(how, sizeof how, EXITED_WITH, e->code);
    region_note_gone(s, rank, how);
}

/* Waits for all of pid[n] until the deadline, then kills. */
static void ranks_watch(int n, const pid_t *pid, double deadline, struct region *gone, struct rank_end *ends)
{
    int alive = n, status;
    bool over[RANKS_MOST] = { false };

    while (alive) {
        bool late = base_now() > deadline;

        for (int i = 0; i < n; i++) {
            if (over[i]) continue;
            if (late) {
                kill(pid[i], SIGKILL);
                ends[i].late = true;
            }
            if (waitpid(pid[i], &status, late ? 0 : WNOHANG) != pid[i]) continue;
            over[i] = true;
            alive--;
            ranks_ended(&ends[i], status);
            if (gone && (ends[i].signal || ends[i].code)) note_gone(gone, i, &ends[i]);
        }
        if (alive) nanosleep(&(struct timespec){ 0, 500000 }, NULL);
    }
}

void ranks_run(int n, const struct ranks_options *o, ranks_body *body, void *ctx, struct rank_end *ends)
{
    size_t bytes = (size_t)n * RANKS_LINE;
    char *lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), where[32];
    struct region *s = NULL;
    pid_t pid[RANKS_MOST];

    assert_true(n >= 1 && n <= RANKS_MOST && lines != MAP_FAILED);
    if (region_create(n, &s) < 0) fail_msg("region: %s", ls_errmsg());
    snprintf(where, sizeof where, "shm:fd:%d", region_fd(s));
    memset(ends, 0, (size_t)n * sizeof *ends);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0) be_rank(i, n, where, body, ctx, lines + (size_t)i * RANKS_LINE);
        if (pid[i] < 0) {
            for (int k = 0; k < i; k++) kill(pid[k], SIGKILL);
            for (int k = 0; k < i; k++) waitpid(pid[k], NULL, 0);
            fail_msg("fork of rank %d", i);
        }
    }
    ranks_watch(n, pid, base_now() + o->seconds, o->gone ? s : NULL, ends);
    for (int i = 0; i < n; i++) memcpy(ends[i].said, lines + (size_t)i * RANKS_LINE, RANKS_LINE);
    region_close(&s);
    munmap(lines, bytes);
}

const char *rank_trouble(int rank, const struct rank_end *e)
{
    static char text[RANKS_LINE + 128];
    char how[64];

    if (!e->late && e->code == 0) return NULL;
    if (e->late) snprintf(how, sizeof how, "was still there at the time limit");
    else if (e->signal) snprintf(how, sizeof how, "was killed by signal %d", e->signal);
    else snprintf(how, sizeof how, EXITED_WITH, e->code);
    snprintf(text, sizeof text, "rank %d %s%s%s", rank, how, e->said[0] ? ": " : "", e->said);
    return text;
}

/* The report of a rank that failed by itself is more useful than that of one that waited for it. */
static int first_bad(int n, const struct rank_end *ends)
{
    for (int i = 0; i < n; i++)
        if (!ends[i].late && (ends[i].signal || ends[i].code)) return i;
    for (int i = 0; i < n; i++)
        if (ends[i].late) return i;
    return -1;
}

void ranks_pass(int n, double seconds, ranks_body *body, void *ctx)
{
    struct rank_end ends[RANKS_MOST];

    ranks_run(n, &(struct ranks_options){ .seconds = seconds }, body, ctx, ends);
    int bad = first_bad(n, ends);
    if (bad >= 0) fail_msg("of %d ranks: %s", n, rank_trouble(bad, &ends[bad]));
}

void ranks_event_open(struct ranks_event *e) { assert_int_equal(pipe(e->end), 0); }

void ranks_event_close(struct ranks_event *e)
{
    close(e->end[0]);
    close(e->end[1]);
}

void ranks_event_wait(const struct ranks_event *e)
{
    char byte;

    RANKS_CHECK(read(e->end[0], &byte, 1) == 1);
}

void ranks_event_report(const struct ranks_event *e) { RANKS_CHECK(write(e->end[1], "", 1) == 1); }

void ranks_poll_pause(void) { nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL); }

void ranks_wait_state(pid_t pid, char state)
{
    char path[64], line[512] = "", *end;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    do {
        RANKS_CHECK((f = fopen(path, "re")));
        RANKS_CHECK(fgets(line, sizeof line, f));
        fclose(f);
        RANKS_CHECK((end = strrchr(line, ')')) && end[1]);
        if (end[2] != state) ranks_poll_pause();
    } while (end[2] != state);
}
