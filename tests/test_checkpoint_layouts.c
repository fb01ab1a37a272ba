/* test_checkpoint_layouts.c - a checkpoint saved under each of 12 layouts is loaded under each: every parameter and moment has its
 * bits. Invalid manifests of shards; the memory that loading takes. */
#include "helper_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/hf/hf_tensors.h"
#include "checkpoint/manifest.h"
#include "checkpoint/boxes.h"
#include "helper_layouts.h"

enum { BOTH = LS_LOAD_OPTIMIZER, STEP = 7 };

struct job { const struct layout *layout; ls_dtype type; char root[300]; };

static char *folder_of(const struct job *j, const struct layout *l, char *out)
{
    sprintf(out, "%.300s/%d", j->root, (int)(l - layouts));
    return out;
}

static void save_as(ls_comm *world, void *ctx)
{
    const struct job *j = ctx;
    ls_train_state state = small_state(STEP);
    struct laid laid;
    char root[400];

    layout_open(j->layout, world, j->type, &laid);
    layout_fill(laid.store);
    if (ls_comm_rank(world))
        state.step = 1000;  /* rank 0's counts */
    RANKS_TRY(ls_checkpoint_save_ranks(world, folder_of(j, j->layout, root), laid.store, NULL, &state, NULL));
    layout_check(laid.store);
    layout_close(&laid);
}

static void load_all(ls_comm *world, void *ctx)
{
    const struct job *j = ctx;

    for (int from = 0; from < LAYOUTS; from++) {
        ls_train_state state, want = small_state(STEP);
        struct laid laid;
        char root[400], path[420];

        layout_open(j->layout, world, j->type, &laid);
        sprintf(path, "%s/step_%08d", folder_of(j, &layouts[from], root), STEP);
        if (ls_checkpoint_load(path, laid.store, BOTH, &state) < 0)
            ranks_fail("saved with %s, loaded with %s: %s", layouts[from].name, j->layout->name, ls_errmsg());
        RANKS_CHECK(memcmp(&state, &want, sizeof want) == 0);
        layout_check(laid.store);
        layout_close(&laid);
    }
}

static void run_all(ls_dtype type, forked_fn *fn)
{
    for (int i = 0; i < LAYOUTS; i++) {
        struct job j = { &layouts[i], type, "" };

        snprintf(j.root, sizeof j.root, "%s", scratch(ls_dtype_name(type)));
        forked_run(layout_ranks(&layouts[i]), fn, &j);
    }
}

static void every_layout_loads_every_other(void **state)
{
    static const ls_dtype types[] = { LS_BF16, LS_F32 };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        run_all(types[t], save_as);
        run_all(types[t], load_all);
    }
}

/* Each file belongs to one rank, and has the bytes that only this rank holds: all files together have each tensor once. */
static void nothing_is_saved_twice(void **state)
{
    struct job j = { &layouts[11], LS_F32, "" };
    ls_checkpoint_info *info;
    char root[400], path[420];
    size_t elements[2] = { 0 };

    (void)state;
    snprintf(j.root, sizeof j.root, "%s", scratch("once"));
    forked_run(layout_ranks(j.layout), save_as, &j);
    sprintf(path, "%s/step_%08d", folder_of(&j, j.layout, root), STEP);
    OK(ls_checkpoint_verify(path));
    OK(ls_checkpoint_inspect(path, &info));
    assert_int_equal(info->nfiles, 16);
    for (size_t i = 0; i < info->nentries; i++) {
        size_t n = 1;

        for (int d = 0; d < info->entries[i].ndim; d++)
            n *= info->entries[i].extent[d];
        elements[strcmp(info->entries[i].kind, "parameter") != 0] += n;
    }
    assert_int_equal(info->parameters, 35 + 3 + 84 + 1 + 55 + 420 + 11);
    assert_int_equal(elements[0], info->parameters);
    assert_int_equal(elements[1], 2 * (info->parameters - 11));
    ls_checkpoint_info_release(&info);
}

/* ---- damage ---- */

