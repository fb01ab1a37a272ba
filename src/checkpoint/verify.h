/* verify.h - reports a damaged checkpoint and suggests an older one. */
#ifndef LS_CHECKPOINT_VERIFY_H
#define LS_CHECKPOINT_VERIFY_H

#include "lockstep/status.h"

/* The status and message of a failure to read the checkpoint at path. If it was damage (LS_EFORMAT), the message also names the older one
 * under the same root that is intact, verified in full, after `use`: the arguments that make lockstep read it. */
ls_status verify_advise(ls_status st, const char *path, const char *use);

#endif
