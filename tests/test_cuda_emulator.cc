/* test_cuda_emulator.cc - the CUDA emulator: correct kernels give right results and no report, under many orders of threads; each kind of
 * error is reported, under each of these orders.
 */
#include "kernels/cuda/launch.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
extern "C" {
#include <cmocka.h>
}

enum { N = 256, SEEDS = 20 };

static float x[N], y[N];
static int counters[8];
static struct call call;

static void memory_reset(void)
{
    emulator_clear();
    emulator_memory_clear();
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        y[i] = -1;
    }
    memset(counters, 0, sizeof counters);
    emulator_memory_add(x, sizeof x, x, sizeof *x, false, "x");
    emulator_memory_add(y, sizeof y, y, sizeof *y, true, "y");
    emulator_memory_add(counters, sizeof counters, counters, sizeof *counters, true, "counters");
}

/* ---- correct kernels ---- */

__global__ void copy_index(global<const float> from, global<float> to)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;

    to[i] = from[i] + 1;
}

/* Sum of a block: warps by shuffles, then one warp. */
__global__ void sum_block(global<const float> from, global<float> to)
{
    SHARED(float, sums, 32);
    unsigned i = threadIdx.x;
    float sum = from[blockIdx.x * blockDim.x + i];

    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (i % 32 == 0) sums[i / 32] = sum;
    __syncthreads();
    if (i < 32) {
        sum = i < blockDim.x / 32 ? (float)sums[i] : 0;
        for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
        if (i == 0) to[blockIdx.x] = sum;
    }
}

/* Reverses its block through dynamic shared memory, four elements at a time. */
__global__ void reverse(global<const float> from, global<float> to)
{
    DYNAMIC_SHARED(float, all);
    unsigned i = threadIdx.x * 4;
    pack<float, 4> four = pack_load<4>(from, i);

    pack_store(all, i, four);
    __syncthreads();
    for (unsigned k = 0; k < 4; k++) to[i + k] = all[blockDim.x * 4 - 1 - i - k];
}

