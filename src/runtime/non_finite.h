/* non_finite.h - NaN and infinity in a run: the first value that has one, by name; and one written on purpose, for tests. */
#ifndef LS_RUNTIME_NON_FINITE_H
#define LS_RUNTIME_NON_FINITE_H

#include "ir/program.h"

enum { FOUND_TEXT = 400, FOUND_PARAMETER = 200 };

/* A value with an element that is NaN or infinite. program NULL: none. */
struct found {
    const ls_program *program;
    const struct instruction *instruction; /* whose operand it is */
    ls_value value;
    size_t element;  /* row-major */
    int number, tag; /* of the instruction, over all segments; the micro-batch (program_tag) */
    bool nan, given; /* given: it was so before the instruction ran: a parameter */
};

/* What a run meets first. source: an instruction whose operands were finite and whose output is not, or a parameter that is not;
 * received: an operand that was not finite already, or the output of an exchange with other ranks: the source is elsewhere. */
struct finding {
    struct found source, received;
    bool clean; /* the operands of the instruction that runs now are finite */
};

/* Until it is called with NULL, runs of p note in *f what they meet instead of failing, and an update ends after its norm. Runs that look
 * call the same instructions in the same order as others: all ranks of a program look, or none. */
void program_look(ls_program *p, struct finding *f);
/* Around an instruction of a run that looks. */
ls_status non_finite_before(const ls_program *p, const struct instruction *i, int number);
ls_status non_finite_after(const ls_program *p, const struct instruction *i, int number);
/* "element 3 of 'x' is NaN (linear, forward, block 'h.1', instruction 12)". */
char *found_text(const struct found *f, char out[FOUND_TEXT]);

/* options.check_finite: LS_EINVAL names the first element of i's outputs that is not finite. */
ls_status check_outputs(const ls_program *p, const struct instruction *i, int number);

/* Of the slot selected now: the next run of the first instruction that writes the gradient NAME.grad, or reads parameter NAME, makes an
 * element of its output NaN. Where p has no such instruction nothing happens. NULL: no instruction does. */
void program_poison(ls_program *p, const char *name);
bool program_can_poison(const ls_program *p, const char *name);
ls_status poison_after(ls_program *p, const struct instruction *i);

#endif
