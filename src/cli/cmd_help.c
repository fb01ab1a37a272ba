/* cmd_help.c - `lockstep help TOPIC`: prints pages on topics that concern several commands. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "cli/args.h"
#include "lab.h"
#include "lockstep/pipeline.h"
#include "train/faults/faults.h"
#include "train/task/task.h"

static bool markdown;

static const struct flag help_flags[] = {
    { "markdown", FLAG_SWITCH, &markdown, 0, 0, NULL, "print docs/command.md ('help') or docs/options.md ('help options')" },
    { 0 },
};

/* ---- pages made from tables ---- */

static ls_status put_options(void)
{
    struct text out = { 0 };

    if (!markdown) return help_options(0, true);
    printf(
        "# Options\n\nWritten by `lockstep help options --markdown`. An option is given on the command line as `--section.key=value`, or "
        "in a\n"
        "YAML file for `--config FILE` with one mapping per section. Files override the defaults, the command line overrides files.\n\n");
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
    if (st == LS_OK)
        printf("These are the presets of --model.preset; options such as --model.layers change single sizes.\n%s", presets.data);
    text_free(&presets);
    LS_TRY(st);
    printf(
        "\nThe model has the tokenizer's vocabulary unless --model.vocab is larger. --model.hf=FOLDER takes shape and weights from a\n"
        "Hugging Face folder of one of these families, --model.hf=FOLDER/config.json takes only the shape.\n"
        "\n"
        "--model.aux_loss=C balances the experts. It adds a loss of C * E * (sum of f * P over the E experts) for each layer, where f is\n"
        "the share of a sequence's tokens that are routed to the expert and P is the mean of the expert's scores, averaged over the\n"
        "step's sequences. The loss of a sequence depends only on that sequence, not on the layout or on accumulation. It is the\n"
        "sequence-wise loss of DeepSeek-V3 and Megatron-LM with the coefficient C * experts_per_token; with one expert per token it is\n"
        "Switch Transformer's loss, applied to each sequence instead of the batch. --model.aux_loss_scope=micro_batch computes f and P\n"
        "over a micro-batch of all data-parallel ranks, so the loss depends on layout and accumulation (Mixtral in transformers uses a\n"
        "batch, and all layers together). --model.z_loss is averaged over the step's tokens. --model.router_bias_rate changes a bias\n"
        "after each step by the load of each expert in that step (DeepSeek-V3).\n");
    return LS_OK;
}

static ls_status put_labs(void)
{
    printf("A lab measures claims about distributed training and prints the claimed number next to the measured one:\n"
           "  lockstep lab                  lists all claims, with the verdicts of what ran here before\n"
           "  lockstep lab z3               runs the lab of claim Z3\n"
           "  lockstep lab p2 --stages 8 --micro-batches 4    with other sizes\n"
           "  lockstep lab d8 --model.preset=gpt2-124m        on a model of yours, for labs that take such options\n"
           "  make labs                     runs all labs and writes docs/claims.md\n"
           "\n"
           "A verdict says that the claim holds, that it is corrected (claimed, measured, why), that it cannot be measured here (why, and\n"
           "what it would take), or that it does not hold. The exit code is 1 only in the last case. docs/claims.md has all verdicts.\n\n");
    for (size_t i = 0; lab_list[i]; i++) {
        printf("%-24s %s", lab_list[i]->name, lab_list[i]->title);
        for (const struct lab_size *s = lab_list[i]->sizes; s->name; s++) printf("%s--%s", s == lab_list[i]->sizes ? ": " : ", ", s->name);
        for (const char *at = lab_list[i]->options; at && *at; at += strcspn(at, " "), at += *at == ' ')
            printf(", --%.*s.*", (int)strcspn(at, " "), at);
        printf("\n");
    }
    return LS_OK;
}

/* ---- pages of text ---- */

static const char config_page[] =
    "Options come from three places; each overrides the ones before it:\n"
    "  1. the defaults (lockstep help options)\n"
    "  2. files, in the given order: --config base.yaml --config mine.yaml\n"
    "  3. the command line:          --train.steps=500 or --train.steps 500\n"
    "\n"
    "A file is plain YAML with one mapping per section:\n"
    "  train:\n"
    "    steps: 500\n"
    "    global_batch: 32      # = micro_batch * accumulate * parallel.dp; -1: derived from these\n"
    "  optim:\n"
    "    lr: 3e-4\n"
    "\n"
    "An option that is unknown, out of range or without effect is refused. There is one exception: if an option of a file has no\n"
    "effect only because of the number of ranks (parallel.zero on a single rank), a warning says so and the default is used, so that\n"
    "the config.yaml of a run works under other layouts. --print-config prints every value and where it comes from. A run's folder\n"
    "keeps the resolved options as config.yaml.\n";

