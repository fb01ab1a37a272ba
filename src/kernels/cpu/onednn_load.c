/* onednn_load.c - oneDNN's rows of the kernel table, which stand for the module lockstep_onednn.so: it is found (base/module.h) and loaded
 * when one of them is first asked whether it accepts a matmul that oneDNN computes.
 *
 * Rows are asked only where no row of higher priority has accepted the call: so a process loads oneDNN for matmuls that our tiles decline,
 * for linear layers and their gradients in bf16 on processors with AMX, and where the rows are named (`bench gemm`, measuring the
 * peak). Without the module, or the library that it is linked with, they accept nothing and the next row runs. On processors with AMX this
 * costs some speed, and a line says so.
 *
 * The library is on libgomp, whose threads spin for milliseconds after each call, in case there is another soon, and would take the cores
 * from our own team. With OMP_WAIT_POLICY=passive they sleep. libgomp reads it once, when it is loaded, so it is set here before the
 * module is. A value that the user has set stays, and so does the policy of a libgomp that the program has loaded already.
 *
 * scratch() and prepare() are called outside the team's tasks. A call that runs in a task of the team runs on that task's thread alone.
 */
#include "kernels/cpu/onednn_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/base.h"
#include "base/log.h"
#include "base/module.h"
#include "base/threads.h"
#include "kernels/cpu/onednn_recipe.h"

enum { PATH_ROOM = 4200 };

static const struct onednn_host onednn_load_host = {
    .shape = ONEDNN_MODULE_SHAPE,
    .fail = ls_fail,
    .zalloc = mem_zalloc,
    .free = mem_free,
    .assert_failed = base_assert_failed,
};

static const struct onednn_module *module; /* NULL: cannot be used */
static char why_absent[4 * PATH_ROOM];     /* why it cannot */

/* Writes the line once per process. */
static void warn_absent(const char *cost)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&said)) log_line(LOG_WARN, "%s: %s", cost, why_absent);
}

static void load_module(const char *path)
{
    onednn_module_fn *entry = NULL;

    setenv("OMP_WAIT_POLICY", "passive", 0);
    void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!loaded) {
        snprintf(why_absent, sizeof why_absent, "%s; install oneDNN 2 (Debian: libdnnl2)", dlerror());
        return;
    }
    *(void **)&entry = dlsym(loaded, ONEDNN_MODULE_ENTRY);
    module = entry ? entry(&onednn_load_host) : NULL;
    if (module) return;
    snprintf(why_absent, sizeof why_absent, "%s belongs to another version of lockstep; build both together", path);
    warn_absent("oneDNN is not used");
}

static void find_module(void)
{
    static char path[PATH_ROOM], folders[3 * PATH_ROOM];

    if (module_find("onednn", path, sizeof path))
        load_module(path);
    else
        snprintf(why_absent, sizeof why_absent, "lockstep_onednn.so is neither in %s; build lockstep where oneDNN 2 is installed",
                 module_folders(folders, sizeof folders));
}

bool onednn_found(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_module);
    return module != NULL;
}

size_t onednn_primitives(void) { return onednn_found() ? module->primitives() : 0; }

/* With tile registers, oneDNN 2.6 ends in an illegal instruction for some sums over 63 values: 28 x 63 times 63 x 80, for example, and one
 * in twenty of others up to 64 x 200; for none of 120,000 sums over other numbers, also one below other multiples of 32. */
static bool onednn_breaks(const struct recipe *r, enum isa isa) { return isa == ISA_AMX && r->src.size[r->ndim - 1] == 63; }

/* oneDNN chooses the instruction set itself, so nothing is accepted under a cap that is lower than its choice. */
static bool onednn_accepts(const struct call *c)
{
    struct recipe r;

    if (!recipe_of(c, &r) || !onednn_found()) return false;
    enum isa isa = module->isa(c->in[0].dtype);
    return isa <= isa_best() && !onednn_breaks(&r, isa);
}

/* For bf16 on tile instructions, where oneDNN is up to a third faster than our tiles; the row's ISA ensures that the processor has them. */
static bool amx_accepts(const struct call *c)
{
    if (c->in[0].dtype != LS_BF16 || c->in[1].dtype != LS_BF16) return false;
    if (onednn_found()) return onednn_accepts(c);
    warn_absent(
        "bf16 linear layers run on lockstep's own kernels, which are slower than oneDNN's with this processor's tile instructions (AMX)");
    return false;
}

static size_t onednn_scratch(const struct call *c)
{
    struct recipe r;

    ASSERT(recipe_of(c, &r));
    return module->scratch(&r);
}

static ls_status onednn_prepare(struct call *c)
{
    struct onednn_matmul *m;
    struct recipe r;

    ASSERT(recipe_of(c, &r));
    LS_TRY(module->open(&r, &m));
    c->state = m;
    return LS_OK;
}

static void onednn_release(struct call *c)
{
    if (c->state) module->close(c->state);
    c->state = NULL;
}

static void onednn_run(const struct call *c)
{
    const struct onednn_buffers b = { c->in[0].data, c->in[1].data, call_has_in(c, 2) ? c->in[2].data : NULL, c->out[0].data, c->scratch };

    module->run(c->state, threads_inside() ? 1 : threads_count(), &b);
}

#define ONEDNN_ROW(id, title, rank, level, takes)                                                                                   \
    {                                                                                                                               \
        .op = OP_##id, .name = title, .device = "cpu", .priority = rank, .isa = level, .accepts = takes, .scratch = onednn_scratch, \
        .prepare = onednn_prepare, .release = onednn_release, .run = onednn_run                                                     \
    }
#define ONEDNN_LIBRARY(id) ONEDNN_ROW(id, "onednn", PRIORITY_LIBRARY, ISA_ANY, onednn_accepts)
#define ONEDNN_AMX(id)     ONEDNN_ROW(id, "onednn_amx", PRIORITY_AMX, ISA_AMX, amx_accepts)

const struct kernel kernels_onednn[] = { ONEDNN_LIBRARY(LINEAR),    ONEDNN_LIBRARY(LINEAR_DX),
                                         ONEDNN_LIBRARY(LINEAR_DW), ONEDNN_LIBRARY(MATMUL),
                                         ONEDNN_AMX(LINEAR),        ONEDNN_AMX(LINEAR_DX),
                                         ONEDNN_AMX(LINEAR_DW),     KERNELS_END };
