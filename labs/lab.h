/* lab.h - shared by all labs: prints a claim's number next to the measured one, and a verdict for each.
 *
 *   holds                 what is measured is the claimed number, or on the claimed side of it
 *   corrected             the claim is wrong or imprecise: another number, derived beforehand, is measured; the reason is printed
 *   not measurable here   this machine cannot show it; why, and what would be needed, is printed. Nothing is asserted
 *   does not hold         none of these: the system is wrong, or the lab. This alone fails the lab (exit status 1)
 *
 * A row without a claimed number is a check: what must be true as well for the rows of the claim to mean something. Numbers that are
 * asserted are counts, bytes, ratios of them, and what a plan says, never measured seconds: ranks share cores here. A delay that a lab
 * injects is a lower bound; of seconds of the same step it counts in how many one is longer.
 *
 * A lab is a file of this folder that uses the public headers only, and a part of the command: `lockstep lab p2`. It begins claims of
 * lab_claims.h by lab_open(), prints their rows, and returns lab_close(). The text of a row may end in its unit: "state of a rank [bytes]".
 */
#ifndef LAB_H
#define LAB_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lab_claims.h"
#include "lockstep/comm.h"
#include "lockstep/status.h"

#define SIZES(...) (int)(sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t)), (size_t[]){ __VA_ARGS__ }

/* Ends the process when a call of the library fails. */
#define TRY(call)                                                              \
    do {                                                                       \
        if ((call) < 0) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ls_errmsg());   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* ---- a lab ---- */

/* A size that the user may choose, as --NAME=VALUE. */
struct lab_size {
    const char *name, *text;
    long value, low, high;
};
struct lab {
    const char *name, *title; /* name of the file; title in a few words */
    int (*run)(void);         /* 0, or 1 if a claim does not hold */
    struct lab_size *sizes;   /* ended by one without a name */
    const char *options;      /* sections of the options of `train` that its runs take, as "model data"; NULL: none */
};

/* LAB(p2_bubble, "bubbles of pipelines", { "stages", "stages of the pipeline", 4, 2, 64 }) { .. return lab_close(); } */
#define LAB(name_, ...) LAB_(name_, NULL, __VA_ARGS__, { NULL, NULL, 0, 0, 0 })
/* The same for a lab that trains the user's model: LAB_TRAINS(d8_central, "model data", "one process ..", { "ranks", .. }) */
#define LAB_TRAINS(name_, options_, ...) LAB_(name_, options_, __VA_ARGS__, { NULL, NULL, 0, 0, 0 })
#define LAB_(name_, options_, title_, ...)                                                           \
    static int lab_run(void);                                                                        \
    static struct lab_size lab_sizes[] = { __VA_ARGS__ };                                            \
    const struct lab lab_##name_ = { #name_, title_, lab_run, lab_sizes, options_ };                 \
    static int lab_run(void)

extern const struct lab *const lab_list[]; /* made by CMakeLists.txt of the files; ended by NULL */

/* Runs it with these options of the user, "--section.key=value", ended by NULL; json: rows on standard output as JSON objects, a line each,
 * and nothing else there. With LAB_JSON=FILE in the environment they are also written to FILE. Keys in this order: claim, program, what,
 * unit, relation, claimed, expected, measured, tolerance, why, verdict; a number that does not exist is null. */
int lab_begin(const struct lab *l, const char *const *options, int json);
long lab_size(const char *name);          /* a size of the running lab */
const char *const *lab_options(void);     /* the user's options, ended by NULL */
const char *lab_option(const char *name); /* the user's value of "section.key"; NULL: not given */

/* ---- verdicts ---- */

enum lab_verdict { LAB_HOLDS, LAB_CORRECTED, LAB_NOT_MEASURABLE, LAB_DOES_NOT_HOLD, LAB_VERDICTS };
const char *lab_verdict_name(enum lab_verdict v);

/* Begins a claim of lab_claims.h, which names this lab for it. */
void lab_open(const char *id);
int lab_close(void);

/* Rows of the claim: the measured number equals the claimed one within `tolerance` relative to it (to 1 if 0 is claimed), or is on the
 * claimed side of it. */
void lab_equal(const char *what, double claimed, double measured, double tolerance);
void lab_below(const char *what, double claimed, double measured);
void lab_above(const char *what, double claimed, double measured);
/* Checks: what must hold in addition to the claim. */
void lab_check(const char *what, double expected, double measured, double tolerance);
void lab_check_below(const char *what, double limit, double measured);
void lab_check_above(const char *what, double limit, double measured);
/* The claimed relation ('=', '<' or '>') is false: the number is `expected` within the tolerance; `why` gives the reason. The claim
 * must be missed and the expectation met, or the correction is wrong itself. */
void lab_corrected(const char *what, char relation, double claimed, double expected, double measured, double tolerance, const char *why);
void lab_not_measurable(const char *what, const char *why); /* why: the reason, and what would be needed */
/* Prints a line for the reader: tables, intermediate results. Nothing is printed with --json. */
void lab_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- plans ---- */

/* The number at the path `key` of what `lockstep plan --json` says of these options:
 * lab_plan("memory.total", "-n %d --parallel.zero=3", n). True is 1. Ends the process if the plan fails. */
double lab_plan(const char *key, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The number at a path of JSON: "cost.sent" of {"cost":{"sent":1}}, "[0].wrong" of [{"wrong":2}]; true is 1, false 0; NAN: not found,
 * or the text is empty. Ends the process if the text is not JSON. The command has the reader (src/cli/lab_json.c). */
double lab_json(const char *text, const char *path);

/* The claims that a lab measured since lab_begin(): their ids and verdicts. */
struct lab_result {
    const char *id;
    enum lab_verdict verdict;
    int in_part; /* some rows cannot be measured here */
};
int lab_results(const struct lab_result **out);

/* ---- ranks ---- */

/* The function of a rank. shared: memory from lab_shared(), the same in all ranks. */
typedef void lab_rank(ls_comm *comm, int rank, int n, void *shared);

/* Runs n ranks as processes over shared memory. They write their results to `shared`. Call it before the lab compiles a program itself,
 * because ranks inherit its number of threads. */
void lab_ranks(int n, lab_rank *run, void *shared);
void *lab_shared(size_t bytes); /* zeroed memory that they share */
void lab_unshare(void *shared, size_t bytes);
void lab_one_core(int rank);    /* keeps the calling rank to one of the processors that it may use, by turns, of different cores first */
int lab_cores(void);            /* ranks that can each have a core of this machine to themselves */

#endif