static const char data_page[] =
    "--data.text=FILE     is UTF-8 text. --data.tokenizer sets the tokenizer:\n"
    "    bytes            256 bytes and an end-of-text token (the default)\n"
    "    bpe              byte-pair encoding with a vocabulary of --data.vocab_size tokens, learned from the text and kept in the\n"
    "                     run's folder\n"
    "    FILE.json        a byte-level tokenizer.json of Hugging Face, or the folder that holds it\n"
    "    FILE.tiktoken    a tiktoken file; FILE.tiktoken:PATTERN sets its pattern: gpt2, r50k, p50k, cl100k or o200k\n"
    "--data.text=FILE.jsonl   (or .ndjson) has one JSON object per line; --data.field names the member that holds the text [text].\n"
    "                     Each line is a document and is followed by the end-of-text token. FILE.gz (gzip) and FILE.zst (zstd) of\n"
    "                     either kind are decompressed while they are read.\n"
    "--data.special_tokens=auto   special tokens that are spelled out in plain text (<|endoftext|> between documents) become\n"
    "                     their ids; in JSON lines they are ordinary text, as in nanoGPT and llm.c. 'parse' and 'text' choose one of\n"
    "                     the two for both. 'lockstep data inspect --data.tokenizer=..' counts documents and special tokens.\n"
    "--data.tokens=FILE   is a token file: llm.c (GPT-2 and Llama 3), nanoGPT .bin, Megatron .bin with .idx. The format is\n"
    "                     detected, or set with --data.format. 'lockstep data prepare' writes all of them.\n"
    "\n"
    "A sample is data.seq_len tokens and the token after them. The last data.val_fraction of the tokens is used for validation.\n"
    "The order of samples is a function of train.seed and the sample's number, so a resumed run continues with exactly the next\n"
    "sample. A step has the same samples on any number of ranks; each data-parallel rank takes its share of them. Image models\n"
    "(lockstep help models) train on pictures that are drawn as a function of seed and number.\n";

static const char run_page[] =
    "A run writes a folder, --run.dir=DIR:\n"
    "    config.yaml            all options, resolved: 'lockstep train --config DIR/config.yaml' resumes the run; -n N resumes it\n"
    "                           on N ranks, because parallel.dp and train.accumulate are -1 in it unless they were given\n"
    "    tokenizer.json         the tokenizer (or a .tiktoken file)\n"
    "    metrics.jsonl          one JSON object per step\n"
    "    events.out.tfevents.*  the same for TensorBoard\n"
    "    log/rank_0000.log      the log of each rank; rank_0000.err beside it: its standard error\n"
    "    metrics.rank_0000.jsonl  with --log.per_rank=true: the metrics of each rank\n"
    "    calls/                 the state of each rank and its last communication calls, and how the ranks ended, for 'lockstep doctor "
    "DIR'\n"
    "    trace.json             with --log.trace=true: a timeline of every rank, for Perfetto or chrome://tracing;\n"
    "                           trace_step_NNNNNNNN.json if the run was resumed after that step\n"
    "    method.json            with a --parallel.method other than allreduce: its cost compared with allreduce\n"
    "    checkpoints/           step_NNNNNNNN folders; the newest --checkpoint.keep ones are kept\n"
    "    lock                   locked by the process that uses the folder; a second process is refused\n"
    "\n"
    "A line of metrics.jsonl has these keys:\n"
    "    step, lr               number of the step; its learning rate\n"
    "    loss, grad_norm        nats per token; norm of the gradient before clipping\n"
    "    tokens, tokens_seen    of the step; of all steps\n"
    "    step_seconds           with tokens_per_second, mfu, hfu\n"
    "    time                   {compute exposed bubble optimizer data other}: how step_seconds was spent; exposed: waiting for\n"
    "                           communication; bubble: waiting for other pipeline stages\n"
    "    axis                   {dp cp tp pp ep}: seconds waited, by axis of the mesh\n"
    "    bubble                 with a pipeline: the idle share of the ranks' time\n"
    "    memory                 {parameters gradients optimizer activations communication offload other peak}: bytes, the most held\n"
    "                           during the step; on a GPU also gpu_peak, of the GPU's memory\n"
    "    comm                   {operation: {calls bytes seconds exposed}}: bytes that one rank sent; exposed: seconds that it waited\n"
    "    offload                {loaded saved waited}: bytes, bytes, seconds\n"
    "    expert_load            with experts: tokens routed to each expert, a list per layer\n"
    "    staleness              {updates mean most}, with parallel.method=async\n"
    "    save_seconds           of a checkpoint that was saved just before the step\n"
    "    skipped                true if the update was skipped\n"
    "    val_loss               if there was an evaluation\n"
    "    run                    {hosts}, one per rank, in the first line of every start\n"
    "On several ranks, step_seconds and time are means, and memory, comm and axis are those of the largest rank.\n"
    "\n"
    "If a loss or gradient norm is NaN or infinite, the run stops before the update: it runs the step's micro-batches once more and\n"
    "prints a line that names the first such value by operation, block, micro-batch and rank. Parameters, optimizer state and the\n"
    "last checkpoint are unchanged. With --train.non_finite=skip the run skips the update, warns and continues.\n"
    "\n"
    "--train.time_budget=SECONDS runs as many steps as fit into the time, at most --train.steps. A trial before the first step saves\n"
    "a checkpoint, runs a few steps, evaluates some samples, and loads the checkpoint again. It fixes the number of steps by the\n"
    "median step, the evaluations and checkpoints to come and the time since the start, with 5% of the time in reserve, and prints\n"
    "it. The lr schedule has that length. The run is bit for bit the same as one with train.steps=NUMBER and no budget. config.yaml\n"
    "and the checkpoints hold the number, so a resumed run uses it and measures nothing, no matter how long it then takes.\n"
    "\n"
    "A run that is started again in the same folder resumes from its newest complete checkpoint (--checkpoint.resume=auto). The result\n"
    "is bit for bit the same if seed, data, types, instruction set and number of threads are the same; otherwise the run warns.\n";

