/* stub_nccl_peers.c - waits of NCCL: for connections that peers make too, and for peers that leave. See stub_nccl.h. */
#include "stub_nccl.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int connections;

int stub_nccl_connections(void) { return connections; }

/* ---- connections ---- */

/* This rank's end of a message's connection, and the peer's; NULL for what needs none. */
static atomic_int *connection_end(const struct ncclComm *c, const struct nccl_part *p, bool own)
{
    bool sends = p->words.op == NCCL_SEND;
    int peer = p->words.root;

    if (p->words.op < NCCL_SEND || peer == c->rank) return NULL;
    if (sends) return own ? &c->shared->pair[c->rank][peer].sender : &c->shared->pair[c->rank][peer].receiver;
    return own ? &c->shared->pair[peer][c->rank].receiver : &c->shared->pair[peer][c->rank].sender;
}

void nccl_launch_connects(struct ncclComm *c)
{
    for (int k = 0; k < c->waiting.n; k++) {
        atomic_int *own = connection_end(c, &c->waiting.part[k], true);

        if (!own || atomic_exchange(own, 1)) continue;
        if (!stub_memory_take(NCCL_PEER_BYTES)) stub_die("nccl: no memory is left for a connection");
        c->connections++;
        connections++;
    }
}

bool nccl_launch_connected(const struct ncclComm *c)
{
    for (int k = 0; k < c->waiting.n; k++) {
        const atomic_int *other = connection_end(c, &c->waiting.part[k], false);

        if (other && !atomic_load(other)) return false;
    }
    return true;
}

void nccl_connections_end(struct ncclComm *c)
{
    stub_memory_give((size_t)c->connections * NCCL_PEER_BYTES);
    connections -= c->connections;
    c->connections = 0;
}

/* ---- ranks that leave ---- */

static struct flock rank_lock(int rank) { return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1 }; }

bool nccl_rank_hold(struct ncclComm *c)
{
    struct flock lock = rank_lock(c->rank);

    return fcntl(c->file, F_OFD_SETLK, &lock) == 0;
}

static bool rank_ended(const struct ncclComm *c, int r)
{
    struct flock lock = rank_lock(r);

    return fcntl(c->file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void nccl_wait_left(const struct ncclComm *c)
{
    static const struct timespec nap = { .tv_nsec = 100000 };

    for (int r = 0; r < c->n; r++)
        while (r != c->rank && atomic_load(&c->shared->joined[r]) && !atomic_load(&c->shared->left[r]) && !rank_ended(c, r))
            nanosleep(&nap, NULL);
}
