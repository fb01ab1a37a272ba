/* stop.c - signals as requests. Handlers do no more than POSIX allows: set a flag, or leave. */
#include "train/stop.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t leave, save;
static struct sigaction before_int, before_term, before_usr1, before_pipe;

static void on_leave(int signal_number)
{
    if (leave) _exit(128 + signal_number);
    leave = signal_number;
}

static void on_save(int signal_number)
{
    (void)signal_number;
    save = 1;
}

static void handle(int signal_number, void (*handler)(int), struct sigaction *before)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, before);
}

void stop_install(void)
{
    leave = save = 0;
    handle(SIGINT, on_leave, &before_int);
    handle(SIGTERM, on_leave, &before_term);
    handle(SIGUSR1, on_save, &before_usr1);
    handle(SIGPIPE, SIG_IGN, &before_pipe);
}

void stop_uninstall(void)
{
    sigaction(SIGINT, &before_int, NULL);
    sigaction(SIGTERM, &before_term, NULL);
    sigaction(SIGUSR1, &before_usr1, NULL);
    sigaction(SIGPIPE, &before_pipe, NULL);
}

int stop_requested(void) { return leave; }

bool stop_take_save(void)
{
    bool asked = save;

    save = 0;
    return asked;
}