static const char exit_page[] =
    "    0  done, or stopped by a signal after a checkpoint was saved\n"
    "    1  failed; one line says what failed, where, and what to do\n"
    "    2  usage error: an option or argument is unknown or impossible\n"
    "    3  a peer was lost or did not answer in time; starting again may help\n"
    "\n"
    "On SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed terminal; not under nohup), 'train' prints a line at once, saves a checkpoint\n"
    "after the current step and exits with 0. On a second SIGINT or SIGTERM it exits at once, without saving, with 128 + the signal's\n"
    "number. On SIGUSR1 it saves a checkpoint and continues. A file that reaches its size limit (ulimit -f) is reported like a full\n"
    "disk, with exit code 1.\n";

static const char precision_page[] =
    "--precision.compute=fp32   everything in fp32\n"
    "--precision.compute=bf16   weights and activations in bf16; sums, statistics, gradients and moments in fp32; and fp32\n"
    "                           master weights, which the optimizer updates\n"
    "--precision.grads=bf16     with bf16 compute: gradients in bf16 as well, so AdamW needs 16 bytes per parameter instead of 18. What "
    "is\n"
    "                           added to a gradient is summed in fp32 and rounded, as are sums over ranks, which send half the bytes.\n"
    "                           Norm, clipping and update compute in fp32\n"
    "--precision.compute=auto   bf16 on a GPU or if kernels use AMX or AVX-512 BF16 (--run.isa), else fp32 (the default)\n"
    "--precision.tf32=true      with fp32 on a GPU: matmuls round their operands to TF32, 10 bits of mantissa, and use tensor cores\n"
    "--precision.master=false   bf16 without master weights, for comparison: small updates are lost to rounding and training stalls\n"
    "--precision.stochastic_rounding=true\n"
    "                           with master=false: weights are rounded at random, so that small updates are kept in the mean\n"
    "\n"
    "MFU counts the FLOPs per second that the model needs (6 per matmul weight and token, plus attention), HFU those that are\n"
    "executed, which include recomputation. Both are relative to a peak: the FLOP/s that large matmuls of that type reach on this\n"
    "machine. The peak is measured once, on the processors that the ranks use together, and cached in ~/.cache/lockstep (or\n"
    "$XDG_CACHE_HOME/lockstep). --run.measure_peak=again measures it again; =off measures nothing and shows no MFU.\n";

