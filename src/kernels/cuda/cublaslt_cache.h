/* cublaslt_cache.h - the file of measured algorithms, matmuls.txt in the cache folder: a line for each matmul of each GPU and library.
 *
 *   KEY <tab> eight words of the algorithm, in hex <tab> seconds of one call
 *
 * Ranks on one machine share it: the rank that holds the lock reads it, measures what it lacks and writes it, so all of them use the same
 * algorithm, and so does the next run. Lines that cannot be read are dropped; the file is replaced as a whole.
 */
#ifndef LS_KERNELS_CUDA_CUBLASLT_CACHE_H
#define LS_KERNELS_CUDA_CUBLASLT_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include "lockstep/status.h"

enum { CUBLASLT_KEY = 512, CUBLASLT_WORDS = 8 };

struct cublaslt_choice {
    char key[CUBLASLT_KEY]; /* without tabs and ends of lines */
    uint64_t algorithm[CUBLASLT_WORDS];
    double seconds;
};

struct cublaslt_cache {
    char folder[4096];
    int lock;
};

/* Waits until no other process has it. */
ls_status cublaslt_cache_lock(const char *folder, struct cublaslt_cache *out);
void cublaslt_cache_unlock(struct cublaslt_cache *c);
/* The last choice with x->key; false: there is none. */
bool cublaslt_cache_find(const struct cublaslt_cache *c, struct cublaslt_choice *x);
/* Replaces the choice of the same key. */
ls_status cublaslt_cache_put(const struct cublaslt_cache *c, const struct cublaslt_choice *x);

#endif
