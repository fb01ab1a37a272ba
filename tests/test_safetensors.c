/* test_safetensors.c - safetensors files: what is written is read back; a file that breaks any rule of the format is refused, and the
 * message names the rule. */
#include "helper_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"

enum { FILE_ROOM = 4096 };
struct image { size_t bytes; unsigned char byte[FILE_ROOM]; };

/* A file of this header and `data` bytes 0, 1, 2, ... */
static struct image image_of(const char *header, size_t data)
{
    struct image f = { .bytes = 8 + strlen(header) + data };

    assert_true(f.bytes <= FILE_ROOM);
    for (int i = 0; i < 8; i++)
        f.byte[i] = (unsigned char)(strlen(header) >> 8 * i);
    memcpy(f.byte + 8, header, strlen(header));
    for (size_t i = 0; i < data; i++)
        f.byte[8 + strlen(header) + i] = (unsigned char)i;
    return f;
}

static void written_tensors_are_read_back(void **state)
{
    struct safetensor_spec spec[LS_DTYPES + 2];
    static char names[LS_DTYPES + 2][64];
    unsigned char data[1024];
    struct safetensors_writer *w;
    struct safetensors *f;
    struct file_map map;
    char hash[HASH_ROOM], again[HASH_ROOM];
    uint64_t bytes;
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37);
    for (int t = 0; t < LS_DTYPES; t++, n++)
        spec[n] = (struct safetensor_spec){ NULL, (ls_dtype)t, 3, { 3, 1, (size_t)t + 1 } };
    spec[n++] = (struct safetensor_spec){ NULL, LS_F64, 0, { 0 } };
    spec[n++] = (struct safetensor_spec){ NULL, LS_F32, 2, { 4, 0 } };
    for (size_t i = 0; i < n; i++) {
        spec[i].name = names[i];
        snprintf(names[i], sizeof names[i], "tensor \"%zu\" of \xc3\xa9, ../%zu", i, i);
    }
    OK(safetensors_create(scratch("f"), n, spec, &w));
    for (size_t i = 0; i < n; i++)
        OK(safetensors_put(w, data + i, safetensor_spec_bytes(&spec[i])));
    OK(safetensors_publish(&w, &bytes, hash));
    assert_null(w);
    OK(file_map_open(scratch("f"), &map));
    hash_of(map.data, map.bytes, again);
    assert_int_equal(bytes, map.bytes);
    assert_string_equal(hash, again);
    assert_int_equal(map.data[0] % 8, 0);
    file_map_close(&map);
    OK(safetensors_open(scratch("f"), &f));
    assert_int_equal(safetensors_count(f), n);
    assert_int_equal(safetensors_bytes(f), bytes);
    for (size_t i = 0; i < n; i++) {
        const struct safetensor *t = safetensors_find(f, spec[i].name);

        assert_non_null(t);
        assert_int_equal(t->type, spec[i].type);
        assert_int_equal(t->ndim, spec[i].ndim);
        assert_memory_equal(t->size, spec[i].size, sizeof t->size);
        assert_int_equal(t->bytes, safetensor_spec_bytes(&spec[i]));
        assert_memory_equal(t->data, data + i, t->bytes);
    }
    assert_null(safetensors_find(f, "none"));
    assert_null(safetensors_at(f, n));
    safetensors_close(&f);
}

