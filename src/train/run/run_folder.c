/* run_folder.c - the folder that a run writes. */
#include "train/run/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"
#include "train/run/dataset.h"
#include "train/launch/process.h"
#include "train/run/tb_events.h"

static double wall_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* runs/20260131-123456, followed by -2, -3, ... if that exists. */
static char *name_by_time(void)
{
    time_t now = time(NULL);
    struct tm utc;
    char stamp[32];

    gmtime_r(&now, &utc);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &utc);
    char *path = file_path("runs/%s", stamp);
    for (int i = 2; path && file_exists(path); i++) {
        mem_free(path);
        path = file_path("runs/%s-%d", stamp, i);
    }
    return path;
}

static ls_status name_parts(const struct config *c, struct run_folder *r)
{
    r->path = mem_strdup(c->run.dir);
    r->checkpoints = c->checkpoint.dir[0] ? mem_strdup(c->checkpoint.dir) : file_path("%s/checkpoints", c->run.dir);
    r->config = file_path("%s/config.yaml", c->run.dir);
    return r->path && r->checkpoints && r->config ? LS_OK : LS_ENOMEM;
}

ls_status run_folder_name(struct config *c, struct run_folder *out)
{
    struct run_folder r = RUN_FOLDER_NONE;

    if (c->run.dir[0] == '\0') {
        char *path = name_by_time();

        if (!path) return LS_ENOMEM;
        mem_free(c->run.dir);
        c->run.dir = path;
    }
    ls_status st = name_parts(c, &r);
    if (st == LS_OK)
        *out = r;
    else
        run_folder_close(&r);
    return st;
}

void run_folder_close(struct run_folder *r)
{
    append_close(&r->metrics);
    append_close(&r->events);
    append_close(&r->own);
    json_out_free(&r->line);
    mem_free(r->path);
    mem_free(r->checkpoints);
    mem_free(r->config);
    mem_free(r->tokenizer);
    mem_free(r->hosts);
    if (r->lock >= 0) close(r->lock);
    *r = (struct run_folder)RUN_FOLDER_NONE;
    log_close();
}

/* The process that holds the lock writes its id after taking it, so the id may be missing for a moment. */
static ls_status fail_locked(const char *path, int fd)
{
    char number[24] = "";
    ssize_t got = pread(fd, number, sizeof number - 1, 0);

    number[got > 0 ? strspn(number, "0123456789") : 0] = '\0';
    return ls_fail(LS_EINVAL, "%s: process %s runs in this folder: wait for it, stop it, or choose another --run.dir", path,
                   number[0] ? number : "(unknown)");
}

static ls_status take_lock(const char *path, int fd)
{
    char number[24];
    int length = snprintf(number, sizeof number, "%ld\n", (long)getpid());

    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return fail_locked(path, fd);
        return ls_fail(LS_EIO, "%s: cannot lock: %s", path, strerror(errno));
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, number, (size_t)length, 0) != length)
        log_line(LOG_WARN, "%s: cannot write this process's id: %s", path, strerror(errno));
    return LS_OK;
}

static ls_status lock_file(struct run_folder *r, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (fd < 0) return ls_fail(LS_EIO, "%s: cannot open: %s", path, strerror(errno));
    ls_status st = take_lock(path, fd);
    if (st == LS_OK)
        r->lock = fd;
    else
        close(fd);
    return st;
}

ls_status run_folder_lock(struct run_folder *r)
{
    if (r->lock >= 0 || !file_is_folder(r->path)) return LS_OK;
    char *path = file_path("%s/lock", r->path);
    ls_status st = path ? lock_file(r, path) : LS_ENOMEM;
    mem_free(path);
    return st;
}

void run_host(char out[RUN_HOST])
{
    memset(out, 0, RUN_HOST);
    if (gethostname(out, RUN_HOST - 1) != 0) strcpy(out, "localhost");
}

/* Lists the processors that this process may run on as taskset does: "0-3,8". What does not fit is left out. */
static void list_cores(char *out, size_t room)
{
    cpu_set_t set;
    size_t at = 0;

    out[0] = '\0';
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int i = 0; i < CPU_SETSIZE && at + 24 < room; i++) {
        int last = i;

        if (!CPU_ISSET(i, &set)) continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) last++;
        at += (size_t)snprintf(out + at, room - at, last > i ? "%s%d-%d" : "%s%d", at ? "," : "", i, last);
        i = last;
    }
}

