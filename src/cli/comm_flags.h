/* comm_flags.h - values of the flags of `bench comm`: ours and those of nccl-tests. Errors name the flag as the user wrote it: "-b". */
#ifndef LS_CLI_COMM_FLAGS_H
#define LS_CLI_COMM_FLAGS_H

#include "cli/args.h"
#include "lockstep/comm.h"

/* The values of --op and -o: an operation and a reduction, each with its flag as the user wrote it; NULL: not given. */
struct comm_words {
    const char *op, *op_flag, *redop, *redop_flag;
};

const char *comm_type_name(ls_dtype t);   /* "float" */
const char *comm_redop_name(ls_redop op); /* "sum" */
ls_status comm_read_type(const char *flag, const char *name, ls_dtype *out);
/* Sets *op if the name is that of a collective, *redop if it is that of a reduction; redop NULL: only collectives are accepted. */
ls_status comm_read_op(const char *flag, const char *name, ls_collective *op, ls_redop *redop);
/* Rejects unknown names, two operations and two reductions. */
ls_status comm_sort_words(const struct flag_strings *given, struct comm_words *out);
ls_status comm_read_bytes(const char *flag, const char *text, size_t *out);

#endif
