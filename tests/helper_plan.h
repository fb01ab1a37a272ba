/* helper_plan.h - the job and the layout of a list of options, for tests of plans. */
#ifndef LS_TESTS_HELPER_PLAN_H
#define LS_TESTS_HELPER_PLAN_H

#include "train/plan/plan.h"

struct plan_setup {
    struct config config;
    struct options options;
    struct task_model model;
    struct plan_job job;
    ls_layout layout;
};
/* words: "section.key=value --section.key=value". Checks the config as `plan` does. Close it with options_close(&s->options), also where
 * it is refused. */
ls_status plan_setup_try(struct plan_setup *s, const char *words);
void plan_setup_open(struct plan_setup *s, const char *words);
/* The same in f32, with sequences of 32 and micro-batches of 2 unless the words say otherwise. */
ls_status plan_setup_try_small(struct plan_setup *s, const char *model, const char *layout);
void plan_setup_open_small(struct plan_setup *s, const char *model, const char *layout);

#endif
