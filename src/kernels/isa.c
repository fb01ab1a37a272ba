/* isa.c - the instruction sets of this processor, and which of them it gains from.
 *
 * CPUID lists the instruction sets. Multiply-adds of pairs of bf16 (AVX512_BF16) are twice as fast as those of f32 on some processors (AMD
 * Zen 4 and 5) and half as fast on others (Intel Xeons with AMX, if a virtual machine hides AMX). CPUID does not say which, so both are
 * timed, once per process, in a third of a millisecond.
 */
#include <cpuid.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "kernels/kernel.h"

static const char *const isa_names[ISAS] = { "any", "avx2", "avx512", "avx512_bf16", "amx" };

static atomic_int cap = ISAS;
static _Thread_local int assumed_cap = -1; /* isa_assume() */

const char *isa_name(enum isa isa)
{
    ASSERT((unsigned)isa < ISAS);
    return isa_names[isa];
}

void isa_cap(enum isa most)
{
    ASSERT((unsigned)most <= ISAS);
    atomic_store(&cap, (int)most);
}

int isa_assume(int most)
{
    int before = assumed_cap;

    ASSERT(most >= -1 && most <= ISAS);
    assumed_cap = most;
    return before;
}

static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
}

static bool has_avx512_bf16(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

/* Constants of arch_prctl(2), which the C library's headers lack. */
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* Tiles of bf16, and an operating system that saves them: bits 17 and 18 of XCR0 (Intel SDM, volume 1, 13.3). Linux must be asked for the
 * 8 KiB that they take in each thread before they are used (Documentation/arch/x86/xstate.rst). */
static bool has_amx_bf16(void)
{
    const unsigned osxsave = 1u << 27, tile = 1u << 24, bf16 = 1u << 22, saved = 3u << 17;
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (tile | bf16)) != (tile | bf16)) return false;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & saved) == saved && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* __builtin_cpu_supports also checks that the operating system saves the registers. */
static enum isa detect(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return ISA_ANY;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return ISA_AVX2;
    if (!has_avx512_bf16()) return ISA_AVX512;
    return has_amx_bf16() ? ISA_AMX : ISA_AVX512_BF16;
}

enum { TIMED = 200 }; /* repetitions of twelve instructions, each on its own sums */

/* clang-format off */
#define TWELVE(op) \
    op "0\n" op "1\n" op "2\n" op "3\n" op "4\n" op "5\n" op "6\n" op "7\n" op "8\n" op "9\n" op "10\n" op "11\n"

#define REPEAT(n, op) \
    __asm__ volatile("vzeroall\n1:\n" TWELVE(op " %%zmm12, %%zmm12, %%zmm") "dec %0\njnz 1b\nvzeroupper" \
                     : "+r"(n) : : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
/* clang-format on */

static int64_t isa_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t time_of_f32(void)
{
    int64_t began = isa_now();
    uint64_t n = 2 * TIMED; /* an instruction multiplies 16 of f32, 32 of bf16 */

    REPEAT(n, "vfmadd231ps");
    return isa_now() - began;
}

static int64_t time_of_pairs(void)
{
    int64_t began = isa_now();
    uint64_t n = TIMED;

    REPEAT(n, "vdpbf16ps");
    return isa_now() - began;
}

/* True unless multiply-adds of pairs take longer than those of f32 by more than a third; on known processors they take half or twice as
 * long. It is a vote of measurements made one after the other: a processor is slower for a while when it begins to use its wide registers,
 * and any measurement may be interrupted. */
static bool pairs_gain(void)
{
    enum { VOTES = 99 };
    int for_pairs = 0;

    for (int i = 0; i < VOTES; i++) {
        int64_t f32 = time_of_f32(), pairs = time_of_pairs();

        for_pairs += 3 * pairs <= 4 * f32;
    }
    return for_pairs > VOTES / 2;
}

static enum isa all, usual;
static pthread_once_t detected = PTHREAD_ONCE_INIT, timed = PTHREAD_ONCE_INIT;

static void isa_detect_once(void) { all = detect(); }

static void isa_time_once(void)
{
    usual = isa_all();
    if (usual == ISA_AVX512_BF16 && !pairs_gain()) usual = ISA_AVX512;
}

enum isa isa_all(void)
{
    pthread_once(&detected, isa_detect_once);
    return all;
}

enum isa isa_best(void)
{
    int most = assumed_cap >= 0 ? assumed_cap : atomic_load(&cap);

    if (most < ISAS) return MIN(isa_all(), (enum isa)most);
    pthread_once(&timed, isa_time_once);
    return usual;
}
