/* cmd_learn.c - `lockstep learn`: practice with cards whose answers are measured by a run. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "learn/cards.h"
#include "learn/history.h"
#include "learn/learn.h"

static bool grill, stats;
static const char *topic, *check, *export, *out_file, *history_file;
static int64_t new_cards = -1, learn_seed = -1;
static double minutes;

enum { NEW_CARDS = 10, MINUTES = 60 };

static const struct flag learn_flags[] = {
    { "grill", FLAG_SWITCH, &grill, 0, 0, NULL, "answer 60 questions against the clock; the score comes at the end" },
    { "topic", FLAG_STRING, &topic, 0, 0, "TOPIC", "only the cards of this topic (--stats lists topics)" },
    { "new", FLAG_INT, &new_cards, 0, 1000, "N", "largest number of new cards [10]" },
    { "minutes", FLAG_REAL, &minutes, 0.01, 1000, "M", "minutes on the clock of --grill [60]" },
    { "seed", FLAG_INT, &learn_seed, 0, INT32_MAX, "N", "seed of the sizes in the questions [a different one each time]" },
    { "stats", FLAG_SWITCH, &stats, 0, 0, NULL, "print statistics of the history, by topic" },
    { "export", FLAG_STRING, &export, 0, 0, "FORMAT",
      "format to export: anki (cards as a text file that Anki imports), html (a page with all cards and numbers measured here), csv (the "
      "history)" },
    { "out", FLAG_STRING, &out_file, 0, 0, "FILE",
      "file that --export writes [lockstep-cards.txt, lockstep-cards.html or lockstep-history.csv]" },
    { "check", FLAG_STRING, &check, 0, 0, "SIZES",
      "run all cards and compare with the numbers that they expect: with their first sizes (first) or with all sizes (all)" },
    { "history", FLAG_STRING, &history_file, 0, 0, "FILE", "file of the history [lockstep/learn.db in the user's data folder]" },
    { 0 },
};

static const struct export_format {
    const char *name, *file;
    ls_status (*put)(struct learn *l, struct text *out);
} formats[] = {
    { "anki", "lockstep-cards.txt", learn_export_anki },
    { "html", "lockstep-cards.html", learn_export_html },
    { "csv", "lockstep-history.csv", learn_export_csv },
};

static const struct export_format *find_format(void)
{
    for (size_t i = 0; export && i < COUNT_OF(formats); i++)
        if (strcmp(export, formats[i].name) == 0) return &formats[i];
    return NULL;
}

static ls_status cmd_learn_check(const struct invocation *in)
{
    if (export && !find_format()) return ls_fail(LS_EINVAL, "--export must be anki, html or csv, not '%s'", export);
    if (out_file && !export) return ls_fail(LS_EINVAL, "--out is the file of --export");
    if (check && strcmp(check, "first") != 0 && strcmp(check, "all") != 0)
        return ls_fail(LS_EINVAL, "--check must be first or all, not '%s'", check);
    if ((grill != 0) + (stats != 0) + (export != NULL) + (check != NULL) + (in->count > 0) > 1)
        return ls_fail(LS_EINVAL, "use only one of --grill, --stats, --export, --check and CARD");
    if (new_cards >= 0 && (grill || stats || export || check || in->count))
        return ls_fail(LS_EINVAL, "--new applies to practice only; leave it out");
    if (minutes > 0 && !grill) return ls_fail(LS_EINVAL, "--minutes is the clock of --grill");
    if (learn_seed >= 0 && (stats || export || check)) return ls_fail(LS_EINVAL, "--seed has no effect with --stats, --export or --check");
    if (topic && in->count) return ls_fail(LS_EINVAL, "--topic has no effect if a card is named");
    if (topic && export && strcmp(export, "csv") == 0)
        return ls_fail(LS_EINVAL, "--export csv writes the whole history; leave out --topic");
    if (history_file && (!*history_file || check || (export && strcmp(export, "csv") != 0)))
        return ls_fail(LS_EINVAL, *history_file ? "--history has no effect with this --export: cards do not come from the history"
                                                : "--history must name a file");
    if (grill && topic) return ls_fail(LS_EINVAL, "--grill asks about all topics; leave out --topic");
    return LS_OK;
}

static ls_status fail_no_topic(const struct cards *all)
{
    struct text has = { 0 };
    const char *before = "";

    for (size_t i = 0; i < all->count; before = all->card[i++].topic)
        if (strcmp(before, all->card[i].topic) != 0) text_put(&has, "%s%s", has.bytes ? ", " : "", all->card[i].topic);
    ls_status st = ls_fail(LS_EINVAL, "there is no topic '%s'; there are %s", topic, has.data ? has.data : "none");
    text_free(&has);
    return st;
}

static bool has_topic(const struct cards *all)
{
    for (size_t i = 0; i < all->count; i++)
        if (strcasecmp(topic, all->card[i].topic) == 0) return true;
    return false;
}

static ls_status write_export(struct learn *l)
{
    const struct export_format *f = find_format();
    const char *path = out_file ? out_file : f->file;
    struct text out = { 0 };

    file_writer *w;

    LS_TRY(file_writer_open(path, &w)); /* before runs that take a minute */
    ls_status st = f->put(l, &out);
    if (st == LS_OK) st = text_status(&out);
    if (st == LS_OK) st = file_writer_put(w, out.data, out.bytes);
    if (st == LS_OK)
        st = file_writer_publish(&w);
    else
        file_writer_abandon(&w);
    if (st == LS_OK) printf("written     %s\n", path);
    text_free(&out);
    return st;
}

