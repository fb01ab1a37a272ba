/* test_train.c - a training run: records, metrics, sampling, rules between options, resume bit for bit, failures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/base.h"
#include "base/crc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "helper_check.h"
#include "train/generate.h"
#include "train/sample.h"
#include "train/tb_events.h"
#include "train/trainer.h"

static char folder[64];

static char *in_folder(const char *name)
{
    char *path = file_path("%s/%s", folder, name);

    assert_non_null(path);
    return path;
}

/* Sentences by a counter: text with something to learn, the same each time. */
static int make_folder(void **state)
{
    static const char *const subjects[] = { "the sea", "a small bird", "the old king", "every child" };
    static const char *const verbs[] = { "sees", "loves", "forgets", "sings of" };
    char *path, *text;
    size_t used = 0, room = 40000;

    (void)state;
    strcpy(folder, "test_train.XXXXXX");
    assert_non_null(mkdtemp(folder));
    path = in_folder("text.txt");
    text = mem_alloc(MEM_OTHER, room);
    assert_non_null(text);
    for (unsigned i = 0; used < 30000; i++)
        used += (size_t)snprintf(text + used, room - used, "%s %s %s. ", subjects[i * 7 / 3 % 4], verbs[i * 5 / 2 % 4],
                                 subjects[i % 4]);
    OK(file_write(path, text, used));
    mem_free(text);
    mem_free(path);
    log_set_console(LOG_ERROR);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    OK(file_remove_tree(folder));
    return 0;
}

/* ---- a config of a tiny run ---- */

struct setup { struct config config; struct options options; };

static void setup_set(struct setup *s, const char *name, const char *value)
{
    OK(options_set(&s->options, name, value, "test"));
}

static void setup_set_path(struct setup *s, const char *name, const char *value)
{
    char *path = in_folder(value);

    setup_set(s, name, path);
    mem_free(path);
}

static void open_setup(struct setup *s, const char *run)
{
    OK(options_open(config_table(), &s->config, VERB_TRAIN, &s->options));
    setup_set_path(s, "data.text", "text.txt");
    setup_set_path(s, "run.dir", run);
    setup_set(s, "model.preset", "llama-tiny");
    setup_set(s, "model.layers", "1");
    setup_set(s, "data.seq_len", "16");
    setup_set(s, "train.micro_batch", "2");
    setup_set(s, "train.accumulate", "2");
    setup_set(s, "train.steps", "6");
    setup_set(s, "train.schedule_steps", "6");
    setup_set(s, "train.eval_every", "3");
    setup_set(s, "train.eval_batches", "2");
    setup_set(s, "optim.warmup", "2");
    setup_set(s, "precision.compute", "fp32");
}

static ls_status setup_train(struct setup *s, const struct trainer_watch *watch, struct trainer **out)
{
    static const struct trainer_watch nobody = { 0 };
    struct trainer *t;
    bool refused;

    LS_TRY(config_check(&s->config, VERB_TRAIN));
    LS_TRY(trainer_open(&s->config, &s->options, &refused, &t));
    ls_status st = trainer_run(t, watch ? watch : &nobody);
    if (st == LS_OK && out) *out = t;
    else trainer_close(&t);
    return st;
}

/* The content hash of a file of the newest checkpoint of a run. */
static void hash_of_file(const char *run, const char *start, char out[33])
{
    char *path = in_folder(run), *found;
    ls_checkpoint_info *info;

    OK(ls_checkpoint_resolve(path, &found));
    OK(ls_checkpoint_inspect(found, &info));
    out[0] = '\0';
    for (size_t i = 0; i < info->nfiles; i++)
        if (strncmp(info->files[i].name, start, strlen(start)) == 0) memcpy(out, info->files[i].hash, 33);
    assert_int_equal(strlen(out), 32);
    ls_checkpoint_info_release(&info);
    ls_free(found);
    mem_free(path);
}

static void same_bits(const char *a, const char *b)
{
    static const char *const files[] = { "parameters_", "optimizer_" };
    char left[33], right[33];

    for (size_t i = 0; i < COUNT_OF(files); i++) {
        hash_of_file(a, files[i], left);
        hash_of_file(b, files[i], right);
        assert_string_equal(left, right);
    }
}

