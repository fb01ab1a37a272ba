/* helper_train.h - a tiny training run in its own folder: its text, its options, the run. */
#ifndef LS_TESTS_HELPER_TRAIN_H
#define LS_TESTS_HELPER_TRAIN_H

#include "train/run/trainer.h"

extern char train_folder[64];
char *train_path(const char *name);

/* Sentences by a counter: text with something to learn, the same each time. */
int train_folder_make(void **state);
int train_folder_remove(void **state);

struct train_setup { struct config config; struct options options; };

void train_setup_set(struct train_setup *s, const char *name, const char *value);
void train_setup_set_path(struct train_setup *s, const char *name, const char *value);
void train_setup_open(struct train_setup *s, const char *run);
ls_status train_setup_run(struct train_setup *s, const struct trainer_watch *watch, struct trainer **out);

#endif
