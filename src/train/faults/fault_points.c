/* fault_points.c - what happens at the points of the lower floors: the Nth fails, each is late, or the next is wrong. */
#include "train/faults/fault_points.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "comm/comm.h"
#include "comm/failure/flight_recorder.h"
#include "data/loader.h"
#include "train/faults/fault_list.h"

void fault_sleep(double seconds)
{
    double end = base_now() + seconds;

    for (double left = seconds; left > 0; left = end - base_now()) {
        long ns = left < 0.02 ? (long)(1e9 * left) : 20000000;

        nanosleep(&(struct timespec){ 0, ns }, NULL);
        pulse();
    }
}

/* True for the call in which *nth, counted down, comes to its end. */
static bool is_nth(atomic_int_fast64_t *nth) { return atomic_load(nth) > 0 && atomic_fetch_sub(nth, 1) == 1; }

/* ---- allocations ---- */

static atomic_int_fast64_t alloc_nth;

static const char *alloc_fails(void) { return is_nth(&alloc_nth) ? "made to fail by a test" : NULL; }

void mem_fail_at(int64_t nth)
{
    atomic_store(&alloc_nth, nth);
    __atomic_store_n(&mem_fault, nth > 0 ? alloc_fails : NULL, __ATOMIC_RELEASE);
}

/* ---- writes ---- */

static atomic_int_fast64_t write_nth;
static _Atomic double write_seconds;

static size_t write_fits(size_t bytes)
{
    fault_sleep(atomic_load(&write_seconds));
    return is_nth(&write_nth) ? bytes / 2 : bytes;
}

static void arm_writes(void)
{
    bool armed = atomic_load(&write_nth) > 0 || atomic_load(&write_seconds) > 0;

    __atomic_store_n(&file_fault, armed ? write_fits : NULL, __ATOMIC_RELEASE);
}

void file_fail_at(int64_t nth)
{
    atomic_store(&write_nth, nth);
    arm_writes();
}

void file_slow(double seconds)
{
    atomic_store(&write_seconds, seconds);
    arm_writes();
}

/* ---- collectives and messages ---- */

/* Makes the signature of a call wrong; true: the call is skipped. */
typedef bool call_wrong_fn(struct signature *s);

static bool call_count(struct signature *s)
{
    s->count++;
    return false;
}

static bool call_type(struct signature *s)
{
    s->type = s->type == LS_I32 ? LS_F32 : LS_I32;
    return false;
}

static bool call_op(struct signature *s)
{
    s->op = s->op == LS_COLLECTIVE_BARRIER ? LS_COLLECTIVE_ALL_REDUCE : LS_COLLECTIVE_BARRIER;
    return false;
}

static bool call_skip(struct signature *s)
{
    (void)s;
    return true;
}

static const struct {
    const char *name;
    call_wrong_fn *wrong;
} calls[] = {
#define CALL_ROW(id, name, what, when, arm) { #name, call_##arm },
    FAULT_CALL_MAP(CALL_ROW)
#undef CALL_ROW
};

static struct {
    const ls_comm *comm;
    call_wrong_fn *wrong;
} next_call;

static bool call_goes_wrong(const ls_comm *c, struct signature *s)
{
    if (c != next_call.comm) return false;
    __atomic_store_n(&comm_call_fault, NULL, __ATOMIC_RELEASE);
    return next_call.wrong(s);
}

void comm_inject(const ls_comm *c, const char *what)
{
    size_t k = 0;

    while (k < COUNT_OF(calls) && strcmp(calls[k].name, what) != 0) k++;
    ASSERT(k < COUNT_OF(calls));
    next_call.comm = c;
    next_call.wrong = calls[k].wrong;
    __atomic_store_n(&comm_call_fault, call_goes_wrong, __ATOMIC_RELEASE);
}

static _Atomic double call_seconds, call_bandwidth;

static double call_delay(size_t bytes)
{
    double bandwidth = atomic_load(&call_bandwidth);

    return atomic_load(&call_seconds) + (bandwidth > 0 ? (double)bytes / bandwidth : 0);
}

void comm_slow(double seconds, double bandwidth)
{
    atomic_store(&call_seconds, seconds);
    atomic_store(&call_bandwidth, bandwidth);
    __atomic_store_n(&comm_delay_fault, seconds > 0 || bandwidth > 0 ? call_delay : NULL, __ATOMIC_RELEASE);
}

/* ---- the loader's batches ---- */

static _Atomic double batch_seconds;

static void batch_is_late(void) { fault_sleep(atomic_load(&batch_seconds)); }

void loader_slow(double seconds)
{
    atomic_store(&batch_seconds, seconds);
    __atomic_store_n(&loader_fault, seconds > 0 ? batch_is_late : NULL, __ATOMIC_RELEASE);
}
