/* stub_cublaslt_run.c - computes a matmul when its stream reaches it. See stub_cublaslt.h. */
#include "stub_cublaslt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "stub.h"

ls_dtype stub_type(int type) { return type == CUDA_R_16BF ? LS_BF16 : type == CUDA_R_16F ? LS_F16 : LS_F32; }

size_t stub_matrix_elements(const struct stub_matrix *x)
{
    return (size_t)(x->batch - 1) * (size_t)x->stride + (size_t)(x->columns - 1) * (size_t)x->ld + (size_t)x->rows;
}

size_t stub_vector_elements(const struct stub_epilogue *e, const struct stub_matrix *d)
{
    return e->bias ? d->rows : e->gradient ? d->columns : 0;
}

size_t stub_aux_elements(const struct stub_matmul *m)
{
    return (size_t)(m->matrix[STUB_D].columns - 1) * (size_t)m->aux_ld + (size_t)m->matrix[STUB_D].rows;
}

/* 10 bits of the mantissa are kept, rounded to the nearest. */
static float round_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* op(X) with the terms of a sum next to each other: rows of A, columns of B. */
static float *operand_of(const struct stub_matmul *m, int which, const void *data, int batch)
{
    const struct stub_matrix *x = &m->matrix[which];
    size_t unit = ls_dtype_bytes(stub_type(x->type)), count = (size_t)(x->rows * x->columns);
    bool sums_by_columns = x->transposed == (which == STUB_A); /* k runs along the columns in memory */
    float *out = malloc(count * sizeof *out);

    if (!out) stub_die("no memory");
    for (uint64_t j = 0; j < x->columns; j++)
        for (uint64_t i = 0; i < x->rows; i++) {
            float *to = &out[sums_by_columns ? j * x->rows + i : i * x->columns + j];

            ls_convert(to, LS_F32, (const char *)data + ((size_t)batch * (size_t)x->stride + j * (size_t)x->ld + i) * unit,
                       stub_type(x->type), 1);
            if (m->tf32) *to = round_tf32(*to);
        }
    return out;
}

static float cublaslt_sum_of(const float *a, const float *b, size_t from, size_t to)
{
    float sum = 0;

    for (size_t k = from; k < to; k++) sum += a[k] * b[k];
    return sum;
}

static float cublaslt_product_of(const struct stub_matmul *m, const float *a, const float *b, size_t k, float *parts)
{
    float sum = 0;

    switch (m->algorithm) {
    case STUB_ALIGNED: return cublaslt_sum_of(a, b, 0, k);
    case STUB_SPLIT:
        parts[0] = cublaslt_sum_of(a, b, 0, k / 2);
        parts[1] = cublaslt_sum_of(a, b, k / 2, k);
        return parts[0] + parts[1];
    case STUB_IN_PLACE:
        for (size_t i = 0, at = m->seed % k; i < k; i++, at = (at + 1) % k) sum += a[at] * b[at];
        return sum;
    default:
        for (size_t i = k; i-- > 0;) sum += a[i] * b[i];
        return sum;
    }
}

static float gelu_of(float x) { return (float)(0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)))); }

/* The epilogue's result for y, element (i, j) of the matmul. */
static float epilogue_apply(const struct stub_matmul *m, uint64_t i, uint64_t j, float y)
{
    ls_dtype type = stub_type(m->matrix[STUB_D].type);
    size_t unit = ls_dtype_bytes(type);
    float bias;

    if (m->epilogue.bias) {
        ls_convert(&bias, LS_F32, (const char *)m->vector + i * unit, type, 1);
        y += bias;
    }
    if (m->epilogue.aux) ls_convert((char *)m->aux + (j * (uint64_t)m->aux_ld + i) * unit, type, &y, LS_F32, 1);
    return m->epilogue.gelu ? gelu_of(y) : y;
}

