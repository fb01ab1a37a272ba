/* framework.c - see framework.h. */
#include "plan/framework.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "lockstep/pipeline.h"
#include "parallel/layout.h"

struct framework {
    const char *name;
    double kept;  /* bytes per parameter of weights and gradients; divided by dp with ZeRO-3 */
    double f32;   /* further bytes per parameter if a run sums half-type gradients in f32 and the framework does not do so by default */
    double whole; /* further bytes per parameter in a pipeline with ZeRO-3, where gathered weights and sums of gradients stay unsharded */
    double state; /* bytes per parameter of master weights and Adam's moments; divided by dp from ZeRO-1 on */
    double slack; /* memory that runs hold beyond this count, as a share of the activations */
    double logit; /* bytes of a logit and its copies */
    double other; /* all other bytes: workspaces, fragmentation of the allocator */
    /* How many of the 4 bytes per token and element of the width that column-parallel matmuls gather are kept. NULL: none. */
    double (*gathered)(const ls_layout *l);
    bool dropout;
    bool by_op;   /* selective recomputation as torchtitan's */
    bool by_cost; /* stages are divided by FLOPs */
};

/* nanotron keeps them or gathers them again (tp_recompute_allgather); which of the two a run did is not published. Fitted to what the runs
 * held: next to none with two stages or tp over 16; else more than half of them, on average. */
static double nanotron_gathered(const ls_layout *l)
{
    if (l->pp == 2 || l->tp > 16) return 0;
    return l->pp == 1 ? 2.5 : 2;
}

/* nanotron: bf16 weights and gradients, which are added to f32 ones; slack is fitted. torchtitan: FSDP2 with f32 shards. The
 * zero-bubble pipelines are Megatron's, which adds gradients in f32. BLOOM's DeepSpeed has fp16 gradients; its memory was read from
 * nvidia-smi, so it has the context and the buffers of NCCL, too. */
static const struct framework frameworks[] = {
    { .name = "nanotron",
      .kept = 8,
      .state = 12,
      .slack = 0.17,
      .logit = 8,
      .other = 0.5e9,
      .gathered = nanotron_gathered,
      .by_cost = true },
    { .name = "torchtitan", .kept = 8, .whole = 6, .state = 8, .logit = 14, .other = 1e9, .by_op = true },
    { .name = "Zero Bubble", .kept = 6, .state = 12, .logit = 8, .other = 1e9, .dropout = true },
    { .name = "bigscience", .kept = 4, .f32 = 4, .state = 12, .logit = 8, .other = 12e9, .dropout = true },
};

const struct framework *framework_of(const char *source)
{
    for (size_t i = 0; i < COUNT_OF(frameworks); i++)
        if (strstr(source, frameworks[i].name)) return &frameworks[i];
    return NULL;
}

const char *framework_name(const struct framework *f) { return f->name; }

/* ---- a block ---- */

static double block_params(const struct framework_model *m)
{
    return m->hidden * m->hidden * (2 + 2 * m->kv_heads / m->heads) + (m->gated ? 3 : 2) * m->hidden * m->ffn;
}

/* Bytes per token that a block computes for its backward. */
static double scores(const struct framework_model *m, const ls_layout *l)
{
    return m->fused_attention ? 0 : 5 * m->heads * m->seq_len / l->tp;
}

static double computed_activations(const struct framework *f, const struct framework_model *m, const ls_layout *l)
{
    bool sp = l->sp && l->tp > 1;
    double gathered = sp && f->gathered ? f->gathered(l) : 0;
    double along = 8 - gathered + (f->dropout ? 2 : 0); /* tensors of the residual stream's shape */
    double inside = m->hidden * (4 + 4 * m->kv_heads / m->heads) + (m->gated ? 8 : 4) * m->ffn;

    return along * m->hidden / (sp ? l->tp : 1) + gathered * m->hidden + inside / l->tp + scores(m, l);
}

/* The part of it that is kept until then; the rest is recomputed, block after block. */
static double kept_activations(const struct framework *f, const struct framework_model *m, const ls_layout *l)
{
    double computed = computed_activations(f, m, l);

    if (l->recompute == LS_RECOMPUTE_FULL) return 2 * m->hidden / (l->sp ? l->tp : 1);
    if (l->recompute != LS_RECOMPUTE_SELECTIVE) return computed;
    return f->by_op ? (m->hidden * (6.5 + 2 * m->kv_heads / m->heads) + 2 * m->ffn) / l->tp : computed - scores(m, l);
}

/* ---- stages ---- */

