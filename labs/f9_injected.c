/* F9 - failures that are injected into runs of two ranks (or more): the first line that is printed names the rank and the cause, and the
 * exit code is the documented one. 1: failed; 2: options or variables are impossible or contradict each other; 3: a rank was lost or issued
 * another collective, and starting again may help.
 *
 * Where the ranks must differ, the lab starts their processes as torchrun does, with its variables, and gives rank 1 other options or
 * variables. Otherwise it damages a checkpoint or a token file, or lets a write fail as on a full disk or take longer, and then starts
 * `lockstep train -n N`. F3 has ranks that are killed, suspended or missing; F5 kills a save at each of its system calls. */
#include "lab_command.h"
#include "lab_launch.h"

enum { RANKS_MOST = 8, ROOM = 64, VARIABLES = 7, ANY_RANK = -1, NO_RANK = -2 };

/* Options of every run, with a space at the end. */
static const char *injected_options(void)
{
    static char text[400];

    snprintf(text, sizeof text,
             "--model.preset=llama-tiny --model.layers=%ld --data.seq_len=16 --train.global_batch=%ld --train.eval_every=0 "
             "--launch.threads=1 --launch.timeout=30 --run.measure_peak=off --checkpoint.every=2 -q ",
             lab_size("layers"), 2 * lab_size("ranks"));
    return text;
}

/* What a failure left: its exit code (of processes that were started separately: how many have it), and its first line. */
struct failed {
    int code, processes, first_two; /* first_two: how many of ranks 0 and 1 have it */
    char line[1000];
};

static char f9_folder[COMMAND_PATH];

