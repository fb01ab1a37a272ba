/* cmd_generate.c - `lockstep generate`. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "cli/args.h"
#include "cli/print_sample.h"
#include "cli/prompts.h"

static const char *prompt = "", *prompts_file, *id_list, *tokenizer, *logits_file;
enum { USUAL_TOKENS = 200, USUAL_BATCH = 16 };

static int64_t generate_count = -1, batch = 0, top_k = 0, generate_seed = 1;
static double temperature = 0.8, top_p = 0.95;

static const struct flag generate_flags[] = {
    { "prompt", FLAG_STRING, &prompt, 0, 0, "TEXT", "text to continue" },
    { "prompts", FLAG_STRING, &prompts_file, 0, 0, "FILE", "texts to continue, one on each line, several at once" },
    { "batch", FLAG_INT, &batch, 1, 1024, "N",
      "texts of --prompts at once; up to 16, each has the tokens that it has alone, above, up to rounding [16]" },
    { "ids", FLAG_STRING, &id_list, 0, 0, "1,2,3", "token ids to continue, instead of a text" },
    { "tokens", FLAG_INT, &generate_count, -1, 1e9, "N",
      "largest number of tokens to generate; -1: 200, or as many as the model has positions for [-1]" },
    { "temperature", FLAG_REAL, &temperature, 0, 100, "X",
      "sampling temperature; 0: always the likeliest token; 1: the model's own probabilities [0.8]" },
    { "top-k", FLAG_INT, &top_k, 0, 1e9, "K", "sample from the K likeliest tokens; 0: from all [0]" },
    { "top-p", FLAG_REAL, &top_p, 1e-9, 1, "P", "sample from the likeliest tokens whose probabilities add up to P [0.95]" },
    { "seed", FLAG_INT, &generate_seed, 0, 9e18, "N", "seed of the sampling; another seed gives another text [1]" },
    { "tokenizer", FLAG_STRING, &tokenizer, 0, 0, "FILE", "tokenizer to use instead of the one beside the weights" },
    { "logits", FLAG_STRING, &logits_file, 0, 0, "FILE", "write the prompt's logits as safetensors and generate no text" },
    { 0 },
};

static ls_status fail_ids(void) { return ls_fail(LS_EINVAL, "--ids: '%s' is not a list of token ids such as 1,2,3", id_list); }

static ls_status cmd_generate_check(const struct invocation *in)
{
    (void)in;
    if (prompts_file && (id_list || prompt[0] || logits_file))
        return ls_fail(LS_EINVAL, "--prompts and --%s are both given; leave one out", id_list ? "ids" : prompt[0] ? "prompt" : "logits");
    if (batch && !prompts_file) return ls_fail(LS_EINVAL, "--batch=%lld has no effect without --prompts FILE", (long long)batch);
    if (id_list && prompt[0]) return ls_fail(LS_EINVAL, "--prompt and --ids are both given; leave one out");
    if (id_list && strspn(id_list, "0123456789,") != strlen(id_list)) return fail_ids();
    return LS_OK;
}

/* Reads --ids, "1,2,3", and checks that each id is below the model's vocabulary. */
static ls_status parse_ids(const struct trained *t, int32_t **out, size_t *n)
{
    size_t most = strlen(id_list) / 2 + 1, found = 0;
    int32_t *ids = mem_array(MEM_OTHER, most, sizeof *ids);
    const char *at = id_list;

    if (!ids) return LS_ENOMEM;
    for (char word[24]; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        int64_t id;

        snprintf(word, sizeof word, "%.*s", (int)MIN(length, sizeof word - 1), at);
        if (!text_read_int(word, &id)) {
            mem_free(ids);
            return fail_ids();
        }
        if (id >= (int64_t)t->model.vocab) {
            mem_free(ids);
            return ls_fail(LS_EINVAL, "--ids: %lld is not a token id: the model has %zu tokens", (long long)id, t->model.vocab);
        }
        ids[found++] = (int32_t)id;
        at += length;
    }
    if (found == 0) {
        mem_free(ids);
        return fail_ids();
    }
    *out = ids;
    *n = found;
    return LS_OK;
}

