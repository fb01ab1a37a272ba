/* trainer_config.c - writes the config.yaml of a run's folder. */
#include "train/run/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/text.h"

/* Cuts off the last section, debug: injected faults are not part of a run's configuration. */
static void leave_out_debug(char *yaml)
{
    char *section = strstr(yaml, "\ndebug:\n");

    if (section) section[1] = '\0';
}

/* The config as it is kept in the run's folder. Training with it resumes this run even if it had started from another run's checkpoint,
 * and on any number of ranks: options that were derived from that number are written as -1. The global batch does not change. */
static void put_config(struct config *c, const struct options *options, struct text *yaml)
{
    struct config was = *c;
    struct option_note notes[2];
    size_t n = 0;

    if (c->parallel.dp_is_derived) {
        notes[n].name = "parallel.dp";
        snprintf(notes[n++].text, sizeof notes->text, "%" PRId64 " with launch.ranks=%" PRId64, c->parallel.dp, c->launch.ranks);
        c->parallel.dp = -1;
    }
    if (c->train.accumulate_is_derived) {
        notes[n].name = "train.accumulate";
        snprintf(notes[n++].text, sizeof notes->text, "%" PRId64 " with parallel.dp=%" PRId64, c->train.accumulate, was.parallel.dp);
        c->train.accumulate = -1;
    }
    c->checkpoint.resume = (char[]){ "auto" };
    options_put_yaml_notes(options, notes, n, yaml);
    *c = was;
}

ls_status trainer_config_text(const struct trainer *t, struct text *out)
{
    put_config(t->config, t->options, out);
    ls_status st = text_status(out);
    if (st == LS_OK) leave_out_debug(out->data);
    return st;
}

ls_status trainer_write_config(const struct trainer *t)
{
    struct text yaml = { 0 };
    ls_status st = trainer_config_text(t, &yaml);

    if (st == LS_OK) st = file_write(t->folder.config, yaml.data, strlen(yaml.data));
    text_free(&yaml);
    return st;
}
