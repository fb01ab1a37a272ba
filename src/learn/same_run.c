/* same_run.c - see same_run.h. */
#include "learn/same_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"

/* The line of labs whose claim is `id`, in any case; *out NULL: none. Close it. */
static ls_status find_claim(const char *labs, const char *id, json_node **out)
{
    *out = NULL;
    for (const char *line = labs, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        LS_TRY(json_parse(line, (size_t)(end - line), "lockstep lab --json", out));
        if (strcasecmp(json_string(json_get(*out, "claim"), ""), id) == 0) return LS_OK;
        json_close(out);
    }
    return LS_OK;
}

static bool is_default(const json_node *lab, const char *option, const char *value)
{
    const json_node *sizes = json_get(lab, "sizes");
    double x;

    for (size_t i = 0; strncmp(option, "--", 2) == 0 && i < json_size(sizes); i++)
        if (strcmp(json_string(json_get(json_at(sizes, i), "name"), ""), option + 2) == 0)
            return text_read_real(value, &x) && x == json_real(json_get(json_at(sizes, i), "value"), NAN);
    return false;
}

/* Reads the words after "lab ID". Returns how many sizes are not defaults. */
static int put_sizes(const json_node *lab, char *rest, struct text *key)
{
    int others = 0;

    for (char *word = strsep(&rest, " "), *value; word; word = strsep(&rest, " ")) {
        if (!*word) continue;
        value = rest ? strsep(&rest, " ") : NULL;
        if (value && is_default(lab, word, value)) continue;
        text_put(key, " %s%s%s", word, value ? " " : "", value ? value : "");
        others++;
    }
    return others;
}

ls_status same_run_of(const char *command, const char *labs, struct same_run *out)
{
    char *words = mem_strdup(command), *rest = words, *id;
    json_node *lab = NULL;
    ls_status st = LS_OK;

    *out = (struct same_run){ .program = "" };
    if (!words) return LS_ENOMEM;
    if (strncmp(command, "lab ", 4) == 0) {
        strsep(&rest, " ");
        id = strsep(&rest, " ");
        st = find_claim(labs, id, &lab);
    }
    if (lab) {
        const char *program = json_string(json_get(lab, "program"), "");

        text_put(&out->key, "lab %s", program);
        if (put_sizes(lab, rest, &out->key) == 0) snprintf(out->program, sizeof out->program, "%s", program);
    } else {
        text_put(&out->key, "%s", command);
    }
    json_close(&lab);
    mem_free(words);
    if (st == LS_OK) st = text_status(&out->key);
    if (st < 0) text_free(&out->key);
    return st;
}
