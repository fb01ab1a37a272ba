/* parity_file.c - reads the records of parity_file.h: the first pass counts them, the second indexes them. */
#include "train/parity/parity_file.h"

#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"

struct head {
    uint32_t record, step;
    uint64_t parameter, count;
};
struct cursor {
    struct head head;
    const unsigned char *data;
    size_t at;
};

size_t parity_record_bytes(enum parity_record r)
{
    static const size_t bytes[RECORDS] = { 1, 8, 8, 4, 4, 4, 4, 8, sizeof(struct parity_gate), 8 };

    return bytes[r];
}

static ls_status next(const struct parity_file *f, struct cursor *c)
{
    size_t left = f->map.bytes - c->at, bytes;

    if (left < sizeof c->head) return ls_fail(LS_EFORMAT, "%s: truncated at byte %zu", f->path, c->at);
    memcpy(&c->head, f->map.data + c->at, sizeof c->head);
    size_t extra = c->head.record == RECORD_PARAMETER ? sizeof(struct parity_shape) : 0;
    if (c->head.record >= RECORDS || c->head.step >= 1u << 24 || !size_mul(c->head.count, parity_record_bytes(c->head.record), &bytes) ||
        bytes > left - sizeof c->head || extra > left - sizeof c->head - bytes)
        return ls_fail(LS_EFORMAT, "%s: malformed record at byte %zu", f->path, c->at);
    c->data = f->map.data + c->at + sizeof c->head;
    c->at += sizeof c->head + extra + bytes;
    return LS_OK;
}

static bool is_state(uint32_t record) { return record >= RECORD_WEIGHT && record <= RECORD_COPIES; }

static ls_status count_records(struct parity_file *f)
{
    struct cursor c = { .at = 0 };
    bool started = false;

    while (c.at < f->map.bytes) {
        LS_TRY(next(f, &c));
        if (c.head.record == RECORD_PARAMETER && c.head.parameter == f->parameters)
            f->parameters++;
        else if (c.head.record == RECORD_PARAMETER || c.head.parameter >= f->parameters)
            return ls_fail(LS_EFORMAT, "%s: malformed file: a record names parameter %llu of %zu", f->path,
                           (unsigned long long)c.head.parameter, f->parameters);
        if (!is_state(c.head.record)) continue;
        if (!started) f->first = c.head.step;
        started = true;
        if (c.head.step > f->steps) f->steps = c.head.step;
    }
    return started ? LS_OK : ls_fail(LS_EFORMAT, "%s: malformed file: it has no weights", f->path);
}

static ls_status put_parameter(struct parity_file *f, const struct cursor *c)
{
    struct parity_parameter *p = &f->parameter[c->head.parameter];

    if (c->head.count >= sizeof p->name)
        return ls_fail(LS_EUNSUPPORTED, "%s: a parameter's name has %llu bytes, more than are supported", f->path,
                       (unsigned long long)c->head.count);
    memcpy(&p->shape, c->data, sizeof p->shape);
    memcpy(p->name, c->data + sizeof p->shape, c->head.count);
    return LS_OK;
}

static size_t index_of(const struct parity_file *f, uint32_t record, uint64_t step, size_t parameter)
{
    return (step * RECORDS + record) * f->parameters + parameter;
}

static ls_status check_count(const struct parity_file *f, const struct head *h)
{
    bool number = h->record == RECORD_LOSS || h->record == RECORD_NORM || h->record == RECORD_COPIES || h->record == RECORD_TAKEN;
    uint64_t expected = number ? 1 : h->record == RECORD_GATES ? h->count : f->parameter[h->parameter].shape.elements;

    return h->count == expected && h->step <= f->steps
               ? LS_OK
               : ls_fail(LS_EFORMAT, "%s: malformed file: a record of step %u has %llu elements, expected %llu", f->path, h->step,
                         (unsigned long long)h->count, (unsigned long long)expected);
}

static ls_status find_records(struct parity_file *f)
{
    struct cursor c = { .at = 0 };
    size_t places;

    if (!size_mul(f->steps + 1, RECORDS * f->parameters, &places)) return LS_ENOMEM;
    f->parameter = mem_array(MEM_OTHER, f->parameters, sizeof *f->parameter);
    f->place = mem_array(MEM_OTHER, places, sizeof *f->place);
    if (!f->parameter || !f->place) return LS_ENOMEM;
    while (c.at < f->map.bytes) {
        LS_TRY(next(f, &c));
        if (c.head.record == RECORD_PARAMETER) {
            LS_TRY(put_parameter(f, &c));
            continue;
        }
        LS_TRY(check_count(f, &c.head));
        f->place[index_of(f, c.head.record, c.head.step, c.head.parameter)] = (struct parity_place){ c.data, c.head.count };
    }
    return LS_OK;
}

ls_status parity_file_open(const char *path, struct parity_file *out)
{
    struct parity_file f = { .path = path };
    ls_status st = file_map_open(path, &f.map);

    if (st == LS_OK) st = count_records(&f);
    if (st == LS_OK) st = find_records(&f);
    if (st == LS_OK)
        *out = f;
    else
        parity_file_close(&f);
    return st;
}

void parity_file_close(struct parity_file *f)
{
    file_map_close(&f->map);
    mem_free(f->parameter);
    mem_free(f->place);
    *f = (struct parity_file){ 0 };
}

struct parity_place parity_file_find(const struct parity_file *f, enum parity_record r, uint64_t step, size_t parameter)
{
    if (step > f->steps || parameter >= f->parameters) return (struct parity_place){ 0 };
    return f->place[index_of(f, r, step, parameter)];
}

ls_status parity_file_match(const struct parity_file *a, const struct parity_file *b)
{
    static const struct parity_parameter none = { .name = "nothing" };

    for (size_t i = 0; i < MAX(a->parameters, b->parameters); i++) {
        const struct parity_parameter *x = i < a->parameters ? &a->parameter[i] : &none, *y = i < b->parameters ? &b->parameter[i] : &none;

        if (strcmp(x->name, y->name) != 0 || x->shape.elements != y->shape.elements)
            return ls_fail(LS_EINVAL, "the two sides have different tensors: '%s' [%llu] and '%s' [%llu]", x->name,
                           (unsigned long long)x->shape.elements, y->name, (unsigned long long)y->shape.elements);
    }
    return LS_OK;
}
