/* folder.c - finding, checking, publishing and removing the folders of checkpoints. See folder.h for their names. */
#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

enum mark { MARK_NONE, MARK_OLD, MARK_TMP, MARKS };
static const char *const suffixes[MARKS] = { "", ".old", ".tmp" };

struct found {
    uint64_t step;
    enum mark mark;
};
struct found_list {
    struct found *item;
    size_t n;
};

char *folder_of_step(const char *root, uint64_t step) { return file_path("%s/step_%08llu", root, (unsigned long long)step); }

static char *path_of(const char *root, struct found f)
{
    return file_path("%s/step_%08llu%s", root, (unsigned long long)f.step, suffixes[f.mark]);
}

/* True if name is exactly one that path_of() makes. */
static bool parse_name(const char *name, struct found *out)
{
    char again[64];
    unsigned long long step;

    if (sscanf(name, "step_%20llu", &step) != 1) return false;
    for (int mark = 0; mark < MARKS; mark++) {
        snprintf(again, sizeof again, "step_%08llu%s", step, suffixes[mark]);
        if (strcmp(name, again) == 0) {
            *out = (struct found){ step, (enum mark)mark };
            return true;
        }
    }
    return false;
}

/* The highest step first; for the same step, the folder that takes precedence first. */
static int by_step(const void *a, const void *b)
{
    const struct found *x = a, *y = b;

    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    return (int)x->mark - (int)y->mark;
}

static ls_status scan_open(DIR *dir, const char *root, struct found_list *list)
{
    size_t room = 0;
    struct dirent *entry;
    struct found f;

    while (errno = 0, (entry = readdir(dir)) != NULL) {
        if (!parse_name(entry->d_name, &f)) continue;
        if (list->n == room) {
            struct found *grown = mem_resize(list->item, (room = 2 * room + 16) * sizeof *grown);

            if (!grown) return LS_ENOMEM;
            list->item = grown;
        }
        list->item[list->n++] = f;
    }
    return errno ? ls_fail(LS_EIO, "%s: cannot list the folder: %s", root, strerror(errno)) : LS_OK;
}

/* A missing root has none. The caller frees list->item, on failure, too. */
static ls_status scan(const char *root, struct found_list *list)
{
    DIR *dir = opendir(root);

    *list = (struct found_list){ 0 };
    if (!dir) return errno == ENOENT ? LS_OK : ls_fail(LS_EIO, "%s: cannot open the folder: %s", root, strerror(errno));
    ls_status st = scan_open(dir, root, list);
    closedir(dir);
    if (list->n) qsort(list->item, list->n, sizeof *list->item, by_step);
    return st;
}

/* ---- checking one ---- */

static ls_status check_hash(const char *path, const ls_checkpoint_file *f)
{
    struct file_map map;
    char hash[HASH_ROOM];

    LS_TRY(file_map_open(path, &map));
    hash_of(map.data, map.bytes, hash);
    file_map_close(&map);
    if (strcmp(hash, f->hash) != 0)
        return ls_fail(LS_EFORMAT, "%s: damaged: its content has the hash %s, but the manifest says %s", path, hash, f->hash);
    return LS_OK;
}

static ls_status check_file(const char *folder, const ls_checkpoint_file *f, bool content)
{
    char *path = file_path("%s/%s", folder, f->name);
    struct stat s;
    ls_status st = LS_OK;

    if (!path) return LS_ENOMEM;
    if (lstat(path, &s) != 0)
        st = ls_fail(errno == ENOENT ? LS_EFORMAT : LS_EIO, "%s: listed in the manifest: %s", path, strerror(errno));
    else if (!S_ISREG(s.st_mode))
        st = ls_fail(LS_EFORMAT, "%s: listed in the manifest, but not a regular file", path);
    else if ((uint64_t)s.st_size != f->bytes)
        st = ls_fail(LS_EFORMAT, "%s: damaged: %lld bytes, but the manifest says %llu", path, (long long)s.st_size,
                     (unsigned long long)f->bytes);
    else if (content)
        st = check_hash(path, f);
    mem_free(path);
    return st;
}

/* holds[i] = true if file i holds tensors: those are verified when they are read. */
static ls_status check_files(const char *path, const ls_checkpoint_info *info)
{
    bool *holds = mem_array(MEM_OTHER, info->nfiles, sizeof *holds);
    ls_status st = holds ? LS_OK : LS_ENOMEM;

    for (size_t i = 0; i < info->nentries && holds; i++) holds[info->entries[i].file] = true;
    for (size_t i = 0; i < info->nfiles && st == LS_OK; i++) st = check_file(path, &info->files[i], !holds[i]);
    mem_free(holds);
    return st;
}

ls_status folder_check(const char *path, struct manifest **out)
{
    struct manifest *m;

    LS_TRY(manifest_read(path, &m));
    ls_status st = check_files(path, &m->info);
    if (st == LS_OK && out)
        *out = m;
    else
        manifest_release(&m);
    return st;
}

