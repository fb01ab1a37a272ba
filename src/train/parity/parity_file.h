/* parity_file.h - the results of one side of a comparison: a file of records, little-endian:
 *     u32 record, u32 step, u64 parameter, u64 count, then f64[count] or f32[count]
 *
 * The parameters come first, in the order of the store; all other records refer to them by number. Then comes the state that the side
 * starts from, and for each step its loss, norm and gradients and the state after its update. The number of a state is the number of
 * updates before it: 0 is the initialization, and step s turns state s into state s + 1.
 */
#ifndef LS_TRAIN_PARITY_PARITY_FILE_H
#define LS_TRAIN_PARITY_PARITY_FILE_H

#include <stdbool.h>
#include <string.h>
#include "base/file.h"

enum parity_record {
    RECORD_PARAMETER, /* u8[count], the name, after a struct parity_shape */
    RECORD_LOSS,      /* f64[1] */
    RECORD_NORM,      /* f64[1]: norm of all gradients before clipping */
    RECORD_GRADIENT,  /* f32: summed over ranks and micro-batches, before clipping */
    RECORD_WEIGHT,    /* f32: the master copy if there is one, else the parameter */
    RECORD_M,         /* f32: the optimizer state "m" */
    RECORD_V,         /* f32: the optimizer state "v" */
    RECORD_COPIES,    /* f64[1]: number of elements in which the copy of some rank differs from the records of this state */
    RECORD_GATES,     /* struct parity_gate[count]: inputs of ReLUs within rounding of zero */
    RECORD_TAKEN,     /* f64[1]: number of gates whose sign was taken from the reference */
    RECORDS
};

struct parity_shape {
    uint64_t elements, dims, frozen;
    double sign_rate;
};

/* layer: number of the ReLU, in the order of the program; sample: in the step; element: in the sample; open: the input is positive. */
struct parity_gate {
    uint32_t layer, open;
    uint64_t sample, element;
};

struct parity_parameter {
    char name[160];
    struct parity_shape shape;
};

/* The data of a record; NULL: there is no such record. */
struct parity_place {
    const unsigned char *data;
    size_t count;
};

struct parity_file {
    const char *path;
    struct file_map map;
    struct parity_parameter *parameter;
    size_t parameters;
    uint64_t first, steps;      /* the file has states first .. steps and steps first .. steps - 1 */
    struct parity_place *place; /* [steps + 1, RECORDS, parameters] */
};

ls_status parity_file_open(const char *path, struct parity_file *out); /* LS_EFORMAT: truncated or malformed */
void parity_file_close(struct parity_file *f);
struct parity_place parity_file_find(const struct parity_file *f, enum parity_record r, uint64_t step, size_t parameter);
/* LS_EINVAL names the first parameter whose name or size differs. */
ls_status parity_file_match(const struct parity_file *a, const struct parity_file *b);

/* Bytes per element of a record. */
size_t parity_record_bytes(enum parity_record r);

static inline float parity_f32(const unsigned char *data, size_t i)
{
    float f;

    memcpy(&f, data + 4 * i, sizeof f);
    return f;
}

#endif
