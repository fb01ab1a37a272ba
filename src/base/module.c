/* module.c - see module.h. */
#include "base/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"

#ifndef MODULE_FOLDER
#error "MODULE_FOLDER: where modules are installed, relative to the prefix"
#endif

enum { PATH_ROOM = 4096, PLACES = 4 };
struct folder {
    char path[PATH_ROOM];
};

/* The folders to search; one that cannot be determined is left empty. */
static void find_folders(struct folder folders[PLACES])
{
    static const char here[] = "";
    char exe[PATH_ROOM] = "", own[PATH_ROOM] = "";
    Dl_info info;

    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) exe[0] = 0;
    if (dladdr(here, &info) && info.dli_fname && !realpath(info.dli_fname, own)) own[0] = 0;
    for (int i = 0; i < PLACES; i++) folders[i].path[0] = 0;
    for (char **path = (char *[]){ exe, own, NULL }; *path; path++) {
        char *slash = strrchr(*path, '/');
        if (slash) *slash = 0;
    }
    if (exe[0]) {
        snprintf(folders[0].path, PATH_ROOM, "%.3000s", exe);
        snprintf(folders[1].path, PATH_ROOM, "%.3000s/../%s", exe, MODULE_FOLDER);
    }
    if (own[0]) {
        snprintf(folders[2].path, PATH_ROOM, "%.3000s", own);
        snprintf(folders[3].path, PATH_ROOM, "%.3000s/lockstep", own);
    }
}

bool module_find(const char *name, char *path, size_t room)
{
    struct folder folders[PLACES];

    find_folders(folders);
    for (int k = 0; k < PLACES; k++) {
        if (!folders[k].path[0]) continue;
        snprintf(path, room, "%.4000s/lockstep_%s.so", folders[k].path, name);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

const char *module_folders(char *out, size_t room)
{
    struct folder folders[PLACES];

    find_folders(folders);
    bool apart = strcmp(folders[0].path, folders[2].path) != 0;
    snprintf(out, room, "%s nor in %s%s%s", folders[0].path, folders[1].path, apart ? " nor in " : "", apart ? folders[3].path : "");
    return out;
}
