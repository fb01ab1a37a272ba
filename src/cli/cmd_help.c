/* cmd_help.c - `lockstep help TOPIC`: pages that are not about one command. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "cli/args.h"
#include "lab_claims.h"
#include "train/faults/faults.h"
#include "train/task/task.h"

static bool markdown;

static const struct flag flags[] = {
    { "markdown", FLAG_SWITCH, &markdown, 0, 0, NULL, "as docs/options.md ('help options') and docs/command.md ('help')" },
    { 0 },
};

/* ---- pages made from tables ---- */

static ls_status put_options(void)
{
    struct text out = { 0 };

    if (!markdown) return help_options(0, true);
    printf("# Options\n\nWritten by `lockstep help options --markdown`. On the command line: `--section.key=value`; in a YAML file, for\n"
           "`--config FILE`: a mapping per section. Defaults come first, then files, then the command line; later wins.\n\n");
    options_put_markdown(config_table(), &out);
    ls_status st = text_status(&out);
    if (st == LS_OK) fputs(out.data, stdout);
    text_free(&out);
    return st;
}

static ls_status put_models(void)
{
    struct text presets = { 0 };
    const struct task *task;

    for (int i = 0; (task = task_at(i)); i++) {
        text_put(&presets, "\n");
        task->list_presets(&presets);
    }
    ls_status st = text_status(&presets);
    if (st == LS_OK) printf("Presets of --model.preset; --model.layers and others change single sizes.\n%s", presets.data);
    text_free(&presets);
    LS_TRY(st);
    printf("\nThe vocabulary is the tokenizer's unless --model.vocab is larger. --model.hf=FOLDER takes shape and weights from a\n"
           "Hugging Face folder of one of these families, --model.hf=FOLDER/config.json the shape alone.\n"
           "\n"
           "Experts are balanced by --model.aux_loss=C: for each layer C * E * sum of f P over its E experts, f the share of a sequence's\n"
           "tokens that chose the expert, P the mean of its scores; the mean over the step's sequences. It depends on each sequence\n"
           "alone, not on the layout or on accumulation. DeepSeek-V3's and Megatron-LM's sequence-wise loss is the same, with C times\n"
           "experts_per_token as coefficient; with one expert a token it is Switch's, a sequence being the batch.\n"
           "--model.aux_loss_scope=micro_batch takes f and P over a micro-batch of all data-parallel ranks, and so depends on both\n"
           "(Mixtral in transformers: over a batch, all layers together). --model.z_loss is a mean over the step's tokens; the bias of\n"
           "--model.router_bias_rate (DeepSeek-V3) moves by the loads of the whole step.\n");
    return LS_OK;
}

static ls_status put_labs(void)
{
    static const struct {
        const char *id, *program, *claim;
    } labs[] = {
#define LAB_ROW(id_, program_, claim_) { id_, program_, claim_ },
        LAB_CLAIM_MAP(LAB_ROW)
    };

    printf("What people say about distributed training, measured: a small program for each claim prints the claimed number beside the\n"
           "measured one. 'make' builds them with the rest of the source tree; then\n"
           "  build/lab_z3_traffic          run one: its rows, and a verdict for each claim\n"
           "  make labs                     run all of them, write docs/labs.md\n"
           "\n"
           "Verdicts: the claim holds; it is corrected (claimed, measured, why); it is not measurable here (why, and what would be\n"
           "needed); it does not hold. A lab exits with 1 only in the last case. docs/labs.md has the verdicts of all.\n\n");
    for (size_t i = 0; i < COUNT_OF(labs); i++) printf("%-4s build/lab_%-22s %s\n", labs[i].id, labs[i].program, labs[i].claim);
    return LS_OK;
}

/* ---- pages of text ---- */

static const char config_page[] =
    "Options come from three places; later wins:\n"
    "  1. the defaults (lockstep help options)\n"
    "  2. files, in their order:     --config base.yaml --config mine.yaml\n"
    "  3. the command line:          --train.steps=500 or --train.steps 500\n"
    "\n"
    "A file is plain YAML, a mapping per section:\n"
    "  train:\n"
    "    steps: 500\n"
    "    global_batch: 32      # = micro_batch * accumulate * parallel.dp; -1: what the others leave\n"
    "  optim:\n"
    "    lr: 3e-4\n"
    "\n"
    "An option that is unknown, out of range, or without effect is refused. --print-config shows every value and where it\n"
    "comes from. A run's folder keeps the result as config.yaml.\n";