/* ---- TensorBoard ---- */

static void from_hex(const char *hex, unsigned char *out, size_t *bytes)
{
    unsigned value;

    for (*bytes = 0; sscanf(hex, " %2x", &value) == 1; hex += 2 + (hex[0] == ' '))
        out[(*bytes)++] = (unsigned char)value;
}

static void test_event_records(void **state)
{
    static const char version[] = "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
    static const char loss[] = "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000204087ccc43d";
    unsigned char wanted[128], record[TB_RECORD];
    size_t bytes;

    (void)state;
    from_hex(version, wanted, &bytes);
    assert_int_equal(tb_version_record(1.0, record), bytes);
    assert_memory_equal(record, wanted, bytes);
    from_hex(loss, wanted, &bytes);
    assert_int_equal(tb_scalars_record(1.0, 7, 1, &(struct tb_scalar){ "loss", 2.5f }, record), bytes);
    assert_memory_equal(record, wanted, bytes);
}

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

/* Walks a file of records; every length and both checksums must hold. Gives how many. */
static int count_records(const char *path)
{
    char *text;
    size_t bytes, at = 0;
    int records = 0;

    OK(file_read(path, &text, &bytes));
    for (const unsigned char *data = (unsigned char *)text; at < bytes; records++) {
        assert_true(bytes - at >= 16);
        uint64_t length = little(data + at, 8);
        assert_true(length <= bytes - at - 16);
        assert_int_equal(little(data + at + 8, 4), crc32c_masked(data + at, 8));
        assert_int_equal(little(data + at + 12 + length, 4), crc32c_masked(data + at + 12, length));
        at += 16 + length;
    }
    assert_int_equal(at, bytes);
    mem_free(text);
    return records;
}

/* ---- sampling ---- */

static void test_sampling(void **state)
{
    static const float logits[] = { 1.0f, 3.0f, 2.0f, 3.0f, -1.0f };
    struct candidate scratch[5];
    struct sampling s = { .temperature = 0, .top_p = 1, .seed = 5 };
    double sum = 0, p[5];
    int seen[5] = { 0 };
    enum { DRAWS = 20000 };

    (void)state;
    assert_int_equal(sample_next(logits, 5, &s, 0, scratch), 1);  /* a tie goes to the smaller id */
    s.temperature = 2;
    for (int i = 0; i < DRAWS; i++) seen[sample_next(logits, 5, &s, (uint64_t)i, scratch)]++;
    for (int i = 0; i < 5; i++) sum += p[i] = exp(logits[i] / 2.0);
    for (int i = 0; i < 5; i++) assert_true(fabs(seen[i] / (double)DRAWS - p[i] / sum) < 0.015);
    assert_int_equal(sample_next(logits, 5, &s, 77, scratch), sample_next(logits, 5, &s, 77, scratch));
    s.top_k = 2;
    for (int i = 0; i < 200; i++) assert_true(logits[sample_next(logits, 5, &s, (uint64_t)i, scratch)] == 3.0f);
    s.top_k = 0;
    s.top_p = 0.01;
    for (int i = 0; i < 200; i++) assert_int_equal(sample_next(logits, 5, &s, (uint64_t)i, scratch), 1);
}

/* ---- rules between options ---- */

static void check_batch(const char *global, const char *micro, const char *accumulate, int64_t g, int64_t m, int64_t a)
{
    struct setup s;

    open_setup(&s, "none");
    setup_set(&s, "train.global_batch", global);
    setup_set(&s, "train.micro_batch", micro);
    setup_set(&s, "train.accumulate", accumulate);
    if (g == 0) {
        REFUSED(LS_EINVAL, "train.global_batch = train.micro_batch * train.accumulate * parallel.dp does not hold", config_check(&s.config, VERB_TRAIN));
    } else {
        OK(config_check(&s.config, VERB_TRAIN));
        assert_int_equal(s.config.train.global_batch, g);
        assert_int_equal(s.config.train.micro_batch, m);
        assert_int_equal(s.config.train.accumulate, a);
    }
    options_close(&s.options);
}

