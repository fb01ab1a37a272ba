/* test_isa.c - the instruction sets that kernels use: caps, and that timing gives every process the same answer. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/kernel.h"

enum { PROCESSES = 24 };

/* Runs first, since children inherit the results of their parent. All children run at once, so that they disturb each other. */
static void processes_agree(void **state)
{
    pid_t child[PROCESSES];
    int status, first = -1;

    (void)state;
    for (int i = 0; i < PROCESSES; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] == 0)
            _exit((int)isa_best());
    }
    for (int i = 0; i < PROCESSES; i++) {
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        if (i == 0)
            first = WEXITSTATUS(status);
        assert_int_equal(WEXITSTATUS(status), first);
    }
    assert_int_equal(isa_best(), first);
}

static void best_is_all_but_for_slow_pairs(void **state)
{
    (void)state;
    if (isa_best() != isa_all()) {
        assert_int_equal(isa_all(), ISA_AVX512_BF16);
        assert_int_equal(isa_best(), ISA_AVX512);
        print_message("    %s is slower here than %s\n", isa_name(isa_all()), isa_name(isa_best()));
    }
}

/* A cap is only a limit, whatever is faster: with it, slow pairs can be used. */
static void a_cap_is_a_limit(void **state)
{
    enum isa best = isa_best();

    (void)state;
    for (int cap = ISA_ANY; cap < ISAS; cap++) {
        isa_cap((enum isa)cap);
        assert_int_equal(isa_best(), cap < (int)isa_all() ? cap : (int)isa_all());
    }
    isa_cap(ISAS);
    assert_int_equal(isa_best(), best);
}

/* What is assumed takes the place of the cap, until it is taken back. */
static void an_assumed_cap_is_taken_back(void **state)
{
    enum isa best = isa_best();

    (void)state;
    isa_cap(ISA_AVX2);
    assert_int_equal(isa_assume(ISA_ANY), -1);
    assert_int_equal(isa_best(), ISA_ANY);
    assert_int_equal(isa_assume(ISA_AMX), ISA_ANY);
    assert_int_equal(isa_best(), isa_all());
    assert_int_equal(isa_assume(-1), ISA_AMX);
    assert_int_equal(isa_best(), isa_all() < ISA_AVX2 ? isa_all() : ISA_AVX2);
    isa_cap(ISAS);
    assert_int_equal(isa_best(), best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_agree),
        cmocka_unit_test(best_is_all_but_for_slow_pairs),
        cmocka_unit_test(a_cap_is_a_limit),
        cmocka_unit_test(an_assumed_cap_is_taken_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
