/* kernel_table.c - the kernel table as a concatenation of parts.
 *
 * A part is one file's array, ended by KERNELS_END. Every entry states its priority, so the order of the parts does not change which one is
 * chosen. An entry is asked only if its priority is above that of the best one found before: oneDNN's, which load a module when they are
 * asked, come after our matmuls.
 */
#include "kernels/parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include "base/base.h"
#include "device/device.h"

#define PART_ROW(name) kernels_##name,
static const struct kernel *const kernel_table_parts[] = { PARTS(PART_ROW) };
#undef PART_ROW

/* Parts of a device's module. */
static const struct kernel *const no_parts[] = { NULL };
static const struct kernel *const *_Atomic added = no_parts;

static const struct {
    const char *name, *shapes;
    unsigned inplace;
} ops[OPS] = {
#define OP_ROW(id, name, shapes, inplace, ...) [OP_##id] = { name, shapes, inplace },
    OP_KERNEL_MAP(OP_ROW)
#undef OP_ROW
};

const char *op_name(enum op op)
{
    ASSERT((unsigned)op < OPS);
    return ops[op].name;
}

const char *op_shapes(enum op op)
{
    ASSERT((unsigned)op < OPS);
    return ops[op].shapes;
}

unsigned op_inplace_mask(enum op op)
{
    ASSERT((unsigned)op < OPS);
    return ops[op].inplace;
}

ls_status kernel_table_add(const struct device *d)
{
    if (!d->rows) return LS_OK;
    if (d->rows->shape != KERNEL_ROWS_SHAPE)
        return ls_fail(LS_EUNSUPPORTED, "device '%s': its module belongs to another version of lockstep; build both together", d->name);
    atomic_store(&added, d->rows->part);
    return LS_OK;
}

/* Part p of the table, those added last; NULL past the end. */
static const struct kernel *part_at(size_t p)
{
    return p < COUNT_OF(kernel_table_parts) ? kernel_table_parts[p] : atomic_load(&added)[p - COUNT_OF(kernel_table_parts)];
}

const struct kernel *kernel_at(int i)
{
    const struct kernel *part;

    for (size_t p = 0; (part = part_at(p)); p++)
        for (const struct kernel *k = part; k->name; k++)
            if (i-- == 0) return k;
    return NULL;
}

static bool runs_on(const struct kernel *k, const struct device *d) { return strcmp(k->device, d->kernels) == 0; }

const char *kernel_that_runs(const struct kernel *k, const struct call *prepared)
{
    const struct kernel *other = k->instead ? k->instead(prepared) : NULL;

    return other ? other->name : k->name;
}

bool kernel_is_cpu(const struct kernel *k) { return runs_on(k, &device_cpu); }

/* Bit p: parts[p] has a row of the op. */
static uint64_t parts_of[OPS];
static pthread_once_t parts_looked_at = PTHREAD_ONCE_INIT;

static void look_at_parts(void)
{
    _Static_assert(COUNT_OF(kernel_table_parts) <= 64, "parts_of has a bit a part");
    for (size_t p = 0; p < COUNT_OF(kernel_table_parts); p++)
        for (const struct kernel *k = kernel_table_parts[p]; k->name; k++) parts_of[k->op] |= (uint64_t)1 << p;
}

const struct kernel *kernel_choose(const struct call *c, const struct device *d)
{
    const struct kernel *best = NULL, *part;
    enum isa most = isa_best();

    pthread_once(&parts_looked_at, look_at_parts);
    for (size_t p = 0; (part = part_at(p)); p++) {
        if (p < COUNT_OF(kernel_table_parts) && !(parts_of[c->op] >> p & 1)) continue;
        for (const struct kernel *k = part; k->name; k++)
            if (k->op == c->op && k->isa <= most && (!best || k->priority > best->priority) && runs_on(k, d) && k->accepts(c)) best = k;
    }
    return best;
}

const struct kernel *kernel_reference(enum op op)
{
    for (size_t p = 0; p < COUNT_OF(kernel_table_parts); p++)
        for (const struct kernel *k = kernel_table_parts[p]; k->name; k++)
            if (k->op == op && k->priority == PRIORITY_REFERENCE) return k;
    ASSERT(!"every op has a reference");
    return NULL;
}

bool kernels_exist(const char *name)
{
    const struct kernel *part;

    for (size_t p = 0; (part = part_at(p)); p++)
        for (const struct kernel *k = part; k->name; k++)
            if (strcmp(k->name, name) == 0) return true;
    return false;
}

const struct kernel *kernel_named(enum op op, const char *name)
{
    const struct kernel *part;

    for (size_t p = 0; (part = part_at(p)); p++)
        for (const struct kernel *k = part; k->name; k++)
            if (k->op == op && strcmp(k->name, name) == 0) return k;
    return NULL;
}
