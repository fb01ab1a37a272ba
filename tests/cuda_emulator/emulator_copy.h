/* emulator_copy.h - copy_async.h under the emulator: the bytes of a copy arrive when its thread waits for its group, and are NaN until
 * then. Its read and its write are checked for races both when it starts and when it ends, and its source must not change between.
 */
#ifndef LS_TESTS_CUDA_EMULATOR_COPY_H
#define LS_TESTS_CUDA_EMULATOR_COPY_H

enum { EMULATOR_COPY = 16 };

/* from NULL: zeros. */
void emulator_copy_begin(emulator_region *to, const void *at, emulator_region *source, const void *from);
void copy_async_commit(void);
void emulator_copy_wait(unsigned left);

template <typename T> void copy_async16(shared<T> to, global<const T> from, bool there)
{
    emulator_copy_begin(to.region, to.at, from.region, there ? from.at : NULL);
}

template <int LEFT> void copy_async_wait(void) { emulator_copy_wait(LEFT); }

#endif
