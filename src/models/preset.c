/* preset.c - models by name, of all families. */
#include "models/model.h"

#include <string.h>
#include "base/base.h"
#include "base/text.h"

/* Preset i in the list of all families, with its family in *a; NULL past the last. */
static const struct preset *preset_at(int i, ls_architecture *a)
{
    for (int k = 0; k < LS_ARCHITECTURES; k++) {
        const struct family *f = family_of((ls_architecture)k);

        *a = (ls_architecture)k;
        if (i < f->npresets) return i < 0 ? NULL : &f->presets[i];
        i -= f->npresets;
    }
    return NULL;
}

const char *ls_model_preset_name(int i)
{
    ls_architecture a;
    const struct preset *p = preset_at(i, &a);

    return p ? p->name : NULL;
}

static ls_status fail_name(const char *name)
{
    struct text all = { 0 };
    const char *known;

    for (int i = 0; (known = ls_model_preset_name(i)); i++) text_put(&all, "%s%s", i ? ", " : "", known);
    ls_status st = text_status(&all);
    if (st == LS_OK) st = ls_fail(LS_EINVAL, "model: unknown preset '%s'; use one of %s", name, all.data);
    text_free(&all);
    return st;
}

ls_status ls_model_preset(const char *name, ls_model *out)
{
    const struct preset *p;
    ls_architecture a;

    for (int i = 0; (p = preset_at(i, &a)); i++)
        if (strcmp(p->name, name) == 0) {
            *out = p->model;
            out->architecture = a;
            return LS_OK;
        }
    return fail_name(name);
}
