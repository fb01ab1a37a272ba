/* cmd_completion.c - `lockstep completion bash|zsh|fish`: prints scripts made from the tables of commands, flags and options. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "cli/args.h"

/* Calls fn for each flag ("--name") and option ("--section.key=") of a command. The options used most come first; the scripts keep that
 * order, except that fish sorts long options itself. */
typedef void word_fn(const char *word, const char *help);

static void each_word(const struct command *c, word_fn *fn)
{
    const struct option_table *t = config_table();
    char word[80];

    fn("--help", "print the complete help");
    for (const struct flag *f = c->flags; f && f->name; f++) {
        snprintf(word, sizeof word, "--%s", f->name);
        fn(word, f->help);
    }
    if (!c->verb) return;
    fn("--config", "read options from a YAML file");
    fn("--print-config", "print each option's value and where it comes from");
    for (int common = 1; common >= 0; common--)
        for (size_t i = 0; i < t->count; i++) {
            if (!(t->rows[i].verbs & c->verb) || options_are_common(&t->rows[i], c->verb) != common) continue;
            snprintf(word, sizeof word, "--%s=", t->rows[i].name);
            fn(word, t->rows[i].help);
        }
}

/* True if command i is the first one with its first word, so that each first word is printed once. */
static bool is_first(int i)
{
    size_t length = strcspn(commands[i]->name, " ");

    return i == 0 || strncmp(commands[i - 1]->name, commands[i]->name, length) != 0 || commands[i - 1]->name[length] != ' ';
}

static int first_length(const struct command *c) { return (int)strcspn(c->name, " "); }

static void put_first_words(void)
{
    for (int i = 0; commands[i]; i++)
        if (is_first(i)) printf("%.*s ", first_length(commands[i]), commands[i]->name);
}

static void put_second_words(const char *name, int length)
{
    for (int i = 0; commands[i]; i++)
        if (strncmp(commands[i]->name, name, (size_t)length) == 0 && commands[i]->name[length] == ' ')
            printf("%s ", commands[i]->name + length + 1);
}

/* ---- bash ---- */

static void put_bash_word(const char *word, const char *help)
{
    (void)help;
    printf("%s ", word);
}

static void put_bash(void)
{
    printf("# lockstep completion bash > /usr/share/bash-completion/completions/lockstep\n"
           "_lockstep() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} words= command=${COMP_WORDS[1]}\n"
           "    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n");
    for (int i = 0; commands[i]; i++)
        if (strchr(commands[i]->name, ' ')) printf("    '%s') command='%s' ;;\n", commands[i]->name, commands[i]->name);
    printf("    esac\n    if [ \"$COMP_CWORD\" -eq 1 ]; then words='");
    put_first_words();
    printf("'\n    else case \"$command\" in\n");
    for (int i = 0; commands[i]; i++) {
        printf("    '%s') words='", commands[i]->name);
        each_word(commands[i], put_bash_word);
        printf("' ;;\n");
        if (!is_first(i) || !strchr(commands[i]->name, ' ')) continue;
        printf("    '%.*s') words='", first_length(commands[i]), commands[i]->name);
        put_second_words(commands[i]->name, first_length(commands[i]));
        printf("' ;;\n");
    }
    printf("    esac; fi\n"
           "    case \"$cur\" in -*) ;; *) [ \"$COMP_CWORD\" -gt 1 ] && COMPREPLY=($(compgen -f -- \"$cur\")) ;; esac\n"
           "    COMPREPLY+=($(compgen -W \"$words\" -- \"$cur\"))\n"
           "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
           "    compopt -o nosort 2>/dev/null\n"
           "}\n"
           "complete -o filenames -F _lockstep lockstep\n");
}

/* ---- zsh ---- */

/* Escapes quotes and colons, which have a meaning inside zsh's '...'. */
static void put_escaped(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (*text == ':')
            fputs("\\:", stdout);
        else
            putchar(*text);
    }
}

