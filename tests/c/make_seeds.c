/* The fuzzer's first inputs: every layout as it is, and the common ways to break one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_format.h"

static const char *directory;
static unsigned seeds;

static void seed(const unsigned char *bytes, size_t count)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/seed-%03u", directory, seeds++);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

#define SEED(...)                                                                                  \
    do {                                                                                           \
        const unsigned char bytes[] = {__VA_ARGS__};                                               \
        seed(bytes, sizeof bytes);                                                                 \
    } while (0)

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    directory = argv[1];
    for (unsigned char layout = 0; layout < FUZZ_RAW; layout++) {
        SEED(layout);
        SEED(layout, FUZZ_POKE, FUZZ_PROC_NUM, 0, 0, 0, 14, FUZZ_SNAPSHOT, 0xff, 0xff, 0);
        SEED(layout, FUZZ_OPEN, 0, 5, FUZZ_POKE, FUZZ_PROC_NUM, 0, 0, 0, 13, FUZZ_SNAPSHOT, 0xff,
             0xff, 0, FUZZ_GET, 2, 1);
        SEED(layout, FUZZ_OPEN, 1, 5, FUZZ_POKE, FUZZ_DEVICE_NUM, 0, 0, 0, 0, FUZZ_SET_LIMITS, 0,
             255, 0, 20, 0, FUZZ_SNAPSHOT, 64, 0, 0);
        SEED(layout, FUZZ_OPEN, 1, 5, FUZZ_RESIZE, 1, 0, FUZZ_SNAPSHOT, 0xff, 0xff, 0,
             FUZZ_SET_VALUE, 3, 1, FUZZ_RESIZE, 6, 0, FUZZ_IS_STALE);
        SEED(layout, FUZZ_POKE, FUZZ_SLOT_SEQLOCK, 0, 0, 1, 1, FUZZ_OPEN, 0, 5, FUZZ_SNAPSHOT, 0xff,
             0xff, 0, FUZZ_SNAPSHOT, 0xff, 0xff, 0, FUZZ_READ_SET, 0xff, 3, 6);
        SEED(layout, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, 0, FUZZ_OPEN, 0, 5, FUZZ_SNAPSHOT, 9, 0, 0,
             FUZZ_READ_SET, 16, 16, 64, FUZZ_CLOSE);
        SEED(layout, FUZZ_OPEN, 1, 5, FUZZ_SET_LIMITS, 0, 0, 1, 20, 21, FUZZ_SET_LIMITS, 1, 255, 4,
             6, 0, FUZZ_SET_LIMITS, 0, 1, 2, 1, 0);
        SEED(layout, FUZZ_TEXT, 1, 'G', 'P', 'U', '-', 96, FUZZ_TEXT, 2, 'M', 'I', 'G', '-', 95,
             FUZZ_IDENTIFY, 5, FUZZ_OPEN, 0, 5, FUZZ_TEXT, 0, 'X', 1, 2, 3, 8, FUZZ_SNAPSHOT, 0xff,
             0xff, 0);
        SEED(layout, FUZZ_RESIZE, 9, 0, FUZZ_POKE, FUZZ_DEVICE_NUM, 0, 0, 0, 0, FUZZ_TEXT, 0, 0, 0,
             0, 0, 0, FUZZ_TEXT, 1, 0, 0, 0, 0, 0, FUZZ_IDENTIFY, 5, FUZZ_OPEN, 0, 2, FUZZ_OPEN, 0,
             3);
        SEED(layout, FUZZ_OPEN, 0, 5, FUZZ_POKE, FUZZ_SLOT_TOTAL, 9, 0, 2, 25, FUZZ_POKE,
             FUZZ_SLOT_TOTAL, 9, 0, 1, 25, FUZZ_READ_SET, 0xff, 0xff, 9, FUZZ_GET, 2, 9,
             FUZZ_SNAPSHOT, 0xff, 0, 0);
    }
    SEED(FUZZ_RAW);
    SEED(FUZZ_RAW, 0x4e, 0xf8, 0x2f, 0x01, 1, 0, 0, 0, 2, 0, 0, 0);
    SEED(FUZZ_RAW, 0, 0, 0);
    return 0;
}
