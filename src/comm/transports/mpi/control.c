/* control.c - messages on the control communicator: verdicts, and requests for a rank's latest call. */
#include "comm/transports/mpi/world.h"

#include <stdarg.h>

ls_status verdict(void) { return mpi.failed ? host->fail((ls_status)mpi.verdict.status, "%s", mpi.verdict.line) : LS_OK; }

static void tell_verdict(void)
{
    for (int i = 0; i < mpi.n; i++)
        if (i != mpi.rank) MPI_Isend(&mpi.verdict, sizeof mpi.verdict, MPI_BYTE, i, VERDICT, mpi.control, &mpi.peers[i].verdict);
}

ls_status end_job(ls_status st, const char *fmt, ...)
{
    va_list args;

    if (mpi.failed) return verdict();
    mpi.failed = true;
    mpi.verdict.status = st;
    va_start(args, fmt);
    vsnprintf(mpi.verdict.line, LINE_BYTES, fmt, args);
    va_end(args);
    tell_verdict();
    return verdict();
}

ls_status mpi_refused(int code, const char *doing)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int bytes = 0;

    MPI_Error_string(code, text, &bytes);
    return end_job(LS_EPEER, "mpi: rank %d, %s: %.400s", mpi.rank, doing, text);
}

bool over(MPI_Request *r)
{
    int done = 0;
    return MPI_Test(r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done;
}

static void answer_to(int from)
{
    struct peer *p = &mpi.peers[from];

    if (mpi.leaving || !over(&p->answer)) return; /* nothing is sent after BYE, or while an answer is still in flight; it asks again */
    p->mine = (struct answer){ .now = host->now(), .record = mpi.latest };
    host->copy_board(&mpi.board, &p->mine.board);
    MPI_Isend(&p->mine, sizeof p->mine, MPI_BYTE, from, ANSWER, mpi.control, &p->answer);
}

/* Receives what has arrived on the control communicator. */
void look(void)
{
    static union {
        struct verdict verdict;
        struct answer answer;
    } in;
    MPI_Status s;
    int there = 0;

    mpi.looked = host->now();
    while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi.control, &there, &s) == MPI_SUCCESS && there) {
        int from = s.MPI_SOURCE, tag = s.MPI_TAG;

        if (MPI_Recv(&in, sizeof in, MPI_BYTE, from, tag, mpi.control, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        if (tag == VERDICT && !mpi.failed) {
            mpi.verdict = in.verdict;
            mpi.verdict.line[LINE_BYTES - 1] = 0;
            mpi.failed = true;
        }
        if (tag == ASK) answer_to(from);
        if (tag == BYE) mpi.peers[from].left = true;
        if (tag == ANSWER) {
            mpi.peers[from].answered = mpi.looked;
            mpi.peers[from].its = in.answer;
        }
    }
}

ls_status row_failed(struct link *l)
{
    (void)l;
    if (!mpi.failed && host->now() - mpi.looked > LOOK_SECONDS) look();
    return verdict();
}

void row_fail(struct link *l, ls_status st, const char *message)
{
    (void)l;
    end_job(st, "%s", message);
}

void row_note(struct link *l, const struct call_record *r)
{
    (void)l;
    mpi.latest = *r;
}

static void rebase(double *t, double by)
{
    if (*t > 0) *t += by;
} /* clocks of machines differ */

/* Asks now and then; true if the answer is current. */
static bool is_fresh(int rank)
{
    struct peer *p = &mpi.peers[rank];
    double now = host->now();

    look();
    if (now - p->asked > ASK_SECONDS && over(&p->ask)) {
        p->asked = now;
        MPI_Isend(NULL, 0, MPI_BYTE, rank, ASK, mpi.control, &p->ask);
    }
    return p->answered > 0 && now - p->answered <= FRESH_SECONDS;
}

static void rebase_record(struct call_record *r, double by)
{
    rebase(&r->queued, by);
    rebase(&r->started, by);
    rebase(&r->ended, by);
}

ls_status row_peek(struct link *l, int rank, struct call_record *out)
{
    const struct peer *p = &mpi.peers[rank];

    (void)l;
    if (rank == mpi.rank) {
        *out = mpi.latest;
        return LS_OK;
    }
    if (!is_fresh(rank)) return LS_BUSY;
    *out = p->its.record;
    rebase_record(out, p->answered - p->its.now);
    return LS_OK;
}

ls_status row_see(struct link *l, int rank, struct board_seen *out)
{
    const struct peer *p = &mpi.peers[rank];

    (void)l;
    if (!is_fresh(rank)) {
        *out = (struct board_seen){ .alive = p->answered, .peer = -1 }; /* its last answer; 0: there was none */
        return LS_BUSY;
    }
    *out = p->its.board;
    rebase(&out->alive, p->answered - p->its.now);
    rebase_record(&out->waits, p->answered - p->its.now);
    return LS_OK;
}

struct board *row_board(struct link *l)
{
    (void)l;
    return &mpi.board;
}
