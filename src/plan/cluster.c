/* cluster.c - reads machine files. */
#include "plan/cluster.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "base/yaml.h"
#include "plan/builtin.h"

/* A key of a machine file, and where its value goes. */
struct cluster_key {
    const char *name;
    enum { KEY_TEXT, KEY_NUMBER, KEY_BYTES, KEY_COUNT, KEY_FLAG, KEY_NCCL } kind;
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
#define OPTIONAL(key, kind, field, low, high)                       \
    {                                                               \
        key, kind, offsetof(struct cluster, field), low, high, true \
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
    OPTIONAL("processor.group_buffers", KEY_BYTES, group_buffers, 0, 1e18),
    RATE("processor.bandwidth", bandwidth),
    OPTIONAL("processor.units", KEY_COUNT, units, 1, 65536),
    SECONDS("efficiency.launch", launch),
    SHARE("efficiency.matmul", matmul),
    SECONDS("efficiency.host", host),
    OPTIONAL("efficiency.eager", KEY_NUMBER, eager, 1, 10),
    SHARE("efficiency.attention", attention),
    OPTIONAL("efficiency.attention_query", KEY_NUMBER, query, 0, 1e5),
    OPTIONAL("efficiency.attention_2", KEY_NUMBER, attention_2, 1, 10),
    SHARE("efficiency.memory_bound", memory_bound),
    SHARE("efficiency.link_share", link_share),
    OPTIONAL("node.serial", KEY_FLAG, serial, 0, 1),
    { "node.processors", KEY_COUNT, offsetof(struct cluster, processors), 1, 4096, false },
    RATE("node.bandwidth", node.bandwidth),
    SECONDS("node.latency", node.latency),
    RATE("network.bandwidth", network.bandwidth),
    SECONDS("network.latency", network.latency),
    OPTIONAL("nccl.generation", KEY_NCCL, nccl, 0, 0),
    OPTIONAL("nccl.channels", KEY_COUNT, channels, 1, 1024),
    OPTIONAL("nccl.nvls", KEY_NUMBER, nvls, 1e6, 1e18),
    OPTIONAL("spine.pod", KEY_COUNT, pod, 1, 1e6),
    OPTIONAL("spine.bandwidth", KEY_NUMBER, spine.bandwidth, 1e6, 1e18),
    OPTIONAL("spine.latency", KEY_NUMBER, spine.latency, 0, 1),
    OPTIONAL("spine.paths", KEY_COUNT, paths, 1, 1e6),
    OPTIONAL("offload.bandwidth", KEY_NUMBER, offload.bandwidth, 1e6, 1e18),
    OPTIONAL("offload.memory", KEY_BYTES, offload.memory, 1 << 20, 1e18),
    OPTIONAL("offload.read", KEY_NUMBER, offload.read, 1e3, 1e18),
    OPTIONAL("offload.write", KEY_NUMBER, offload.write, 1e3, 1e18),
    OPTIONAL("storage.read", KEY_NUMBER, read, 1e3, 1e18),
    OPTIONAL("storage.write", KEY_NUMBER, write, 1e3, 1e18),
    OPTIONAL("storage.shared", KEY_NUMBER, shared, 1e3, 1e18),
    OPTIONAL("failures.processor", KEY_NUMBER, failures[FAILURE_PROCESSOR], 0, 1e3),
    OPTIONAL("failures.network", KEY_NUMBER, failures[FAILURE_NETWORK], 0, 1e3),
    OPTIONAL("failures.host", KEY_NUMBER, failures[FAILURE_HOST], 0, 1e3),
    OPTIONAL("failures.software", KEY_NUMBER, failures[FAILURE_SOFTWARE], 0, 1e3),
    OPTIONAL("failures.planned", KEY_NUMBER, failures[FAILURE_PLANNED], 0, 1e3),
    OPTIONAL("failures.detect", KEY_NUMBER, detect, 0, 1e6),
    OPTIONAL("failures.restart", KEY_NUMBER, restart, 0, 1e6),
    OPTIONAL("failures.repair", KEY_NUMBER, repair, 0, 1e8),
    OPTIONAL("price.hour", KEY_NUMBER, price, 1e-6, 1e6),
    OPTIONAL("price.currency", KEY_TEXT, currency, 0, 0),
};

struct cluster_reading {
    struct cluster *out;
    int line[COUNT_OF(cluster_keys)]; /* line of each key; 0: not in the file */
};

const char *failure_name(enum failure_kind kind)
{
    static const char *const names[FAILURES] = { "processor", "network", "host", "software", "planned" };

    return names[kind];
}

static ls_status cluster_number(const struct cluster_key *k, const char *value, double *x)
{
    size_t bytes;
    bool read = text_read_real(value, x);

    if (!read && k->kind == KEY_BYTES && (read = text_read_bytes(value, &bytes))) *x = (double)bytes;
    if (!read) return ls_fail(LS_EINVAL, "%s: '%s' is not a number", k->name, value);
    if (!(*x >= k->low && *x <= k->high)) return ls_fail(LS_EINVAL, "%s: %s is impossible; use %g to %g", k->name, value, k->low, k->high);
    if (k->kind == KEY_FLAG && *x != 0 && *x != 1) return ls_fail(LS_EINVAL, "%s: use 0 or 1", k->name);
    if (k->kind == KEY_COUNT && *x != (double)(int)*x) return ls_fail(LS_EINVAL, "%s: %s is not a whole number", k->name, value);
    return LS_OK;
}

static ls_status set_nccl(const char *value, char *at)
{
    for (int g = NCCL_NONE + 1; g < NCCL_GENERATIONS; g++) {
        if (strcmp(value, nccl_generation_name((enum nccl_generation)g)) != 0) continue;
        memcpy(at, &(enum nccl_generation){ (enum nccl_generation)g }, sizeof(enum nccl_generation));
        return LS_OK;
    }
    return ls_fail(LS_EINVAL, "nccl.generation: '%s' does not exist; use volta, ampere, hopper or blackwell", value);
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
    if (k->kind == KEY_NCCL) return set_nccl(value, at);
    LS_TRY(cluster_number(k, value, &x));
    if (k->kind == KEY_COUNT)
        memcpy(at, &(int){ (int)x }, sizeof(int));
    else if (k->kind == KEY_FLAG)
        memcpy(at, &(bool){ x > 0 }, sizeof(bool));
    else
        memcpy(at, &x, sizeof x);
    return LS_OK;
}

/* ---- curves ---- */

static ls_status curve_point(struct cluster_curve *x, const char *pair)
{
    char size[32], *colon;

    snprintf(size, sizeof size, "%s", pair);
    if ((colon = strchr(size, ':'))) *colon++ = '\0';
    if (x->points == CURVE_POINTS) return ls_fail(LS_EINVAL, "%s: more than %d points", x->name, CURVE_POINTS);
    double *at = &x->size[x->points], *seconds = &x->seconds[x->points];
    if (!colon || !text_read_real(size, at) || !text_read_real(colon, seconds) || !(*at > 0) || !(*seconds > 0))
        return ls_fail(LS_EINVAL, "%s: '%s' is not a pair of numbers above 0, as in 1e6:2.5e-5", x->name, pair);
    if (x->points && *at <= at[-1]) return ls_fail(LS_EINVAL, "%s: size %s is not above the one before it", x->name, size);
    x->points++;
    return LS_OK;
}

static ls_status curve_set(struct cluster *c, const char *key, const char *value)
{
    struct cluster_curve *x = &c->curve[c->curves];
    char text[1024], *rest = text, *pair;

    if (c->curves == CURVES_MOST) return ls_fail(LS_EINVAL, "%s: more than %d curves", key, CURVES_MOST);
    if (strlen(key) >= CURVE_NAME || strlen(value) >= sizeof text)
        return ls_fail(LS_EINVAL, "%.60s: the name or the list is too long", key);
    memcpy(x->name, key, strlen(key) + 1);
    memcpy(text, value, strlen(value) + 1);
    while ((pair = strsep(&rest, " ")))
        if (*pair) LS_TRY(curve_point(x, pair));
    if (!x->points) return ls_fail(LS_EINVAL, "%s: no points", key);
    c->curves++;
    return LS_OK;
}

const struct cluster_curve *cluster_find_curve(const struct cluster *c, const char *name)
{
    for (int i = 0; i < c->curves; i++)
        if (strcmp(c->curve[i].name, name) == 0) return &c->curve[i];
    return NULL;
}

double cluster_curve_at(const struct cluster_curve *x, double size)
{
    int last = x->points - 1, i = 0;

    if (size <= x->size[0]) return x->seconds[0];
    if (size >= x->size[last]) return x->seconds[last] * size / x->size[last];
    while (size > x->size[i + 1]) i++;
    double along = log(size / x->size[i]) / log(x->size[i + 1] / x->size[i]);
    return x->seconds[i] * pow(x->seconds[i + 1] / x->seconds[i], along);
}

/* ---- reading ---- */

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

static bool is_curve(const char *key)
{
    return strncmp(key, "kernels.", 8) == 0 || strncmp(key, "collectives.", 12) == 0 || strcmp(key, "network.all_reduce") == 0 ||
           strcmp(key, "network.all_gather") == 0;
}

static ls_status cluster_entry(void *ctx, const char *key, const char *value, int line)
{
    struct cluster_reading *r = ctx;

    for (size_t i = 0; i < COUNT_OF(cluster_keys); i++)
        if (strcmp(key, cluster_keys[i].name) == 0) {
            r->line[i] = line;
            return cluster_set(&cluster_keys[i], value, r->out);
        }
    if (is_curve(key)) return curve_set(r->out, key, value);
    return cluster_unknown(key);
}

static int line_of(const struct cluster_reading *r, const char *key)
{
    size_t i = 0;

    while (strcmp(cluster_keys[i].name, key) != 0) i++;
    return r->line[i];
}

/* Keys that have no meaning without each other. */
static ls_status check_together(const struct cluster_reading *r, const char *name)
{
    static const char *const pairs[][2] = {
        { "spine.pod", "spine.bandwidth" },       { "spine.bandwidth", "spine.latency" },       { "spine.latency", "spine.pod" },
        { "spine.paths", "spine.pod" },           { "storage.read", "storage.write" },          { "storage.write", "storage.read" },
        { "storage.shared", "storage.write" },    { "offload.bandwidth", "offload.memory" },    { "offload.memory", "offload.bandwidth" },
        { "offload.read", "offload.write" },      { "offload.write", "offload.bandwidth" },     { "nccl.nvls", "nccl.generation" },
        { "nccl.channels", "processor.units" },   { "failures.processor", "failures.restart" }, { "failures.network", "failures.restart" },
        { "failures.host", "failures.restart" },  { "failures.software", "failures.restart" },  { "failures.restart", "failures.detect" },
        { "failures.detect", "failures.repair" }, { "failures.repair", "failures.restart" },    { "price.hour", "price.currency" },
        { "price.currency", "price.hour" }
    };

    for (size_t i = 0; i < COUNT_OF(pairs); i++)
        if (line_of(r, pairs[i][0]) && !line_of(r, pairs[i][1]))
            return ls_fail(LS_EINVAL, "%s:%d: %s needs '%s'", name, line_of(r, pairs[i][0]), pairs[i][0], pairs[i][1]);
    return LS_OK;
}

static ls_status cluster_check(const struct cluster_reading *r, const char *name)
{
    const struct cluster *c = r->out;

    for (size_t i = 0; i < COUNT_OF(cluster_keys); i++)
        if (!r->line[i] && !cluster_keys[i].optional) return ls_fail(LS_EINVAL, "%s: '%s' is missing", name, cluster_keys[i].name);
    if (c->flops[LS_F32] == 0 && c->flops[LS_BF16] == 0 && c->flops[LS_F16] == 0)
        return ls_fail(LS_EINVAL, "%s: no peak is given; set processor.bf16, fp16 or fp32", name);
    LS_TRY(check_together(r, name));
    if (c->spine.bandwidth > c->network.bandwidth)
        return ls_fail(LS_EINVAL, "%s: spine.bandwidth is more than network.bandwidth, by which it is reached", name);
    if (c->units && c->channels >= c->units)
        return ls_fail(LS_EINVAL, "%s: nccl.channels: %d of a processor's %d units leave none for kernels", name, c->channels, c->units);
    if (c->reserved >= c->memory) return ls_fail(LS_EINVAL, "%s: processor.reserved is not below processor.memory", name);
    return LS_OK;
}

static ls_status fail_no_machine(const char *name)
{
    struct text names = { 0 };

    for (int i = 0; cluster_builtin(i); i++) text_put(&names, "%s%s", i ? ", " : "", cluster_builtin(i));
    ls_status st = ls_fail(LS_EINVAL, "machine '%s': it is not one of %s; a file is named by its path, ./FILE.yaml", name,
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

ls_status cluster_read_own(const char *name, struct cluster *out)
{
    LS_TRY(cluster_read(name, out));
    out->host = 0;
    return LS_OK;
}
