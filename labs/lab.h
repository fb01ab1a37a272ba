/* lab.h - what every lab needs: a claim's number beside the measured one, and a verdict for each.
 *
 *   holds                 what is measured is the claimed number, or on the claimed side of it
 *   corrected             the claim is wrong or imprecise: another number, derived beforehand, is measured; the reason is printed
 *   not measurable here   this machine cannot show it; why, and what would be needed, is printed. Nothing is asserted
 *   does not hold         none of these: the system is wrong, or the lab. This alone fails the lab (exit status 1)
 *
 * A row without a claimed number is a check: what must be true as well for the rows of the claim to mean something. Numbers that are
 * asserted are counts, bytes and ratios of them, never seconds: ranks share cores here.
 *
 * The text of a row may end in its unit: "state of a rank [bytes]". With LAB_JSON=FILE in the environment each row is also written to
 * FILE, a JSON object a line (tools/labs.sh makes docs/labs.md from them). Keys in this order: claim, program, what, unit, relation,
 * claimed, expected, measured, tolerance, why, verdict; a number that does not exist is null. */
#ifndef LAB_H
#define LAB_H

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lab_claims.h"
#include "lockstep/comm.h"
#include "lockstep/status.h"

#define SIZES(...) (int)(sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t)), (size_t[]){ __VA_ARGS__ }

/* Ends the program when a call of the library fails. */
#define TRY(call)                                                              \
    do {                                                                       \
        if ((call) < 0) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ls_errmsg());   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* ---- verdicts ---- */

enum lab_verdict { LAB_HOLDS, LAB_CORRECTED, LAB_NOT_MEASURABLE, LAB_DOES_NOT_HOLD, LAB_VERDICTS };

static const char *const lab_verdict_names[LAB_VERDICTS] = { "holds", "corrected", "not measurable here", "does not hold" };

struct lab_claim { const char *id, *program, *text; };

/* A number that does not exist is NAN. relation: '=' to within tolerance of the number (of 1 where it is 0), '<' below it, '>' above it. */
struct lab_row {
    const char *what;
    char relation;
    double claimed, expected, measured, tolerance;
    enum lab_verdict verdict;
    const char *why;
};

static struct { const struct lab_claim *claim; int rows[LAB_VERDICTS], broken; } lab;

static inline int lab_meets(char relation, double number, double measured, double tolerance)
{
    if (relation == '<') return measured < number;
    if (relation == '>') return measured > number;
    return fabs(measured - number) <= tolerance * (number != 0 ? fabs(number) : 1);
}

/* Where the unit of a row's text begins: at " [bytes]" at its end, else at its end. */
static inline size_t lab_unit(const char *what)
{
    const char *at = strrchr(what, '[');
    size_t length = strlen(what);

    return at && at > what + 1 && at[-1] == ' ' && what[length - 1] == ']' ? (size_t)(at - 1 - what) : length;
}

