/* op_shapes.h - the shape rule of an op, read from its row in op_list.h. */
#ifndef LS_KERNELS_OP_SHAPES_H
#define LS_KERNELS_OP_SHAPES_H

#include "kernels/kernel.h"

/* True if the operands of c fit the shapes of its op. If not, `why` says in one line which does not. */
bool op_shapes_fit(const struct call *c, char *why, size_t room);
/* Output k of op is added to: "+=". */
bool op_adds(enum op op, int k);

#endif
