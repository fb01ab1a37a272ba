/* stub_state.c - settings, injected failures, and the memory of the stub itself, which the ledger does not count. See stub.h. */
#include "stub_graph.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"

enum { BROKEN_CONTRACT = 97, CONTEXT_SHARE = 16 };

static struct {
    uint64_t calls, queries, runs;
    bool called, eager; /* the first call found CUDA_MODULE_LOADING=EAGER */
    cudaError_t failed, last;
    size_t used;
} state;

void stub_die(const char *fmt, ...)
{
    char line[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fflush(stdout);
    fprintf(stderr, "lockstep: cuda stub: %s\n", line);
    _exit(BROKEN_CONTRACT);
}

/* ---- settings ---- */

static bool setting_is(const char *word, const char *name, const char **value)
{
    size_t length = strlen(name);

    *value = word + length + 1;
    return strncmp(word, name, length) == 0 && word[length] == '=';
}

static struct stub_end read_end(const char *word, const char *value)
{
    struct stub_end end = { 0 };
    unsigned long long number = 0;

    if (sscanf(value, "%d:%7[a-z]:%llu", &end.gpu, end.how, &number) != 3) stub_die("%s: not GPU:HOW:N", word);
    end.number = number;
    return end;
}

static void read_setting(struct stub_settings *s, const char *word)
{
    const char *value;

    if (setting_is(word, "gpus", &value))
        s->gpus = atoi(value);
    else if (setting_is(word, "driver", &value))
        s->driver = atoi(value);
    else if (setting_is(word, "memory", &value))
        s->memory = strtoull(value, NULL, 10);
    else if (setting_is(word, "seed", &value))
        s->seed = strtoull(value, NULL, 10);
    else if (setting_is(word, "fail", &value))
        s->fail = strtoull(value, NULL, 10);
    else if (setting_is(word, "fail_gpu", &value))
        s->fail_gpu = atoi(value);
    else if (setting_is(word, "fail_run", &value))
        s->fail_run = strtoull(value, NULL, 10);
    else if (setting_is(word, "nccl", &value))
        snprintf(s->nccl, sizeof s->nccl, "%s", value);
    else if (setting_is(word, "nccl_fail", &value))
        s->nccl_fail = strtoull(value, NULL, 10);
    else if (setting_is(word, "nccl_async", &value))
        s->nccl_async = strtoull(value, NULL, 10);
    else if (setting_is(word, "nccl_end", &value))
        s->nccl_end = read_end(word, value);
    else if (setting_is(word, "nccl_open", &value))
        s->nccl_open = read_end(word, value);
    else if (setting_is(word, "nccl_close", &value))
        s->nccl_close = read_end(word, value);
    else if (setting_is(word, "write_end", &value))
        s->write_end = read_end(word, value);
    else if (setting_is(word, "ipc_open", &value))
        s->ipc_open = read_end(word, value);
    else if (setting_is(word, "ipc_close", &value))
        s->ipc_close = read_end(word, value);
    else if (setting_is(word, "ipc", &value))
        s->ipc = atoi(value) != 0;
    else if (setting_is(word, "peers", &value))
        s->peers = atoi(value) != 0;
    else if (setting_is(word, "nccl_version", &value))
        s->nccl_version = atoi(value);
    else if (setting_is(word, "capture_fail", &value))
        s->capture_fail = strtoull(value, NULL, 10);
    else if (setting_is(word, "calls", &value))
        snprintf(s->calls, sizeof s->calls, "%s", value);
    else if (setting_is(word, "trace", &value))
        snprintf(s->trace, sizeof s->trace, "%s", value);
    else if (setting_is(word, "kernels", &value))
        s->cpu_kernels = strcmp(value, "cpu") == 0, s->no_kernels = strcmp(value, "none") == 0;
    else if (setting_is(word, "cublaslt", &value))
        s->cublaslt = atoi(value) != 0;
    else if (setting_is(word, "library", &value))
        snprintf(s->library, sizeof s->library, "%s", value);
    else if (setting_is(word, "epilogues", &value))
        s->epilogues = atoi(value);
    else if (setting_is(word, "algorithms", &value))
        s->algorithms = atoi(value) != 0;
    else if (setting_is(word, "capability", &value))
        s->capability = atoi(value);
    else if (setting_is(word, "cudnn", &value))
        s->cudnn = atoi(value) != 0;
    else if (setting_is(word, "cudnn_version", &value))
        s->cudnn_version = atoi(value);
    else if (setting_is(word, "cudnn_create", &value))
        s->cudnn_create = atoi(value);
    else if (setting_is(word, "cudnn_pairs", &value))
        s->cudnn_pairs = strtoull(value, NULL, 10);
    else if (setting_is(word, "cudnn_proposals", &value))
        s->cudnn_proposals = atoi(value);
    else if (setting_is(word, "cudnn_engines", &value))
        s->cudnn_engines = atoi(value) != 0;
    else if (setting_is(word, "fastest", &value))
        s->fastest = atoi(value);
    else
        stub_die("LOCKSTEP_CUDA_STUB: there is no setting '%s'", word);
}

/* CUDA_VISIBLE_DEVICES is a list of numbers; those after the first that does not exist are not visible. */
static void read_visible(struct stub_settings *s)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");

    if (!list)
        while (s->nvisible < s->gpus && s->nvisible < STUB_VISIBLE) s->visible[s->nvisible] = s->nvisible, s->nvisible++;
    while (list && *list && s->nvisible < STUB_VISIBLE) {
        char *end;
        long k = strtol(list, &end, 10);

        if (end == list || k < 0 || k >= s->gpus) return;
        s->visible[s->nvisible++] = (int)k;
        list = *end == ',' ? end + 1 : end;
    }
}

