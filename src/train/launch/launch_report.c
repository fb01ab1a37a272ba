/* launch_report.c - decides which failure is reported, and writes that line.
 *
 * An error that a rank has shared with the others (region_named) comes first, whatever happened to that rank afterwards. Then come the
 * ranks' own reports, then how the ranks ended.
 */
#include "train/launch/launch_job.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "comm/transports/transport.h"

char *child_ended(const struct child *c, char out[96])
{
    if (c->signal)
        snprintf(out, 96, "was killed by signal %d (%s)", c->signal, strsignal(c->signal));
    else
        snprintf(out, 96, EXITED_WITH, c->code);
    return out;
}

bool child_failed(const struct child *c) { return !c->by_us && (c->signal || c->code); }
bool child_blames(const struct child *c) { return !c->signal && c->code == EXIT_PEER; }

void report_ends(const struct job *j)
{
    for (int i = 0; j->launch->ends && i < j->n; i++) {
        const struct child *c = &j->child[i];
        int stopped = j->stop[i].signal;
        char how[96], *to = j->launch->ends[i];

        if (stopped)
            snprintf(to, LAUNCH_END, "was stopped by signal %d (%s), then killed", stopped, strsignal(stopped));
        else
            snprintf(to, LAUNCH_END, "%s%s", child_ended(c, how), c->by_us ? " by the launcher" : "");
    }
}

/* The text of a rank's report after "lockstep COMMAND: " and its own "rank N: "; NULL: it has no report. */
static const char *report_of(const struct child *c)
{
    const char *colon = c->output.last_report[0] ? strstr(c->output.last_report, ": ") : NULL;
    char rank[24];

    if (!colon) return NULL;
    int length = snprintf(rank, sizeof rank, "rank %d: ", c->output.rank);
    return strncmp(colon + 2, rank, (size_t)length) == 0 ? colon + 2 + length : colon + 2;
}

static void put_stopped(const struct job *j, char out[REPORT_ROOM])
{
    size_t at = strlen(out);

    for (int i = 0; i < j->n && at < REPORT_ROOM - 1; i++) {
        int stopped = j->stop[i].signal;
        char said[48];

        snprintf(said, sizeof said, "rank %d was stopped by signal", i);
        if (stopped && !strstr(out, said))
            at += (size_t)snprintf(out + at, REPORT_ROOM - at, "; %s %d (%s)", said, stopped, strsignal(stopped));
    }
}

static bool names_rank(const char *text, int rank)
{
    char name[2][24];

    snprintf(name[0], sizeof name[0], "rank %d:", rank);
    snprintf(name[1], sizeof name[1], "rank %d,", rank);
    return strstr(text, name[0]) || strstr(text, name[1]);
}

/* If the report names another rank that failed with a report of its own, that rank is reported instead. */
static void follow_blame(struct job *j)
{
    const char *text = report_of(&j->child[j->failed]);
    int first = j->failed;

    for (int i = 0; text && i < j->n; i++)
        if (i != first && child_failed(&j->child[i]) && report_of(&j->child[i]) && names_rank(text, i)) j->failed = i;
}

/* Writes "rank 2 was killed by signal 9 (Killed)", or "ranks 1, 3 were killed by .." if the same signal killed several. */
static void put_end(const struct job *j, char out[REPORT_ROOM])
{
    const struct child *c = &j->child[j->failed];
    size_t at = 0;
    char how[96];
    int n = 0;

    for (int i = 0; i < j->n; i++) n += c->signal && child_failed(&j->child[i]) && j->child[i].signal == c->signal;
    if (n < 2) {
        snprintf(out, REPORT_ROOM, "rank %d %s", j->failed, child_ended(c, how));
        return;
    }
    for (int i = 0; i < j->n && at < REPORT_ROOM - 64; i++)
        if (child_failed(&j->child[i]) && j->child[i].signal == c->signal)
            at += (size_t)snprintf(out + at, REPORT_ROOM - at, "%s%d", at ? ", " : "ranks ", i);
    snprintf(out + at, REPORT_ROOM - at, " were killed by signal %d (%s)", c->signal, strsignal(c->signal));
}

/* A report about another rank is used as it is; any other gets the rank as a prefix. */
static void put_report(const struct job *j, char out[REPORT_ROOM])
{
    const struct child *c = &j->child[j->failed];
    const char *text = report_of(c), *verdict = region_verdict(j->region);

    if (j->failed == j->overdue)
        snprintf(out, REPORT_ROOM, "%s", verdict);
    else if (text && child_blames(c))
        snprintf(out, REPORT_ROOM, "%s", text);
    else if (text && !c->signal)
        snprintf(out, REPORT_ROOM, "rank %d: %s", j->failed, text);
    else if (child_blames(c) && verdict)
        snprintf(out, REPORT_ROOM, "%s", verdict);
    else
        put_end(j, out);
    if (child_blames(c) || j->failed == j->overdue) put_stopped(j, out);
}

/* Prints the reports of other ranks unless they are consequences of the reported failure. */
static void print_others(struct job *j)
{
    const char *text = report_of(&j->child[j->failed]);

    for (int i = 0; i < j->n; i++) {
        struct child *c = &j->child[i];
        const char *its = report_of(c);

        if (i == j->failed || !child_failed(c) || child_blames(c)) continue;
        if (its && names_rank(its, j->failed)) continue; /* a consequence: it names the rank at fault */
        if (!its || !text || strcmp(its, text) != 0) rank_output_release(&c->output, &j->console);
    }
}

/* `rank` has shared its own error with the others. Returns its exit code, or 1 if it was killed after that. */
static int settle_named(struct job *j, const char *line, int rank)
{
    const struct child *c = &j->child[rank];
    int code = c->signal || !c->code ? 1 : c->code;

    j->failed = rank;
    print_others(j);
    if (!j->forced) {
        ls_fail(LS_EPEER, "%s", line);
        return code;
    }
    ls_fail(LS_EPEER, "%s; all ranks were killed by a second signal after signal %d (%s)", line, j->leave, strsignal(j->leave));
    return 128 + j->leave;
}

int report_settle(struct job *j)
{
    char report[REPORT_ROOM];
    int rank;
    const char *named = region_named(j->region, &rank);

    if (named) return settle_named(j, named, rank);

    if (j->failed >= 0) {
        follow_blame(j);
        const struct child *c = &j->child[j->failed];

        put_report(j, report);
        print_others(j);
        ls_fail(LS_EPEER, "%s", report);
        return !c->signal ? c->code : c->signal == j->leave ? 128 + c->signal : EXIT_PEER;
    }
    if (!j->forced) return 0;
    ls_fail(LS_EPEER, "all ranks were killed by a second signal after signal %d (%s)", j->leave, strsignal(j->leave));
    return 128 + j->leave;
}