static void change(const char *path, int what)
{
    struct manifest *m;
    char file[440], *text;
    size_t bytes, i = 0;

    OK(manifest_read(path, &m));
    while (strcmp(m->info.entries[i].name, "a") != 0 || m->info.entries[i].offset[0] == 0)
        i++;
    switch (what) {
    case 0: m->info.entries[i].extent[0]--; break;                            /* a hole */
    case 1: m->info.entries[i].offset[0]--; break;                            /* an overlap */
    case 2: m->info.entries[i].extent[0] += 7; break;                         /* beyond the end */
    case 3: m->info.entries[i].size[0]++; break;                              /* other than the rest */
    case 4: strcpy(m->info.entries[i].name, "b"); break;
    }
    OK(manifest_format(&m->info, &text, &bytes));
    sprintf(file, "%s/manifest.json", path);
    OK(file_write(file, text, bytes));
    mem_free(text);
    manifest_release(&m);
}

static void damaged_shards_are_refused(void **state)
{
    static const char *const messages[] = {
        "'a': its shards have 30 of 35 elements; [3,0] is missing", "'a': shards 0 and 1 overlap at [1,0]",
        "dim 0 has 7 elements, but the shard is",
        "'a': its shards differ", "'a': its shards have 25 of 35 elements; [2,0] is missing",
    };
    struct job j = { &layouts[5], LS_F32, "" };
    char root[400], path[420];

    (void)state;
    for (size_t what = 0; what < COUNT_OF(messages); what++) {
        struct laid laid;

        snprintf(j.root, sizeof j.root, "%s", scratch("damaged"));
        forked_run(layout_ranks(j.layout), save_as, &j);
        sprintf(path, "%s/step_%08d", folder_of(&j, j.layout, root), STEP);
        layout_open(&layouts[0], NULL, LS_F32, &laid);
        layout_fill(laid.store);
        change(path, (int)what);
        REFUSED(LS_EFORMAT, messages[what], ls_checkpoint_load(path, laid.store, LS_LOAD_OPTIMIZER, NULL));
        layout_check(laid.store);
        layout_close(&laid);
    }
}

/* A rank that owns nothing leaves a gap, which is an error on all ranks. */
static void leave_a_hole(ls_comm *world, void *ctx)
{
    const struct job *j = ctx;
    ls_train_state state = small_state(STEP);
    struct laid laid;
    char root[400];

    layout_open(j->layout, world, LS_F32, &laid);
    store_set_owner(laid.store, 4, ls_comm_rank(world) != 1);
    RANKS_CHECK(ls_checkpoint_save_ranks(world, folder_of(j, j->layout, root), laid.store, NULL, &state, NULL) == LS_EINVAL);
    RANKS_CHECK(strstr(ls_errmsg(), "'e': its shards have 35 of 55 elements; [0,3] is missing"));
    store_set_owner(laid.store, 4, false);
    RANKS_CHECK(ls_checkpoint_save_ranks(world, root, laid.store, NULL, &state, NULL) == LS_EINVAL);
    RANKS_CHECK(strstr(ls_errmsg(), "no rank owns parameter 'e'"));
    RANKS_CHECK(!file_exists(root));
    RANKS_CHECK(ls_checkpoint_save(root, laid.store, NULL, &state, NULL) == LS_EINVAL);
    layout_close(&laid);
}

static void tensor_without_owner_is_named(void **state)
{
    struct job j = { &layouts[5], LS_F32, "" };

    (void)state;
    snprintf(j.root, sizeof j.root, "%s", scratch("hole"));
    forked_run(layout_ranks(j.layout), leave_a_hole, &j);
}

/* ---- Hugging Face ---- */

/* A known model with generated weights; over the ranks of world its matrices are sharded alternately along rows and columns. */
static ls_store *model_store(const ls_model *m, ls_comm *world)
{
    int n = world ? ls_comm_size(world) : 1, rank = world ? ls_comm_rank(world) : 0;
    ls_store *s;

    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_BF16, 1, 7, 0 }, &s));
    RANKS_TRY(hf_declare(s, m));
    for (size_t i = 0; i < ls_store_count(s) && n > 1; i++) {
        int dim = (int)(i % 2), last = ls_store_ndim(s, i) - 1;
        size_t size = ls_store_size(s, i, dim > last ? last : dim), begin = size * (size_t)rank / (size_t)n;

        store_set_shard(s, i, dim > last ? last : dim, begin, size * ((size_t)rank + 1) / (size_t)n - begin);
    }
    store_set_world(s, world);
    RANKS_TRY(ls_store_allocate(s));
    for (size_t i = 0; i < ls_store_count(s); i++) {
        size_t count = 1;
        double *x;

        for (int d = 0; d < ls_store_ndim(s, i); d++)
            count *= ls_store_size(s, i, d);
        x = malloc(count * sizeof *x);
        rng_normals(5, rng_stream(ls_store_name(s, i)), 0, count, x);
        RANKS_TRY(ls_store_set(s, i, x, LS_F64, count));
        free(x);
    }
    return s;
}

