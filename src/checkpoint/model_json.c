/* model_json.c - the fields of ls_model in one table, for writing and for reading. */
#include "checkpoint/model_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"

enum kind { KIND_SIZE, KIND_FLAG, KIND_REAL };
struct field {
    const char *name;
    enum kind kind;
    size_t offset;
};

#define FAMILY_NAME(upper, name) ", " #name

#define SIZE(name)                                 \
    {                                              \
#name, KIND_SIZE, offsetof(ls_model, name) \
    }
#define FLAG(name)                                 \
    {                                              \
#name, KIND_FLAG, offsetof(ls_model, name) \
    }
#define REAL(name)                                 \
    {                                              \
#name, KIND_REAL, offsetof(ls_model, name) \
    }
static const struct field fields[] = {
    SIZE(layers), SIZE(width),         SIZE(heads), SIZE(kv_heads), SIZE(head_size), SIZE(ffn),
    SIZE(vocab),  SIZE(max_positions), FLAG(tied),  REAL(norm_eps), REAL(dropout),   REAL(init_std),
};
/* Only for families with dropout. */
static const struct field drop_fields[] = { REAL(attention_dropout) };
/* Only for models with experts. */
static const struct field expert_fields[] = {
    SIZE(experts),
    SIZE(experts_per_token),
    SIZE(expert_ffn),
    SIZE(shared_ffn),
    FLAG(norm_topk),
    REAL(capacity),
    REAL(aux_coef),
    REAL(z_coef),
    { "balance", KIND_REAL, offsetof(ls_model, router_bias_rate) }, /* keeps the key of earlier versions */
};
#define NAME_OF(upper, name)              #name,
#define ACTIVATION_NAME(upper, name, ...) #name,
static const char *const activations[] = { LS_ACTIVATION_MAP(ACTIVATION_NAME) };
static const char *const routers[] = { LS_ROUTER_MAP(NAME_OF) };
static const char *const scopes[] = { "sequence", "micro_batch" };
static const char *const drops[] = { LS_DROP_MAP(NAME_OF) };
#undef REAL
#undef FLAG
#define REAL(name)                                \
    {                                             \
#name, KIND_REAL, offsetof(ls_rope, name) \
    }
static const struct field rope_fields[] = {
    REAL(theta),
    REAL(factor),
    REAL(low_freq_factor),
    REAL(high_freq_factor),
};
#undef REAL
#undef SIZE

static void put_fields(struct json_out *j, const void *from, const struct field *f, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const void *at = (const char *)from + f[i].offset;

        if (f[i].kind == KIND_SIZE)
            json_put_int(j, f[i].name, (int64_t) * (const size_t *)at);
        else if (f[i].kind == KIND_FLAG)
            json_put_bool(j, f[i].name, *(const int *)at);
        else
            json_put_real(j, f[i].name, *(const double *)at);
    }
}

static bool model_json_fits(enum kind kind, const json_node *value)
{
    enum json_kind found = json_kind_of(value);

    switch (kind) {
    case KIND_SIZE: return json_int(value, -1) >= 0;
    case KIND_FLAG: return found == JSON_BOOL;
    case KIND_REAL: return found == JSON_REAL || found == JSON_INT;
    }
    return false;
}

static ls_status get_fields(const json_node *n, const char *what, void *to, const struct field *f, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const json_node *value = json_get(n, f[i].name);
        void *at = (char *)to + f[i].offset;

        if (!model_json_fits(f[i].kind, value))
            return ls_fail(LS_EFORMAT, "%s: model: \"%s\" is %s", what, f[i].name, value ? "of the wrong type" : "missing");
        if (f[i].kind == KIND_SIZE)
            *(size_t *)at = (size_t)json_int(value, 0);
        else if (f[i].kind == KIND_FLAG)
            *(int *)at = json_bool(value, 0);
        else
            *(double *)at = json_real(value, 0);
    }
    return LS_OK;
}

void json_put_u64(struct json_out *j, const char *key, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    json_put_string(j, key, text);
}

ls_status json_get_u64(const json_node *object, const char *key, const char *what, uint64_t *out)
{
    const char *text = json_string(json_get(object, key), "");
    char *end;

    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno)
        return ls_fail(LS_EFORMAT, "%s: \"%s\" is not a string with a 64-bit number", what, key);
    *out = value;
    return LS_OK;
}

