/* test_cuda_mma.cc - tensor cores, ldmatrix and asynchronous copies under the emulator: each lane's elements are those that the PTX ISA
 * gives it, the functions of mma.h that load operands agree with it, and lanes that do not take part are reported; a copy has not arrived
 * before it is waited for.
 *
 * The elements are small whole numbers, so every sum is exact and every element's place matters.
 */
#include "kernels/cuda/copy_async.h"
#include "kernels/cuda/mma.h"

#include <stdarg.h>
#include <setjmp.h>
extern "C" {
#include <cmocka.h>
}

enum { M = 16, N = 16, K = 16, SEEDS = 10, STRIDE = 24 };

/* a[M][K], b[K][N] and its transpose; c[M][N] is what a kernel made of them. */
static float a[M * K], b[K * N], bt[N * K], c[M * N];
static struct call call;

static float element_of(int i, int salt) { return (float)((i * 37 + salt * 11) % 13 - 6); }

static void mma_reset(int seed)
{
    emulator_clear();
    emulator_memory_clear();
    emulator_seed((uint64_t)seed);
    for (int i = 0; i < M * K; i++) a[i] = element_of(i, seed);
    for (int k = 0; k < K; k++)
        for (int n = 0; n < N; n++) b[k * N + n] = bt[n * K + k] = element_of(k * N + n, seed + 5);
    for (int i = 0; i < M * N; i++) c[i] = element_of(i, 3);
    emulator_memory_add(a, sizeof a, a, sizeof *a, false, "a");
    emulator_memory_add(b, sizeof b, b, sizeof *b, false, "b");
    emulator_memory_add(bt, sizeof bt, bt, sizeof *bt, false, "bt");
    emulator_memory_add(c, sizeof c, c, sizeof *c, true, "c");
}

static float product_at(int m, int n)
{
    float sum = element_of(m * N + n, 3);

    for (int k = 0; k < K; k++) sum += a[m * K + k] * b[k * N + n];
    return sum;
}

static int products_wrong(int columns)
{
    int wrong = 0;

    for (int m = 0; m < M; m++)
        for (int n = 0; n < columns; n++) wrong += c[m * N + n] != product_at(m, n);
    return wrong;
}

/* ---- one matmul from registers: places as in the tables of the PTX ISA, "Matrix fragments for mma.m16n8k16" ---- */

/* wrong: this lane puts an element of A where its neighbor's belongs; -1: none. */
template <typename T> __global__ void product_of_registers(global<const float> x, global<const float> y, global<float> z, int wrong)
{
    int group = threadIdx.x >> 2, place = threadIdx.x % 4;
    int first = (int)threadIdx.x == wrong ? place * 2 + 1 : place * 2;
    struct mma_a<T> left;
    struct mma_b<T> right;
    struct mma_c sum;

    left.r[0] = mma_pair_of<T>(x[group * K + first], x[group * K + place * 2 + 1]);
    left.r[1] = mma_pair_of<T>(x[(group + 8) * K + place * 2], x[(group + 8) * K + place * 2 + 1]);
    left.r[2] = mma_pair_of<T>(x[group * K + place * 2 + 8], x[group * K + place * 2 + 9]);
    left.r[3] = mma_pair_of<T>(x[(group + 8) * K + place * 2 + 8], x[(group + 8) * K + place * 2 + 9]);
    right.r[0] = mma_pair_of<T>(y[place * 2 * N + group], y[(place * 2 + 1) * N + group]);
    right.r[1] = mma_pair_of<T>(y[(place * 2 + 8) * N + group], y[(place * 2 + 9) * N + group]);
    sum.v[0] = z[group * N + place * 2];
    sum.v[1] = z[group * N + place * 2 + 1];
    sum.v[2] = z[(group + 8) * N + place * 2];
    sum.v[3] = z[(group + 8) * N + place * 2 + 1];
    __syncwarp();
    mma_16x8x16(&sum, left, right);
    for (int i = 0; i < 4; i++) z[mma_row(threadIdx.x, i) * N + mma_column(threadIdx.x, i)] = sum.v[i];
}

template <typename T> static void registers_check(int seed)
{
    mma_reset(seed);
    launch(&call, KERNEL(product_of_registers<T>), 1, 32, 0, global_of<const float>(a), global_of<const float>(b), global_of<float>(c), -1);
    assert_string_equal(emulator_report(), "");
    assert_int_equal(products_wrong(8), 0);
    for (int lane = 0; lane < 32; lane++) {
        mma_reset(seed);
        a[lane / 4 * K + lane % 4 * 2] = a[lane / 4 * K + lane % 4 * 2 + 1] + 1; /* the two elements are not the same */
        launch(&call, KERNEL(product_of_registers<T>), 1, 32, 0, global_of<const float>(a), global_of<const float>(b), global_of<float>(c),
               lane);
        assert_string_equal(emulator_report(), "");
        assert_true(products_wrong(8) > 0);
    }
}

