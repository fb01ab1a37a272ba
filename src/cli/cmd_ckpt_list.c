/* cmd_ckpt_list.c - `lockstep ckpt list`: prints a line for each checkpoint of a run: step, time, size, losses, layout, and whether it is
 * intact.
 *
 * The layout is read from the checkpoint's config.yaml, the losses from the run's metrics.jsonl.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "lockstep/checkpoint.h"

static bool json, verify;

static const struct flag ckpt_list_flags[] = {
    { "verify", FLAG_SWITCH, &verify, 0, 0, NULL, "read every byte and compare it with the hashes, instead of only the files' sizes" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print as JSON" },
    { 0 },
};

struct entry {
    char *path;
    uint64_t step, bytes;
    time_t when;
    double loss, val_loss; /* NaN: unknown */
    int64_t ranks;         /* 0: unknown */
    char layout[LS_LAYOUT_TEXT], damage[512];
};

/* *out: RUN/checkpoints, or the folder itself if it has no such subfolder. */
static ls_status root_of(const char *where, char **out)
{
    char *inside = file_path("%s/checkpoints", where);

    if (!inside) return LS_ENOMEM;
    if (file_is_folder(inside)) {
        *out = inside;
        return LS_OK;
    }
    mem_free(inside);
    if (!file_is_folder(where))
        return ls_fail(LS_EIO, file_exists(where) ? "%s is a file; name the folder of a run or of its checkpoints" : "%s: no such folder",
                       where);
    *out = mem_strdup(where);
    return *out ? LS_OK : LS_ENOMEM;
}

/* ---- one checkpoint ---- */

static ls_status read_layout(struct entry *e)
{
    struct config c;
    ls_layout layout;
    struct options options;
    char *path = file_path("%s/config.yaml", e->path);

    if (!path) return LS_ENOMEM;
    ls_status st = file_exists(path) ? options_open(config_table(), &c, 0, &options) : LS_BUSY;
    if (st == LS_OK) {
        if (options_load_yaml(&options, path) == LS_OK && config_check_ranks(&c) == LS_OK && config_layout(&c, &layout) == LS_OK) {
            e->ranks = MAX(c.launch.ranks, 1);
            ls_layout_text(&layout, e->layout, sizeof e->layout);
        }
        options_close(&options);
    }
    mem_free(path);
    return st < 0 ? st : LS_OK;
}

static ls_status read_entry(const char *root, uint64_t step, struct entry *e)
{
    struct manifest *m = NULL;
    struct stat s;

    *e = (struct entry){ .step = step, .loss = NAN, .val_loss = NAN };
    e->path = folder_of_step(root, step);
    char *manifest = e->path ? file_path("%s/manifest.json", e->path) : NULL;
    if (!manifest) return LS_ENOMEM;
    if (stat(manifest, &s) == 0) e->when = s.st_mtime;
    mem_free(manifest);
    ls_status st = folder_check(e->path, &m);
    if (st == LS_OK && verify) st = ls_checkpoint_verify(e->path);
    if (st == LS_OK)
        e->bytes = m->info.bytes;
    else
        snprintf(e->damage, sizeof e->damage, "%s", ls_errmsg());
    manifest_release(&m);
    return st == LS_ENOMEM ? st : read_layout(e);
}

/* ---- losses ---- */

static void take_line(const char *line, size_t bytes, struct entry *list, size_t n)
{
    json_node *root;

    if (json_parse(line, bytes, "metrics.jsonl", &root) != LS_OK) return; /* the last line of a run that was killed may be incomplete */
    int64_t step = json_int(json_get(root, "step"), -1);
    for (size_t i = 0; i < n; i++)
        if ((int64_t)list[i].step == step) {
            list[i].loss = json_real(json_get(root, "loss"), NAN);
            list[i].val_loss = json_real(json_get(root, "val_loss"), NAN);
        }
    json_close(&root);
}

static ls_status read_losses(const char *root, struct entry *list, size_t n)
{
    char *path = file_path("%s/../metrics.jsonl", root), *text;
    size_t bytes;

    if (!path) return LS_ENOMEM;
    ls_status st = file_exists(path) ? file_read(path, &text, &bytes) : LS_BUSY;
    mem_free(path);
    if (st != LS_OK) return st < 0 ? st : LS_OK;
    for (char *at = text, *end; at < text + bytes; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + bytes - at));
        if (!end) end = text + bytes;
        take_line(at, (size_t)(end - at), list, n);
    }
    mem_free(text);
    return LS_OK;
}

/* ---- printing ---- */

