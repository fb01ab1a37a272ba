/* shm_rendezvous.c - ranks that use the same name get the same region.
 *
 * Rank 0 binds the abstract socket "\0lockstep/UID/NAME" (it is in no folder and goes with its process), creates the region and answers
 * one connection per rank:
 *     rank -> 0   struct hello
 *     0 -> rank   struct answer, with the region's descriptor (SCM_RIGHTS) where status is LS_OK
 * Both check the other's user (SO_PEERCRED). When all have connected, rank 0 stops answering but keeps the address, so that a second job of
 * that name gets an error and not another job's memory.
 */
#include "comm/transports/shm/shm.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define REFUSING_SECONDS 2.0 /* for which rank 0 stays to report to the others, too, why there will be no job */

struct hello {
    char magic[8];
    uint32_t version;
    int32_t rank, n, pid;
};
struct answer {
    int32_t status;
    char message[MESSAGE_MOST];
};

static const char MAGIC[8] = "LSHELLO";

static ls_status address_of(const char *name, struct sockaddr_un *a, socklen_t *bytes)
{
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int used = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "lockstep/%u/%s", (unsigned)geteuid(), name);
    if (!name[0] || (size_t)used >= sizeof a->sun_path - 1)
        return ls_fail(LS_EINVAL, "shm: a name must have 1 to %zu bytes; this one has %zu", sizeof a->sun_path - 24, strlen(name));
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
    return LS_OK;
}

