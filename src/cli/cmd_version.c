/* cmd_version.c - `lockstep version`: describes the build and what it found on this machine, for bug reports. */
#include <stdio.h>
#include "base/json.h"
#include "base/module.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "comm/transports/transport.h"
#include "kernels/kernel.h"
#include "train/run/version.h"

#if defined __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

enum { PATH_ROOM = 4200 };

static bool version_json;

static const struct flag version_flags[] = {
    { "json", FLAG_SWITCH, &version_json, 0, 0, NULL, "print as JSON" },
    { 0 },
};

/* False if this lockstep was built with -DONEDNN=OFF: it loads no module. */
static bool uses_onednn(void) { return kernels_exist("onednn"); }

static ls_status cmd_version_put_json(void)
{
    struct json_out j = { 0 };
    char path[PATH_ROOM];

    json_begin_object(&j, NULL);
    json_put_string(&j, "version", LOCKSTEP_VERSION);
    json_put_string(&j, "compiler", COMPILER);
    json_put_string(&j, "isa", isa_name(isa_best()));
    json_begin_object(&j, "mpi");
    for (size_t i = 0; mpi_module_name(i); i++)
        if (mpi_module_find(i, path, sizeof path)) json_put_string(&j, mpi_module_name(i), path);
    json_end_object(&j);
    if (uses_onednn() && module_find("onednn", path, sizeof path)) json_put_string(&j, "onednn", path);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static ls_status cmd_version_run(struct invocation *in)
{
    char path[PATH_ROOM];

    (void)in;
    if (version_json) return cmd_version_put_json();
    printf("lockstep %s\n", LOCKSTEP_VERSION);
    printf("compiler    %s\n", COMPILER);
    if (isa_all() == isa_best())
        printf("kernels     %s (the largest instruction set that both this processor and this build support)\n", isa_name(isa_best()));
    else
        printf("kernels     %s (on this processor faster than %s, which it also has)\n", isa_name(isa_best()), isa_name(isa_all()));
    for (size_t i = 0; mpi_module_name(i); i++)
        printf("mpi         %s: %s\n", mpi_module_name(i), mpi_module_find(i, path, sizeof path) ? path : "no module found");
    if (!uses_onednn())
        printf("onednn      this lockstep was built without it\n");
    else
        printf("onednn      %s\n", module_find("onednn", path, sizeof path) ? path : "no module found");
    return LS_OK;
}

const struct command command_version = {
    .name = "version",
    .arguments = "",
    .summary = "print the version, compiler, instruction set and the modules of MPI and oneDNN (also --version)",
    .flags = version_flags,
    .run = cmd_version_run,
    .examples = "  lockstep version\n  lockstep version --json\n",
};
