/* onednn_absent.c - oneDNN's part of the kernel table if lockstep was built without it: no rows. */
#include "kernels/kernel.h"
#include "kernels/cpu/onednn_load.h"

const struct kernel kernels_onednn[] = { KERNELS_END };

bool onednn_found(void) { return false; }

size_t onednn_primitives(void) { return 0; }