static const char *path_in(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *path_in(const char *fmt, ...)
{
    static char path[COMMAND_PATH + 128];
    int at = snprintf(path, sizeof path, "%s/", f9_folder);
    va_list a;

    va_start(a, fmt);
    vsnprintf(path + at, sizeof path - (size_t)at, fmt, a);
    va_end(a);
    return path;
}

static void line_of(struct failed *f, const char *text) { snprintf(f->line, sizeof f->line, "%.*s", (int)strcspn(text, "\n"), text); }

/* ---- one command ---- */

static struct failed command_fails(const char *command)
{
    struct command_run c = command_start(f9_folder, "%s", command);
    struct failed f = { .processes = 1 };

    f.code = command_wait(&c);
    line_of(&f, command_said(&c, "err.txt"));
    return f;
}

/* The ranks train to step `steps` in the run's folder, from its newest checkpoint if it has one. */
static struct failed train_to(int steps, const char *run, const char *more)
{
    char command[COMMAND_TEXT];

    snprintf(command, sizeof command, "train -n %ld --data.text=text.txt --train.schedule_steps=8 --train.steps=%d --run.dir=%s %s%s",
             lab_size("ranks"), steps, run, injected_options(), more);
    return command_fails(command);
}

/* ---- a process for each rank ---- */

/* Processes with the variables of torchrun; rank 1 also has these options, and its own WORLD_SIZE. */
static struct failed ranks_fail(const char *run, const char *options, int world_of_rank_1)
{
    static struct launched l[RANKS_MOST];
    static char words[RANKS_MOST][COMMAND_TEXT];
    struct failed f = { .code = -1 };
    char room[RANKS_MOST][VARIABLES][ROOM], *env[VARIABLES], *argv[COMMAND_ARGS];
    static int jobs;
    int ranks = (int)lab_size("ranks"), port = 20000 + ((int)getpid() * 8 + jobs++) % 40000;

    for (int r = 0; r < ranks; r++) {
        int world = r == 1 ? world_of_rank_1 : ranks, n = 0;

        snprintf(room[r][0], ROOM, "RANK=%d", r);
        snprintf(room[r][1], ROOM, "WORLD_SIZE=%d", world);
        snprintf(room[r][2], ROOM, "LOCAL_RANK=%d", r);
        snprintf(room[r][3], ROOM, "LOCAL_WORLD_SIZE=%d", world);
        snprintf(room[r][4], ROOM, "MASTER_ADDR=127.0.0.1");
        snprintf(room[r][5], ROOM, "MASTER_PORT=%d", port);
        for (int v = 0; v < VARIABLES; v++) env[v] = v < VARIABLES - 1 ? room[r][v] : NULL;
        snprintf(words[r], sizeof words[r], "train --data.text=%s/text.txt --run.dir=%s/%s --train.steps=4 %s%s", f9_folder, f9_folder, run,
                 injected_options(), r == 1 ? options : "");
        argv[n++] = (char *)launch_command();
        for (char *word = strtok(words[r], " "); word && n < COMMAND_ARGS - 1; word = strtok(NULL, " ")) argv[n++] = word;
        argv[n] = NULL;
        launch_start(&l[r], env, argv);
    }
    for (int r = 0; r < ranks; r++) launch_wait(&l[r]);
    for (int r = 0; r < ranks; r++) {
        if (l[r].text[0] && !f.line[0]) line_of(&f, l[r].text);
        if (f.code < 0) f.code = l[r].status;
        f.processes += l[r].status == f.code;
        f.first_two += r < 2 && l[r].status == f.code;
    }
    return f;
}

/* ---- damage ---- */

static void byte_flip(const char *path, long from_end)
{
    FILE *f = fopen(path, "r+");
    int byte;

    if (!f || fseek(f, -from_end, SEEK_END) != 0 || (byte = getc(f)) == EOF || fseek(f, -from_end, SEEK_END) != 0) exit(1);
    putc(byte ^ 4, f);
    if (fclose(f) != 0) exit(1);
}

/* ---- rows ---- */

/* The exit code is the documented one, and the first line names the rank and has all the words, which end with NULL. */
static void failure_rows(const char *what, const struct failed *f, int documented, int rank, const char *const *words)
{
    char text[128], name[16];
    int named = f->line[0] != '\0';

    snprintf(name, sizeof name, "rank %d", rank);
    if (rank >= 0) named &= strstr(f->line, name) != NULL;
    if (rank == ANY_RANK) named &= strstr(f->line, "rank ") != NULL;
    for (; *words; words++) named &= strstr(f->line, *words) != NULL;
    lab_say("    %s\n", f->line);
    snprintf(text, sizeof text, "%s: exit code", what);
    lab_equal(text, documented, f->code, 0);
    lab_equal(rank == NO_RANK ? "       first line names the cause" : "       first line names rank and cause", 1, named, 0);
}

#define WORDS(...) (const char *const[]){ __VA_ARGS__, NULL }

static void different_ranks(void)
{
    int ranks = (int)lab_size("ranks");
    struct failed calls = ranks_fail("calls", "--checkpoint.every=3", ranks);
    struct failed memory = ranks_fail("memory", "--run.memory_limit=1MiB", ranks);
    struct failed world = ranks_fail("world", "", ranks + 1), options = ranks_fail("options", "--optim.lr=0.5", ranks);
    char what[80], too_many[32], right[32];

    failure_rows("rank 1 has another learning rate", &options, 2, 1, WORDS("rank 1 has optim.lr 0.5", "rank 0 0.001"));
    lab_check("       processes with that exit code", ranks, options.processes, 0);
    failure_rows("rank 1 saves after other steps, so it calls another collective", &calls, 3, 1,
                 WORDS("rank 1 called", ranks == 2 ? "rank 0 called" : " called "));
    lab_check("       processes with that exit code", ranks, calls.processes, 0);
    failure_rows("rank 1 is out of memory", &memory, 1, 1, WORDS("out of memory", "run.memory_limit"));
    lab_check("       processes with that exit code", ranks, memory.processes, 0);
    snprintf(what, sizeof what, "WORLD_SIZE is %d for rank 0 and %d for rank 1", ranks, ranks + 1);
    snprintf(too_many, sizeof too_many, "one of %d ranks", ranks + 1);
    snprintf(right, sizeof right, "one of %d", ranks);
    failure_rows(what, &world, 2, 1, WORDS(too_many, right));
    lab_check("       of these two, processes with that exit code; others that had joined lost a peer", 2, world.first_two, 0);
}

static void damaged_checkpoints(void)
{
    static const char parameters[] = "parameters_0000_of_0001.safetensors", optimizer[] = "optimizer_0000_of_0001.safetensors";
    struct failed f = train_to(4, "run", "");

    lab_check("an undisturbed run: exit code", 0, f.code, 0);
    byte_flip(path_in("run/checkpoints/step_00000004/%s", parameters), 100);
    f = train_to(4, "run", "");
    lab_check("a byte of the newest checkpoint is flipped, an older one is intact: exit code", 0, f.code, 0);
    byte_flip(path_in("run/checkpoints/step_00000004/%s", parameters), 100);
    folder_remove(path_in("run/checkpoints/step_00000002"));
    f = train_to(6, "run", "");
    failure_rows("a byte of the only checkpoint is flipped", &f, 1, ANY_RANK, WORDS("step_00000004", parameters, "tensor '", "damaged"));

    train_to(2, "missing", "");
    unlink(path_in("missing/checkpoints/step_00000002/%s", optimizer));
    f = train_to(4, "missing", "");
    failure_rows("a file of the only checkpoint is missing", &f, 1, ANY_RANK, WORDS("step_00000002", optimizer, "No such file"));
}

static void full_disk(void)
{
    train_to(2, "full", "");
    struct failed f = train_to(4, "full", "--debug.fail_write=1");
    failure_rows("the disk is full when step 4 is saved", &f, 1, ANY_RANK, WORDS("step 4 is not saved", "No space left on device"));
    f = command_fails("ckpt verify full");
    lab_check("       the checkpoint of step 2 is intact: exit code of ckpt verify", 0, f.code, 0);
    f = train_to(4, "full", "");
    lab_check("       started again with room: exit code", 0, f.code, 0);
}

static void data_cut_off(void)
{
    char command[COMMAND_TEXT];
    struct failed f = command_fails("data prepare tokens.bin --data.text=text.txt -q");

    lab_check("a token file is prepared: exit code", 0, f.code, 0);
    if (truncate(path_in("tokens.bin"), 20000) != 0) exit(1);
    snprintf(command, sizeof command, "train -n %ld --data.tokens=tokens.bin --train.steps=4 --run.dir=cut %s", lab_size("ranks"),
             injected_options());
    f = command_fails(command);
    failure_rows("a token file is cut off", &f, 1, ANY_RANK, WORDS("tokens.bin", "20000 bytes", "but the header says"));
}

/* A save writes at least tensors and then the manifest: its seconds are no less than the delays of both, however busy the machine is. */
static void slow_storage(void)
{
    enum { DELAY_MS = 50, WRITES = 2 };
    double saves = 0, delays = 0;
    char line[COMMAND_TEXT];
    struct failed f = train_to(6, "slow", "--debug.slow=disk:all:50");
    FILE *metrics = fopen(path_in("slow/metrics.jsonl"), "r");

    lab_equal("each write of a checkpoint takes 50 ms longer: exit code", 0, f.code, 0);
    while (metrics && fgets(line, sizeof line, metrics)) {
        double saved = lab_json(line, "save_seconds");

        saves += isnan(saved) ? 0 : saved;
        delays += isnan(saved) ? 0 : WRITES * DELAY_MS / 1000.0;
    }
    if (metrics) fclose(metrics);
    lab_above("       seconds of saving, in metrics.jsonl / of two such delays for each save", 1, saves / delays);
    f = command_fails("ckpt verify slow");
    lab_equal("       the checkpoint is intact: exit code of ckpt verify", 0, f.code, 0);
}

LAB(f9_injected, "injected failures, and what names them", { "ranks", "ranks of each run", 2, 2, RANKS_MOST },
    { "layers", "layers of the model", 1, 1, 64 })
{
    folder_new(f9_folder);
    folder_write_text(path_in("text.txt"));
    lab_open("F9");
    different_ranks();
    damaged_checkpoints();
    full_disk();
    data_cut_off();
    slow_storage();
    lab_not_measurable("a link that loses packets, a firewall between nodes", "needs two machines and control over their network");
    lab_not_measurable("a GPU with memory errors, or one that falls off the bus", "needs a GPU, and a driver that injects such errors");
    folder_remove(f9_folder);
    return lab_close();
}