static void test_batch_sizes(void **state)
{
    (void)state;
    check_batch("-1", "4", "-1", 4, 4, 1);
    check_batch("32", "4", "-1", 32, 4, 8);
    check_batch("32", "-1", "8", 32, 4, 8);
    check_batch("32", "-1", "-1", 32, 8, 4);
    check_batch("3", "-1", "-1", 3, 3, 1);
    check_batch("-1", "-1", "-1", 8, 8, 1);
    check_batch("-1", "4", "8", 32, 4, 8);
    check_batch("32", "4", "8", 32, 4, 8);
    check_batch("33", "4", "-1", 33, 4, 9);
    check_batch("33", "4", "9", 33, 4, 9);
    check_batch("33", "4", "10", 0, 0, 0);
    check_batch("32", "4", "4", 0, 0, 0);
    check_batch("-1", "-1", "4", 32, 8, 4);
    check_batch("0", "4", "-1", 0, 0, 0);
    check_batch("-1", "1000000000000", "1000000000000", 0, 0, 0);
}

static void option_refused(const char *name, const char *value, const char *with, const char *its, const char *words)
{
    struct setup s;

    open_setup(&s, "none");
    setup_set(&s, with, its);
    setup_set(&s, name, value);
    REFUSED(LS_EINVAL, words, config_check(&s.config, VERB_TRAIN));
    options_close(&s.options);
}

static void test_warmup(void **state)
{
    static const struct { const char *steps; int64_t warmup; } cases[] = {
        { "1", 0 }, { "9", 4 }, { "99", 49 }, { "900", 50 },
    };
    struct setup s;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        open_setup(&s, "none");
        setup_set(&s, "optim.warmup", "-1");
        setup_set(&s, "train.schedule_steps", cases[i].steps);
        OK(config_check(&s.config, VERB_TRAIN));
        assert_int_equal(s.config.optim.warmup, cases[i].warmup);
        options_close(&s.options);
    }
}

static void test_options_without_effect(void **state)
{
    (void)state;
    option_refused("optim.momentum", "0.5", "optim.name", "adamw", "optim.momentum does nothing here");
    option_refused("optim.beta2", "0.5", "optim.name", "sgd", "optim.beta2 does nothing here");
    option_refused("optim.decay", "2", "optim.schedule", "cosine", "optim.decay does nothing here");
    option_refused("precision.master", "false", "precision.compute", "fp32", "precision.master does nothing here");
    isa_cap(ISA_ANY);
    option_refused("precision.master", "false", "precision.compute", "auto", "precision.master does nothing here");
    isa_cap(ISA_AVX512_BF16);
    option_refused("optim.warmup", "7", "train.schedule_steps", "6", "optim.warmup=7 is longer than the schedule of 6 steps");
    option_refused("data.vocab_size", "500", "data.tokenizer", "bytes", "data.vocab_size does nothing here");
    option_refused("train.eval_every", "2", "data.val_fraction", "0", "train.eval_every does nothing here");
    option_refused("recompute.mode", "every:0", "optim.name", "adamw", "every:K");
    option_refused("recompute.mode", "sometimes", "optim.name", "adamw", "'sometimes' is not a mode");
    option_refused("optim.min_lr", "1", "optim.lr", "0.1", "optim.min_lr=1 is greater than optim.lr=0.1");
}

/* ---- a run ---- */

