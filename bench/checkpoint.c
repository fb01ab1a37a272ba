/* checkpoint.c - saves and loads checkpoints of a preset with AdamW's state, timed, for bench/checkpoint.py.
 *
 *     checkpoint PRESET        then, on standard input, lines "save ROOT" and "load FOLDER"; each is answered by its seconds
 *
 * A load is into a new store, so its time includes allocating the memory.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "lockstep/checkpoint.h"
#include "lockstep/nn.h"
#include "lockstep/program.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A store of the model's parameters in f32 with the states m and v, declared. */
static ls_status open_store(const ls_model *m, ls_store **out)
{
    ls_store_options o = LS_STORE_DEFAULTS;
    ls_program *p;

    LS_TRY(ls_store_new(&o, out));
    LS_TRY(ls_program_new(*out, &p));
    ls_output(p, "logits", ls_model_logits(p, m, ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, 1 })));
    LS_TRY(ls_program_status(p));
    ls_program_release(&p);
    for (size_t i = 0; i < ls_store_count(*out); i++) {
        LS_TRY(ls_store_add_state(*out, i, "m"));
        LS_TRY(ls_store_add_state(*out, i, "v"));
    }
    return LS_OK;
}

static ls_status load(const ls_model *m, const char *path)
{
    ls_train_state state;
    ls_store *s;

    LS_TRY(open_store(m, &s));
    ls_status st = ls_checkpoint_load(path, s, LS_LOAD_OPTIMIZER, &state);
    ls_store_release(&s);
    return st;
}

static ls_status answer(const ls_model *m, const ls_store *s, char *line)
{
    ls_train_state state = { .step = 1, .optimizer = "adamw" };
    double began = now();

    line[strcspn(line, "\n")] = '\0';
    LS_TRY(strncmp(line, "save ", 5) == 0 ? ls_checkpoint_save(line + 5, s, m, &state, NULL) : load(m, line + 5));
    printf("%.6f\n", now() - began);
    fflush(stdout);
    return LS_OK;
}

static ls_status run(const char *preset)
{
    ls_model m;
    ls_store *s;
    char line[4096];

    LS_TRY(ls_model_preset(preset, &m));
    LS_TRY(open_store(&m, &s));
    ls_status st = ls_store_allocate(s);
    while (st == LS_OK && fgets(line, sizeof line, stdin)) st = answer(&m, s, line);
    ls_store_release(&s);
    return st;
}

int main(int argc, char **argv)
{
    if (argc != 2 || run(argv[1]) < 0) {
        fprintf(stderr, "checkpoint: %s\n", argc == 2 ? ls_errmsg() : "usage: checkpoint PRESET");
        return 1;
    }
    return 0;
}
