/* status.h - what a call returns, and the one message that explains a failure.
 *
 * Three kinds of failure, three answers:
 *   the environment fails (memory, file, peer)   a negative status
 *   the caller passes bad arguments              LS_EINVAL, with the numbers in the message
 *   lockstep itself is wrong                     an assertion that is always compiled in
 * The function that finds the error writes the message with ls_fail(); its callers only return the status.
 * Messages are per thread and stay until the next failure in that thread.
 */
#ifndef LS_STATUS_H
#define LS_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define LS_STATUS_MAP(X)                  \
    X(OK, 0, "success")                   \
    X(BUSY, 1, "still in progress")       \
    X(EINVAL, -1, "invalid argument")     \
    X(ENOMEM, -2, "out of memory")        \
    X(EIO, -3, "input/output error")      \
    X(EFORMAT, -4, "malformed file")      \
    X(EPEER, -5, "a peer failed or left") \
    X(ETIMEOUT, -6, "timed out")          \
    X(EUNSUPPORTED, -7, "not supported")

typedef enum ls_status {
#define LS_STATUS_ENUM(name, value, text) LS_##name = value,
    LS_STATUS_MAP(LS_STATUS_ENUM)
#undef LS_STATUS_ENUM
} ls_status;

#if defined(__GNUC__)
#define LS_PRINTF(at, from) __attribute__((format(printf, at, from)))
#else
#define LS_PRINTF(at, from)
#endif

/* The one macro that hides a return. Not for use where the function already owns resources. */
#define LS_TRY(call)                     \
    do {                                 \
        ls_status ls_try_ = (call);      \
        if (ls_try_ < 0) return ls_try_; \
    } while (0)

const char *ls_status_text(ls_status st); /* "malformed file"; never NULL */
const char *ls_errmsg(void);              /* this thread's last message; "" before the first */

/* Sets this thread's message to the formatted text and returns st. */
ls_status ls_fail(ls_status st, const char *fmt, ...) LS_PRINTF(2, 3);
/* Puts "text: " before this thread's message (a path, a rank) and returns st. */
ls_status ls_fail_at(ls_status st, const char *fmt, ...) LS_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