static void test_metrics_and_folder(void **state)
{
    static const char *const keys[] = { "step",         "loss", "grad_norm", "lr", "tokens", "tokens_per_second",
                                        "step_seconds", "mfu",  "hfu" };
    static const char *const bytes[] = { "parameters",    "gradients", "optimizer", "activations",
                                         "communication", "other",     "peak" };
    struct trainer *t;
    struct setup s;
    char *path, *text;
    int lines = 0;

    (void)state;
    open_setup(&s, "metrics");
    OK(setup_train(&s, NULL, &t));
    path = in_folder("metrics/metrics.jsonl");
    OK(file_read(path, &text, NULL));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_node *root;

        OK(json_parse(line, strlen(line), "metrics", &root));
        for (size_t i = 0; i < COUNT_OF(keys); i++) assert_true(isfinite(json_real(json_get(root, keys[i]), NAN)));
        for (size_t i = 0; i < COUNT_OF(bytes); i++)
            assert_true(json_int(json_get(json_get(root, "memory"), bytes[i]), -1) >= 0);
        assert_int_equal(json_kind_of(json_get(root, "comm")), JSON_OBJECT);
        assert_int_equal(json_int(json_get(root, "step"), 0), ++lines);
        assert_int_equal(json_int(json_get(root, "tokens"), 0), 2 * 2 * 16);
        assert_int_equal(json_int(json_get(root, "tokens_seen"), 0), lines * 2 * 2 * 16);
        assert_true((json_kind_of(json_get(root, "val_loss")) == JSON_REAL) == (lines % 3 == 0));
        json_close(&root);
    }
    assert_int_equal(lines, 6);
    mem_free(text);
    mem_free(path);
    path = mem_strdup(t->folder.events.path);
    trainer_close(&t);
    options_close(&s.options);
    assert_int_equal(count_records(path), 2 + 6);
    mem_free(path);
}

/* The plan's bytes are the ledger's, in every category, and the steps after the first allocate nothing. */
struct allocations { uint64_t calls[8]; };

static void note_calls(void *ctx, const struct trainer *t, const struct metrics *m)
{
    struct allocations *a = ctx;
    struct mem_stats now;

    (void)t;
    mem_read(&now);
    a->calls[m->step] = now.calls;
}

static void memory_equals_plan(void **state)
{
    static const char *const modes[] = { "none", "selective", "full", "every:1" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        struct allocations a = { { 0 } };
        struct trainer *t;
        struct setup s;
        char name[16];

        snprintf(name, sizeof name, "memory%zu", i);
        open_setup(&s, name);
        setup_set(&s, "recompute.mode", modes[i]);
        setup_set(&s, "precision.compute", i % 2 ? "bf16" : "fp32");
        setup_set(&s, "train.eval_every", "0");
        OK(setup_train(&s, &(struct trainer_watch){ .ctx = &a, .stepped = note_calls }, &t));
        const ls_cost planned = t->planned;
        assert_int_equal(t->most.peak[MEM_PARAMETERS], planned.parameters);
        assert_int_equal(t->most.peak[MEM_GRADIENTS], planned.gradients);
        assert_int_equal(t->most.peak[MEM_OPTIMIZER], planned.optimizer);
        assert_int_equal(t->most.peak[MEM_ACTIVATIONS], planned.activations);
        for (int step = 3; step <= 6; step++) assert_int_equal(a.calls[step], a.calls[2]);
        trainer_close(&t);
        options_close(&s.options);
    }
}

/* Work that is done twice counts for HFU alone. */
static void test_recomputed_work(void **state)
{
    struct setup s;
    char *path = in_folder("twice/metrics.jsonl"), *text;
    int lines = 0;

    (void)state;
    open_setup(&s, "twice");
    setup_set(&s, "recompute.mode", "full");
    OK(setup_train(&s, NULL, NULL));
    OK(file_read(path, &text, NULL));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        json_node *root;

        OK(json_parse(line, strlen(line), "metrics", &root));
        assert_true(json_real(json_get(root, "mfu"), 0) > 0);
        assert_true(json_real(json_get(root, "mfu"), 0) < json_real(json_get(root, "hfu"), 0));
        json_close(&root);
    }
    assert_int_equal(lines, 6);
    mem_free(text);
    mem_free(path);
    options_close(&s.options);
}

static void training_lowers_the_loss(void **state)
{
    struct trainer *t;
    struct setup s;

    (void)state;
    open_setup(&s, "learns");
    setup_set(&s, "train.steps", "60");
    setup_set(&s, "train.schedule_steps", "60");
    setup_set(&s, "train.eval_every", "0");
    setup_set(&s, "optim.lr", "0.01");
    OK(setup_train(&s, NULL, &t));
    assert_true(t->val_loss < 3.0);  /* log(257) = 5.55 is where it starts */
    trainer_close(&t);
    options_close(&s.options);
}

