/* lab.c - runs a lab and prints its rows. */
#include "lab.h"

#include <sched.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lockstep/machine.h"

static const char *const verdict_names[LAB_VERDICTS] = { "holds", "corrected", "not measurable here", "does not hold" };

struct claim {
    const char *id, *program, *text;
};

/* A missing number is NAN. relation: '=' equal within the tolerance relative to the number (to 1 if it is 0), '<' below it, '>' above it.
 */
struct row {
    const char *what;
    char relation;
    double claimed, expected, measured, tolerance;
    enum lab_verdict verdict;
    const char *why;
};

enum { RESULTS_MOST = 8 };

/* The running lab. */
static struct {
    const struct lab *lab;
    const char *const *options;
    const struct claim *claim;
    struct lab_result result[RESULTS_MOST];
    int rows[LAB_VERDICTS], results, broken, json, written;
} lab_now;

const char *lab_verdict_name(enum lab_verdict v) { return verdict_names[v]; }

int lab_begin(const struct lab *l, const char *const *options, int json)
{
    memset(&lab_now, 0, sizeof lab_now);
    lab_now.lab = l;
    lab_now.options = options;
    lab_now.json = json;
    return l->run();
}

long lab_size(const char *name)
{
    const struct lab_size *s = lab_now.lab->sizes;

    while (s->name && strcmp(s->name, name) != 0) s++;
    if (s->name) return s->value;
    fprintf(stderr, "lab %s has no size %s\n", lab_now.lab->name, name);
    exit(1);
}

const char *const *lab_options(void) { return lab_now.options; }

const char *lab_option(const char *name)
{
    const char *value = NULL;
    size_t n = strlen(name);

    for (const char *const *o = lab_now.options; *o; o++)
        if (strncmp(*o + 2, name, n) == 0 && (*o)[2 + n] == '=') value = *o + 3 + n;
    return value;
}

void lab_say(const char *fmt, ...)
{
    va_list a;

    if (lab_now.json) return;
    va_start(a, fmt);
    vprintf(fmt, a);
    va_end(a);
}

int lab_results(const struct lab_result **out)
{
    *out = lab_now.result;
    return lab_now.results;
}

/* ---- rows ---- */

static int row_meets(char relation, double number, double measured, double tolerance)
{
    if (relation == '<') return measured < number;
    if (relation == '>') return measured > number;
    return fabs(measured - number) <= tolerance * (number != 0 ? fabs(number) : 1);
}

/* Where the unit of a row's text begins: at " [bytes]" at its end, else at its end. */
static size_t unit_at(const char *what)
{
    const char *at = strrchr(what, '[');
    size_t length = strlen(what);

    return at && at > what + 1 && at[-1] == ' ' && what[length - 1] == ']' ? (size_t)(at - 1 - what) : length;
}

