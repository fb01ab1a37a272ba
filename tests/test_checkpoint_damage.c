/* test_checkpoint_damage.c - damage: a change of any single byte of a checkpoint or field of its manifest is found and named. */
#include "helper_checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/manifest.h"

/* Each byte of each file, changed alone, is found, and the message names the file. */
static void every_changed_byte_is_detected(void **state)
{
    ls_store *s = small_store(LS_F32, 0, "m");
    ls_train_state state_of = small_state(1);
    ls_checkpoint_info *info;
    char path[512], *text, *what;
    size_t bytes;

    (void)state;
    OK(ls_checkpoint_save(scratch("ck"), s, NULL, &state_of, NULL));
    OK(ls_checkpoint_verify(scratch("ck/step_00000001")));
    OK(ls_checkpoint_inspect(scratch("ck/step_00000001"), &info));
    for (size_t i = 0; i <= info->nfiles; i++) {
        snprintf(path, sizeof path, "%s/%s", scratch("ck/step_00000001"),
                 i < info->nfiles ? info->files[i].name : "manifest.json");
        what = strrchr(path, '/') + 1;
        OK(file_read(path, &text, &bytes));
        for (size_t at = 0; at < bytes; at += i < info->nfiles ? 7 : 1) {
            FILE *f = fopen(path, "r+b");

            assert_non_null(f);
            fseek(f, (long)at, SEEK_SET);
            fputc(text[at] ^ 0x20, f);
            fclose(f);
            REFUSED(LS_EFORMAT, what, ls_checkpoint_verify(scratch("ck/step_00000001")));
            REFUSED(LS_EFORMAT, what,
                    ls_checkpoint_load(scratch("ck/step_00000001"), s, LS_LOAD_OPTIMIZER, NULL));
            f = fopen(path, "r+b");
            fseek(f, (long)at, SEEK_SET);
            fputc(text[at], f);
            fclose(f);
        }
        mem_free(text);
    }
    OK(ls_checkpoint_verify(scratch("ck/step_00000001")));
    ls_checkpoint_info_release(&info);
    ls_store_release(&s);
}

/* Parses the text with the first `find` replaced and a trailer whose hash is correct. */
static ls_status parse_changed(const char *text, const char *find, const char *with)
{
    const char *at = strstr(text, find), *trailer = strstr(text, ",\"hash\":\"");
    struct text changed = { 0 };
    struct manifest *m = NULL;
    char hash[HASH_ROOM];

    if (!at)
        fail_msg("the manifest has no %s", find);
    while (strstr(trailer + 1, ",\"hash\":\""))
        trailer = strstr(trailer + 1, ",\"hash\":\"");
    text_add(&changed, text, (size_t)(at - text));
    text_put(&changed, "%s", with);
    text_add(&changed, at + strlen(find), (size_t)(trailer - at) - strlen(find));
    hash_of(changed.data, changed.bytes, hash);
    text_put(&changed, ",\"hash\":\"%s\"}\n", hash);
    ls_status st = manifest_parse(changed.data, changed.bytes, "manifest", &m);
    manifest_release(&m);
    text_free(&changed);
    return st;
}

