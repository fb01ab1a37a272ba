/* test_parity_routes.c - choices of experts that one side of a comparison writes and another adopts: within the threshold they are adopted
 * and change the results; beyond it they are reported with step, layer, sample and token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "train/parity/parity_routes.h"
#include "train/run/random_tokens.h"

enum { LAYERS = 2, SAMPLES = 4, TIME = 8, CHOSEN = 2, WIDTH = PARITY_ROUTE_HEAD + CHOSEN, ROWS = LAYERS * SAMPLES * TIME };

static char parity_routes_folder[] = "/tmp/test_parity_routes-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[2][128];
    static int turn;

    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", parity_routes_folder, name);
    return path[turn];
}

/* Runs a step of two micro-batches. Returns a weighted sum of squares of the gradient, which depends on every element. */
static double side(const char *path, const char *follow, double threshold, const char *extra)
{
    static const char *const settings[][2] = {
        { "model.preset", "mixtral-tiny" }, { "data.seq_len", "8" }, { "train.global_batch", "4" }, { "train.micro_batch", "2" },
        { "train.accumulate", "2" }, { "precision.compute", "fp32" }, { "launch.threads", "1" },
    };
    struct ranks alone = RANKS_ALONE;
    struct parity_routes *r;
    struct options o;
    struct config c;
    struct step s;
    struct task_model m;
    double loss, sum = 0;
    size_t valid;

    OK(options_open(config_table(), &c, VERB_PARITY, &o));
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        OK(options_set(&o, settings[i][0], settings[i][1], "test"));
    if (extra)
        OK(options_set(&o, "model.capacity", extra, "test"));
    OK(config_ranks(&c, VERB_PARITY, &(struct world){ .size = 1 }));
    OK(config_check(&c, VERB_PARITY));
    OK(task_model_of(&c, 0, &m));
    OK(step_open_config(&c, &m, &alone, STEP_INITIALIZED, &s));
    OK(parity_routes_open(&s, threshold, path, follow, &r));
    assert_non_null(r);
    random_tokens(&s, 0, 0);
    OK(parity_routes_begin(r, 0));
    OK(step_gradients(&s, 0, &loss, &valid));
    OK(parity_routes_end(r, 0));
    for (size_t i = 0; i < ls_store_count(s.store); i++)
        for (size_t e = 0; e < ls_tensor_count(ls_store_grad(s.store, i)); e++) {
            double g = ((const float *)ls_tensor_data(ls_store_grad(s.store, i)))[e];

            sum += g * g * (1 + (double)(e % 7));
        }
    parity_routes_close(&r);
    step_close(&s);
    options_close(&o);
    return sum;
}

/* Replaces the choices in `count` rows from `row` on by the two experts (of four) that were not chosen. */
static void change_rows(const char *path, size_t row, int count)
{
    char *name = parity_routes_path(path, 0), *data;
    int32_t *at;
    size_t bytes;

    OK(file_read(name, &data, &bytes));
    assert_int_equal(bytes, sizeof(struct parity_routes_head) + ROWS * WIDTH * sizeof *at);
    for (int k = 0; k < count; k++) {
        int32_t chosen[2];

        at = (int32_t *)(void *)(data + sizeof(struct parity_routes_head)) + (row + (size_t)k) * WIDTH + PARITY_ROUTE_HEAD;
        memcpy(chosen, at, sizeof chosen);
        for (int32_t e = 0, n = 0; e < 4; e++)
            if (e != chosen[0] && e != chosen[1])
                at[n++] = e;
    }
    OK(file_write(name, data, bytes));
    mem_free(data);
    mem_free(name);
}

static void equal_routes_agree(void **state)
{
    struct parity_rerouted e;
    double plain = side(in_folder("a"), NULL, 0, NULL), same = side(in_folder("b"), in_folder("a"), 0, NULL);

    (void)state;
    assert_true(plain == same);
    OK(parity_routes_compare(in_folder("b"), in_folder("a"), 1, &e));
    assert_true(e.tokens == ROWS && e.taken == 0 && e.beyond == 0 && e.dropped == 0 && e.layer == -1);
}

