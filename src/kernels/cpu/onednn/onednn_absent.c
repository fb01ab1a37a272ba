/* onednn_absent.c - oneDNN's part of the kernel table if the library was not found: no rows. */
#include "kernels/kernel.h"

const struct kernel kernels_onednn[] = { KERNELS_END };
