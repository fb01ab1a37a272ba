/* helper_launch.c - see helper_launch.h. */
#include "helper_launch.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "train/launch/launch.h"

static const double SOON = 60;  /* seconds after which something that was waited for has failed */

char *case_folder;
char  case_mark[64];
static int launch_cases;

static char *launch_inside(const char *name)  /* mem_free() it */
{
    char *path = file_path("%s/%s", case_folder, name);

    assert_non_null(path);
    return path;
}

char *case_read(const char *name)
{
    char *path = launch_inside(name), *text = NULL;

    if (file_read(path, &text, NULL) != LS_OK) text = mem_strdup("");
    mem_free(path);
    return text;
}

void case_redirect(const char *name, int fd)
{
    char *path = launch_inside(name);
    int to = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);

    if (to < 0 || dup2(to, fd) < 0) _exit(99);
    close(to);
    mem_free(path);
}

/* Like the command: prints the line on standard error and exits with the code. */
pid_t case_launch(int ranks, char *const argv[], bool bind)
{
    char *err = launch_inside("err");

    unlink(err); /* left by an earlier launch */
    mem_free(err);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    char *log = launch_inside("log");
    int code = 98;
    case_redirect("out", STDOUT_FILENO);
    case_redirect("err", STDERR_FILENO);
    setenv("LAUNCH_TEST", case_mark, 1);
    setenv("TMPDIR", case_folder, 1);
    ls_status st = launch_run(&(struct launch){ .ranks = ranks, .argv = argv, .log_folder = log, .bind = bind }, &code);
    if (st != LS_OK) code = 97;
    if (code) fprintf(stderr, "lockstep probe: %s\n", ls_errmsg());
    mem_free(log);
    fflush(stderr);
    _exit(code);
}

bool case_contains(const char *name, const char *text)
{
    char *all = case_read(name);
    bool yes = strstr(all, text) != NULL;

    mem_free(all);
    return yes;
}

void case_wait_for(const char *name, const char *text)
{
    double began = base_now();

    while (!case_contains(name, text)) {
        if (base_now() - began > SOON) fail_msg("'%s' never appeared in %s", text, name);
        usleep(5000);
    }
}

int case_finish(pid_t pid)
{
    double began = base_now();
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (base_now() - began > SOON) fail_msg("the launcher does not end");
        usleep(2000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Processes with this case's mark in their environment. */
int case_processes(void)
{
    DIR *d = opendir("/proc");
    int count = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) {
        char path[300], text[1 << 16];

        if (!isdigit((unsigned char)e->d_name[0])) continue;
        snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t got = read(fd, text, sizeof text);
        close(fd);
        count += got > 0 && memmem(text, (size_t)got, case_mark, strlen(case_mark)) != NULL;
    }
    closedir(d);
    return count;
}

int case_entries(const char *path, const char *with)
{
    DIR *d = opendir(path);
    int count = 0;

    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d)); ) count += e->d_name[0] != '.' && strstr(e->d_name, with) != NULL;
    closedir(d);
    return count;
}

void case_nothing_is_left(void)
{
    double began = base_now();

    while (case_processes() > 0) { /* a killed process may need a moment to end */
        if (base_now() - began > SOON) fail_msg("%d processes are left", case_processes());
        usleep(2000);
    }
    assert_in_range(case_entries(case_folder, ""), 2, 3);  /* out, err, log */
    assert_int_equal(case_entries("/dev/shm", "lockstep"), 0);
}

int case_set_up(void **state)
{
    char template[] = "/tmp/lockstep-launch-XXXXXX";

    (void)state;
    if (!mkdtemp(template)) return -1;
    case_folder = mem_strdup(template);
    snprintf(case_mark, sizeof case_mark, "launch-test-%d-%d.", (int)getpid(), launch_cases++);
    return case_folder ? 0 : -1;
}

int case_tear_down(void **state)
{
    (void)state;
    file_remove_tree(case_folder);
    mem_free(case_folder);
    return 0;
}