static void resumes(const char *prefix, const char *name, const char *value, const char *name2, const char *value2)
{
    char straight[40], parts[40];
    struct setup s;

    snprintf(straight, sizeof straight, "%s_straight", prefix);
    snprintf(parts, sizeof parts, "%s_parts", prefix);
    for (int i = 0; i < 3; i++) {
        open_setup(&s, i == 0 ? straight : parts);
        setup_set(&s, name, value);
        setup_set(&s, name2, value2);
        if (i == 1) setup_set(&s, "train.steps", "3");
        OK(setup_train(&s, NULL, NULL));
        options_close(&s.options);
    }
    same_bits(straight, parts);
}

static void test_resume(void **state)
{
    (void)state;
    resumes("adamw", "optim.name", "adamw", "optim.schedule", "cosine");
    resumes("bf16", "precision.compute", "bf16", "data.tokenizer", "bpe");
    resumes("sgd", "optim.name", "sgd", "model.preset", "gpt2-tiny");
    resumes("dropout", "model.dropout", "0.1", "model.architecture", "gpt2");
}

/* Lines that a stopped run wrote behind its checkpoint are taken back; so is a line that was cut. */
static void test_metrics_rewind(void **state)
{
    static const char before[] = "{\"step\":1}\n{\"step\":2}\nnoise\n{\"step\":3}\n{\"step\":4,\"lo";
    char *path = in_folder("lines.jsonl"), *text;

    (void)state;
    OK(file_write(path, before, sizeof before - 1));
    OK(metrics_rewind(path, 2));
    OK(file_read(path, &text, NULL));
    assert_string_equal(text, "{\"step\":1}\n{\"step\":2}\n");
    mem_free(text);
    mem_free(path);
}

/* ---- signals and failures ---- */

static void raise_at_three(void *ctx, const struct trainer *t, const struct metrics *m)
{
    (void)t;
    if (m->step == 3) raise(*(int *)ctx);
}

static void test_signals(void **state)
{
    struct trainer *t;
    struct setup s;
    char *path;

    (void)state;
    open_setup(&s, "signal");
    OK(setup_train(&s, &(struct trainer_watch){ .ctx = &(int){ SIGTERM }, .stepped = raise_at_three }, &t));
    assert_int_equal(t->stopped_by, SIGTERM);
    assert_int_equal(t->saved_step, 3);
    trainer_close(&t);
    options_close(&s.options);

    open_setup(&s, "signal");
    OK(setup_train(&s, NULL, &t));
    assert_int_equal(t->first_step, 3);
    assert_int_equal(t->state.step, 6);
    trainer_close(&t);
    options_close(&s.options);

    open_setup(&s, "usr1");
    OK(setup_train(&s, &(struct trainer_watch){ .ctx = &(int){ SIGUSR1 }, .stepped = raise_at_three }, &t));
    assert_int_equal(t->state.step, 6);
    trainer_close(&t);
    options_close(&s.options);
    path = in_folder("usr1/checkpoints/step_00000003");
    assert_true(file_is_folder(path));
    mem_free(path);
}

/* A full disk while one of three checkpoints is written: training goes on, and the other two are whole. */
static void test_full_disk(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 12; nth += 5) {
        struct trainer *t;
        struct setup s;
        char number[8], name[16], *path, *found;
        uint64_t *steps;
        size_t count;

        snprintf(number, sizeof number, "%d", nth);
        snprintf(name, sizeof name, "full%d", nth);
        open_setup(&s, name);
        setup_set(&s, "checkpoint.every", "2");
        setup_set(&s, "checkpoint.keep", "9");
        setup_set(&s, "debug.fail_write", number);
        OK(setup_train(&s, NULL, &t));
        assert_int_equal(t->state.step, 6);
        OK(ls_checkpoint_list(t->folder.checkpoints, &steps, &count));
        assert_int_equal(count, 2);
        ls_free(steps);
        trainer_close(&t);
        options_close(&s.options);
        path = in_folder(name);
        OK(ls_checkpoint_resolve(path, &found));
        assert_non_null(strstr(found, "step_00000006"));
        OK(ls_checkpoint_verify(found));
        ls_free(found);
        mem_free(path);
    }
}