static ls_status fail_no_card(const struct cards *all, const char *id)
{
    const char *near = all->card[0].id;
    char upper[8] = "";

    for (size_t i = 0; id[i] && i + 1 < sizeof upper; i++) upper[i] = (char)toupper((unsigned char)id[i]);
    for (size_t i = 0; i < all->count; i++)
        if (text_distance(upper, all->card[i].id) < text_distance(upper, near)) near = all->card[i].id;
    return ls_fail(LS_EINVAL, "there is no card '%s'; did you mean '%s'?", id, near);
}

/* Checks that the card and the topic named on the command line exist. */
static ls_status check_names(const struct cards *all, const char *id)
{
    if (id && !cards_find(all, id)) return fail_no_card(all, id);
    return topic && !has_topic(all) ? fail_no_topic(all) : LS_OK;
}

static ls_status open_history(struct learn *l)
{
    char *path = history_file ? mem_strdup(history_file) : history_path();
    ls_status st = path ? history_open(path, !stats && !export, &l->history) : LS_EINVAL;

    mem_free(path);
    return st;
}

static ls_status learn_run(struct learn *l, const char *id)
{
    if (check) return learn_check(l, check[0] == 'a');
    if (export && strcmp(export, "csv") != 0) return write_export(l);
    LS_TRY(open_history(l));
    if (export) return write_export(l);
    return stats ? learn_stats(l) : grill ? learn_grill(l) : learn_practice(l, id ? cards_find(&l->cards, id) : NULL);
}

static ls_status cmd_learn_run(struct invocation *in)
{
    struct learn l = {
        .topic = topic, .now = time(NULL), .new_cards = new_cards < 0 ? NEW_CARDS : new_cards, .minutes = minutes > 0 ? minutes : MINUTES
    };
    const char *id = in->count ? in->arguments[0] : NULL;

    l.seed = learn_seed >= 0 ? learn_seed : l.now;
    ls_status st = cards_read(builtin_cards, strlen(builtin_cards), "labs/cards.yaml", &l.cards);
    if (st == LS_OK && (st = check_names(&l.cards, id)) != LS_OK) in->refused = true;
    if (st == LS_OK) st = learn_run(&l, id);
    history_close(&l.history);
    cards_free(&l.cards);
    return st;
}

const struct command command_learn = {
    .name = "learn",
    .arguments = "[CARD]",
    .most = 1,
    .summary = "practice questions about distributed training, whose answers are measured by a run",
    .flags = learn_flags,
    .check = cmd_learn_check,
    .run = cmd_learn_run,
    .about = "Asks the cards that are due, then new ones: a question, your number or a moment to think, the answer, and the run that\n"
             "shows it: claimed, yours, measured. Your rating from 1 to 5 decides when the card returns (FSRS-6).\n"
             "After 1 or 2, which count as forgotten, it also comes once more at the end. A card begins with its first sizes; 's' asks\n"
             "again with others. A card that you name is asked at once.\n"
             "--stats: 'recalled' is the share of repeated reviews that were rated 3 or more; an error counts as 100% at most.\n"
             "Reviews are kept in an SQLite file in the user's data folder (XDG_DATA_HOME, or ~/.local/share).\n",
    .examples = "  lockstep learn\n  lockstep learn --topic zero --new 5\n  lockstep learn p-05\n  lockstep learn --grill --minutes 45\n"
                "  lockstep learn --export html --out cards.html\n",
};