static const char data_page[] =
    "--data.text=FILE     UTF-8 text. --data.tokenizer says how it becomes tokens:\n"
    "    bytes            256 bytes and an end-of-text token (the default)\n"
    "    bpe              byte pairs learnt from the text, --data.vocab_size of them; kept in the run's folder\n"
    "    FILE.json        a Hugging Face tokenizer.json of the byte-level kind, or the folder that holds it\n"
    "    FILE.tiktoken    ranks; FILE.tiktoken:PATTERN names the pattern gpt2, r50k, p50k, cl100k or o200k\n"
    "                     FILE.jsonl (or .ndjson) holds one JSON object per line; --data.field names the member with the text\n"
    "                     (text). Each line is a document, followed by the end-of-text token. FILE.gz (gzip) and\n"
    "                     FILE.zst (zstd), of either kind, are expanded while they are read.\n"
    "--data.special_tokens=auto   special tokens spelled out in a plain text (<|endoftext|> between documents) become their\n"
    "                     ids; in JSON lines they are text like any other, as nanoGPT and llm.c take them. parse and text\n"
    "                     say so for both. 'lockstep data inspect --data.tokenizer=..' counts documents and special tokens.\n"
    "--data.tokens=FILE   token file: llm.c (GPT-2 and Llama 3), nanoGPT .bin, Megatron .bin with .idx. The format is\n"
    "                     detected, or set with --data.format. 'lockstep data prepare' writes all of them.\n"
    "\n"
    "A sample is data.seq_len tokens and the one after them. The last data.val_fraction of the tokens is for validation.\n"
    "Samples come in an order that is a function of train.seed and the sample's number alone: a resumed run continues with\n"
    "exactly the next sample. On several ranks each takes its share of a step's samples; a step has the same samples\n"
    "on any number of ranks. Image models (lockstep help models) train on pictures drawn by (seed, number).\n";

static const char run_page[] =
    "A run writes a folder, --run.dir=DIR:\n"
    "    config.yaml            every option, resolved: 'lockstep train --config DIR/config.yaml' resumes the run, with -n N on\n"
    "                           another number of ranks: parallel.dp and train.accumulate stay -1 unless they were given\n"
    "    tokenizer.json         the tokenizer\n"
    "    metrics.jsonl          an object per step\n"
    "    events.out.tfevents.*  the same for TensorBoard\n"
    "    log/rank_0000.log      what the rank printed; .err beside it: what it wrote to standard error\n"
    "    calls/rank_0000        what each rank does and its last communication calls, for 'lockstep doctor DIR'\n"
    "    trace.json             with --log.trace=true: what every rank did when, for Perfetto or chrome://tracing;\n"
    "                           trace_step_NNNNNNNN.json if the run was resumed after that step\n"
    "    checkpoints/           step_NNNNNNNN folders, the newest --checkpoint.keep ones\n"
    "    lock                   held by the process that uses the folder: a second one is refused\n"
    "\n"
    "Keys of metrics.jsonl: step, loss (nats per token), grad_norm (before clipping), lr, tokens (of the step),\n"
    "tokens_per_second, step_seconds, mfu, hfu, memory {parameters gradients optimizer activations communication offload\n"
    "other peak} (bytes, most held during the step), comm {operation: {calls bytes seconds exposed}} (bytes that one rank\n"
    "sent; exposed: seconds that it waited), time {compute exposed bubble optimizer data other} (where step_seconds went: the\n"
    "parts add up to it; exposed: communication waited for; bubble: waiting for other stages of a pipeline; other: everything else), axis\n"
    "{dp cp tp pp ep} (seconds waited, by the axis of the mesh), bubble (of a pipeline: the share of its ranks' time in which there is\n"
    "nothing to do), expert_load (of experts: tokens routed to each, a list per layer), tokens_seen (of all steps), val_loss\n"
    "(if there was an evaluation). On several ranks step_seconds and time are the mean, memory, comm and axis the largest\n"
    "rank's; --log.per_rank=true adds a file per rank. The first line of every start also has run {hosts} (of each rank).\n"
    "\n"
    "A loss or a gradient norm that is NaN or infinite stops a run before the update: the step's micro-batches run once more\n"
    "and the line names the first such value, the operation, block, micro-batch and rank. Parameters, optimizer state and\n"
    "the last checkpoint keep their values. --train.non_finite=skip skips the update, warns and continues.\n"
    "\n"
    "--train.time_budget=SECONDS makes as many steps as the time allows, at most --train.steps. A trial before the first step saves\n"
    "a checkpoint, makes a few steps, evaluates some samples, and loads the checkpoint again; from the median step, the evaluations and\n"
    "checkpoints still to come and the time since the start it fixes the number of steps, with 5% of the time in reserve, and says it.\n"
    "The lr schedule has that length. The run is, bit for bit, one with train.steps=NUMBER and no budget. config.yaml and the\n"
    "checkpoints hold the number: a resumed run uses it and measures nothing, however long it then takes.\n"
    "\n"
    "Started again in the same folder, a run resumes from its newest complete checkpoint (--checkpoint.resume=auto), bit for\n"
    "bit when seed, data, arithmetic, instruction set and threads are the same; it says so if they are not.\n";