static void put_json_text(FILE *f, const char *key, const char *text, size_t length)
{
    fprintf(f, "\"%s\":\"", key);
    for (size_t i = 0; i < length; i++) fprintf(f, text[i] == '"' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
    fprintf(f, "\",");
}

static void put_json_number(FILE *f, const char *key, double x)
{
    fprintf(f, isfinite(x) ? "\"%s\":%.10g," : "\"%s\":null,", key, x);
}

static void put_json_to(FILE *f, const struct row *r)
{
    size_t end = unit_at(r->what), length = strlen(r->what);

    fprintf(f, "{\"claim\":\"%s\",\"program\":\"%s\",", lab_now.claim->id, lab_now.claim->program);
    put_json_text(f, "what", r->what, end);
    put_json_text(f, "unit", end < length ? r->what + end + 2 : "", end < length ? length - end - 3 : 0);
    fprintf(f, "\"relation\":\"%c\",", r->relation);
    put_json_number(f, "claimed", r->claimed);
    put_json_number(f, "expected", r->expected);
    put_json_number(f, "measured", r->measured);
    put_json_number(f, "tolerance", r->tolerance);
    put_json_text(f, "why", r->why, strlen(r->why));
    fprintf(f, "\"verdict\":\"%s\"}\n", verdict_names[r->verdict]);
}

static void put_json(const struct row *r)
{
    const char *path = getenv("LAB_JSON");
    FILE *f = path ? fopen(path, lab_now.written++ ? "a" : "w") : NULL;

    if (lab_now.json) put_json_to(stdout, r);
    if (path && !f) {
        perror(path);
        exit(1);
    }
    if (!f) return;
    put_json_to(f, r);
    fclose(f);
}

static void put_number(char relation, double x)
{
    char text[32] = "-";

    if (isfinite(x)) snprintf(text, sizeof text, "%s%.6g", relation == '<' ? "< " : relation == '>' ? "> " : "", x);
    printf(" %12s", text);
}

static void put_row(const struct row *r)
{
    if (!lab_now.json) {
        printf("%-78s", r->what);
        put_number(r->relation, r->claimed);
        put_number(isfinite(r->claimed) ? '=' : r->relation, r->expected);
        put_number('=', r->measured);
        printf("  %s\n", verdict_names[r->verdict]);
        if (r->why[0]) printf("    %s\n", r->why);
    }
    lab_now.rows[r->verdict]++;
    lab_now.broken += r->verdict == LAB_DOES_NOT_HOLD;
    put_json(r);
}

static void judge(char relation, const char *what, double claimed, double expected, double measured, double tolerance)
{
    int good = row_meets(relation, isfinite(claimed) ? claimed : expected, measured, tolerance);

    put_row(&(struct row){ what, relation, claimed, expected, measured, tolerance, good ? LAB_HOLDS : LAB_DOES_NOT_HOLD, "" });
}

void lab_equal(const char *what, double claimed, double measured, double tolerance)
{
    judge('=', what, claimed, NAN, measured, tolerance);
}

void lab_below(const char *what, double claimed, double measured) { judge('<', what, claimed, NAN, measured, 0); }
void lab_above(const char *what, double claimed, double measured) { judge('>', what, claimed, NAN, measured, 0); }

void lab_check(const char *what, double expected, double measured, double tolerance)
{
    judge('=', what, NAN, expected, measured, tolerance);
}

void lab_check_below(const char *what, double limit, double measured) { judge('<', what, NAN, limit, measured, 0); }
void lab_check_above(const char *what, double limit, double measured) { judge('>', what, NAN, limit, measured, 0); }

void lab_corrected(const char *what, char relation, double claimed, double expected, double measured, double tolerance, const char *why)
{
    int missed = !row_meets(relation, claimed, measured, tolerance), met = row_meets('=', expected, measured, tolerance);

    put_row(&(struct row){ what, relation, claimed, expected, measured, tolerance, missed && met ? LAB_CORRECTED : LAB_DOES_NOT_HOLD,
                            why });
}

void lab_not_measurable(const char *what, const char *why)
{
    put_row(&(struct row){ what, '=', NAN, NAN, NAN, NAN, LAB_NOT_MEASURABLE, why });
}

/* ---- claims ---- */

static void claim_end(void)
{
    const int *n = lab_now.rows;
    enum lab_verdict v = LAB_NOT_MEASURABLE;

    if (!lab_now.claim) return;
    if (n[LAB_HOLDS]) v = LAB_HOLDS;
    if (n[LAB_CORRECTED]) v = LAB_CORRECTED;
    if (n[LAB_DOES_NOT_HOLD]) v = LAB_DOES_NOT_HOLD;
    int in_part = n[LAB_NOT_MEASURABLE] && v != LAB_NOT_MEASURABLE;
    if (lab_now.results < RESULTS_MOST) lab_now.result[lab_now.results++] = (struct lab_result){ lab_now.claim->id, v, in_part };
    lab_say("\n%s: %s%s (%d rows hold", lab_now.claim->id, verdict_names[v], in_part ? "; in part not measurable here" : "", n[LAB_HOLDS]);
    for (int k = LAB_CORRECTED; k < LAB_VERDICTS; k++)
        if (n[k]) lab_say(", %d %s", n[k], verdict_names[k]);
    lab_say(")\n");
    memset(lab_now.rows, 0, sizeof lab_now.rows);
    lab_now.claim = NULL;
}

void lab_open(const char *id)
{
#define LAB_CLAIM_ROW(id_, program_, text_) { id_, program_, text_ },
    static const struct claim claims[] = { LAB_CLAIM_MAP(LAB_CLAIM_ROW) };

    if (lab_now.claim) {
        claim_end();
        lab_say("\n");
    }
    for (size_t i = 0; i < sizeof claims / sizeof *claims && !lab_now.claim; i++)
        if (strcmp(claims[i].id, id) == 0 && strcmp(claims[i].program, lab_now.lab->name) == 0) lab_now.claim = &claims[i];
    if (!lab_now.claim) {
        fprintf(stderr, "lab_claims.h has no claim %s of %s\n", id, lab_now.lab->name);
        exit(1);
    }
    lab_say("%s: %s\n\n%-78s %12s %12s %12s\n", id, lab_now.claim->text, "", "claimed", "expected", "measured");
}

int lab_close(void)
{
    claim_end();
    return lab_now.broken != 0;
}

/* ---- plans ---- */

/* Plans that were read before: a lab asks for several numbers of each. */
enum { PLANS = 16, PLAN_OPTIONS = 800, PLAN_ROOM = 16384 };
static struct {
    char options[PLAN_OPTIONS], json[PLAN_ROOM];
} plans[PLANS];

/* Runs this process's own executable as `lockstep plan`. */
static void plan_read(const char *options, char *out, size_t room)
{
    char command[PLAN_OPTIONS + 64];
    size_t bytes = 0;

    snprintf(command, sizeof command, "/proc/%d/exe plan %s --json", (int)getpid(), options);
    fflush(stdout);
    FILE *f = popen(command, "r");
    if (f) bytes = fread(out, 1, room - 1, f);
    out[bytes] = '\0';
    if (f && pclose(f) == 0 && bytes) return;
    fprintf(stderr, "lab %s: this failed: lockstep plan %s\n", lab_now.lab->name, options);
    exit(1);
}

static const char *plan_find(const char *options)
{
    static int oldest;

    for (int i = 0; i < PLANS; i++)
        if (strcmp(plans[i].options, options) == 0) return plans[i].json;
    int i = oldest++ % PLANS;
    plan_read(options, plans[i].json, PLAN_ROOM);
    strcpy(plans[i].options, options);
    return plans[i].json;
}

double lab_plan(const char *key, const char *fmt, ...)
{
    char options[PLAN_OPTIONS];
    va_list a;

    va_start(a, fmt);
    int n = vsnprintf(options, sizeof options, fmt, a);
    va_end(a);
    if (n >= (int)sizeof options) {
        fprintf(stderr, "lab %s: the options of a plan are too long: %s\n", lab_now.lab->name, options);
        exit(1);
    }
    double number = lab_json(plan_find(options), key);
    if (!isnan(number)) return number;
    fprintf(stderr, "lab %s: a plan has no number %s\n", lab_now.lab->name, key);
    exit(1);
}

/* ---- ranks ---- */

/* The first of the hardware threads that share a processor's core. */
static int first_of_core(int processor)
{
    char path[96];
    int first = processor;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    FILE *f = fopen(path, "r");
    if (!f) return first;
    if (fscanf(f, "%d", &first) != 1) first = processor;
    fclose(f);
    return first;
}

/* The processors that this process may use: one of each core, then the others. Returns how many there are; *cores: how many cores. */
static int processors_of(int processor[CPU_SETSIZE], int *cores)
{
    unsigned char seen[CPU_SETSIZE] = { 0 }, again[CPU_SETSIZE] = { 0 };
    cpu_set_t may;
    int n = 0;

    CPU_ZERO(&may);
    *cores = 0;
    if (sched_getaffinity(0, sizeof may, &may) != 0) return 0;
    for (int p = 0; p < CPU_SETSIZE; p++) {
        int first = CPU_ISSET(p, &may) ? first_of_core(p) : -1;

        if (first < 0) continue;
        if (first >= CPU_SETSIZE || seen[first]++) again[p] = 1;
        else processor[n++] = p;
    }
    *cores = n;
    for (int p = 0; p < CPU_SETSIZE; p++)
        if (again[p]) processor[n++] = p;
    return n;
}

int lab_cores(void)
{
    int processor[CPU_SETSIZE], cores;
    ls_machine m;

    processors_of(processor, &cores);
    TRY(ls_machine_this(&m));
    return cores < m.processors ? cores : m.processors;
}

void lab_one_core(int rank)
{
    int processor[CPU_SETSIZE], cores, n = processors_of(processor, &cores);
    cpu_set_t one;

    if (n == 0) return;
    CPU_ZERO(&one);
    CPU_SET(processor[rank % n], &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void rank_child(const char *where, int rank, int n, lab_rank *run, void *shared)
{
    ls_comm *comm;

    lab_one_core(rank);
    TRY(ls_comm_open(where, rank, n, &comm));
    run(comm, rank, n, shared);
    ls_comm_close(&comm);
    fflush(stdout);
    _exit(0);
}

void lab_ranks(int n, lab_rank *run, void *shared)
{
    static int worlds;
    char where[64];
    int failed = 0, status;

    snprintf(where, sizeof where, "shm:lab-%d-%d", (int)getpid(), worlds++);
    fflush(stdout);
    for (int r = 0; r < n; r++) {
        pid_t child = fork();

        if (child == 0) rank_child(where, r, n, run, shared);
        if (child < 0) exit(1);
    }
    for (int r = 0; r < n; r++) failed += wait(&status) < 0 || status != 0;
    if (failed) exit(1);
}

void *lab_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) exit(1);
    return p;
}

void lab_unshare(void *shared, size_t bytes) { munmap(shared, bytes); }
