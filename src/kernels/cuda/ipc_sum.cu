/* ipc_sum.cu - the kernel that CUDA IPC's collectives reduce with: see src/device/cuda/ipc_sum.h. */
#include "device/cuda/ipc_sum.h"
#include "kernels/cuda/array.h"

static __device__ inline float widened(float x) { return x; }
static __device__ inline double widened(double x) { return x; }
static __device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ inline float widened(__half x) { return __half2float(x); }
static __device__ inline long long widened(long long x) { return x; }
static __device__ inline int widened(int x) { return x; }
static __device__ inline int widened(unsigned char x) { return x; }

static __device__ inline void narrow(float &to, float x) { to = x; }
static __device__ inline void narrow(double &to, double x) { to = x; }
static __device__ inline void narrow(__nv_bfloat16 &to, float x) { to = __float2bfloat16_rn(x); }
static __device__ inline void narrow(__half &to, float x) { to = __float2half_rn(x); }
static __device__ inline void narrow(long long &to, long long x) { to = x; }
static __device__ inline void narrow(int &to, int x) { to = x; }
static __device__ inline void narrow(unsigned char &to, int x) { to = (unsigned char)x; }

/* Unsigned, where a sum of integers may leave the type. */
static __device__ inline float added(float a, float b) { return a + b; }
static __device__ inline double added(double a, double b) { return a + b; }
static __device__ inline long long added(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
static __device__ inline int added(int a, int b) { return (int)((unsigned)a + (unsigned)b); }

/* The larger of the two; NaN if one is. */
template <typename A> static __device__ inline A larger(A a, A b) { return b > a || b != b ? b : a; }

template <typename T> struct ipc_terms {
    global<T> out;
    global<const T> in[IPC_RANKS];
    size_t count;
    int n, redop, aligned;
};

template <typename T, typename A, int N> static __global__ void __launch_bounds__(BLOCK_THREADS) ipc_sum_packs(struct ipc_terms<T> z)
{
    size_t i = ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * N;
    bool whole = i + N <= z.count;
    pack<T, N> x;
    A sum[N];

    if (i >= z.count) return;
    for (int r = 0; r < z.n; r++) {
        if (whole) x = pack_load<N>(z.in[r], i);
        for (int k = 0; k < N; k++) {
            if (!whole && i + k >= z.count) continue;
            A term = widened(whole ? x.v[k] : z.in[r][i + k]);
            sum[k] = r == 0 ? term : z.redop == DEVICE_MAX ? larger(sum[k], term) : added(sum[k], term);
        }
    }
    for (int k = 0; k < N; k++) {
        if (!whole && i + k >= z.count) continue;
        if (z.redop == DEVICE_AVG) sum[k] = sum[k] / (A)z.n;
        narrow(x.v[k], sum[k]);
        if (!whole || !z.aligned) z.out[i + k] = x.v[k];
    }
    if (whole && z.aligned) pack_store(z.out, i, x);
}

template <typename T, typename A> static void sum_launch(struct device_stream *s, const struct ipc_sum *x)
{
    constexpr int N = 16 / sizeof(T);
    struct ipc_terms<T> z = {
    };
    struct call c = {};

    LAUNCH_ARGUMENTS_FIT(z);
    c.stream = s;
    z.out = global_of<T>(x->out);
    for (int r = 0; r < x->n; r++) z.in[r] = global_of<const T>(x->in[r]);
    z.count = x->count;
    z.n = x->n;
    z.redop = x->redop;
    z.aligned = pack_aligned(z.out, 16);
    launch(&c, KERNEL(ipc_sum_packs<T, A, N>), blocks_of(x->count, (size_t)BLOCK_THREADS * N), BLOCK_THREADS, 0, z);
}

extern "C" bool ipc_sums(ls_dtype type) { return type != LS_U16; }

extern "C" void ipc_sum_launch(struct device_stream *s, const struct ipc_sum *x)
{
    switch (x->type) {
    case LS_F32: return sum_launch<float, float>(s, x);
    case LS_F64: return sum_launch<double, double>(s, x);
    case LS_BF16: return sum_launch<__nv_bfloat16, float>(s, x);
    case LS_F16: return sum_launch<__half, float>(s, x);
    case LS_I64: return sum_launch<long long, long long>(s, x);
    case LS_I32: return sum_launch<int, int>(s, x);
    default: return sum_launch<unsigned char, int>(s, x);
    }
}