static void test_registers(void **)
{
    for (int seed = 1; seed <= SEEDS; seed++) {
        registers_check<__nv_bfloat16>(seed);
        registers_check<__half>(seed);
    }
}

/* ---- operands in shared memory ---- */

template <typename T> static void tile_put(shared<T> to, global<const float> from)
{
    T x;

    for (int i = threadIdx.x; i < 16 * 16; i += 32) {
        type_of(from[i], &x);
        to[i / 16 * STRIDE + i % 16] = x;
    }
    __syncwarp();
}

static void product_put(global<float> z, const struct mma_c *sum)
{
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 4; i++) z[mma_row(threadIdx.x, i) * N + 8 * n + mma_column(threadIdx.x, i)] = sum[n].v[i];
}

static void product_get(struct mma_c *sum, global<float> z)
{
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 4; i++) sum[n].v[i] = z[mma_row(threadIdx.x, i) * N + 8 * n + mma_column(threadIdx.x, i)];
    __syncwarp();
}

/* C += A B, B as it is or from its transpose. */
template <typename T, bool TRANSPOSED>
__global__ void product_of_tiles(global<const float> x, global<const float> y, global<float> z)
{
    SHARED(T, left, M *STRIDE);
    SHARED(T, right, K *STRIDE);
    struct mma_b<T> both[2];
    struct mma_c sum[2];

    tile_put<T>(left, x);
    tile_put<T>(right, y);
    product_get(sum, z);
    if (TRANSPOSED)
        mma_load_b_transposed<T>(both, right, STRIDE);
    else
        mma_load_b<T>(both, right, STRIDE);
    for (int n = 0; n < 2; n++) mma_16x8x16(&sum[n], mma_load_a<T>(left, STRIDE), both[n]);
    product_put(z, sum);
}

/* C = (A I) B: a result that becomes the left operand of the next matmul. */
template <typename T> __global__ void product_of_results(global<const float> x, global<const float> y, global<float> z)
{
    SHARED(T, left, M *STRIDE);
    SHARED(T, right, K *STRIDE);
    SHARED(T, unit, K *STRIDE);
    struct mma_b<T> both[2];
    struct mma_c first[2] = {}, sum[2];
    T one;

    tile_put<T>(left, x);
    tile_put<T>(right, y);
    for (int i = threadIdx.x; i < K * N; i += 32) {
        type_of(i / N == i % N, &one);
        unit[i / N * STRIDE + i % N] = one;
    }
    product_get(sum, z);
    mma_load_b<T>(both, unit, STRIDE);
    for (int n = 0; n < 2; n++) mma_16x8x16(&first[n], mma_load_a<T>(left, STRIDE), both[n]);
    mma_load_b<T>(both, right, STRIDE);
    for (int n = 0; n < 2; n++) mma_16x8x16(&sum[n], mma_a_of<T>(first), both[n]);
    product_put(z, sum);
}

typedef void product_kernel(global<const float> x, global<const float> y, global<float> z);

static void product_check(const char *name, product_kernel *kernel, const float *right, int seed)
{
    mma_reset(seed);
    launch(&call, name, kernel, 1, 32, 0, global_of<const float>(a), global_of<const float>(right), global_of<float>(c));
    assert_string_equal(emulator_report(), "");
    assert_int_equal(products_wrong(N), 0);
}

template <typename T> static void tiles_check(int seed)
{
    product_check(KERNEL(product_of_tiles<T, false>), b, seed);
    product_check(KERNEL(product_of_tiles<T, true>), bt, seed);
    product_check(KERNEL(product_of_results<T>), b, seed);
}

static void test_tiles(void **)
{
    for (int seed = 1; seed <= SEEDS; seed++) {
        tiles_check<__nv_bfloat16>(seed);
        tiles_check<__half>(seed);
    }
}

/* ---- lanes that do not take part ---- */

enum fault { NO_FAULT, LANE_ENDED, LANE_ELSEWHERE, LANE_AT_LDMATRIX, LANE_MISALIGNED, LANE_BEFORE_WRITES };

__global__ void lanes_missing(int fault, global<float> z)
{
    SHARED(__half, tile, 16 * STRIDE);
    struct mma_a<__half> left;
    struct mma_b<__half> right[2];
    struct mma_c sum = {};
    bool lane = threadIdx.x == 13;

    for (int i = threadIdx.x; i < 16 * STRIDE; i += 32) tile[i] = __float2half_rn(0);
    __syncwarp();
    for (int i = threadIdx.x; i < 16 * STRIDE; i += 32) tile[i] = __float2half_rn(1);
    if (fault != LANE_BEFORE_WRITES) __syncwarp();
    if (lane && fault == LANE_ENDED) return;
    if (lane && fault == LANE_AT_LDMATRIX)
        left = mma_load_a<__half>(tile, STRIDE);
    else
        left = mma_load_a<__half>(tile + (fault == LANE_MISALIGNED ? 1 : 0), STRIDE);
    mma_load_b<__half>(right, tile, STRIDE);
    if (lane && fault == LANE_ELSEWHERE)
        mma_16x8x16(&sum, left, right[0]);
    else
        mma_16x8x16(&sum, left, right[1]);
    z[threadIdx.x] = sum.v[0];
}

