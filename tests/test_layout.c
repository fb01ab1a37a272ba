/* test_layout.c - ls_layout_check(): its messages for valid and invalid layouts, and its agreement with the compiler: all ranks'
 * programs compile if and only if it returns LS_OK. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "helper_layout.h"

/* ---- models ---- */

static const ls_model gpt2 = { .architecture = LS_GPT2, .layers = 4, .width = 16, .heads = 4, .kv_heads = 4, .ffn = 24, .vocab = 37,
                               .max_positions = 32, .tied = 1, .norm_eps = 1e-5, .init_std = 0.2 };
static const ls_model llama = { .architecture = LS_LLAMA, .layers = 4, .width = 16, .heads = 4, .kv_heads = 2, .ffn = 24, .vocab = 37,
                                .max_positions = 32, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2 };
static const ls_model mixtral = { .architecture = LS_MIXTRAL, .layers = 4, .width = 16, .heads = 4, .kv_heads = 2, .vocab = 37,
                                  .max_positions = 32, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2, .experts = 4,
                                  .experts_per_token = 2, .expert_ffn = 6, .norm_topk = 1 };
static const ls_model shared = { .architecture = LS_QWEN3_MOE, .layers = 4, .width = 16, .heads = 4, .kv_heads = 2, .vocab = 37,
                                 .max_positions = 32, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2, .experts = 4,
                                 .experts_per_token = 2, .expert_ffn = 6, .shared_ffn = 2, .norm_topk = 1 };

/* ---- a table ---- */

#define LAYOUT(...) { .pp = 1, .vpp = 1, .dp = 1, .cp = 1, .tp = 1, .ep = 1, .replicate = 1, .tp_chunks = 1, .overlap = 1, \
                      .fsdp_unit = 1, .prefetch = 1, .reshard_after_forward = 1, .bucket_bytes = 1 << 20, .first_bucket_bytes = 1 << 20, \
                      .schedule = "auto", .stages = "", \
                      .micro_batch = 2, .micro_batches = 4, .seq_len = 16, .every = 1, .master = 1, .optimizer = LS_ADAMW, \
                      .offload_path = ".", __VA_ARGS__ }
#define IN_BACKWARD(...) LAYOUT(.in_backward = 1, .micro_batches = 1, __VA_ARGS__)

/* says NULL: possible. */
struct row { const ls_model *model; ls_layout layout; const char *says; };

