/*
 * A process of a region that does nothing but charge and release, as fast as it can: what a reader
 * may disturb. By the protocol of layout 1.2: before each charge the sum over all slots is compared
 * with the limit, then the slot's figures are added to inside its seqlock.
 *
 *     charging_writer FILE SLOT
 *
 * For each line with a number of milliseconds on stdin it works that long and prints how many
 * pairs of charge and release it made per second.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "region.h"

#define PAIRS_BETWEEN_CLOCKS 256
#define BYTES 4096

static const struct hr_layout *layout;
static unsigned char *base;

static _Atomic uint64_t *word(unsigned char *at)
{
    return (_Atomic uint64_t *)(void *)at;
}

static unsigned char *slot_at(uint32_t index)
{
    return base + layout->procs + (size_t)index * layout->slot_stride;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int fits(uint64_t bytes)
{
    int32_t count = atomic_load((_Atomic int32_t *)(void *)(base + layout->proc_num));
    uint64_t used = 0;
    for (int32_t i = 0; i < count; i++)
        used += atomic_load(word(slot_at((uint32_t)i) + layout->slot_used + 32));
    uint64_t limit = atomic_load(word(base + layout->limit));
    return limit == 0 || used + bytes <= limit;
}

static void add(unsigned char *slot, uint64_t bytes)
{
    _Atomic uint64_t *seqlock = word(slot + layout->slot_seqlock);
    atomic_fetch_add(seqlock, 1);
    atomic_fetch_add(word(slot + layout->slot_used + 16), bytes);
    atomic_fetch_add(word(slot + layout->slot_used + 32), bytes);
    atomic_fetch_add(seqlock, 1);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    layout = &hr_layouts[HR_V1_2];
    int descriptor = open(argv[1], O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return 1;
    base = mmap(NULL, layout->size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED)
        return 1;
    unsigned char *slot = slot_at((uint32_t)strtoul(argv[2], NULL, 10));

    unsigned milliseconds;
    while (scanf("%u", &milliseconds) == 1) {
        uint64_t began = now_ns(), end = began + milliseconds * 1000000ull, pairs = 0, now;
        do {
            for (int i = 0; i < PAIRS_BETWEEN_CLOCKS; i++) {
                if (fits(BYTES)) {
                    add(slot, BYTES);
                    add(slot, -(uint64_t)BYTES);
                    pairs++;
                }
            }
            now = now_ns();
        } while (now < end);
        printf("%.0f\n", (double)pairs * 1e9 / (double)(now - began));
        fflush(stdout);
    }
    return 0;
}
