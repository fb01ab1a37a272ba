/* Any bytes as a config file: refused in one line with its place, or entries of which every one, set as an option
 * that is a string, prints and loads back to the same. */
#include <string.h>
#include "base/base.h"
#include "base/options.h"
#include "base/yaml.h"

struct config { char *value; };

static const struct option rows[] = { OPTION_STRING(struct config, value, "a.b", "", 1, "any text") };
static const char *const yaml_verbs[] = { "fuzz" };
static const struct option_table table = { .bytes = sizeof(struct config), .rows = rows, .count = 1, .verb_names = yaml_verbs,
                                           .verb_count = 1 };

static ls_status fuzz_yaml_compare(void *ctx, const char *key, const char *value, int line)
{
    ASSERT(strcmp(key, "a.b") == 0 && strcmp(value, ctx) == 0 && line == 2);
    return LS_OK;
}

static ls_status fuzz_yaml_take(void *ctx, const char *key, const char *value, int line)
{
    struct options *o = ctx;
    struct text printed = { 0 };

    ASSERT(strchr(key, '.') && line >= 1);
    ASSERT(options_set(o, "a.b", value, key) == LS_OK);
    options_put_yaml(o, true, &printed);
    ASSERT(yaml_parse(printed.data, printed.bytes, "g", fuzz_yaml_compare, *(char **)(void *)o->config) == LS_OK);
    text_free(&printed);
    return LS_OK;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct config config;
    struct options options;

    ASSERT(options_open(&table, &config, 1, &options) == LS_OK);
    if (yaml_parse((const char *)data, bytes, "f", fuzz_yaml_take, &options) != LS_OK)
        ASSERT(strncmp(ls_errmsg(), "f:", 2) == 0 && !strchr(ls_errmsg(), '\n'));
    options_close(&options);
    return 0;
}
