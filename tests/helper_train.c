#include "helper_train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "helper_check.h"

char train_folder[64];

char *train_path(const char *name)
{
    char *path = file_path("%s/%s", train_folder, name);

    assert_non_null(path);
    return path;
}

int train_folder_make(void **state)
{
    static const char *const subjects[] = { "the sea", "a small bird", "the old king", "every child" };
    static const char *const verbs[] = { "sees", "loves", "forgets", "sings of" };
    size_t used = 0, room = 40000;

    (void)state;
    strcpy(train_folder, "test_train.XXXXXX");
    assert_non_null(mkdtemp(train_folder));
    char *path = train_path("text.txt");
    char *text = mem_alloc(MEM_OTHER, room);
    assert_non_null(text);
    for (unsigned i = 0; used < 30000; i++)
        used += (size_t)snprintf(text + used, room - used, "%s %s %s. ", subjects[i * 7 / 3 % 4], verbs[i * 5 / 2 % 4],
                                 subjects[i % 4]);
    OK(file_write(path, text, used));
    mem_free(text);
    mem_free(path);
    log_set_console(LOG_ERROR);
    return 0;
}

int train_folder_remove(void **state)
{
    (void)state;
    OK(file_remove_tree(train_folder));
    return 0;
}

void train_setup_set(struct train_setup *s, const char *name, const char *value)
{
    OK(options_set(&s->options, name, value, "test"));
}

void train_setup_set_path(struct train_setup *s, const char *name, const char *value)
{
    char *path = train_path(value);

    train_setup_set(s, name, path);
    mem_free(path);
}

void train_setup_open(struct train_setup *s, const char *run)
{
    OK(options_open(config_table(), &s->config, VERB_TRAIN, &s->options));
    train_setup_set_path(s, "data.text", "text.txt");
    train_setup_set_path(s, "run.dir", run);
    train_setup_set(s, "model.preset", "llama-tiny");
    train_setup_set(s, "model.layers", "1");
    train_setup_set(s, "data.seq_len", "16");
    train_setup_set(s, "train.micro_batch", "2");
    train_setup_set(s, "train.accumulate", "2");
    train_setup_set(s, "train.steps", "6");
    train_setup_set(s, "train.schedule_steps", "6");
    train_setup_set(s, "train.eval_every", "3");
    train_setup_set(s, "train.eval_batches", "2");
    train_setup_set(s, "optim.warmup", "2");
    train_setup_set(s, "precision.compute", "fp32");
}

ls_status train_setup_run(struct train_setup *s, const struct trainer_watch *watch, struct trainer **out)
{
    static const struct trainer_watch nobody = { 0 };
    struct trainer *t;
    bool refused;

    LS_TRY(config_check(&s->config, VERB_TRAIN));
    LS_TRY(trainer_open(&s->config, &s->options, &refused, &t));
    ls_status st = trainer_run(t, watch ? watch : &nobody);
    if (st == LS_OK && out) *out = t;
    else trainer_close(&t);
    return st;
}