static void fails_with(const char *run, const char *name, const char *value, const char *words)
{
    struct setup s;

    open_setup(&s, run);
    if (strncmp(name, "data.text", 9) == 0 || strncmp(name, "data.tokens", 11) == 0) setup_set_path(&s, name, value);
    else setup_set(&s, name, value);
    if (strcmp(name, "data.tokens") == 0) setup_set(&s, "data.text", "");
    FAILS(words, setup_train(&s, NULL, NULL));
    options_close(&s.options);
}

/* A nanoGPT file of `count` tokens, all zero but for one. */
static void write_tokens(const char *name, size_t count, size_t place, uint16_t token)
{
    uint16_t *ids = mem_zalloc(MEM_OTHER, count * sizeof *ids);
    char *path = in_folder(name);

    assert_non_null(ids);
    ids[place] = token;
    OK(file_write(path, ids, count * sizeof *ids));
    mem_free(path);
    mem_free(ids);
}

static void test_bad_input(void **state)
{
    char *empty = in_folder("empty.txt"), *brief = in_folder("brief.txt"), *latin = in_folder("latin.txt"),
         *odd = in_folder("odd.bin");
    struct setup s;

    (void)state;
    OK(file_write(empty, "", 0));
    OK(file_write(brief, "too short", 9));
    OK(file_write(latin, "caf\xe9 au lait", 12));
    OK(file_write(odd, "abc", 3));
    write_tokens("high.bin", 2000, 1500, 300);
    fails_with("bad", "data.text", "missing.txt", "missing.txt: cannot open");
    fails_with("bad", "data.text", "empty.txt", "the text is empty");
    fails_with("bad", "data.text", "brief.txt", "brief.txt");
    fails_with("bad", "data.text", "latin.txt", "latin.txt");
    fails_with("bad", "data.tokens", "odd.bin", "odd.bin");
    fails_with("bad", "data.tokens", "high.bin", "1500");
    fails_with("bad", "model.vocab", "100", "the tokenizer has 257 tokens, but the model's vocabulary only 100");
    fails_with("bad", "model.heads", "3", "heads");
    fails_with("bad", "model.preset", "gpt5", "no preset 'gpt5'");
    fails_with("bad", "data.seq_len", "4096", "data.seq_len=4096, but the model has 128 positions");
    mem_free(empty);
    mem_free(brief);
    mem_free(latin);
    mem_free(odd);

    open_setup(&s, "mine");
    OK(setup_train(&s, NULL, NULL));
    options_close(&s.options);
    fails_with("mine", "model.width", "32", "embed_tokens");          /* a checkpoint of another model */
    fails_with("mine", "train.seed", "2", "train.seed=1, not 2");
    fails_with("mine", "data.seq_len", "8", "other data");
    fails_with("mine", "checkpoint.resume", "none", "holds checkpoints up to step 6");
    fails_with("mine", "checkpoint.resume", "nowhere", "nowhere");
    fails_with("mine", "optim.name", "sgd", "optimizer");
}

static void training_fails_cleanly_without_memory(void **state)
{
    struct mem_stats now;
    struct setup s;

    (void)state;
    open_setup(&s, "memory_limit");
    mem_read(&now);
    mem_set_limit(now.total_now + (1 << 20));
    REFUSED(LS_ENOMEM, "out of memory", setup_train(&s, NULL, NULL));
    assert_non_null(strstr(ls_errmsg(), "limit"));
    assert_non_null(strstr(ls_errmsg(), "most is in"));
    mem_set_limit(0);
    options_close(&s.options);
}

