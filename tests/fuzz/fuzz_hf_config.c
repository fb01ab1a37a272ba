/* Any text as config.json: refused in one line, or a model that is the same after it is written and read again. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "models/hf.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct model_weight w;
    ls_model m, again;
    char *text;
    size_t written;

    if (model_parse_hf((const char *)data, bytes, "f", &m) != LS_OK) {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
        return 0;
    }
    ASSERT(ls_model_parameters(&m) > 0 && ls_model_flops_per_token(&m, 16) > 0);
    model_weight_at(&m, model_weight_count(&m) - 1, &w);
    ASSERT(model_write_hf_config(&m, LS_F32, &text, &written) == LS_OK);
    ASSERT(model_parse_hf(text, written, "g", &again) == LS_OK);
    ASSERT(ls_model_parameters(&m) == ls_model_parameters(&again) && m.norm_eps == again.norm_eps
           && m.init_std == again.init_std && m.rope.theta == again.rope.theta && m.rope.factor == again.rope.factor);
    mem_free(text);
    return 0;
}
