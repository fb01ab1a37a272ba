/* helper_wrongs.h - tests of a stub that do one thing wrong at a time. Included after WRONGS(X), a list of X(NAME, the stub's message); the
 * first is X(NOTHING, "").
 */
#ifndef LS_TESTS_HELPER_WRONGS_H
#define LS_TESTS_HELPER_WRONGS_H

enum wrong {
#define WRONG_ID(id, says) WRONG_##id,
    WRONGS(WRONG_ID)
#undef WRONG_ID
    WRONG_COUNT
};

static const struct { const char *name, *says; } wrongs[] = {
#define WRONG_ROW(id, says) { #id, says },
    WRONGS(WRONG_ROW)
#undef WRONG_ROW
};

static enum wrong now; /* what this process does wrong */

/* value, or other in the process that does this wrong. */
#define OR(id, value, other) (now == WRONG_##id ? (other) : (value))

#endif