/* Blocks of each stage. By cost, a stage ends with the block that reaches its share of the FLOPs, of which the head has some. Else stages
 * are equal; where two blocks more would divide evenly, the first and the last stage have one less. */
static void divide_blocks(const struct framework *f, const struct framework_model *m, int stages, int *blocks)
{
    double all = m->layers * block_params(m) + m->vocab * m->hidden, sum = 0;

    for (int i = 0; i < stages; i++) blocks[i] = m->layers / stages + (i < m->layers % stages);
    if (f->by_cost) {
        memset(blocks, 0, (size_t)stages * sizeof *blocks);
        for (int i = 0, stage = 0; i < m->layers; i++) {
            blocks[stage]++;
            sum += block_params(m);
            if (stage < stages - 1 && sum > all * (stage + 1) / stages) stage++;
        }
    } else if (m->layers % stages && (m->layers + 2) % stages == 0) {
        for (int i = 0; i < stages; i++) blocks[i] = (m->layers + 2) / stages - (i == 0 || i == stages - 1);
    }
}

/* Virtual stage of a rank's chunk. */
static int framework_stage_of(const ls_layout *l, int rank, int chunk)
{
    return layout_is_v(l) && chunk ? 2 * l->pp - 1 - rank : chunk * l->pp + rank;
}

/* The most blocks times micro-batches that a rank keeps activations of at once: from a forward to its backward, or its weight gradients. */
static int blocks_in_flight(const ls_layout *l, const ls_pipeline_schedule *s, const int *blocks, int rank, bool twice)
{
    int now = 0, most = 0;

    if (l->pp == 1) return blocks[0];
    if (twice) return blocks[rank] * MIN(l->micro_batches, MIN(2 * l->pp - 1, 2 * (l->pp - rank)));
    for (int i = 0; i < s->count[rank]; i++) {
        const ls_action *a = &s->list[rank][i];

        if (a->kind == LS_ACTION_FORWARD) now += blocks[framework_stage_of(l, rank, a->chunk)];
        most = MAX(most, now);
        if (a->kind == (s->split ? LS_ACTION_WEIGHTS : LS_ACTION_BACKWARD)) now -= blocks[framework_stage_of(l, rank, a->chunk)];
    }
    return most;
}

/* Bytes of a rank with so many blocks, each kept for so many micro-batches in flight. */
static double rank_bytes(const struct framework *f, const struct framework_model *m, const ls_layout *l, int blocks, int kept, int rank)
{
    double tokens = (double)l->micro_batch * m->seq_len / l->cp, table = m->vocab * m->hidden / l->tp;
    bool ends = layout_is_v(l) ? rank == 0 : rank == l->pp - 1, begins = rank == 0; /* has the head; the embedding */
    double block = block_params(m) / l->tp, tables = begins + (ends && !(m->tied && begins));
    double params = blocks * block + tables * table, shards = l->dp * l->cp;
    double held = f->kept + (m->f32_gradients ? f->f32 : 0);
    double activations = tokens * (1 + f->slack);
    double bytes = (l->zero == 3 ? held / shards : held) * params + f->state * params / (l->zero ? shards : 1);

    if (l->zero == 3) bytes += l->pp > 1 ? f->whole * params : 2 * (tables * table + 3 * block); /* gathered */
    bytes += activations * (computed_activations(f, m, l) - kept_activations(f, m, l));          /* of one block at a time */
    return bytes + activations * kept * kept_activations(f, m, l) + (ends ? f->logit * tokens * m->vocab / l->tp : 0) + f->other;
}

ls_status framework_bytes(const struct framework *f, const struct framework_model *m, const ls_layout *l, bool twice, double *out)
{
    int chunks = l->pp > 1 ? l->vpp : 1, stages = l->pp * chunks, *blocks = mem_array(MEM_OTHER, (size_t)stages, sizeof *blocks);
    ls_pipeline_schedule s = { 0 };
    ls_status st = blocks ? LS_OK : LS_ENOMEM;

    if (st == LS_OK && l->pp > 1) st = ls_layout_schedule(l, &s);
    if (st == LS_OK) divide_blocks(f, m, stages, blocks);
    *out = 0;
    for (int r = 0; st == LS_OK && r < l->pp; r++) {
        int own = 0;

        for (int k = 0; k < chunks; k++) own += blocks[framework_stage_of(l, r, k)];
        *out = MAX(*out, rank_bytes(f, m, l, own, blocks_in_flight(l, &s, blocks, r, twice), r));
    }
    ls_pipeline_schedule_free(&s);
    mem_free(blocks);
    return st;
}
