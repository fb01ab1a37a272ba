/* lab_command.h - for labs that run this command as a user does: a temporary folder, a process, its ranks. */
#ifndef LAB_COMMAND_H
#define LAB_COMMAND_H

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lab.h"
#include "lab_launch.h"

enum { COMMAND_PATH = 512, COMMAND_ARGS = 64, COMMAND_TEXT = 4000, COMMAND_SAID = 1 << 16 };

/* ---- a folder ---- */

/* A new empty folder; folder_remove() removes it with its contents. */
static inline void folder_new(char path[COMMAND_PATH])
{
    const char *at = getenv("TMPDIR");

    snprintf(path, COMMAND_PATH, "%.400s/lockstep-lab-XXXXXX", at && *at ? at : "/tmp");
    if (mkdtemp(path)) return;
    perror(path);
    exit(1);
}

static inline void folder_remove(const char *path)
{
    char inner[COMMAND_PATH + 300];
    DIR *d = opendir(path);

    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(inner, sizeof inner, "%.500s/%s", path, e->d_name);
        if (unlink(inner) != 0) folder_remove(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

/* Writes a text to learn from. */
static inline void folder_write_text(const char *path)
{
    FILE *f = fopen(path, "w");

    if (!f) exit(1);
    for (int i = 0; i < 600; i++) fprintf(f, "Line %d of a text that says %d things about %d birds.\n", i, i * 7 % 13, i % 5);
    fclose(f);
}

static inline int file_lines(const char *path)
{
    FILE *f = fopen(path, "r");
    int lines = 0;

    for (int c; f && (c = getc(f)) != EOF;) lines += c == '\n';
    if (f) fclose(f);
    return lines;
}

/* ---- a command ---- */

struct command_run {
    pid_t pid;
    int ended, code; /* its exit code, if it ended */
    char folder[COMMAND_PATH];
};

/* Starts `lockstep OPTIONS` in the folder; words of the options are separated by spaces, and a + in a word stands for a space. Its output
 * goes to out.txt and err.txt there. */
static inline struct command_run command_start(const char *folder, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline struct command_run command_start(const char *folder, const char *fmt, ...)
{
    static char options[COMMAND_TEXT], exe[64];
    struct command_run c = { 0 };
    char *arg[COMMAND_ARGS] = { exe };
    int n = 1;
    va_list a;

    va_start(a, fmt);
    vsnprintf(options, sizeof options, fmt, a);
    va_end(a);
    snprintf(exe, sizeof exe, "/proc/%d/exe", (int)getpid());
    snprintf(c.folder, sizeof c.folder, "%s", folder);
    for (char *word = strtok(options, " "); word && n < COMMAND_ARGS - 1; word = strtok(NULL, " ")) {
        arg[n++] = word;
        for (char *plus = strchr(word, '+'); plus; plus = strchr(plus, '+')) *plus = ' ';
    }
    fflush(stdout);
    c.pid = fork();
    if (c.pid < 0) exit(1);
    if (c.pid > 0) return c;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it ends with the lab */
    if (chdir(folder) != 0) _exit(1);
    int out = open("out.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600), err = open("err.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(1);
    unsetenv("LAB_JSON");
    launch_clean();
    execv(exe, arg);
    _exit(127);
}

/* Waits for it and returns its exit code, or 128 + the signal that ended it. */
static inline int command_wait(struct command_run *c)
{
    int status;

    while (!c->ended && waitpid(c->pid, &status, 0) == c->pid) {
        c->ended = 1;
        c->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return c->code;
}

/* Returns 1 while it runs. */
static inline int command_runs(struct command_run *c)
{
    int status;

    if (c->ended || waitpid(c->pid, &status, WNOHANG) != c->pid) return !c->ended;
    c->ended = 1;
    c->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return 0;
}

/* Waits until a file of its folder has so many lines. 0: it ended before. */
static inline int command_reached(struct command_run *c, const char *file, int lines)
{
    char path[COMMAND_PATH + 64];

    snprintf(path, sizeof path, "%s/%s", c->folder, file);
    while (file_lines(path) < lines) {
        if (!command_runs(c)) return 0;
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return 1;
}

/* The process of rank r of a run that this command launched; -1: none. */
static inline pid_t command_rank(const struct command_run *c, int r)
{
    char path[64];
    int pid = -1;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)c->pid, (int)c->pid);
    FILE *f = fopen(path, "r");
    for (int k = 0; f && k <= r; k++)
        if (fscanf(f, "%d", &pid) != 1) pid = -1;
    if (f) fclose(f);
    return pid;
}

/* Reads what it printed: "out.txt" or "err.txt". */
static inline const char *command_said(const struct command_run *c, const char *file)
{
    static char text[COMMAND_SAID];
    char path[COMMAND_PATH + 64];
    size_t bytes = 0;

    snprintf(path, sizeof path, "%s/%s", c->folder, file);
    FILE *f = fopen(path, "r");
    if (f) bytes = fread(text, 1, sizeof text - 1, f);
    if (f) fclose(f);
    text[bytes] = '\0';
    return text;
}

#endif
