/* cmd_ckpt.c - `lockstep ckpt inspect | verify | export | import`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/verify.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "lockstep/checkpoint.h"

/* Finds the checkpoint at a path that the user gives and reads its description; free *path with ls_free. */
static ls_status open_info(const char *where, char **path, ls_checkpoint_info **info)
{
    LS_TRY(ls_checkpoint_resolve(where, path));
    ls_status st = ls_checkpoint_inspect(*path, info);
    if (st != LS_OK) ls_free(*path);
    return st;
}

/* ---- inspect ---- */

static bool ckpt_json, tensors;

static const struct flag inspect_flags[] = {
    { "tensors", FLAG_SWITCH, &tensors, 0, 0, NULL, "also list the tensors" },
    { "json", FLAG_SWITCH, &ckpt_json, 0, 0, NULL, "print as JSON" },
    { 0 },
};

static void put_json_sizes(struct json_out *j, const char *key, int ndim, const size_t *size)
{
    json_begin_array(j, key);
    for (int d = 0; d < ndim; d++) json_put_int(j, NULL, (int64_t)size[d]);
    json_end_array(j);
}

static void put_json_entry(struct json_out *j, const ls_checkpoint_info *info, const ls_checkpoint_entry *e)
{
    json_begin_object(j, NULL);
    json_put_string(j, "name", e->name);
    json_put_string(j, "kind", e->kind);
    json_put_string(j, "type", ls_dtype_name(e->type));
    put_json_sizes(j, "shape", e->ndim, e->size);
    put_json_sizes(j, "offset", e->ndim, e->offset);
    put_json_sizes(j, "extent", e->ndim, e->extent);
    json_put_string(j, "file", info->files[e->file].name);
    json_end_object(j);
}

static void put_json_model(struct json_out *j, const ls_model *m)
{
    json_begin_object(j, "model");
    json_put_string(j, "architecture", ls_architecture_name(m->architecture));
    json_put_int(j, "layers", (int64_t)m->layers);
    json_put_int(j, "width", (int64_t)m->width);
    json_put_int(j, "heads", (int64_t)m->heads);
    json_put_int(j, "kv_heads", (int64_t)m->kv_heads);
    json_put_int(j, "ffn", (int64_t)m->ffn);
    json_put_int(j, "vocab", (int64_t)m->vocab);
    json_put_bool(j, "tied", m->tied);
    json_end_object(j);
}

static void put_json_state(struct json_out *j, const ls_train_state *s)
{
    json_put_int(j, "step", (int64_t)s->step);
    json_put_int(j, "samples", (int64_t)s->samples);
    json_put_int(j, "tokens", (int64_t)s->tokens);
    json_put_real(j, "grad_norm", s->grad_norm);
    json_put_int(j, "seed", (int64_t)s->seed);
    json_put_string(j, "optimizer", s->optimizer);
    json_put_string(j, "data", s->data);
    json_put_string(j, "compute", s->compute);
    json_put_string(j, "library", s->library);
    json_put_string(j, "isa", s->isa);
    json_put_int(j, "threads", s->threads);
}

static ls_status cmd_ckpt_put_json(const char *path, const ls_checkpoint_info *info)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_string(&j, "path", path);
    json_put_int(&j, "format", info->format);
    json_put_string(&j, "type", ls_dtype_name(info->type));
    json_put_int(&j, "parameters", (int64_t)info->parameters);
    json_put_int(&j, "bytes", (int64_t)info->bytes);
    put_json_state(&j, &info->state);
    if (info->has_model) put_json_model(&j, &info->model);
    json_begin_array(&j, "files");
    for (size_t i = 0; i < info->nfiles; i++) {
        json_begin_object(&j, NULL);
        json_put_string(&j, "name", info->files[i].name);
        json_put_int(&j, "bytes", (int64_t)info->files[i].bytes);
        json_put_string(&j, "hash", info->files[i].hash);
        json_end_object(&j);
    }
    json_end_array(&j);
    if (tensors) {
        json_begin_array(&j, "tensors");
        for (size_t i = 0; i < info->nentries; i++) put_json_entry(&j, info, &info->entries[i]);
        json_end_array(&j);
    }
    json_end_object(&j);
    return terminal_put_json(&j);
}

