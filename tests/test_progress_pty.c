/* test_progress_pty.c - the progress line on a terminal, during a run (it always fits, however the terminal is resized)
 * and during an evaluation. */
#include "base/base.h"
#include "base/file.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

enum { FRAMES = 2, FRAMES_LATE = 2, DEADLINE_MS = 60000 };  /* late: begun before the resizing */

struct terminal { int fd; pid_t child; char bytes[4096]; size_t count, at; };

/* Everything drawn before now is read and discarded. */
static void drain(struct terminal *t)
{
    struct pollfd ready = { .fd = t->fd, .events = POLLIN };

    while (poll(&ready, 1, 0) == 1 && read(t->fd, t->bytes, sizeof t->bytes) > 0) { }
    t->count = t->at = 0;
}

static void resize(const struct terminal *t, int columns)
{
    struct winsize size = { .ws_row = 24, .ws_col = (unsigned short)columns };

    assert_int_equal(ioctl(t->fd, TIOCSWINSZ, &size), 0);
}

static void progress_pty_start(struct terminal *t, char *const *argv)
{
    *t = (struct terminal){ .fd = posix_openpt(O_RDWR | O_NOCTTY) };
    assert_true(t->fd >= 0 && grantpt(t->fd) == 0 && unlockpt(t->fd) == 0);
    resize(t, 120);
    t->child = fork();
    assert_true(t->child >= 0);
    if (t->child > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  /* a test that fails leaves nothing behind */
    int slave = open(ptsname(t->fd), O_RDWR | O_NOCTTY);
    dup2(slave, STDOUT_FILENO);
    setenv("TERM", "xterm", 1);
    execv(argv[0], argv);
    _exit(127);
}

static int next_byte(struct terminal *t)
{
    struct pollfd wait = { .fd = t->fd, .events = POLLIN };

    if (t->at == t->count) {
        assert_int_equal(poll(&wait, 1, DEADLINE_MS), 1);
        ssize_t n = read(t->fd, t->bytes, sizeof t->bytes);
        assert_true(n > 0);
        t->count = (size_t)n;
        t->at = 0;
    }
    return (unsigned char)t->bytes[t->at++];
}

/* The next frame that was begun by "\r\033[K" and is ended by another "\r"; its text without escape sequences. Returns its columns. */
static int next_frame(struct terminal *t, char *text, size_t room)
{
    size_t n = 0;
    int columns = 0, c;

    while (next_byte(t) != '\r') { }
    while ((c = next_byte(t)) != '\r') {
        if (c == '\033') {
            while (!strchr("Km", c = next_byte(t)) || c == '[') { }
            continue;
        }
        columns += (c & 0xc0) != 0x80;  /* each character once */
        if (n + 1 < room) text[n++] = (char)c;
    }
    text[n] = '\0';
    t->at--;  /* the '\r' begins the next */
    return columns;
}

static void write_text(const char *path)
{
    FILE *f = fopen(path, "w");

    for (int i = 0; i < 400; i++) fprintf(f, "line %d of a text\n", i);
    fclose(f);
}

static void evaluation_has_a_line(void **state)
{
    char dir[] = "/tmp/lockstep_pty_XXXXXX", text[64], run[64], run_option[80], frame[512];
    struct terminal t;
    int status;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(text, sizeof text, "%s/text", dir);
    snprintf(run, sizeof run, "%s/run", dir);
    snprintf(run_option, sizeof run_option, "--run.dir=%s", run);
    write_text(text);
    char *train[] = { "./lockstep", "train", "-q", text, run_option, "--model.preset=llama-tiny", "--data.seq_len=16", "--train.steps=1",
                      "--train.eval_batches=1", "--launch.threads=1", NULL };
    pid_t child = fork();
    if (child == 0) execv(train[0], train);
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char *eval[] = { "./lockstep", "eval", run, text, "--launch.threads=1", NULL };
    progress_pty_start(&t, eval);
    int columns = next_frame(&t, frame, sizeof frame);
    if (strncmp(frame, "sample 0/", 9) != 0 || !strstr(frame, "  0% ")) fail_msg("not the line of an evaluation: '%s'", frame);
    assert_true(columns < 120);
    while (waitpid(t.child, &status, WNOHANG) == 0) drain(&t);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(t.fd);
    assert_int_equal(file_remove_tree(dir), 0);
}

static void progress_line_fits_every_width(void **state)
{
    static const int widths[] = { 120, 80, 40, 20, 10, 120 };
    char dir[] = "/tmp/lockstep_pty_XXXXXX", text_option[64], run_option[64], frame[512];
    struct terminal t;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(text_option, sizeof text_option, "--data.text=%s/text", dir);
    snprintf(run_option, sizeof run_option, "--run.dir=%s/run", dir);
    char *path = text_option + strlen("--data.text=");
    write_text(path);
    char *argv[] = { "./lockstep", "train", text_option, run_option, "--model.preset=llama-tiny", "--data.seq_len=16",
                     "--train.micro_batch=1",
                     "--train.steps=1000000", "--train.eval_every=0", "--launch.threads=1", NULL };
    progress_pty_start(&t, argv);
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        resize(&t, widths[i]);
        drain(&t);
        for (int k = 0; k < FRAMES_LATE + FRAMES; ) {
            int columns = next_frame(&t, frame, sizeof frame);

            if (strncmp(frame, "step ", 5) != 0) continue;  /* the report before the first step */
            if (k++ < FRAMES_LATE) continue;
            if (columns >= widths[i]) fail_msg("%d columns on a terminal of %d: '%s'", columns, widths[i], frame);
            assert_null(strchr(frame, '\n'));
            if (widths[i] == 120 && !(strstr(frame, "loss ") && strstr(frame, " left")))
                fail_msg("120 columns do not show all: '%s'", frame);
            if (widths[i] == 40 && strstr(frame, "  tok")) fail_msg("a field is truncated: '%s'", frame);
        }
    }
    kill(t.child, SIGKILL);
    waitpid(t.child, NULL, 0);
    close(t.fd);
    assert_int_equal(file_remove_tree(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(progress_line_fits_every_width), cmocka_unit_test(evaluation_has_a_line) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
