/* helper_launch_rank.h - behaviors of a launched rank, by name: the test program runs itself as its ranks. */
#ifndef LS_TESTS_HELPER_LAUNCH_RANK_H
#define LS_TESTS_HELPER_LAUNCH_RANK_H

#include "helper_launch.h"

enum { FLOOD_LINES = 20000 };

_Noreturn void launch_sleep_on(void);
int launch_rank_main(const char *what, const char *who);
pid_t launch_ranks(int ranks, const char *what, const char *who, bool bind);
int launch_ranks_run(int ranks, const char *what, const char *who);
int line_count(const char *text);

/* In the background of a script, or under nohup, some signals are ignored. */
void launch_signals_reset(void);

#endif
