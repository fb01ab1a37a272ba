/* helper_launch.h - a launch as a test case: in its own process, observed from outside.
 *
 * The launcher behaves like the command: it prints its line on standard error after "lockstep probe: " and exits with its code. The ranks
 * run the test program. Every case has a folder (out, err: output of the launcher; log: output of its ranks) and a mark in the environment
 * of its ranks, by which the test finds processes that are left behind.
 */
#ifndef HELPER_LAUNCH_H
#define HELPER_LAUNCH_H

#include <stdbool.h>
#include <sys/types.h>

extern char *case_folder;
extern char  case_mark[64];

int   case_set_up(void **state);
int   case_tear_down(void **state);

char *case_read(const char *name);                        /* a file of the folder, "" when there is none; mem_free() it */
bool  case_contains(const char *name, const char *text);
void  case_wait_for(const char *name, const char *text);
void  case_redirect(const char *name, int fd);            /* in a child: fd writes to that file from now on */
int   case_entries(const char *path, const char *with);   /* names in a folder that have `with` in them */

pid_t case_launch(int ranks, char *const argv[], bool bind);
int   case_finish(pid_t pid);                             /* exit code, or 1000 + signal */
int   case_processes(void);
void  case_nothing_is_left(void);

#endif
