/* test_cublaslt_own.c - matmuls that cuBLASLt has no algorithm for, on the stubs of the CUDA runtime and cuBLASLt: lockstep's own kernels
 * compute them, with one warning, and leave what they leave where there is no cuBLASLt.
 */
#include "helper_device_calls.h"
#include "helper_kernel_gen.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "device/device.h"
#include "helper_check.h"
#include "helper_child.h"
#include "lockstep/ops.h"
#include "lockstep/program.h"
#include "lockstep/store.h"
#include "runtime/runtime.h"

enum { ROWS = 6, WIDTH = 8, HIDDEN = 16, VOCABULARY = 11, NUMBERS = 1 + HIDDEN * WIDTH + HIDDEN };

/* ---- a program ---- */

static ls_value cublaslt_own_layer(ls_program *p, ls_value x, const char *w, const char *b, size_t out, size_t in)
{
    return ls_linear(p, x, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ out, in }),
                     ls_param(p, b, (ls_init){ LS_INIT_UNIFORM, 0.1 }, 1, &out));
}

/* Linear layers, one with GELU, a batched matmul, and the output projection with its loss. */
static ls_value cublaslt_own_loss(ls_program *p, ls_dtype type)
{
    ls_value h = ls_input(p, "x", type, 2, (size_t[]){ ROWS, WIDTH }), y = ls_input(p, "y", LS_I32, 1, (size_t[]){ ROWS });

    h = cublaslt_own_layer(p, ls_gelu_tanh(p, cublaslt_own_layer(p, h, "w1", "b1", HIDDEN, WIDTH)), "w2", "b2", WIDTH, HIDDEN);
    h = ls_matmul(p, ls_matmul(p, h, ls_transpose(p, h, 0, 1)), h);
    return ls_linear_xent(p, h, ls_param(p, "head", (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ VOCABULARY, WIDTH }), y, LS_NONE);
}

static unsigned occurrences_of(const char *text, const char *what)
{
    unsigned n = 0;

    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

/* Loss and gradients of the first layer; how many of the program's kernels are cuBLASLt's. *profiled += lines of its profile that are. */
static int cublaslt_own_run(ls_dtype type, double got[NUMBERS], unsigned *profiled)
{
    char *profile = NULL;
    int y[ROWS], n = 0;
    float x[ROWS * WIDTH];
    ls_store *store;
    ls_program *p;

    for (int i = 0; i < ROWS; i++)
        y[i] = (i * 5) % VOCABULARY - (i == 2);
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)(i % 7) / 4 - 0.7f;
    OK(ls_store_new(&(ls_store_options){ "cuda", type, 1, 7, 0 }, &store));
    OK(ls_program_new(store, &p));
    ls_backward(p, ls_output(p, "loss", cublaslt_own_loss(p, type)));
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < ls_program_instructions(p); i++) {
        ls_instruction instruction;

        ls_program_instruction(p, i, &instruction);
        n += strcmp(instruction.kernel, "cublaslt") == 0;
    }
    OK(ls_program_write(p, "x", x, LS_F32, ROWS * WIDTH));
    OK(ls_program_write(p, "y", y, LS_I32, ROWS));
    for (int run = 0; run < 2; run++)  /* gradients are added to */
        OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    OK(ls_program_read(p, "loss", got, LS_F64, 1));
    OK(ls_store_read(store, (size_t)ls_store_find(store, "w1"), "gradient", got + 1, LS_F64, HIDDEN * WIDTH));
    OK(ls_store_read(store, (size_t)ls_store_find(store, "b1"), "gradient", got + 1 + HIDDEN * WIDTH, LS_F64, HIDDEN));
    OK(program_profile_text(p, &profile));
    *profiled += occurrences_of(profile, "cublaslt");
    mem_free(profile);
    ls_program_release(&p);
    ls_store_release(&store);
    return n;
}

