/* test_checkpoint_ranks.c - a checkpoint that several ranks save together loads on any number of ranks; if the ranks are replicas,
 * it is byte for byte that of one rank; and it fails on all ranks or on none. */
#include "helper_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "helper_forked.h"
#include "runtime/store.h"
#include "train/faults/fault_points.h"

enum { BOTH = LS_LOAD_OPTIMIZER, PARAMETERS = 5, MOST = 64, STEP = 7, ALL = 7 };

static const struct { const char *name; int ndim; size_t size[3], count; } shapes[PARAMETERS] = {
    { "a", 2, { 7, 5 }, 35 }, { "b", 1, { 3 }, 3 }, { "c", 3, { 2, 3, 4 }, 24 }, { "d", 1, { 1 }, 1 }, { "outside", 1, { 11 }, 11 },
};

/* comm NULL: nothing is sharded. */
static ls_store *store_of(ls_comm *comm, ls_dtype type, unsigned sharded, enum store_backing backing)
{
    struct store_unit_options o = { .sharded = sharded, .backing = { [STORE_STATE] = backing }, .path = "/tmp" };
    ls_store *s;
    int index, group, front[] = { 1, 0 }, back[] = { 2, 3 };

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", type, 1, 7, 0 }, &s));
    for (size_t i = 0; i < PARAMETERS; i++) {
        RANKS_TRY(store_declare(s, shapes[i].name, (ls_init){ LS_INIT_NORMAL, 1 }, shapes[i].ndim, shapes[i].size, &index));
        RANKS_TRY(ls_store_add_state(s, i, "m"));
    }
    if (comm) {
        RANKS_TRY(store_unit(s, 2, front, comm, &o, &group));
        RANKS_TRY(store_unit(s, 2, back, comm, &o, &group));
    }
    RANKS_TRY(ls_store_allocate(s));
    return s;
}

/* Element e of the tensor `kind` of parameter i. */
static double checkpoint_ranks_element(size_t i, const char *kind, size_t e)
{
    return rng_normal(3, rng_stream(shapes[i].name) ^ rng_stream(kind), e);
}

static void each(ls_store *s, bool write)
{
    for (size_t i = 0; i < PARAMETERS; i++)
        for (int k = -1; k < ls_store_states(s, i); k++) {
            const char *kind = k < 0 ? "parameter" : ls_store_state_name(s, i, k);
            ls_dtype type = k < 0 ? store_value_type(s, i) : store_state_type(s);
            double want[MOST], got[MOST];
            unsigned char as_stored[MOST * 8];

            for (size_t e = 0; e < shapes[i].count; e++)
                want[e] = checkpoint_ranks_element(i, kind, e);
            if (write) {
                RANKS_TRY(ls_store_write(s, i, kind, want, LS_F64, shapes[i].count));
                continue;
            }
            ls_convert(as_stored, type, want, LS_F64, shapes[i].count);
            ls_convert(want, LS_F64, as_stored, type, shapes[i].count);
            RANKS_TRY(ls_store_read(s, i, kind, got, LS_F64, shapes[i].count));
            RANKS_CHECK(memcmp(got, want, shapes[i].count * sizeof *want) == 0);
        }
}

struct job { ls_dtype type; unsigned sharded; enum store_backing backing; const char *root; };

static void save_together(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(comm, j->type, j->sharded, j->backing);
    ls_train_state state = small_state(STEP);

    each(s, true);
    RANKS_TRY(ls_checkpoint_save_ranks(comm, j->root, s, NULL, &state, NULL));
    ls_store_release(&s);
}

static void save_alone(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(NULL, j->type, 0, BACKING_MEMORY);
    ls_train_state state = small_state(STEP);

    (void)comm;
    each(s, true);
    RANKS_TRY(ls_checkpoint_save(j->root, s, NULL, &state, NULL));
    ls_store_release(&s);
}