/* ---- finding one ---- */

ls_status ls_checkpoint_list(const char *root, uint64_t **steps, size_t *count)
{
    struct found_list list;
    ls_status st = scan(root, &list);
    uint64_t *all = st == LS_OK ? mem_array(MEM_OTHER, list.n, sizeof *all) : NULL;
    size_t n = 0;

    if (all) {
        for (size_t i = list.n; i-- > 0;)
            if (list.item[i].mark == MARK_NONE) all[n++] = list.item[i].step;
        *steps = all;
        *count = n;
    } else if (st == LS_OK) {
        st = LS_ENOMEM;
    }
    mem_free(list.item);
    return st;
}

/* Logs the damaged checkpoints that a search skipped before it found another. */
struct skipped {
    struct text lines;
    char *newest;
    size_t n;
};

static void skip(struct skipped *s)
{
    text_put(&s->lines, "checkpoint skipped: %s\n", ls_errmsg());
    if (!s->newest) s->newest = mem_strdup(ls_errmsg());
    s->n++;
}

static void warn_skipped(const struct skipped *s, const char *used)
{
    for (char *line = s->lines.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = '\0';
        log_line(LOG_WARN, "%s; using %s", line, used);
    }
}

/* *path = the first intact one of the list below step `under`; NULL if there is none. */
static ls_status first_whole(const char *root, const struct found_list *list, uint64_t under, struct skipped *skipped, char **path)
{
    *path = NULL;
    for (size_t i = 0; i < list->n; i++) {
        if (list->item[i].mark == MARK_TMP || list->item[i].step >= under) continue;
        char *candidate = path_of(root, list->item[i]);
        ls_status st = candidate ? folder_check(candidate, NULL) : LS_ENOMEM;
        if (st == LS_OK) {
            *path = candidate;
            return text_status(&skipped->lines);
        }
        mem_free(candidate);
        if (st == LS_ENOMEM) return st;
        skip(skipped);
    }
    return text_status(&skipped->lines);
}

ls_status ls_checkpoint_latest(const char *root, char **path)
{
    struct found_list list;
    struct skipped skipped = { 0 };
    char *found = NULL;
    ls_status st = scan(root, &list);

    if (st == LS_OK) st = first_whole(root, &list, UINT64_MAX, &skipped, &found);
    mem_free(list.item);
    if (st == LS_OK && found) warn_skipped(&skipped, found);
    if (st == LS_OK && !found && skipped.n)
        st = ls_fail(LS_EFORMAT, "%s: all of its %zu checkpoints are damaged; the newest: %s", root, skipped.n,
                     skipped.newest ? skipped.newest : "");
    if (st == LS_OK)
        *path = found;
    else
        mem_free(found);
    text_free(&skipped.lines);
    mem_free(skipped.newest);
    return st;
}

ls_status folder_before(const char *path, char **older)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/') length--; /* "step_00000006/" is accepted, too */
    char *whole = file_path("%.*s", (int)length, path), *slash = whole ? strrchr(whole, '/') : NULL;
    const char *name = slash ? slash + 1 : whole;
    char *root = !slash ? mem_strdup(".") : slash == whole ? mem_strdup("/") : file_path("%.*s", (int)(slash - whole), whole);
    struct skipped skipped = { 0 };
    struct found_list list;
    struct found me;
    ls_status st = LS_OK;

    *older = NULL;
    if (!root || !whole) {
        mem_free(root);
        mem_free(whole);
        return LS_ENOMEM;
    }
    if (parse_name(name, &me)) {
        st = scan(root, &list);
        if (st == LS_OK) st = first_whole(root, &list, me.step, &skipped, older);
        mem_free(list.item);
    }
    text_free(&skipped.lines);
    mem_free(skipped.newest);
    mem_free(root);
    mem_free(whole);
    return st;
}

static ls_status fail_none(const char *where)
{
    return ls_fail(LS_EINVAL, "%s: no checkpoint here; expected a folder with " MANIFEST_NAME " or with folders step_NNNNNNNN", where);
}

/* *path = the folder of the highest step under root, damaged or not; NULL: there is none. */
static ls_status highest(const char *root, char **path)
{
    struct found_list list;
    size_t i = 0;
    ls_status st = scan(root, &list);

    while (st == LS_OK && i < list.n && list.item[i].mark == MARK_TMP) i++;
    *path = st == LS_OK && i < list.n ? path_of(root, list.item[i]) : NULL;
    if (st == LS_OK && i < list.n && !*path) st = LS_ENOMEM;
    mem_free(list.item);
    return st;
}

/* Rejects a file: a run and a checkpoint are folders. */
static ls_status check_folder(const char *where)
{
    if (!file_exists(where) || file_is_folder(where)) return LS_OK;
    return ls_fail(LS_EIO, "%s: is a file; expected the folder of a run or of a checkpoint", where);
}

