/* test_train_failures.c - runs that fail: a full disk, bad input, no memory, a locked folder, a weight that is not a number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "helper_train.h"
#include "train/run/trainer.h"

/* The disk is full while one of three checkpoints is written: training continues, and the other two are intact. */
static void test_full_disk(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 12; nth += 5) {
        struct trainer *t;
        struct train_setup s;
        char number[8], name[16], *found;
        uint64_t *steps;
        size_t count;

        snprintf(number, sizeof number, "%d", nth);
        snprintf(name, sizeof name, "full%d", nth);
        train_setup_open(&s, name);
        train_setup_set(&s, "checkpoint.every", "2");
        train_setup_set(&s, "checkpoint.keep", "9");
        train_setup_set(&s, "debug.fail_write", number);
        OK(train_setup_run(&s, NULL, &t));
        assert_int_equal(t->state.step, 6);
        OK(ls_checkpoint_list(t->folder.checkpoints, &steps, &count));
        assert_int_equal(count, 2);
        ls_free(steps);
        trainer_close(&t);
        options_close(&s.options);
        char *path = train_path(name);
        OK(ls_checkpoint_resolve(path, &found));
        assert_non_null(strstr(found, "step_00000006"));
        OK(ls_checkpoint_verify(found));
        ls_free(found);
        mem_free(path);
    }
}

static void fails_with(const char *run, const char *name, const char *value, const char *words)
{
    struct train_setup s;

    train_setup_open(&s, run);
    if (strncmp(name, "data.text", 9) == 0 || strncmp(name, "data.tokens", 11) == 0) train_setup_set_path(&s, name, value);
    else train_setup_set(&s, name, value);
    if (strcmp(name, "data.tokens") == 0) train_setup_set(&s, "data.text", "");
    FAILS(words, train_setup_run(&s, NULL, NULL));
    options_close(&s.options);
}

/* A nanoGPT file of `count` tokens, all zero except one. */
static void write_tokens(const char *name, size_t count, size_t place, uint16_t token)
{
    uint16_t *ids = mem_zalloc(MEM_OTHER, count * sizeof *ids);
    char *path = train_path(name);

    assert_non_null(ids);
    ids[place] = token;
    OK(file_write(path, ids, count * sizeof *ids));
    mem_free(path);
    mem_free(ids);
}

static void test_bad_input(void **state)
{
    char *empty = train_path("empty.txt"), *brief = train_path("brief.txt"), *latin = train_path("latin.txt"),
         *odd = train_path("odd.bin");
    struct train_setup s;

    (void)state;
    OK(file_write(empty, "", 0));
    OK(file_write(brief, "too short", 9));
    OK(file_write(latin, "caf\xe9 au lait", 12));
    OK(file_write(odd, "abc", 3));
    write_tokens("high.bin", 2000, 1500, 300);
    fails_with("bad", "data.text", "missing.txt", "missing.txt: cannot open");
    fails_with("bad", "data.text", "empty.txt", "the text is empty");
    fails_with("bad", "data.text", "brief.txt", "brief.txt");
    fails_with("bad", "data.text", "latin.txt", "latin.txt");
    fails_with("bad", "data.tokens", "odd.bin", "odd.bin");
    fails_with("bad", "data.tokens", "high.bin", "1500");
    fails_with("bad", "model.vocab", "100", "the tokenizer has 257 tokens, but the model's vocabulary only 100");
    fails_with("bad", "model.heads", "3", "heads");
    fails_with("bad", "model.preset", "gpt5", "no preset 'gpt5'");
    fails_with("bad", "data.seq_len", "4096", "data.seq_len=4096, but the model has 128 positions");
    mem_free(empty);
    mem_free(brief);
    mem_free(latin);
    mem_free(odd);

    train_setup_open(&s, "mine");
    OK(train_setup_run(&s, NULL, NULL));
    options_close(&s.options);
    fails_with("mine", "model.width", "32", "embed_tokens");          /* a checkpoint of another model */
    fails_with("mine", "train.seed", "2", "train.seed=1, not 2");
    fails_with("mine", "data.seq_len", "8", "other data");
    fails_with("mine", "checkpoint.resume", "none", "holds checkpoints up to step 6");
    fails_with("mine", "checkpoint.resume", "nowhere", "nowhere");
    fails_with("mine", "optim.name", "sgd", "optimizer");
}

static void training_fails_cleanly_without_memory(void **state)
{
    struct mem_stats now;
    struct train_setup s;

    (void)state;
    train_setup_open(&s, "memory_limit");
    mem_read(&now);
    mem_set_limit(now.total_now + (1 << 20));
    REFUSED(LS_ENOMEM, "out of memory", train_setup_run(&s, NULL, NULL));
    assert_non_null(strstr(ls_errmsg(), "limit"));
    assert_non_null(strstr(ls_errmsg(), "most is in"));
    mem_set_limit(0);
    options_close(&s.options);
}

/* A folder that another process trains in. Locks are of open files, so a second opening stands for it. */
static void test_locked_folder(void **state)
{
    char *path = train_path("locked"), *lock = train_path("locked/lock");
    struct train_setup s;

    (void)state;
    OK(file_make_folders(path));
    OK(file_write(lock, "4321\n", 5));
    int fd = open(lock, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    fails_with("locked", "data.seq_len", "16", "process 4321 runs in this folder");
    close(fd);
    train_setup_open(&s, "locked");
    OK(train_setup_run(&s, NULL, NULL));
    options_close(&s.options);
    mem_free(path);
    mem_free(lock);
}

/* NaN in the weights: the step's error names the value, and the good checkpoint is not overwritten. */
static void poison(void *ctx, const struct trainer *t, const struct metrics *m)
{
    static const float nan_value = NAN;
    ls_tensor *w = ls_store_value(t->step.store, 0);
    float *row = ls_tensor_data(w);

    (void)ctx;
    if (m->step != 4) return;
    for (size_t i = 0; i < ls_tensor_count(w); i++) row[i] = nan_value;
}

static void test_not_a_number(void **state)
{
    struct train_setup s;
    char *path = train_path("nan"), *found;

    (void)state;
    train_setup_open(&s, "nan");
    train_setup_set(&s, "checkpoint.every", "2");
    REFUSED(LS_EINVAL,
            "step 5: the loss is NaN; first: element 0 of parameter 'model.embed_tokens.weight' is NaN already (embedding, forward",
            train_setup_run(&s, &(struct trainer_watch){ .stepped = poison }, NULL));
    options_close(&s.options);
    OK(ls_checkpoint_resolve(path, &found));
    OK(ls_checkpoint_verify(found));
    ls_free(found);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(training_fails_cleanly_without_memory),
        cmocka_unit_test(test_locked_folder),
        cmocka_unit_test(test_not_a_number),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
