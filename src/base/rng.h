/* rng.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011).
 *
 * A number is a pure function of (seed, stream, index): the same under every layout of ranks and every
 * order of evaluation. `stream` is rng_stream(name) of a parameter, a dropout site, the data order ...;
 * `index` is the global element index. A stream should be used for one of u32, uniform and normal only: they read the same words (see
 * rng.c).
 */
#ifndef LS_BASE_RNG_H
#define LS_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* The block function: four words from a 128-bit counter and a 64-bit key. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

uint64_t rng_stream(const char *name);                              /* 64-bit FNV-1a of the name */
uint32_t rng_u32(uint64_t seed, uint64_t stream, uint64_t index);   /* uniform bits */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1), 53 bits */
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, deviation 1 (Box-Muller) */
/* out[n] = rng_normal() of indices from .. from + n - 1, at half the work. */
void rng_normals(uint64_t seed, uint64_t stream, uint64_t from, size_t n, double *out);
/* Position `index` of a random permutation of 0 .. n-1 (Feistel network with cycle walking), n >= 1. */
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

#endif
