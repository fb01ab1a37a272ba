/* host.h - the interface between the MPI module and the library that loads it.
 *
 * The module is one file, mpi.c, compiled once per MPI implementation and loaded by mpi_load.c. It uses no symbol of the
 * library or the command (a shared liblockstep exports ls_* alone): this table holds everything it needs. It exports one function,
 * MPI_MODULE_ENTRY, which returns its row, or NULL if it was built from different headers than the host.
 */
#ifndef LS_COMM_TRANSPORTS_MPI_HOST_H
#define LS_COMM_TRANSPORTS_MPI_HOST_H

#include "base/mem.h"
#include "comm/transports/transport.h"

struct mpi_host {
    uint64_t shape; /* MPI_HOST_SHAPE of the host */
    ls_status (*fail)(ls_status st, const char *fmt, ...) LS_PRINTF(2, 3);
    ls_status (*mismatch)(const struct link_base *l, int mine, const struct signature *a, int other, const struct signature *b);
    bool (*agrees)(const struct signature *a, const struct signature *b);
    const char *(*message)(void);
    double (*now)(void);
    void (*enter)(void); /* the engine, which is held during every function of the row except open */
    void (*leave)(void);
    void *(*zalloc)(enum mem_category c, size_t bytes);
    void (*free)(void *p);
    void (*copy_board)(const struct board *b, struct board_seen *out);
    char (*state)(int pid); /* state letter of a process: see process_doing_of() */
};

#define MPI_HOST_SHAPE                                                                                                                 \
    ((uint64_t)sizeof(struct transport) << 48 ^ (uint64_t)sizeof(struct transfer) << 36 ^ (uint64_t)sizeof(struct call_record) << 24 ^ \
     (uint64_t)sizeof(struct link_base) << 12 ^ sizeof(struct mpi_host))

#define MPI_MODULE_ENTRY "lockstep_mpi_row"
typedef const struct transport *mpi_module_fn(const struct mpi_host *host);

#endif