static void write_calls(void)
{
    const char *path = stub_settings()->calls;
    FILE *f = *path ? fopen(path, "a") : NULL;

    if (!f) return;
    fprintf(f, "%llu %llu %llu %llu %llu %llu %llu\n", (unsigned long long)state.calls, (unsigned long long)state.runs,
            (unsigned long long)*stub_nccl_calls(), (unsigned long long)*stub_nccl_in_place(), (unsigned long long)stub_captures(),
            (unsigned long long)stub_graph_launches(), (unsigned long long)state.queries);
    fclose(f);
}

const struct stub_settings *stub_settings(void)
{
    static struct stub_settings s = {
        .gpus = 8, .capability = 9, .driver = CUDART_VERSION, .memory = (size_t)1 << 30, .cublaslt = true, .algorithms = true,
        .epilogues = 1, .cudnn = true, .cudnn_engines = true, .cudnn_version = 91900, .ipc = true, .peers = true, .fail_gpu = -1,
        .fastest = 1
    };
    static bool ready;
    const char *text = getenv("LOCKSTEP_CUDA_STUB");
    char words[1024], *next;

    if (ready) return &s;
    ready = true;
    snprintf(words, sizeof words, "%s", text ? text : "");
    for (char *word = strtok_r(words, " ", &next); word; word = strtok_r(NULL, " ", &next)) read_setting(&s, word);
    read_visible(&s);
    if (s.calls[0]) atexit(write_calls);
    return &s;
}

/* Of tests/shared_clock.c, if it is preloaded: from here on the others see time pass, and this rank is late. */
extern void shared_clock_exclude(bool while_stopped) __attribute__((weak));

void stub_end_at(const struct stub_end *end, uint64_t number)
{
    if (number != end->number || stub_gpu() != end->gpu) return;
    if (strcmp(end->how, "kill") == 0) raise(SIGKILL);
    bool stops = strcmp(end->how, "stop") == 0;
    if (shared_clock_exclude) shared_clock_exclude(stops);
    if (stops) raise(SIGSTOP);
    if (strcmp(end->how, "loop") == 0)
        for (;;) pause();
}

/* ---- calls that fail ---- */

cudaError_t stub_fails(void) { return state.failed; }
uint64_t *stub_nccl_calls(void)
{
    static uint64_t calls;

    return &calls;
}

uint64_t *stub_nccl_in_place(void)
{
    static uint64_t calls;

    return &calls;
}