/* *out = the index of the name that is the key's value. */
static ls_status get_name(const json_node *n, const char *what, const char *key, const char *const *names, int count, int *out)
{
    const char *name = json_string(json_get(n, key), "");

    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = i;
            return LS_OK;
        }
    struct text expected = { 0 };

    for (int i = 0; i < count; i++) text_put(&expected, "%s%s", i == 0 ? "" : i < count - 1 ? ", " : " or ", names[i]);
    ls_status st = text_status(&expected);
    if (st == LS_OK) st = ls_fail(LS_EFORMAT, "%s: model: \"%s\" is '%s'; expected %s", what, key, name, expected.data);
    text_free(&expected);
    return st;
}

/* Without the key: from a version in which a flag selected GELU's form. */
static ls_status get_activation(const json_node *n, const char *what, ls_model *m)
{
    int activation = json_bool(json_get(n, "exact_gelu"), 0) ? LS_GELU_ERF : LS_GELU_TANH;

    if (!json_get(n, "exact_gelu")) LS_TRY(get_name(n, what, "activation", activations, COUNT_OF(activations), &activation));
    m->activation = (ls_activation)activation;
    return LS_OK;
}

static ls_status get_experts(const json_node *n, const char *what, ls_model *m)
{
    int router = 0, drop = 0, scope = 1; /* without the key: from a version in which the micro-batch was the only scope */

    LS_TRY(get_fields(n, what, m, expert_fields, COUNT_OF(expert_fields)));
    LS_TRY(get_name(n, what, "router", routers, COUNT_OF(routers), &router));
    LS_TRY(get_name(n, what, "drop", drops, COUNT_OF(drops), &drop));
    if (json_get(n, "aux_scope")) LS_TRY(get_name(n, what, "aux_scope", scopes, COUNT_OF(scopes), &scope));
    m->aux_over_micro_batch = scope;
    m->router = (ls_router)router;
    m->drop = (ls_drop)drop;
    return LS_OK;
}

void model_json_put(struct json_out *j, const char *key, const ls_model *m)
{
    json_begin_object(j, key);
    json_put_string(j, "architecture", ls_architecture_name(m->architecture));
    put_fields(j, m, fields, COUNT_OF(fields));
    if (ls_architecture_family(m->architecture)->dropout) put_fields(j, m, drop_fields, COUNT_OF(drop_fields));
    if (ls_architecture_family(m->architecture)->activation) json_put_string(j, "activation", activations[m->activation]);
    if (m->experts) {
        put_fields(j, m, expert_fields, COUNT_OF(expert_fields));
        json_put_string(j, "router", routers[m->router]);
        json_put_string(j, "drop", drops[m->drop]);
        json_put_string(j, "aux_scope", scopes[m->aux_over_micro_batch != 0]);
    }
    json_begin_object(j, "rope");
    put_fields(j, &m->rope, rope_fields, COUNT_OF(rope_fields));
    json_put_int(j, "original_positions", m->rope.original_positions);
    json_end_object(j);
    json_put_u64(j, "seed", m->seed);
    json_end_object(j);
}

ls_status model_json_get(const json_node *n, const char *what, ls_model *out)
{
    const char *name = json_string(json_get(n, "architecture"), NULL);
    const json_node *rope = json_get(n, "rope");
    int64_t original = json_int(json_get(rope, "original_positions"), -1);
    ls_model m = { 0 };
    int a = 0;

    while (a < LS_ARCHITECTURES && (!name || strcmp(name, ls_architecture_name((ls_architecture)a)) != 0)) a++;
    if (a == LS_ARCHITECTURES)
        return ls_fail(LS_EFORMAT, "%s: model: \"architecture\" is '%s'; expected one of%s", what, name ? name : "",
                       &(LS_FAMILY_MAP(FAMILY_NAME))[1]);
    if (original < 0) return ls_fail(LS_EFORMAT, "%s: model: \"rope\" has no \"original_positions\"", what);
    m.architecture = (ls_architecture)a;
    m.rope.original_positions = original;
    LS_TRY(get_fields(n, what, &m, fields, COUNT_OF(fields)));
    if (json_get(n, drop_fields[0].name))
        LS_TRY(get_fields(n, what, &m, drop_fields, COUNT_OF(drop_fields))); /* without: from an earlier version */
    if (ls_architecture_family(m.architecture)->activation) LS_TRY(get_activation(n, what, &m));
    if (ls_architecture_family(m.architecture)->experts) LS_TRY(get_experts(n, what, &m));
    LS_TRY(get_fields(rope, what, &m.rope, rope_fields, COUNT_OF(rope_fields)));
    LS_TRY(json_get_u64(n, "seed", what, &m.seed));
    if (ls_model_check(&m) < 0) return ls_fail_at(LS_EFORMAT, "%s", what);
    *out = m;
    return LS_OK;
}
