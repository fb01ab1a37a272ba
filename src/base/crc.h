/* crc.h - CRC-32C (Castagnoli; polynomial 0x1edc6f41, reflected), as record files of TensorBoard use it. */
#ifndef LS_BASE_CRC_H
#define LS_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t bytes);
/* ((crc >> 15 | crc << 17) + 0xa282ead8) mod 2^32: the masked form that records store. */
uint32_t crc32c_masked(const void *data, size_t bytes);

#endif