static void every_field_is_checked(void **state)
{
    static const struct { const char *find, *with, *message; } cases[] = {
        { "\"format\":1", "\"format\":2", "format 2; this program reads format 1" },
        { "\"format\":1", "\"format\":\"1\"", "format -1" },
        { "{\"format\":1", "[1", "not JSON" },
        { "\"step\":7", "\"step\":-7", "\"step\" is not an integer" },
        { "\"step\":7", "\"step\":7.5", "\"step\" is not an integer" },
        { "\"samples\":", "\"sample\":", "\"samples\" is not an integer" },
        { "\"tokens\":", "\"x\":", "\"tokens\"" },
        { "\"schedule_steps\":1000", "\"schedule_steps\":true", "\"schedule_steps\"" },
        { "\"seed\":\"18446744073709551612\"", "\"seed\":\"18446744073709551616\"", "\"seed\"" },
        { "\"seed\":\"18446744073709551612\"", "\"seed\":\"-1\"", "\"seed\"" },
        { "\"seed\":\"18446744073709551612\"", "\"seed\":1", "\"seed\"" },
        { "\"threads\":2", "\"threads\":4294967296", "\"threads\"" },
        { "\"optimizer\":\"adamw\"", "\"optimizer\":\"123456789012345678\"", "18 bytes; at most 15" },
        { "\"isa\":\"avx512\"", "\"isa\":null", "\"isa\" is not a string" },
        { "\"architecture\":\"llama\"", "\"architecture\":\"mamba\"", "\"architecture\"" },
        { "\"architecture\":\"llama\"", "\"a\":1", "\"architecture\"" },
        { "\"layers\":", "\"layer\":", "\"layers\" is missing" },
        { "\"width\":", "\"width\":-", "\"width\" is of the wrong type" },
        { "\"tied\":", "\"tied\":\"\",\"x\":", "\"tied\" is of the wrong type" },
        { "\"norm_eps\":", "\"norm_eps\":[],\"x\":", "\"norm_eps\" is of the wrong type" },
        { "\"heads\":", "\"heads\":0,\"x\":", "manifest: model: " },
        { "\"original_positions\":", "\"x\":", "original_positions" },
        { "\"theta\":", "\"x\":", "\"theta\" is missing" },
        { "\"files\":[", "\"file\":[", "\"files\" is not an array" },
        { "\"name\":\"parameters_0000", "\"name\":\"../parameters_0000", "not a bare file name" },
        { "\"name\":\"parameters_0000_of_0001.safetensors\"", "\"name\":\"manifest.json\"", "not a bare file name" },
        { "\"name\":\"parameters_0000_of_0001.safetensors\"", "\"name\":\"optimizer_0000_of_0001.safetensors\"",
          "listed twice" },
        { "\"bytes\":", "\"bytes\":-", "\"bytes\" is not an integer" },
        { "\"bytes\":", "\"bytes\":9223372036854775807,\"x\":", "" },
        { "\"hash\":\"", "\"hash\":\"Z", "\"hash\" has 33 bytes" },
        { "\"tensors\":", "\"tensor\":", "\"tensors\" is not an array" },
        { "\"name\":\"a.weight\"", "\"name\":7", "has no valid" },
        { "\"name\":\"a.weight\"", "\"name\":\"a\\nb\"", "has no valid" },
        { "\"kind\":\"parameter\"", "\"kind\":\"param\\u0007\"", "has no valid" },
        { "\"name\":\"a.weight\"", "\"name\":\"b.bias\"", "parameter 'b.bias': its shards differ" },
        { "\"dtype\":\"f32\"", "\"dtype\":\"i32\"", "not a floating type" },
        { "\"dtype\":\"f32\"", "\"dtype\":\"f31\"", "not a floating type" },
        { "\"dtype\":\"f32\"", "\"dtype\":\"f64\"", "others are f64" },
        { "\"shape\":[7,5]", "\"shape\":7", "\"shape\" is not an array" },
        { "\"shape\":[7,5]", "\"shape\":[7,5,1]", "\"offset\" is not an array of 3" },
        { "\"shape\":[7,5]", "\"shape\":[7,-5]", "dim 1 of \"shape\"" },
        { "\"shape\":[7,5]", "\"shape\":[4294967296,4294967296]", "overflows at dim 1" },
        { "\"shape\":[7,5]", "\"shape\":[8,5]", "35 of 40 elements" },
        { "\"shape\":[7,5]", "\"shape\":[6,5]", "dim 0 has 6 elements" },
        { "\"offset\":[0,0]", "\"offset\":[1,0]", "dim 0 has 7 elements, but the shard is [1, +7)" },
        { "\"offset\":[0,0]", "\"offset\":[9223372036854775807,0]", "dim 0 has 7" },
        { "\"extent\":[7,5]", "\"extent\":[7,4]", "28 of 35 elements" },
        { "\"extent\":[7,5]", "\"extent\":[9223372036854775807,5]", "dim 0 has 7" },
        { "\"piece_bytes\":1048576", "\"piece_bytes\":1048576.5", "\"piece_bytes\" is not an integer" },
        { "\"piece_bytes\":1048576", "\"piece_bytes\":0", "\"piece_bytes\" is 0; it must be at least 4096" },
        { "\"piece_bytes\":1048576", "\"piece_bytes\":-1", "\"piece_bytes\" is not an integer" },
        { "\"piece_bytes\":1048576,", "", "" },  /* as earlier versions wrote it */
        { "\"header\":\"", "\"header\":\"z", "\"header\" has 33 bytes" },
        { "\"header\":\"", "\"heater\":\"", "which has no \"header\" hash" },
        { "\"header\":\"", "\"header\":7,\"x\":\"", "\"header\" is not a string" },
        { "\"hashes\":\"", "\"hashes\":\"0", "\"hashes\" is not 32 hexadecimal digits" },
        { "\"hashes\":\"", "\"hashes\":null,\"x\":\"", "\"hashes\" is not 32 hexadecimal digits" },
        { "\"file\":0", "\"file\":2", "\"file\" is 2, but there are 2 files" },
        { "\"file\":0", "\"file\":-1", "\"file\" is not an integer" },
        { "\"tensors\":[",
          "\"tensors\":[{\"name\":\"d\",\"kind\":\"parameter\",\"dtype\":\"f32\",\"shape\":[1],\"offset\":[0],"
          "\"extent\":[1],\"file\":0,\"hashes\":\"0123456789abcdef0123456789abcdef\"},",
          "shards 0 and 1 overlap" },
    };
    ls_store *s = small_store(LS_F32, 0, "m");
    ls_train_state state_of = small_state(7);
    ls_model m;
    char *text;

    (void)state;
    OK(ls_model_preset("llama-tiny", &m));
    OK(ls_checkpoint_save(scratch("ck"), s, &m, &state_of, NULL));
    OK(file_read(scratch("ck/step_00000007/manifest.json"), &text, NULL));
    OK(parse_changed(text, "\"format\":1", "\"format\":1"));
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (*cases[i].message)
            REFUSED(LS_EFORMAT, cases[i].message, parse_changed(text, cases[i].find, cases[i].with));
        else
            OK(parse_changed(text, cases[i].find, cases[i].with));
    mem_free(text);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_changed_byte_is_detected, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(every_field_is_checked, scratch_set_up, scratch_tear_down),
    };

    return cmocka_run_group_tests_name("checkpoint damage", tests, NULL, NULL);
}
