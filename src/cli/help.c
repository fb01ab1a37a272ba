/* help.c - prints pages of help, made from the tables of commands, flags and options. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/terminal.h"

enum { COLUMN = 30 };

static void heading(const char *title) { printf("\n%s%s%s\n", terminal_style(STYLE_BOLD), title, terminal_style(STYLE_PLAIN)); }

ls_status help_overview(void)
{
    printf("lockstep trains neural networks on any number of ranks; every layout computes the same step as a single rank.\n");
    printf("\nusage: lockstep COMMAND [FLAGS] [--config FILE] [--section.key=value]...\n");
    heading("commands");
    for (int i = 0; commands[i]; i++) printf("  %-16s %s\n", commands[i]->name, commands[i]->summary);
    heading("help");
    printf("  lockstep COMMAND -h       the most used flags and options, with examples\n"
           "  lockstep COMMAND --help   all flags and options\n"
           "  lockstep help TOPIC       a page on a topic: options, models, data, run, exit, ...\n");
    heading("examples");
    printf("  lockstep train --data.text=book.txt --run.dir=runs/book\n"
           "  lockstep generate runs/book --prompt \"It was\"\n");
    return LS_OK;
}

bool help_group(const char *name)
{
    size_t length = strlen(name);
    bool any = false;

    for (int i = 0; commands[i]; i++) {
        if (strncmp(commands[i]->name, name, length) != 0 || commands[i]->name[length] != ' ') continue;
        if (!any) printf("usage: lockstep %s COMMAND [FLAGS], where COMMAND is one of:\n", name);
        printf("  %-16s %s\n", commands[i]->name + length + 1, commands[i]->summary);
        any = true;
    }
    if (any) printf("\n'lockstep %s COMMAND --help' describes a command.\n", name);
    return any;
}

static void put_flag(const struct command *c, const struct flag *f)
{
    const struct flag_alias *a = c->aliases;
    char left[96], letter[8] = "";

    while (a && a->of && strcmp(a->of, f->name) != 0) a++;
    bool has = a && a->of;
    if (has && a->letter) snprintf(letter, sizeof letter, "-%c, ", a->letter);
    snprintf(left, sizeof left, "%s--%s%s%s%s%s", letter, f->name, has && a->name ? ", --" : "", has && a->name ? a->name : "",
             f->metavar ? " " : "", f->metavar ? f->metavar : "");
    printf("  %-*s  %s\n", COLUMN - 4, left, f->help);
}

static void put_flags(const struct command *c, bool all)
{
    heading("flags");
    for (const struct flag *f = c->flags; f && f->name; f++) put_flag(c, f);
    if (c->verb) {
        printf("  %-*s  %s\n", COLUMN - 4, "--config FILE",
               "read options from a YAML file; may be given more than once, the last value wins");
        printf("  %-*s  %s\n", COLUMN - 4, "--print-config", "print each option's value and where it comes from, and exit");
    }
    if (all || !c->verb) printf("  %-*s  %s\n", COLUMN - 4, "-q, -v", "print less, print more");
    if (c->verb)
        printf("  %-*s  %s\n", COLUMN - 4, "-h, --help", "print the short help, the complete help");
    else
        printf("  %-*s  %s\n", COLUMN - 4, "-h, --help", "print this help");
}

static ls_status put_part(const char *title, unsigned verb, enum options_part part)
{
    struct text out = { 0 };

    options_put_help(config_table(), verb, part, &out);
    ls_status st = text_status(&out);
    if (st == LS_OK && out.bytes) heading(title);
    if (st == LS_OK && out.bytes) fputs(out.data, stdout);
    text_free(&out);
    return st;
}

ls_status help_options(unsigned verb, bool all)
{
    bool common = false;

    for (size_t i = 0; i < config_table()->count; i++) common = common || options_are_common(&config_table()->rows[i], verb);
    if (!common) return put_part("options", verb, OPTIONS_ALL);
    LS_TRY(put_part("most used options", verb, OPTIONS_COMMON));
    return all ? put_part("other options", verb, OPTIONS_OTHERS) : LS_OK;
}

ls_status help_command(const struct command *c, bool all)
{
    printf("usage: lockstep %s%s%s [FLAGS]%s\n\n%s.\n", c->name, c->arguments[0] ? " " : "", c->arguments,
           c->verb ? " [--section.key=value]..." : "", c->summary);
    if (all && c->about) printf("\n%s", c->about);
    put_flags(c, all);
    if (c->verb) LS_TRY(help_options(c->verb, all));
    heading("examples");
    fputs(c->examples, stdout);
    return LS_OK;
}