/* Writes a safetensors file with input_ids i32 [1,T] and logits f32 [1,T,V]. */
static ls_status write_logits(const struct trained *t, const int32_t *ids, size_t n)
{
    size_t vocab = t->model.vocab;
    struct safetensor_spec spec[] = {
        { .name = "input_ids", .type = LS_I32, .ndim = 2, .size = { 1, n } },
        { .name = "logits", .type = LS_F32, .ndim = 3, .size = { 1, n, vocab } },
    };
    float *logits = mem_array(MEM_OTHER, n * vocab, sizeof *logits);
    struct safetensors_writer *w = NULL;
    char hash[HASH_ROOM];
    uint64_t bytes;

    if (!logits) return LS_ENOMEM;
    ls_status st = generate_logits(t, ids, n, logits);
    if (st == LS_OK) st = safetensors_create(logits_file, COUNT_OF(spec), spec, &w);
    if (st == LS_OK) st = safetensors_put(w, ids, n * sizeof *ids);
    if (st == LS_OK) st = safetensors_put(w, logits, n * vocab * sizeof *logits);
    if (st == LS_OK)
        st = safetensors_publish(&w, &bytes, hash);
    else
        safetensors_abandon(&w);
    mem_free(logits);
    return st;
}

static struct sampling sampling_of_flags(void)
{
    return (struct sampling){ .temperature = temperature, .top_k = (size_t)top_k, .top_p = top_p, .seed = (uint64_t)generate_seed };
}

static ls_status print_text(const struct trained *t, const int32_t *ids, size_t n)
{
    struct sampling s = sampling_of_flags();
    size_t room, tokens = (size_t)generate_count;

    if (generate_count < 0) {
        LS_TRY(generate_room(t, n, &room));
        tokens = MIN(room, (size_t)USUAL_TOKENS);
    }
    return print_sample(t, ids, n, tokens, &s);
}

static ls_status cmd_generate_make(const struct trained *t)
{
    int32_t *ids = NULL;
    size_t n;

    LS_TRY(id_list ? parse_ids(t, &ids, &n) : print_encode(t, prompt, &ids, &n));
    ls_status st = logits_file ? write_logits(t, ids, n) : print_text(t, ids, n);
    mem_free(ids);
    return st;
}

static ls_status cmd_generate_all(const struct trained *t, const struct prompts *p)
{
    struct prompts_options o = { generate_count, USUAL_TOKENS, batch ? (size_t)batch : USUAL_BATCH, sampling_of_flags() };

    return prompts_run(t, p, &o);
}

/* The file of prompts is read before the model. */
static ls_status cmd_generate_run(struct invocation *in)
{
    struct prompts p = { 0 };
    struct trained t;
    ls_status st = prompts_file ? args_refuse(in, prompts_read(prompts_file, &p)) : LS_OK;

    if (st != LS_OK) return st;
    st = trained_open(in->arguments[0], config_device(&in->config), config_type(&in->config), tokenizer, &t);
    if (st == LS_OK) {
        st = args_refuse(in, prompts_file ? cmd_generate_all(&t, &p) : cmd_generate_make(&t));
        trained_close(&t);
    }
    prompts_free(&p);
    return st;
}

const struct command command_generate = {
    .name = "generate",
    .arguments = "MODEL",
    .least = 1,
    .most = 1,
    .summary = "generate text with a trained model: a run, a checkpoint, or a Hugging Face folder",
    .verb = VERB_GENERATE,
    .flags = generate_flags,
    .check = cmd_generate_check,
    .run = cmd_generate_run,
    .examples = "  lockstep generate runs/book --prompt \"It was\"\n"
                "  lockstep generate runs/book --prompt \"It was\" --temperature 0 --tokens 50\n"
                "  lockstep generate runs/book --prompts questions.txt --temperature 0\n"
                "  lockstep generate runs/book/checkpoints/step_00000500 --prompt \"It was\" --seed 2\n"
                "  lockstep generate hf/gpt2 --ids 464,2068 --logits logits.safetensors\n",
};
