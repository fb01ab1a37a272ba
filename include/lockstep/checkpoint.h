/* checkpoint.h - a training state on disk: saved completely or not at all, verified before it is used.
 *
 * A run keeps its checkpoints under one root (`RUN/checkpoints`), a folder `step_NNNNNNNN` each: safetensors files
 * with the parameters and the optimizer's state, small files copied along (tokenizer.json, config.yaml), and
 * manifest.json, which names all of them with sizes and content hashes. manifest.c specifies the format.
 *   1. A folder appears under its name complete and synced, or not at all. A save that fails (full disk, no memory)
 *      leaves the checkpoints that were there before, and nothing else.
 *   2. Loading checks names, types, shapes and sizes of everything, and the content hashes of all that it reads, before it writes the
 *      first element into the store. No reader skips the hashes: see `hash_block_bytes` below.
 *   3. The source value of a parameter is its f32 master copy if one was saved, else the parameter. A store of the saved type gets the
 *      saved bits; another type gets the source value, rounded; a master copy gets the source value.
 *   4. A checkpoint saved under any layout loads under any other, on any number of ranks: every rank writes what it holds, as shards of the
 *      tensors, and reads the shards that it needs. Nothing is gathered.
 *   5. The caller owns the strings, arrays and structs it gets, and frees strings and arrays with ls_free().
 *
 *   LS_TRY(ls_checkpoint_save("run/checkpoints", store, &model, &state, files));
 *   LS_TRY(ls_checkpoint_latest("run/checkpoints", &path));  // NULL if there is none yet
 *   if (path) LS_TRY(ls_checkpoint_load(path, store, LS_LOAD_OPTIMIZER, &state));
 */
#ifndef LS_CHECKPOINT_H
#define LS_CHECKPOINT_H

#include "lockstep/comm.h"
#include "lockstep/nn.h"
#include "lockstep/store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The progress of a run, apart from its tensors. Numbers except the seed are at most 2^63 - 1; text is UTF-8. */
typedef struct ls_train_state {
    uint64_t step;           /* updates done */
    uint64_t samples;        /* samples consumed: the global index of the next one */
    uint64_t tokens;         /* tokens trained on */
    uint64_t seed;           /* seed of initialization, data order and dropout */
    uint64_t schedule_steps; /* length of the learning-rate schedule */
    uint64_t budget_steps;   /* number of steps that the time budget allows; 0: no time budget, or not yet determined */
    double budget_seconds;   /* that time budget */
    double grad_norm;        /* norm of the gradient of the last update, before clipping; 0: none, or not known */
    char optimizer[16];      /* "adamw" */
    char data[128];          /* the source of the samples: name and size, or a hash; "": unknown */
    char compute[8];         /* element type of the arithmetic: "f32", "bf16" */
    /* Together with the fields above, these determine the bits of a resumed run. */
    char library[64]; /* "lockstep 0.1.0, oneDNN 2.6.0" */
    char isa[16];     /* "avx512" */
    int threads;      /* size of the thread team */
} ls_train_state;

/* LS_OK if a run resumed as `now` is bitwise identical to one that never stopped; else LS_EINVAL, and the message names the first of seed,
 * data, compute, library, isa, threads that differs, with both values. */
ls_status ls_train_state_same_bits(const ls_train_state *saved, const ls_train_state *now);

/* Saves as ROOT/step_NNNNNNNN (of state->step), replacing a checkpoint of that name. model NULL: the store belongs to no known model and
 * cannot be exported. files: paths of small files to copy along under their own names, ended by NULL; or NULL. */
ls_status ls_checkpoint_save(const char *root, const ls_store *store, const ls_model *model, const ls_train_state *state,
                             const char *const *files);

/* Collective over comm, each rank with its own store: each rank writes what it holds into its own files under ROOT, a folder that all ranks
 * share, and all ranks return the same status. The lowest of the ranks that hold an element writes it. Needs one chunk of memory besides
 * the store. Only rank 0's model, state and files are used. LS_EINVAL if no rank holds some element of a parameter. */
ls_status ls_checkpoint_save_ranks(ls_comm *comm, const char *root, const ls_store *store, const ls_model *model,
                                   const ls_train_state *state, const char *const *files);

enum {
    LS_LOAD_OPTIMIZER = 1 /* also the optimizer state, which must be of the same kind; else only parameters and master copies */
};
/* Loads into a store whose parameters are declared (it is allocated here if it is not yet). The checkpoint's parameters and the store's
 * must be the same in name and shape; the first that differs is named. state may be NULL. If a check fails, the store is unchanged. Every
 * rank calls it, reads and verifies what it holds, and does not communicate: a single rank may find damage. Needs one chunk
 * of memory besides the store. */