static const char exit_page[] =
    "    0  done; also: stopped by a signal, with everything saved\n"
    "    1  failed: one line says what failed, where, and what to do\n"
    "    2  usage: an option or argument is unknown or impossible\n"
    "    3  a peer was lost or did not answer in time; starting again may help\n"
    "\n"
    "SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal; not under nohup) save a checkpoint after the current step, then\n"
    "exit with 0, and say so at once. A second SIGINT or SIGTERM exits at once, without saving, with 128 + its number. SIGUSR1\n"
    "saves and continues. A file that reaches its size limit (ulimit -f) is reported like a full disk, with exit code 1.\n";

static const char precision_page[] =
    "--precision.compute=fp32   everything in fp32\n"
    "--precision.compute=bf16   weights and activations in bf16; sums, statistics, gradients and moments in fp32, and fp32\n"
    "                           master weights that the optimizer updates\n"
    "--precision.compute=auto   bf16 where the processor supports it natively (AVX-512 BF16), else fp32 (the default)\n"
    "--precision.master=false   bf16 without master weights: small updates round to nothing and training stalls; for comparison.\n"
    "\n"
    "MFU is the work that the model needs (6 FLOPs per matmul weight and token, plus attention) per second, HFU\n"
    "the work done, recomputation included; both as a share of what large matmuls of that type reach on this machine.\n"
    "That peak is measured once, on the processors that the ranks use together, and cached: ~/.cache/lockstep (or\n"
    "$XDG_CACHE_HOME/lockstep). --run.measure_peak=again measures it again, =off measures nothing and shows no MFU.\n";

static const char memory_page[] =
    "--recompute.mode=none          keep all activations for backward\n"
    "--recompute.mode=selective     recompute norms, activations and rotations: cheap, and a large part of the bytes\n"
    "--recompute.mode=full          keep the inputs of blocks, recompute the rest: about a third more work\n"
    "--recompute.mode=every:K       keep every K-th block's input; K near the square root of the layers needs least\n"
    "--recompute.mode=budget:SIZE   as few blocks as bring the activations within SIZE, such as budget:2GiB\n"
    "\n"
    "More and smaller micro-batches (--train.micro_batch, --train.accumulate) cost only a little speed. 'lockstep\n"
    "plan' prints the bytes of each part before anything runs; a run measures the same. A rank may\n"
    "hold --run.memory_limit=SIZE, by default its share of what its machine has free. A step that does not fit is refused before it\n"
    "runs, in one line that says what fits; 'lockstep plan -n N --machine M' does so for layouts that do not fit on this machine:\n"
    "for the largest rank, with M ranks on each machine.\n";