static void near_ties_are_adopted(void **state)
{
    struct parity_rerouted e;
    size_t row = (1 * SAMPLES + 2) * TIME + 5;
    double plain = side(in_folder("a"), NULL, 0, NULL);

    (void)state;
    change_rows(in_folder("a"), row, 1);
    double other = side(in_folder("b"), in_folder("a"), 1e6, NULL);
    assert_true(other != plain);
    OK(parity_routes_compare(in_folder("b"), in_folder("a"), 1, &e));
    assert_true(e.taken == 1 && e.beyond == 0 && e.layer == 1 && e.sample == 2 && e.token == 5 && e.margin > 0);
    /* the same threshold is just enough */
    assert_true(side(in_folder("b"), in_folder("a"), e.margin * 1.001, NULL) == other);
}

static void distant_choices_are_reported(void **state)
{
    struct parity_rerouted e;
    double plain = side(in_folder("a"), NULL, 0, NULL);

    (void)state;
    change_rows(in_folder("a"), TIME + 3, 2);
    assert_true(side(in_folder("b"), in_folder("a"), 1e-6, NULL) == plain);
    OK(parity_routes_compare(in_folder("b"), in_folder("a"), 1, &e));
    assert_true(e.taken == 0 && e.beyond == 2 && e.step == 0 && e.layer == 0 && e.sample == 1 && e.token == 3 && e.margin > 1e-6);
    assert_non_null(strstr(e.text, " instead of "));
}

/* A token that goes to another expert changes the load: then the reference's drops are adopted; without such a token they are beyond. */
static void dropped_tokens_are_compared(void **state)
{
    struct parity_rerouted e;
    char *name = parity_routes_path(in_folder("a"), 0), *data;
    size_t bytes, k = 0;

    (void)state;
    side(in_folder("a"), NULL, 0, "0.6");
    OK(file_read(name, &data, &bytes));
    int32_t *at = (int32_t *)(void *)(data + sizeof(struct parity_routes_head));
    while (k < ROWS && at[k * WIDTH + PARITY_ROUTE_HEAD] >= 0) k++;
    assert_true(k < ROWS);
    at[k * WIDTH + PARITY_ROUTE_HEAD] = ~at[k * WIDTH + PARITY_ROUTE_HEAD];  /* the reference dropped a token that was not dropped here */
    OK(file_write(name, data, bytes));
    side(in_folder("b"), in_folder("a"), 1e6, "0.6");
    OK(parity_routes_compare(in_folder("b"), in_folder("a"), 1, &e));
    assert_true(e.beyond == 1 && e.taken == 0 && e.dropped == 0);
    change_rows(in_folder("a"), k / TIME * TIME, 1);  /* the first token of its sample goes to other experts */
    side(in_folder("b"), in_folder("a"), 1e6, "0.6");
    OK(parity_routes_compare(in_folder("b"), in_folder("a"), 1, &e));
    assert_true(e.beyond == 0 && e.taken == 1 && (k % TIME == 0 || e.dropped == 1));
    mem_free(data);
    mem_free(name);
}

static void truncated_records_are_refused(void **state)
{
    char *name = parity_routes_path(in_folder("a"), 0), *data;
    struct parity_rerouted e;
    size_t bytes;

    (void)state;
    side(in_folder("a"), NULL, 0, NULL);
    side(in_folder("b"), in_folder("a"), 0, NULL);
    OK(file_read(name, &data, &bytes));
    OK(file_write(name, data, bytes - 4));
    assert_int_equal(parity_routes_compare(in_folder("b"), in_folder("a"), 1, &e), LS_EFORMAT);
    assert_non_null(strstr(ls_errmsg(), "not a file of expert choices"));
    mem_free(data);
    mem_free(name);
}

static int routes_set_up(void **state)
{
    (void)state;
    return mkdtemp(parity_routes_folder) ? 0 : -1;
}

static int routes_tear_down(void **state)
{
    (void)state;
    return file_remove_tree(parity_routes_folder) == LS_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_routes_agree), cmocka_unit_test(near_ties_are_adopted), cmocka_unit_test(distant_choices_are_reported),
        cmocka_unit_test(dropped_tokens_are_compared), cmocka_unit_test(truncated_records_are_refused),
    };

    return cmocka_run_group_tests(tests, routes_set_up, routes_tear_down);
}
