/* plan_case_machine.c - the machine of a published run: a built-in one with the network and the software of the row. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "cli/plan_case.h"

enum { NODE_MOST = 16 }; /* a machine with more processors in a node is a rack; tables call its trays nodes */

/* How many words of `text`, of at least three letters or digits, are in `type`, but not in `common`. */
static int words_in(const char *text, const char *type, const char *common)
{
    char word[CLUSTER_NAME];
    int count = 0;

    for (size_t n; *text; text += n ? n : 1) {
        for (n = 0; isalnum((unsigned char)text[n]); n++) word[n] = text[n];
        word[n] = '\0';
        count += n > 2 && strstr(type, word) && !strstr(common, word);
    }
    return count;
}

/* The built-in machine whose processor the type names: "H100-80GB-SXM (AWS p5 ..)" is an H100. Of several, the one whose name and memory
 * share the most words with the type, apart from the processor's; then one whose network is described by its links rather than by
 * measurements on a certain cluster; then the one with the most memory. */
static bool find_machine(const char *type, struct cluster *out)
{
    int best = -1;
    struct cluster c;

    for (int i = 0; cluster_builtin(i); i++) {
        char memory[16];

        if (cluster_read(cluster_builtin(i), &c) < 0) continue;
        if (strncmp(c.processor, type, strcspn(c.processor, " ")) != 0) continue;
        snprintf(memory, sizeof memory, "%.0fGB", ceil(c.memory / (1 << 30) / 10) * 10);
        int same = 2 * (words_in(c.name, type, c.processor) + 4 * words_in(memory, type, "")) + !c.curves;
        if (same < best || (same == best && c.memory <= out->memory)) continue;
        *out = c;
        best = same;
    }
    return best >= 0;
}

/* In NVFP4 all blocks are in it, as in Megatron-Bridge's benchmarks (bf16_with_nvfp4_mixed); to train to the end, NVIDIA keeps about 15% of
 * the linear layers in bf16 (2025, arXiv:2509.25149).
 *
 * A cast reads 2 bytes, and writes the value in rows and in columns, since the matmuls of a layer read it in both. Where it is scaled by
 * its own largest element, that is found first, which reads 2 bytes more. Delayed scaling (NVIDIA's recipes until 2025) uses the largest
 * of earlier steps, and MXFP8 finds that of each 32 elements as it goes: neither reads more. Rows and columns with scales of their own take
 * a pass each. */
enum { CAST_READS = 2, CAST_WRITES = 2, CAST_SCALES = 2 };
static const struct low_precision {
    const char *word;   /* word in the column precision */
    double peak, bytes; /* struct cluster.low_precision, cast_bytes */
    const char *assumed;
} low_precisions[] = {
    { "FP4", 4, CAST_SCALES + CAST_READS + CAST_WRITES / 2.0, "fp4: matmuls at four times the peak of bf16, the head in bf16" },
    { "FP8-CS", 2, CAST_SCALES + CAST_READS + CAST_WRITES, "fp8: matmuls at twice the peak of bf16, the head in bf16" },
    { "rowwise", 2, 2 * (CAST_SCALES + CAST_READS) + CAST_WRITES, "fp8: matmuls at twice the peak of bf16, the head in bf16" },
    { "FP8", 2, CAST_READS + CAST_WRITES, "fp8: matmuls at twice the peak of bf16, the head in bf16" },
    { "fp8", 2, CAST_READS + CAST_WRITES, "fp8: matmuls at twice the peak of bf16, the head in bf16" },
};

static const struct low_precision *low_precision_of(const struct plan_case *r)
{
    for (size_t i = 0; i < COUNT_OF(low_precisions); i++)
        if (case_says(r, "precision", low_precisions[i].word)) return &low_precisions[i];
    return NULL;
}

/* "A100 SXM 80 GB" and "A100 SXM 40 GB" are both an A100. */
static bool is_same_processor(const struct cluster *a, const struct cluster *b)
{
    size_t n = strcspn(a->processor, " ");

    return n == strcspn(b->processor, " ") && strncmp(a->processor, b->processor, n) == 0;
}