static const char memory_page[] =
    "--recompute.mode=none          keep all activations for backward\n"
    "--recompute.mode=selective     recompute norms, activation functions and rotary embeddings: little work, many bytes\n"
    "--recompute.mode=full          keep only the inputs of blocks and recompute the rest: up to a third more work\n"
    "--recompute.mode=every:K       keep the input of every K-th block; K = 1 needs least memory up to about 32 layers, since what one\n"
    "                               block recomputes takes some 16 times its input ('lockstep lab r6')\n"
    "--recompute.mode=first:K       recompute the first K blocks (in a pipeline of each chunk)\n"
    "--recompute.mode=budget:SIZE   first:K with the smallest K that keeps each rank's activations within SIZE, such as budget:2GiB; each\n"
    "                               pipeline stage has its own K\n"
    "--optim.in_backward --optim.clip_by=previous (or --optim.clip=0)\n"
    "                               update each parameter in backward, as soon as its gradient is final, so that gradients are freed as\n"
    "                               they are used (one micro-batch per step, no pipeline, the cpu). The bits of the weights are the same.\n"
    "                               Updates stop before the first gradient that is not finite; those made before it in that step stay.\n"
    "                               optim.clip_by=previous clips by the norm of the previous step, which checkpoints store\n"
    "\n"
    "More and smaller micro-batches (--train.micro_batch, --train.accumulate) need less memory and cost only a little speed.\n"
    "'lockstep plan' prints the bytes of each part before anything runs; a run measures the same bytes. --run.memory_limit=SIZE\n"
    "limits what a rank may hold; the default is its share of its machine's free memory. A step that does not fit is refused before\n"
    "it runs, with a line that suggests options with which it fits. 'lockstep plan -n N --machine M' plans layouts for other\n"
    "machines: it prints the largest of N ranks, with M ranks on each machine like this one. If M is the name of a machine, such as\n"
    "h100-dgx, or a file that describes one, it also prints how long a step takes there.\n";

#define SCHEDULE_NAME(id, name) name ", "
#define SCHEDULE_NAMES          "auto, " LS_PIPELINE_SCHEDULE_MAP(SCHEDULE_NAME) "file:PATH"
static const char layouts_page[] =
    "The ranks form a mesh: launch.ranks = pp * dp * cp * tp. --parallel.dp=-1 sets dp by the other axes.\n"
    "\n"
    "--parallel.dp=N, --parallel.zero=0..3   data-parallel ranks divide the samples (see 'lockstep help ranks')\n"
    "--parallel.tp=N               shards heads, inner widths and the vocabulary; two all-reduces per layer and direction\n"
    "--parallel.sp                 shards norms, dropout and residual by sequence over tp: the same bytes sent, less memory\n"
    "--parallel.tp_chunks=K        splits row-parallel matmuls into K row chunks; each all-reduce overlaps the next chunk's matmul\n"
    "--parallel.cp=N               shards the sequence; --parallel.cp_method=ring passes keys and values around, all_to_all exchanges\n"
    "                              heads for tokens\n"
    "--parallel.pp=N               divides the layers into N stages; --parallel.stages=3,4,4,1 sets the layers of each stage\n"
    "--parallel.schedule=NAME      " SCHEDULE_NAMES "; --parallel.vpp=2 for interleaved\n"
    "--parallel.ep=N               shards the experts over N of the dp x cp ranks (for families with experts, see 'lockstep help "
    "models');\n"
    "                              --parallel.receive_factor=1.5 has room for 1.5 times the rows of an even load, instead of all\n"
    "                              that can arrive\n"
    "\n"
    "Ranks are numbered with tp innermost and pp outermost: ranks with neighboring numbers hold the same layers, distant ones are\n"
    "other stages. Sizes do not need to be divisible by the number of ranks: heads, vocabulary, layers, experts, sequence and\n"
    "parameters are sharded as evenly as possible. What cannot be sharded is refused at the start.\n"
    "\n"
    "  lockstep train -n 8 --parallel.tp=2 --parallel.pp=2 --parallel.dp=2 --parallel.zero=1 --parallel.sp --data.text=my.txt\n"
    "  lockstep parity --a \"\" --b \"parallel.tp=2 parallel.pp=2 parallel.sp\" --precision.compute=fp32 --train.accumulate=4\n"
    "  lockstep plan --print-mesh --parallel.pp=2 --parallel.dp=2 --parallel.tp=4\n"
    "  lockstep plan --print-schedule --parallel.pp=4 --parallel.schedule=zb-h1 --train.accumulate=8 --svg zb.svg\n"
    "\n"
    "In bf16, sums round differently under another layout, so a token whose experts have nearly equal scores may be routed to another\n"
    "one: about 1 choice in 500 with 2 layers of 4 experts, 1 in 60 with 8 layers of 16. Parity counts these choices with their margins,\n"
    "makes side b use the choices of side a and compares everything else; it names layer, sample and token of a choice that rounding\n"
    "does not explain.\n"
    "A checkpoint can be resumed under any other layout. A pipeline needs several micro-batches per step (--train.accumulate, or its\n"
    "other name --parallel.accumulate): with M of them, a share of (pp-1)/(M+pp-1) of the time is idle with gpipe and 1f1b, the\n"
    "pipeline bubble; interleaved and zero-bubble schedules idle less.\n";

