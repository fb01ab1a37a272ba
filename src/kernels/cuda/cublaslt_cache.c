/* cublaslt_cache.c - see cublaslt_cache.h. */
#include "kernels/cuda/cublaslt_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/base.h"
#include "base/pulse.h"

enum { PATH_ROOM = 4200, LINE_ROOM = CUBLASLT_KEY + 256, POLL = 1000 };

static ls_status cache_fail(const char *path) { return ls_fail(LS_EIO, "the cache of matmul algorithms: %s: %s", path, strerror(errno)); }

/* mkdir -p; what fails is found when a file in it is opened. */
static void cache_make_folder(const char *folder)
{
    char path[PATH_ROOM];

    snprintf(path, sizeof path, "%s", folder);
    for (char *at = path + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            mkdir(path, 0777);
            *at = '/';
        }
    mkdir(path, 0777);
}

ls_status cublaslt_cache_lock(const char *folder, struct cublaslt_cache *out)
{
    char path[PATH_ROOM];

    snprintf(out->folder, sizeof out->folder, "%s", folder);
    cache_make_folder(folder);
    snprintf(path, sizeof path, "%s/matmuls.lock", folder);
    out->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (out->lock < 0) return cache_fail(path);
    while (flock(out->lock, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            close(out->lock);
            return cache_fail(path);
        }
        pulse(); /* another rank measures */
        usleep(POLL);
    }
    return LS_OK;
}

void cublaslt_cache_unlock(struct cublaslt_cache *c) { close(c->lock); }

/* False: not such a line. */
static bool choice_parse(const char *line, struct cublaslt_choice *out)
{
    const char *tab = strchr(line, '\t'), *end = strchr(line, '\n');
    uint64_t *a = out->algorithm;
    int used = 0;

    if (!tab || !end || tab == line || tab - line >= CUBLASLT_KEY) return false;
    memcpy(out->key, line, (size_t)(tab - line));
    out->key[tab - line] = 0;
    return sscanf(tab + 1, "%" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 "\t%lf%n", &a[0],
                  &a[1], &a[2], &a[3], &a[4], &a[5], &a[6], &a[7], &out->seconds, &used) == CUBLASLT_WORDS + 1 &&
           tab + 1 + used == end;
}

static void choice_print(FILE *f, const struct cublaslt_choice *x)
{
    fprintf(f, "%s\t", x->key);
    for (int w = 0; w < CUBLASLT_WORDS; w++) fprintf(f, "%s%016" PRIx64, w ? " " : "", x->algorithm[w]);
    fprintf(f, "\t%.9f\n", x->seconds);
}

static FILE *cache_open(const struct cublaslt_cache *c)
{
    char path[PATH_ROOM];

    snprintf(path, sizeof path, "%s/matmuls.txt", c->folder);
    return fopen(path, "re");
}

bool cublaslt_cache_find(const struct cublaslt_cache *c, struct cublaslt_choice *x)
{
    FILE *f = cache_open(c);
    struct cublaslt_choice other;
    char line[LINE_ROOM];
    bool found = false;

    while (f && fgets(line, sizeof line, f))
        if (choice_parse(line, &other) && strcmp(other.key, x->key) == 0) {
            *x = other;
            found = true;
        }
    if (f) fclose(f);
    return found;
}

static void cache_copy(const struct cublaslt_cache *c, FILE *to, const char *without)
{
    FILE *f = cache_open(c);
    struct cublaslt_choice x;
    char line[LINE_ROOM];

    while (f && fgets(line, sizeof line, f))
        if (choice_parse(line, &x) && strcmp(x.key, without) != 0) choice_print(to, &x);
    if (f) fclose(f);
}

ls_status cublaslt_cache_put(const struct cublaslt_cache *c, const struct cublaslt_choice *x)
{
    char path[PATH_ROOM], made[PATH_ROOM];

    snprintf(path, sizeof path, "%s/matmuls.txt", c->folder);
    snprintf(made, sizeof made, "%s/matmuls.new", c->folder); /* the writer holds the lock */
    FILE *f = fopen(made, "we");
    if (!f) return cache_fail(made);
    cache_copy(c, f, x->key);
    choice_print(f, x);
    bool good = fflush(f) == 0 && fsync(fileno(f)) == 0;
    good = fclose(f) == 0 && good;
    return good && rename(made, path) == 0 ? LS_OK : cache_fail(made);
}