static void test_lanes_missing(void **)
{
    static const char *const reports[] = { "", "lane 13 of the mask 0xffffffff has ended", "mma at", "ldmatrix at", "misaligned",
                                           "race on tile" };

    for (int fault = NO_FAULT; fault <= LANE_BEFORE_WRITES; fault++)
        for (int seed = 1; seed <= SEEDS; seed++) {
            mma_reset(seed);
            launch(&call, KERNEL(lanes_missing), 1, 32, 0, fault, global_of<float>(c));
            if (fault == NO_FAULT ? *emulator_report() : !strstr(emulator_report(), reports[fault]))
                fail_msg("fault %d, seed %d: the report is \"%s\", not \"%s\"", fault, seed, emulator_report(), reports[fault]);
        }
}

/* ---- asynchronous copies ---- */

enum copy_fault { COPY_RIGHT, COPY_NO_BARRIER, COPY_NOT_WAITED, COPY_GROUP_LEFT, COPY_MISALIGNED, COPY_OVER_READ };

/* 16 lanes copy four elements each in two groups, the second of which is zeros; each reads what its neighbor has copied. */
__global__ void copy_neighbors(int fault, global<const float> x, global<float> z)
{
    SHARED(float, tile, 128);
    int i = threadIdx.x * 4, next = (threadIdx.x + 1) % 16 * 4;
    float over = 0;

    for (int k = 0; k < 4; k++) tile[i + k] = tile[64 + i + k] = 0;
    __syncthreads();
    if (fault == COPY_OVER_READ) over = tile[next];
    copy_async16<float>(tile + i, x + (fault == COPY_MISALIGNED ? i + 1 : i), true);
    copy_async_commit();
    copy_async16<float>(tile + (64 + i), x, false);
    copy_async_commit();
    if (fault == COPY_GROUP_LEFT)
        copy_async_wait<2>();
    else if (fault != COPY_NOT_WAITED)
        copy_async_wait<1>();
    if (fault != COPY_NO_BARRIER) __syncthreads();
    z[threadIdx.x] = tile[next + 3] + over;
    if (fault == COPY_NOT_WAITED) return;
    copy_async_wait<0>();
    __syncthreads();
    z[16 + threadIdx.x] = tile[64 + next];
}

enum source_fault { SOURCE_RIGHT, SOURCE_WRITTEN, SOURCE_RACE };

/* One lane copies four elements, another then writes one of them. */
__global__ void copy_then_write(int fault, global<float> z)
{
    SHARED(float, tile, 4);

    if (threadIdx.x == 0) copy_async16<float>(tile, z, true);
    copy_async_commit();
    if (fault == SOURCE_RIGHT) copy_async_wait<0>();
    if (fault != SOURCE_RACE) __syncthreads();
    if (threadIdx.x == 1) z[2] = 5;
    if (fault == SOURCE_WRITTEN) __syncthreads();
    copy_async_wait<0>();
    __syncthreads();
    z[16 + threadIdx.x] = tile[2];
}

static void test_copy_sources(void **)
{
    static const char *const reports[] = { "", "the source of an asynchronous copy was written", "race on" };

    for (int fault = SOURCE_RIGHT; fault <= SOURCE_RACE; fault++)
        for (int seed = 1; seed <= SEEDS; seed++) {
            mma_reset(seed);
            c[2] = 3;
            launch(&call, KERNEL(copy_then_write), 1, 16, 0, fault, global_of<float>(c));
            if (fault == SOURCE_RIGHT ? *emulator_report() : !strstr(emulator_report(), reports[fault]))
                fail_msg("fault %d, seed %d: the report is \"%s\", not \"%s\"", fault, seed, emulator_report(), reports[fault]);
            assert_true(fault != SOURCE_RIGHT || (c[2] == 5 && c[16] == 3));
        }
}

static void test_copies(void **)
{
    static const char *const reports[] = { "", "race on tile", "has not waited for", "race on tile", "misaligned",
                                           "race on tile" };

    for (int fault = COPY_RIGHT; fault <= COPY_OVER_READ; fault++)
        for (int seed = 1; seed <= SEEDS; seed++) {
            mma_reset(seed);
            launch(&call, KERNEL(copy_neighbors), 1, 16, 0, fault, global_of<const float>(a), global_of<float>(c));
            if (fault == COPY_RIGHT ? *emulator_report() : !strstr(emulator_report(), reports[fault]))
                fail_msg("fault %d, seed %d: the report is \"%s\", not \"%s\"", fault, seed, emulator_report(), reports[fault]);
            for (int i = 0; i < 16 && fault == COPY_RIGHT; i++) assert_true(c[i] == a[(i + 1) % 16 * 4 + 3] && c[16 + i] == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registers),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_lanes_missing),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_copy_sources),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
