/* helper_schedule.h - pipeline schedules as text: writing them, and checking that one is refused with a message. */
#ifndef LS_TESTS_HELPER_SCHEDULE_H
#define LS_TESTS_HELPER_SCHEDULE_H

#include "lockstep/pipeline.h"

/* Lists as text: "F0.0 B0.0 | F0.0 B0.0", a rank after the other. */
void schedule_text(const ls_pipeline_schedule *s, char *out, size_t room);
void schedule_write(const char *path, const char *text);
void schedule_refused(const char *text, ls_status st, const char *words);

#define SCHEDULE_TWO_RANKS "stages 2 chunks 1 micro 2 order loop\n"

#endif
