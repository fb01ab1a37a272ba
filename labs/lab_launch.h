/* lab_launch.h - for the labs that start the command itself: processes with the variables that a launcher would give them, or under a
 * real mpirun.
 */
#ifndef LAB_LAUNCH_H
#define LAB_LAUNCH_H

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lab.h"

enum { LAUNCH_TEXT = 8192, LAUNCH_WORDS = 24 };

/* A process, and after launch_wait() what it printed on both streams and its exit status (128 + the signal's number if one ended it). */
struct launched { pid_t pid; int fd, status; char text[LAUNCH_TEXT]; };

extern char **environ;

/* The path of the command that runs this lab. */
static inline const char *launch_command(void)
{
    static char path[1024];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n <= 0) exit(1);
    path[n] = '\0';
    return path;
}

/* Unsets what any launcher may have set for this process. */
static inline void launch_clean(void)
{
    static const char *const begins[] = { "RANK=", "WORLD_SIZE=", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "MPI_",
                                          "SLURM_", "HYDRA_", "LOCKSTEP_COMM=", "LOCKSTEP_THREADS=", NULL };
    char name[256];

    for (char **e = environ; *e;) {
        int i = 0;

        while (begins[i] && strncmp(*e, begins[i], strlen(begins[i])) != 0) i++;
        e++;
        if (!begins[i]) continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(e[-1], "="), e[-1]);
        unsetenv(name);
        e = environ;
    }
}

/* Starts argv with the variables of env ("NAME=VALUE"); both end with NULL. */
static inline void launch_start(struct launched *l, char *const *env, char *const *argv)
{
    int ends[2];

    if (pipe(ends) != 0) exit(1);
    fflush(stdout);
    if ((l->pid = fork()) < 0) exit(1);
    if (l->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* it ends with the lab */
        launch_clean();
        for (; *env; env++) putenv(*env);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    l->fd = ends[0];
}

static inline void launch_wait(struct launched *l)
{
    char rest[512];
    size_t at = 0;
    ssize_t n;

    while ((n = read(l->fd, at < LAUNCH_TEXT - 1 ? l->text + at : rest, at < LAUNCH_TEXT - 1 ? LAUNCH_TEXT - 1 - at : sizeof rest)) > 0)
        at += at < LAUNCH_TEXT - 1 ? (size_t)n : 0;
    l->text[at] = '\0';
    close(l->fd);
    if (waitpid(l->pid, &l->status, 0) < 0) exit(1);
    l->status = WIFEXITED(l->status) ? WEXITSTATUS(l->status) : 128 + WTERMSIG(l->status);
}

/* mpirun.KIND is in PATH, and the command has its module. */
static inline int launch_has_mpi(const char *kind)
{
    char path[1280], *slash, *next;
    const char *folders = getenv("PATH");
    int found = 0;

    snprintf(path, sizeof path, "%s", launch_command());
    if ((slash = strrchr(path, '/'))) *slash = '\0';
    snprintf(path + strlen(path), sizeof path - strlen(path), "/lockstep_%s.so", kind);
    if (access(path, R_OK) != 0) return 0;
    for (char *copy = folders ? strdup(folders) : NULL, *at = copy; at; at = next) {
        if ((next = strchr(at, ':'))) *next++ = '\0';
        snprintf(path, sizeof path, "%.1000s/mpirun.%s", at, kind);
        found |= access(path, X_OK) == 0;
        if (!next) free(copy);
    }
    return found;
}

/* Runs the command with these words under mpirun.KIND with n ranks and one more variable (or NULL), and waits. MPICH's mpirun may be killed
 * by SIGPIPE if ranks end while it still starts them; then it starts again. */
static inline void launch_mpi(struct launched *l, const char *kind, int n, char *variable, char *const *words)
{
    char program[32], ranks[16], *argv[LAUNCH_WORDS] = { "timeout", "-k", "5", "60", program, "-n", ranks, (char *)launch_command() };
    char *env[] = { "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
                    "ASAN_OPTIONS=detect_leaks=0", variable, NULL };

    snprintf(program, sizeof program, "mpirun.%s", kind);
    snprintf(ranks, sizeof ranks, "%d", n);
    for (int i = 0; words[i] && i < LAUNCH_WORDS - 9; i++) argv[8 + i] = words[i];
    for (int attempt = 0; attempt < 3; attempt++) {
        launch_start(l, env, argv);
        launch_wait(l);
        if (l->status != 128 + SIGPIPE) return;
    }
}

#endif