/* A folder that another process trains in. Locks are of open files, so a second opening stands for it. */
static void test_locked_folder(void **state)
{
    char *path = in_folder("locked"), *lock = in_folder("locked/lock");
    struct setup s;
    int fd;

    (void)state;
    OK(file_make_folders(path));
    OK(file_write(lock, "4321\n", 5));
    fd = open(lock, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    fails_with("locked", "data.seq_len", "16", "process 4321 runs in this folder");
    close(fd);
    open_setup(&s, "locked");
    OK(setup_train(&s, NULL, NULL));
    options_close(&s.options);
    mem_free(path);
    mem_free(lock);
}

/* Another run's later checkpoints in the same folder don't cost this run its own. */
static void later_checkpoint(void *ctx, const struct trainer *t, const struct metrics *m)
{
    ls_train_state later = t->state;

    (void)ctx;
    later.step = 100 + m->step;
    if (m->step <= 2) OK(ls_checkpoint_save(t->folder.checkpoints, t->step.store, &t->step.model, &later, NULL));
}

static void test_prune(void **state)
{
    char *path = in_folder("prune/checkpoints/step_00000006"), *dropped = in_folder("prune/checkpoints/step_00000004");
    struct setup s;

    (void)state;
    open_setup(&s, "prune");
    setup_set(&s, "checkpoint.every", "2");
    setup_set(&s, "checkpoint.keep", "1");
    OK(setup_train(&s, &(struct trainer_watch){ .stepped = later_checkpoint }, NULL));
    options_close(&s.options);
    OK(ls_checkpoint_verify(path));
    assert_false(file_exists(dropped));
    mem_free(path);
    mem_free(dropped);
}

/* Not a number in the weights: the step fails by name, and nothing is saved over the good checkpoint. */
static void poison(void *ctx, const struct trainer *t, const struct metrics *m)
{
    static const float nan_value = NAN;
    ls_tensor *w = ls_store_value(t->step.store, 0);
    float *row = ls_tensor_data(w);

    (void)ctx;
    if (m->step != 4) return;
    for (size_t i = 0; i < ls_tensor_count(w); i++) row[i] = nan_value;
}

static void test_not_a_number(void **state)
{
    struct setup s;
    char *path = in_folder("nan"), *found;

    (void)state;
    open_setup(&s, "nan");
    setup_set(&s, "checkpoint.every", "2");
    REFUSED(LS_EINVAL, "step 5: the loss is NaN; first: element 0 of parameter 'model.embed_tokens.weight' is NaN already (embedding, forward", setup_train(&s, &(struct trainer_watch){ .stepped = poison }, NULL));
    options_close(&s.options);
    OK(ls_checkpoint_resolve(path, &found));
    OK(ls_checkpoint_verify(found));
    ls_free(found);
    mem_free(path);
}

/* ---- generating ---- */

struct heard { int32_t ids[64]; int n; };

static ls_status hear(void *ctx, int32_t id)
{
    struct heard *h = ctx;

    h->ids[h->n++] = id;
    return LS_OK;
}

/* Greedy text from the cache is what the whole sequence's logits say at each place. */
static void test_generate(void **state)
{
    static const int32_t prompt[] = { 't', 'h', 'e', ' ' };
    struct sampling greedy = { .temperature = 0, .top_p = 1 };
    struct heard h = { .n = 4 };
    struct trained t;
    struct setup s;
    char *path = in_folder("generate");
    float *logits;

    (void)state;
    open_setup(&s, "generate");
    OK(setup_train(&s, NULL, NULL));
    options_close(&s.options);
    OK(trained_open(path, LS_F32, NULL, &t));
    memcpy(h.ids, prompt, sizeof prompt);
    OK(generate(&t, prompt, 4, 20, &greedy, hear, &h));
    logits = mem_array(MEM_OTHER, (size_t)h.n * t.model.vocab, sizeof *logits);
    assert_non_null(logits);
    OK(generate_logits(&t, h.ids, (size_t)h.n, logits));
    for (int i = 4; i < h.n; i++)
        assert_int_equal(sample_next(logits + (size_t)(i - 1) * t.model.vocab, t.model.vocab, &greedy, 0, NULL),
                         h.ids[i]);
    REFUSED(LS_EINVAL, "do not fit the model's 128 positions", generate(&t, prompt, 4, 1000, &greedy, hear, &h));
    mem_free(logits);
    trained_close(&t);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event_records),
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_batch_sizes),
        cmocka_unit_test(test_options_without_effect),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_metrics_and_folder),
        cmocka_unit_test(memory_equals_plan),
        cmocka_unit_test(test_recomputed_work),
        cmocka_unit_test(training_lowers_the_loss),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_metrics_rewind),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(training_fails_cleanly_without_memory),
        cmocka_unit_test(test_locked_folder),
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_generate),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
