#include "helper_hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf/hf_tensors.h"

const char *hf_golden_path(const char *model)
{
    static char paths[4][512];
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/golden/%s", TEST_DIR, model);
    return path;
}

const char *hf_path(const char *folder, const char *name)
{
    static char paths[4][640];
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

ls_store *hf_store(const ls_model *m, ls_dtype type, int master)
{
    ls_store_options o = { "cpu", type, master, 0, 0 };
    ls_store *s;

    OK(ls_store_new(&o, &s));
    OK(hf_declare(s, m));
    return s;
}

ls_store *hf_import(const char *folder, ls_dtype type, int master, ls_model *m)
{
    OK(ls_model_read_hf(folder, m));
    ls_store *s = hf_store(m, type, master);
    OK(ls_hf_import(folder, m, s));
    return s;
}

bool hf_same_values(const ls_store *a, const ls_store *b)
{
    bool same = ls_store_count(a) == ls_store_count(b);

    for (size_t i = 0; same && i < ls_store_count(a); i++) {
        size_t n = ls_tensor_count(ls_store_value(a, i));
        float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);

        OK(ls_tensor_read(ls_store_value(a, i), x, LS_F32, n));
        OK(ls_tensor_read(ls_store_value(b, i), y, LS_F32, n));
        same = memcmp(x, y, n * sizeof *x) == 0;
        free(x);
        free(y);
    }
    return same;
}