void stub_set_last(cudaError_t e) { state.last = e; }

static bool fails_here(void) { return stub_settings()->fail_gpu < 0 || stub_settings()->fail_gpu == stub_gpu(); }

/* A call's number is its line number. */
static void note_call(const char *name)
{
    static FILE *trace;

    if (!stub_settings()->trace[0]) return;
    if (!trace && !(trace = fopen(stub_settings()->trace, "w"))) stub_die("%s: the file cannot be created", stub_settings()->trace);
    fprintf(trace, "%s\n", name);
    fflush(trace);
}

static void read_environment(void)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");

    if (state.called) return;
    state.called = true;
    state.eager = loading && strcmp(loading, "EAGER") == 0;
}

void stub_need_kernels(const char *call)
{
    if (!state.eager)
        stub_die("%s: the first launch of a kernel would wait for this stream, for ever: CUDA_MODULE_LOADING was not EAGER", call);
}

cudaError_t stub_call(const char *name, bool allocates)
{
    cudaError_t e = state.failed;

    read_environment();
    stub_capture_call(name);
    note_call(name);
    state.queries += strstr(name, "Query") != NULL;
    if (e == cudaSuccess && ++state.calls == stub_settings()->fail && fails_here()) {
        e = allocates ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
        if (!allocates) state.failed = e;
    }
    if (e != cudaSuccess) state.last = e;
    return e;
}

/* True: the operation that is about to run, and all later ones, fail. */
bool stub_run_fails(void)
{
    if (state.failed == cudaSuccess && ++state.runs == stub_settings()->fail_run && fails_here()) state.failed = cudaErrorLaunchFailure;
    return state.failed != cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = state.failed != cudaSuccess ? state.failed : state.last;

    state.last = cudaSuccess;
    return e;
}

/* ---- memory ---- */

static size_t context_bytes(void) { return stub_settings()->memory / CONTEXT_SHARE; }
size_t stub_memory_left(void) { return stub_settings()->memory - context_bytes() - state.used; }
void stub_memory_give(size_t bytes) { __atomic_sub_fetch(&state.used, bytes, __ATOMIC_SEQ_CST); }

bool stub_memory_take(size_t bytes)
{
    if (bytes > stub_memory_left()) return false;
    __atomic_add_fetch(&state.used, bytes, __ATOMIC_SEQ_CST);
    return true;
}

static struct allocated {
    struct allocated *next;
    const void *at;
} *allocated;

void stub_allocated(void *p, bool on)
{
    struct allocated **at = &allocated, *a;

    while (*at && (*at)->at != p) at = &(*at)->next;
    a = *at ? *at : calloc(1, sizeof *a);
    if (!a) stub_die("no memory");
    if (on) {
        *a = (struct allocated){ allocated, p };
        allocated = a;
    } else {
        *at = a->next;
        free(a);
    }
}

bool stub_is_allocated(const void *p)
{
    const struct allocated *a = allocated;

    while (a && a->at != p) a = a->next;
    return a != NULL;
}

/* Replacements of mem_* for the files of the checking device. */
void *stub_mem_alloc(enum mem_category c, size_t bytes);
void *stub_mem_zalloc(enum mem_category c, size_t bytes);
void *stub_mem_resize(void *p, size_t bytes);
void stub_mem_free(void *p);
ls_status stub_mem_take(enum mem_category c, size_t bytes);
void stub_mem_give(enum mem_category c, size_t bytes);

void *stub_mem_alloc(enum mem_category c, size_t bytes) { return (void)c, malloc(bytes); }
void *stub_mem_zalloc(enum mem_category c, size_t bytes) { return (void)c, calloc(1, bytes); }
void *stub_mem_resize(void *p, size_t bytes) { return realloc(p, bytes); }
void stub_mem_free(void *p) { free(p); }
ls_status stub_mem_take(enum mem_category c, size_t bytes) { return (void)c, (void)bytes, LS_OK; }
void stub_mem_give(enum mem_category c, size_t bytes) { (void)c, (void)bytes; }