static const char ranks_page[] =
    "-n N (--launch.ranks=N) starts N ranks on this machine, which communicate over shared memory; nothing needs to be installed.\n"
    "Each rank has its share of the cores. A process that mpirun, srun (Slurm) or torchrun started becomes one of their ranks instead.\n"
    "Several machines need MPI (Open MPI or MPICH), which is loaded when it is used; torchrun starts ranks on one machine only. The\n"
    "run's folder must be on a file system that all machines share.\n"
    "\n"
    "--parallel.dp=N               number of ranks that divide the samples of a step (-1: set by the other axes)\n"
    "--parallel.zero=0             every rank holds everything; gradients are reduced in buckets during backward (DDP)\n"
    "--parallel.zero=1             the optimizer state is sharded: 12 of the 18 bytes per parameter of bf16 training\n"
    "--parallel.zero=2             gradients are sharded too\n"
    "--parallel.zero=3             parameters are sharded too (FSDP): they are gathered block by block, one block ahead, and freed again;\n"
    "                              --parallel.fsdp_unit=layers:K or model gathers more at once, --parallel.prefetch=K further ahead\n"
    "--parallel.replicate=R        state is sharded within groups of dp / R ranks, gradients are reduced across the groups (HSDP)\n"
    "--optim.offload=cpu | file    the optimizer state is kept elsewhere between steps\n"
    "--parallel.offload_parameters=cpu | file    parameters and gradients are kept elsewhere while no unit needs them; they are read\n"
    "                              --parallel.prefetch units ahead, from files without the page cache (one rank, or zero 3)\n"
    "\n"
    "Three other methods show why the ordinary one is an all-reduce; the report of a run compares their cost with that of its first steps\n"
    "(--parallel.reference_steps), and RUN/method.json has the numbers. They need parallel.zero=0 and no axis except dp. The first two\n"
    "compute the step of a single rank; the third does not.\n"
    "--parallel.method=dataparallel   rank 0 owns the model, as in torch.nn.DataParallel: in each micro-batch it sends samples and "
    "weights\n"
    "                              to all ranks and adds up their gradients; it alone has optimizer state and updates\n"
    "--parallel.method=server      a parameter server: rank 0 adds up the gradients of a step, updates, and sends the weights back\n"
    "--parallel.method=async       an asynchronous one: rank 0 only serves, and updates with the gradient of each other rank as it\n"
    "                              arrives, although it was computed from older (stale) weights; --parallel.async_turns takes them in "
    "turn\n"
    "\n"
    "'lockstep plan --parallel.dp=8 --parallel.zero=3' prints the bytes that a rank holds and sends; --print-program adds the rank's\n"
    "program. 'lockstep parity --a \"parallel.dp=1\" --b \"parallel.dp=4 parallel.zero=3\"' runs both layouts and compares every\n"
    "gradient and weight. --log.trace=true and 'lockstep bench comm' show what communication costs.\n"
    "\n"
    "If a rank dies, issues a mismatched collective, is suspended or shows no progress for --launch.timeout, all ranks stop with exit\n"
    "code 3 and one line names the rank and the call. Every tokenized chunk of text and every written block of a checkpoint counts as\n"
    "progress, so the timeout does not need to cover a phase of a run. While the main thread of a rank of the same machine is blocked\n"
    "in the kernel, as on a slow disk, it has ten times as long. lockstep follows over all groups which rank waits for which, so the\n"
    "line names the cause and not a rank that itself waits. A suspended rank on another machine (MPI) counts as one that does not answer.\n"
    "'lockstep doctor RUN' shows the last calls of every rank, while the run is stuck or after it was killed.\n";

