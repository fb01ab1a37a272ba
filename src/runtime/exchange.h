/* exchange.h - between the executor and exchange.c. */
#ifndef LS_RUNTIME_EXCHANGE_H
#define LS_RUNTIME_EXCHANGE_H

#include "ir/program.h"

ls_status exchange_start(ls_program *p, const struct instruction *i);
ls_status exchange_wait(ls_program *p, const struct instruction *i);
ls_status exchange_finish_all(ls_program *p);
void exchange_drop_all(ls_program *p);                            /* waits for all that is in flight, whatever comes of it */
bool instruction_runs(const struct instruction *i, int segments); /* by `when` and LS_LAST */

#endif
