/* machine.c - describes this machine: its processors as in /proc/cpuinfo, its memory, and its peak FLOP/s as in the cache. */
#include "train/run/machine.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "kernels/kernel.h"
#include "train/run/peak_cache.h"

/* ---- processors ---- */

/* The text after "name<blanks>: " in a line of /proc/cpuinfo; NULL: the line has another name. */
static const char *value_of(const char *line, const char *name)
{
    size_t length = strlen(name);
    const char *colon = strchr(line, ':');

    if (strncmp(line, name, length) != 0 || !colon || strspn(line + length, " \t") != (size_t)(colon - line) - length) return NULL;
    return colon + 1 + strspn(colon + 1, " \t");
}

static bool has_word(const char *words, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = words; (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\n' || !at[length])) return true;
    return false;
}

static void take_features(const char *flags, char *out, size_t room)
{
    static const char *const used[] = {
        "avx2",        "fma",         "f16c",     "avx512f",  "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd",    "sve",      "bf16",
    };
    size_t at = 0;

    for (size_t i = 0; i < COUNT_OF(used) && at < room; i++)
        if (has_word(flags, used[i])) at += (size_t)snprintf(out + at, room - at, "%s%s", at ? " " : "", used[i]);
}

static void find_processor(ls_machine *m)
{
    bool named = false, flagged = false;
    char *text, *next;

    snprintf(m->name, sizeof m->name, "unknown");
    snprintf(m->isa, sizeof m->isa, "%s", isa_name(isa_best()));
    if (file_read("/proc/cpuinfo", &text, NULL) < 0) return;
    for (char *line = text; *line && !(named && flagged); line = next) {
        const char *value;

        next = line + strcspn(line, "\n");
        if (*next) *next++ = '\0';
        if (!named && (value = value_of(line, "model name"))) snprintf(m->name, sizeof m->name, "%s", value), named = true;
        if (!flagged && ((value = value_of(line, "flags")) || (value = value_of(line, "Features"))))
            take_features(value, m->features, sizeof m->features), flagged = true;
    }
    mem_free(text);
}

void machine_find(bool bound, ls_machine *out, cpu_set_t *processors)
{
    ls_machine m = { .memory = machine_free_memory() };

    m.processors = cores_of_job(bound, processors);
    find_processor(&m);
    *out = m;
}

/* ---- peaks ---- */

/* Without a cache, or with a damaged one, no peak is known. */
static void read_peaks(ls_machine *m)
{
    char *folder = file_cache_folder(), *path = folder ? peak_cache_path(folder, m) : NULL;
    struct peak_entries known;

    if (path && peak_cache_read(path, m, &known) == LS_OK)
        for (int t = 0; t < LS_DTYPES; t++) m->flops[t] = peak_known(&known, (ls_dtype)t, m->processors);
    mem_free(path);
    mem_free(folder);
}

ls_status ls_machine_this(ls_machine *out)
{
    struct world world;
    cpu_set_t processors;

    LS_TRY(world_find(&world));
    machine_find(world.local_size > 1, out, &processors);
    read_peaks(out);
    return LS_OK;
}
