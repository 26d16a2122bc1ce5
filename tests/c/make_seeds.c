/*
 * The fuzzer's first inputs: every layout as it is, the common ways to break one, the calls that
 * write under the lock, and what earlier runs have found (fuzz_corpus.txt, an input a line, in
 * hexadecimal).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_format.h"
#include "region.h"

static const char *directory;
static unsigned seeds;

static void seed(const unsigned char *bytes, size_t count)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/seed-%04u", directory, seeds++);
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

/* Indexes of values. */
enum {
    V0,
    V1,
    V2,
    V3,
    V50 = 6,
    V99,
    V100,
    V101,
    V1024 = 13,
    V102 = 26,
    V4,
    V4000,
    V16M,
    OWN,
    OWN_FOREIGN
};

/* What writes under the lock, with a /proc around it.  `OPEN` is for writing. */
#define OPEN FUZZ_OPEN, 1, 5
/* The process with this pid lives; the slot's process is seen at work. */
#define LIVES(index, pid) FUZZ_PROCESS, index, FUZZ_MAPS_REGION, 1, pid
#define MOVES(slot) FUZZ_MEANWHILE, 0, FUZZ_SLOT_SEQLOCK, 0, slot, 0, V4
#define COUNT(value) FUZZ_POKE, FUZZ_PROC_NUM, 0, 0, 0, value
#define SEM(value) FUZZ_POKE, FUZZ_SEM, 0, 0, 0, value
#define OWNER(value) FUZZ_POKE, FUZZ_OWNER_PID, 0, 0, 0, value

