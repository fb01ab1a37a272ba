/* config_fit.c - checks before any rank is started that the model can be trained under the layout. */
#include "train/config/config.h"

#include <string.h>
#include "lockstep/data.h"
#include "train/task/task.h"

/* *out: size of the tokenizer's vocabulary if it is known without reading a file; 0: unknown. */
static ls_status known_vocab(const struct config *c, size_t *out)
{
    ls_tokenizer *bytes;

    *out = 0;
    if (c->model.vocab == 0 || !c->data.text[0] || strcmp(c->data.tokenizer, "bytes") != 0) return LS_OK;
    LS_TRY(ls_tokenizer_open("bytes", &bytes));
    *out = (size_t)ls_tokenizer_vocab(bytes);
    ls_tokenizer_close(&bytes);
    return LS_OK;
}

ls_status config_check_layout(const struct config *c, const struct task_model *m)
{
    ls_layout l;

    LS_TRY(config_layout(c, &l));
    return task_check_layout(m, &l);
}

ls_status config_check_fit(const struct config *c)
{
    struct task_model m;
    size_t vocab;

    LS_TRY(known_vocab(c, &vocab));
    LS_TRY(task_model_of(c, vocab, &m));
    return config_check_layout(c, &m);
}
