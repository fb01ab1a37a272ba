/* store.h - what programs ask of a store beyond its public face. */
#ifndef LS_PROGRAM_STORE_H
#define LS_PROGRAM_STORE_H

#include "lockstep/store.h"

/* The parameter of that name, declared when it is new; another shape than before is LS_EINVAL. */
ls_status store_declare(ls_store *s, const char *name, ls_init init, int ndim, const size_t *size, int *index);
void      store_want_grad(ls_store *s, size_t i);  /* the next allocation gives parameter i a gradient */
/* Bytes that the ledger will show once everything declared is allocated. */
void      store_bytes(const ls_store *s, size_t *parameters, size_t *gradients, size_t *optimizer);

#endif