static void take_efficiencies(const struct cluster *from, struct cluster *to)
{
    to->launch = from->launch;
    to->matmul = from->matmul;
    to->host = from->host;
    to->eager = from->eager;
    to->attention = from->attention;
    to->query = from->query;
    to->attention_2 = from->attention_2;
    to->memory_bound = from->memory_bound;
    to->link_share = from->link_share;
}

/* Features that NVIDIA's recipes for a model enable: a fused loss (cross_entropy_loss_fusion, later that of Transformer Engine), and
 * collectives over tp that overlap the matmuls (ub_tp_comm_overlap). From the configs in dgxc-benchmarking at the commits of the runs,
 * NeMo-Framework-Launcher (August 2024), and scripts/performance of Megatron-Bridge (December 2025). */
static const struct recipe {
    const char *source, *model; /* words in these columns; the first row that matches is used */
    bool fuses_loss, chunks_tp;
} recipes[] = {
    { "nemotron/README_340b", "", true, false },
    { "dgxc-benchmarking nemotron/", "", true, true },
    { "dgxc-benchmarking llama3.1/", "", true, true },
    { "dgxc-benchmarking nemo_megatron/", "", false, true },
    { "NeMo 24.07", "LLAMA", true, true },
    { "NeMo 24.07", "Nemotron", true, true },
    { "NeMo 24.07", "GPT3-20B", false, true },
    { "Megatron-Bridge", "LLAMA", true, true },
    { "Megatron-Bridge", "", true, false },
};

static const struct recipe *recipe_of(const struct plan_case *r)
{
    static const struct recipe none = { 0 };

    for (size_t i = 0; i < COUNT_OF(recipes); i++)
        if (case_says(r, "source", recipes[i].source) && case_says(r, "model", recipes[i].model)) return &recipes[i];
    return &none;
}

/* Programs that are said to overlap collectives over tp with matmuls, as Transformer Engine and MegaScale (3.2) do. Megatron-Bridge's
 * recipes do not in fp4. */
static bool chunks_tp(const struct plan_case *r)
{
    if (case_says(r, "schedule", "TP comm") || case_says(r, "model", "MegaScale")) return true;
    return recipe_of(r)->chunks_tp && !case_says(r, "precision", "FP4");
}

/* Megatron's cross-entropy (vocab_parallel_cross_entropy, of which nanotron's is derived) on half logits, a kernel a step: in forward a
 * copy in f32, the maximum, a difference, exponentials, their sum and a quotient, in backward a product and a copy in half precision.
 * llm-foundry has a loss that does this in one kernel (loss_fn fused_crossentropy). The zero-bubble runs are taken to have one, too: with
 * these kernels the last stage of their 1.5B model would take longer than all of their steps. */
enum { LOGIT_FORWARD = 6 + 4 + 8 + 8 + 4 + 8, LOGIT_BACKWARD = 8 + 6 };
static bool fuses_loss(const struct plan_case *r)
{
    return case_says(r, "source", "llm-foundry") || case_says(r, "source", "llm.c") || is_zero_bubble(r) || recipe_of(r)->fuses_loss;
}

bool names_deepspeed(const struct plan_case *r) { return case_says(r, "source", "DeepSpeed") || case_says(r, "schedule", "DeepSpeed"); }

/* Parameters of a block. */
enum { GPT_PARAMETERS = 12, LLAMA_PARAMETERS = 9 };

/* nanotron's pipelines over several nodes: the time of a micro-batch is proportional to its layers and to tp, whatever its size, as if
 * collectives over tp were divided into a chunk for each rank, for each of which the host issues a matmul, a copy, a send and a receive. In
 * one node, and without a pipeline, they do not. */
enum { CHUNK_KERNELS = 4 };
static bool issues_chunks(const struct plan_case *r)
{
    return case_says(r, "source", "nanotron") && case_size(r, "pp", 1) > 1 && case_size(r, "gpus", 1) > case_size(r, "gpus_per_node", 8);
}