/* Transfers everything or fails; limits how long a peer that does not respond can block us. */
static void set_timeouts(int fd)
{
    struct timeval t = { 2, 0 };

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

static ls_status send_answer(int fd, ls_status status, const char *message, int descriptor)
{
    struct answer a = { .status = status };
    struct iovec part = { &a, sizeof a };
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1 };

    snprintf(a.message, sizeof a.message, "%s", message);
    if (descriptor >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof a ? LS_OK : ls_fail(LS_EIO, "shm: sendmsg: %s", strerror(errno));
}

/* Answers one rank; sets came[rank] when it has its answer. A rank with another number of ranks than ours means that the job was started
 * wrongly: refusal[MESSAGE_MOST] says so, and is the answer to all that connect from then on. Other users are ignored. */
static void serve_one(int fd, const char *name, int n, struct region *s, bool *came, char *refusal)
{
    struct hello h;
    char line[MESSAGE_MOST];

    if (!is_ours(fd) || recv(fd, &h, sizeof h, MSG_WAITALL) != (ssize_t)sizeof h || memcmp(h.magic, MAGIC, sizeof MAGIC)) return;
    if (!refusal[0] && h.version != REGION_VERSION)
        snprintf(refusal, MESSAGE_MOST, "shm:%s: rank %d has version %u, rank 0 version %d; all ranks must run the same lockstep", name,
                 h.rank, h.version, REGION_VERSION);
    else if (!refusal[0] && h.n != n)
        snprintf(refusal, MESSAGE_MOST, "shm:%s: rank %d (process %d) was started as one of %d ranks, rank 0 as one of %d", name, h.rank,
                 h.pid, h.n, n);
    if (refusal[0]) {
        if (h.rank >= 1 && h.rank < n) came[h.rank] = true;
        send_answer(fd, LS_EINVAL, refusal, -1);
    } else if (h.rank < 1 || h.rank >= n || came[h.rank]) { /* from a second job: ours continues */
        snprintf(line, sizeof line, "shm:%s: rank %d of %d %s: is the name used by two jobs?", name, h.rank, n,
                 h.rank >= 1 && h.rank < n ? "is here already" : "cannot join");
        send_answer(fd, LS_EINVAL, line, -1);
    } else if (send_answer(fd, LS_OK, "", s->fd) == LS_OK) {
        came[h.rank] = true;
    }
}

static ls_status serve(const char *name, int n, double deadline, struct region *s)
{
    bool came[SHM_RANKS_MOST] = { true };
    char refusal[MESSAGE_MOST] = "";

    for (;;) {
        struct pollfd p = { .fd = s->socket, .events = POLLIN };
        double left = deadline - base_now();
        int first = 0;
        while (first < n && came[first]) first++;
        if (refusal[0] && (first == n || left <= 0)) return ls_fail(LS_EINVAL, "%s", refusal);
        if (first == n) break;
        if (left <= 0) return ls_fail(LS_ETIMEOUT, "shm:%s: rank %d of %d did not connect in time", name, first, n);
        if (poll(&p, 1, (int)(MIN(left, 1.0) * 1e3) + 1) != 1) continue;
        int fd = accept4(s->socket, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        set_timeouts(fd);
        serve_one(fd, name, n, s, came, refusal);
        close(fd);
        if (refusal[0]) deadline = MIN(deadline, base_now() + REFUSING_SECONDS);
    }
    shutdown(s->socket, SHUT_RDWR);
    return LS_OK;
}

static ls_status rendezvous_first(const char *name, int n, double deadline, struct region **out)
{
    struct sockaddr_un a;
    socklen_t bytes;
    struct region *s;

    LS_TRY(address_of(name, &a, &bytes));
    LS_TRY(region_make(n, false, &s));
    ls_status st = LS_OK;
    s->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->socket < 0)
        st = ls_fail(LS_EIO, "shm:%s: socket: %s", name, strerror(errno));
    else if (bind(s->socket, (struct sockaddr *)&a, bytes) != 0)
        st = errno == EADDRINUSE ? ls_fail(LS_EINVAL, "shm:%s: another job uses this name now; choose one of your own", name)
                                 : ls_fail(LS_EIO, "shm:%s: bind: %s", name, strerror(errno));
    else if (listen(s->socket, SHM_RANKS_MOST) != 0)
        st = ls_fail(LS_EIO, "shm:%s: listen: %s", name, strerror(errno));
    else
        st = serve(name, n, deadline, s);
    if (st < 0) {
        region_end(s, LS_EPEER, ls_errmsg()); /* for those who have it already */
        region_close(&s);
        return st;
    }
    *out = s;
    return LS_OK;
}

/* Connects to rank 0, which may start later than we do. */
static ls_status shm_rendezvous_reach(const char *name, double deadline, int *out)
{
    struct sockaddr_un a;
    socklen_t bytes;
    double began = base_now();

    LS_TRY(address_of(name, &a, &bytes));
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return ls_fail(LS_EIO, "shm:%s: socket: %s", name, strerror(errno));
        set_timeouts(fd);
        if (connect(fd, (struct sockaddr *)&a, bytes) == 0) {
            *out = fd;
            return LS_OK;
        }
        close(fd);
        if (base_now() >= deadline)
            return ls_fail(LS_ETIMEOUT, "shm:%s: rank 0, which creates the shared memory, did not start within %.1f s (%s)", name,
                           base_now() - began, strerror(errno));
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
}

/* The descriptor that rank 0 sent; LS_BUSY when it went away without an answer. */
static ls_status receive_answer(int fd, const char *name, int *out)
{
    struct answer a;
    struct iovec part = { &a, sizeof a };
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.space };

    if (recvmsg(fd, &m, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof a) return LS_BUSY;
    a.message[sizeof a.message - 1] = '\0';
    if (a.status != LS_OK) return ls_fail(LS_EINVAL, "%s", a.message);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS) return ls_fail(LS_EIO, "shm:%s: rank 0 sent no descriptor (too many open files?)", name);
    memcpy(out, CMSG_DATA(c), sizeof *out);
    return LS_OK;
}

static ls_status rendezvous_other(const char *name, int rank, int n, double deadline, struct region **out)
{
    struct hello h = { .version = REGION_VERSION, .rank = rank, .n = n, .pid = (int32_t)getpid() };
    int fd = -1, memory = -1;

    memcpy(h.magic, MAGIC, sizeof MAGIC);
    for (;;) {
        LS_TRY(shm_rendezvous_reach(name, deadline, &fd));
        if (!is_ours(fd)) {
            close(fd);
            return ls_fail(LS_EINVAL, "shm:%s: the name is held by another user of this machine", name);
        }
        ls_status st = send(fd, &h, sizeof h, MSG_NOSIGNAL) == (ssize_t)sizeof h ? receive_answer(fd, name, &memory) : LS_BUSY;
        close(fd);
        if (st == LS_OK) return region_attach(memory, out);
        if (st < 0) return st;
        if (base_now() >= deadline) return ls_fail(LS_ETIMEOUT, "shm:%s: rank 0 does not answer", name);
    }
}

ls_status region_rendezvous(const char *name, int rank, int n, double deadline, struct region **out)
{
    return rank == 0 ? rendezvous_first(name, n, deadline, out) : rendezvous_other(name, rank, n, deadline, out);
}
