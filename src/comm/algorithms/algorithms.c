/* algorithms.c - the table of algorithms, and the choice among them by operation, bytes and ranks.
 *
 * A choice is a row (operation, bytes up to, ranks up to, name). Rows are read from the top; the first whose limits hold and whose
 * algorithm supports the call is used: rows of a file first, then the shipped ones. Bytes are those of the complete buffer (n blocks),
 * the same on all ranks; all ranks load the same file before they open a comm.
 *
 * The file is text, at most 1 MiB. Its first line is "lockstep comm table 1" ("lockstep choices 1" in files of earlier versions). Each
 * other line is empty, or a comment after '#', or a row of four words separated by blanks and tabs:
 *     OPERATION   as ls_collective_name() has it
 *     BYTES       as in "4096" or "64KiB", or "-": without limit
 *     RANKS       at least 1, or "-": without limit
 *     NAME        an algorithm of that operation, or "native": the transport's own collective, if it has one ("whole" in files of
 *                 earlier versions)
 * A later row applies beyond the limits of earlier ones. At most TABLE_ROWS_MOST rows.
 */
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/algorithms/alg.h"

enum { TABLE_ROWS_MOST = 1024, FILE_MOST = 1 << 20 };

#define OLD_HEADER "lockstep choices 1"
#define OLD_NATIVE "whole"

static const struct algorithm algorithms[] = {
    { LS_COLLECTIVE_ALL_REDUCE, "ring", false, ring_all_reduce, "sums go around the ring, then results: 2(n-1) messages, 2D(n-1)/n bytes" },
    { LS_COLLECTIVE_ALL_REDUCE, "halving_doubling", false, halving_all_reduce, "2 log2(n) rounds, 2D(n-1)/n bytes" },
    { LS_COLLECTIVE_ALL_REDUCE, "tree", false, tree_all_reduce, "up a binomial tree and down: 2 log2(n) rounds of D bytes" },
    { LS_COLLECTIVE_ALL_REDUCE, "direct", true, direct_all_reduce,
      "all pairs exchange, twice: 2(n-1) messages, 2D(n-1)/n bytes; sums in rank order" },
    { LS_COLLECTIVE_ALL_REDUCE, "central", true, central_all_reduce, "through rank 0, which carries 2D(n-1) bytes; for comparison" },
    { LS_COLLECTIVE_REDUCE_SCATTER, "ring", false, ring_reduce_scatter, "sums go around the ring: n-1 messages, D(n-1)/n bytes" },
    { LS_COLLECTIVE_REDUCE_SCATTER, "halving", false, halving_reduce_scatter, "log2(n) rounds, D(n-1)/n bytes" },
    { LS_COLLECTIVE_REDUCE_SCATTER, "direct", true, direct_reduce_scatter,
      "all pairs exchange: n-1 messages, D(n-1)/n bytes; sums in rank order" },
    { LS_COLLECTIVE_ALL_GATHER, "ring", true, ring_all_gather, "blocks go around the ring: n-1 messages, D(n-1)/n bytes" },
    { LS_COLLECTIVE_ALL_GATHER, "doubling", true, doubling_all_gather, "log2(n) rounds, D(n-1)/n bytes" },
    { LS_COLLECTIVE_ALL_GATHER, "direct", true, direct_all_gather, "all pairs exchange: n-1 messages, D(n-1)/n bytes" },
    { LS_COLLECTIVE_BROADCAST, "tree", true, tree_broadcast, "down a binomial tree: log2(n) rounds of D bytes" },
    { LS_COLLECTIVE_BROADCAST, "scatter_ring", true, scatter_broadcast, "blocks down a tree, then around the ring: 2D(n-1)/n bytes" },
    { LS_COLLECTIVE_BROADCAST, "chain", true, chain_broadcast, "in chunks along a chain: each rank passes D bytes on" },
    { LS_COLLECTIVE_BROADCAST, "direct", true, direct_broadcast, "the root sends to each: n-1 messages of D bytes" },
    { LS_COLLECTIVE_ALL_TO_ALL, "pairwise", true, pairwise_all_to_all, "n-1 exchanges of one block" },
    { LS_COLLECTIVE_BARRIER, "dissemination", true, dissemination_barrier, "log2(n) rounds of one element" },
};

/* algorithm: NULL means the transport's native collective. */
struct choice {
    ls_collective op;
    size_t bytes;
    int ranks;
    const struct algorithm *algorithm;
};