static const char layouts_page[] =
    "launch.ranks = pp * dp * cp * tp: every rank has a place on each axis, and --parallel.dp=-1 takes what the others leave.\n"
    "\n"
    "--parallel.dp=N, --parallel.zero=0..3   ranks share the samples (help ranks)\n"
    "--parallel.tp=N               heads, inner widths and the vocabulary are sharded; two all-reduces per layer and direction\n"
    "--parallel.sp                 norms, dropout and residual sharded by sequence over tp: the same bytes sent, less memory\n"
    "--parallel.tp_chunks=K        row-parallel matmuls in K row chunks; each all-reduce overlaps the next chunk's matmul\n"
    "--parallel.cp=N               the sequence is sharded: --parallel.cp_method=ring (keys and values are passed around) or all_to_all\n"
    "--parallel.pp=N               stages of layers; --parallel.schedule=1f1b, gpipe, interleaved, zb-h1, zb-v, file:PATH;\n"
    "                              --parallel.vpp=2 for interleaved; --parallel.stages=3,4,4,1 sets the layers of each\n"
    "--parallel.ep=N               experts over N of the dp x cp ranks (families with experts: help models)\n"
    "\n"
    "Ranks are numbered with tp innermost and pp outermost: neighbours share layers, distant ranks are other stages. Sizes do not\n"
    "need to be divisible: heads, vocabulary, layers, experts, sequence and parameters are sharded as evenly as possible; what\n"
    "can't be sharded is refused at the start.\n"
    "\n"
    "  lockstep train -n 8 --parallel.tp=2 --parallel.pp=2 --parallel.dp=2 --parallel.zero=1 --parallel.sp --data.text=my.txt\n"
    "  lockstep parity --a \"\" --b \"parallel.tp=2 parallel.pp=2 parallel.sp\" --precision.compute=fp32 --train.accumulate=4\n"
    "  lockstep plan --print-mesh --parallel.pp=2 --parallel.dp=2 --parallel.tp=4\n"
    "  lockstep plan --print-schedule --parallel.pp=4 --parallel.schedule=zb-h1 --parallel.accumulate=8 --svg zb.svg\n"
    "\n"
    "In bf16 sums round differently in another layout, and a token whose experts nearly tie may be routed to another one: about\n"
    "1 choice in 500 with 2 layers of 4 experts, 1 in 60 with 8 layers of 16. Parity counts them with their margins, lets side b\n"
    "take a's choices and compares everything else; a choice that rounding does not explain is named with layer, sample and token.\n"
    "A checkpoint can be resumed under any other layout. A pipeline needs several micro-batches per step\n"
    "(--train.accumulate, or its other name --parallel.accumulate): with M of them (pp-1)/(M+pp-1) of the time is\n"
    "idle: the pipeline bubble.\n";

static const char ranks_page[] =
    "-n N (--launch.ranks=N) starts N ranks on this machine over shared memory: nothing to install, nothing left behind. Each\n"
    "has its share of the cores. Started by mpirun, srun (Slurm) or torchrun a process joins the others instead; many machines need\n"
    "MPI (Open MPI or MPICH, found when used).\n"
    "\n"
    "--parallel.dp=N               ranks that share the samples of a step (-1: all there are)\n"
    "--parallel.zero=0             every rank holds everything; gradients are reduced in buckets during backward (DDP)\n"
    "--parallel.zero=1             the optimizer state is sharded: 12 of the 18 bytes per parameter of bf16 training\n"
    "--parallel.zero=2             gradients too\n"
    "--parallel.zero=3             parameters too (FSDP): gathered block by block, one ahead, and freed again\n"
    "--parallel.replicate=R        state is sharded over groups of dp / R ranks and reduced across the groups (HSDP)\n"
    "--optim.offload=cpu | file    the optimizer state is kept elsewhere between steps\n"
    "\n"
    "'lockstep plan --parallel.dp=8 --parallel.zero=3' prints the bytes per rank and on the wire; add --print-program to read what\n"
    "each rank does. 'lockstep parity --a \"parallel.dp=1\" --b \"parallel.dp=4 parallel.zero=3\"' runs both and compares every\n"
    "gradient and weight. --log.trace=true and 'lockstep bench comm' show what communication costs.\n"
    "\n"
    "If a rank dies, issues a mismatched collective, is stopped or shows no progress for --launch.timeout, all ranks stop with\n"
    "one line that names the rank and the call, and with exit code 3. Progress is anything from a tokenized chunk to a written\n"
    "block of a checkpoint, so the timeout does not need to cover a whole phase of a run. Which rank waits for which is followed\n"
    "over all groups, so the line names the cause and not a rank that waits itself. A stopped rank on another machine (MPI)\n"
    "counts as one that does not answer. 'lockstep doctor RUN' shows the last calls of every rank, while the run is stuck or\n"
    "after it was killed.\n";

