/* documents.h - a file of text, document by document.
 *
 * What a file is, its name says: .jsonl and .ndjson hold one JSON object a line, of which one field is a document; anything else is one
 * document of UTF-8. After either, .gz and .zst: expanded while it is read. Of JSON lines one is in memory at a time.
 */
#ifndef LS_DATA_DOCUMENTS_H
#define LS_DATA_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/hash.h"
#include "lockstep/status.h"

/* The next document. Anything but LS_OK ends the reading with that status. */
typedef ls_status document_fn(void *ctx, const char *text, size_t bytes);

struct documents {
    size_t bytes, count;
    char hash[HASH_ROOM];
}; /* bytes of the text; of the file as it is, the hash */

bool documents_are_lines(const char *path); /* JSON lines, by the name */
bool documents_are_compressed(const char *path);
/* field: of JSON lines. LS_EFORMAT names the file, and of JSON lines the line. */
ls_status documents_each(const char *path, const char *field, document_fn *fn, void *ctx, struct documents *out);

#endif