/* Prints a hash of the numbers in both types, and how many kernels and lines of the profiles are cuBLASLt's. */
static int print_numbers(void)
{
    uint64_t hash = 0xcbf29ce484222325u;
    int n = 0;
    unsigned profiled = 0;

    for (int bf16 = 0; bf16 < 2; bf16++) {
        double got[NUMBERS];
        unsigned char bytes[sizeof got];

        n += cublaslt_own_run(bf16 ? LS_BF16 : LS_F32, got, &profiled);
        memcpy(bytes, got, sizeof got);
        for (size_t i = 0; i < sizeof bytes; i++)
            hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    fprintf(stderr, "%d matmuls, %u profiled, numbers %016" PRIx64 "\n", n, profiled, hash);
    return 0;
}

/* A profile names the kernels that ran. */
static void same_numbers_as_without_the_library(void **state)
{
    struct child own = child_run("seed=3 algorithms=0", print_numbers), absent = child_run("seed=4 cublaslt=0", print_numbers);
    struct child library = child_run("seed=3", print_numbers);
    const char *a = strstr(own.err, "numbers "), *b = strstr(absent.err, "numbers ");

    (void)state;
    if (own.code != 0 || absent.code != 0 || !a || !b || strcmp(a, b) != 0)
        fail_msg("exit codes %d and %d, '%s', '%s'", own.code, absent.code, own.err, absent.err);
    if (!strstr(absent.err, "\n0 matmuls") || strstr(own.err, "\n0 matmuls"))
        fail_msg("'%s', '%s'", own.err, absent.err);
    if (occurrences_of(own.err, "; lockstep's own kernel is used") != 1)
        fail_msg("not one warning: %s", own.err);
    if (library.code != 0 || !strstr(own.err, " matmuls, 0 profiled") || !strstr(library.err, " matmuls, ") ||
        strstr(library.err, " matmuls, 0 profiled"))
        fail_msg("'%s', '%s'", own.err, library.err);
}

/* ---- every case ---- */

static void check_case(void *ctx, struct kernel_case *c)
{
    const struct kernel *k = kernel_named(c->call.op, "cublaslt");

    if (!k->accepts(&c->call))
        return;
    ++*(unsigned *)ctx;
    struct kernel_check *check = kernel_check_new(c);
    kernel_check_entry(check, k, c->name);
    kernel_check_free(check);
}

/* Exit code 0: all cases are right. */
static int run_every_case(void)
{
    static const enum op ops[] = { OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW, OP_MATMUL, OP_LINEAR_XENT, OP_LINEAR_XENT_GRAD, OP_LINEAR_UNARY,
                                   OP_LINEAR_DW_BIAS };
    unsigned cases = 0;

    device_calls_on = device_find("cuda");
    if (!device_calls_on || kernel_table_add(device_calls_on) < 0)
        return 2;
    kernel_observer.run = device_calls_run;
    for (size_t k = 0; k < COUNT_OF(ops); k++)
        kernel_cases(ops[k], check_case, &cases);
    fprintf(stderr, "%u cases\n", cases);
    return cases > 150 ? 0 : 3;
}

static void every_case_agrees_with_its_reference(void **state)
{
    struct child c = child_run("seed=5 algorithms=0", run_every_case);

    (void)state;
    if (c.code != 0 || occurrences_of(c.err, "; lockstep's own kernel is used") != 1)
        fail_msg("exit code %d, %s", c.code, c.err);
}

/* Exit code 0: many rows of few logits, of which lockstep's own kernel takes more at once, have scratch for it. */
static int compare_scratch(void)
{
    const struct device *d = device_find("cuda");
    struct call c = { .op = OP_LINEAR_XENT, .nin = 4, .nout = 2 };
    size_t rows = 1 << 19, width = 8, vocabulary = 32;

    if (!d || kernel_table_add(d) < 0)
        return 2;
    c.in[0] = view_of(NULL, LS_BF16, 2, (size_t[]){ rows, width });
    c.in[1] = view_of(NULL, LS_BF16, 2, (size_t[]){ vocabulary, width });
    c.in[2] = view_of(NULL, LS_I32, 1, &rows);
    c.in[3].ndim = VIEW_ABSENT;
    c.out[0] = view_of(NULL, LS_F32, 1, (size_t[]){ 1 });
    c.out[1] = view_of(NULL, LS_F32, 1, &rows);
    const struct kernel *k = kernel_named(c.op, "cublaslt"), *own = kernel_named(c.op, "cuda");
    return k->accepts(&c) && own->accepts(&c) && k->scratch(&c) >= own->scratch(&c) ? 0 : 1;
}

static void scratch_has_room_for_either(void **state)
{
    struct child c = child_run("", compare_scratch);

    (void)state;
    assert_int_equal(c.code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_numbers_as_without_the_library),
                                        cmocka_unit_test(every_case_agrees_with_its_reference),
                                        cmocka_unit_test(scratch_has_room_for_either) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