static void save_model(ls_comm *world, void *ctx)
{
    ls_train_state state = small_state(1);
    char folder[420];
    ls_model m;

    RANKS_TRY(ls_model_preset("llama-tiny", &m));
    ls_store *s = model_store(&m, world);
    RANKS_TRY(ls_checkpoint_save_ranks(world, ctx, s, &m, &state, NULL));
    if (ls_comm_size(world) > 1 && ls_comm_rank(world) == 0) {
        snprintf(folder, sizeof folder, "%s_hf", (const char *)ctx);
        RANKS_CHECK(ls_hf_export(folder, &m, s, NULL) == LS_EINVAL && strstr(ls_errmsg(), "is sharded over several ranks"));
        RANKS_CHECK(!file_exists(folder));
    }
    ls_store_release(&s);
}

static void sharded_checkpoint_is_exported(void **state)
{
    char path[3][400], *text[2];
    size_t bytes[2];

    (void)state;
    for (int k = 0; k < 2; k++) {
        snprintf(path[k], sizeof path[k], "%s", scratch(k ? "sharded" : "whole"));
        forked_run(k ? 3 : 1, save_model, path[k]);
        strcat(path[k], "/step_00000001");
        snprintf(path[2], sizeof path[2], "%s", scratch(k ? "hf_sharded" : "hf_whole"));
        OK(ls_checkpoint_export(path[k], path[2], NULL));
        strcat(path[2], "/model.safetensors");
        OK(file_read(path[2], &text[k], &bytes[k]));
    }
    assert_true(bytes[0] > 10000 && bytes[0] == bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
    mem_free(text[0]);
    mem_free(text[1]);
}

/* ---- boxes, memory ---- */

static void ranges_become_few_boxes_in_order(void **state)
{
    const struct box box = { { 1, 2, 3 }, { 3, 4, 5 } };
    struct box s[BOXES_OF_RANGE];

    (void)state;
    for (size_t from = 0; from <= 60; from++)
        for (size_t to = from; to <= 60; to++) {
            int n = boxes_of_range(3, &box, from, to, s);
            size_t e = from;

            assert_true(n <= 5 && (n > 0) == (from < to));
            for (int k = 0; k < n; k++)
                for (size_t x = 0; x < box_count(3, &s[k]); x++, e++) {
                    size_t place[3] = { x / s[k].extent[2] / s[k].extent[1], x / s[k].extent[2] % s[k].extent[1], x % s[k].extent[2] };
                    size_t want[3] = { e / 20, e / 5 % 4, e % 5 };

                    for (int d = 0; d < 3; d++)
                        assert_int_equal(s[k].offset[d] + place[d], box.offset[d] + want[d]);
                }
            assert_int_equal(e, to);
        }
}

/* 64 MiB are saved and loaded with less than 8 MiB of additional memory. */
static void load_needs_one_chunk_of_memory(void **state)
{
    const size_t size[2] = { 4096, 4096 }, most = 8u << 20;
    struct mem_stats before, after;
    ls_train_state state_of = small_state(1);
    ls_store *s;
    int index;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(store_declare(s, "large", (ls_init){ LS_INIT_ZEROS, 0 }, 2, size, &index));
    OK(ls_store_allocate(s));
    mem_reset_peak();
    mem_read(&before);
    OK(ls_checkpoint_save(scratch("ck"), s, NULL, &state_of, NULL));
    OK(ls_checkpoint_load(scratch("ck/step_00000001"), s, 0, NULL));
    mem_read(&after);
    assert_true(after.total_peak - before.total_now < most);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
        TEST(every_layout_loads_every_other),
        TEST(nothing_is_saved_twice),
        TEST(tensor_without_owner_is_named),
        TEST(damaged_shards_are_refused),
        TEST(sharded_checkpoint_is_exported),
        TEST(ranges_become_few_boxes_in_order),
        TEST(load_needs_one_chunk_of_memory),
#undef TEST
    };

    return cmocka_run_group_tests_name("checkpoint_layouts", tests, NULL, NULL);
}