static const struct {
    ls_collective op;
    size_t bytes;
    int ranks;
    const char *name;
} shipped[] = {
    { LS_COLLECTIVE_ALL_REDUCE, 1 << 20, INT32_MAX, "halving_doubling" },
    { LS_COLLECTIVE_ALL_REDUCE, SIZE_MAX, INT32_MAX, "ring" },
    { LS_COLLECTIVE_ALL_REDUCE, SIZE_MAX, INT32_MAX, "direct" }, /* half types fall through to this row */
    { LS_COLLECTIVE_REDUCE_SCATTER, 1 << 20, INT32_MAX, "halving" },
    { LS_COLLECTIVE_REDUCE_SCATTER, SIZE_MAX, INT32_MAX, "ring" },
    { LS_COLLECTIVE_REDUCE_SCATTER, SIZE_MAX, INT32_MAX, "direct" },
    { LS_COLLECTIVE_ALL_GATHER, 1 << 20, INT32_MAX, "doubling" },
    { LS_COLLECTIVE_ALL_GATHER, SIZE_MAX, INT32_MAX, "ring" },
    { LS_COLLECTIVE_BROADCAST, 64 << 10, INT32_MAX, "tree" },
    { LS_COLLECTIVE_BROADCAST, SIZE_MAX, INT32_MAX, "chain" },
    { LS_COLLECTIVE_ALL_TO_ALL, SIZE_MAX, INT32_MAX, "pairwise" },
    { LS_COLLECTIVE_BARRIER, SIZE_MAX, INT32_MAX, "dissemination" },
};

static struct choice tuned[TABLE_ROWS_MOST];
static int tuned_rows;
static struct {
    bool on;
    const struct algorithm *algorithm;
} forced[LS_COLLECTIVES];

const struct algorithm *algorithm_at(int i) { return i >= 0 && i < (int)COUNT_OF(algorithms) ? &algorithms[i] : NULL; }

const struct algorithm *algorithm_named(ls_collective op, const char *name)
{
    for (size_t i = 0; i < COUNT_OF(algorithms); i++)
        if (algorithms[i].op == op && strcmp(algorithms[i].name, name) == 0) return &algorithms[i];
    return NULL;
}

/* ---- the choice ---- */

static bool is_native(const char *name) { return strcmp(name, ALGORITHM_NATIVE) == 0 || strcmp(name, OLD_NATIVE) == 0; }

static bool algorithms_fits(const struct algorithm *a, bool half_sum) { return a && (a->half || !half_sum); }

/* The first row that applies and supports the call, or is the native collective; NULL: none. */
static const struct choice *tuned_row(ls_collective op, size_t bytes, int n, bool half_sum, bool native_too)
{
    for (int i = 0; i < tuned_rows; i++) {
        const struct choice *t = &tuned[i];

        if (t->op != op || bytes > t->bytes || n > t->ranks) continue;
        if (t->algorithm ? algorithms_fits(t->algorithm, half_sum) : native_too) return t;
    }
    return NULL;
}

const struct algorithm *algorithm_choose(ls_collective op, size_t bytes, int n, bool half_sum)
{
    const struct choice *row = tuned_row(op, bytes, n, half_sum, false);

    if (forced[op].on && algorithms_fits(forced[op].algorithm, half_sum)) return forced[op].algorithm;
    if (row) return row->algorithm;
    for (size_t i = 0; i < COUNT_OF(shipped); i++) {
        if (shipped[i].op != op || bytes > shipped[i].bytes || n > shipped[i].ranks) continue;
        const struct algorithm *a = algorithm_named(op, shipped[i].name);
        if (algorithms_fits(a, half_sum)) return a;
    }
    return NULL;
}

bool algorithm_list_first(ls_collective op, size_t bytes, int n, bool half_sum)
{
    const struct choice *row = tuned_row(op, bytes, n, half_sum, true);

    if (forced[op].on) return algorithms_fits(forced[op].algorithm, half_sum);
    return row && row->algorithm;
}

ls_status algorithm_force(ls_collective op, const char *name)
{
    const struct algorithm *a = name ? algorithm_named(op, name) : NULL;
    struct text known = { 0 };

    if (!name || a || is_native(name)) {
        forced[op].on = name != NULL;
        forced[op].algorithm = a;
        return LS_OK;
    }
    for (size_t i = 0; i < COUNT_OF(algorithms); i++)
        if (algorithms[i].op == op) text_put(&known, "%s, ", algorithms[i].name);
    ls_status st = text_status(&known);
    if (st == LS_OK)
        st = ls_fail(LS_EINVAL, "unknown algorithm '%s' for %s; choose one of: %s" ALGORITHM_NATIVE, name, ls_collective_name(op),
                     known.data ? known.data : "");
    text_free(&known);
    return st;
}

