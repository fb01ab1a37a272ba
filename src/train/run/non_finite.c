/* non_finite.c - finds the first value of a step that is NaN or infinite.
 *
 * The step's micro-batches run once more on all ranks, and each instruction's outputs are checked (runtime/non_finite.h). Each rank keeps
 * the first such value that it computes or receives, and the ranks agree on the earliest: a computed value before a received one; then by
 * micro-batch, segment, pipeline stage (in backward from the last one), instruction and rank. Nothing is updated.
 */
#include "train/run/step.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "runtime/non_finite.h"

enum { SOURCE, RECEIVED, NOTHING };
enum { BITS_MICRO = 14, BITS_SEGMENT = 2, BITS_STAGE = 8, BITS_NUMBER = 20, BITS_RANK = 17 };

static int64_t pack(int64_t key, int64_t value, int bits) { return key << bits | MIN(value, ((int64_t)1 << bits) - 1); }

static enum segment segment_of(const struct found *f)
{
    int s = 0;

    for (int n = f->number; n >= f->program->list[s].n; s++) n -= f->program->list[s].n;
    return (enum segment)s;
}

static int finite_check_stage_of(const struct step *s, const struct found *f, bool forward)
{
    for (int i = 0; s->pipeline && i < ls_pipeline_chunks(s->pipeline); i++)
        if (ls_pipeline_program(s->pipeline, i) == f->program) {
            ls_stage stage = ls_pipeline_stage_of(s->pipeline, i);

            return forward ? stage.index : stage.stages - 1 - stage.index;
        }
    return 0;
}

static int64_t non_finite_key_of(const struct step *s, const struct finding *f)
{
    const struct found *first = f->source.program ? &f->source : &f->received;
    int64_t key = f->source.program ? SOURCE : f->received.program ? RECEIVED : NOTHING, segment = 0, micro = 0, stage = 0;

    if (first->program) {
        segment = segment_of(first);
        micro = segment == SEG_OPTIMIZER ? INT32_MAX : first->tag;
        stage = finite_check_stage_of(s, first, segment == SEG_FORWARD);
    }
    key = pack(key, micro, BITS_MICRO);
    key = pack(key, segment, BITS_SEGMENT);
    key = pack(key, stage, BITS_STAGE);
    key = pack(key, first->program ? first->number : 0, BITS_NUMBER);
    return pack(key, s->ranks.rank, BITS_RANK);
}

static void non_finite_describe(const struct step *s, const struct finding *f, char out[NON_FINITE_ROOM])
{
    const struct found *first = f->source.program ? &f->source : &f->received;
    char text[FOUND_TEXT];

    if (!first->program) {
        snprintf(out, NON_FINITE_ROOM,
                 "a second pass over the same micro-batches found no such value: the memory or the processor of a machine may be faulty");
        return;
    }
    size_t at = (size_t)snprintf(out, NON_FINITE_ROOM, "%s", found_text(first, text));
    if (segment_of(first) != SEG_OPTIMIZER && at < NON_FINITE_ROOM)
        at += (size_t)snprintf(out + at, NON_FINITE_ROOM - at, " in micro-batch %d of %zu", first->tag + 1, s->accumulate);
    if (at < NON_FINITE_ROOM) snprintf(out + at, NON_FINITE_ROOM - at, " on rank %d", s->ranks.rank);
}

static void non_finite_look(const struct step *s, struct finding *f)
{
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++) program_look(p, f);
}

ls_status step_find_non_finite(struct step *s, uint64_t index, int *rank, char out[NON_FINITE_ROOM])
{
    struct finding f = { 0 };

    non_finite_look(s, &f);
    ls_status st = step_run_again(s, index);
    if (st == LS_OK) st = ls_program_run(s->program, LS_OPTIMIZER_STEP);
    non_finite_look(s, NULL);
    LS_TRY(st);
    int64_t key = non_finite_key_of(s, &f), first = -key;
    if (s->ranks.comm) LS_TRY(ls_all_reduce(s->ranks.comm, &first, &first, 1, LS_I64, LS_MAX, NULL));
    *rank = (int)(-first & (((int64_t)1 << BITS_RANK) - 1));
    if (key == -first) non_finite_describe(s, &f, out);
    return LS_OK;
}

ls_status step_share_non_finite(struct step *s, int rank, char text[NON_FINITE_ROOM])
{
    return s->ranks.comm ? ls_broadcast(s->ranks.comm, text, NON_FINITE_ROOM, LS_U8, rank, NULL) : LS_OK;
}
