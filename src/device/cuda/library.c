/* library.c - see cuda_library_open() in cuda.h: finds NVIDIA's libraries that are loaded when they are needed. */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "device/cuda/cuda.h"

enum { PATH_ROOM = 4096, LINKS_MOST = 8 };

struct library_search {
    const char *file;
    void *library;
    char path[PATH_ROOM]; /* where it was found; "": by the loader */
};

static bool try_path(struct library_search *s, const char *path)
{
    if (s->library || access(path, R_OK) != 0) return s->library;
    if ((s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) snprintf(s->path, sizeof s->path, "%s", path);
    return s->library;
}

/* In each folder of a list with colons. */
static void search_folders(struct library_search *s, const char *folders)
{
    for (const char *at = folders ? folders : ""; *at && !s->library;) {
        int length = (int)strcspn(at, ":");
        char path[PATH_ROOM];

        snprintf(path, sizeof path, "%.*s/%s", length, at, s->file);
        try_path(s, path);
        at += length + (at[length] == ':');
    }
}

/* Under the folder of a Python environment: NVIDIA's packages have their libraries in nvidia/PACKAGE/lib. */
static void search_environment(struct library_search *s, const char *root)
{
    char pattern[PATH_ROOM];
    glob_t found;

    if (!root || !*root || s->library) return;
    snprintf(pattern, sizeof pattern, "%.3000s/lib/python3*/{site,dist}-packages/nvidia/*/lib/%s", root, s->file);
    if (glob(pattern, GLOB_BRACE, NULL, &found) != 0) return;
    for (size_t k = 0; k < found.gl_pathc; k++) try_path(s, found.gl_pathv[k]);
    globfree(&found);
}

/* The environment of the program at path: bin/python3 of an environment is a link to another one's, and may be linked to in turn. */
static void search_program(struct library_search *s, char *path)
{
    for (int k = 0; k < LINKS_MOST && !s->library; k++) {
        char target[PATH_ROOM], root[PATH_ROOM], *slash = strrchr(path, '/');
        ssize_t length = readlink(path, target, sizeof target - 1);

        if (!slash) return;
        snprintf(root, sizeof root, "%.*s/..", (int)(slash - path), path);
        search_environment(s, root);
        if (length < 0) return;
        target[length] = 0;
        if (target[0] == '/')
            snprintf(path, PATH_ROOM, "%s", target);
        else
            snprintf(slash + 1, (size_t)(PATH_ROOM - (slash + 1 - path)), "%s", target);
    }
}

/* The active environment, or the one of the python3 that a user would run. */
static void search_python(struct library_search *s)
{
    const char *home = getenv("HOME"), *at = getenv("PATH");
    char path[PATH_ROOM];

    search_environment(s, getenv("VIRTUAL_ENV"));
    search_environment(s, getenv("CONDA_PREFIX"));
    for (at = at ? at : ""; *at && !s->library;) {
        int length = (int)strcspn(at, ":");

        snprintf(path, sizeof path, "%.*s/python3", length, at);
        if (length && access(path, X_OK) == 0) search_program(s, path);
        at += length + (at[length] == ':');
    }
    snprintf(path, sizeof path, "%.3000s/.local", home ? home : "");
    if (home) search_environment(s, path);
}

void *cuda_library_open(const char *file, char *path, size_t room)
{
    struct library_search s = { .file = file };
    const char *home = getenv("CUDA_HOME");
    char toolkit[PATH_ROOM] = "";

    search_folders(&s, cuda.libraries);
    if (!s.library) s.library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (home) snprintf(toolkit, sizeof toolkit, "%.4000s/lib64", home);
    search_folders(&s, toolkit);
    search_folders(&s, "/usr/local/cuda/lib64");
    search_python(&s);
    snprintf(path, room, "%s", s.path);
    return s.library;
}

void cuda_library_warn(const char *file, const char *lacks, const char *instead)
{
    if (lacks)
        log_line(LOG_WARN, "cuda: %s is of another version, without %s; %s, which are slower (%s)", file, lacks, instead,
                 CUDA_LIBRARY_OTHER);
    else
        log_line(LOG_WARN, "cuda: %s was not found; %s, which are slower (%s)", file, instead, CUDA_LIBRARY_PLACES);
}
