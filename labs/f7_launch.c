/* F7 - a job is processes that each know their rank, the world size, and where they meet: launchers set these as variables, and the names
 * differ by launcher.
 *
 * The command is started as torchrun and srun would start it, that is as processes on this machine with their variables, and by the mpirun
 * of Open MPI and of MPICH where they are installed. All of them make an all-reduce; rank 0 prints how many ranks it had.
 *
 * MASTER_ADDR and MASTER_PORT are for any rendezvous, not for several nodes only: without them processes on one machine do not start
 * either, and two jobs on one machine are kept apart by their ports. (Ranks of one machine meet in shared memory here, which the port
 * names; the address must be given, but nothing connects to it.) */
#include "lab_launch.h"

enum { RANKS_MOST = 8, ROOM = 48 };

enum launcher { TORCHRUN, SRUN, LAUNCHERS };

struct process { struct launched run; char room[10][ROOM], *env[11]; };

static char *words[] = { NULL, "bench", "comm", "-b", "1K", "-e", "1K", "--iters", "1", "-w", "1", "--json", NULL };

static void variable(struct process *p, int *count, const char *name, const char *value, int number)
{
    if (value) snprintf(p->room[*count], ROOM, "%s=%s", name, value);
    else snprintf(p->room[*count], ROOM, "%s=%d", name, number);
    p->env[*count] = p->room[*count];
    p->env[++*count] = NULL;
}

/* What that launcher sets for rank r of n. without: a name that is left out, or NULL. */
static void launcher_variables(struct process *p, enum launcher l, int r, int n, int id, const char *without)
{
    const struct { const char *name, *value; int number; } torchrun[] = {
        { "RANK", NULL, r }, { "WORLD_SIZE", NULL, n }, { "LOCAL_RANK", NULL, r }, { "LOCAL_WORLD_SIZE", NULL, n },
        { "MASTER_ADDR", "127.0.0.1", 0 }, { "MASTER_PORT", NULL, id }, { NULL, NULL, 0 },
    }, srun[] = {
        { "SLURM_PROCID", NULL, r }, { "SLURM_STEP_ID", NULL, 0 }, { "SLURM_JOB_ID", NULL, id }, { "SLURM_STEP_NUM_TASKS", NULL, n },
        { "SLURM_NODEID", NULL, 0 }, { "SLURM_STEP_TASKS_PER_NODE", NULL, n }, { "SLURM_LOCALID", NULL, r }, { NULL, NULL, 0 },
    }, *set = l == TORCHRUN ? torchrun : srun;
    int count = 0;

    p->env[0] = NULL;
    for (; set->name; set++)
        if (!without || strcmp(set->name, without) != 0) variable(p, &count, set->name, set->value, set->number);
}

static void processes_run(struct process *p, int n)
{
    words[0] = (char *)launch_command();
    for (int r = 0; r < n; r++) launch_start(&p[r].run, p[r].env, words);
    for (int r = 0; r < n; r++) launch_wait(&p[r].run);
}

/* The first line that is a JSON array, among those that launchers print; "": no line is. */
static const char *json_line(const char *text, char line[LAUNCH_TEXT])
{
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        snprintf(line, LAUNCH_TEXT, "%.*s", (int)strcspn(text, "\n"), text);
        if (strncmp(line, "[{", 2) == 0) return line;
    }
    return "";
}

/* The world size that a process printed; 0: it printed none, failed, or had a wrong sum. */
static int world_of(const struct launched *l)
{
    char line[LAUNCH_TEXT];
    const char *json = json_line(l->text, line);
    double ranks = lab_json(json, "[0].ranks"), wrong = lab_json(json, "[0].out_of_place.wrong");

    return l->status == 0 && wrong == 0 && ranks > 0 ? (int)ranks : 0;
}

static int refused(const struct process *p, int n, const char *name)
{
    int count = 0;

    for (int r = 0; r < n; r++) count += p[r].run.status == 2 && strstr(p[r].run.text, name);
    return count;
}