static void seed_writers(unsigned char layout)
{
    SEED(layout, OPEN, FUZZ_LOCK, 0, FUZZ_LOCK_STATE, FUZZ_LOCK, 0, FUZZ_UNLOCK, FUZZ_UNLOCK);
    SEED(layout, OPEN, FUZZ_LOCK, 0, FUZZ_RECOVER, 1, FUZZ_CLOSE, OPEN, FUZZ_LOCK_STATE);
    /* Held by a dead owner, by nobody, by a live one, by a dead writer of ours; above 1. */
    SEED(layout, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, V0, FUZZ_POKE, FUZZ_OWNER_PID, 0, 0, 0, V100, OPEN,
         FUZZ_LOCK, 9, FUZZ_LOCK_STATE, FUZZ_RECOVER, 12, FUZZ_LOCK, 0, FUZZ_UNLOCK);
    SEED(layout, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, V0, OPEN, FUZZ_RECOVER, 12, FUZZ_LOCK, 0,
         FUZZ_UNLOCK);
    SEED(layout, OPEN, FUZZ_PROCESS, 3, FUZZ_MAPS_REGION, 1, V100, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, V0,
         FUZZ_RECOVER, 12, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, V0, FUZZ_MEANWHILE, 20, FUZZ_OWNER_PID, 0,
         0, 0, V100, FUZZ_RECOVER, 12, FUZZ_LOCK_STATE, FUZZ_RECOVER, 3);
    SEED(layout, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, V0, FUZZ_POKE, FUZZ_OWNER_PID, 0, 0, 0, OWN_FOREIGN,
         OPEN, FUZZ_OTHER_LOCK, 1, FUZZ_LOCK_STATE, FUZZ_LOCK, 3, FUZZ_RECOVER, 1, FUZZ_OTHER_LOCK,
         0, FUZZ_OTHER_LOCK, 0, FUZZ_LOCK, 3, FUZZ_OTHER_LOCK, 0, FUZZ_LOCK_STATE, FUZZ_LOCK, 3,
         FUZZ_UNLOCK);
    SEED(layout, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, V2, OPEN, FUZZ_RECOVER, 1, FUZZ_LOCK, 0, FUZZ_POKE,
         FUZZ_OWNER_PID, 0, 0, 0, V100, FUZZ_UNLOCK);
    SEED(layout, FUZZ_POKE, FUZZ_SEM_POSTINIT, 0, 0, 0, V0, OPEN, FUZZ_RECOVER, 70, FUZZ_POKE,
         FUZZ_SEM_POSTINIT, 0, 0, 0, V2, FUZZ_RECOVER, 0);
    /* Being a process. */
    SEED(layout, OPEN, FUZZ_ATTACH, 0, FUZZ_CHARGE, 0, 1, V16M, 0, FUZZ_CHARGE, 1, 2, 22, 0,
         FUZZ_RELEASE, 0, 1, V1, 0, FUZZ_RELEASE, 0, 0, V1, 0, FUZZ_SNAPSHOT, 0xff, 0xff, 0,
         FUZZ_DETACH, 0);
    SEED(layout, OPEN, FUZZ_ATTACH, 0, FUZZ_CHARGE, 0, 1, V16M, 0, FUZZ_POKE, FUZZ_PROC_NUM, 0, 0,
         0, V2, FUZZ_CHARGE, 0, 0, V50, 1, FUZZ_POKE, FUZZ_SLOT_PID, 0, 3, 0, V50, FUZZ_CHARGE, 0,
         0, V50, 1, FUZZ_CLOSE);
    SEED(layout, FUZZ_PROC, FUZZ_PROC_FOREIGN, OPEN, FUZZ_ATTACH, 0, FUZZ_PROC, 0, FUZZ_SLOT, 3, 0,
         OWN, V0, V16M, FUZZ_ATTACH, 0, FUZZ_ATTACH, 0, FUZZ_LOCK, 0, FUZZ_UNLOCK, FUZZ_DETACH, 0);
    SEED(layout, OPEN, FUZZ_PROCESS, 3, FUZZ_MAPS_REGION, 1, V50, FUZZ_SLOT, 3, 0, V50, V102, V16M,
         MOVES(3), FUZZ_ATTACH, 9, FUZZ_CHARGE, 0, 0, V1, 0, FUZZ_DETACH, 0);
    /* Others' slots. */
    SEED(layout, OPEN, FUZZ_EDIT_SLOT, V100, 8, 0, 0, V1, 1, 0, V2, 2, 1, V50, 3, 1, V50,
         FUZZ_EDIT_SLOT, V101, 3, 1, 0, V2, FUZZ_EDIT_SLOT, V50, 2, 1, 0, V2);
    SEED(layout, OPEN, FUZZ_REAP, 1, 0, FUZZ_REAP, 0, 0, FUZZ_SNAPSHOT, 0xff, 0xff, 0);
    SEED(layout, OPEN, FUZZ_PROCESS, 3, FUZZ_MAPS_REGION, 1, V101, FUZZ_PROCESS, 4,
         FUZZ_MAPS_REFUSED, 1, V102, FUZZ_REAP, 4, V100, V101, 0, FUZZ_REAP, 0, 0, FUZZ_PROCESS, 4,
         FUZZ_MAPS_READ_ONLY, 1, V102, FUZZ_REAP, 0, 0);
    SEED(layout, OPEN, FUZZ_PROC, FUZZ_PROC_NOT_FIRST, FUZZ_PROCESS, 2,
         FUZZ_MAPS_REGION_AND_LIBVGPU, 0, FUZZ_POKE, FUZZ_SLOT_PID, 0, 1, 0, V0, FUZZ_REAP, 0, 9,
         FUZZ_PROC, FUZZ_PROC_HIDES, FUZZ_REAP, 0, 9);
    SEED(layout, OPEN, FUZZ_PROCESS, 3, FUZZ_MAPS_ONLY_THREAD, 1, V101, FUZZ_PROCESS, 5,
         FUZZ_MAPS_NAME, 1, V100, 3, 'a', ' ', 'b', FUZZ_PROCESS, 0, FUZZ_MAPS_OTHER_DEVICE, 1,
         V102, FUZZ_PROCESS, 1, FUZZ_MAPS_NO_STATUS, 1, V102, FUZZ_REAP, 0, 0, FUZZ_LOCK_STATE);
    SEED(layout, OPEN, FUZZ_PROCESS, 3, FUZZ_MAPS_REGION, 1, V101, FUZZ_SLOT, 4, 0, V101, V102,
         V16M, MOVES(4), FUZZ_REPAIR, 0, 9, FUZZ_SNAPSHOT, 0xff, 0xff, 0, FUZZ_REAP, 0, 0,
         FUZZ_REPAIR, 1, 0);
    /* Processes that write above proc_num: alone, with stale slots between, of which one is in
     * doubt; with a copy, or two, below; at work in two slots; and what newcomers make of them. */
    SEED(layout, OPEN, LIVES(3, V50), FUZZ_SLOT, 4, 0, V50, V102, V16M, MOVES(4), FUZZ_REPAIR, 0, 9,
         FUZZ_SNAPSHOT, 0xff, 0xff, 0);
    SEED(layout, OPEN, LIVES(3, V50), LIVES(4, V101), FUZZ_SLOT, 3, 0, V99, V102, V16M, FUZZ_SLOT,
         4, 0, V101, V102, V16M, FUZZ_SLOT, 6, 0, V50, V102, V16M, MOVES(6), FUZZ_REPAIR, 1, 9,
         MOVES(6), FUZZ_REPAIR, 0, 9, MOVES(1), MOVES(6), FUZZ_REPAIR, 0, 9);
    SEED(layout, OPEN, LIVES(3, V50), FUZZ_SLOT, 1, 0, V50, V102, V16M, FUZZ_SLOT, 2, 0, V50, V102,
         V16M, MOVES(2), FUZZ_REPAIR, 0, 9, FUZZ_SLOT, 0, 0, V50, V102, V16M, FUZZ_REPAIR, 0, 9);
    SEED(layout, OPEN, LIVES(3, V50), FUZZ_SLOT, 4, 0, V50, V102, V16M, FUZZ_SLOT, 1, 0, V50, V102,
         V16M, MOVES(1), MOVES(4), FUZZ_REPAIR, 0, 9, FUZZ_MEANWHILE, 0, FUZZ_SLOT_SEQLOCK, 0, 4, 0,
         V0, FUZZ_REPAIR, 0, 9);
    SEED(layout, OPEN, LIVES(3, V50), LIVES(4, V50), FUZZ_SLOT, 4, 0, V50, V102, V16M, MOVES(4),
         FUZZ_REPAIR, 0, 9, FUZZ_ATTACH, 9);
    SEED(layout, OPEN, LIVES(3, V101), FUZZ_SLOT, 3, 0, V101, V102, V16M, MOVES(3), FUZZ_ATTACH, 9,
         FUZZ_CHARGE, 0, 0, V1, 0, FUZZ_SLOT, 0, 0, OWN, V0, V16M, FUZZ_SLOT, 2, 0, OWN, V0, V16M,
         COUNT(V2), FUZZ_CHARGE, 0, 0, V1, 0, FUZZ_DETACH, 0);
    SEED(layout, OPEN, FUZZ_SLOT, 5, 0, V50, V0, V0, FUZZ_POKE, FUZZ_SLOT_STATUS, 0, 5, 0, V0,
         COUNT(V100), FUZZ_ATTACH, 9, COUNT(V1024), FUZZ_DETACH, 0, FUZZ_ATTACH, 9);
    SEED(layout, OPEN, FUZZ_OPEN, 0, 5, LIVES(3, V50), FUZZ_SLOT, 4, 0, V50, V102, V16M, MOVES(4),
         FUZZ_REPAIR, 1, 9, FUZZ_REPAIR, 0, 0, FUZZ_REAP, 0, 0, FUZZ_ATTACH, 0, FUZZ_RECOVER, 0);
    SEED(layout, OPEN, SEM(V0), FUZZ_MEANWHILE, 2, FUZZ_SEM, 0, 0, 0, V1, FUZZ_LOCK, 99,
         FUZZ_UNLOCK, SEM(V0), OWNER(V99), FUZZ_CHARGE, 0, 0, V1, 9, FUZZ_REAP, 0, 9, FUZZ_ATTACH,
         9);
    SEED(layout, OPEN, FUZZ_ATTACH, 9, FUZZ_CHARGE, 0, 0, V16M, 0, FUZZ_RESIZE, 1, 0, FUZZ_CHARGE,
         0, 0, V1, 0, FUZZ_DETACH, 0, FUZZ_LOCK, 0);
    /* Recovery that is interrupted, sees somebody come, or is not given the time. */
    SEED(layout, OPEN, LIVES(3, V50), SEM(V0), FUZZ_MEANWHILE, 30, FUZZ_SIGNAL, FUZZ_RECOVER, 20,
         SEM(V0), FUZZ_MEANWHILE, 0, FUZZ_SEM, 0, 0, 0, V1, FUZZ_RECOVER, 20);
    SEED(layout, OPEN, SEM(V0), FUZZ_MEANWHILE, 0, FUZZ_OWNER_PID, 0, 0, 0, V50, FUZZ_RECOVER, 20);
    SEED(layout, OPEN, OWNER(22), SEM(V0), FUZZ_RECOVER, 1, OWNER(23), LIVES(3, V50), FUZZ_RECOVER,
         1, OWNER(V50), SEM(V1), FUZZ_RECOVER, 1, OWNER(V99), SEM(V2), FUZZ_RECOVER, 1, FUZZ_LOCK,
         0);
    SEED(layout, OPEN, LIVES(3, V50), FUZZ_POKE, FUZZ_SEM_POSTINIT, 0, 0, 0, V0, FUZZ_RECOVER, 2,
         FUZZ_MEANWHILE, 9, FUZZ_SIGNAL, FUZZ_RECOVER, 99, FUZZ_POKE, FUZZ_SEM_POSTINIT, 0, 0, 0,
         V0, FUZZ_MEANWHILE, 9, FUZZ_SEM_POSTINIT, 0, 0, 0, V1, FUZZ_RECOVER, 99);
    /* Tickets. */
    SEED(layout, OPEN, FUZZ_LOCK, 0, FUZZ_UNLOCK, FUZZ_LOCK, 0, FUZZ_UNLOCK, FUZZ_LOCK, 0,
         FUZZ_UNLOCK, FUZZ_UNLOCK, FUZZ_LOCK, 0, FUZZ_CLOSE);
    SEED(layout, OPEN, FUZZ_ATTACH, 0, FUZZ_CHARGE, 0, 0, V1, 0, FUZZ_DETACH, 0, FUZZ_ATTACH, 0,
         FUZZ_DETACH, 0, FUZZ_DETACH, 0, FUZZ_ATTACH, 0, FUZZ_CLOSE);
    /* To the last byte of a limit; into a file that has become another; after a death in a seqlock;
     * where nothing can be judged. */
    SEED(layout, OPEN, COUNT(V0), FUZZ_ATTACH, 0, FUZZ_POKE, FUZZ_LIMIT, 0, 0, 0, V100, FUZZ_CHARGE,
         0, 0, V99, 0, FUZZ_CHARGE, 0, 1, V2, 0, FUZZ_CHARGE, 0, 2, V1, 0, FUZZ_CHARGE, 0, 0, V1,
         0);
    SEED(layout, OPEN, FUZZ_ATTACH, 0, FUZZ_POKE, FUZZ_MAGIC, 0, 0, 0, V0, COUNT(V0), FUZZ_CHARGE,
         0, 0, V1, 0, FUZZ_REAP, 0, 0, FUZZ_REPAIR, 0, 0, FUZZ_LOCK, 0);
    SEED(layout, OPEN, LIVES(3, V102), FUZZ_POKE, FUZZ_SLOT_SEQLOCK, 0, 1, 0, V3, FUZZ_REAP, 0, 0);
    SEED(layout, OPEN, FUZZ_PROC, FUZZ_PROC_HIDES, SEM(V0), OWNER(V50), FUZZ_RECOVER, 20, FUZZ_REAP,
         0, 0, FUZZ_ATTACH, 0);
    /* A version to come, under a handle and before one is opened. */
    SEED(layout, OPEN, FUZZ_ATTACH, 0, FUZZ_POKE, FUZZ_MINOR_VERSION, 0, 0, 0, V3, FUZZ_SNAPSHOT,
         0xff, 0xff, 0, FUZZ_CHARGE, 0, 0, V1, 0, FUZZ_DETACH, 0, FUZZ_OPEN, 0, 5, FUZZ_READ_SET,
         0xff, 3, 6, FUZZ_LOCK_STATE, FUZZ_LOCK, 0, FUZZ_ATTACH, 0, FUZZ_REAP, 0, 0);
    SEED(layout, FUZZ_POKE, FUZZ_MINOR_VERSION, 0, 0, 0, V4, FUZZ_RESIZE, 9, 127, FUZZ_IDENTIFY, 5,
         FUZZ_OPEN, 0, 4, FUZZ_GET, 2, 1, FUZZ_POKE, FUZZ_MINOR_VERSION, 0, 0, 0, V2, FUZZ_SNAPSHOT,
         0xff, 0xff, 0);
    SEED(layout, FUZZ_POKE, FUZZ_MINOR_VERSION, 0, 0, 0, V3, FUZZ_POKE, FUZZ_SLOT_STATUS, 0, 1, 0,
         V50, FUZZ_OPEN, 0, 5, FUZZ_POKE, FUZZ_SLOT_STATUS, 0, 1, 0, V2, FUZZ_OPEN, 0, 5);
    /* The limiter. */
    SEED(layout, OPEN, FUZZ_POKE, FUZZ_SM_LIMIT, 0, 0, 0, V50, FUZZ_LIMITER, V100, 10, 50, 0, 1,
         FUZZ_TICK, 20, FUZZ_ACQUIRE, V16M, 0, FUZZ_ACQUIRE, V1, 20, FUZZ_TICK, 90, FUZZ_TICK, 0,
         FUZZ_CLOSE, FUZZ_TICK, 50);
    SEED(layout, FUZZ_LIMITER, V100, 10, 30, 0, 0, FUZZ_TICK, 20, FUZZ_ACQUIRE, V16M, 0, FUZZ_TICK,
         100, FUZZ_TICK, 101, FUZZ_TICK, 0, FUZZ_ACQUIRE, V1, 255);
}

