/* stub_cublaslt.h - cuBLASLt for tests, on the stub of the CUDA runtime: each call's arguments are compared with the documented contract,
 * matmuls are computed when their stream reaches them. A violation of the contract ends the process as stub.h says.
 *
 * GELU is the tanh form, of sums that were not rounded. A bias gradient is the sum of op(B) over k. With epilogues=0 (stub.h) the
 * heuristics have no algorithm for either, with algorithms=0 none for any matmul.
 *
 * The heuristics propose, in this order, those of these algorithms that the preferences allow:
 *   in place    parts of k are added into the output in a random order, so that it does not repeat
 *   aligned     A, B and D, and the distances within them, must be aligned to 16 bytes
 *   split       two parts of k, summed in the workspace
 *   plain       no conditions
 * Their sums have different orders, so the result shows which one was used. No preference says how the epilogue's pointers are aligned: an
 * algorithm expects of them the minimum alignment of D, as in cuBLASLt, where other pointers end in a call that is not supported or in a
 * misaligned access (PyTorch's issues 92201, 97205 and 194497).
 */
#ifndef LS_TESTS_CUBLASLT_STUB_H
#define LS_TESTS_CUBLASLT_STUB_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include "lockstep/dtype.h"

enum stub_algorithm { STUB_IN_PLACE = 1, STUB_ALIGNED, STUB_SPLIT, STUB_PLAIN, STUB_ALGORITHMS };
enum { STUB_A, STUB_B, STUB_C, STUB_D, STUB_MATRICES, STUB_ALIGNED_TO = 16, STUB_SPLIT_PARTS = 2 };

/* Parts of an epilogue. aux: the input of GELU is written; gradient: that of a bias, from B. */
struct stub_epilogue {
    unsigned id; /* value of cublasLtEpilogue_t */
    bool bias, gelu, aux, gradient;
};

struct stub_matrix {
    int type; /* cudaDataType_t */
    uint64_t rows, columns;
    int64_t ld, stride;
    int32_t batch;
    bool transposed;
};

/* A matmul with valid arguments; the pointers are the device's. */
struct stub_matmul {
    struct stub_matrix matrix[STUB_MATRICES];
    enum stub_algorithm algorithm;
    struct stub_epilogue epilogue;
    const void *a, *b;
    void *d, *vector, *aux, *workspace; /* vector: the bias is read, its gradient overwritten */
    int64_t aux_ld;
    size_t workspace_bytes;
    float alpha, beta;
    bool tf32;
    unsigned seed; /* seed of an order that is not fixed */
};

ls_dtype stub_type(int type);
size_t stub_vector_elements(const struct stub_epilogue *e, const struct stub_matrix *d); /* 0: it has no vector */
size_t stub_aux_elements(const struct stub_matmul *m);
size_t stub_matrix_elements(const struct stub_matrix *x); /* from the first to the last in memory */
/* stub_cublaslt_run.c: enqueues it. */
struct device_stream;
void stub_matmul_enqueue(struct device_stream *s, const struct stub_matmul *m);

#endif