static void put_entry(const ls_checkpoint_info *info, const ls_checkpoint_entry *e)
{
    printf("  %-10s %-5s [", e->kind, ls_dtype_name(e->type));
    for (int d = 0; d < e->ndim; d++) printf("%s%zu", d ? "," : "", e->size[d]);
    printf("] %s", e->name);
    for (int d = 0; d < e->ndim && memcmp(e->extent, e->size, sizeof e->size) != 0; d++) /* the file holds a shard of the tensor */
        printf("%s%zu:%zu%s", d ? "," : "[", e->offset[d], e->offset[d] + e->extent[d], d + 1 < e->ndim ? "" : "]");
    printf(" (%s)\n", info->files[e->file].name);
}

static void cmd_ckpt_put_table(const char *path, const ls_checkpoint_info *info)
{
    const ls_train_state *s = &info->state;
    char a[32], size[16];

    printf("checkpoint  %s (format %d)\n", path, info->format);
    printf("step        %" PRIu64 ", %s tokens seen, optimizer %s, seed %" PRIu64 "\n", s->step, text_count(a, (int64_t)s->tokens),
           s->optimizer[0] ? s->optimizer : "none", s->seed);
    if (info->has_model)
        printf("model       %s, %zu layers, width %zu, vocabulary %zu\n", ls_architecture_title(info->model.architecture),
               info->model.layers, info->model.width, info->model.vocab);
    printf("parameters  %s of type %s\n", text_count(a, (int64_t)info->parameters), ls_dtype_name(info->type));
    if (s->data[0]) printf("data        %s\n", s->data);
    if (s->library[0]) printf("made by     %s, %s on %s, %d threads\n", s->library, s->compute, s->isa, s->threads);
    printf("files       %s in total\n", text_bytes(size, info->bytes));
    for (size_t i = 0; i < info->nfiles; i++)
        printf("  %-32s %10s  %s\n", info->files[i].name, text_bytes(size, info->files[i].bytes), info->files[i].hash);
    if (!tensors) return;
    printf("tensors     %zu\n", info->nentries);
    for (size_t i = 0; i < info->nentries; i++) put_entry(info, &info->entries[i]);
}

static ls_status run_inspect(struct invocation *in)
{
    ls_checkpoint_info *info;
    ls_status st = LS_OK;
    char *path;

    LS_TRY(open_info(in->arguments[0], &path, &info));
    if (ckpt_json)
        st = cmd_ckpt_put_json(path, info);
    else
        cmd_ckpt_put_table(path, info);
    ls_checkpoint_info_release(&info);
    ls_free(path);
    return st;
}

const struct command command_ckpt_inspect = {
    .name = "ckpt inspect",
    .arguments = "PATH",
    .least = 1,
    .most = 1,
    .summary = "show what a checkpoint holds",
    .flags = inspect_flags,
    .run = run_inspect,
    .examples = "  lockstep ckpt inspect runs/book                                   the run's newest checkpoint\n"
                "  lockstep ckpt inspect runs/book/checkpoints/step_00000500 --tensors\n",
};

/* ---- verify ---- */

static ls_status run_verify(struct invocation *in)
{
    char *path, size[16];
    ls_checkpoint_info *info;

    LS_TRY(folder_newest(in->arguments[0], &path));
    ls_status st = verify_advise(ls_checkpoint_verify(path), path, "");
    if (st == LS_OK) st = ls_checkpoint_inspect(path, &info);
    if (st == LS_OK) {
        printf("%s: %zu files, %s: all bytes match their hashes\n", path, info->nfiles, text_bytes(size, info->bytes));
        ls_checkpoint_info_release(&info);
    }
    mem_free(path);
    return st;
}

const struct command command_ckpt_verify = {
    .name = "ckpt verify",
    .arguments = "PATH",
    .least = 1,
    .most = 1,
    .summary = "read every byte of a checkpoint and compare it with the hashes",
    .run = run_verify,
    .about = "If PATH is a run, its newest checkpoint is read. If it is damaged, the exit code is 1 and the newest intact one before it is "
             "named.\n",
    .examples = "  lockstep ckpt verify runs/book\n",
};

/* ---- export and import ---- */

static const char *to, *from, *ckpt_type_name;
static double shard_gigabytes = 5;

