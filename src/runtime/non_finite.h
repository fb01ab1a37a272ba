/* non_finite.h - finding NaN and infinity in a run: the first value that has one, by name. */
#ifndef LS_RUNTIME_NON_FINITE_H
#define LS_RUNTIME_NON_FINITE_H

#include "ir/program.h"

enum { FOUND_TEXT = 400, FOUND_PARAMETER = 200 };

/* A value with a non-finite element. program NULL: none. */
struct found {
    const ls_program *program;
    const struct instruction *instruction; /* the instruction whose operand it is */
    ls_value value;
    size_t element;  /* row-major */
    int number, tag; /* number: of the instruction, over all segments; tag: the micro-batch (program_tag) */
    bool nan, given; /* given: it was non-finite before the instruction ran, as a parameter can be */
};

/* The first finding of a run. source: an instruction with finite operands and a non-finite output, or a non-finite parameter; received: an
 * operand that was non-finite before, or the output of an exchange, so that the source is elsewhere. */
struct finding {
    struct found source, received;
    bool clean; /* the operands of the current instruction are finite */
};

/* Until called with NULL, runs of p record findings in *f instead of failing, and an update ends after its norm. Such runs call the same
 * instructions in the same order as others; either all ranks of a program do this or none. */
void program_look(ls_program *p, struct finding *f);
/* Called before and after each instruction of such a run. */
ls_status non_finite_before(const ls_program *p, const struct instruction *i, int number);
ls_status non_finite_after(const ls_program *p, const struct instruction *i, int number);
/* "element 3 of 'x' is NaN (linear, forward, block 'h.1', instruction 12)". */
char *found_text(const struct found *f, char out[FOUND_TEXT]);

/* options.check_finite: fails with LS_EINVAL and names the first non-finite element of i's outputs. */
ls_status check_outputs(const ls_program *p, const struct instruction *i, int number);

/* The parameter of which v, or with `gradient` v as a gradient, is a part, and where in it v begins; -1: none. */
int value_parameter(const ls_program *p, ls_value v, bool gradient, size_t *within);

#endif
