/* normalize.c - see the header.
 *
 * Code points below U+0300 neither combine nor change, so text made of them (its bytes are below 0xcc) is its own
 * form C. utf8proc works on 32-bit code points and writes UTF-8 back into the same buffer.
 */
#include "data/normalize.h"

#include <utf8proc.h>
#include "data/array.h"

static bool is_plain(const unsigned char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] >= 0xcc) return false;
    return true;
}

ls_status normalize_nfc(struct normal *n, const unsigned char *text, size_t bytes,
                        const unsigned char **out, size_t *count)
{
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    utf8proc_ssize_t points = 0;
    void *p;

    if (is_plain(text, bytes)) {
        *out = text;
        *count = bytes;
        return LS_OK;
    }
    if (bytes > PTRDIFF_MAX / 4) return ls_fail(LS_ENOMEM, "out of memory: normalizing %zu bytes", bytes);
    for (int pass = 0; pass < 2; pass++) {  /* the first measures, when what there is does not hold it */
        points = utf8proc_decompose(text, (utf8proc_ssize_t)bytes, n->point, (utf8proc_ssize_t)n->room, options);
        if (points < 0) return ls_fail(LS_EFORMAT, "normalizing: %s", utf8proc_errmsg(points));
        p = n->point;
        LS_TRY(array_grow(&p, &n->room, (size_t)points + 1, sizeof *n->point));
        if (p == n->point) break;
        n->point = p;
    }
    utf8proc_ssize_t written = utf8proc_reencode(n->point, points, options);
    if (written < 0) return ls_fail(LS_EFORMAT, "normalizing: %s", utf8proc_errmsg(written));
    *out = (const unsigned char *)n->point;
    *count = (size_t)written;
    return LS_OK;
}

void normal_free(struct normal *n)
{
    mem_free(n->point);
    *n = (struct normal){ 0 };
}