static void load_alone(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(NULL, j->type, 0, BACKING_MEMORY);
    char path[600];

    (void)comm;
    snprintf(path, sizeof path, "%s/step_%08d", j->root, STEP);
    RANKS_TRY(ls_checkpoint_load(path, s, BOTH, NULL));
    each(s, false);
    ls_store_release(&s);
}

static void load_together(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(comm, j->type, j->sharded, j->backing);
    char path[600];

    snprintf(path, sizeof path, "%s/step_%08d", j->root, STEP);
    RANKS_TRY(ls_checkpoint_load(path, s, BOTH, NULL));
    each(s, false);
    ls_store_release(&s);
}

static void check_same_files(const char *a, const char *b)
{
    static const char *const names[] = { "manifest.json", "parameters_0000_of_0001.safetensors", "optimizer_0000_of_0001.safetensors" };

    for (size_t k = 0; k < COUNT_OF(names); k++) {
        char x[600], y[600], *p, *q;
        size_t n, m;

        snprintf(x, sizeof x, "%s/step_%08d/%s", a, STEP, names[k]);
        snprintf(y, sizeof y, "%s/step_%08d/%s", b, STEP, names[k]);
        OK(file_read(x, &p, &n));
        OK(file_read(y, &q, &m));
        assert_int_equal(n, m);
        assert_memory_equal(p, q, n);
        mem_free(p);
        mem_free(q);
    }
}

/* Each rank has written its part, and nothing is written twice. */
static void check_shards(const char *root, unsigned sharded)
{
    char path[600];
    ls_checkpoint_info *info;
    size_t parameters = sharded & 1u << STORE_VALUE ? 3 : 1, i;

    snprintf(path, sizeof path, "%s/step_%08d", root, STEP);
    OK(ls_checkpoint_verify(path));
    OK(ls_checkpoint_inspect(path, &info));
    assert_int_equal(info->nfiles, parameters + 3);
    for (i = 0; i < info->nfiles; i++) {
        bool first = i < parameters;

        snprintf(path, sizeof path, "%s_%04zu_of_%04zu.safetensors", first ? "parameters" : "optimizer", first ? i : i - parameters,
                 first ? parameters : 3);
        assert_string_equal(info->files[i].name, path);
    }
    assert_int_equal(info->parameters, 35 + 3 + 24 + 1 + 11);
    ls_checkpoint_info_release(&info);
}

static void any_ranks_save_and_any_ranks_load(void **state)
{
    static const struct { ls_dtype type; unsigned sharded; enum store_backing backing; } cases[] = {
        { LS_F32, 0, BACKING_MEMORY }, { LS_F32, ALL, BACKING_MEMORY }, { LS_BF16, ALL, BACKING_FILE },
        { LS_BF16, 1u << STORE_STATE, BACKING_CPU },
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        struct job one = { cases[k].type, 0, BACKING_MEMORY, scratch("one") };
        struct job job = { cases[k].type, cases[k].sharded, cases[k].backing, scratch("three") };
        struct job other = { cases[k].type, ALL, BACKING_MEMORY, scratch("three") };

        forked_run(1, save_alone, &one);
        forked_run(3, save_together, &job);
        if (cases[k].sharded)
            check_shards(job.root, cases[k].sharded);
        else
            check_same_files(one.root, job.root);
        forked_run(1, load_alone, &job);
        forked_run(2, load_together, &other);
        forked_run(5, load_together, &job);
    }
}

