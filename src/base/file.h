/* file.h - reading and mapping files, and publishing files atomically.
 *
 * Publishing: write PATH.tmp, fsync, rename to PATH, fsync the folder. A reader sees the old bytes or the
 * new, never a mixture; a crash leaves at most a .tmp that the next writer replaces. Folders are
 * published in the same way by file_publish_folder(). Tests make the Nth write fail (file_fail_at).
 * Every message starts with the path.
 */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

struct file_map {
    const unsigned char *data;
    size_t bytes;
}; /* read-only; data is NULL when bytes == 0 */

ls_status file_map_open(const char *path, struct file_map *out);
void file_map_close(struct file_map *m);              /* zeroes *m */
void file_map_expect(const void *data, size_t bytes); /* lets the disk begin to read bytes of a map that will be needed soon */
/* The whole file and a terminating NUL that *bytes does not count; free with mem_free(). bytes may be NULL. */
ls_status file_read(const char *path, char **text, size_t *bytes);

typedef struct file_writer file_writer;
ls_status file_writer_open(const char *path, file_writer **out);           /* creates PATH.tmp */
ls_status file_writer_put(file_writer *w, const void *data, size_t bytes); /* buffered */
ls_status file_writer_publish(file_writer **w);                            /* *w = NULL, also on failure */
void file_writer_abandon(file_writer **w);                                 /* removes PATH.tmp; NULL is a no-op */
ls_status file_write(const char *path, const void *data, size_t bytes);    /* all of the above at once */

ls_status file_make_folders(const char *path);                    /* mkdir -p */
ls_status file_publish_folder(const char *tmp, const char *path); /* fsync tmp, rename, fsync the parent */
ls_status file_remove_tree(const char *path);                     /* rm -r; a missing path is LS_OK */
int file_exists(const char *path);
int file_is_folder(const char *path);
/* Formats into a new string; free with mem_free(). NULL when out of memory. */
char *file_path(const char *fmt, ...) LS_PRINTF(1, 2);
/* $XDG_CACHE_HOME/lockstep or ~/.cache/lockstep, which may not exist yet; free with mem_free(). NULL, with a message: neither is set. */
char *file_cache_folder(void);
/* 1 when name is a bare file name: not empty, no '/', not "." or "..", no control characters. */
int file_is_basename(const char *name);

void file_fail_at(int64_t nth); /* tests: the nth write(2) from now fails like a full disk; 0: none */
void file_slow(double seconds); /* injected fault: each write(2) takes so many seconds longer; 0: none */

#endif
