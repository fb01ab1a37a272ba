/* launch_stops.c - detects by waitid() that ranks are stopped and continued. */
#include "train/launch/launch_stops.h"

#include <sys/wait.h>
#include "base/base.h"

bool stop_look(struct stop *s, pid_t pid)
{
    bool continued = false;

    for (;;) {
        siginfo_t info = { 0 };

        if (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WCONTINUED | WNOHANG) != 0 || info.si_pid == 0) return continued;
        continued = info.si_code == CLD_CONTINUED;
        *s = continued ? (struct stop){ 0 } : (struct stop){ info.si_status, base_now() };
    }
}

double stops_due(const struct stop *stop, const pid_t *pid, int n, double timeout, int *rank)
{
    double first = 0;
    int stopped = 0, living = 0;

    for (int i = 0; i < n; i++) {
        if (pid[i] <= 0) continue;
        living++;
        if (!stop[i].signal) continue;
        stopped++;
        if (first > 0 && stop[i].since >= first) continue;
        first = stop[i].since;
        *rank = i;
    }
    return timeout > 0 && stopped > 0 && stopped < living ? first + timeout : 0;
}

void stops_shift(struct stop *stop, int n)
{
    for (int i = 0; i < n; i++)
        if (stop[i].signal) stop[i].since = base_now();
}
