/* history.c - reviews in SQLite. */
#include "learn/history.h"

#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

enum { VERSION = 1, BUSY_MS = 5000 };

struct history {
    sqlite3 *db;
    char *path;
};

char *history_path(void)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");

    if (data && data[0]) return file_path("%s/lockstep/learn.db", data);
    if (home && home[0]) return file_path("%s/.local/share/lockstep/learn.db", home);
    ls_fail(LS_EINVAL, "neither XDG_DATA_HOME nor HOME is set: there is no folder for the history");
    return NULL;
}

static ls_status fail_history(const history *h)
{
    int code = sqlite3_errcode(h->db);
    ls_status st = code == SQLITE_NOTADB || code == SQLITE_CORRUPT ? LS_EFORMAT : code == SQLITE_NOMEM ? LS_ENOMEM : LS_EIO;

    return ls_fail(st, "%s: %s", h->path, sqlite3_errmsg(h->db));
}

static ls_status history_run(history *h, const char *sql)
{
    return sqlite3_exec(h->db, sql, NULL, NULL, NULL) == SQLITE_OK ? LS_OK : fail_history(h);
}

static ls_status read_version(history *h, int *out)
{
    sqlite3_stmt *s = NULL;
    ls_status st = LS_OK;

    if (sqlite3_prepare_v2(h->db, "PRAGMA user_version", -1, &s, NULL) != SQLITE_OK || sqlite3_step(s) != SQLITE_ROW)
        st = fail_history(h);
    else
        *out = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return st;
}

/* The table and its version in one transaction: two processes may open a new database at once. */
static ls_status make_table(history *h, bool write)
{
    int version = 0;

    LS_TRY(history_run(h, "PRAGMA synchronous = FULL"));
    LS_TRY(read_version(h, &version));
    if (version == VERSION) return write ? history_run(h, "BEGIN IMMEDIATE; ROLLBACK") : LS_OK; /* whether it can be written */
    if (version != 0)
        return ls_fail(LS_EFORMAT, "%s: was written by a newer lockstep (format %d; this one reads %d)", h->path, version, VERSION);
    return history_run(h, "BEGIN IMMEDIATE;"
                          "CREATE TABLE IF NOT EXISTS review (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, card TEXT NOT NULL,"
                          " sizes TEXT NOT NULL, mode TEXT NOT NULL, predicted REAL, measured REAL, rating INTEGER NOT NULL);"
                          "CREATE INDEX IF NOT EXISTS review_card ON review (card);"
                          "PRAGMA user_version = 1;"
                          "COMMIT");
}

static ls_status make_folder_of(const char *path)
{
    char *folder = mem_strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    ls_status st = LS_OK;

    if (!folder) return LS_ENOMEM;
    if (slash && slash != folder) *slash = '\0', st = file_make_folders(folder);
    mem_free(folder);
    return st;
}

ls_status history_open(const char *path, bool write, history **out)
{
    history *h = mem_zalloc(MEM_OTHER, sizeof *h);
    ls_status st = h && (h->path = mem_strdup(path)) ? make_folder_of(path) : LS_ENOMEM;

    *out = NULL;
    if (st == LS_OK && sqlite3_open(path, &h->db) != SQLITE_OK) st = fail_history(h);
    if (st == LS_OK) {
        sqlite3_busy_timeout(h->db, BUSY_MS);
        st = make_table(h, write);
    }
    if (st == LS_OK)
        *out = h;
    else
        history_close(&h);
    return st;
}

void history_close(history **h)
{
    if (!*h) return;
    sqlite3_close((*h)->db);
    mem_free((*h)->path);
    mem_free(*h);
    *h = NULL;
}

static void bind_real(sqlite3_stmt *s, int column, double x)
{
    if (isnan(x))
        sqlite3_bind_null(s, column);
    else
        sqlite3_bind_double(s, column, x);
}

ls_status history_add(history *h, const struct review *r)
{
    static const char sql[] = "INSERT INTO review (at, card, sizes, mode, predicted, measured, rating) VALUES (?, ?, ?, ?, ?, ?, ?)";
    sqlite3_stmt *s = NULL;
    ls_status st = LS_OK;

    if (sqlite3_prepare_v2(h->db, sql, -1, &s, NULL) != SQLITE_OK) return fail_history(h);
    sqlite3_bind_int64(s, 1, r->at);
    sqlite3_bind_text(s, 2, r->card, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, r->sizes, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 4, r->mode, -1, SQLITE_STATIC);
    bind_real(s, 5, r->predicted);
    bind_real(s, 6, r->measured);
    sqlite3_bind_int(s, 7, r->rating);
    if (sqlite3_step(s) != SQLITE_DONE) st = fail_history(h);
    sqlite3_finalize(s);
    return st;
}

static double column_real(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? NAN : sqlite3_column_double(s, column);
}

/* card NULL: the reviews of all cards. */
static ls_status each_review(history *h, const char *card, history_fn *fn, void *ctx)
{
    static const char sql[] =
        "SELECT at, card, sizes, mode, predicted, measured, rating FROM review WHERE ?1 IS NULL OR card = ?1 ORDER BY id";
    sqlite3_stmt *s = NULL;
    ls_status st = LS_OK;
    int step;

    if (sqlite3_prepare_v2(h->db, sql, -1, &s, NULL) != SQLITE_OK) return fail_history(h);
    sqlite3_bind_text(s, 1, card, -1, SQLITE_STATIC);
    while (st == LS_OK && (step = sqlite3_step(s)) != SQLITE_DONE) {
        if (step != SQLITE_ROW) {
            st = fail_history(h);
            break;
        }
        st = fn(ctx, &(struct review){ .at = sqlite3_column_int64(s, 0),
                                       .card = (const char *)sqlite3_column_text(s, 1),
                                       .sizes = (const char *)sqlite3_column_text(s, 2),
                                       .mode = (const char *)sqlite3_column_text(s, 3),
                                       .predicted = column_real(s, 4),
                                       .measured = column_real(s, 5),
                                       .rating = sqlite3_column_int(s, 6) });
    }
    sqlite3_finalize(s);
    return st;
}

ls_status history_each(history *h, history_fn *fn, void *ctx) { return each_review(h, NULL, fn, ctx); }

static ls_status replay_review(void *ctx, const struct review *r)
{
    fsrs_review(ctx, fsrs_grade_of(r->rating), r->at);
    return LS_OK;
}

ls_status history_card(history *h, const char *card, struct fsrs_card *out)
{
    *out = (struct fsrs_card){ 0 };
    return each_review(h, card, replay_review, out);
}