static int port(int k) { return 20000 + ((int)getpid() * 4 + k) % 40000; }

static void by_variables(struct process *p, enum launcher l, int n)
{
    char what[80];
    int failed = 0, first = -1;

    for (int r = 0; r < n; r++) launcher_variables(&p[r], l, r, n, port(l), NULL);
    processes_run(p, n);
    for (int r = 0; r < n; r++) {
        failed += p[r].run.status != 0;
        if (world_of(&p[r].run) && first < 0) first = r;
    }
    snprintf(what, sizeof what, "%s's variables, %d processes: world size", l == TORCHRUN ? "torchrun" : "srun", n);
    lab_equal(what, n, first < 0 ? 0 : world_of(&p[first].run), 0);
    lab_equal("       the process that prints has rank", 0, first, 0);
    lab_check("       processes that fail", 0, failed, 0);
}

static void by_mpirun(const char *kind, const char *name, int n)
{
    struct launched *l = calloc(1, sizeof *l);
    char what[80];

    if (!l) exit(1);
    snprintf(what, sizeof what, "mpirun of %s, %d processes: world size", name, n);
    if (launch_has_mpi(kind)) {
        launch_mpi(l, kind, n, NULL, words + 1);
        lab_equal(what, n, world_of(l), 0);
    } else {
        lab_not_measurable(what, "why: that mpirun is not installed here, or the command was built without it");
    }
    free(l);
}

/* Two jobs on this machine at the same time. */
static int two_jobs(struct process *p, int n)
{
    int sum = 0;

    for (int r = 0; r < 2 * n; r++) launcher_variables(&p[r], TORCHRUN, r % n, n, port(2 + r / n), NULL);
    processes_run(p, 2 * n);
    for (int r = 0; r < 2 * n; r++) sum += world_of(&p[r].run);
    return sum / 2;
}

/* RANK says one rank and srun another. */
static int contradicted(struct process *p, int n)
{
    for (int r = 0; r < n; r++) {
        int count = 7;

        launcher_variables(&p[r], SRUN, r, n, port(0), NULL);
        variable(&p[r], &count, "RANK", NULL, (r + 1) % n);
        variable(&p[r], &count, "WORLD_SIZE", NULL, n);
    }
    processes_run(p, n);
    return refused(p, n, "RANK=");
}

LAB(f7_launch, "what launchers set", { "ranks", "processes of a job", 2, 2, RANKS_MOST })
{
    struct process *p = calloc(2 * RANKS_MOST, sizeof *p);
    int n = (int)lab_size("ranks");
    char what[96];

    if (!p) exit(1);
    lab_open("F7");
    for (int l = 0; l < LAUNCHERS; l++) by_variables(p, (enum launcher)l, n);
    by_mpirun("openmpi", "Open MPI", n);
    by_mpirun("mpich", "MPICH", n);
    snprintf(what, sizeof what, "two jobs of %d processes on one machine, each with its port: world size", n);
    lab_equal(what, n, two_jobs(p, n), 0);
    for (int r = 0; r < n; r++) launcher_variables(&p[r], TORCHRUN, r, n, port(0), "MASTER_ADDR");
    processes_run(p, n);
    lab_equal("one machine, no MASTER_ADDR: processes that refuse to start and name it", n, refused(p, n, "MASTER_ADDR"), 0);
    lab_check("RANK is another than srun's: processes that refuse to start", n, contradicted(p, n), 0);
    p[0].env[0] = NULL;
    processes_run(p, 1);
    lab_check("no variables at all: one process, which counts as one rank", 1, strstr(p[0].run.text, "a single rank") != NULL, 0);
    lab_not_measurable("torchrun's variables on several machines",
                       "why: needs two machines, where ranks communicate over MPI: mpirun or srun --mpi starts them, torchrun cannot");
    free(p);
    return lab_close();
}
