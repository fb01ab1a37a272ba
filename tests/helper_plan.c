/* helper_plan.c - see helper_plan.h. */
#include "helper_plan.h"

#include <stdio.h>
#include <string.h>
#include "helper_check.h"

enum { WORDS_ROOM = 2000 };

static void plan_setup_apply(struct plan_setup *s, const char *words)
{
    char text[WORDS_ROOM], *word, *rest = text;

    assert_true((size_t)snprintf(text, sizeof text, "%s", words) < sizeof text);
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');

        if (!*word) continue;
        assert_non_null(value);
        *value++ = '\0';
        OK(options_set(&s->options, strncmp(word, "--", 2) == 0 ? word + 2 : word, value, "test"));
    }
}

ls_status plan_setup_try(struct plan_setup *s, const char *words)
{
    struct world world = { .size = 1, .local_size = 1 };

    OK(options_open(config_table(), &s->config, VERB_PLAN, &s->options));
    plan_setup_apply(s, words);
    LS_TRY(config_ranks(&s->config, VERB_PLAN, &world));
    LS_TRY(config_check(&s->config, VERB_PLAN));
    LS_TRY(config_check_fit(&s->config));
    LS_TRY(task_model_of(&s->config, 0, &s->model));
    return plan_of_config(&s->config, &s->model, &s->job, &s->layout);
}

void plan_setup_open(struct plan_setup *s, const char *words) { OK(plan_setup_try(s, words)); }

ls_status plan_setup_try_small(struct plan_setup *s, const char *model, const char *layout)
{
    char words[WORDS_ROOM];

    assert_true((size_t)snprintf(words, sizeof words, "precision.compute=fp32 data.seq_len=32 train.micro_batch=2 %s %s", model, layout) <
                sizeof words);
    return plan_setup_try(s, words);
}

void plan_setup_open_small(struct plan_setup *s, const char *model, const char *layout) { OK(plan_setup_try_small(s, model, layout)); }