static ls_status open_log(const struct run_folder *r, int rank)
{
    char *file = file_path("%s/log/rank_%04d.log", r->path, rank), host[RUN_HOST], cores[256];
    ls_status st = file ? log_open(file) : LS_ENOMEM;

    mem_free(file);
    if (st != LS_OK) return st;
    run_host(host);
    list_cores(cores, sizeof cores);
    log_line(LOG_INFO, "rank %d on %s, process %ld, cores %s", rank, host, (long)getpid(), cores);
    return LS_OK;
}

static ls_status run_folder_make(struct run_folder *r)
{
    char *log = file_path("%s/log", r->path), *calls = file_path("%s/calls", r->path);
    ls_status st = log && calls ? file_make_folders(log) : LS_ENOMEM;

    if (st == LS_OK) st = run_folder_lock(r);
    if (st == LS_OK) st = file_remove_tree(calls); /* remove the files of an earlier start */
    if (st == LS_OK) st = open_log(r, 0);
    mem_free(log);
    mem_free(calls);
    return st;
}

static ls_status open_own(struct run_folder *r, const struct config *c, int rank, uint64_t step)
{
    if (!c->log.per_rank) return LS_OK;
    char *path = file_path("%s/metrics.rank_%04d.jsonl", r->path, rank);
    ls_status st = path ? metrics_rewind(path, step) : LS_ENOMEM;

    if (st == LS_OK) st = append_open(path, &r->own);
    mem_free(path);
    return st;
}

ls_status run_folder_follow(struct run_folder *r, const struct config *c, int rank, uint64_t step)
{
    LS_TRY(open_log(r, rank));
    return open_own(r, c, rank, step);
}

/* True if rank 0's flight recorder was opened by this launch, so calls/ is not from an earlier one. */
static bool is_of_this_launch(const struct run_folder *r, double began)
{
    char *path = file_path("%s/calls/rank_0000", r->path);
    struct recorder_read *c = mem_alloc(MEM_OTHER, sizeof *c);
    bool ours = path && c && file_exists(path) && recorder_read(path, c) == LS_OK && c->epoch + c->status.opened >= began;

    mem_free(path);
    mem_free(c);
    return ours;
}

void run_folder_note_end(const struct run_folder *r, double began, int code, const char *line, int ranks, char (*ends)[LAUNCH_END])
{
    char *path = is_of_this_launch(r, began) ? file_path("%s/calls/ended", r->path) : NULL;
    struct json_out j = { 0 };

    if (!path) return;
    json_begin_object(&j, NULL);
    json_put_int(&j, "exit", code);
    json_put_string(&j, "line", line);
    json_begin_array(&j, "ranks");
    for (int i = 0; i < ranks; i++) json_put_string(&j, NULL, ends[i]);
    json_end_array(&j);
    json_end_object(&j);
    if (json_out_status(&j) != LS_OK || file_write(path, j.text, j.bytes) != LS_OK)
        log_line(LOG_WARN, "how the run ended is not kept: %s", ls_errmsg());
    json_out_free(&j);
    mem_free(path);
}

/* ---- our launcher ---- */

bool run_folder_launcher(const char *run, int64_t *pid)
{
    char *path = file_path("%s/launcher", run), *text = NULL;
    struct process p;
    uint64_t start;
    bool running = false;

    *pid = 0;
    if (path && file_exists(path) && file_read(path, &text, NULL) == LS_OK && sscanf(text, "%" SCNd64 " %" SCNu64, pid, &start) == 2)
        running = process_find(*pid, &p) && process_lives(&p) && p.start == start;
    mem_free(path);
    mem_free(text);
    return running;
}

void run_folder_note_launcher(const struct run_folder *r)
{
    char *path = file_path("%s/launcher", r->path), text[64];
    struct process p;

    if (path && process_find(getpid(), &p)) {
        int bytes = snprintf(text, sizeof text, "%d %" PRIu64 "\n", (int)getpid(), p.start);

        file_write(path, text, (size_t)bytes);
    }
    mem_free(path);
}

void run_folder_forget_launcher(const struct run_folder *r)
{
    char *path = file_path("%s/launcher", r->path);
    int64_t pid;

    run_folder_launcher(r->path, &pid);
    if (path && pid == getpid()) unlink(path);
    mem_free(path);
}

ls_status run_folder_calls(const struct run_folder *r, int rank, int ranks, bool launched, struct recorder **out)
{
    char *folder = file_path("%s/calls", r->path), *path = file_path("%s/calls/rank_%04d", r->path, rank);
    ls_status st = folder && path ? file_make_folders(folder) : LS_ENOMEM;

    if (st == LS_OK) st = recorder_open(path, rank, ranks, out);
    if (st == LS_OK && launched) recorder_launched_by(*out, getppid());
    mem_free(folder);
    mem_free(path);
    return st;
}

