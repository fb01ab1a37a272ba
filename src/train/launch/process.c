/* process.c - reads /proc. */
#include "train/launch/process.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Reads fields 3, 4 and 22 of /proc/PID/stat. The name before them may contain any character; it ends at the last ')'. */
bool process_find(int64_t pid, struct process *out)
{
    char path[64], line[1024];
    struct process p;
    int parent;

    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = '\0';
    const char *name_end = strrchr(line, ')');
    if (!name_end || sscanf(name_end + 1, " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64, &p.state,
                            &parent, &p.start) != 3)
        return false;
    p.parent = parent;
    *out = p;
    return true;
}

bool process_lives(const struct process *p) { return !strchr("ZX", p->state); }

double process_started(const struct process *p)
{
    struct timespec up, mono;

    clock_gettime(CLOCK_BOOTTIME, &up);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    double asleep = (double)(up.tv_sec - mono.tv_sec) + 1e-9 * (double)(up.tv_nsec - mono.tv_nsec);
    return (double)p->start / (double)sysconf(_SC_CLK_TCK) - asleep;
}

/* Entries are NAME=VALUE, each followed by a NUL. Entries too long for a number are truncated and never match. */
int64_t process_variable(pid_t pid, const char *name)
{
    char path[64], entry[128];
    size_t used = 0, length = strlen(name);
    int64_t value = -1;
    int c;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    while (value < 0 && (c = fgetc(f)) != EOF) {
        if (c && used < sizeof entry - 1) entry[used++] = (char)c;
        if (c) continue;
        entry[used] = '\0';
        if (used > length && strncmp(entry, name, length) == 0 && entry[length] == '=' && isdigit((unsigned char)entry[length + 1]))
            value = strtoll(entry + length + 1, NULL, 10);
        used = 0;
    }
    fclose(f);
    return value;
}

int process_children(pid_t parent, pid_t out[], int most)
{
    DIR *d = opendir("/proc");
    int n = 0;

    if (!d) return 0;
    for (struct dirent *e; n < most && (e = readdir(d));) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;
        struct process p;

        if (pid > 0 && process_find(pid, &p) && p.parent == parent) out[n++] = pid;
    }
    closedir(d);
    return n;
}