static void broken_files_are_refused(void **state)
{
    static const struct { const char *header; size_t data; const char *message; } cases[] = {
        { "", 0, "begin with '{'" },
        { " {}", 0, "begin with '{'" },
        { "[]", 0, "begin with '{'" },
        { "{", 0, "damaged; copy or save it again: header: not JSON" },
        { "{\"a\":1,\"a\":1}", 0, "not JSON" },
        { "{}", 1, "end at byte 0 of 1" },
        { "{\"a\":1}", 0, "no \"dtype\"" },
        { "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype" },
        { "{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no \"shape\"" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dim 0 of its shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "dim 0 of its shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "7 dims" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4, "overflows at dim 1" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]}}", 4, "bytes overflow" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "not [begin, end]" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "not [begin, end]" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "not [begin, end]" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "not [begin, end]" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "the file has 7 bytes of data" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8, "need 8" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}", 6, "begins at 2" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[5,9]}}", 9, "begins at 5" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "end at byte 4 of 5" },
        { "{\"__metadata__\":7}", 0, "__metadata__ is not an object" },
        { "{\"__metadata__\":[\"a\"]}", 0, "__metadata__ is not an object" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: 'a' is not a string" },
        { "{\"__metadata__\":{\"a\":null}}", 0, "__metadata__: 'a' is not a string" },
        { "{\"__metadata__\":{\"b\":\"c\",\"a\":{\"x\":\"y\"}}}", 0, "__metadata__: 'a' is not a string" },
        { "{\"__metadata__\":{\"a\":[]}}", 0, "__metadata__: 'a' is not a string" },
        { "{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "duplicate" },
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "unknown dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "is not a size" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.0,4]}}", 4, "not [begin, end]" },
        { "{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no \"dtype\"" },
        { "{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "control characters" },
    };
    struct safetensors *f;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct image file = image_of(cases[i].header, cases[i].data);

        REFUSED(LS_EFORMAT, cases[i].message, safetensors_parse(file.byte, file.bytes, "f", &f));
    }
    for (size_t bytes = 0; bytes < 8; bytes++)
        REFUSED(LS_EFORMAT, "at least 10", safetensors_parse((const unsigned char *)"\2\0\0\0\0\0\0\0", bytes, "f", &f));
    REFUSED(LS_EFORMAT, "a header at most", safetensors_parse((const unsigned char *)"\3\0\0\0\0\0\0\0{}", 10, "f", &f));
    REFUSED(LS_EFORMAT, "a header at most",
            safetensors_parse((const unsigned char *)"\377\377\377\377\377\377\377\377{}", 10, "f", &f));
    REFUSED(LS_EIO, "nowhere", safetensors_open(scratch("nowhere"), &f));
}

static void every_truncation_is_refused(void **state)
{
    struct image file = image_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}  ", 12);
    struct safetensors *f;

    (void)state;
    OK(safetensors_parse(file.byte, file.bytes, "f", &f));
    safetensors_close(&f);
    for (size_t bytes = 0; bytes < file.bytes; bytes++)
        REFUSED(LS_EFORMAT, "f: ", safetensors_parse(file.byte, bytes, "f", &f));
}

/* Tensors of unknown types are skipped; data at unaligned addresses is copied before use. */
static void foreign_types_and_unaligned_offsets_are_read(void **state)
{
    struct image file = image_of("{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"mask\":{\"dtype\":\"BOOL\",\"shape\":[1,3],\"data_offsets\":[0,3]},"
                                 "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]},"
                                 "\"none\":{\"dtype\":\"F8_E4M3\",\"shape\":[0],\"data_offsets\":[3,3]}}", 11);
    struct safetensors *f;
    void *copy;

    (void)state;
    OK(safetensors_parse(file.byte, file.bytes, "f", &f));
    assert_int_equal(safetensors_count(f), 3);
    const struct safetensor *mask = safetensors_find(f, "mask");
    const struct safetensor *w = safetensors_find(f, "w");
    assert_int_equal(mask->type, LS_DTYPES);
    assert_string_equal(mask->type_name, "BOOL");
    const void *at = safetensor_aligned(w, &copy);
    assert_int_equal((uintptr_t)at % 4, 0);
    assert_memory_equal(at, "\3\4\5\6\7\10\11\12", 8);
    mem_free(copy);
    safetensors_close(&f);
}

static void impossible_names_are_not_written(void **state)
{
    struct safetensor_spec spec = { "__metadata__", LS_F32, 1, { 1 } };
    struct safetensors_writer *w;

    (void)state;
    REFUSED(LS_EINVAL, "__metadata__", safetensors_create(scratch("f"), 1, &spec, &w));
    spec.name = "a\nb";
    REFUSED(LS_EINVAL, "control", safetensors_create(scratch("f"), 1, &spec, &w));
    assert_false(file_exists(scratch("f.tmp")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_tensors_are_read_back, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(broken_files_are_refused, scratch_set_up, scratch_tear_down),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(foreign_types_and_unaligned_offsets_are_read),
        cmocka_unit_test_setup_teardown(impossible_names_are_not_written, scratch_set_up, scratch_tear_down),
    };

    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