/* ---- the file ---- */

static bool read_collective(const char *word, ls_collective *out)
{
    for (int op = 0; op < LS_COLLECTIVES; op++)
        if (strcmp(word, ls_collective_name((ls_collective)op)) == 0) {
            *out = (ls_collective)op;
            return true;
        }
    return false;
}

static bool read_ranks(const char *word, int *out)
{
    int64_t value = INT32_MAX;

    if (strcmp(word, "-") != 0 && (!text_read_int(word, &value) || value < 1 || value > INT32_MAX)) return false;
    *out = (int)value;
    return true;
}

static bool read_size(const char *word, size_t *out)
{
    *out = SIZE_MAX;
    return strcmp(word, "-") == 0 || text_read_bytes(word, out);
}

/* words: the four words of a row; LS_EFORMAT says which one is wrong. */
static ls_status read_row(char *const *word, struct choice *out)
{
    if (!read_collective(word[0], &out->op)) return ls_fail(LS_EFORMAT, "'%s' is not an operation", word[0]);
    if (!read_size(word[1], &out->bytes)) return ls_fail(LS_EFORMAT, "'%s' is neither a number of bytes nor '-'", word[1]);
    if (!read_ranks(word[2], &out->ranks)) return ls_fail(LS_EFORMAT, "'%s' is neither a number of ranks nor '-'", word[2]);
    out->algorithm = algorithm_named(out->op, word[3]);
    if (out->algorithm || is_native(word[3])) return LS_OK;
    return ls_fail(LS_EFORMAT, "%s has no algorithm '%s'", word[0], word[3]);
}

/* Strips the comment from a line and splits it into words. */
static ls_status read_line(char *line, struct choice *rows, int *n)
{
    char *word[5], *rest = NULL;
    int words = 0;

    line[strcspn(line, "#")] = '\0';
    for (char *w = strtok_r(line, " \t\r", &rest); w && words < 5; w = strtok_r(NULL, " \t\r", &rest)) word[words++] = w;
    if (words == 0) return LS_OK;
    if (words != 4)
        return ls_fail(LS_EFORMAT, "%s words in a row; expected operation, bytes, ranks, name", words > 4 ? "too many" : "too few");
    if (*n == TABLE_ROWS_MOST) return ls_fail(LS_EFORMAT, "more than %d rows", TABLE_ROWS_MOST);
    LS_TRY(read_row(word, &rows[*n]));
    ++*n;
    return LS_OK;
}

static ls_status read_lines(const char *path, char *text, size_t bytes, struct choice *rows, int *n)
{
    char *next = strchr(text, '\n');

    if (strlen(text) != bytes) return ls_fail(LS_EFORMAT, "%s: a NUL byte at %zu", path, strlen(text));
    if (next) *next++ = '\0';
    if (strcmp(text, COMM_TABLE_HEADER) != 0 && strcmp(text, OLD_HEADER) != 0)
        return ls_fail(LS_EFORMAT, "%s: the first line is not '" COMM_TABLE_HEADER "'", path);
    for (int number = 2; next; number++) {
        char *line = next;

        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        ls_status st = read_line(line, rows, n);
        if (st != LS_OK) return ls_fail_at(st, "%s: line %d", path, number);
    }
    return LS_OK;
}

static ls_status read_file(const char *path, struct choice *rows, int *n)
{
    struct file_map probe;
    char *text;

    LS_TRY(file_map_open(path, &probe));
    size_t bytes = probe.bytes;
    file_map_close(&probe);
    if (bytes > FILE_MOST) return ls_fail(LS_EFORMAT, "%s: %zu bytes; a comm table has at most %d", path, bytes, FILE_MOST);
    LS_TRY(file_read(path, &text, &bytes));
    ls_status st = read_lines(path, text, bytes, rows, n);
    mem_free(text);
    return st;
}

ls_status algorithm_load_table(const char *path)
{
    struct choice *rows;
    int n = 0;

    if (!path) {
        tuned_rows = 0;
        return LS_OK;
    }
    rows = mem_array(MEM_OTHER, TABLE_ROWS_MOST, sizeof *rows);
    if (!rows) return LS_ENOMEM;
    ls_status st = read_file(path, rows, &n);
    if (st == LS_OK) {
        memcpy(tuned, rows, (size_t)n * sizeof *rows);
        tuned_rows = n;
    }
    mem_free(rows);
    return st;
}
