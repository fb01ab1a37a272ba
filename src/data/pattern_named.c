/* pattern_named.c - the named patterns, in a spelling that every engine interprets alike.
 *
 * tiktoken writes some of them with possessive quantifiers and `\s++$|\s+(?!\S)|\s`; the ones here match the same: nothing after the
 * quantifier could make it backtrack, and at the end of the text `\s+(?!\S)` matches what `\s++$` does. cl100k is also Llama 3's.
 */
#include "data/pattern.h"

#include <string.h>
#include "base/base.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K                                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K                                                                                    \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"                                                              \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"                                                              \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct pattern_named named[] = {
    { "gpt2", GPT2, { { "<|endoftext|>", 50256 } } },
    { "r50k", GPT2, { { "<|endoftext|>", 50256 } } },
    { "p50k", GPT2, { { "<|endoftext|>", 50256 } } },
    { "cl100k",
      CL100K,
      { { "<|endoftext|>", 100257 },
        { "<|fim_prefix|>", 100258 },
        { "<|fim_middle|>", 100259 },
        { "<|fim_suffix|>", 100260 },
        { "<|endofprompt|>", 100276 } } },
    { "o200k", O200K, { { "<|endoftext|>", 199999 }, { "<|endofprompt|>", 200018 } } },
};

const struct pattern_named *pattern_at(int i) { return (size_t)i < COUNT_OF(named) ? &named[i] : NULL; }

const struct pattern_named *pattern_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(named); i++)
        if (strcmp(named[i].name, name) == 0) return &named[i];
    return NULL;
}

const struct pattern_named *pattern_find_regex(const char *regex)
{
    for (size_t i = 0; i < COUNT_OF(named); i++)
        if (strcmp(named[i].regex, regex) == 0) return &named[i];
    return NULL;
}