/* If a field is given twice, the last value counts; gcc warns about it. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif
static const struct row layout_rows[] = {
    { &gpt2, LAYOUT(.dp = 1), NULL },
    { NULL, LAYOUT(.dp = 3, .zero = 2), NULL },
    { NULL, LAYOUT(.dp = 4, .tp = 2), "parallel.tp=2: a model that is not a transformer supports only parallel.dp" },
    { NULL, LAYOUT(.pp = 2), "parallel.pp=2: a model that is not" },
    /* ranges */
    { &gpt2, LAYOUT(.dp = 0), "parallel.dp=0 is out of range: 1 to 131072" },
    { &gpt2, LAYOUT(.tp = -1), "parallel.tp=-1 is out of range" },
    { &gpt2, LAYOUT(.pp = 131073), "parallel.pp=131073 is out of range: 1 to 131072" },
    { &gpt2, LAYOUT(.pp = 4, .dp = 4096, .tp = 4), NULL },
    { &gpt2, LAYOUT(.dp = 1024, .tp = 256),
      "parallel.pp=1 * parallel.dp=1024 * parallel.cp=1 * parallel.tp=256 are too many ranks; at most 131072 are possible" },
    { &gpt2, LAYOUT(.pp = 65536, .dp = 65536, .cp = 65536, .tp = 65536), "are too many ranks" },
    { &gpt2, LAYOUT(.replicate = 0), "parallel.replicate=0 is out of range" },
    { &gpt2, LAYOUT(.vpp = 0), NULL },
    { &gpt2, LAYOUT(.pp = 2, .vpp = 0), "parallel.vpp=0 is out of range" },
    { &gpt2, LAYOUT(.receive_factor = 0.9), "parallel.receive_factor=0.9 is out of range: 1, which has room for an even load" },
    { &gpt2, LAYOUT(.receive_factor = 1.5), NULL },
    { &gpt2, LAYOUT(.tp_chunks = 17), "parallel.tp_chunks=17 is out of range: 1 to 16" },
    { &gpt2, LAYOUT(.micro_batch = 0), "train.micro_batch=0 is out of range" },
    { &gpt2, LAYOUT(.micro_batches = 0), "train.accumulate=0 is out of range" },
    { &gpt2, LAYOUT(.seq_len = 0), "data.seq_len=0 is out of range" },
    { &gpt2, LAYOUT(.zero = 4), "parallel.zero=4 is out of range: 0 to 3" },
    { &gpt2, LAYOUT(.compute = LS_I32), "precision.compute=i32 is not possible" },
    { &gpt2, LAYOUT(.grads = LS_F16), "precision.grads=f16 is not possible; use fp32 or bf16" },
    { &gpt2, LAYOUT(.grads = LS_BF16), "precision.grads=bf16 with precision.compute=fp32" },
    { &gpt2, LAYOUT(.reduce = LS_F16), "precision.reduce=f16 is not possible; use fp32 or bf16" },
    { &gpt2, LAYOUT(.bucket_bytes = 0), "parallel.bucket=0 holds no gradient; use 1 byte or more" },
    { &gpt2, LAYOUT(.offload = (ls_offload)3), "optim.offload: 3 does not exist" },
    { &gpt2, LAYOUT(.offload = LS_OFFLOAD_FILE), NULL },
    { &gpt2, LAYOUT(.offload_parameters = (ls_offload)3), "parallel.offload_parameters: 3 does not exist" },
    { &gpt2, LAYOUT(.offload_parameters = LS_OFFLOAD_FILE), NULL },
    { &gpt2, LAYOUT(.offload_parameters = LS_OFFLOAD_FILE, .offload_path = NULL), "parallel.offload_parameters=file needs a folder" },
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .offload_parameters = LS_OFFLOAD_CPU), NULL },
    { &gpt2, LAYOUT(.dp = 2, .zero = 2, .offload_parameters = LS_OFFLOAD_CPU),
      "parallel.offload_parameters=cpu with parallel.zero=2 over 2 data-parallel ranks" },
    { &gpt2, LAYOUT(.tp = 2, .offload_parameters = LS_OFFLOAD_CPU), NULL },
    { &gpt2, LAYOUT(.offload = LS_OFFLOAD_FILE, .offload_path = NULL), "optim.offload=file needs a folder" },
    { &gpt2, LAYOUT(.recompute = LS_RECOMPUTE_EVERY, .every = 0), "recompute.mode=every:0" },
    { &gpt2, LAYOUT(.cp_method = (ls_cp_method)2), "parallel.cp_method: 2 does not exist; use ring or all_to_all" },
    /* data parallelism */
    { &gpt2, LAYOUT(.dp = 6, .zero = 3, .replicate = 2), NULL },
    { &gpt2, LAYOUT(.dp = 4, .zero = 1, .replicate = 3),
      "parallel.dp=4 is not a multiple of parallel.replicate=3; use parallel.replicate=2" },
    { &gpt2, LAYOUT(.dp = 4, .replicate = 2), "parallel.replicate=2 does nothing here: parallel.zero=0 replicates everything" },
    { &gpt2, LAYOUT(.dp = 4, .zero = 1, .replicate = 4),
      "parallel.replicate=4 over parallel.dp=4 * parallel.cp=1 ranks makes every rank a replica and shards nothing" },
    { &gpt2, LAYOUT(.dp = 2, .cp = 2, .zero = 1, .replicate = 2), NULL },
    /* methods */
    { &gpt2, LAYOUT(.dp = 3, .method = LS_METHOD_DATAPARALLEL), NULL },
    { NULL, LAYOUT(.dp = 3, .method = LS_METHOD_SERVER), NULL },
    { &gpt2, LAYOUT(.dp = 3, .method = LS_METHOD_ASYNC, .async_turns = 1), NULL },
    { &gpt2, LAYOUT(.dp = 3, .method = LS_METHODS), "parallel.method: 4 does not exist; use allreduce, dataparallel, server or async" },
    { &gpt2, LAYOUT(.dp = 2, .method = LS_METHOD_SERVER, .zero = 1),
      "parallel.zero=1 with parallel.method=server, which has one copy of the model, on rank 0, and shards nothing; use parallel.zero=0" },
    { &gpt2, LAYOUT(.dp = 2, .method = LS_METHOD_DATAPARALLEL, .tp = 2), "parallel.tp=2 with parallel.method=dataparallel" },
    { &gpt2, LAYOUT(.dp = 2, .method = LS_METHOD_ASYNC, .pp = 2), "parallel.pp=2 with parallel.method=async" },
    { &gpt2, LAYOUT(.dp = 2, .method = LS_METHOD_ASYNC, .reduce = LS_BF16), "precision.reduce=bf16 with parallel.method=async" },
    { &mixtral, LAYOUT(.dp = 2, .method = LS_METHOD_SERVER), NULL },
    { &mixtral, LAYOUT(.dp = 1, .method = LS_METHOD_ASYNC), NULL },
    { &mixtral, LAYOUT(.dp = 2, .method = LS_METHOD_ASYNC), "parallel.method=async with experts, whose statistics are those of all ranks" },
    { NULL, LAYOUT(.dp = 2, .method = LS_METHOD_ASYNC), NULL },
    /* tensor parallelism */
    { &gpt2, LAYOUT(.tp = 4, .sp = 1), NULL },
    { &llama, LAYOUT(.tp = 4), NULL },
    { &gpt2, LAYOUT(.tp = 5), "model.heads=4 cannot be sharded over parallel.tp=5: every rank needs at least one" },
    { &mixtral, LAYOUT(.tp = 4), NULL },
    { &shared, LAYOUT(.tp = 2), NULL },
    { &shared, LAYOUT(.tp = 3), "model.shared_ffn=2 cannot be sharded over parallel.tp=3" },
    /* experts */
    { &mixtral, LAYOUT(.dp = 4, .ep = 4), NULL },
    { &mixtral, LAYOUT(.dp = 2, .cp = 2, .ep = 4), NULL },
    { &mixtral, LAYOUT(.dp = 8, .ep = 8), "model.experts=4 cannot be sharded over parallel.ep=8" },
    { &mixtral, LAYOUT(.dp = 3, .ep = 2), "parallel.ep=2 does not divide parallel.dp=3 / parallel.replicate=1 * parallel.cp=1 = 3" },
    { &gpt2, LAYOUT(.dp = 2, .ep = 2), "parallel.ep=2 does nothing here: the model has no experts" },
    /* the sequence */
    { &gpt2, LAYOUT(.seq_len = 33), "data.seq_len=33, but the model has 32 positions; use 32 or less" },
    { &gpt2, LAYOUT(.cp = 8), NULL },
    { &gpt2, LAYOUT(.cp = 8, .seq_len = 15),
      "data.seq_len=15 is too short for parallel.cp=8 with two chunks per rank; use at least 16 tokens" },
    { &gpt2, LAYOUT(.cp = 4, .cp_method = LS_CP_ALL_TO_ALL, .seq_len = 4), NULL },
    { &gpt2, LAYOUT(.cp = 4, .cp_method = LS_CP_ALL_TO_ALL, .seq_len = 3),
      "data.seq_len=3 is too short for parallel.cp=4; use at least 4 tokens" },
    { &gpt2, LAYOUT(.cp = 4, .cp_method = LS_CP_ALL_TO_ALL, .tp = 2),
      "parallel.cp_method=all_to_all with parallel.cp=4: with model.heads=4 and parallel.tp=2 a rank has 2 heads, "
      "enough for parallel.cp=2" },
    { &llama, LAYOUT(.cp = 2, .cp_method = LS_CP_ALL_TO_ALL, .tp = 3), "a rank has 1 heads" },
    { &gpt2, LAYOUT(.cp = 3, .tp = 4, .sp = 1, .seq_len = 11),
      "data.seq_len=11 over parallel.cp=3 gives shards of 3 tokens, too few for parallel.sp over parallel.tp=4" },
    { &gpt2, LAYOUT(.cp = 3, .tp = 4, .seq_len = 11), NULL },
    /* recomputation */
    { &gpt2, LAYOUT(.recompute = LS_RECOMPUTE_BUDGET, .budget = 1 << 30, .dp = 2), NULL },
    { &gpt2, LAYOUT(.recompute = LS_RECOMPUTE_BUDGET), "recompute.mode=budget:0 has no room" },
    { &gpt2, LAYOUT(.recompute = LS_RECOMPUTE_BUDGET, .budget = 1 << 30, .tp = 2), NULL },
    { &gpt2, LAYOUT(.recompute = LS_RECOMPUTE_FIRST, .every = 0, .tp = 2), NULL },
    { &gpt2, LAYOUT(.recompute = LS_RECOMPUTE_FIRST, .every = -1), "recompute.mode=first:-1" },
    /* updates in backward */
    { &gpt2, IN_BACKWARD(.dp = 2, .zero = 3), NULL },
    { &mixtral, IN_BACKWARD(.dp = 2, .zero = 1, .ep = 2, .tp = 2), NULL },
    { &gpt2, IN_BACKWARD(.pp = 2), "optim.in_backward=true with parallel.pp=2: a stage has several micro-batches in flight" },
    { &gpt2, IN_BACKWARD(.dp = 2, .method = LS_METHOD_SERVER), "optim.in_backward=true with parallel.method=server, which updates after" },
    { &gpt2, IN_BACKWARD(.dp = 2, .method = LS_METHOD_DATAPARALLEL), "optim.in_backward=true with parallel.method=dataparallel" },
    { &gpt2, LAYOUT(.in_backward = 1, .micro_batch = 0), "train.micro_batch=0" },
    { NULL, LAYOUT(.in_backward = 1), "optim.in_backward=true with train.accumulate=4: gradients are summed over micro-batches" },
    { &gpt2, IN_BACKWARD(.offload_parameters = LS_OFFLOAD_CPU), "optim.in_backward=true with parallel.offload_parameters: updated" },
    { &gpt2, IN_BACKWARD(.offload = LS_OFFLOAD_CPU), "optim.in_backward=true with optim.offload: state is loaded after backward" },
    { &gpt2, IN_BACKWARD(.dp = 2, .optimizer = LS_LAMB), NULL },
    { &gpt2, IN_BACKWARD(.zero = 1, .optimizer = LS_LARS), NULL }, /* nothing to shard over */
    { &gpt2, IN_BACKWARD(.dp = 2, .zero = 1, .optimizer = LS_LARS),
      "optim.in_backward=true with optim.name=lars: the norms of its layers are summed over the ranks that have shards of them" },
    { &gpt2, IN_BACKWARD(.tp = 2, .optimizer = LS_LAMB), "optim.in_backward=true with optim.name=lamb" },
    { &mixtral, IN_BACKWARD(.dp = 2, .ep = 2, .optimizer = LS_LAMB), "optim.in_backward=true with optim.name=lamb" },
    { &gpt2, LAYOUT(.tp = 2, .optimizer = LS_LAMB), NULL },
    /* pipelines */
    { &gpt2, LAYOUT(.pp = 4), NULL },
    { &gpt2, LAYOUT(.pp = 2, .vpp = 2, .micro_batches = 3), NULL },
    { &gpt2, LAYOUT(.pp = 2, .vpp = 2, .schedule = "zb-v"), NULL },
    { &gpt2, LAYOUT(.pp = 5),
      "model.layers=4 in parallel.pp=5 * parallel.vpp=1 stages: every stage needs at least one layer; use at most 4 stages" },
    { &gpt2, LAYOUT(.pp = 2, .vpp = 3), "model.layers=4 in parallel.pp=2 * parallel.vpp=3 stages" },
    { &gpt2, LAYOUT(.pp = 2, .vpp = 2, .schedule = "1f1b"),
      "parallel.schedule=1f1b with parallel.vpp=2: this schedule has 1 chunk per rank; use parallel.vpp=1, or interleaved" },
    { &gpt2, LAYOUT(.pp = 2, .schedule = "fast"),
      "parallel.schedule=fast does not exist; use gpipe, 1f1b, interleaved, zb-h1, zb-v, or file:PATH" },
    { &gpt2, LAYOUT(.pp = 2, .schedule = "forward"), "parallel.schedule=forward is for evaluation: it has no backward passes" },
    { &gpt2, LAYOUT(.pp = 2, .stages = "1,3"), NULL },
    { &gpt2, LAYOUT(.pp = 2, .schedule = NULL, .stages = NULL), NULL },
    { &gpt2, LAYOUT(.pp = 2, .stages = "1,2"), "parallel.stages=1,2: expected 2 numbers that add up to 4" },
    { &gpt2, LAYOUT(.pp = 2, .stages = "4,0"), "parallel.stages=4,0: '0' is not a number of layers from 1 to 4" },
    { &gpt2, LAYOUT(.pp = 2, .stages = "1,1,2"), "expected 2 numbers" },
    { &gpt2, LAYOUT(.pp = 2, .dp = 2, .zero = 2, .schedule = "zb-h1"), NULL },
    { &gpt2, LAYOUT(.pp = 2, .vpp = 2, .dp = 2, .zero = 3, .schedule = "zb-v"), NULL },
    { &gpt2, LAYOUT(.pp = 2, .dp = 2, .zero = 2, .schedule = "zb-h1", .unsharded_accumulation = 1), NULL },
    { &gpt2, LAYOUT(.pp = 2, .zero = 2, .schedule = "zb-h1"), NULL },  /* nothing to shard over */
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .reshard_after_forward = 0), NULL },
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .fsdp_unit = 0, .prefetch = 0), NULL },
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .fsdp_unit = 1000, .prefetch = LS_PREFETCH_MOST), NULL },
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .fsdp_unit = -1), "parallel.fsdp_unit: -1 layers" },
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .prefetch = -1), "parallel.prefetch=-1" },
    { &gpt2, LAYOUT(.dp = 2, .zero = 3, .prefetch = LS_PREFETCH_MOST + 1), "parallel.prefetch=1001" },
    { &gpt2, LAYOUT(.pp = 2, .dp = 2, .zero = 3, .reshard_after_forward = 0), "parallel.reshard_after_forward=false with parallel.pp=2" },
};
#pragma GCC diagnostic pop

