/* Any text as model.safetensors.index.json: refused in one line, or bare file names, each once. */
#include <string.h>
#include "base/base.h"
#include "checkpoint/hf/hf_index.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct hf_index x;

    if (hf_index_parse((const char *)data, bytes, "f", &x) != LS_OK) {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
        return 0;
    }
    ASSERT(x.nfiles >= 1 && x.nfiles <= json_size(x.map));
    for (size_t i = 0; i < x.nfiles; i++)
        ASSERT(x.file[i][0] && !strchr(x.file[i], '/') && strcmp(x.file[i], "..") != 0
               && (i == 0 || strcmp(x.file[i - 1], x.file[i]) < 0));
    hf_index_free(&x);
    return 0;
}
