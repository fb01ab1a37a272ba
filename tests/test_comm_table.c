/* test_comm_table.c - the table that chooses an algorithm: shipped, forced, tuned, malformed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "helper_virtual.h"

static const char *comm_table_chosen(ls_collective op, size_t bytes, int n, bool half)
{
    const struct algorithm *a = algorithm_choose(op, bytes, n, half);

    assert_non_null(a);
    assert_int_equal(a->op, op);
    return a->name;
}

static void shipped_comm_table_is_used(void **state)
{
    (void)state;
    for (int op = 0; op < LS_COLLECTIVES; op++)
        for (int shift = 0; shift < 64; shift += 3)
            for (int half = 0; half < 2; half++) {
                const struct algorithm *a = algorithm_choose((ls_collective)op, (size_t)1 << shift, 1 + shift, half);

                if (op == LS_COLLECTIVE_SEND || op == LS_COLLECTIVE_RECV) assert_null(a);
                else assert_true(a && (a->half || !half));
                assert_true(!a || strcmp(a->name, "central") != 0);
                assert_false(algorithm_list_first((ls_collective)op, (size_t)1 << shift, 1 + shift, half));
            }
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 8, 4, false), "halving_doubling");
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 1 << 28, 4, false), "ring");
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 1 << 28, 4, true), "direct");
}

static void forced_algorithm_is_used(void **state)
{
    (void)state;
    assert_int_equal(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, "central"), LS_OK);
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 8, 4, true), "central");
    assert_true(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 8, 4, true));
    assert_int_equal(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, "ring"), LS_OK);
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 8, 4, true), "direct");  /* a ring can't */
    assert_false(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 8, 4, true));
    assert_true(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 8, 4, false));
    assert_int_equal(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, ALGORITHM_NATIVE), LS_OK);
    assert_false(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 8, 4, false));
    assert_int_equal(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, "rings"), LS_EINVAL);
    assert_string_equal(ls_errmsg(),
                        "unknown algorithm 'rings' for all_reduce; choose one of: ring, halving_doubling, tree, direct, central, native");
    assert_int_equal(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, NULL), LS_OK);
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 8, 4, false), "halving_doubling");
}

static char path[64];

static ls_status load(const char *text, size_t bytes)
{
    assert_int_equal(file_write(path, text, bytes), LS_OK);
    return algorithm_load_table(path);
}

static void tuned_comm_table_is_used(void **state)
{
    static const char text[] = "lockstep choices 1\n# by hand\n\n"
                               "all_reduce 4KiB 8 halving_doubling  # small\n"
                               "all_reduce 65536\t- whole\r\n"
                               "all_reduce - 4 direct\n"
                               "broadcast - - native";

    (void)state;
    assert_int_equal(load(text, sizeof text - 1), LS_OK);
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 4096, 8, false), "halving_doubling");
    assert_true(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 4096, 8, false));
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 4096, 9, false), "halving_doubling");  /* native, else as shipped */
    assert_false(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 4096, 9, false));
    assert_false(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 4096, 4, true));    /* native fits, halving does not */
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 65537, 4, false), "direct");
    assert_true(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 65537, 4, true));
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 1 << 28, 5, false), "ring");
    assert_false(algorithm_list_first(LS_COLLECTIVE_ALL_REDUCE, 1 << 28, 5, false));
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_BROADCAST, 8, 3, false), "tree");
    assert_int_equal(algorithm_load_table(NULL), LS_OK);
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 65537, 4, false), "halving_doubling");
}

static void malformed_comm_tables_are_refused(void **state)
{
#define FIRST "lockstep comm table 1\n"
    static const struct { const char *text, *says; } cases[] = {
        { "", "first line" },
        { "lockstep comm table 2\n", "first line" },
        { "lockstep comm table 1 \n", "first line" },
        { FIRST "all_reduce - -", "line 2: too few words" },
        { FIRST "\nall_reduce - - ring ring", "line 3: too many words" },
        { FIRST "all_reduces - - ring", "'all_reduces' is not an operation" },
        { FIRST "all_reduce -1 - ring", "'-1' is neither a number of bytes" },
        { FIRST "all_reduce 99999999999999999999 - ring", "neither a number of bytes" },
        { FIRST "all_reduce - 0 ring", "'0' is neither a number of ranks" },
        { FIRST "all_reduce - 2147483648 ring", "neither a number of ranks" },
        { FIRST "all_reduce - - doubling", "all_reduce has no algorithm 'doubling'" },
        { FIRST "send - - ring", "send has no algorithm 'ring'" },
    };

    (void)state;
    assert_int_equal(load(FIRST "all_reduce - - direct\n", strlen(FIRST) + 22), LS_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(load(cases[i].text, strlen(cases[i].text)), LS_EFORMAT);
        if (!strstr(ls_errmsg(), cases[i].says)) fail_msg("'%s' does not say '%s'", ls_errmsg(), cases[i].says);
    }
    assert_int_equal(load(FIRST "\0x", strlen(FIRST) + 2), LS_EFORMAT);
    assert_int_equal(algorithm_load_table("/nowhere/choices"), LS_EIO);
    assert_string_equal(comm_table_chosen(LS_COLLECTIVE_ALL_REDUCE, 8, 3, false), "direct");  /* the last good one stays */
    assert_int_equal(algorithm_load_table(NULL), LS_OK);
}

static void too_long_comm_tables_are_refused(void **state)
{
    struct { char text[2 << 20]; } *big = malloc(sizeof *big);
    size_t used = strlen(FIRST);

    (void)state;
    assert_non_null(big);
    memcpy(big->text, FIRST, used);
    for (int i = 0; i < 1025; i++, used += 22) memcpy(big->text + used, "all_reduce - - direct\n", 22);
    assert_int_equal(load(big->text, used), LS_EFORMAT);
    assert_non_null(strstr(ls_errmsg(), "line 1026: more than 1024 rows"));
    assert_int_equal(load(big->text, used - 22), LS_OK);
    memset(big->text + strlen(FIRST), '#', sizeof big->text - strlen(FIRST));
    assert_int_equal(load(big->text, sizeof big->text), LS_EFORMAT);
    assert_non_null(strstr(ls_errmsg(), "2097152 bytes"));
    assert_int_equal(algorithm_load_table(NULL), LS_OK);
    free(big);
}

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/test_steps_%d", (int)getpid());
    return 0;
}

static int drop_path(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_comm_table_is_used),
        cmocka_unit_test(forced_algorithm_is_used),
        cmocka_unit_test(tuned_comm_table_is_used),
        cmocka_unit_test(malformed_comm_tables_are_refused),
        cmocka_unit_test(too_long_comm_tables_are_refused),
    };

    return cmocka_run_group_tests(tests, make_path, drop_path);
}
