/* cores.c - the order of processors comes from hwloc, the allowed ones from the kernel.
 *
 * The topology is read when shares are made, once per launch; the sizes of caches once per process.
 */
#include "base/cores.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"

/* ---- how many ---- */

static int mask_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return MAX(1, CPU_COUNT(&set));
}

int cores_quota(const char *cpu_max)
{
    long long quota, period;

    if (sscanf(cpu_max, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
    return (int)MIN((quota + period - 1) / period, 1 << 20);
}

static int quota_of(const char *folder)
{
    char path[4200], text[64] = "";

    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", folder);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (!fgets(text, sizeof text, f)) text[0] = '\0';
    fclose(f);
    return cores_quota(text);
}

/* Our group's line of /proc/self/cgroup is "0::/a/b"; any level may set a limit. 0: none. */
static int quota(void)
{
    char line[4096], folder[4096] = "";
    int least = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "0::/", 4) == 0) snprintf(folder, sizeof folder, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    fclose(f);
    for (char *slash = folder; slash;) {
        int here = quota_of(folder);

        if (here && (!least || here < least)) least = here;
        slash = strrchr(folder, '/');
        if (slash) *slash = '\0';
    }
    return least;
}

int cores_count(void)
{
    int limit = quota(), have = mask_count();

    return limit ? MIN(limit, have) : have;
}

int cores_per_rank(int ranks) { return MAX(1, cores_count() / MAX(ranks, 1)); }

int cores_of_job(bool bound, cpu_set_t *out)
{
    cpu_set_t own, launcher, both;
    int limit = quota();

    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own) != 0) CPU_SET(0, &own);
    *out = own;
    if (bound && sched_getaffinity(getppid(), sizeof launcher, &launcher) == 0) {
        CPU_AND(&both, &own, &launcher);
        if (CPU_EQUAL(&both, &own)) *out = launcher;
    }
    return limit ? MIN(limit, CPU_COUNT(out)) : CPU_COUNT(out);
}

/* ---- shares ---- */

/* Counts objects of a kind that contain a processor we may use. */
static int allowed(hwloc_topology_t t, hwloc_obj_type_t kind, hwloc_const_cpuset_t mask)
{
    int count = 0;

    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(t, kind, o));) count += hwloc_bitmap_intersects(o->cpuset, mask);
    return count;
}

/* Object i of `count` goes to share i * n / count: neighbors together, sizes differ by one object at most. */
static bool deal(hwloc_topology_t t, hwloc_obj_type_t kind, hwloc_const_cpuset_t mask, int count, int n, cpu_set_t out[])
{
    hwloc_bitmap_t both = hwloc_bitmap_alloc();
    int i = 0;

    if (!both) return false;
    for (int k = 0; k < n; k++) CPU_ZERO(&out[k]);
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(t, kind, o));) {
        if (!hwloc_bitmap_intersects(o->cpuset, mask)) continue;
        cpu_set_t set;
        hwloc_bitmap_and(both, o->cpuset, mask);
        hwloc_cpuset_to_glibc_sched_affinity(t, both, &set, sizeof set);
        cpu_set_t *mine = &out[(long long)i++ * n / count];
        CPU_OR(mine, mine, &set);
    }
    hwloc_bitmap_free(both);
    return true;
}

static bool share(hwloc_topology_t t, hwloc_bitmap_t mask, int n, cpu_set_t out[])
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
    if (hwloc_cpuset_from_glibc_sched_affinity(t, mask, &set, sizeof set) != 0) return false;
    int cores = allowed(t, HWLOC_OBJ_CORE, mask), processors = allowed(t, HWLOC_OBJ_PU, mask);
    if (processors < n) return false;
    return cores >= n ? deal(t, HWLOC_OBJ_CORE, mask, cores, n, out) : deal(t, HWLOC_OBJ_PU, mask, processors, n, out);
}

bool cores_share(int n, cpu_set_t out[])
{
    hwloc_topology_t t;

    ASSERT(n >= 1);
    if (hwloc_topology_init(&t) != 0) return false;
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    bool done = mask && hwloc_topology_load(t) == 0 && share(t, mask, n, out);
    hwloc_bitmap_free(mask);
    hwloc_topology_destroy(t);
    return done;
}

/* ---- caches ---- */

enum { CACHE_LEVELS = 5 };

static size_t cache_bytes[CACHE_LEVELS];

static bool read_cache_line(int processor, int index, const char *name, char *line, size_t room)
{
    char path[128];

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", processor, index, name);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool got = fgets(line, (int)room, f) != NULL;
    fclose(f);
    return got;
}

static void read_caches(void)
{
    int processor = MAX(0, sched_getcpu()), level;
    char line[64], unit;
    size_t size;

    for (int i = 0; read_cache_line(processor, i, "level", line, sizeof line); i++) {
        if (sscanf(line, "%d", &level) != 1 || level < 1 || level >= CACHE_LEVELS) continue;
        if (!read_cache_line(processor, i, "type", line, sizeof line) || strncmp(line, "Instruction", 11) == 0) continue;
        if (!read_cache_line(processor, i, "size", line, sizeof line) || sscanf(line, "%zu%c", &size, &unit) != 2) continue;
        cache_bytes[level] = size << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
    }
}

size_t cores_cache(int level)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_caches);
    return level > 0 && level < CACHE_LEVELS ? cache_bytes[level] : 0;
}
