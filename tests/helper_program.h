/* helper_program.h - stores, programs, comms for planning, and instructions that tests append by hand. */
#ifndef LS_TESTS_HELPER_PROGRAM_H
#define LS_TESTS_HELPER_PROGRAM_H

#include "lockstep/comm.h"
#include "ir/program.h"

ls_comm *plan_comm(int rank, int n);
ls_store *seeded_store(ls_dtype type);
ls_program *program_on(ls_store *s);
ls_value emit_copy(ls_program *p, ls_value x, ls_value to);
ls_value emit_own_block(ls_program *p, ls_comm *c, ls_value x, size_t total);

#endif