/* x: n columns of B, with the k terms of each next to each other. */
static void epilogue_sum(const struct stub_matmul *m, const float *x, size_t n, size_t k)
{
    ls_dtype type = stub_type(m->matrix[STUB_D].type);

    for (size_t i = 0; i < n; i++) {
        float sum = 0;

        for (size_t t = 0; t < k; t++) sum += x[i * k + t];
        ls_convert((char *)m->vector + i * ls_dtype_bytes(type), type, &sum, LS_F32, 1);
    }
}

static void compute_batch(const struct stub_matmul *m, int batch)
{
    const struct stub_matrix *d = &m->matrix[STUB_D], *x = &m->matrix[STUB_A];
    size_t k = (size_t)(x->transposed ? x->rows : x->columns), unit = ls_dtype_bytes(stub_type(d->type));
    float *a = operand_of(m, STUB_A, m->a, batch), *b = operand_of(m, STUB_B, m->b, batch), *parts = m->workspace;

    for (uint64_t j = 0; j < d->columns; j++)
        for (uint64_t i = 0; i < d->rows; i++) {
            char *to = (char *)m->d + ((size_t)batch * (size_t)d->stride + j * (size_t)d->ld + i) * unit;
            size_t element = ((size_t)batch * d->columns + j) * d->rows + i;
            float y = m->alpha * cublaslt_product_of(m, a + i * k, b + j * k, k, parts ? parts + STUB_SPLIT_PARTS * element : NULL), c = 0;

            if (m->beta != 0) ls_convert(&c, LS_F32, to, stub_type(d->type), 1);
            y += m->beta * c;
            y = epilogue_apply(m, i, j, y);
            ls_convert(to, stub_type(d->type), &y, LS_F32, 1);
        }
    if (m->epilogue.gradient) epilogue_sum(m, b, d->columns, k);
    free(a);
    free(b);
}

static ls_status cublaslt_run_matmul(void *args)
{
    const struct stub_matmul *m = args;

    for (int batch = 0; batch < m->matrix[STUB_D].batch; batch++) compute_batch(m, batch);
    return LS_OK;
}

static void cublaslt_touch(struct device_operation *o, size_t pointer, const void *data, size_t bytes, size_t element, bool write)
{
    if (!data || !bytes) return;
    o->pointer[o->pointers++] = pointer;
    o->access[o->accesses++] = (struct device_access){ .data = data, .bytes = bytes, .write = write, .element = (uint8_t)element };
}

void stub_matmul_enqueue(struct device_stream *s, const struct stub_matmul *m)
{
    struct device_operation o = { .name = "cublasLtMatmul", .run = cublaslt_run_matmul, .args = m, .bytes = sizeof *m };
    size_t in = ls_dtype_bytes(stub_type(m->matrix[STUB_A].type)), out = ls_dtype_bytes(stub_type(m->matrix[STUB_D].type));

    cublaslt_touch(&o, offsetof(struct stub_matmul, a), m->a, stub_matrix_elements(&m->matrix[STUB_A]) * in, in, false);
    cublaslt_touch(&o, offsetof(struct stub_matmul, b), m->b, stub_matrix_elements(&m->matrix[STUB_B]) * in, in, false);
    cublaslt_touch(&o, offsetof(struct stub_matmul, d), m->d, stub_matrix_elements(&m->matrix[STUB_D]) * out, out, true);
    cublaslt_touch(&o, offsetof(struct stub_matmul, vector), m->vector, stub_vector_elements(&m->epilogue, &m->matrix[STUB_D]) * out, out,
          !m->epilogue.bias);
    cublaslt_touch(&o, offsetof(struct stub_matmul, aux), m->aux, m->epilogue.aux ? stub_aux_elements(m) * out : 0, out, true);
    cublaslt_touch(&o, offsetof(struct stub_matmul, workspace), m->workspace, m->workspace_bytes, 4, true);
    stub_time_passes(m->algorithm == (enum stub_algorithm)stub_settings()->fastest ? 5 : 7);
    stub_enqueue(s, &o);
}
