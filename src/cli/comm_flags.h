/* comm_flags.h - the words of `bench comm`: ours and those of nccl-tests. Failures name the flag as it was written: "-b". */
#ifndef LS_CLI_COMM_FLAGS_H
#define LS_CLI_COMM_FLAGS_H

#include "lockstep/comm.h"

const char *comm_type_name(ls_dtype t);     /* "float" */
const char *comm_redop_name(ls_redop op);   /* "sum" */
ls_status   comm_read_type(const char *flag, const char *name, ls_dtype *out);
/* Sets *op or *redop, whichever the name is of; redop NULL: collectives only. */
ls_status   comm_read_op(const char *flag, const char *name, ls_collective *op, ls_redop *redop);
ls_status   comm_read_bytes(const char *flag, const char *text, size_t *out);

#endif
