/* verify.c - verifies every byte of a checkpoint, and finds an older one that is intact. */
#include "checkpoint/verify.h"

#include <stdio.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/folder.h"
#include "checkpoint/reader.h"

/* A checkpoint's folder without a manifest is damage, not a file that cannot be read. */
static ls_status open_saved(const char *path, struct saved *s)
{
    ls_status st = saved_open(path, s);
    char *manifest = st == LS_EIO && file_is_folder(path) ? file_path("%s/" MANIFEST_NAME, path) : NULL;
    bool missing = manifest && !file_exists(manifest);

    mem_free(manifest);
    return missing ? LS_EFORMAT : st;
}

static ls_status verify(const char *path, struct saved *s)
{
    LS_TRY(open_saved(path, s));
    LS_TRY(saved_check_files(s));
    return saved_check_all(s);
}

ls_status ls_checkpoint_verify(const char *path)
{
    struct saved s = { 0 };
    ls_status st = verify(path, &s);

    saved_close(&s);
    return st;
}

/* *intact = the newest checkpoint before path's that verifies; NULL: none does. Each candidate is freed or returned. */
static ls_status find_intact(const char *path, char **intact)
{
    char *at = NULL, *older;
    ls_status st = folder_before(path, &at);

    while (st == LS_OK && at && ls_checkpoint_verify(at) != LS_OK) {
        st = folder_before(at, &older);
        mem_free(at);
        at = st == LS_OK ? older : NULL;
    }
    *intact = at;
    return st;
}

ls_status verify_advise(ls_status st, const char *path, const char *use)
{
    char message[2048], *intact;

    if (st != LS_EFORMAT) return st;
    snprintf(message, sizeof message, "%s", ls_errmsg());
    if (find_intact(path, &intact) != LS_OK || !intact) return ls_fail(st, "%s; no older checkpoint beside it is intact", message);
    ls_fail(st, "%s; the newest intact one before it: %s%s", message, use, intact);
    mem_free(intact);
    return st;
}