static void put_zsh_word(const char *word, const char *help)
{
    printf(" '%s:", word);
    put_escaped(help);
    putchar('\'');
}

static void put_zsh(void)
{
    printf("#compdef lockstep\n# lockstep completion zsh > /usr/share/zsh/vendor-completions/_lockstep\n"
           "_lockstep() {\n    local -a words_\n    local command=$words[2]\n    case \"$words[2] $words[3]\" in\n");
    for (int i = 0; commands[i]; i++)
        if (strchr(commands[i]->name, ' ')) printf("    '%s') command='%s' ;;\n", commands[i]->name, commands[i]->name);
    printf("    esac\n    if (( CURRENT == 2 )); then words_=(");
    for (int i = 0; commands[i]; i++)
        if (is_first(i)) printf(" %.*s", first_length(commands[i]), commands[i]->name);
    printf(" ); compadd -a words_; return; fi\n    case $command in\n");
    for (int i = 0; commands[i]; i++) {
        printf("    '%s') words_=(", commands[i]->name);
        each_word(commands[i], put_zsh_word);
        printf(" ) ;;\n");
        if (!is_first(i) || !strchr(commands[i]->name, ' ')) continue;
        printf("    '%.*s') compadd ", first_length(commands[i]), commands[i]->name);
        put_second_words(commands[i]->name, first_length(commands[i]));
        printf("; return ;;\n");
    }
    printf("    esac\n    _describe -V option words_ -S ''\n    _files\n}\n_lockstep \"$@\"\n");
}

/* ---- fish ---- */

static const struct command *fish_command;

static void put_fish_word(const char *word, const char *help)
{
    printf("complete -c lockstep -n \"__lockstep_is '%s'\" -l '%s' -d '", fish_command->name, word + 2);
    for (; *help; help++) {
        if (*help == '\'' || *help == '\\') putchar('\\');
        putchar(*help);
    }
    printf("'\n");
}

static void put_fish(void)
{
    printf("# lockstep completion fish > /usr/share/fish/vendor_completions.d/lockstep.fish\n"
           "function __lockstep_is\n    string match -q -- \"lockstep $argv[1] *\" (commandline -cp)\nend\n");
    for (int i = 0; commands[i]; i++) {
        const char *name = commands[i]->name;
        int length = first_length(commands[i]);

        if (is_first(i)) printf("complete -c lockstep -n __fish_use_subcommand -f -a '%.*s'\n", length, name);
        if (name[length])
            printf("complete -c lockstep -n \"__lockstep_is '%.*s'\" -f -a '%s' -d '%s'\n", length, name, name + length + 1,
                   commands[i]->summary);
        fish_command = commands[i];
        each_word(commands[i], put_fish_word);
    }
}

/* ---- the command ---- */

static const struct {
    const char *name;
    void (*put)(void);
} shells[] = { { "bash", put_bash }, { "zsh", put_zsh }, { "fish", put_fish } };

static ls_status cmd_completion_check(const struct invocation *in)
{
    for (size_t i = 0; i < COUNT_OF(shells); i++)
        if (strcmp(in->arguments[0], shells[i].name) == 0) return LS_OK;
    return ls_fail(LS_EINVAL, "no completion for '%s'; use bash, zsh or fish", in->arguments[0]);
}

static ls_status cmd_completion_run(struct invocation *in)
{
    for (size_t i = 0; i < COUNT_OF(shells); i++)
        if (strcmp(in->arguments[0], shells[i].name) == 0) shells[i].put();
    return LS_OK;
}

const struct command command_completion = {
    .name = "completion",
    .arguments = "SHELL",
    .least = 1,
    .most = 1,
    .summary = "print a completion script for bash, zsh or fish",
    .check = cmd_completion_check,
    .run = cmd_completion_run,
    .examples = "  source <(lockstep completion bash)\n  lockstep completion zsh > ~/.zfunc/_lockstep\n",
};
