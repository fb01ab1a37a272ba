/* helper_vjp_cases.h - small programs, at least one per gradient rule, whose gradients test_vjp.c compares with finite differences. */
#ifndef LS_TESTS_HELPER_VJP_CASES_H
#define LS_TESTS_HELPER_VJP_CASES_H

#include "ir/program.h"

#define SIZES(...) (int)(sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t)), (size_t[]){ __VA_ARGS__ }
#define PARAM(name, ...) ls_param(p, name, (ls_init){ LS_INIT_UNIFORM, 1.0 }, SIZES(__VA_ARGS__))

/* build appends the program and returns its last value. step: of the differences; most: the relative error allowed. */
struct gradient_case { const char *name; ls_value (*build)(ls_program *p); double step, most; };

extern const struct gradient_case gradient_cases[];
extern const int gradient_case_count;

/* The routing of logits [..,E] to two experts; test_vjp.c also takes its losses. */
ls_routing gradient_case_routing(ls_program *p, ls_value logits, int sigmoid, int normalize, size_t capacity, ls_value samples);

#endif
