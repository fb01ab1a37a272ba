/* cluster.c - reads machine files. */
#include "plan/cluster.h"

#include <stddef.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "base/yaml.h"
#include "plan/builtin.h"

/* A key of a machine file, and where its value goes. */
struct cluster_key {
    const char *name;
    enum { KEY_TEXT, KEY_NUMBER, KEY_BYTES, KEY_COUNT } kind;
    size_t at; /* offset in struct cluster */
    double low, high;
    bool optional;
};

#define SHARE(key, field)                                                \
    {                                                                    \
        key, KEY_NUMBER, offsetof(struct cluster, field), 0.01, 1, false \
    }
#define SECONDS(key, field)                                           \
    {                                                                 \
        key, KEY_NUMBER, offsetof(struct cluster, field), 0, 1, false \
    }
#define RATE(key, field)                                                   \
    {                                                                      \
        key, KEY_NUMBER, offsetof(struct cluster, field), 1e6, 1e18, false \
    }
#define PEAK(key, type)                                                         \
    {                                                                           \
        key, KEY_NUMBER, offsetof(struct cluster, flops[type]), 1e6, 1e18, true \
    }

static const struct cluster_key cluster_keys[] = {
    { "machine.name", KEY_TEXT, offsetof(struct cluster, name), 0, 0, false },
    { "processor.name", KEY_TEXT, offsetof(struct cluster, processor), 0, 0, false },
    PEAK("processor.fp32", LS_F32),
    PEAK("processor.bf16", LS_BF16),
    PEAK("processor.fp16", LS_F16),
    { "processor.memory", KEY_BYTES, offsetof(struct cluster, memory), 1 << 20, 1e18, false },
    { "processor.reserved", KEY_BYTES, offsetof(struct cluster, reserved), 0, 1e18, true },
    RATE("processor.bandwidth", bandwidth),
    SECONDS("efficiency.launch", launch),
    SHARE("efficiency.matmul", matmul),
    SECONDS("efficiency.host", host),
    SHARE("efficiency.attention", attention),
    SHARE("efficiency.memory_bound", memory_bound),
    SHARE("efficiency.link_share", link_share),
    { "node.processors", KEY_COUNT, offsetof(struct cluster, processors), 1, 4096, false },
    RATE("node.bandwidth", node.bandwidth),
    SECONDS("node.latency", node.latency),
    RATE("network.bandwidth", network.bandwidth),
    SECONDS("network.latency", network.latency),
};

struct cluster_reading {
    struct cluster *out;
    int line[COUNT_OF(cluster_keys)]; /* where each key is; 0: nowhere */
};

static ls_status cluster_number(const struct cluster_key *k, const char *value, double *x)
{
    size_t bytes;
    bool read = text_read_real(value, x);

    if (!read && k->kind == KEY_BYTES && (read = text_read_bytes(value, &bytes))) *x = (double)bytes;
    if (!read) return ls_fail(LS_EINVAL, "%s: '%s' is not a number", k->name, value);
    if (!(*x >= k->low && *x <= k->high)) return ls_fail(LS_EINVAL, "%s: %s is impossible; use %g to %g", k->name, value, k->low, k->high);
    if (k->kind == KEY_COUNT && *x != (double)(int)*x) return ls_fail(LS_EINVAL, "%s: %s is not a whole number", k->name, value);
    return LS_OK;
}

static ls_status cluster_set(const struct cluster_key *k, const char *value, struct cluster *out)
{
    char *at = (char *)out + k->at;
    double x;

    if (k->kind == KEY_TEXT) {
        if (!*value || strlen(value) >= CLUSTER_NAME) return ls_fail(LS_EINVAL, "%s: use 1 to %d bytes", k->name, CLUSTER_NAME - 1);
        memcpy(at, value, strlen(value) + 1);
        return LS_OK;
    }
    LS_TRY(cluster_number(k, value, &x));
    if (k->kind == KEY_COUNT)
        memcpy(at, &(int){ (int)x }, sizeof(int));
    else
        memcpy(at, &x, sizeof x);
    return LS_OK;
}

static ls_status cluster_unknown(const char *key)
{
    const char *near = NULL;
    size_t least = 4;

    for (size_t i = 0; i < COUNT_OF(cluster_keys); i++) {
        size_t far = text_distance(key, cluster_keys[i].name);

        if (far >= least) continue;
        least = far;
        near = cluster_keys[i].name;
    }
    if (near) return ls_fail(LS_EINVAL, "unknown key '%s'; did you mean '%s'?", key, near);
    return ls_fail(LS_EINVAL, "unknown key '%s'", key);
}

static ls_status cluster_entry(void *ctx, const char *key, const char *value, int line)
{
    struct cluster_reading *r = ctx;

    for (size_t i = 0; i < COUNT_OF(cluster_keys); i++)
        if (strcmp(key, cluster_keys[i].name) == 0) {
            r->line[i] = line;
            return cluster_set(&cluster_keys[i], value, r->out);
        }
    return cluster_unknown(key);
}

static ls_status cluster_check(const struct cluster_reading *r, const char *name)
{
    const struct cluster *c = r->out;

    for (size_t i = 0; i < COUNT_OF(cluster_keys); i++)
        if (!r->line[i] && !cluster_keys[i].optional) return ls_fail(LS_EINVAL, "%s: '%s' is missing", name, cluster_keys[i].name);
    if (c->flops[LS_F32] == 0 && c->flops[LS_BF16] == 0 && c->flops[LS_F16] == 0)
        return ls_fail(LS_EINVAL, "%s: no peak is given; set processor.bf16, fp16 or fp32", name);
    if (c->reserved >= c->memory) return ls_fail(LS_EINVAL, "%s: processor.reserved is not below processor.memory", name);
    return LS_OK;
}

static ls_status fail_no_machine(const char *name)
{
    struct text names = { 0 };
    ls_status st;

    for (int i = 0; cluster_builtin(i); i++) text_put(&names, "%s%s", i ? ", " : "", cluster_builtin(i));
    st = ls_fail(LS_EINVAL, "machine '%s': it is not one of %s; a file is named by its path, ./FILE.yaml", name,
                 names.data ? names.data : "none");
    text_free(&names);
    return st;
}

const char *cluster_builtin(int i) { return i < builtin_machines ? builtin_machine[i].name : NULL; }

ls_status cluster_read(const char *name, struct cluster *out)
{
    struct cluster_reading r = { .out = out };

    memset(out, 0, sizeof *out);
    for (int i = 0; i < builtin_machines; i++)
        if (strcmp(name, builtin_machine[i].name) == 0) {
            LS_TRY(yaml_parse(builtin_machine[i].text, strlen(builtin_machine[i].text), name, cluster_entry, &r));
            return cluster_check(&r, name);
        }
    if (!strchr(name, '/') && !strchr(name, '.')) return fail_no_machine(name);
    LS_TRY(yaml_read(name, cluster_entry, &r));
    return cluster_check(&r, name);
}
