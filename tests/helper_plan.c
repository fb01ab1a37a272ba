/* helper_plan.c - see helper_plan.h. */
#include "helper_plan.h"

#include <stdio.h>
#include <string.h>
#include "helper_check.h"

void plan_setup_open(struct plan_setup *s, const char *words)
{
    struct world world = { .size = 1, .local_size = 1 };
    char text[1000], *word, *rest = text;

    OK(options_open(config_table(), &s->config, VERB_PLAN, &s->options));
    assert_true((size_t)snprintf(text, sizeof text, "%s", words) < sizeof text);
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');

        if (!*word) continue;
        assert_non_null(value);
        *value++ = '\0';
        OK(options_set(&s->options, word, value, "test"));
    }
    OK(config_ranks(&s->config, VERB_PLAN, &world));
    OK(config_check(&s->config, VERB_PLAN));
    OK(config_check_fit(&s->config));
    OK(task_model_of(&s->config, 0, &s->model));
    OK(plan_of_config(&s->config, &s->model, &s->job, &s->layout));
}