__global__ void vote_and_count(global<const float> from, global<int> out)
{
    SHARED(int, total, 1);

    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    unsigned odd = __ballot_sync(0xffffffffu, (int)from[threadIdx.x] % 2);
    if (threadIdx.x % 32 == 0) atomic_add(total, 0, __popc(odd));
    atomic_add(out, 1, 1);
    atomic_max(out, 2, (int)threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total[0];
}

/* A half of each warp at a time, through shared memory, with a mask. */
__global__ void shift_half(global<const float> from, global<float> to)
{
    SHARED(float, one, N);
    unsigned i = threadIdx.x, half = i % 32 / 16, mask = half ? 0xffff0000u : 0xffffu;

    one[i] = from[i];
    __syncwarp(mask);
    to[i] = one[i / 16 * 16 + (i + 1) % 16] + 0 * __shfl_sync(mask, (float)one[i], half ? 16 : 0);
}

static void test_right_kernels(void **)
{
    for (int seed = 1; seed <= SEEDS; seed++) {
        emulator_seed((uint64_t)seed);
        memory_reset();
        launch(&call, KERNEL(copy_index), 4, 64, 0, global_of<const float>(x), global_of<float>(y));
        for (int i = 0; i < N; i++) assert_true(y[i] == (float)i + 1);
        launch(&call, KERNEL(sum_block), 2, N / 2, 0, global_of<const float>(x), global_of<float>(y));
        assert_true(y[0] == 127 * 64 && y[1] == 127 * 64 + 128 * 128);
        launch(&call, KERNEL(reverse), 1, N / 4, N * sizeof(float), global_of<const float>(x), global_of<float>(y));
        for (int i = 0; i < N; i++) assert_true(y[i] == (float)(N - 1 - i));
        launch(&call, KERNEL(vote_and_count), 1, N, 0, global_of<const float>(x), global_of<int>(counters));
        assert_int_equal(counters[0], N / 2);
        assert_int_equal(counters[1], N);
        assert_int_equal(counters[2], N - 1);
        launch(&call, KERNEL(shift_half), 1, N, 0, global_of<const float>(x), global_of<float>(y));
        for (int i = 0; i < N; i++) assert_true(y[i] == (float)(i / 16 * 16 + (i + 1) % 16));
        launch(&call, KERNEL(copy_index), 0, 64, 0, global_of<const float>(x), global_of<float>(y)); /* nothing to do */
        assert_string_equal(emulator_report(), "");
    }
}

/* A device's addresses may differ from the host's: the kernel gets x + 1 MiB. */
static void test_device_addresses(void **)
{
    char *base = (char *)0x7000000000;

    emulator_clear();
    emulator_memory_clear();
    memory_reset();
    emulator_memory_remove(x);
    emulator_memory_add(base, sizeof x, x, sizeof *x, false, "x");
    launch(&call, KERNEL(copy_index), 4, 64, 0, global_of<const float>(base), global_of<float>(y));
    assert_string_equal(emulator_report(), "");
    assert_true(y[5] == 6);
    emulator_memory_remove(base);
    launch(&call, KERNEL(copy_index), 4, 64, 0, global_of<const float>(base), global_of<float>(y));
    assert_non_null(strstr(emulator_report(), "no region"));
}

static struct {
    void *stream;
    void (*run)(const void *);
    char closure[256];
} queued;

static void cuda_emulator_queue(void *stream, const char *, void (*run)(const void *), const void *closure, size_t bytes)
{
    assert_true(bytes <= sizeof queued.closure);
    queued.stream = stream;
    queued.run = run;
    memcpy(queued.closure, closure, bytes);
}

static void test_queue(void **)
{
    struct call on = {};

    memory_reset();
    on.stream = (struct device_stream *)x;
    emulator_enqueue(cuda_emulator_queue);
    launch(&on, KERNEL(copy_index), 4, 64, 0, global_of<const float>(x), global_of<float>(y));
    emulator_enqueue(NULL);
    assert_ptr_equal(queued.stream, x);
    assert_true(y[0] == -1);
    queued.run(queued.closure);
    assert_true(y[N - 1] == (float)N);
    assert_string_equal(emulator_report(), "");
}

/* ---- wrong kernels: each is right with wrong == false; 2 blocks of 128 threads, 512 bytes of dynamic shared memory ---- */

#define WRONG(name) __global__ void name(bool wrong, [[maybe_unused]] global<const float> from, global<float> to)
#define INDEX       (blockIdx.x * blockDim.x + threadIdx.x)
#define ALL         0xffffffffu

WRONG(barrier_exit)
{
    if (wrong && threadIdx.x == 7) return;
    __syncthreads();
    to[INDEX] = from[INDEX];
}

WRONG(barrier_elsewhere)
{
    if (wrong && threadIdx.x == 7)
        __syncthreads();
    else
        __syncthreads();
    to[INDEX] = from[INDEX];
}

WRONG(barrier_count)
{
    for (unsigned i = 0; i < (wrong ? 3 + threadIdx.x % 2 : 3); i++) __syncthreads();
    to[INDEX] = from[INDEX];
}

WRONG(shuffle_at_barrier)
{
    float value = from[INDEX];

    if (wrong && threadIdx.x % 32 == 5) __syncthreads();
    value += __shfl_xor_sync(ALL, value, 1);
    __syncthreads();
    to[INDEX] = value;
}

WRONG(shuffle_ended)
{
    if (wrong && threadIdx.x == 37) return;
    to[INDEX] = __shfl_xor_sync(ALL, (float)from[INDEX], 1);
}

WRONG(shuffle_own_mask) { to[INDEX] = __shfl_xor_sync(wrong ? 0x7fffffffu : ALL, (float)from[INDEX], 0); }

WRONG(shuffle_from_outside)
{
    if (threadIdx.x % 32 < 16) to[INDEX] = __shfl_sync(0xffffu, (float)from[INDEX], wrong ? 20 : 10);
}

WRONG(vote_elsewhere)
{
    int any;

    if (wrong && threadIdx.x % 32 == 8)
        any = __any_sync(ALL, 1);
    else
        any = __any_sync(ALL, 0);
    to[INDEX] = (float)any;
}

WRONG(race_write_read)
{
    SHARED(float, cells, 128);

    cells[threadIdx.x] = 0;
    __syncthreads();
    cells[threadIdx.x] = from[INDEX];
    if (!wrong) __syncthreads();
    if (threadIdx.x < 64) to[INDEX] = cells[threadIdx.x + 64];
}

WRONG(race_read_write)
{
    SHARED(float, cells, 128);

    cells[threadIdx.x] = from[INDEX];
    __syncthreads();
    float value = cells[(threadIdx.x + 33) % 128];
    if (!wrong) __syncthreads();
    cells[threadIdx.x] = value;
    to[INDEX] = cells[threadIdx.x];
}

WRONG(race_in_warp)
{
    SHARED(float, cells, 128);

    cells[threadIdx.x] = 0;
    __syncthreads();
    cells[threadIdx.x] = from[INDEX];
    if (!wrong) __syncwarp();
    to[INDEX] = cells[threadIdx.x ^ 1];
}

/* Each half of a warp waits only for itself. */
WRONG(race_of_halves)
{
    SHARED(float, cells, 128);

    cells[threadIdx.x] = 0;
    __syncthreads();
    cells[threadIdx.x] = from[INDEX];
    __syncwarp(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u);
    to[INDEX] = cells[threadIdx.x ^ (wrong ? 16 : 8)];
}

/* A warp's barrier orders no other warp. */
WRONG(race_of_warps)
{
    SHARED(float, cells, 128);

    cells[threadIdx.x] = 0;
    __syncthreads();
    cells[threadIdx.x] = from[INDEX];
    __syncwarp();
    to[INDEX] = cells[threadIdx.x ^ (wrong ? 32 : 1)];
}

WRONG(race_with_atomic)
{
    SHARED(int, count, 1);

    if (threadIdx.x == 0) count[0] = 0;
    if (!wrong) __syncthreads();
    atomic_add(count, 0, 1);
    __syncthreads();
    to[INDEX] = (float)count[0] + from[INDEX];
}

WRONG(uninitialized)
{
    SHARED(float, cells, 128);

    if (!wrong || threadIdx.x != 9 || blockIdx.x != 1) cells[threadIdx.x] = from[INDEX];
    __syncthreads();
    to[INDEX] = cells[127 - threadIdx.x];
}

WRONG(shared_out_of_bounds)
{
    SHARED(float, cells, 128);
    SHARED(float, next, 128);

    cells[threadIdx.x] = next[threadIdx.x] = from[INDEX];
    __syncthreads();
    to[INDEX] = cells[threadIdx.x + (wrong ? 1 : 0)];
}

WRONG(dynamic_out_of_bounds)
{
    DYNAMIC_SHARED(float, all);

    all[threadIdx.x + (wrong ? 1 : 0)] = from[INDEX];
    to[INDEX] = 0;
}

WRONG(past_the_end) { to[INDEX + (wrong ? 1 : 0)] = from[INDEX]; }
WRONG(before_the_start) { to[INDEX] = from[(ptrdiff_t)INDEX - (wrong ? 1 : 0)]; }
WRONG(another_region) { to[INDEX] = from[wrong ? &y[INDEX] - x : &x[INDEX] - x]; }
WRONG(null_pointer) { to[INDEX] = wrong ? global<const float>(nullptr)[0] : from[INDEX]; }

WRONG(input_written)
{
    if (wrong) global<float>(from.region, (float *)from.at)[INDEX] = 1;
    to[INDEX] = 0;
}

WRONG(misaligned) { to[INDEX] = pack_load<4>(from, wrong ? 2 : 4).v[0]; }
WRONG(blocks_write) { to[wrong ? threadIdx.x : INDEX] = from[INDEX]; }
WRONG(block_reads) { to[INDEX] = wrong ? (float)to[127 - threadIdx.x + 128 * (1 - blockIdx.x)] : from[INDEX]; }

/* In place, each thread a neighbor's element. */
WRONG(threads_race)
{
    float value = to[blockIdx.x * blockDim.x + (threadIdx.x + 1) % blockDim.x];

    if (!wrong) __syncthreads();
    to[INDEX] = value;
}

/* (nvcc counts the arrays of all branches; the emulator those that are reached.) */
WRONG(most_shared)
{
    SHARED(double, some, 2048);

    some[threadIdx.x] = 0;
    if (wrong) {
        SHARED(double, more, 4097);

        more[threadIdx.x] = 0;
    }
    to[INDEX] = from[INDEX];
}

#define WRONG_ROW(name, report) { #name, name, report }

static const struct {
    const char *name;
    void (*kernel)(bool wrong, global<const float> from, global<float> to);
    const char *report;
} wrongs[] = {
    WRONG_ROW(barrier_exit, "divergent barrier: it has ended while others wait at"),
    WRONG_ROW(barrier_elsewhere, "divergent barrier: it waits at"),
    WRONG_ROW(barrier_count, "divergent barrier: it has ended while others wait at"),
    WRONG_ROW(shuffle_at_barrier, "a shuffle at"),
    WRONG_ROW(shuffle_ended, "lane 5 of the mask 0xffffffff has ended"),
    WRONG_ROW(shuffle_own_mask, "lane 31 calls it, but the mask 0x7fffffff lacks it"),
    WRONG_ROW(shuffle_from_outside, "reads lane 20, which the mask 0x0000ffff lacks"),
    WRONG_ROW(vote_elsewhere, "a vote at"),
    WRONG_ROW(race_write_read, "race on cells"),
    WRONG_ROW(race_read_write, "race on cells"),
    WRONG_ROW(race_in_warp, "race on cells"),
    WRONG_ROW(race_of_halves, "race on cells"),
    WRONG_ROW(race_of_warps, "race on cells"),
    WRONG_ROW(race_with_atomic, "count"),
    WRONG_ROW(uninitialized, "block (1,0,0), thread (118,0,0): uninitialized: it reads byte 36 of cells"),
    WRONG_ROW(shared_out_of_bounds, "thread (127,0,0): out of bounds: it reads 4 bytes at byte 512 of cells, which has 512"),
    WRONG_ROW(dynamic_out_of_bounds, "out of bounds: it writes 4 bytes at byte 512 of dynamic shared memory, which has 512"),
    WRONG_ROW(past_the_end, "block (1,0,0), thread (127,0,0): out of bounds: it writes 4 bytes at byte 1024 of y, which has 1024"),
    WRONG_ROW(before_the_start, "block (0,0,0), thread (0,0,0): out of bounds: it reads 4 bytes at byte -4 of x, which has 1024"),
    WRONG_ROW(another_region, "of x, which has 1024"),
    WRONG_ROW(null_pointer, "a pointer into no region"),
    WRONG_ROW(input_written, "of x, which is an input"),
    WRONG_ROW(misaligned, "misaligned: it reads 16 bytes at byte 8 of x"),
    WRONG_ROW(blocks_write, "which another block of the launch wrote"),
    WRONG_ROW(block_reads, "race on y"),
    WRONG_ROW(threads_race, "race on y"),
    WRONG_ROW(most_shared, "its arrays take more than 48 KiB of shared memory"),
};

static void wrong_run(size_t i, bool wrong)
{
    memory_reset();
    launch(&call, wrongs[i].name, wrongs[i].kernel, 2, 128, 512, wrong, global_of<const float>(x), global_of<float>(y));
}

static void test_wrong_kernels(void **)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++)
        for (int seed = 1; seed <= SEEDS; seed++) {
            emulator_seed((uint64_t)seed);
            wrong_run(i, false);
            assert_string_equal(emulator_report(), "");
            wrong_run(i, true);
            if (!strstr(emulator_report(), wrongs[i].report) || strncmp(emulator_report(), wrongs[i].name, strlen(wrongs[i].name)))
                fail_msg("%s, seed %d: the report is \"%s\", not \"%s\"", wrongs[i].name, seed, emulator_report(), wrongs[i].report);
        }
}

