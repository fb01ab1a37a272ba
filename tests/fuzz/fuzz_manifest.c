/* Any text as a manifest's body, with the trailer that makes its hash right: refused in one line, or a manifest that,
 * written again, is read again as the same. */
#include <string.h>
#include "base/base.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

static void check_again(const struct manifest *m)
{
    struct manifest *again;
    char *text, *text_again;
    size_t bytes, bytes_again;

    ASSERT(manifest_format(&m->info, &text, &bytes) == LS_OK);
    ASSERT(manifest_parse(text, bytes, "g", &again) == LS_OK);
    ASSERT(manifest_format(&again->info, &text_again, &bytes_again) == LS_OK);
    ASSERT(bytes == bytes_again && memcmp(text, text_again, bytes) == 0);
    mem_free(text);
    mem_free(text_again);
    manifest_release(&again);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct text whole = { 0 };
    struct manifest *m;
    char hash[HASH_ROOM];
    size_t n;

    ASSERT(manifest_parse((const char *)data, bytes, "f", &m) != LS_OK); /* the hash cannot be guessed */
    text_add(&whole, (const char *)data, bytes);
    hash_of(data, bytes, hash);
    text_put(&whole, ",\"hash\":\"%s\"}\n", hash);
    if (manifest_parse(whole.data, whole.bytes, "f", &m) != LS_OK) {
        ASSERT(strncmp(ls_errmsg(), "f: ", 3) == 0 && !strchr(ls_errmsg(), '\n'));
    } else {
        for (size_t i = 0; i < m->info.nentries; i++) {
            manifest_find(m, m->info.entries[i].kind, m->info.entries[i].name, &n);
            ASSERT(n > 0 && m->info.entries[i].file < m->info.nfiles);
        }
        check_again(m);
        manifest_release(&m);
    }
    text_free(&whole);
    return 0;
}
