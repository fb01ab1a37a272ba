/* emulator_copy.h - copy_async.h under the emulator: the bytes of a copy arrive when its thread waits for its group, and are NaN until
 * then. Its write is checked for races both when it starts and when it ends.
 */
#ifndef LS_TESTS_CUDA_EMULATOR_COPY_H
#define LS_TESTS_CUDA_EMULATOR_COPY_H

enum { EMULATOR_COPY = 16 };

/* from: the bytes on the host; NULL: zeros. */
void emulator_copy_begin(emulator_region *to, const void *at, const void *from);
void copy_async_commit(void);
void emulator_copy_wait(unsigned left);

template <typename T> void copy_async16(shared<T> to, global<const T> from, bool there)
{
    emulator_copy_begin(to.region, to.at,
                        there ? emulator_touch(from.region, from.at, EMULATOR_COPY, EMULATOR_COPY, EMULATOR_READ) : NULL);
}

template <int LEFT> void copy_async_wait(void) { emulator_copy_wait(LEFT); }

#endif