ls_status ls_checkpoint_load(const char *path, ls_store *store, int flags, ls_train_state *state);

/* Lists the steps under root in ascending order, including damaged checkpoints; a root that does not exist has none. */
ls_status ls_checkpoint_list(const char *root, uint64_t **steps, size_t *count);
/* Finds the highest step whose manifest is valid, whose files all exist with the recorded sizes, and whose small files (those without
 * tensors) match their hashes; damaged checkpoints are skipped with a warning in the log. *path = NULL if root has no checkpoint at all;
 * LS_EFORMAT if all are damaged. */
ls_status ls_checkpoint_latest(const char *root, char **path);
/* Turns what a user may name (a checkpoint's folder, a root, or a run's folder) into the path of a checkpoint. */
ls_status ls_checkpoint_resolve(const char *where, char **path);
/* Removes all but the `keep` (>= 1) highest intact checkpoints; damaged ones above the lowest kept stay. */
ls_status ls_checkpoint_prune(const char *root, size_t keep);
/* Reads every byte and compares with the manifest's hashes: LS_EFORMAT names the first file that differs. */
ls_status ls_checkpoint_verify(const char *path);

/* A manifest in memory. Entries are shards of tensors: entry e holds elements [offset, offset + extent) of the tensor
 * `name` of shape `size`. kind is "parameter" or the name of an optimizer state ("master", "m", "v"). */
typedef struct ls_checkpoint_file {
    char *name;
    uint64_t bytes;
    char hash[33];   /* XXH3-128 of the content, hex */
    char header[33]; /* for a tensor file: XXH3-128 of everything before the tensors' data; "": not known */
} ls_checkpoint_file;
typedef struct ls_checkpoint_entry {
    char *name, *kind;
    ls_dtype type;
    int ndim;
    size_t size[LS_DIMS], offset[LS_DIMS], extent[LS_DIMS];
    size_t file;  /* index into files */
    char *hashes; /* XXH3-128, 32 hex digits each, of every hash_block_bytes of its data; NULL: not known */
} ls_checkpoint_entry;
typedef struct ls_checkpoint_info {
    int format; /* version of the format: 1 */
    int has_model;
    ls_model model;
    ls_train_state state;
    ls_dtype type; /* type of the parameters; if there are several, the first that is not f32 */
    size_t nfiles, nentries;
    ls_checkpoint_file *files; /* those with tensors first, then the files copied along */
    ls_checkpoint_entry *entries;
    size_t parameters;         /* elements */
    uint64_t bytes;            /* total size of all files except the manifest */
    uint64_t hash_block_bytes; /* bytes that one hash of an entry covers; 0: an older checkpoint, which hashes only whole files */
} ls_checkpoint_info;
/* Reads a checkpoint's manifest and checks that it is consistent. */
ls_status ls_checkpoint_inspect(const char *path, ls_checkpoint_info **out);
void ls_checkpoint_info_release(ls_checkpoint_info **info);

/* Hugging Face folders: config.json, model.safetensors (or shards with an index), generation_config.json, and
 * tokenizer.json if there is one; for models of every family. */
typedef struct ls_hf_options {
    ls_dtype type;         /* type of the tensors written: f32, bf16, f16 */
    uint64_t shard_bytes;  /* a file grows to at most this (or to one tensor); 0: one file */
    const char *tokenizer; /* path of a tokenizer.json to copy along; NULL: none */
} ls_hf_options;
#define LS_HF_DEFAULTS            \
    {                             \
        LS_F32, 5000000000u, NULL \
    }

/* The model in a store -> a new folder, which appears complete or not at all; an existing one is refused. The source values (rule 3) are
 * written. options NULL: the defaults. */
ls_status ls_hf_export(const char *folder, const ls_model *m, const ls_store *store, const ls_hf_options *options);
/* The tensors of a folder -> a store whose parameters are m's (ls_model_read_hf gives m). Missing and unknown tensors and those of a wrong
 * shape are reported before the store changes. */
ls_status ls_hf_import(const char *folder, const ls_model *m, ls_store *store);
/* The same between folders: a checkpoint -> an HF folder (its tokenizer.json goes along unless options name one) ... */
ls_status ls_checkpoint_export(const char *path, const char *folder, const ls_hf_options *options);
/* ... and an HF folder -> ROOT/step_00000000 with parameters of this type and no optimizer state. */
ls_status ls_checkpoint_import(const char *folder, const char *root, ls_dtype type);

#ifdef __cplusplus
}
#endif
#endif
