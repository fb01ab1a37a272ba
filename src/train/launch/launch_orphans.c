/* launch_orphans.c - finds children of this process in /proc. */
#include "train/launch/launch_orphans.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "train/launch/process.h"

void orphans_begin(struct orphans *s)
{
    s->subreaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &s->subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s->n = process_children(getpid(), s->before, ORPHANS_KNOWN);
}

static bool was_there(const struct orphans *s, pid_t pid)
{
    for (int i = 0; i < s->n; i++)
        if (s->before[i] == pid) return true;
    return false;
}

/* Every round but the last reaps at least one orphan. When an orphan dies, its children become children of this process. */
void orphans_end(struct orphans *s)
{
    pid_t now[2 * ORPHANS_KNOWN];
    bool again = true;

    while (again) {
        int n = process_children(getpid(), now, 2 * ORPHANS_KNOWN);

        again = false;
        for (int i = 0; i < n; i++) {
            if (was_there(s, now[i])) continue;
            kill(now[i], SIGKILL);
            again |= waitpid(now[i], NULL, 0) == now[i];
        }
    }
    prctl(PR_SET_CHILD_SUBREAPER, s->subreaper);
}
