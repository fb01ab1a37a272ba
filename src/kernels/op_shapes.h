/* op_shapes.h - the shape rule of an op, read from its row in op_list.h. */
#ifndef LS_KERNELS_OP_SHAPES_H
#define LS_KERNELS_OP_SHAPES_H

#include "kernels/kernel.h"

/* Do the operands of c fit the shapes of its op? False: `why` says in one line which does not, "w[7,6] of w[N,K]: K is 5 before". */
bool op_shapes_fit(const struct call *c, char *why, size_t room);

#endif
