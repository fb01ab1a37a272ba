/* verify.h - what to do about a damaged checkpoint. */
#ifndef LS_CHECKPOINT_VERIFY_H
#define LS_CHECKPOINT_VERIFY_H

#include "lockstep/status.h"

/* The status and message of a failure to read the checkpoint at path. Where that was damage (LS_EFORMAT), the message also says which
 * older one under the same root is whole, verified in full, after `use`: the words that make lockstep read it. */
ls_status verify_advise(ls_status st, const char *path, const char *use);

#endif
