/* hf_convert.c - converts between checkpoints and Hugging Face folders: exports from shards one parameter at a time, imports through a
 * store. */
#include "lockstep/checkpoint.h"

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/hf/hf_export.h"
#include "checkpoint/hf/hf_tensors.h"

#define TOKENIZER_NAME "tokenizer.json"

static ls_status model_of(const char *path, ls_model *m)
{
    ls_checkpoint_info *info;
    ls_status st = LS_OK;

    LS_TRY(ls_checkpoint_inspect(path, &info));
    if (info->has_model)
        *m = info->model;
    else
        st = ls_fail(LS_EUNSUPPORTED, "%s: its tensors do not belong to a model that Hugging Face supports", path);
    ls_checkpoint_info_release(&info);
    return st;
}

static ls_status store_of(const ls_model *m, ls_dtype type, ls_store **out)
{
    ls_store_options o = LS_STORE_DEFAULTS;
    ls_store *s;

    o.type = type;
    o.master = 0;
    LS_TRY(ls_store_new(&o, &s));
    ls_status st = hf_declare(s, m);
    if (st == LS_OK)
        *out = s;
    else
        ls_store_release(&s);
    return st;
}

/* The store only has names and shapes: the saved parameters must match them. */
static ls_status export_saved(struct saved *saved, const char *folder, const ls_model *m, const ls_store *store, const ls_hf_options *o)
{
    LS_TRY(saved_check_store(saved, store, false));
    LS_TRY(saved_check_files(saved));
    return hf_export(folder, m, store, saved, o);
}

ls_status ls_checkpoint_export(const char *path, const char *folder, const ls_hf_options *options)
{
    ls_hf_options o = LS_HF_DEFAULTS;
    ls_store *store = NULL;
    struct saved saved = { 0 };
    char *tokenizer = file_path("%s/" TOKENIZER_NAME, path);
    ls_model m;
    ls_status st = tokenizer ? model_of(path, &m) : LS_ENOMEM;

    if (options) o = *options;
    if (st == LS_OK && !o.tokenizer && file_exists(tokenizer)) o.tokenizer = tokenizer;
    if (st == LS_OK) st = store_of(&m, LS_F32, &store);
    if (st == LS_OK) st = saved_open(path, &saved);
    if (st == LS_OK) st = export_saved(&saved, folder, &m, store, &o);
    saved_close(&saved);
    ls_store_release(&store);
    mem_free(tokenizer);
    return st;
}

ls_status ls_checkpoint_import(const char *folder, const char *root, ls_dtype type)
{
    ls_store *store = NULL;
    ls_train_state state = { 0 };
    char *tokenizer = file_path("%s/" TOKENIZER_NAME, folder);
    ls_model m;
    ls_status st = tokenizer ? ls_model_read_hf(folder, &m) : LS_ENOMEM;

    if (st == LS_OK) st = store_of(&m, type, &store);
    if (st == LS_OK) st = ls_hf_import(folder, &m, store);
    if (st == LS_OK) st = ls_checkpoint_save(root, store, &m, &state, (const char *[]){ file_exists(tokenizer) ? tokenizer : NULL, NULL });
    ls_store_release(&store);
    mem_free(tokenizer);
    return st;
}