static ls_status cmd_ckpt_type_of(ls_dtype fallback, ls_dtype *out)
{
    *out = fallback;
    if (!ckpt_type_name) return LS_OK;
    const char *name = strcmp(ckpt_type_name, "fp32") == 0 ? "f32" : strcmp(ckpt_type_name, "fp16") == 0 ? "f16" : ckpt_type_name;
    if (ls_dtype_parse(name, out) == 0 && (*out == LS_F32 || *out == LS_BF16 || *out == LS_F16)) return LS_OK;
    return ls_fail(LS_EINVAL, "--type: there is no type '%s'; use fp32, bf16 or fp16", ckpt_type_name);
}

static ls_status check_export(const struct invocation *in)
{
    ls_dtype type;

    (void)in;
    LS_TRY(cmd_ckpt_type_of(LS_F32, &type));
    return to ? LS_OK : ls_fail(LS_EINVAL, "no folder to write to: give --to FOLDER");
}

static const struct flag export_flags[] = {
    { "to", FLAG_STRING, &to, 0, 0, "FOLDER", "new folder to write" },
    { "type", FLAG_STRING, &ckpt_type_name, 0, 0, "TYPE", "type of the parameters: fp32, bf16 or fp16 [fp32]" },
    { "shard-gb", FLAG_REAL, &shard_gigabytes, 0, 1e6, "GB", "largest size of a file in gigabytes; 0: one file [5]" },
    { 0 },
};

static ls_status run_export(struct invocation *in)
{
    ls_hf_options o = LS_HF_DEFAULTS;
    char *path;

    LS_TRY(cmd_ckpt_type_of(LS_F32, &o.type));
    o.shard_bytes = (uint64_t)(shard_gigabytes * 1e9);
    LS_TRY(ls_checkpoint_resolve(in->arguments[0], &path));
    ls_status st = verify_advise(ls_checkpoint_export(path, to, &o), path, "lockstep ckpt export ");
    if (st == LS_OK) printf("%s: exported from %s as %s\n", to, path, ls_dtype_name(o.type));
    ls_free(path);
    return st;
}

const struct command command_ckpt_export = {
    .name = "ckpt export",
    .arguments = "PATH --to FOLDER",
    .least = 1,
    .most = 1,
    .summary = "write a checkpoint's model as a Hugging Face folder",
    .flags = export_flags,
    .check = check_export,
    .run = run_export,
    .examples = "  lockstep ckpt export runs/book --to hf/book\n"
                "  lockstep ckpt export runs/book/checkpoints/step_00000500 --to hf/book-500 --type bf16\n",
};

static ls_status check_import(const struct invocation *in)
{
    ls_dtype type;

    (void)in;
    LS_TRY(cmd_ckpt_type_of(LS_F32, &type));
    return from && to ? LS_OK : ls_fail(LS_EINVAL, "no folder to read from or write to: give --from FOLDER and --to FOLDER");
}

static const struct flag import_flags[] = {
    { "from", FLAG_STRING, &from, 0, 0, "FOLDER", "Hugging Face folder to read: config.json and safetensors" },
    { "to", FLAG_STRING, &to, 0, 0, "FOLDER", "folder of checkpoints to write into, as step_00000000" },
    { "type", FLAG_STRING, &ckpt_type_name, 0, 0, "TYPE", "type of the parameters: fp32, bf16 or fp16 [fp32]" },
    { 0 },
};

static ls_status run_import(struct invocation *in)
{
    ls_dtype type;

    (void)in;
    LS_TRY(cmd_ckpt_type_of(LS_F32, &type));
    LS_TRY(ls_checkpoint_import(from, to, type));
    printf("%s/step_00000000: imported from %s as %s\n", to, from, ls_dtype_name(type));
    return LS_OK;
}

const struct command command_ckpt_import = {
    .name = "ckpt import",
    .arguments = "--from FOLDER --to FOLDER",
    .summary = "read a Hugging Face folder into a checkpoint",
    .flags = import_flags,
    .check = check_import,
    .run = run_import,
    .examples = "  lockstep ckpt import --from hf/gpt2 --to runs/gpt2/checkpoints\n"
                "  lockstep generate runs/gpt2 --prompt \"Hello\"\n",
};
