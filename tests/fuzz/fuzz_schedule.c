/* Any bytes as a file with a pipeline's schedule: refused in one line, or a schedule that passes the check and is simulated,
 * drawn and written. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"
#include "base/mem.h"
#include "lockstep/pipeline.h"
#include "lockstep/program.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

static void fuzz_schedule_use(const ls_pipeline_schedule *s)
{
    ls_pipeline_timeline p;
    char *text;

    ASSERT(ls_pipeline_schedule_check(s) == LS_OK);
    ASSERT(ls_pipeline_play(s, NULL, &p) == LS_OK && p.seconds > 0 && p.bubble >= 0 && p.bubble < 1);
    ls_pipeline_played_free(s, &p);
    for (int r = 0; r < s->stages; r++)
        for (int c = 0; c < s->chunks; c++) ASSERT(ls_pipeline_schedule_slots(s, r, c) >= 1);
    ASSERT(ls_pipeline_text(s, NULL, 80, 1, &text) == LS_OK);
    ls_free(text);
    ASSERT(ls_pipeline_svg(s, NULL, &text) == LS_OK);
    ls_free(text);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    struct mem_stats before, after;
    ls_pipeline_schedule s;
    char path[64];
    int fd = memfd_create("schedule", MFD_CLOEXEC);

    ASSERT(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    mem_read(&before);
    mem_set_limit(64 << 20);             /* sizes in the first line may ask for much */
    ls_status st = ls_pipeline_schedule_read(path, &s);
    mem_set_limit(0);
    if (st == LS_OK) {
        fuzz_schedule_use(&s);
        ls_pipeline_schedule_free(&s);
    } else ASSERT(ls_errmsg()[0] && !strchr(ls_errmsg(), '\n'));
    mem_read(&after);
    ASSERT(after.total_now == before.total_now);
    close(fd);
    return 0;
}