/* Programs whose kernels are fused by hand: NVIDIA's and what is derived from Megatron. Others run PyTorch's kernels one by one. */
static bool is_eager(const struct plan_case *r)
{
    static const char *const fused[] = { "NVIDIA", "Megatron", "NeMo", "Nemotron", "MLPerf", "MegaScale", "llm.c" };

    for (size_t i = 0; i < COUNT_OF(fused); i++)
        if (case_says(r, "source", fused[i])) return false;
    return true;
}

bool is_zero_bubble(const struct plan_case *r) { return case_says(r, "source", "Zero Bubble"); }

bool attention_is_fused(const struct plan_case *r) { return case_number(r, "flash_attn", !is_zero_bubble(r)) != 0; }

/* Jobs of several racks take a power of 2 of each, so that no group of ranks is in two racks that fits into one. */
static int power_below(int n)
{
    int p = 1;

    while (2 * p <= n) p *= 2;
    return p;
}

ls_status case_machine(struct plan_case *r, const struct cluster *given, struct cluster *out)
{
    double gbps = case_number(r, "internode_gbps_per_gpu", 0);
    const struct low_precision *low = low_precision_of(r);
    int node = case_size(r, "gpus_per_node", 0);
    char text[200];

    if (find_machine(case_text(r, "gpu_type"), out)) {
        snprintf(text, sizeof text, "machine like %s", out->name);
        if (given && is_same_processor(given, out)) take_efficiencies(given, out);
    } else {
        if (!given) return ls_fail(LS_EINVAL, "no machine is built in for '%s'", case_text(r, "gpu_type"));
        *out = *given;
        snprintf(text, sizeof text, "machine of --machine");
    }
    case_assume(r, text);
    out->low_precision = low ? low->peak : 0;
    out->cast_bytes = low ? low->bytes : 0;
    out->scores_written = !attention_is_fused(r);
    out->chunks_tp = chunks_tp(r);
    out->routes_shards = !is_eager(r) && case_size(r, "sequence_parallel", 0);
    case_put_exchange(r, out);
    out->experts_apart = true; /* Transformer Engine's GroupedLinear, and loops over experts */
    if (!fuses_loss(r)) out->logit_bytes[0] = LOGIT_FORWARD, out->logit_bytes[1] = LOGIT_BACKWARD;
    out->gathers = names_deepspeed(r) && case_says(r, "zero_stage", "3") ? (case_size(r, "glu", 1) ? LLAMA_PARAMETERS : GPT_PARAMETERS) : 0;
    out->tp_issues = issues_chunks(r) ? CHUNK_KERNELS : 0;
    if (out->eager > 0 && is_eager(r)) {
        out->matmul /= out->eager;
        out->attention /= out->eager;
        out->memory_bound /= out->eager;
    }
    if (out->attention_2 > 0 && is_eager(r)) {
        out->attention /= out->attention_2;
        out->query = 0;
    }
    if (case_says(r, "source", "llm.c")) out->host = 0; /* kernels are issued by a C program */
    if (recipe_of(r)->fuses_loss) case_assume(r, "its recipe fuses the loss");
    if (recipe_of(r)->chunks_tp && out->chunks_tp) case_assume(r, "its recipe overlaps communication over tp");
    if (out->token_experts) case_assume(r, "a token goes to each node once");
    if (!*case_text(r, "flash_attn") && out->scores_written) case_assume(r, "attention is not fused");
    if (out->gathers) case_assume(r, "every parameter is gathered by itself");
    if (out->tp_issues) case_assume(r, "collectives over tp in as many chunks as there are ranks");
    if (!out->host) case_assume(r, "the host takes no time");
    if (low) case_assume(r, low->assumed);
    if (node > 0 && out->processors <= NODE_MOST) out->processors = node;
    if (out->processors > NODE_MOST && case_size(r, "gpus", 1) > out->processors) {
        out->processors = power_below(out->processors);
        snprintf(text, sizeof text, "%d GPUs of a rack", out->processors);
        case_assume(r, text);
    }
    if (gbps > 0) out->network.bandwidth = gbps * 1e9 / 8;
    return LS_OK;
}
