/* stop.c - turns signals into requests. Handlers do only what POSIX allows: set a flag, write a line, or exit. */
#include "train/run/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"

#define ANSWER ": finishing this step and saving a checkpoint, then exiting; a second SIGINT or SIGTERM exits at once, without saving\n"

static const struct {
    int number;
    const char *name, *line;
} leave_signals[] = {
    { SIGINT, "SIGINT", "SIGINT" ANSWER },
    { SIGTERM, "SIGTERM", "SIGTERM" ANSWER },
    { SIGHUP, "SIGHUP", "SIGHUP" ANSWER },
};

enum { TAKEN = 5 };
static const int taken[TAKEN] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE };
static struct sigaction before[TAKEN];
static bool installed;
static atomic_int leave; /* lock-free, so a handler may change it */
static volatile sig_atomic_t save, announce, terminal;

const char *stop_name(int signal_number)
{
    for (size_t i = 0; i < COUNT_OF(leave_signals); i++)
        if (leave_signals[i].number == signal_number) return leave_signals[i].name;
    return "a signal";
}

const char *stop_line(int signal_number)
{
    for (size_t i = 0; i < COUNT_OF(leave_signals); i++)
        if (leave_signals[i].number == signal_number) return leave_signals[i].line;
    return "";
}

/* A line that cannot be written, because the terminal is closed, is lost. */
static void stop_put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

static void on_leave(int signal_number)
{
    int error = errno, none = 0;
    bool first = atomic_compare_exchange_strong(&leave, &none, signal_number); /* two threads may handle two signals at once */

    if (!first && signal_number != SIGHUP) _exit(128 + signal_number); /* a closing terminal may send SIGHUP twice */
    if (first && announce) {
        if (terminal) stop_put("\r\033[K"); /* erases the progress line */
        stop_put(stop_line(signal_number));
    }
    errno = error;
}

static void on_save(int signal_number)
{
    (void)signal_number;
    save = 1;
}

static void handle(int i, void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

    sigemptyset(&action.sa_mask);
    sigaction(taken[i], NULL, &before[i]);
    if (taken[i] == SIGHUP && before[i].sa_handler == SIG_IGN) return;
    sigaction(taken[i], &action, NULL);
}

void stop_install(bool announces)
{
    leave = 0;
    save = 0;
    announce = announces;
    terminal = isatty(STDERR_FILENO);
    if (installed) return;
    installed = true;
    for (int i = 0; i < TAKEN; i++) handle(i, taken[i] == SIGPIPE ? SIG_IGN : taken[i] == SIGUSR1 ? on_save : on_leave);
}

void stop_uninstall(void)
{
    for (int i = 0; installed && i < TAKEN; i++) sigaction(taken[i], &before[i], NULL);
    installed = false;
}

int stop_requested(void) { return leave; }

bool stop_take_save(void)
{
    bool requested = save;

    save = 0;
    return requested;
}