static void layout_table(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(layout_rows); k++) {
        ls_status st = ls_layout_check(layout_rows[k].model, &layout_rows[k].layout);

        if (!layout_rows[k].says && st < 0) fail_msg("row %zu: %s", k, ls_errmsg());
        if (!layout_rows[k].says) continue;
        assert_int_equal(st, LS_EINVAL);
        if (!strstr(ls_errmsg(), layout_rows[k].says)) fail_msg("'%s' lacks '%s'", ls_errmsg(), layout_rows[k].says);
    }
}

static void one_rank_is_the_default(void **state)
{
    ls_layout l = ls_layout_default();
    char text[LS_LAYOUT_TEXT];

    (void)state;
    assert_int_equal(ls_layout_ranks(&l), 1);
    assert_int_equal(ls_layout_check(&gpt2, &l), LS_OK);
    assert_int_equal(ls_layout_check(NULL, &l), LS_OK);
    l.pp = 2, l.dp = 3, l.cp = 5, l.tp = 7, l.sp = 1, l.zero = 1;
    assert_int_equal(ls_layout_ranks(&l), 210);
    assert_string_equal(ls_layout_text(&l, text, sizeof text), "pp 2 (1f1b) x dp 3 (zero 1) x cp 5 (ring) x tp 7 (sp)");
}

