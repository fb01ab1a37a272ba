/* documents.h - a file of text, document by document.
 *
 * The name determines the format: .jsonl and .ndjson hold one JSON object per line, of which one field is a document; anything else is one
 * document of UTF-8. Either may be followed by .gz or .zst, which is expanded while it is read. One JSON line is in memory at a time.
 */
#ifndef LS_DATA_DOCUMENTS_H
#define LS_DATA_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/hash.h"
#include "lockstep/status.h"

/* Receives the next document. Any status except LS_OK ends the reading with that status. */
typedef ls_status document_fn(void *ctx, const char *text, size_t bytes);

struct documents {
    size_t bytes, count;
    char hash[HASH_ROOM];
}; /* bytes of the text; hash of the file as it is */

bool documents_are_lines(const char *path); /* JSON lines, by the name */
/* field: name of the field, for JSON lines. LS_EFORMAT names the file, and the line of JSON lines. */
ls_status documents_each(const char *path, const char *field, document_fn *fn, void *ctx, struct documents *out);

#endif
