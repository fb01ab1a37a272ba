/* helper_check.h - checks of a call's status and message. Ranks that a test forks use RANKS_TRY and RANKS_CHECK of helper_ranks.h. */
#ifndef LS_TESTS_HELPER_CHECK_H
#define LS_TESTS_HELPER_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "lockstep/status.h"

/* The call succeeds. */
#define OK(call) check_accepted((call), #call, __FILE__, __LINE__)
/* The call is refused with this status, and the message is one line that contains the text. */
#define REFUSED(status, text, call) check_refused((call), (status), (text), #call, __FILE__, __LINE__)
/* The same with any status of failure. */
#define FAILS(text, call) check_refused((call), LS_OK, (text), #call, __FILE__, __LINE__)

void check_accepted(ls_status got, const char *call, const char *file, int line);
/* want == LS_OK: any failure counts. */
void check_refused(ls_status got, ls_status want, const char *text, const char *call, const char *file, int line);

#endif
