/* exchange.h - the part of the executor that is in exchange_run.c. */
#ifndef LS_RUNTIME_EXCHANGE_H
#define LS_RUNTIME_EXCHANGE_H

#include "ir/program.h"

ls_status exchange_start(ls_program *p, const struct instruction *i);
ls_status exchange_wait(ls_program *p, const struct instruction *i);
ls_status exchange_finish_all(ls_program *p);
void exchange_drop_all(ls_program *p); /* waits for everything in flight, ignoring failures */

#endif