static void what_is_offloaded_is_named(void **state)
{
    static const struct { ls_offload state, parameters; const char *text; } places[] = {
        { LS_OFFLOAD_CPU, LS_OFFLOAD_NONE, "dp 1 (zero 0), optimizer state in host memory" },
        { LS_OFFLOAD_NONE, LS_OFFLOAD_FILE, "dp 1 (zero 0), parameters and gradients in files" },
        { LS_OFFLOAD_CPU, LS_OFFLOAD_CPU, "dp 1 (zero 0), parameters, gradients and optimizer state in host memory" },
        { LS_OFFLOAD_FILE, LS_OFFLOAD_CPU, "dp 1 (zero 0), parameters and gradients in host memory, optimizer state in files" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        ls_layout l = ls_layout_default();
        char text[LS_LAYOUT_TEXT];

        l.offload = places[i].state;
        l.offload_parameters = places[i].parameters;
        assert_string_equal(ls_layout_text(&l, text, sizeof text), places[i].text);
    }
}

/* ---- the compiler ---- */

/* A step without samples, or of none: its programs compile. */
static bool is_empty(const ls_layout *l) { return l->micro_batch < 1 || l->micro_batches < 1 || l->seq_len < 1; }

static unsigned layout_test_draw(unsigned *state, unsigned n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

static int draw_int(unsigned *s, int least, int most) { return least + (int)layout_test_draw(s, (unsigned)(most - least + 1)); }

/* One of a few, mostly the first. */
static int draw_rare(unsigned *s, int usual, int least, int most) { return layout_test_draw(s, 4) ? usual : draw_int(s, least, most); }

static ls_model draw_model(unsigned *s)
{
    static const ls_model *const bases[] = { &gpt2, &llama, &mixtral, &shared };
    ls_model m = *bases[layout_test_draw(s, COUNT_OF(bases))];

    m.layers = (size_t)draw_int(s, 1, 6);
    m.kv_heads = (size_t)draw_int(s, 1, 3);
    m.heads = m.kv_heads * (size_t)draw_int(s, 1, 3);
    if (m.architecture == LS_GPT2) m.kv_heads = m.heads;
    m.width = 4 * m.heads;
    m.head_size = 0;
    if (!m.experts) m.ffn = (size_t)draw_int(s, 2, 24);
    if (m.experts) m.experts = (size_t)draw_int(s, 2, 5), m.expert_ffn = (size_t)draw_int(s, 1, 8);
    if (m.shared_ffn) m.shared_ffn = (size_t)draw_int(s, 0, 4);
    m.vocab = (size_t)draw_int(s, 2, 40);
    m.max_positions = (size_t)draw_int(s, 12, 32);
    m.tied = (int)layout_test_draw(s, 2);
    return m;
}

static void draw_pipeline(unsigned *s, const ls_model *m, ls_layout *l, char stages[64])
{
    static const char *const schedules[] = { "auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "forward", "fast" };
    int left = (int)m->layers, at = 0;

    l->schedule = layout_test_draw(s, 2) ? "auto" : schedules[layout_test_draw(s, COUNT_OF(schedules))];
    l->vpp = strcmp(l->schedule, "zb-v") == 0 ? draw_rare(s, 2, 1, 3) : draw_rare(s, 1, 1, 3);
    stages[0] = '\0';
    l->stages = stages;
    if (layout_test_draw(s, 4)) return;
    int n = draw_rare(s, l->pp * l->vpp, 1, 6);
    for (int k = 0; k < n; k++) {
        int size = k == n - 1 ? draw_rare(s, left, 0, 3) : draw_rare(s, MIN(left, 1), 0, 2);

        at += snprintf(stages + at, 64 - (size_t)at, "%s%d", k ? "," : "", size);
        left -= size;
    }
}

/* Up to 24 ranks; in about half of the layouts something does not fit. */
static ls_layout draw_layout(unsigned *s, const ls_model *m, char stages[64])
{
    ls_layout l = ls_layout_default();

    do {
        l.pp = draw_rare(s, 1, 1, 4);
        l.dp = draw_int(s, layout_test_draw(s, 30) != 0, 4);
        l.cp = draw_rare(s, 1, 1, 4);
        l.tp = draw_rare(s, 1, 1, 5);
    } while (ls_layout_ranks(&l) > 24);
    l.ep = m->experts || layout_test_draw(s, 20) == 0 ? draw_rare(s, 1, 1, 4) : 1;
    l.zero = draw_int(s, 0, 3) + (layout_test_draw(s, 60) == 0);
    l.replicate = draw_rare(s, 1, layout_test_draw(s, 20) != 0, 3);
    l.sp = (int)layout_test_draw(s, 2);
    l.cp_method = (ls_cp_method)layout_test_draw(s, 2 + (layout_test_draw(s, 20) == 0));
    l.tp_chunks = draw_rare(s, 1, 1, 17);
    l.overlap = layout_test_draw(s, 4) != 0;
    l.fsdp_unit = draw_int(s, -(layout_test_draw(s, 40) == 0), 4);
    l.prefetch = draw_int(s, -(layout_test_draw(s, 40) == 0), 4);
    l.reshard_after_forward = layout_test_draw(s, 3) != 0;
    l.unsharded_accumulation = (int)layout_test_draw(s, 2);
    l.bucket_bytes = layout_test_draw(s, 60) ? 4096 : 0;
    l.method = (ls_method)(layout_test_draw(s, 6) ? 0 : draw_int(s, 0, 4));
    if (l.method != LS_METHOD_ALLREDUCE && layout_test_draw(s, 4)) l.zero = 0, l.replicate = 1;
    l.micro_batch = draw_int(s, 1, 3);
    l.micro_batches = draw_int(s, 1, 5);
    l.seq_len = draw_int(s, layout_test_draw(s, 4) ? 8 : 1, layout_test_draw(s, 8) ? 12 : 36);
    l.recompute = (ls_recompute)layout_test_draw(s, LS_RECOMPUTE_FIRST + 1);
    l.every = draw_int(s, layout_test_draw(s, 20) != 0, 2);
    l.budget = (size_t)1 << 40;
    l.compute = layout_test_draw(s, 4) ? LS_F32 : layout_test_draw(s, 20) ? LS_BF16 : (ls_dtype)layout_test_draw(s, LS_DTYPES);
    l.reduce = layout_test_draw(s, 30) ? (ls_dtype)layout_test_draw(s, 2) : LS_F16;
    l.offload = (ls_offload)(layout_test_draw(s, 4) ? 0 : layout_test_draw(s, 4));
    l.offload_path = layout_test_draw(s, 30) ? "." : NULL;
    l.offload_parameters = (ls_offload)(layout_test_draw(s, 4) ? 0 : layout_test_draw(s, 4));
    l.optimizer = (ls_optimizer_kind)layout_test_draw(s, LS_OPTIMIZERS);
    l.in_backward = layout_test_draw(s, 4) == 0;
    if (l.in_backward) l.micro_batches = 1; /* a program doesn't say how often its caller runs it in a step */
    draw_pipeline(s, m, &l, stages);
    return l;
}

static void print_layout(const ls_model *m, const ls_layout *l, char *out, size_t room)
{
    snprintf(
        out, room,
        "%s of %zu layers, %zu heads, %zu kv, ffn %zu, expert_ffn %zu, shared_ffn %zu, experts %zu, vocab %zu, positions %zu; "
        "pp %d vpp %d dp %d cp %d tp %d ep %d zero %d replicate %d sp %d method %d chunks %d overlap %d unit %d prefetch %d reshard %d "
        "unsharded %d bucket %zu schedule %s stages '%s' B %d M %d T %d recompute %d every %d compute %d reduce %d offload %d "
        "parameters %d optimizer %d in_backward %d method %d",
        ls_architecture_name(m->architecture), m->layers, m->heads, m->kv_heads, m->ffn, m->expert_ffn, m->shared_ffn, m->experts, m->vocab,
        m->max_positions, l->pp, l->vpp, l->dp, l->cp, l->tp, l->ep, l->zero, l->replicate, l->sp, (int)l->cp_method, l->tp_chunks,
        l->overlap, l->fsdp_unit, l->prefetch, l->reshard_after_forward, l->unsharded_accumulation, l->bucket_bytes, l->schedule,
        l->stages, l->micro_batch, l->micro_batches, l->seq_len, (int)l->recompute, l->every,
        (int)l->compute, (int)l->reduce, (int)l->offload,
        (int)l->offload_parameters, (int)l->optimizer, l->in_backward, (int)l->method);
}

/* 300 random layouts; under LOCKSTEP_MATRIX=full 10,000. */
static void it_says_what_the_compiler_says(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX");
    int n = matrix && strcmp(matrix, "full") == 0 ? 10000 : 300, possible = 0;
    unsigned seed = 20;

    (void)state;
    for (int k = 0; k < n; k++) {
        char stages[64], text[1200], why[600];
        ls_model m = draw_model(&seed);
        ls_layout l = draw_layout(&seed, &m, stages);
        ls_status said = ls_layout_check(&m, &l);

        snprintf(why, sizeof why, "%s", said < 0 ? ls_errmsg() : "possible");
        ls_status compiled = layout_compile(&m, &l);
        possible += said == LS_OK;
        if (said == compiled) continue;
        print_layout(&m, &l, text, sizeof text);
        fail_msg("layout %d: %s: the check says: %s; the compiler: %s", k, text, why, compiled < 0 ? ls_errmsg() : "possible");
    }
    assert_in_range(possible, n / 5, n - n / 5); /* there were enough of both kinds */
}

/* Exactly the layouts that the table calls valid compile. */
static void the_table_compiles(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT_OF(layout_rows); k++) {
        if (!layout_rows[k].model || is_empty(&layout_rows[k].layout) || ls_layout_ranks(&layout_rows[k].layout) > 64) continue;
        ls_status st = layout_compile(layout_rows[k].model, &layout_rows[k].layout);

        if ((st == LS_OK) != (layout_rows[k].says == NULL)) fail_msg("row %zu: %s", k, st < 0 ? ls_errmsg() : "it compiles");
    }
}

/* The check computes no bytes: whether a budget can be met is found by compiling, which fails for no other reason. */
static void budget_that_is_too_small_is_found_by_the_compiler(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX");
    int n = matrix && strcmp(matrix, "full") == 0 ? 2000 : 200, met = 0, unmet = 0;
    unsigned seed = 31;

    (void)state;
    for (int k = 0; k < n; k++) {
        char stages[64];
        ls_model m = draw_model(&seed);
        ls_layout l = draw_layout(&seed, &m, stages);

        l.recompute = LS_RECOMPUTE_BUDGET;
        l.budget = (size_t)1 << draw_int(&seed, 14, 24);
        l.tp = l.cp = l.ep = 1;
        if (ls_layout_check(&m, &l) != LS_OK) continue;
        ls_status st = layout_compile(&m, &l);
        met += st == LS_OK;
        unmet += st < 0;
        if (st == LS_OK) continue;
        assert_int_equal(st, LS_EINVAL);
        if (!strstr(ls_errmsg(), "bytes cannot be met") || !strstr(ls_errmsg(), "use a larger budget")) fail_msg("%s", ls_errmsg());
    }
    if (met < n / 20 || unmet < n / 20) fail_msg("%d budgets were met, %d were not", met, unmet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_table),
        cmocka_unit_test(one_rank_is_the_default),
        cmocka_unit_test(what_is_offloaded_is_named),
        cmocka_unit_test(the_table_compiles),
        cmocka_unit_test(it_says_what_the_compiler_says),
        cmocka_unit_test(budget_that_is_too_small_is_found_by_the_compiler),
    };

    threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
