/* tb_events.h - scalars in TensorBoard's file format.
 *
 * A file named events.out.tfevents.<unix seconds>.<host>.<pid>.<n> holds records:
 *     u64 length, u32 masked crc32c of those 8 bytes, data[length], u32 masked crc32c of data      (little-endian)
 *     masked(crc) = ((crc >> 15) | (crc << 17)) + 0xa282ead8
 * data is a protobuf message Event: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary,
 * 7 session_log. The first record's file_version is "brain.Event:2". A Summary repeats field 1, a value: 1 tag
 * (string), 2 simple_value (float). A session_log with 1 status = 1 (START) makes TensorBoard drop the values of the event's step and of
 * later steps in earlier files. Its step is the one that runs next, so TensorBoard shows every step of a resumed run once.
 */
#ifndef LS_TRAIN_RUN_TB_EVENTS_H
#define LS_TRAIN_RUN_TB_EVENTS_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

struct tb_scalar {
    const char *tag;
    float value;
};

enum { TB_SCALARS = 16, TB_TAG = 48, TB_RECORD = 64 + TB_SCALARS * (TB_TAG + 16) };

/* Each writes a complete record into out[TB_RECORD] and returns its bytes. At most TB_SCALARS scalars, with tags shorter than TB_TAG. */
size_t tb_version_record(double wall_time, unsigned char *out);
size_t tb_start_record(double wall_time, int64_t next_step, unsigned char *out);
size_t tb_scalars_record(double wall_time, int64_t step, int count, const struct tb_scalar *scalars, unsigned char *out);

/* Path of a new events file in `folder`; free it with mem_free. NULL: out of memory. */
char *tb_file_name(const char *folder);

#endif
