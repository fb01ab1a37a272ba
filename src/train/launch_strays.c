/* launch_strays.c - children found by their parent's number in /proc. */
#include "train/launch_strays.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Field 4 of /proc/PID/stat; the name before it may hold anything, and ends with the last ')'. */
static pid_t parent_of(pid_t pid)
{
    char path[64], line[512];
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    size_t got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = '\0';
    const char *name_end = strrchr(line, ')');
    if (!name_end || sscanf(name_end + 1, " %*c %d", &parent) != 1) return 0;
    return parent;
}

/* Children of this process, at most `most` of them. */
static int children(pid_t out[], int most)
{
    DIR *d = opendir("/proc");
    int n = 0;

    if (!d) return 0;
    for (struct dirent *e; n < most && (e = readdir(d)); ) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;

        if (pid > 0 && parent_of(pid) == getpid()) out[n++] = pid;
    }
    closedir(d);
    return n;
}

void strays_begin(struct strays *s)
{
    s->subreaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &s->subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s->n = children(s->before, STRAYS_KNOWN);
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
        int n = children(now, 2 * STRAYS_KNOWN);

        again = false;
        for (int i = 0; i < n; i++) {
            if (was_there(s, now[i])) continue;
            kill(now[i], SIGKILL);
            again |= waitpid(now[i], NULL, 0) == now[i];
        }
    }
    prctl(PR_SET_CHILD_SUBREAPER, s->subreaper);
}
