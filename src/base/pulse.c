/* pulse.c - one word per process, written by one thread. */
#include "base/pulse.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/base.h"

static _Atomic double *_Atomic target;
static _Thread_local bool witnessed;

void pulse_watch(_Atomic double *at)
{
    _Atomic double *none = NULL;

    if (!atomic_compare_exchange_strong(&target, &none, at)) return;
    witnessed = true;
    pulse();
}

void pulse_unwatch(_Atomic double *at)
{
    _Atomic double *mine = at;

    atomic_compare_exchange_strong(&target, &mine, NULL);
}

void pulse_delegate(void) { witnessed = true; }

void pulse(void)
{
    _Atomic double *at = witnessed ? atomic_load_explicit(&target, memory_order_relaxed) : NULL;

    if (at) atomic_store_explicit(at, base_now_coarse(), memory_order_relaxed);
}
