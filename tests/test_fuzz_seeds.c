/* test_fuzz_seeds.c - each fuzz target (tests/fuzz) once with no bytes, with its seeds, and with each seed cut short: the inputs that `make
 * fuzz` mutates for a minute. A target ends the process if its parser breaks a promise. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"

#define TARGETS(X)                                                                                                                      \
    X(fuzz_archive) X(fuzz_comm_table) X(fuzz_hf_config) X(fuzz_hf_index) X(fuzz_json) X(fuzz_manifest) X(fuzz_safetensors)             \
    X(fuzz_schedule) X(fuzz_tiktoken) X(fuzz_tokenizer_json) X(fuzz_tokens) X(fuzz_utf8) X(fuzz_yaml)

/* In its file a target is called LLVMFuzzerTestOneInput; CMakeLists.txt gives it the file's name here. */
#define DECLARE(name) int name(const unsigned char *data, size_t bytes);
TARGETS(DECLARE)

static const struct target {
    const char *name;
    int (*run)(const unsigned char *data, size_t bytes);
} targets[] = {
#define ROW(name) { #name, name },
    TARGETS(ROW)
};

static int ends_in_c(const struct dirent *e)
{
    size_t n = strlen(e->d_name);

    return n > 2 && strcmp(e->d_name + n - 2, ".c") == 0;
}

static void test_all_are_listed(void **state)
{
    struct dirent **file;
    int n = scandir(TEST_DIR "/fuzz", &file, ends_in_c, alphasort);
    char name[80];

    (void)state;
    assert_int_equal(n, COUNT_OF(targets));
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.c", targets[i].name);
        assert_string_equal(file[i]->d_name, name);
        free(file[i]);
    }
    free(file);
}

static int is_seed(const struct dirent *e) { return e->d_name[0] != '.'; }

/* The seed whole, and its first 1/4, 2/4 and 3/4. Each in a block of its own size, so that AddressSanitizer reports reads beyond it. */
static void run_file(const struct target *t, const char *path)
{
    static unsigned char all[1 << 20];
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    size_t bytes = fread(all, 1, sizeof all, f);

    fclose(f);
    for (size_t quarter = 1; quarter <= 4; quarter++) {
        size_t some = bytes * quarter / 4;
        unsigned char *copy = malloc(some + !some);

        assert_non_null(copy);
        memcpy(copy, all, some);
        assert_int_equal(t->run(copy, some), 0);
        free(copy);
    }
}

static void test_seeds(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(targets); i++) {
        char folder[400], path[700];
        struct dirent **seed;

        assert_int_equal(targets[i].run((const unsigned char *)"", 0), 0);
        snprintf(folder, sizeof folder, TEST_DIR "/fuzz/seeds/%s", targets[i].name);
        int n = scandir(folder, &seed, is_seed, alphasort);
        for (int k = 0; k < n; k++) {
            snprintf(path, sizeof path, "%s/%s", folder, seed[k]->d_name);
            run_file(&targets[i], path);
            free(seed[k]);
        }
        if (n >= 0) free(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_are_listed), cmocka_unit_test(test_seeds) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