/* Prints a name and a text, whose further lines are indented like the first. */
static void put_named(const char *name, const char *text)
{
    for (size_t length; *text; text += length + (text[length] == '\n'), name = "") {
        length = strcspn(text, "\n");
        printf("%-16s %.*s\n", name, (int)length, text);
    }
}

static ls_status put_faults(void)
{
    if (!faults_built()) return puts("This lockstep was built without injected faults (-DFAULTS=OFF).") < 0 ? LS_EIO : LS_OK;
    for (int f = FAULT_NONE + 1; f < FAULTS; f++) {
        const char *heading = fault_heading((enum fault)f);

        if (heading) printf("%s%s\n\n", f > FAULT_NONE + 1 ? "\n" : "", heading);
        put_named(fault_name((enum fault)f), fault_what((enum fault)f));
    }
    return LS_OK;
}

struct topic {
    const char *name, *summary, *page;
    ls_status (*put)(void);
};

static const struct topic topics[] = {
    { "options", "all options, by section", NULL, put_options },
    { "config", "where the values of options come from, and YAML files", config_page, NULL },
    { "models", "presets and Hugging Face folders", NULL, put_models },
    { "data", "texts, tokenizers, token files, samples", data_page, NULL },
    { "run", "what a run's folder holds, and how a run is resumed", run_page, NULL },
    { "precision", "types of weights and activations; MFU and HFU", precision_page, NULL },
    { "memory", "what uses memory, and how to use less", memory_page, NULL },
    { "ranks", "several ranks: how they start, what is sharded, what happens if one fails", ranks_page, NULL },
    { "layouts", "sharding the model: tensor, sequence, context, pipeline and expert parallelism", layouts_page, NULL },
    { "labs", "claims about distributed training, and the programs that measure them", NULL, put_labs },
    { "faults", "faults that the options debug.* inject, to test that they are detected", NULL, put_faults },
    { "exit", "exit codes and signals", exit_page, NULL },
};

static ls_status put_topics(void)
{
    printf("usage: lockstep help TOPIC, where TOPIC is a command, an option, a word to search for, or one of:\n");
    for (size_t i = 0; i < COUNT_OF(topics); i++) printf("  %-12s %s\n", topics[i].name, topics[i].summary);
    return LS_OK;
}

/* Prints commands and topics as one page; options have a page of their own. */
static ls_status put_markdown(void)
{
    printf("# The command\n\nWritten by `lockstep help --markdown`. `lockstep COMMAND -h` prints the short help of a command, `--help` the "
           "complete help.\n\n| command | |\n|---|---|\n");
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

/* Finds the command with a name of one or two words: "data" is a topic and a group of commands, "data prepare" is a command. */
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
        return ls_fail(LS_EINVAL, "--markdown applies only to 'help' and 'help options'");
    return LS_OK;
}

/* For a word that is neither a topic nor a command: lists the commands of a group, or everything that mentions the word. */
static ls_status search_word(const struct invocation *in)
{
    struct help_page pages[COUNT_OF(topics)];
    char word[128];

    snprintf(word, sizeof word, "%s%s%s", in->arguments[0], in->count > 1 ? " " : "", in->count > 1 ? in->arguments[1] : "");
    for (size_t i = 0; i < COUNT_OF(topics); i++) pages[i] = (struct help_page){ topics[i].name, topics[i].summary, topics[i].page };
    if (help_group(word) || help_search(word, pages, COUNT_OF(pages))) return LS_OK;
    return fail_topic(word);
}

/* ---- options and flags with their dashes ---- */

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

/* Prints the help of an option or flag: --model.heads, --zero, --prompt, each with or without a value. */
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
    if (!topic && !find_command(in)) return args_refuse(in, search_word(in));
    if (!topic) return help_command(find_command(in), true);
    if (topic->put) return topic->put();
    fputs(topic->page, stdout);
    return LS_OK;
}

const struct command command_help = {
    .name = "help",
    .arguments = "[TOPIC]",
    .most = 2,
    .summary = "print a page on a topic, a command or an option, or list everything that mentions a word",
    .flags = help_flags,
    .dashes = true,
    .check = cmd_help_check,
    .run = cmd_help_run,
    .examples = "  lockstep help\n  lockstep help models\n"
                "  lockstep help fsdp                   lists pages, commands, flags and options that mention it\n"
                "  lockstep help --model.heads          describes an option\n"
                "  lockstep help bench train\n",
};
