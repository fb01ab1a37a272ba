/* launch_strays.c - children found by their parent's number in /proc. */
#include "train/launch_strays.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "train/process.h"

void strays_begin(struct strays *s)
{
    s->subreaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &s->subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s->n = process_children(getpid(), s->before, STRAYS_KNOWN);
}

static bool was_there(const struct strays *s, pid_t pid)
{
    for (int i = 0; i < s->n; i++)
        if (s->before[i] == pid) return true;
    return false;
}

/* A round reaps at least one stray, or is the last. Children of a stray become ours with its death. */
void strays_end(struct strays *s)
{
    pid_t now[2 * STRAYS_KNOWN];
    bool again = true;

    while (again) {
        int n = process_children(getpid(), now, 2 * STRAYS_KNOWN);

        again = false;
        for (int i = 0; i < n; i++) {
            if (was_there(s, now[i])) continue;
            kill(now[i], SIGKILL);
            again |= waitpid(now[i], NULL, 0) == now[i];
        }
    }
    prctl(PR_SET_CHILD_SUBREAPER, s->subreaper);
}
