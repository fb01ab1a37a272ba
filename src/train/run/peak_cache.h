/* peak_cache.h - the file of measured peaks of one machine; its format is in peak.h. */
#ifndef LS_TRAIN_RUN_PEAK_CACHE_H
#define LS_TRAIN_RUN_PEAK_CACHE_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/machine.h"

struct peak_entry {
    ls_dtype type;
    int threads;
    double flops, busy;
    int64_t when;
};
enum { PEAK_ENTRIES = 64 }; /* most entries of a file; one more replaces the oldest */
struct peak_entries {
    struct peak_entry entry[PEAK_ENTRIES];
    size_t n;
};

/* More FLOP/s than so many threads of the machine can reach: cores x 6 GHz x FLOPs per cycle of the widest instruction set. */
double peak_bound(const ls_machine *m, ls_dtype type, int threads);

/* FOLDER/peak-HASH.json; NULL: out of memory. Free with mem_free. */
char *peak_cache_path(const char *folder, const ls_machine *m);
/* Entries above peak_bound() are left out: the clock or the machine stood still during them. A missing file is LS_OK and gives no entries.
 * LS_EFORMAT: the file is damaged, or describes another machine. *out is empty on failure. */
ls_status peak_cache_read(const char *path, const ls_machine *m, struct peak_entries *out);
/* Creates the folder if necessary. */
ls_status peak_cache_write(const char *folder, const char *path, const ls_machine *m, const struct peak_entries *e);
const struct peak_entry *peak_entry_of(const struct peak_entries *e, ls_dtype type, int threads); /* NULL: not there */
double peak_known(const struct peak_entries *e, ls_dtype type, int threads); /* the largest with at most `threads` threads; 0: none */
void peak_entry_put(struct peak_entries *e, const struct peak_entry *entry); /* replaces the entry of the same type and threads */

#endif
