/* parity_file.h - what one side of a comparison came to, in a file of records, little-endian:
 *     u32 record, u32 step, u64 parameter, u64 count, then f64[count] or f32[count]
 *
 * The parameters come first, in the store's order; all other records refer to them by their number. The state that a side starts
 * from follows, then for each step its loss, norm and gradients and the state that its update left. A state is numbered by the
 * updates that led to it: 0 is the initialisation, and step s takes state s to state s + 1.
 */
#ifndef LS_TRAIN_PARITY_PARITY_FILE_H
#define LS_TRAIN_PARITY_PARITY_FILE_H

#include <stdbool.h>
#include <string.h>
#include "base/file.h"

enum parity_record {
    RECORD_PARAMETER, /* u8[count], the name, after a struct parity_shape */
    RECORD_LOSS,      /* f64[1] */
    RECORD_NORM,      /* f64[1], of the whole gradient before clipping */
    RECORD_GRADIENT,  /* f32: summed over ranks and micro-batches, before clipping */
    RECORD_WEIGHT,    /* f32: the master copy where there is one, else the parameter */
    RECORD_M,         /* f32: the optimizer's state "m" */
    RECORD_V,         /* f32: "v" */
    RECORD_COPIES,    /* f64[1]: elements held by some rank that are not those of the records of this state */
    RECORD_GATES,     /* struct parity_gate[count]: inputs of ReLUs within rounding of zero */
    RECORD_TAKEN,     /* f64[1]: of them, those that were the other way than the reference's, whose were taken */
    RECORDS
};

struct parity_shape {
    uint64_t elements, dims, frozen;
    double sign_rate;
};

/* layer: which ReLU, in the order of the program; sample: of the step; element: of the sample; open: the input is positive. */
struct parity_gate {
    uint32_t layer, open;
    uint64_t sample, element;
};

struct parity_parameter {
    char name[160];
    struct parity_shape shape;
};

struct parity_place {
    const unsigned char *data;
    size_t count;
}; /* data NULL: there is no such record */

struct parity_file {
    const char *path;
    struct file_map map;
    struct parity_parameter *parameter;
    size_t parameters;
    uint64_t first, steps;      /* states first to steps, steps first to steps - 1 */
    struct parity_place *place; /* [steps + 1, RECORDS, parameters] */
};

ls_status parity_file_open(const char *path, struct parity_file *out); /* LS_EFORMAT: cut, or no such file's records */
void parity_file_close(struct parity_file *f);
struct parity_place parity_file_find(const struct parity_file *f, enum parity_record r, uint64_t step, size_t parameter);
/* LS_EINVAL names the first parameter in which the two differ by name or size. */
ls_status parity_file_match(const struct parity_file *a, const struct parity_file *b);

/* Bytes of an element. */
size_t parity_record_bytes(enum parity_record r);

static inline float parity_f32(const unsigned char *data, size_t i)
{
    float f;

    memcpy(&f, data + 4 * i, sizeof f);
    return f;
}

#endif
