/* test_event_records.c - records of TensorBoard event files, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "train/run/tb_events.h"

static void from_hex(const char *hex, unsigned char *out, size_t *bytes)
{
    unsigned value;

    for (*bytes = 0; sscanf(hex, " %2x", &value) == 1; hex += 2 + (hex[0] == ' '))
        out[(*bytes)++] = (unsigned char)value;
}

static void test_event_records(void **state)
{
    static const char version[] = "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
    static const char loss[] = "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f7373150000204087ccc43d";
    unsigned char wanted[128], record[TB_RECORD];
    size_t bytes;

    (void)state;
    from_hex(version, wanted, &bytes);
    assert_int_equal(tb_version_record(1.0, record), bytes);
    assert_memory_equal(record, wanted, bytes);
    from_hex(loss, wanted, &bytes);
    assert_int_equal(tb_scalars_record(1.0, 7, 1, &(struct tb_scalar){ "loss", 2.5f }, record), bytes);
    assert_memory_equal(record, wanted, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