static ls_status put_faults(void)
{
    printf("--debug.fault=NAME injects a bug of distributed training into 'lockstep train' or one side of 'lockstep parity', which must\n"
           "detect it. A fault is refused in layouts where it would change nothing.\n\n");
    if (!faults_built()) return puts("This lockstep was built without injected faults (-DFAULTS=OFF).") < 0 ? LS_EIO : LS_OK;
    for (int f = FAULT_NONE + 1; f < FAULTS; f++) printf("%-16s %s\n", fault_name((enum fault)f), fault_what((enum fault)f));
    return LS_OK;
}

struct topic {
    const char *name, *summary, *page;
    ls_status (*put)(void);
};

static const struct topic topics[] = {
    { "options", "every option, by section", NULL, put_options },
    { "config", "where values come from, and YAML files", config_page, NULL },
    { "models", "presets and Hugging Face folders", NULL, put_models },
    { "data", "texts, tokenizers, token files, samples", data_page, NULL },
    { "run", "what a run's folder holds, and how a run is resumed", run_page, NULL },
    { "precision", "arithmetic, MFU and HFU", precision_page, NULL },
    { "memory", "what uses memory, and how to use less", memory_page, NULL },
    { "ranks", "several ranks: how they start, what is sharded, what happens if one fails", ranks_page, NULL },
    { "layouts", "the model sharded over ranks: tensor, sequence, context, pipeline, expert parallelism", layouts_page, NULL },
    { "labs", "claims about distributed training, and the programs that measure them", NULL, put_labs },
    { "faults", "bugs that --debug.fault injects, to test that they are detected", NULL, put_faults },
    { "exit", "exit codes and signals", exit_page, NULL },
};

static ls_status put_topics(void)
{
    printf("lockstep help TOPIC, where TOPIC is a command, any word to search for, or one of:\n");
    for (size_t i = 0; i < COUNT_OF(topics); i++) printf("  %-12s %s\n", topics[i].name, topics[i].summary);
    return LS_OK;
}

/* Commands and topics as one page; the options have their own. */
static ls_status put_markdown(void)
{
    printf("# The command\n\nWritten by `lockstep help --markdown`. `lockstep COMMAND -h` is the short help of a command, `--help` the "
           "whole.\n\n| command | |\n|---|---|\n");
    for (int i = 0; commands[i]; i++)
        printf("| `%s%s%s` | %s |\n", commands[i]->name, commands[i]->arguments[0] ? " " : "", commands[i]->arguments,
               commands[i]->summary);
    for (size_t i = 0; i < COUNT_OF(topics); i++) {
        if (topics[i].put == put_options) continue;
        printf("\n## %s: %s\n\n```\n", topics[i].name, topics[i].summary);
        if (topics[i].put)
            LS_TRY(topics[i].put());
        else
            fputs(topics[i].page, stdout);
        printf("```\n");
    }
    return LS_OK;
}

static ls_status fail_topic(const char *name)
{
    struct text names = { 0 };

    for (size_t i = 0; i < COUNT_OF(topics); i++) text_put(&names, "%s%s", i ? ", " : "", topics[i].name);
    ls_status st = text_status(&names);
    if (st == LS_OK) st = ls_fail(LS_EINVAL, "nothing mentions '%s'; the topics are the commands and %s", name, names.data);
    text_free(&names);
    return st;
}