static void seed_found(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[2 * FUZZ_MAX_BYTES + 2];
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned char bytes[FUZZ_MAX_BYTES];
        unsigned value;
        size_t count = 0;
        while (count < sizeof bytes && sscanf(line + 2 * count, "%2x", &value) == 1)
            bytes[count++] = (unsigned char)value;
        seed(bytes, count);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    directory = argv[1];
    seed_found(argv[2]);
    for (unsigned char layout = 0; layout < FUZZ_RAW; layout++) {
        SEED(layout);
        SEED(layout, FUZZ_POKE, FUZZ_PROC_NUM, 0, 0, 0, 14, FUZZ_SNAPSHOT, 0xff, 0xff, 0);
        SEED(layout, FUZZ_OPEN, 0, 5, FUZZ_POKE, FUZZ_PROC_NUM, 0, 0, 0, 13, FUZZ_SNAPSHOT, 0xff,
             0xff, 0, FUZZ_GET, 2, 1);
        SEED(layout, FUZZ_OPEN, 1, 5, FUZZ_POKE, FUZZ_DEVICE_NUM, 0, 0, 0, 0, FUZZ_EDIT, 0, 128 + 4,
             HR_MEMORY, 255, 0, 0, 22, 0, HR_SM, 255, 0, 0, 6, 0, HR_PRIORITY, 0, HR_EXPECT, 0, 0,
             1, HR_SWITCH, 0, 0, 0, 1, 0, FUZZ_SNAPSHOT, 64, 0, 0);
        SEED(layout, FUZZ_OPEN, 1, 5, FUZZ_RESIZE, 1, 0, FUZZ_SNAPSHOT, 0xff, 0xff, 0, FUZZ_EDIT, 0,
             1, HR_PRIORITY, 0, 0, 0, 1, 0, FUZZ_RESIZE, 6, 0, FUZZ_IS_STALE);
        SEED(layout, FUZZ_POKE, FUZZ_SLOT_SEQLOCK, 0, 0, 1, 1, FUZZ_OPEN, 0, 5, FUZZ_SNAPSHOT, 0xff,
             0xff, 0, FUZZ_SNAPSHOT, 0xff, 0xff, 0, FUZZ_READ_SET, 0xff, 3, 6);
        SEED(layout, FUZZ_POKE, FUZZ_SEM, 0, 0, 0, 0, FUZZ_OPEN, 0, 5, FUZZ_SNAPSHOT, 9, 0, 0,
             FUZZ_READ_SET, 16, 16, 64, FUZZ_CLOSE);
        SEED(layout, FUZZ_OPEN, 1, 5, FUZZ_EDIT, 0, 1, HR_MEMORY, 0, HR_EXPECT, 0, 20, 22,
             FUZZ_EDIT, 0, 2, HR_MEMORY, 0, HR_PERCENT, 1, 6, 0, HR_SM, 1, HR_EXPECT, 2, 6, 8,
             FUZZ_EDIT, HR_FORCE, 1, HR_MEMORY, 9, 0, 0, 1, 0, FUZZ_EDIT, HR_DRY_RUN, 1, HR_SM, 0,
             0, 3, 1, 0);
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
    for (unsigned char layout = 0; layout < FUZZ_RAW; layout++)
        seed_writers(layout);
    SEED(FUZZ_RAW);
    SEED(FUZZ_RAW, 0x4e, 0xf8, 0x2f, 0x01, 1, 0, 0, 0, 2, 0, 0, 0);
    SEED(FUZZ_RAW, 0, 0, 0);
    return 0;
}
