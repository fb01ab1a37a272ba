/* test_checkpoint_hashes.c - readers compare every byte with its hash: damage in any part of a checkpoint, in the current format and
 * in the first one, is refused by readers of every layout; a reader of a part hashes the part that it reads. */
#include "helper_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "checkpoint/hash_blocks.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "helper_layouts.h"

enum { STEP = 7 };

static void flip(const char *path, size_t at)
{
    FILE *f = fopen(path, "r+b");

    assert_non_null(f);
    fseek(f, (long)at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 1 << at % 8, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- every part, read under other layouts ---- */

struct job { const struct layout *layout; const char *path; int *refused; char *message; };

static void save_as(ls_comm *world, void *ctx)
{
    const struct job *j = ctx;
    ls_train_state state = small_state(STEP);
    struct laid laid;

    layout_open(j->layout, world, LS_F32, &laid);
    layout_fill(laid.store);
    RANKS_TRY(ls_checkpoint_save_ranks(world, j->path, laid.store, NULL, &state, NULL));
    layout_close(&laid);
}

/* Ranks that refuse are counted; ranks that read undamaged bytes have exactly these bits; a refused load leaves the store unchanged. */
static void load_damaged(ls_comm *world, void *ctx)
{
    const struct job *j = ctx;
    struct laid laid;

    layout_open(j->layout, world, LS_F32, &laid);
    ls_status st = ls_checkpoint_load(j->path, laid.store, LS_LOAD_OPTIMIZER, NULL);
    if (st == LS_OK) {
        layout_check(laid.store);
    } else {
        RANKS_CHECK(st == LS_EFORMAT);
        snprintf(j->message, 1024, "%s", ls_errmsg());
        __atomic_add_fetch(j->refused, 1, __ATOMIC_RELAXED);
        layout_fill(laid.store);
        ls_checkpoint_load(j->path, laid.store, LS_LOAD_OPTIMIZER, NULL);
        layout_check(laid.store);
    }
    layout_close(&laid);
}

static void damage_refused(const struct job *of, const struct layout *reader, const char *file, size_t at, const char *named)
{
    struct job j = *of;

    *j.refused = 0;
    j.layout = reader;
    flip(file, at);
    forked_run(layout_ranks(reader), load_damaged, &j);
    REFUSED(LS_EFORMAT, named, ls_checkpoint_verify(j.path));
    flip(file, at);
    if (*j.refused == 0 || !strstr(j.message, named))
        fail_msg("%s: byte %zu (%s) is flipped: %d ranks of %s refuse: %s", file, at, named, *j.refused, reader->name, j.message);
}

static size_t data_of(const char *file)
{
    struct safetensors *f;
    size_t bytes;

    OK(safetensors_open(file, &f));
    safetensors_start(f, &bytes);
    safetensors_close(&f);
    return bytes;
}

static void damage_all(const struct layout *writer, struct job *j)
{
    static const int readers[] = { 0, 3, 7 };
    ls_checkpoint_info *info;
    size_t which = 0;
    char file[700];

    OK(ls_checkpoint_inspect(j->path, &info));
    assert_int_equal(info->hash_block_bytes, HASH_BLOCK_BYTES);
    snprintf(file, sizeof file, "%s/manifest.json", j->path);
    damage_refused(j, writer, file, 40, "manifest.json");
    for (size_t e = 0, at = 0; e < info->nentries; e++) {
        const ls_checkpoint_entry *t = &info->entries[e];
        size_t bytes = ls_dtype_bytes(t->type);
        char *key = manifest_key(t);

        for (int d = 0; d < t->ndim; d++)
            bytes *= t->extent[d];
        snprintf(file, sizeof file, "%s/%s", j->path, info->files[t->file].name);
        if (e == 0 || info->entries[e - 1].file != t->file) {
            at = data_of(file);
            damage_refused(j, &layouts[readers[which++ % COUNT_OF(readers)]], file, 20, info->files[t->file].name);
        }
        if (bytes && e % 3 == 0)
            damage_refused(j, &layouts[readers[which++ % COUNT_OF(readers)]], file, at + bytes * (e % 7) / 7, key);
        at += bytes;
        mem_free(key);
    }
    ls_checkpoint_info_release(&info);
}

static void damage_anywhere_is_refused_by_readers_of_other_layouts(void **state)
{
    static const int writers[] = { 0, 5, 9 };
    char root[600], path[650];
    int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    (void)state;
    for (size_t w = 0; w < COUNT_OF(writers); w++) {
        const struct layout *writer = &layouts[writers[w]];
        struct job j = { writer, root, shared, (char *)(shared + 1) };

        snprintf(root, sizeof root, "%s", scratch(writer->name));
        snprintf(path, sizeof path, "%s/step_%08d", root, STEP);
        forked_run(layout_ranks(writer), save_as, &j);
        j.path = path;
        damage_all(writer, &j);
    }
    munmap(shared, 4096);
}

/* ---- a checkpoint of the first format: hashes of whole files ---- */

static void copy_folder(const char *from, const ls_checkpoint_info *info)
{
    char path[1200], *text;
    size_t bytes;

    for (size_t i = 0; i <= info->nfiles; i++) {
        const char *name = i < info->nfiles ? info->files[i].name : "manifest.json";

        snprintf(path, sizeof path, "%s/%s", from, name);
        OK(file_read(path, &text, &bytes));
        snprintf(path, sizeof path, "%s/%s", scratch("old"), name);
        OK(file_write(path, text, bytes));
        mem_free(text);
    }
}

static void damage_in_the_first_format_is_refused(void **state)
{
    static const char *const runs[] = { "one", "ranks" };
    char from[1024], file[1024];
    ls_checkpoint_info *info;

    (void)state;
    for (size_t r = 0; r < COUNT_OF(runs); r++) {
        snprintf(from, sizeof from, "%s/data/runs/%s/checkpoints/step_00000003", TEST_DIR, runs[r]);
        OK(ls_checkpoint_inspect(from, &info));
        assert_int_equal(info->hash_block_bytes, 0);
        OK(file_make_folders(scratch("old")));
        copy_folder(from, info);
        OK(ls_checkpoint_verify(scratch("old")));
        for (size_t i = 0; i < info->nfiles; i++)
            for (size_t at = 3; at < info->files[i].bytes; at += 97) {
                bool optimizer = strncmp(info->files[i].name, "optimizer", 9) == 0;

                snprintf(file, sizeof file, "%s/%s", scratch("old"), info->files[i].name);
                flip(file, at);
                REFUSED(LS_EFORMAT, info->files[i].name, ls_checkpoint_verify(scratch("old")));
                if (!optimizer)
                    REFUSED(LS_EFORMAT, info->files[i].name, ls_checkpoint_export(scratch("old"), scratch("hf"), NULL));
                assert_false(file_exists(scratch("hf")));
                flip(file, at);
            }
        OK(ls_checkpoint_export(scratch("old"), scratch("hf"), NULL));
        OK(file_remove_tree(scratch("hf")));
        OK(file_remove_tree(scratch("old")));
        ls_checkpoint_info_release(&info);
    }
}

/* ---- cost: w [2048,512] f32 is 4 MiB, 4 blocks ---- */

enum { ROWS = 2048, COLUMNS = 512, BYTES = ROWS * COLUMNS * 4 };

static void save_large(const char *root, uint64_t step)
{
    ls_train_state state = small_state(step);
    ls_store *s;
    int index;

    OK(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s));
    OK(store_declare(s, "w", (ls_init){ LS_INIT_NORMAL, 1 }, 2, (size_t[]){ ROWS, COLUMNS }, &index));
    OK(ls_store_allocate(s));
    OK(ls_checkpoint_save(root, s, NULL, &state, NULL));
    ls_store_release(&s);
}

/* Reads rows [from, from + rows) of columns [0, columns). *hashed: bytes that were hashed. */
static ls_status read_box(const char *path, size_t from, size_t rows, size_t columns, uint64_t *hashed)
{
    float *host = mem_alloc(MEM_OTHER, BYTES);
    struct box box = { { from, 0 }, { rows, columns } };
    struct saved s = { 0 };
    ls_status st = saved_open(path, &s);

    if (st == LS_OK)
        st = saved_check_files(&s);
    uint64_t before = hash_counted();
    for (int twice = 0; twice < 2 && st == LS_OK; twice++)  /* nothing is hashed again */
        st = saved_read(&s, KIND_PARAMETER, "w", &box, 0, rows * columns, host, LS_F32);
    *hashed = hash_counted() - before;
    saved_close(&s);
    mem_free(host);
    return st;
}

static void reader_hashes_what_it_reads(void **state)
{
    const char *path = scratch("ck/step_00000001"), *file = scratch("ck/step_00000001/parameters_0000_of_0001.safetensors");
    uint64_t hashed;

    (void)state;
    save_large(scratch("ck"), 1);
    OK(read_box(path, 0, ROWS, COLUMNS, &hashed));
    assert_int_equal(hashed, BYTES);
    OK(read_box(path, ROWS / 4, ROWS / 4, COLUMNS, &hashed));  /* one of four ranks that have its rows */
    assert_int_equal(hashed, HASH_BLOCK_BYTES);
    OK(read_box(path, 100, ROWS / 4, COLUMNS, &hashed));
    assert_int_equal(hashed, 2 * HASH_BLOCK_BYTES);
    OK(read_box(path, 0, ROWS, 1, &hashed)); /* a column is in all blocks */
    assert_int_equal(hashed, BYTES);
    size_t data = data_of(file);
    for (size_t block = 0; block < 4; block++) {
        flip(file, data + block * HASH_BLOCK_BYTES + 77);
        for (size_t quarter = 0; quarter < 4; quarter++)
            if (quarter == block)
                REFUSED(LS_EFORMAT, "tensor 'w': damaged: bytes", read_box(path, quarter * ROWS / 4, ROWS / 4, COLUMNS, &hashed));
            else
                OK(read_box(path, quarter * ROWS / 4, ROWS / 4, COLUMNS, &hashed));
        REFUSED(LS_EFORMAT, "tensor 'w': damaged: bytes", read_box(path, 0, ROWS, 1, &hashed));
        flip(file, data + block * HASH_BLOCK_BYTES + 77);
    }
    OK(ls_checkpoint_verify(path));
}

/* ---- the newest intact checkpoint ---- */

static void next_complete_checkpoint_is_named(void **state)
{
    char newest[600], middle[600], oldest[600], name[700];

    (void)state;
    for (uint64_t step = 1; step <= 3; step++)
        save_large(scratch("ck"), step);
    snprintf(newest, sizeof newest, "%s", scratch("ck/step_00000003"));
    snprintf(middle, sizeof middle, "%s", scratch("ck/step_00000002"));
    snprintf(oldest, sizeof oldest, "%s", scratch("ck/step_00000001"));
    flip(scratch("ck/step_00000003/parameters_0000_of_0001.safetensors"), 1 << 20);
    snprintf(name, sizeof name, "use --x=%s", middle);
    REFUSED(LS_EFORMAT, name, verify_advise(ls_checkpoint_verify(newest), newest, "use --x="));
    flip(scratch("ck/step_00000002/parameters_0000_of_0001.safetensors"), 1 << 20);
    snprintf(name, sizeof name, "use --x=%s", oldest);
    REFUSED(LS_EFORMAT, name, verify_advise(ls_checkpoint_verify(newest), newest, "use --x="));
    flip(scratch("ck/step_00000001/manifest.json"), 9);
    REFUSED(LS_EFORMAT, "no older checkpoint beside it is intact", verify_advise(ls_checkpoint_verify(newest), newest, "use --x="));
    REFUSED(LS_EINVAL, "other", verify_advise(ls_fail(LS_EINVAL, "other"), newest, "use --x="));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(damage_anywhere_is_refused_by_readers_of_other_layouts, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(damage_in_the_first_format_is_refused, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(reader_hashes_what_it_reads, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(next_complete_checkpoint_is_named, scratch_set_up, scratch_tear_down),
    };

    return cmocka_run_group_tests_name("checkpoint hashes", tests, NULL, NULL);
}
