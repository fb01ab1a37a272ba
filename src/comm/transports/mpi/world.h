/* world.h - shared by the files of the MPI module, and the only place that includes mpi.h.
 *
 *   mpi.c        starting and ending MPI; the row
 *   control.c    verdicts, and questions about the latest call
 *   watch.c      sleeping, and detecting that a process on this machine has ended
 *   serve.c      a thread that looks for control messages while nobody else does
 *   messages.c   payload with its signature
 *   links.c      opening, splitting, closing
 */
#ifndef LS_COMM_TRANSPORTS_MPI_WORLD_H
#define LS_COMM_TRANSPORTS_MPI_WORLD_H

#include <mpi.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include "base/base.h"
#include "comm/transports/mpi/host.h"

enum {
    INLINE_BYTES = 2048,
    CHUNK = 16 << 20,
    CHANNELS = 2,
    TAGS = 2 * CHANNELS,
    TAG_RANGES = 1024,
    WORDS = TAG_RANGES / 64,
    TAG_AGREE = TAG_RANGES * TAGS,
    TAG_CHOICE,
    LINE_BYTES = 1024
};
enum control_tag { VERDICT = 1, ASK, ANSWER, BYE };

#define LOOK_SECONDS   100e-6 /* between two polls for control messages while there is other work */
#define ASK_SECONDS    0.05   /* before a rank is asked again */
#define FRESH_SECONDS  2.0    /* an answer younger than this counts as what the rank does now */
#define SERVE_SECONDS  0.05   /* between two polls while the process computes */
#define LINGER_SECONDS 1.0

/* The wire format is the format in memory: all ranks run the same build. */
struct head {
    struct signature signature;
    uint64_t bytes;
};
struct verdict {
    int32_t status;
    char line[LINE_BYTES];
};
struct answer {
    double now;
    struct call_record record;
    struct board_seen board;
}; /* now: on the sender's clock */
struct offer {
    uint64_t group;
    uint64_t used[WORDS];
}; /* ranges of tags in use */
struct choice {
    uint64_t group;
    int64_t range;
}; /* range -1: none is free */

/* One message under way: its place in t->request. */
struct pending {
    struct pending *next;
    bool sending, head_over;
    MPI_Request head, body;
    struct {
        struct head head;
        char data[INLINE_BYTES];
    } message;
};

struct link {
    struct link_base base;
    struct link *next; /* next of all open links */
    int range;         /* of tags */
    int *members;      /* [n] ranks of the world */
    double timeout;
    struct pending *active, *spare;
};

/* What this process knows about a rank of the world. */
struct peer {
    MPI_Request verdict, ask, answer, bye;
    double asked, answered; /* when it was last asked and last answered; 0: never */
    bool left;
    int pid; /* process of a rank on this machine; else 0 */
    struct answer mine, its;
};

struct mpi {
    bool started, ours, failed, leaving; /* leaving: has sent BYE */
    pid_t pid;
    int rank, n, here; /* here: ranks on this machine; one whose machine is unknown counts */
    MPI_Comm data, control;
    struct peer *peers;        /* [n] */
    struct pollfd *watch;      /* [watches]: the bell, an eventfd that ends a sleep; a pidfd of each rank on this machine */
    int *watched, watches;     /* rank of watch[i] */
    struct link *links;        /* all open links; they belong to one world */
    struct pending *abandoned; /* never freed: MPI may still write there */
    struct verdict verdict;
    struct call_record latest; /* CALL_NONE: there was none */
    struct board board;
    _Atomic double looked;
    struct offer offer, offered; /* for the agreement in progress; there is one at a time */
    struct choice choice;
};

extern const struct mpi_host *host;
extern struct mpi mpi;
extern const struct transport row;

/* control.c */
ls_status verdict(void);                                               /* LS_OK, or the failure that ended the job, with the message set */
ls_status end_job(ls_status st, const char *fmt, ...) LS_PRINTF(2, 3); /* notifies all, unless the job has ended; returns verdict() */
ls_status mpi_refused(int code, const char *doing);                    /* ends the job with MPI's own text */
bool over(MPI_Request *r);                                             /* done, or in error */
void look(void);                                                       /* receives what has arrived on the control communicator */
ls_status row_failed(struct link *l);
void row_fail(struct link *l, ls_status st, const char *message);
void row_note(struct link *l, const struct call_record *r);
ls_status row_peek(struct link *l, int rank, struct call_record *out);
ls_status row_see(struct link *l, int rank, struct board_seen *out);
struct board *row_board(struct link *l);

/* watch.c */
ls_status watch_open(void); /* the bell, and the ranks on this machine; collective */
int row_here(struct link *l);
enum process_doing row_doing(struct link *l, int rank);
void nap(double seconds); /* or until row_wake(), or the end of a process */
void row_wake(struct link *l);

/* serve.c */
ls_status serve_open(struct link *l); /* makes l the world; from now on control messages are handled */

/* messages.c */
ls_status row_start(struct link *l, struct transfer *t);
ls_status row_poll(struct link *l, struct transfer *t);
ls_status row_idle(struct link *l, double seconds);
void messages_abandon(struct link *l); /* cancels those in flight when the link closes */

/* links.c */
ls_status link_open(int n, const int *members, int me, uint64_t group, const char *name, double timeout, struct link **out);
void link_free(struct link *l);
ls_status row_split(struct link *parent, int n, const int *members, int me, uint64_t group, struct link **out);
void row_close(struct link **out);

#endif
