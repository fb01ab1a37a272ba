/* unicode.h - general categories of Unicode 16.0, as patterns for a library of another version.
 *
 * PCRE2 10.42 implements Unicode 14.0; the tokenizers that lockstep must match follow 16.0. Since 14.0, categories only gained code points
 * (between Mn and Mc one moved: marks are one category here), so the older class and a list of additions are the newer class. With a
 * library of Unicode 15 or 16 the additions change nothing.
 */
#ifndef LS_DATA_UNICODE_H
#define LS_DATA_UNICODE_H

#include <stddef.h>

/* Members of a bracket expression of PCRE2 that match category `name` ("L", "Lu", "M", ...): ASCII letters and
 * digits first, because they have a bitmap. Writes at most room bytes with the terminator and returns the
 * length; 0 if the category is not supported. */
size_t unicode_class(const char *name, char *out, size_t room);

enum { UNICODE_CLASS_ROOM = 4096 }; /* large enough for every category */

/* The 25 code points of White_Space, and all others, as members of a bracket expression. */
extern const char UNICODE_SPACE[], UNICODE_NOT_SPACE[];

#endif
