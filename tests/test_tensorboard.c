/* test_tensorboard.c - the events of a run that was stopped and resumed, read as TensorBoard reads them.
 *
 * TensorBoard loads a run's files in the order of their names. A session_log with status START and step s drops every scalar with step s
 * or later that it has seen before (tensorboard/backend/event_processing/event_accumulator.py, _Purge).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "train/run/run_folder.h"

enum { STEPS = 8, TAGS = 16 };

/* Points of each tag by step, as a chart would show them. */
struct charts { char tag[TAGS][64]; int tags; int points[TAGS][STEPS + 1]; };

struct field { uint64_t number, wire, value; const unsigned char *data; };  /* data: of a byte string, value its length */

static uint64_t read_varint(const unsigned char **at)
{
    uint64_t value = 0;

    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*at)++;

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
}

/* The next field of a protobuf message that ends at `end`. */
static bool read_field(const unsigned char **at, const unsigned char *end, struct field *f)
{
    static const size_t fixed[] = { [1] = 8, [5] = 4 };

    if (*at >= end) return false;
    uint64_t key = read_varint(at);
    *f = (struct field){ .number = key >> 3, .wire = key & 7, .data = *at };
    assert_true(f->wire == 0 || f->wire == 1 || f->wire == 2 || f->wire == 5);
    if (f->wire == 0 || f->wire == 2) f->value = read_varint(at);
    if (f->wire == 2) f->data = *at;
    *at += f->wire == 2 ? f->value : f->wire == 0 ? 0 : fixed[f->wire];
    return true;
}

static int find_tag(struct charts *c, const unsigned char *name, size_t length)
{
    char tag[64];

    snprintf(tag, sizeof tag, "%.*s", (int)length, (const char *)name);
    for (int i = 0; i < c->tags; i++)
        if (strcmp(c->tag[i], tag) == 0) return i;
    assert_true(c->tags < TAGS);
    strcpy(c->tag[c->tags], tag);
    return c->tags++;
}

static void read_summary(struct charts *c, const struct field *summary, uint64_t step)
{
    const unsigned char *at = summary->data, *end = at + summary->value;
    struct field value, inside;

    assert_true(step >= 1 && step <= STEPS);
    while (read_field(&at, end, &value))
        for (const unsigned char *v = value.data, *stop = v + value.value; read_field(&v, stop, &inside);)
            if (inside.number == 1) c->points[find_tag(c, inside.data, inside.value)][step]++;
}

static void purge(struct charts *c, uint64_t from)
{
    for (int i = 0; i < c->tags; i++)
        for (uint64_t step = from; step <= STEPS; step++) c->points[i][step] = 0;
}

static void read_event(struct charts *c, const unsigned char *at, const unsigned char *end)
{
    struct field f, summary = { 0 }, session = { 0 }, status;
    uint64_t step = 0;

    while (read_field(&at, end, &f)) {
        if (f.number == 2) step = f.value;
        if (f.number == 5) summary = f;
        if (f.number == 7) session = f;
    }
    if (session.data) {
        const unsigned char *s = session.data;

        assert_true(read_field(&s, s + session.value, &status) && status.number == 1 && status.value == 1);
        purge(c, step);
    }
    if (summary.data) read_summary(c, &summary, step);
}

static void read_file(struct charts *c, const char *path)
{
    char *text;
    size_t bytes, at = 0;

    OK(file_read(path, &text, &bytes));
    while (at < bytes) {
        uint64_t length;

        memcpy(&length, text + at, sizeof length);
        read_event(c, (unsigned char *)text + at + 12, (unsigned char *)text + at + 12 + length);
        at += 16 + length;
    }
    mem_free(text);
}

static int is_events(const struct dirent *e) { return strncmp(e->d_name, "events.out.tfevents.", 20) == 0; }

static int tensorboard_test_read_all(struct charts *c, const char *folder)
{
    struct dirent **name;
    int n = scandir(folder, &name, is_events, alphasort);

    for (int i = 0; i < n; i++) {
        char *path = file_path("%s/%s", folder, name[i]->d_name);

        read_file(c, path);
        mem_free(path);
        free(name[i]);
    }
    free(name);
    return n;
}

/* A process that begins after step `done` and makes the steps up to `last`. */
static void run_steps(const char *folder, uint64_t done, uint64_t last)
{
    struct run_folder r = RUN_FOLDER_NONE;
    struct options options = { 0 };
    struct config c;

    OK(options_open(config_table(), &c, 0, &options));
    mem_free(c.run.dir);
    c.run.dir = mem_strdup(folder);
    OK(run_folder_name(&c, &r));
    OK(run_folder_start(&r, &c, "", NULL, done));
    for (uint64_t step = done + 1; step <= last; step++)
        OK(run_folder_put(&r, &(struct metrics){ .step = step, .bubble = -1, .loss = 1, .evaluated = true }));
    run_folder_close(&r);
    options_close(&options);
}

static void expect_each_step_once(const char *folder, int files)
{
    struct charts c = { 0 };

    assert_int_equal(tensorboard_test_read_all(&c, folder), files);
    assert_true(c.tags >= 9);
    for (int i = 0; i < c.tags; i++)
        for (int step = 1; step <= STEPS; step++)
            if (c.points[i][step] != 1) fail_msg("%s: step %d has %d points", c.tag[i], step, c.points[i][step]);
}

static void test_stopped_and_resumed(void **state)
{
    char folder[] = "test_tensorboard.XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(folder));
    run_steps(folder, 0, 3);
    run_steps(folder, 3, STEPS);
    expect_each_step_once(folder, 2);
    OK(file_remove_tree(folder));
}

/* Killed after step 6, resumed from the checkpoint of step 4, killed at once, resumed again. */
static void test_killed_and_resumed(void **state)
{
    char folder[] = "test_tensorboard.XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(folder));
    run_steps(folder, 0, 6);
    run_steps(folder, 4, 4);
    run_steps(folder, 4, STEPS);
    expect_each_step_once(folder, 3);
    OK(file_remove_tree(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_stopped_and_resumed), cmocka_unit_test(test_killed_and_resumed) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
