/* machine_memory.c - free memory as Linux reports it: in /proc/meminfo, and in control groups of version 2 or 1. */
#include "train/run/machine.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include "base/base.h"

/* The number that a file consists of; SIZE_MAX if it says "max" or cannot be read. */
static size_t number_in(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned long long value;

    if (!f) return SIZE_MAX;
    int found = fscanf(f, "%llu", &value);
    fclose(f);
    return found == 1 ? (size_t)value : SIZE_MAX;
}

static size_t available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib;
    size_t bytes = SIZE_MAX;

    if (!f) return SIZE_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) bytes = (size_t)kib * 1024;
    fclose(f);
    return bytes;
}

/* A group counts page cache as used, although the kernel can reclaim it: only memory without a file is really in use. */
static size_t left_in_group(const char *limit, const char *stat, const char *key)
{
    size_t most = number_in(limit), used = 0;
    char line[128], name[64];
    unsigned long long value;
    FILE *f;

    if (most == SIZE_MAX || !(f = fopen(stat, "re"))) return SIZE_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %llu", name, &value) == 2 && strcmp(name, key) == 0) used = (size_t)value;
    fclose(f);
    return most > used ? most - used : 0;
}

size_t machine_free_memory(void)
{
    size_t v2 = left_in_group("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.stat", "anon"); /* versions of cgroups */
    size_t v1 = left_in_group("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.stat", "total_rss");
    size_t least = available();

    least = MIN(least, MIN(v1, v2));
    return least == SIZE_MAX ? 0 : least;
}

size_t machine_peak_rss(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (size_t)usage.ru_maxrss * 1024;
}
