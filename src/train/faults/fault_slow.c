/* fault_slow.c - debug.slow: a part of one rank, or of all, that takes longer each time. */
#include "train/faults/fault_kinds.h"

#include <inttypes.h>
#include <string.h>
#include "base/base.h"
#include "base/log.h"
#include "base/text.h"
#include "train/faults/fault_points.h"
#include "train/task/task.h"

/* ---- the parts ---- */

static double compute_seconds;

static void slow_compute(double seconds, double bandwidth)
{
    (void)bandwidth;
    compute_seconds = seconds;
}

void fault_gradients(void) { fault_sleep(compute_seconds); }

static void slow_link(double seconds, double bandwidth) { comm_slow(seconds, bandwidth); }

static void slow_disk(double seconds, double bandwidth)
{
    (void)bandwidth;
    file_slow(seconds);
}

static void slow_loader(double seconds, double bandwidth)
{
    (void)bandwidth;
    loader_slow(seconds);
}

static const struct slow_row {
    enum fault fault;
    const char *name;
    enum fault_when when;
    void (*arm)(double seconds, double bandwidth);
} slow_rows[] = {
#define SLOW_ROW(id, name, what, when, arm, ...) { FAULT_##id, #name, WHEN_##when, slow_##arm },
    FAULT_SLOW_MAP(SLOW_ROW)
#undef SLOW_ROW
};

/* ---- the option ---- */

/* A part of a rank (-1: of all) that takes so many seconds longer each time; bandwidth in bytes/s, of a link; 0: any. row NULL: none, or
 * malformed. */
struct slow {
    const struct slow_row *row;
    int64_t rank;
    double seconds, bandwidth;
};

/* The text up to the next ':' or the end, into word; the rest, or NULL at the end. */
static const char *slow_word(const char *at, char word[24])
{
    size_t length = strcspn(at, ":");

    word[0] = '\0';
    if (length < 24) memcpy(word, at, length), word[length] = '\0';
    return at[length] ? at + length + 1 : NULL;
}

static struct slow slow_of(const struct config *c)
{
    struct slow s = { .rank = -1 }, none = { 0 };
    double milliseconds, megabytes = 0;
    const char *at = c->debug.slow;
    char word[24];

    at = slow_word(at, word);
    for (size_t k = 0; k < COUNT_OF(slow_rows); k++)
        if (strcmp(word, slow_rows[k].name) == 0) s.row = &slow_rows[k];
    if (!at || !s.row) return none;
    at = slow_word(at, word);
    if (!at || (strcmp(word, "all") != 0 && (!text_read_int(word, &s.rank) || s.rank < 0))) return none;
    at = slow_word(at, word);
    if (!text_read_real(word, &milliseconds) || milliseconds < 0) return none;
    if (at && s.row->fault == FAULT_SLOW_LINK) {
        at = slow_word(at, word);
        if (!text_read_real(word, &megabytes) || megabytes <= 0) return none;
    }
    s.seconds = milliseconds / 1e3;
    s.bandwidth = megabytes * 1e6;
    return at || (s.seconds == 0 && s.bandwidth == 0) ? none : s;
}

static ls_status slow_is_idle(const struct config *c, struct slow s)
{
    bool apart = c->parallel.dp > 1 && s.rank >= 0; /* ranks differ in what they do */
    bool serves = apart && c->parallel.method == LS_METHOD_ASYNC && s.rank == 0;
    bool receives = apart && c->parallel.method == LS_METHOD_DATAPARALLEL && s.rank > 0;
    bool replicas = c->parallel.dp * c->parallel.cp > 1 && (c->parallel.zero == 0 || c->parallel.replicate > 1);
    struct task_model model;

    LS_TRY(task_model_of(c, 0, &model));
    bool drawn = model.task->drawn;
#define IDLE(condition, because) \
    if (condition) return ls_fail(LS_EINVAL, "debug.slow=%s does nothing here: %s", c->debug.slow, because);
#define RULES(id, name, what, when, arm, ...) \
    if (s.row->fault == FAULT_##id) {         \
        __VA_ARGS__                           \
    }
    FAULT_SLOW_MAP(RULES)
#undef RULES
#undef IDLE
    return LS_OK;
}

ls_status fault_slow_check(const struct config *c)
{
    struct slow s = slow_of(c);

    if (!c->debug.slow[0]) return LS_OK;
    if (!s.row || s.rank >= MAX(c->launch.ranks, 1) || s.seconds > 60)
        return ls_fail(
            LS_EINVAL,
            "debug.slow=%s: expected compute:RANK:MS, link:RANK:MS[:MB_PER_SECOND], disk:RANK:MS or loader:RANK:MS with RANK below "
            "launch.ranks=%" PRId64 " or all, and MS above 0, at most 60000",
            c->debug.slow, MAX(c->launch.ranks, 1));
    return slow_is_idle(c, s);
}

void fault_slow_arm(const struct config *c, enum fault_when when, int rank)
{
    struct slow s = slow_of(c);

    if (!s.row || (s.rank >= 0 && s.rank != rank)) return;
    if (s.row->when == when) s.row->arm(s.seconds, s.bandwidth);
    if (when == WHEN_TRAINING) log_line(LOG_INFO, "injected: debug.slow=%s", c->debug.slow);
}

void fault_slow_disarm(void)
{
    for (size_t k = 0; k < COUNT_OF(slow_rows); k++) slow_rows[k].arm(0, 0);
}