static const char *stamp_of(const struct entry *e, char out[32])
{
    struct tm utc;

    gmtime_r(&e->when, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return e->when ? out : "-";
}

static const char *loss_text(double loss, char out[16])
{
    snprintf(out, 16, "%.4f", loss);
    return isnan(loss) ? "-" : out;
}

static void cmd_ckpt_list_put_table(const struct entry *list, size_t n)
{
    printf("%10s  %-20s  %9s  %8s  %8s  %5s  %-8s  %s\n", "step", "saved (UTC)", "size", "loss", "val_loss", "ranks", "files", "layout");
    for (size_t i = 0; i < n; i++) {
        const struct entry *e = &list[i];
        char stamp[32], size[16], a[16], b[16], ranks[24];

        snprintf(ranks, sizeof ranks, "%" PRId64, e->ranks);
        printf("%10" PRIu64 "  %-20s  %9s  %8s  %8s  %5s  %-8s  %s\n", e->step, stamp_of(e, stamp),
               e->damage[0] ? "-" : text_bytes(size, e->bytes), loss_text(e->loss, a), loss_text(e->val_loss, b), e->ranks ? ranks : "-",
               e->damage[0] ? "DAMAGED"
               : verify     ? "verified"
                            : "complete",
               e->layout[0] ? e->layout : "-");
        if (e->damage[0]) printf("%12s%s\n", "", e->damage);
    }
}

static ls_status cmd_ckpt_list_put_json(const struct entry *list, size_t n)
{
    struct json_out j = { 0 };
    char stamp[32];

    json_begin_array(&j, NULL);
    for (size_t i = 0; i < n; i++) {
        const struct entry *e = &list[i];

        json_begin_object(&j, NULL);
        json_put_int(&j, "step", (int64_t)e->step);
        json_put_string(&j, "path", e->path);
        json_put_string(&j, "saved", stamp_of(e, stamp));
        json_put_bool(&j, "complete", !e->damage[0]);
        json_put_bool(&j, "verified", verify && !e->damage[0]);
        if (e->damage[0])
            json_put_string(&j, "damage", e->damage);
        else
            json_put_int(&j, "bytes", (int64_t)e->bytes);
        if (!isnan(e->loss)) json_put_real(&j, "loss", e->loss);
        if (!isnan(e->val_loss)) json_put_real(&j, "val_loss", e->val_loss);
        if (e->ranks) json_put_int(&j, "ranks", e->ranks);
        if (e->layout[0]) json_put_string(&j, "layout", e->layout);
        json_end_object(&j);
    }
    json_end_array(&j);
    return terminal_put_json(&j);
}

/* ---- the command ---- */

/* Fails, after the list is printed, if a checkpoint is damaged. */
static ls_status check_damage(const char *root, const struct entry *list, size_t n)
{
    const char *intact = NULL;
    size_t damaged = 0;

    for (size_t i = 0; i < n; i++) { /* ascending */
        damaged += list[i].damage[0] != 0;
        if (!list[i].damage[0]) intact = list[i].path;
    }
    if (damaged == 0) return LS_OK;
    if (!intact) return ls_fail(LS_EFORMAT, "%s: %zu of %zu checkpoints damaged: none is intact", root, damaged, n);
    return ls_fail(LS_EFORMAT, "%s: %zu of %zu checkpoints damaged; the newest intact one is %s", root, damaged, n, intact);
}

static ls_status list_steps(const char *root, const uint64_t *steps, size_t n)
{
    struct entry *list = mem_zalloc(MEM_OTHER, MAX(n, (size_t)1) * sizeof *list);
    ls_status st = list ? LS_OK : LS_ENOMEM;

    for (size_t i = 0; i < n && st == LS_OK; i++) st = read_entry(root, steps[i], &list[i]);
    if (st == LS_OK) st = read_losses(root, list, n);
    if (st == LS_OK && json)
        st = cmd_ckpt_list_put_json(list, n);
    else if (st == LS_OK)
        cmd_ckpt_list_put_table(list, n);
    if (st == LS_OK) st = check_damage(root, list, n);
    for (size_t i = 0; i < n && list; i++) mem_free(list[i].path);
    mem_free(list);
    return st;
}

static ls_status cmd_ckpt_list_run(struct invocation *in)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    char *root = NULL;

    LS_TRY(root_of(in->arguments[0], &root));
    ls_status st = ls_checkpoint_list(root, &steps, &n);
    if (st == LS_OK && n == 0)
        st = ls_fail(LS_EIO, "%s: no checkpoint here; name a run's folder, or a folder that holds step_NNNNNNNN folders", in->arguments[0]);
    if (st == LS_OK) st = list_steps(root, steps, n);
    ls_free(steps);
    mem_free(root);
    return st;
}

const struct command command_ckpt_list = {
    .name = "ckpt list",
    .arguments = "RUN",
    .least = 1,
    .most = 1,
    .summary =
        "list the checkpoints of a run: step, time, size, losses, layout, and whether their files are complete (with --verify: intact)",
    .flags = ckpt_list_flags,
    .run = cmd_ckpt_list_run,
    .about = "The exit code is 1 if a checkpoint is damaged.\n",
    .examples = "  lockstep ckpt list runs/book\n"
                "  lockstep ckpt list runs/book --verify                             compares every byte with the hashes\n"
                "  lockstep ckpt list runs/book --json\n",
};
