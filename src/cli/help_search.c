/* help_search.c - `lockstep help WORD`: lists every page, command, flag and option that mentions a word. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "cli/args.h"

/* Words of other programs, and the word of our pages that is searched for as well. */
static const struct {
    const char *word, *ours;
} synonyms[] = {
    { "ddp", "zero=0" },
    { "fsdp", "FSDP" },
    { "hsdp", "replicate" },
    { "moe", "experts" },
    { "learning-rate", "lr" },
    { "learning_rate", "lr" },
    { "optimizer", "optim" },
    { "nccl", "bench comm" },
    { "gpu", "ranks" },
    { "gpus", "ranks" },
    { "multi-node", "mpirun" },
    { "distributed", "ranks" },
    { "checkpointing", "checkpoint" },
    { "save", "checkpoint" },
    { "batch", "micro_batch" },
    { "batch_size", "global_batch" },
    { "huggingface", "Hugging Face" },
    { "hf", "Hugging Face" },
    { "transformers", "Hugging Face" },
    { "error", "exit" },
    { "errors", "exit" },
    { "deadlock", "doctor" },
    { "hang", "doctor" },
    { "stuck", "doctor" },
    { "evaluate", "eval" },
    { "perplexity", "eval" },
    { "oom", "memory" },
    { "wandb", "tensorboard" },
    { "logging", "metrics" },
    { "sharding", "zero" },
    { "parallelism", "parallel" },
    { "mixed-precision", "bf16" },
    { "inference", "generate" },
    { "lab", "labs" },
    { "claims", "labs" },
};

static const char *meaning(const char *word)
{
    for (size_t i = 0; i < COUNT_OF(synonyms); i++)
        if (strcmp(synonyms[i].word, word) == 0) return synonyms[i].ours;
    return NULL;
}

static char lower(char c) { return (char)tolower((unsigned char)c); }

/* The first place where a word of `text` begins with `word`, ignoring case; NULL: none. */
static const char *find_word(const char *text, const char *word)
{
    size_t length = strlen(word);

    for (const char *at = text; text && *at; at++) {
        size_t k = 0;

        if (at > text && isalnum((unsigned char)at[-1]) && isalnum((unsigned char)word[0])) continue;
        while (k < length && lower(at[k]) == lower(word[k])) k++;
        if (k == length) return at;
    }
    return NULL;
}

struct search {
    const char *word, *ours;
    size_t found;
};

static const char *find_any(const struct search *s, const char *text)
{
    const char *at = find_word(text, s->word);

    return at || !s->ours ? at : find_word(text, s->ours);
}

static void help_search_put(struct search *s, const char *left, const char *right)
{
    if (s->found++ == 0) printf("'%s' is mentioned in:\n", s->word);
    printf("  %-34s %s\n", left, right);
}

/* Prints the line of a page that mentions the word. */
static void put_line(const char *text, const char *at)
{
    const char *begin = at, *end = at + strcspn(at, "\n");

    while (begin > text && begin[-1] != '\n') begin--;
    while (*begin == ' ') begin++;
    printf("  %-34s   .. %.*s\n", "", (int)(end - begin), begin);
}

static void search_pages(struct search *s, const struct help_page *pages, size_t count)
{
    char left[64];

    for (size_t i = 0; i < count; i++) {
        const char *at = pages[i].text ? find_any(s, pages[i].text) : NULL;

        if (!at && !find_any(s, pages[i].name) && !find_any(s, pages[i].summary)) continue;
        snprintf(left, sizeof left, "lockstep help %s", pages[i].name);
        help_search_put(s, left, pages[i].summary);
        if (at) put_line(pages[i].text, at);
    }
}

static void search_commands(struct search *s)
{
    char left[96];

    for (int i = 0; commands[i]; i++) {
        const struct command *c = commands[i];

        if (find_any(s, c->name) || find_any(s, c->summary)) {
            snprintf(left, sizeof left, "lockstep %s --help", c->name);
            help_search_put(s, left, c->summary);
        }
        for (const struct flag *f = c->flags; f && f->name; f++) {
            if (!find_any(s, f->name) && !find_any(s, f->help)) continue;
            snprintf(left, sizeof left, "lockstep %s --%s", c->name, f->name);
            help_search_put(s, left, f->help);
        }
    }
}

static void search_options(struct search *s)
{
    const struct option_table *t = config_table();
    char left[96];

    for (size_t i = 0; i < t->count; i++) {
        if (!find_any(s, t->rows[i].name) && !find_any(s, t->rows[i].help) && !(t->rows[i].choices && find_any(s, t->rows[i].choices)))
            continue;
        snprintf(left, sizeof left, "--%s", t->rows[i].name);
        help_search_put(s, left, t->rows[i].help);
    }
}

bool help_search(const char *word, const struct help_page *pages, size_t count)
{
    struct search s = { .word = word, .ours = meaning(word) };
    char meant[160];

    if (!word[0]) return false;
    search_pages(&s, pages, count);
    search_commands(&s);
    search_options(&s);
    if (options_suggest(config_table(), 0, word, NULL, true, meant, sizeof meant)) {
        char left[176], right[176];

        snprintf(left, sizeof left, "--%s", meant);
        snprintf(right, sizeof right, "lockstep's option for '%.100s'", word);
        help_search_put(&s, left, right);
    }
    return s.found > 0;
}