ls_status folder_newest(const char *where, char **path)
{
    char *manifest = file_path("%s/" MANIFEST_NAME, where), *root = file_path("%s/checkpoints", where), *found = NULL;
    ls_status st = manifest && root ? check_folder(where) : LS_ENOMEM;

    if (st == LS_OK && file_exists(manifest))
        st = (found = mem_strdup(where)) ? LS_OK : LS_ENOMEM;
    else if (st == LS_OK)
        st = highest(file_is_folder(root) ? root : where, &found);
    if (st == LS_OK && !found) st = fail_none(where);
    if (st == LS_OK) *path = found;
    mem_free(manifest);
    mem_free(root);
    return st;
}

ls_status ls_checkpoint_resolve(const char *where, char **path)
{
    char *manifest = file_path("%s/" MANIFEST_NAME, where), *root = file_path("%s/checkpoints", where), *found = NULL;
    ls_status st = manifest && root ? check_folder(where) : LS_ENOMEM;

    if (st == LS_OK && file_exists(manifest))
        st = (found = mem_strdup(where)) ? LS_OK : LS_ENOMEM;
    else if (st == LS_OK)
        st = ls_checkpoint_latest(file_is_folder(root) ? root : where, &found);
    if (st == LS_OK && !found) st = fail_none(where);
    if (st == LS_OK) *path = found;
    mem_free(manifest);
    mem_free(root);
    return st;
}

/* ---- publishing and removing ---- */

static ls_status folder_move(const char *from, const char *to)
{
    if (rename(from, to) != 0) return ls_fail(LS_EIO, "%s: cannot rename it to %s: %s", from, to, strerror(errno));
    return LS_OK;
}

static ls_status sweep_one(const char *root, struct found f)
{
    char *path = path_of(root, f), *plain = folder_of_step(root, f.step);
    ls_status st = LS_ENOMEM;

    if (path && plain) st = f.mark == MARK_OLD && !file_exists(plain) ? folder_move(path, plain) : file_remove_tree(path);
    mem_free(path);
    mem_free(plain);
    return st;
}

ls_status folder_sweep(const char *root)
{
    struct found_list list;
    ls_status st = file_make_folders(root);

    if (st != LS_OK) return st;
    st = scan(root, &list);
    for (size_t i = 0; i < list.n && st == LS_OK; i++)
        if (list.item[i].mark != MARK_NONE) st = sweep_one(root, list.item[i]);
    mem_free(list.item);
    return st;
}

ls_status folder_publish(const char *tmp, const char *path)
{
    if (!file_exists(path)) return file_publish_folder(tmp, path);
    char *old = file_path("%s%s", path, suffixes[MARK_OLD]);
    if (!old) return LS_ENOMEM;
    ls_status st = folder_move(path, old);
    if (st == LS_OK) {
        st = file_publish_folder(tmp, path);
        if (st == LS_OK)
            st = file_remove_tree(old);
        else if (!file_exists(path))
            rename(old, path); /* if it cannot be put back now, the next save tries again */
    }
    mem_free(old);
    return st;
}

/* Renames it first, so that an interruption does not leave a damaged checkpoint. */
static ls_status remove_step(const char *root, uint64_t step)
{
    char *path = folder_of_step(root, step), *tmp = path_of(root, (struct found){ step, MARK_TMP });
    ls_status st = path && tmp ? file_remove_tree(tmp) : LS_ENOMEM;

    if (st == LS_OK) st = folder_move(path, tmp);
    if (st == LS_OK) st = file_remove_tree(tmp);
    mem_free(path);
    mem_free(tmp);
    return st;
}

/* Removes the listed folders with plain names, from the highest on, except the first `keep` intact ones and those between them. */
static ls_status prune_list(const char *root, const struct found_list *list, size_t keep)
{
    ls_status st = LS_OK;

    for (size_t i = 0; i < list->n && st == LS_OK; i++) {
        if (list->item[i].mark != MARK_NONE) continue;
        if (keep == 0) {
            st = remove_step(root, list->item[i].step);
            continue;
        }
        char *path = path_of(root, list->item[i]);
        st = path ? folder_check(path, NULL) : LS_ENOMEM;
        mem_free(path);
        keep -= st == LS_OK;
        if (st != LS_ENOMEM) st = LS_OK; /* a damaged one is not counted, and not removed if it is among those kept */
    }
    return st;
}

ls_status ls_checkpoint_prune(const char *root, size_t keep)
{
    struct found_list list;

    if (keep == 0) return ls_fail(LS_EINVAL, "%s: at least one checkpoint must be kept", root);
    ls_status st = scan(root, &list);
    if (st == LS_OK) st = prune_list(root, &list, keep);
    mem_free(list.item);
    return st;
}
