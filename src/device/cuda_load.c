/* cuda_load.c - the row of the CUDA device stands for the module lockstep_cuda.so: found (base/module.h) and loaded when it is first used.
 *
 * LOCKSTEP_CUDA_MODULE=PATH names another file, for tests: the same module on a stub of the CUDA runtime.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/base.h"
#include "base/module.h"
#include "base/pulse.h"
#include "device/cuda/module.h"

enum { PATH_ROOM = 4200 };

static const struct cuda_host cuda_load_host = {
    .shape = CUDA_MODULE_SHAPE,
    .fail = ls_fail,
    .message = ls_errmsg,
    .alloc = mem_alloc,
    .resize = mem_resize,
    .free = mem_free,
    .take = mem_take,
    .give = mem_give,
    .take_device = mem_take_device,
    .give_device = mem_give_device,
    .category_name = mem_category_name,
    .pulse = pulse,
    .log = log_line,
    .assert_failed = base_assert_failed,
};

static const struct device *load_module(const char *path)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    cuda_module_fn *entry = NULL;

    if (!module) {
        ls_fail(LS_EUNSUPPORTED, "%s", dlerror());
        return NULL;
    }
    *(void **)&entry = dlsym(module, CUDA_MODULE_ENTRY);
    if (!entry) {
        ls_fail(LS_EUNSUPPORTED, "%s is not a module of lockstep", path);
        return NULL;
    }
    const struct device *row = entry(&cuda_load_host);
    if (!row) ls_fail(LS_EUNSUPPORTED, "%s belongs to another version of lockstep", path);
    return row;
}

/* NULL: there is none. */
static const char *module_path(void)
{
    static char path[PATH_ROOM];
    const char *given = getenv("LOCKSTEP_CUDA_MODULE");

    if (given && *given) return given;
    return module_find("cuda", path, sizeof path) ? path : NULL;
}

static bool cuda_built(void) { return module_path() != NULL; }

static const struct device *cuda_load(void)
{
    static char folders[3 * PATH_ROOM];
    const char *path = module_path();

    if (path) return load_module(path);
    ls_fail(LS_EUNSUPPORTED, "the CUDA module was not built (lockstep_cuda.so is neither in %s); build lockstep with the CUDA toolkit",
            module_folders(folders, sizeof folders));
    return NULL;
}

const struct device device_cuda = {
    .name = "cuda",
    .accelerator = true,
    .load = cuda_load,
    .built = cuda_built,
};
