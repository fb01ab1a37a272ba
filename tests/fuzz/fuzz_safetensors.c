/* Any bytes as a safetensors file: refused in one line, or tensors that are inside the file and cover its data. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

static unsigned touched;

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct safetensors *f;
    size_t covered = 0;

    if (safetensors_parse(data, bytes, "f", &f) != LS_OK) {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(f); i++) {
        const struct safetensor *t = safetensors_at(f, i);
        void *copy = NULL;

        ASSERT(t->data >= data && t->data + t->bytes <= data + bytes);
        ASSERT(t->ndim <= LS_DIMS && safetensors_find(f, t->name) == t);
        for (size_t k = 0; k < t->bytes; k++)
            touched += t->data[k];
        if (t->type != LS_DTYPES) {
            const void *aligned = safetensor_aligned(t, &copy);

            ASSERT(aligned && memcmp(aligned, t->data, t->bytes) == 0);
        }
        mem_free(copy);
        covered += t->bytes;
    }
    ASSERT(covered <= bytes && safetensors_at(f, safetensors_count(f)) == NULL);
    safetensors_close(&f);
    return 0;
}
