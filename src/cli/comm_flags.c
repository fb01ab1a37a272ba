/* comm_flags.c - values of the flags of `bench comm`: ours and those of nccl-tests. */
#include "cli/comm_flags.h"

#include <string.h>
#include "base/base.h"
#include "base/text.h"

static const char *const nccl_types[LS_DTYPES] = {
    [LS_F32] = "float", [LS_BF16] = "bfloat16", [LS_F16] = "half",   [LS_F64] = "double",
    [LS_I64] = "int64", [LS_I32] = "int32",     [LS_U16] = "uint16", [LS_U8] = "uint8",
};

const char *comm_type_name(ls_dtype t) { return nccl_types[t]; }

ls_status comm_read_type(const char *flag, const char *name, ls_dtype *out)
{
    if (ls_dtype_parse(name, out) == 0) return LS_OK;
    for (int t = 0; t < LS_DTYPES; t++)
        if (nccl_types[t] && strcmp(name, nccl_types[t]) == 0) {
            *out = (ls_dtype)t;
            return LS_OK;
        }
    return ls_fail(LS_EINVAL, "%s: there is no type '%s'; use float, double, half, bfloat16, int32, int64 or uint8", flag, name);
}

static const char *const redops[LS_REDOPS] = { [LS_SUM] = "sum", [LS_AVG] = "avg", [LS_MAX] = "max" };

const char *comm_redop_name(ls_redop op) { return redops[op]; }

/* nccl-tests has a program for each collective and -o for the reduction; here one flag takes both. */
ls_status comm_read_op(const char *flag, const char *name, ls_collective *op, ls_redop *redop)
{
    static const char *const absent[] = { "prod", "min", "mulsum", "all" };

    for (int i = 0; i < LS_REDOPS && redop; i++)
        if (strcmp(name, redops[i]) == 0) {
            *redop = (ls_redop)i;
            return LS_OK;
        }
    for (int i = 0; i < LS_COLLECTIVES; i++)
        if (strcmp(name, ls_collective_name((ls_collective)i)) == 0) {
            *op = (ls_collective)i;
            return LS_OK;
        }
    for (size_t i = 0; i < COUNT_OF(absent) && redop; i++)
        if (strcmp(name, absent[i]) == 0)
            return ls_fail(LS_EINVAL, "%s: '%s' is not measured here; use sum, avg or max, one at a time", flag, name);
    return ls_fail(LS_EINVAL, "%s: there is no operation '%s'; use all_reduce, all_gather, reduce_scatter, broadcast, all_to_all%s", flag,
                   name, redop ? " or sendrecv, or a reduction: sum, avg, max" : " or barrier");
}

static bool is_redop(const char *name)
{
    for (int i = 0; i < LS_REDOPS; i++)
        if (strcmp(name, redops[i]) == 0) return true;
    return false;
}

ls_status comm_sort_words(const struct flag_strings *given, struct comm_words *out)
{
    *out = (struct comm_words){ 0 };
    for (int i = 0; i < given->count; i++) {
        const char *name = given->text[i], *flag = given->written[i];
        bool reduction = is_redop(name);
        const char **word = reduction ? &out->redop : &out->op, **word_flag = reduction ? &out->redop_flag : &out->op_flag;
        ls_collective op;
        ls_redop redop;

        if (strcmp(name, "sendrecv") != 0) LS_TRY(comm_read_op(flag, name, &op, &redop));
        if (*word && strcmp(*word, name) != 0)
            return ls_fail(LS_EINVAL, "%s %s and %s %s are two %s; leave one out", *word_flag, *word, flag, name,
                           reduction ? "reductions" : "operations");
        *word = name;
        *word_flag = flag;
    }
    return LS_OK;
}

/* Reads 128M as nccl-tests does, in powers of 1024, and 64KiB or 64KB as all other options do. */
ls_status comm_read_bytes(const char *flag, const char *text, size_t *out)
{
    static const char units[] = "KMG";
    size_t length = strlen(text);
    const char *unit = length ? strchr(units, text[length - 1] & ~0x20) : NULL;
    char plain[32] = "";
    int64_t number;

    if (length > 1 && length < sizeof plain && unit && *unit) {
        memcpy(plain, text, length - 1);
        int shift = 10 * (int)(unit - units + 1);
        if (text_read_int(plain, &number) && number > 0 && number < INT64_MAX >> shift) {
            *out = (size_t)number << shift;
            return LS_OK;
        }
    }
    if (text_read_bytes(text, out) && *out > 0) return LS_OK;
    return ls_fail(LS_EINVAL, "%s: '%s' is not a number of bytes such as 64KiB or 64K", flag, text);
}
