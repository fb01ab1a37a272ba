#include "helper_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "lockstep/program.h"

void schedule_text(const ls_pipeline_schedule *s, char *out, size_t room)
{
    size_t n = 0;

    *out = '\0';
    for (int r = 0; r < s->stages; r++)
        for (int i = 0; i < s->count[r]; i++) {
            const ls_action *a = &s->list[r][i];

            n += (size_t)snprintf(out + n, room - n, "%s%c%d.%d", i ? " " : r ? " | " : "", "FBW"[a->kind], a->chunk, a->micro);
        }
}

void schedule_write(const char *path, const char *text)
{
    assert_int_equal(file_write(path, text, strlen(text)), LS_OK);
}

void schedule_refused(const char *text, ls_status st, const char *words)
{
    ls_pipeline_schedule s = { .stages = 77 };
    char path[64];

    snprintf(path, sizeof path, "/tmp/lockstep-schedule-%d", (int)getpid());
    schedule_write(path, text);
    assert_int_equal(ls_pipeline_schedule_read(path, &s), st);
    if (!strstr(ls_errmsg(), words)) fail_msg("\"%s\" is not in \"%s\"", words, ls_errmsg());
    assert_int_equal(s.stages, 77);
    unlink(path);
}
