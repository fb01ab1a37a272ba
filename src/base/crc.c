/* crc.c - CRC-32C by a table of 256 entries, a byte at a time. */
#include "base/crc.h"

#include <pthread.h>

#define POLYNOMIAL 0x82f63b78u /* 0x1edc6f41 with its bits reversed */

static uint32_t crc_table[256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;

        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        crc_table[i] = crc;
    }
}

uint32_t crc32c(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = 0xffffffff;

    pthread_once(&table_once, fill_table);
    while (bytes--) crc = crc >> 8 ^ crc_table[(crc ^ *at++) & 0xff];
    return ~crc;
}

uint32_t crc32c_masked(const void *data, size_t bytes)
{
    uint32_t crc = crc32c(data, bytes);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}
