/* test_kernels.c - every entry of the kernel table compared with the reference, for every case of its op.
 *
 * Checked for each entry that this machine can run, under each limit of the instruction set (the reference once): the result is within the
 * op's tolerance, a second run with other scratch contents gives the same bits, only the output is written, and
 * the in-place forms that the op allows give the same result.
 */
#include "device/device.h"
#include "helper_kernels.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/cpu/onednn_load.h"

enum { MOST_ENTRIES = 512 };

struct walk { unsigned runs[MOST_ENTRIES]; };

static void entries_check_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;
    struct kernel_check *check = kernel_check_new(c);
    const struct kernel *k;

    for (int cap = ISA_AVX2; cap < ISAS; cap++) {
        isa_cap((enum isa)cap);
        if (isa_best() != (enum isa)cap)
            continue;
        for (int i = 0; (k = kernel_at(i)); i++) {
            char name[256];

            if (k->op != c->call.op || k->isa > isa_best() || !k->accepts(&c->call))
                continue;
            if (k->priority == PRIORITY_REFERENCE && cap > ISA_AVX2)
                continue;  /* has no vectors */
            assert_true(i < MOST_ENTRIES);
            w->runs[i]++;
            snprintf(name, sizeof name, "%s by %s (%s)", c->name, k->name, isa_name((enum isa)cap));
            kernel_check_entry(check, k, name);
        }
    }
    isa_cap(ISAS);
    kernel_check_free(check);
}

static void test_every_entry(void **state)
{
    static struct walk w;
    const struct kernel *k;

    (void)state;
    threads_set(3);
    for (int op = 0; op < OPS; op++)
        if (kernel_cases((enum op)op, entries_check_case, &w) == 0)
            fail_msg("%s has no case", op_name((enum op)op));
    for (int i = 0; (k = kernel_at(i)); i++)
        if (k->isa <= isa_all() && w.runs[i] == 0 && (onednn_found() || strncmp(k->name, "onednn", 6) != 0))
            fail_msg("entry %s of %s accepts no case", k->name, op_name(k->op));
}

static void test_table(void **state)
{
    const struct kernel *k, *other;

    (void)state;
    for (int i = 0; (k = kernel_at(i)); i++) {
        assert_true((unsigned)k->op < OPS);
        assert_non_null(k->device);
        assert_string_equal(k->device, "cpu");  /* no device's module is loaded */
        assert_non_null(k->accepts);
        assert_non_null(k->run);
        assert_ptr_equal(kernel_named(k->op, k->name), k);  /* one entry per op and name, */
        assert_true(k->priority == PRIORITY_REFERENCE || k->accepts != kernel_reference(k->op)->accepts);
        for (int j = 0; (other = kernel_at(j)); j++)        /* and per op and priority */
            assert_true(other == k || other->op != k->op || other->priority != k->priority);
    }
    for (int op = 0; op < OPS; op++) {
        k = kernel_reference((enum op)op);
        assert_string_equal(k->name, "reference");
        assert_int_equal(k->isa, ISA_ANY);
    }
}

/* Under a cap the entries above it are not chosen, and f64 finds the reference. */
static void test_choose(void **state)
{
    float data[16] = { 0 };
    struct call c = { .op = OP_SCALE, .nin = 1, .nout = 1 };
    static const char *const names[ISAS] = { "reference", "avx2", "avx512", "avx512", "avx512" };
    enum isa all = isa_all(), best = isa_best();

    (void)state;
    c.in[0] = c.out[0] = view_of(data, LS_F32, 1, (size_t[]){ 16 });
    for (int cap = 0; cap <= (int)all; cap++) {
        isa_cap((enum isa)cap);
        assert_int_equal(isa_best(), cap);
        assert_true(kernel_choose(&c, &device_cpu)->isa <= (enum isa)cap);
        assert_string_equal(kernel_choose(&c, &device_cpu)->name, names[cap]);
    }
    isa_cap(ISAS);
    assert_int_equal(isa_best(), best);
    c.in[0].dtype = c.out[0].dtype = LS_F64;
    assert_ptr_equal(kernel_choose(&c, &device_cpu), kernel_reference(OP_SCALE));
    assert_ptr_equal(kernel_choose(&c, device_find("check")), kernel_reference(OP_SCALE));
    assert_null(kernel_choose(&c, &(struct device){ .name = "abacus", .kernels = "abacus" }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_every_entry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