/* Writes the tokenizer and sets r->tokenizer to the path of its file. */
static ls_status save_tokenizer(struct run_folder *r, const ls_tokenizer *tokenizer)
{
    if (!tokenizer) return LS_OK;
    LS_TRY(ls_tokenizer_save(tokenizer, r->path));
    return dataset_saved_tokenizer(r->path, &r->tokenizer);
}

static ls_status open_events(struct run_folder *r, uint64_t step)
{
    unsigned char record[TB_RECORD];
    char *path = tb_file_name(r->path);

    if (!path) return LS_ENOMEM;
    ls_status st = append_open(path, &r->events);
    mem_free(path);
    if (st != LS_OK) return st;
    append_put(&r->events, record, tb_version_record(wall_time(), record));
    append_put(&r->events, record, tb_start_record(wall_time(), (int64_t)step + 1, record));
    return LS_OK;
}

ls_status run_folder_start(struct run_folder *r, const struct config *c, const char *config_yaml, const ls_tokenizer *tokenizer,
                           uint64_t step)
{
    char *metrics = file_path("%s/metrics.jsonl", r->path);

    if (!metrics) return LS_ENOMEM;
    ls_status st = run_folder_make(r);
    if (st == LS_OK) st = file_write(r->config, config_yaml, strlen(config_yaml));
    if (st == LS_OK) st = save_tokenizer(r, tokenizer);
    if (st == LS_OK) st = metrics_rewind(metrics, step);
    if (st == LS_OK) st = append_open(metrics, &r->metrics);
    if (st == LS_OK) st = open_own(r, c, 0, step);
    if (st == LS_OK && c->log.tensorboard) st = open_events(r, step);
    mem_free(metrics);
    return st;
}

static void put_events(struct run_folder *r, const struct metrics *m)
{
    unsigned char record[TB_RECORD];
    struct tb_scalar all[] = {
        { "loss", (float)m->loss },
        { "grad_norm", (float)m->grad_norm },
        { "lr", (float)m->lr },
        { "tokens_per_second", (float)m->tokens_per_second },
        { "mfu", (float)m->mfu },
        { "hfu", (float)m->hfu },
        { "step_seconds", (float)m->step_seconds },
        { "memory/peak", (float)m->memory.total_peak },
        { "val_loss", m->evaluated ? (float)m->val_loss : NAN },
    }, scalars[COUNT_OF(all)];
    int count = 0;

    for (size_t i = 0; i < COUNT_OF(all); i++) /* NaN: this step has no such figure */
        if (!isnan(all[i].value)) scalars[count++] = all[i];

    append_put(&r->events, record, tb_scalars_record(wall_time(), (int64_t)m->step, count, scalars, record));
}

enum { LINE_ROOM = 4096 }; /* longer than any line of metrics, so that the buffer is never enlarged in a step */

static ls_status make_line_room(struct json_out *line)
{
    char blank[LINE_ROOM];

    memset(blank, ' ', sizeof blank - 1);
    blank[sizeof blank - 1] = '\0';
    json_put_string(line, NULL, blank);
    return json_out_status(line);
}

static ls_status put_line(struct run_folder *r, struct append *to, bool *announced, const struct metrics *m)
{
    if (!r->line.text) LS_TRY(make_line_room(&r->line));
    struct metrics line = *m;

    if (!*announced) {
        line.hosts = r->hosts;
        line.host_bytes = RUN_HOST;
        line.ranks = r->ranks;
    }
    *announced = true;
    r->line.bytes = 0;
    r->line.need_comma = 0;
    metrics_put_json(&line, &r->line);
    LS_TRY(json_out_status(&r->line));
    /* The line feed replaces the text's final NUL. */
    r->line.text[r->line.bytes] = '\n';
    append_put(to, r->line.text, r->line.bytes + 1);
    return LS_OK;
}

ls_status run_folder_put(struct run_folder *r, const struct metrics *m)
{
    LS_TRY(put_line(r, &r->metrics, &r->announced[0], m));
    if (r->events.fd >= 0) put_events(r, m);
    return LS_OK;
}

ls_status run_folder_put_own(struct run_folder *r, const struct metrics *m)
{
    return r->own.fd >= 0 ? put_line(r, &r->own, &r->announced[1], m) : LS_OK;
}
