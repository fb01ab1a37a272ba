/* tb_events.c - encodes TensorBoard's records: protobuf messages of a few fields. */
#include "train/run/tb_events.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/crc.h"
#include "base/file.h"

enum { WIRE_VARINT = 0, WIRE_DOUBLE = 1, WIRE_BYTES = 2, WIRE_FLOAT = 5 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { RECORD_HEAD = 12, RECORD_TAIL = 4 };

struct writer {
    unsigned char *at;
}; /* the caller ensures that there is room: see TB_RECORD */

static void put_little(struct writer *w, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *w->at++ = (unsigned char)(value >> (8 * i));
}

static void put_varint(struct writer *w, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) *w->at++ = (unsigned char)(value | 0x80);
    *w->at++ = (unsigned char)value;
}

static void put_key(struct writer *w, int field, int wire) { put_varint(w, (uint64_t)field << 3 | (uint64_t)wire); }

static void put_double(struct writer *w, int field, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    put_key(w, field, WIRE_DOUBLE);
    put_little(w, bits, 8);
}

static void put_float(struct writer *w, int field, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    put_key(w, field, WIRE_FLOAT);
    put_little(w, bits, 4);
}

static void tb_events_put_bytes(struct writer *w, int field, const void *data, size_t bytes)
{
    put_key(w, field, WIRE_BYTES);
    put_varint(w, bytes);
    memcpy(w->at, data, bytes);
    w->at += bytes;
}

static struct writer event_begin(unsigned char *out, double wall_time)
{
    struct writer w = { out + RECORD_HEAD };

    put_double(&w, EVENT_WALL_TIME, wall_time);
    return w;
}

static void put_step(struct writer *w, int64_t step)
{
    put_key(w, EVENT_STEP, WIRE_VARINT);
    put_varint(w, (uint64_t)step);
}

/* Writes head and tail of the record whose data end at w; returns its bytes. */
static size_t record_end(struct writer *w, unsigned char *out)
{
    size_t bytes = (size_t)(w->at - out) - RECORD_HEAD;
    struct writer head = { out };

    put_little(&head, bytes, 8);
    put_little(&head, crc32c_masked(out, 8), 4);
    put_little(w, crc32c_masked(out + RECORD_HEAD, bytes), 4);
    return RECORD_HEAD + bytes + RECORD_TAIL;
}

size_t tb_version_record(double wall_time, unsigned char *out)
{
    static const char version[] = "brain.Event:2";
    struct writer w = event_begin(out, wall_time);

    tb_events_put_bytes(&w, EVENT_VERSION, version, sizeof version - 1);
    return record_end(&w, out);
}

size_t tb_start_record(double wall_time, int64_t next_step, unsigned char *out)
{
    static const unsigned char start[] = { 1 << 3 | WIRE_VARINT, 1 };
    struct writer w = event_begin(out, wall_time);

    put_step(&w, next_step);
    tb_events_put_bytes(&w, EVENT_SESSION, start, sizeof start);
    return record_end(&w, out);
}

size_t tb_scalars_record(double wall_time, int64_t step, int count, const struct tb_scalar *scalars, unsigned char *out)
{
    unsigned char summary[TB_RECORD], value[TB_TAG + 16];
    struct writer w = event_begin(out, wall_time), s = { summary };

    ASSERT(count >= 0 && count <= TB_SCALARS);
    for (int i = 0; i < count; i++) {
        struct writer v = { value };

        ASSERT(strlen(scalars[i].tag) < TB_TAG);
        tb_events_put_bytes(&v, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_float(&v, 2, scalars[i].value);
        tb_events_put_bytes(&s, 1, value, (size_t)(v.at - value));
    }
    put_step(&w, step);
    tb_events_put_bytes(&w, EVENT_SUMMARY, summary, (size_t)(s.at - summary));
    return record_end(&w, out);
}

char *tb_file_name(const char *folder)
{
    static atomic_int opened;
    char host[65] = "localhost";

    if (gethostname(host, sizeof host - 1) != 0 || !file_is_basename(host)) strcpy(host, "localhost");
    return file_path("%s/events.out.tfevents.%lld.%s.%d.%d", folder, (long long)time(NULL), host, (int)getpid(),
                     atomic_fetch_add(&opened, 1));
}
