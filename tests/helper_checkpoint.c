/* helper_checkpoint.c */
#include "helper_checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "runtime/store.h"
#include "train/faults/fault_points.h"

static char checkpoint_folder[64];

int scratch_set_up(void **state)
{
    (void)state;
    strcpy(checkpoint_folder, "/dev/shm/checkpoint_XXXXXX");  /* where syncing costs nothing: these tests save hundreds of times */
    if (mkdtemp(checkpoint_folder))
        return 0;
    strcpy(checkpoint_folder, "checkpoint_XXXXXX");
    return mkdtemp(checkpoint_folder) ? 0 : -1;
}

int scratch_tear_down(void **state)
{
    (void)state;
    file_fail_at(0);
    mem_fail_at(0);
    return file_remove_tree(checkpoint_folder);
}

const char *scratch(const char *name)
{
    static char paths[8][512];
    static int at;
    char *path = paths[at++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", checkpoint_folder, name);
    return path;
}

ls_store *small_store(ls_dtype type, int master, const char *states)
{
    static const struct { const char *name; int ndim; size_t size[LS_DIMS]; } parameter[] = {
        { "a.weight", 2, { 7, 5 } }, { "b.bias", 1, { 5 } }, { "c", 3, { 2, 3, 4 } }, { "d", 1, { 1 } },
    };
    ls_store_options o = { "cpu", type, master, 7, 0 };
    ls_store *s;
    int index;

    OK(ls_store_new(&o, &s));
    for (size_t i = 0; i < COUNT_OF(parameter); i++) {
        OK(store_declare(s, parameter[i].name, (ls_init){ LS_INIT_NORMAL, 1 }, parameter[i].ndim, parameter[i].size,
                          &index));
        if (states && strchr(states, 'm'))
            OK(ls_store_add_state(s, i, "m"));
        if (states && strchr(states, 'v'))
            OK(ls_store_add_state(s, i, "v"));
    }
    OK(ls_store_allocate(s));
    return s;
}

static void tensor_fill(ls_tensor *t, const char *name, const char *kind, uint64_t salt)
{
    uint64_t stream = rng_stream(name) ^ rng_stream(kind);
    double x[64];

    assert_true(ls_tensor_count(t) <= COUNT_OF(x));
    for (size_t i = 0; i < ls_tensor_count(t); i++)
        x[i] = rng_normal(salt, stream, i);
    x[0] = -0.0;
    if (ls_tensor_count(t) > 4) {
        x[1] = INFINITY;
        x[2] = NAN;
        x[3] = 1e-40;  /* no normal f32 */
    }
    OK(ls_tensor_write(t, x, LS_F64, ls_tensor_count(t)));
}

void small_fill(ls_store *s, uint64_t salt)
{
    for (size_t i = 0; i < ls_store_count(s); i++) {
        tensor_fill(ls_store_value(s, i), ls_store_name(s, i), "", salt);
        for (int k = 0; k < ls_store_states(s, i); k++)
            tensor_fill(ls_store_state(s, i, ls_store_state_name(s, i, k)), ls_store_name(s, i), ls_store_state_name(s, i, k),
                 salt);
    }
}

static bool same_tensor(const ls_tensor *a, const ls_tensor *b)
{
    return ls_tensor_dtype(a) == ls_tensor_dtype(b) && ls_tensor_count(a) == ls_tensor_count(b)
        && memcmp(ls_tensor_data(a), ls_tensor_data(b), ls_tensor_count(a) * ls_dtype_bytes(ls_tensor_dtype(a))) == 0;
}

bool small_same(const ls_store *a, const ls_store *b)
{
    bool same = ls_store_count(a) == ls_store_count(b);

    for (size_t i = 0; same && i < ls_store_count(a); i++) {
        same =
            same_tensor(ls_store_value(a, i), ls_store_value(b, i)) && ls_store_states(a, i) == ls_store_states(b, i);
        for (int k = 0; same && k < ls_store_states(a, i); k++) {
            const char *kind = ls_store_state_name(a, i, k);

            same = same_tensor(ls_store_state(a, i, kind), ls_store_state(b, i, kind));
        }
    }
    return same;
}

ls_train_state small_state(uint64_t step)
{
    ls_train_state s = { .step = step, .samples = 32 * step, .tokens = 1024 * step, .seed = UINT64_MAX - 3,
                         .schedule_steps = 1000, .threads = 2 };

    strcpy(s.optimizer, "adamw");
    strcpy(s.data, "text \"quoted\", 4397206 bytes");
    strcpy(s.compute, "f32");
    strcpy(s.library, "lockstep 0.1.0, oneDNN 2.6.0");
    strcpy(s.isa, "avx512");
    return s;
}

void check_same_model(const ls_model *a, const ls_model *b)
{
    assert_true(a->architecture == b->architecture && a->layers == b->layers && a->width == b->width && a->heads == b->heads);
    assert_true(a->kv_heads == b->kv_heads && a->head_size == b->head_size && a->ffn == b->ffn && a->vocab == b->vocab);
    assert_true(a->max_positions == b->max_positions && a->tied == b->tied && a->activation == b->activation);
    assert_true(a->norm_eps == b->norm_eps && a->dropout == b->dropout && a->init_std == b->init_std && a->seed == b->seed);
    assert_true(a->attention_dropout == b->attention_dropout);
    assert_true(a->rope.theta == b->rope.theta && a->rope.factor == b->rope.factor);
    assert_true(a->rope.low_freq_factor == b->rope.low_freq_factor && a->rope.high_freq_factor == b->rope.high_freq_factor);
    assert_true(a->rope.original_positions == b->rope.original_positions);
}