/* After a report nothing runs until it is cleared. */
static void test_report_stays(void **)
{
    wrong_run(0, true);
    y[0] = -2;
    launch(&call, KERNEL(copy_index), 4, 64, 0, global_of<const float>(x), global_of<float>(y));
    assert_true(y[0] == -2);
    emulator_clear();
    launch(&call, KERNEL(copy_index), 4, 64, 0, global_of<const float>(x), global_of<float>(y));
    assert_true(y[0] == 1);
}

static void test_refused_launches(void **)
{
    static const struct {
        dim3 grid, block;
        size_t shared_bytes;
    } launches[] = {
        { 1, 1025, 0 }, { 1, dim3(32, 1, 65), 0 }, { dim3(1, 65536), 32, 0 }, { 1, 32, (99 << 10) + 1 }, { 1, dim3(32, 0), 0 },
    };

    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        memory_reset();
        launch(&call, KERNEL(copy_index), launches[i].grid, launches[i].block, launches[i].shared_bytes, global_of<const float>(x),
               global_of<float>(y));
        assert_non_null(strstr(emulator_report(), "launch refused"));
    }
}

/* ---- types ---- */

static void test_rounding(void **)
{
    assert_int_equal(__float2bfloat16_rn(1 + 0x1p-8f).bits, 0x3f80); /* a tie goes to the even one */
    assert_int_equal(__float2bfloat16_rn(1 + 0x1.8p-7f).bits, 0x3f82);
    assert_int_equal(__float2bfloat16_rn(1 + 0x1.02p-8f).bits, 0x3f81);
    assert_int_equal(__float2bfloat16_rn(INFINITY).bits, 0x7f80);
    assert_true(isnan(__bfloat162float(__float2bfloat16_rn(NAN))));
    assert_int_equal(__float2half_rn(1 + 0x1p-11f).bits, 0x3c00);
    assert_int_equal(__float2half_rn(65519.f).bits, 0x7bff);
    assert_int_equal(__float2half_rn(65520.f).bits, 0x7c00);
    assert_int_equal(__float2half_rn(0x1p-25f).bits, 0);
    assert_int_equal(__float2half_rn(0x1.8p-25f).bits, 1);
    assert_true(__half2float({ 0x3555 }) == 0x1.554p-2f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_kernels),    cmocka_unit_test(test_device_addresses), cmocka_unit_test(test_queue),
        cmocka_unit_test(test_wrong_kernels),    cmocka_unit_test(test_report_stays),     cmocka_unit_test(test_refused_launches),
        cmocka_unit_test(test_rounding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
