/* helper_shm.h - forked ranks that use the shared-memory transport directly: jobs, links, complete collectives. */
#ifndef LS_TESTS_HELPER_SHM_H
#define LS_TESTS_HELPER_SHM_H

#include <stdbool.h>
#include <sys/types.h>
#include "comm/transports/shm/shm_link.h"

enum { SHM_RANKS = 8 };
#define SHM_TIMEOUT 60.0   /* seconds that anything may take on a busy machine */

#define SHM_CHECK(cond) ((cond) ? (void)0 : shm_wrong(__FILE__, __LINE__, #cond))
#define SHM_TRY(call)    ((call) >= 0 ? (void)0 : shm_wrong(__FILE__, __LINE__, #call))

void shm_wrong(const char *file, int line, const char *what);

typedef void shm_rank_fn(int rank, int n, const char *where);
struct shm_job { int n; struct region *region; char where[64]; pid_t pid[SHM_RANKS]; };

void shm_job_start_at(struct shm_job *j, int n, const char *where, shm_rank_fn *fn);
void shm_job_start(struct shm_job *j, int n, shm_rank_fn *fn);
int shm_job_wait_rank(struct shm_job *j, int rank);
void shm_job_finish(struct shm_job *j);
void shm_run(int n, shm_rank_fn *fn);
struct link *shm_join(const char *where, int rank, int n);

void shm_leave(struct link *l);

/* Drives one whole collective to its end. */
ls_status shm_drive(struct link *l, struct request *r);
struct request shm_request(ls_collective op, const void *send, void *recv, size_t count, ls_dtype type, ls_redop redop);

ls_status shm_barrier(struct link *l);
char *shm_unique_name(char *out, size_t bytes);

#endif