/* The disk of one rank fails at each write in turn: all ranks return the same error. */
static void fail_together(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(comm, LS_F32, ALL, BACKING_MEMORY);
    ls_train_state state = small_state(STEP);
    int rank = ls_comm_rank(comm), n = ls_comm_size(comm);
    char path[600], want[32];

    each(s, true);
    snprintf(path, sizeof path, "%s/step_%08d", j->root, STEP);
    for (int bad = n - 1; bad >= 0; bad--) {
        int failures = 0;

        snprintf(want, sizeof want, "rank %d: ", bad);
        for (int nth = 1;; nth++, failures++) {
            file_fail_at(rank == bad ? nth : 0);
            ls_status st = ls_checkpoint_save_ranks(comm, j->root, s, NULL, &state, NULL);
            file_fail_at(0);
            if (st == LS_OK)
                break;
            RANKS_CHECK(st == LS_EIO);
            RANKS_CHECK(strstr(ls_errmsg(), "step_00000007.tmp"));
            RANKS_CHECK(rank == bad || strncmp(ls_errmsg(), want, 8) == 0);
            each(s, false);  /* all are still in step */
            RANKS_CHECK(rank || file_exists(path) == (bad < n - 1));
            RANKS_TRY(ls_barrier(comm));
        }
        RANKS_CHECK(failures >= (bad ? 2 : 3));
    }
    ls_store_release(&s);
}

static void full_disk_fails_on_all_ranks(void **state)
{
    struct job job = { .root = scratch("full") };

    (void)state;
    forked_run(3, fail_together, &job);
    forked_run(1, load_alone, &(struct job){ LS_F32, 0, BACKING_MEMORY, job.root });
}

/* One rank's nth allocation fails: all fail, none waits, and existing files stay. */
static void forget_together(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(comm, LS_F32, ALL, BACKING_MEMORY);
    ls_train_state state = small_state(STEP);
    int rank = ls_comm_rank(comm), failures = 0;

    each(s, true);
    for (int bad = 0; bad < 2; bad++)
        for (int nth = 1;; nth++, failures++) {
            mem_fail_at(rank == bad ? nth : 0);
            ls_status st = ls_checkpoint_save_ranks(comm, j->root, s, NULL, &state, NULL);
            mem_fail_at(0);
            if (st == LS_OK)
                break;
            RANKS_CHECK(st == LS_ENOMEM);
        }
    RANKS_CHECK(failures > 40);
    ls_store_release(&s);
}

static void lack_of_memory_fails_on_all_ranks(void **state)
{
    struct job job = { .root = scratch("memory") };

    (void)state;
    forked_run(2, forget_together, &job);
    forked_run(1, load_alone, &(struct job){ LS_F32, 0, BACKING_MEMORY, job.root });
}

/* An error that one rank finds before anything is written stops all ranks. */
static void one_is_not_ready(ls_comm *comm, void *ctx)
{
    const struct job *j = ctx;
    ls_store *s = store_of(comm, LS_F32, ALL, BACKING_MEMORY);
    ls_train_state state = small_state(STEP);
    char path[600];

    if (ls_comm_rank(comm) == 1)
        state.tokens = UINT64_MAX;
    RANKS_CHECK(ls_checkpoint_save_ranks(comm, j->root, s, NULL, &state, NULL) == LS_EINVAL);
    RANKS_CHECK((strncmp(ls_errmsg(), "rank 1: ", 8) == 0) == (ls_comm_rank(comm) != 1));
    snprintf(path, sizeof path, "%s/step_%08d", j->root, STEP);
    RANKS_CHECK(!file_exists(path));
    RANKS_CHECK(ls_checkpoint_save(j->root, s, NULL, &state, NULL) == LS_EINVAL);
    RANKS_CHECK(strstr(ls_errmsg(), "'a' is sharded over several ranks"));
    ls_store_release(&s);
}

static void unready_rank_stops_all(void **state)
{
    struct job job = { .root = scratch("never") };

    (void)state;
    forked_run(3, one_is_not_ready, &job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
        TEST(any_ranks_save_and_any_ranks_load),
        TEST(full_disk_fails_on_all_ranks),
        TEST(lack_of_memory_fails_on_all_ranks),
        TEST(unready_rank_stops_all),
#undef TEST
    };

    return cmocka_run_group_tests_name("checkpoint_ranks", tests, NULL, NULL);
}