/* "data" is a topic and a group of commands; "data prepare" is a command. */
static const struct command *find_command(const struct invocation *in)
{
    char name[64];

    snprintf(name, sizeof name, "%s%s%s", in->arguments[0], in->count > 1 ? " " : "", in->count > 1 ? in->arguments[1] : "");
    for (int i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static const struct topic *find_topic(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(topics); i++)
        if (strcmp(topics[i].name, name) == 0) return &topics[i];
    return NULL;
}

static ls_status cmd_help_check(const struct invocation *in)
{
    if (markdown && in->count && strcmp(in->arguments[0], "options") != 0)
        return ls_fail(LS_EINVAL, "--markdown is for 'help' and 'help options'");
    return LS_OK;
}

/* Neither a topic nor a command: a group of commands, or everything that mentions the word. */
static ls_status search(const struct invocation *in)
{
    struct help_page pages[COUNT_OF(topics)];
    char word[128];

    snprintf(word, sizeof word, "%s%s%s", in->arguments[0], in->count > 1 ? " " : "", in->count > 1 ? in->arguments[1] : "");
    for (size_t i = 0; i < COUNT_OF(topics); i++) pages[i] = (struct help_page){ topics[i].name, topics[i].summary, topics[i].page };
    if (help_group(word) || help_search(word, pages, COUNT_OF(pages))) return LS_OK;
    return fail_topic(word);
}

/* ---- an option or a flag, written with its dashes ---- */

static ls_status put_option(const struct option *row)
{
    struct text out = { 0 };

    options_put_row(config_table(), row, &out);
    ls_status st = text_status(&out);
    if (st == LS_OK) fputs(out.data, stdout);
    text_free(&out);
    return st;
}

static bool put_flags(const char *name)
{
    bool any = false;

    for (int i = 0; commands[i]; i++)
        for (const struct flag *f = commands[i]->flags; f && f->name; f++) {
            if (strcmp(f->name, name) != 0) continue;
            printf("  lockstep %s --%s%s%s\n%30s%s\n", commands[i]->name, name, f->metavar ? " " : "", f->metavar ? f->metavar : "", "",
                   f->help);
            any = true;
        }
    return any;
}

/* --model.heads, --zero, --prompt, each with or without a value. */
static ls_status put_dashed(const char *word)
{
    const struct option_table *t = config_table();
    char name[80], meant[160];

    snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(word, "="), sizeof name - 1), word);
    const struct option *row = options_find(t, name);
    if (row) return put_option(row);
    if (put_flags(name)) return LS_OK;
    bool sure = options_suggest(t, 0, name, NULL, true, meant, sizeof meant);
    meant[sure ? strcspn(meant, "=") : 0] = '\0';
    if (sure && (row = options_find(t, meant))) return put_option(row);
    const char *near = options_nearest(t, name);
    return ls_fail(LS_EINVAL, "unknown option '--%s'; %s%s%s", name, near ? "did you mean '--" : "see 'lockstep help options'",
                   near ? near : "", near ? "'?" : "");
}

static ls_status cmd_help_run(struct invocation *in)
{
    if (in->count == 0) return markdown ? put_markdown() : put_topics();
    const char *word = in->arguments[0], *bare = word + strspn(word, "-");
    const struct topic *topic = in->count == 1 ? find_topic(bare) : NULL;
    if (!topic && bare > word) return args_refuse(in, put_dashed(bare));
    if (!topic && in->count == 1 && options_find(config_table(), word)) return put_option(options_find(config_table(), word));
    if (!topic && !find_command(in)) return args_refuse(in, search(in));
    if (!topic) return help_command(find_command(in), true);
    if (topic->put) return topic->put();
    fputs(topic->page, stdout);
    return LS_OK;
}

const struct command command_help = {
    .name = "help",
    .arguments = "[TOPIC]",
    .most = 2,
    .summary = "pages about options, models, data, runs, exit codes; or whatever mentions a word",
    .flags = flags,
    .dashes = true,
    .check = cmd_help_check,
    .run = cmd_help_run,
    .examples = "  lockstep help\n  lockstep help models\n"
                "  lockstep help fsdp                   whatever mentions it: pages, commands, flags, options\n"
                "  lockstep help --model.heads          an option\n"
                "  lockstep help bench train\n",
};