static inline void lab_json_text(FILE *f, const char *key, const char *text, size_t length)
{
    fprintf(f, "\"%s\":\"", key);
    for (size_t i = 0; i < length; i++) fprintf(f, text[i] == '"' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
    fprintf(f, "\",");
}

static inline void lab_json_number(FILE *f, const char *key, double x)
{
    fprintf(f, isfinite(x) ? "\"%s\":%.10g," : "\"%s\":null,", key, x);
}

static inline void lab_json(const struct lab_row *r)
{
    static int begun;
    const char *path = getenv("LAB_JSON");
    FILE *f = path ? fopen(path, begun++ ? "a" : "w") : NULL;
    size_t end = lab_unit(r->what), length = strlen(r->what);

    if (path && !f) {
        perror(path);
        exit(1);
    }
    if (!f) return;
    fprintf(f, "{\"claim\":\"%s\",\"program\":\"lab_%s\",", lab.claim->id, lab.claim->program);
    lab_json_text(f, "what", r->what, end);
    lab_json_text(f, "unit", end < length ? r->what + end + 2 : "", end < length ? length - end - 3 : 0);
    fprintf(f, "\"relation\":\"%c\",", r->relation);
    lab_json_number(f, "claimed", r->claimed);
    lab_json_number(f, "expected", r->expected);
    lab_json_number(f, "measured", r->measured);
    lab_json_number(f, "tolerance", r->tolerance);
    lab_json_text(f, "why", r->why, strlen(r->why));
    fprintf(f, "\"verdict\":\"%s\"}\n", lab_verdict_names[r->verdict]);
    fclose(f);
}

static inline void lab_put_number(char relation, double x)
{
    char text[32] = "-";

    if (isfinite(x)) snprintf(text, sizeof text, "%s%.6g", relation == '<' ? "< " : relation == '>' ? "> " : "", x);
    printf(" %12s", text);
}

static inline void lab_put(const struct lab_row *r)
{
    printf("%-78s", r->what);
    lab_put_number(r->relation, r->claimed);
    lab_put_number(isfinite(r->claimed) ? '=' : r->relation, r->expected);
    lab_put_number('=', r->measured);
    printf("  %s\n", lab_verdict_names[r->verdict]);
    if (r->why[0]) printf("    %s\n", r->why);
    lab.rows[r->verdict]++;
    lab.broken += r->verdict == LAB_DOES_NOT_HOLD;
    lab_json(r);
}

static inline void lab_judge(char relation, const char *what, double claimed, double expected, double measured, double tolerance)
{
    int good = lab_meets(relation, isfinite(claimed) ? claimed : expected, measured, tolerance);

    lab_put(&(struct lab_row){ what, relation, claimed, expected, measured, tolerance, good ? LAB_HOLDS : LAB_DOES_NOT_HOLD, "" });
}

/* Of the claim: its number is measured, to within `tolerance` of it (of 1 when 0 is claimed); or what is measured is on its side. */
static inline void lab_equal(const char *what, double claimed, double measured, double tolerance)
{
    lab_judge('=', what, claimed, NAN, measured, tolerance);
}

static inline void lab_below(const char *what, double claimed, double measured) { lab_judge('<', what, claimed, NAN, measured, 0); }
static inline void lab_above(const char *what, double claimed, double measured) { lab_judge('>', what, claimed, NAN, measured, 0); }

/* Not of the claim: what must be true as well. */
static inline void lab_check(const char *what, double expected, double measured, double tolerance)
{
    lab_judge('=', what, NAN, expected, measured, tolerance);
}

static inline void lab_check_below(const char *what, double limit, double measured) { lab_judge('<', what, NAN, limit, measured, 0); }
static inline void lab_check_above(const char *what, double limit, double measured) { lab_judge('>', what, NAN, limit, measured, 0); }

/* What is claimed (relation as in struct lab_row) is not so: `expected` is, to within the tolerance; why says where it comes from. The
 * claim must be missed and the expectation met, or the correction is wrong itself. */
static inline void lab_corrected(const char *what, char relation, double claimed, double expected, double measured, double tolerance,
                                 const char *why)
{
    int missed = !lab_meets(relation, claimed, measured, tolerance), met = lab_meets('=', expected, measured, tolerance);

    lab_put(&(struct lab_row){ what, relation, claimed, expected, measured, tolerance, missed && met ? LAB_CORRECTED : LAB_DOES_NOT_HOLD,
                               why });
}

/* why: and what would be needed */
static inline void lab_not_measurable(const char *what, const char *why)
{
    lab_put(&(struct lab_row){ what, '=', NAN, NAN, NAN, NAN, LAB_NOT_MEASURABLE, why });
}

static inline void lab_summary(void)
{
    const int *n = lab.rows;
    enum lab_verdict v = LAB_NOT_MEASURABLE;

    if (!lab.claim) return;
    if (n[LAB_HOLDS]) v = LAB_HOLDS;
    if (n[LAB_CORRECTED]) v = LAB_CORRECTED;
    if (n[LAB_DOES_NOT_HOLD]) v = LAB_DOES_NOT_HOLD;
    printf("\n%s: %s%s (%d rows hold", lab.claim->id, lab_verdict_names[v],
           n[LAB_NOT_MEASURABLE] && v != LAB_NOT_MEASURABLE ? "; in part not measurable here" : "", n[LAB_HOLDS]);
    for (int k = LAB_CORRECTED; k < LAB_VERDICTS; k++)
        if (n[k]) printf(", %d %s", n[k], lab_verdict_names[k]);
    printf(")\n");
    memset(lab.rows, 0, sizeof lab.rows);
    lab.claim = NULL;
}

/* Begins a claim of lab_claims.h, which names this program for it. */
#define lab_open(id) lab_open_in(id, __FILE__)
static inline void lab_open_in(const char *id, const char *file)
{
#define LAB_CLAIM_ROW(id_, program_, text_) { id_, program_, text_ },
    static const struct lab_claim claims[] = { LAB_CLAIM_MAP(LAB_CLAIM_ROW) };

    if (lab.claim) {
        lab_summary();
        printf("\n");
    }
    for (size_t i = 0; i < sizeof claims / sizeof *claims && !lab.claim; i++)
        if (strcmp(claims[i].id, id) == 0 && strstr(file, claims[i].program)) lab.claim = &claims[i];
    if (!lab.claim) {
        fprintf(stderr, "lab_claims.h has no claim %s of %s\n", id, file);
        exit(1);
    }
    printf("%s: %s\n\n%-78s %12s %12s %12s\n", id, lab.claim->text, "", "claimed", "expected", "measured");
}

static inline int lab_close(void)
{
    lab_summary();
    return lab.broken != 0;
}

/* ---- ranks ---- */

/* Ranks that share a machine share its cores: this one keeps to one of those that it may use, and so does its team. */
static inline void lab_one_core(int rank)
{
    cpu_set_t may, one;
    int turn;

    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof may, &may) != 0) return;
    turn = rank % CPU_COUNT(&may);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &may) && turn-- == 0) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* What a rank does. shared: of lab_shared(), the same memory in all of them. */
typedef void lab_rank(ls_comm *comm, int rank, int n, void *shared);

static inline void lab_child(const char *where, int rank, int n, lab_rank *run, void *shared)
{
    ls_comm *comm;

    lab_one_core(rank);
    TRY(ls_comm_open(where, rank, n, &comm));
    run(comm, rank, n, shared);
    ls_comm_close(&comm);
    fflush(stdout);
    _exit(0);
}

/* Runs n ranks as processes over shared memory. They leave in shared what they found. Before the lab itself compiles a program:
 * they inherit how many threads it computes on. */
static inline void lab_ranks(int n, lab_rank *run, void *shared)
{
    static int worlds;
    char where[64];
    int failed = 0, status;

    snprintf(where, sizeof where, "shm:lab-%d-%d", (int)getpid(), worlds++);
    fflush(stdout);
    for (int r = 0; r < n; r++) {
        pid_t child = fork();

        if (child == 0) lab_child(where, r, n, run, shared);
        if (child < 0) exit(1);
    }
    for (int r = 0; r < n; r++) failed += wait(&status) < 0 || status != 0;
    if (failed) exit(1);
}

/* Zeroed memory that lab_ranks()'s ranks share. */
static inline void *lab_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) exit(1);
    return p;
}

#endif
