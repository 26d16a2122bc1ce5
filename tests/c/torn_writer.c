/*
 * A process that writes into a region by libvgpu's protocols, for tests of what
 * readers see meanwhile:
 *
 *     torn_writer FILE LAYOUT write [PAUSE]
 *         one slot of its own; stores an ever greater number in all of its figures
 *     torn_writer FILE LAYOUT move INDEX [PAUSE]
 *         six made-up processes, two of which stay; the others go and come, and
 *         the last slot is copied over the hole
 *     torn_writer FILE LAYOUT still
 *         one slot of its own, left alone
 *     torn_writer FILE LAYOUT odd
 *         one slot of its own, half written inside its seqlock
 *     torn_writer FILE LAYOUT hold
 *         one slot of its own, half written under the region's semaphore
 *
 * It prints "ready" and the pids that stay, and runs until SIGTERM or its parent's
 * end.  PAUSE is the longest pause between two writes, in turns of an empty loop.
 *
 * The semaphore is taken by glibc's own functions, as the containers do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "region.h"
#include "torn_protocol.h"

enum { FIGURES = 9, STAYING = 2, COMING = 4, DEFAULT_PAUSE = 4000 };

static const struct hr_layout *layout;
static unsigned char *base;
static unsigned long longest_pause = DEFAULT_PAUSE;
static volatile sig_atomic_t stopping;

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

static void die(const char *what)
{
    perror(what);
    exit(2);
}

/* ---- Fields ----------------------------------------------------------------- */

/* Relaxed: plain stores in libvgpu, but the compiler must neither merge nor tear them. */
static void store_u64(unsigned char *at, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)at, value, memory_order_relaxed);
}

static void store_i32(unsigned char *at, int32_t value)
{
    atomic_store_explicit((_Atomic int32_t *)(void *)at, value, memory_order_relaxed);
}

static int32_t load_i32(const unsigned char *at)
{
    return atomic_load_explicit((const _Atomic int32_t *)(const void *)at, memory_order_relaxed);
}

static unsigned char *slot_of(int32_t index)
{
    return base + layout->procs + (size_t)index * layout->slot_stride;
}

static void store_figure(unsigned char *slot, uint32_t device, uint32_t figure, uint64_t number)
{
    /* The last of the five is the total of the first three. */
    if (figure < 5)
        store_u64(slot + layout->slot_used + device * layout->slot_used_stride + figure * 8,
                  figure == 4 ? 3 * number : number);
    else if (figure == 5)
        store_u64(slot + layout->slot_monitorused + device * 8, number);
    else if (layout->slot_util != HR_ABSENT)
        store_u64(slot + layout->slot_util + device * layout->slot_util_stride + (figure - 6) * 8,
                  number);
}

static void store_devices(unsigned char *slot, uint32_t from, uint32_t to, uint64_t number)
{
    for (uint32_t device = from; device < to; device++)
        for (uint32_t figure = 0; figure < FIGURES; figure++)
            store_figure(slot, device, figure, number);
}

/* ---- The semaphore ------------------------------------------------------------ */

static void take(void)
{
    struct timespec deadline;
    do {
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += 10;
    } while (sem_timedwait((sem_t *)(void *)(base + layout->sem), &deadline) != 0 &&
             (errno == EINTR || errno == ETIMEDOUT));
    store_u64(base + layout->owner_pid, (uint64_t)getpid());
}

static void give(void)
{
    store_u64(base + layout->owner_pid, 0);
    if (sem_post((sem_t *)(void *)(base + layout->sem)) != 0)
        die("sem_post");
}

/* ---- Slots, under the semaphore ------------------------------------------------ */

static int32_t proc_num(void)
{
    return load_i32(base + layout->proc_num);
}

static unsigned char *append(int32_t pid, uint64_t number)
{
    const int32_t index = proc_num();
    if (index >= HR_SLOTS) {
        fprintf(stderr, "the table is full\n");
        exit(2);
    }
    unsigned char *slot = slot_of(index);
    /* The same in every slot: the seqlock shall not tell a moved slot from its predecessor. */
    if (layout->slot_seqlock != HR_ABSENT)
        store_u64(slot + layout->slot_seqlock, 0);
    store_devices(slot, 0, HR_DEVICES, number);
    store_i32(slot + layout->slot_status, 1);
    store_i32(slot + layout->slot_hostpid, pid);
    store_i32(slot + layout->slot_pid, pid);
    atomic_store_explicit((_Atomic int32_t *)(void *)(base + layout->proc_num), index + 1,
                          memory_order_release);
    return slot;
}

static int32_t find(int32_t pid)
{
    const int32_t count = proc_num();
    for (int32_t index = 0; index < count; index++)
        if (load_i32(slot_of(index) + layout->slot_pid) == pid)
            return index;
    fprintf(stderr, "slot of %d is gone\n", pid);
    exit(2);
}

static void remove_by_moving(int32_t pid)
{
    const int32_t hole = find(pid), last = proc_num() - 1;
    if (hole != last)
        memcpy(slot_of(hole), slot_of(last), layout->slot_stride);
    store_i32(base + layout->proc_num, last);
}

/* ---- Modes ---------------------------------------------------------------------- */

static uint32_t random_below(uint32_t bound)
{
    static uint64_t state;
    if (state == 0)
        state = (uint64_t)getpid() * 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 32) * bound >> 32);
}

static void nap(void)
{
    if (longest_pause == 0)
        return;
    for (uint32_t turns = random_below((uint32_t)longest_pause); turns > 0; turns--)
        __asm__ volatile("" ::: "memory");
}

static unsigned char *attach(void)
{
    take();
    unsigned char *slot = append(getpid(), 1);
    give();
    return slot;
}

static void say_ready(int32_t first, int32_t count)
{
    printf("ready");
    for (int32_t pid = first; pid < first + count; pid++)
        printf(" %d", pid);
    printf("\n");
    fflush(stdout);
}

static void enter(_Atomic uint64_t *seqlock)
{
    atomic_fetch_add(seqlock, 1);
    /* The stores that follow stay behind the odd value. */
    atomic_thread_fence(memory_order_release);
}

static void leave(_Atomic uint64_t *seqlock)
{
    atomic_fetch_add_explicit(seqlock, 1, memory_order_release);
}

static void write_for_ever(void)
{
    unsigned char *slot = attach();
    say_ready(getpid(), 1);
    for (uint64_t number = 2; !stopping; number++) {
        if (layout->slot_seqlock == HR_ABSENT) {
            /* Others may have moved it: these generations look for it each time. */
            take();
            store_devices(slot_of(find(getpid())), 0, HR_DEVICES, number);
            give();
        } else {
            _Atomic uint64_t *seqlock = (void *)(slot + layout->slot_seqlock);
            enter(seqlock);
            store_devices(slot, 0, HR_DEVICES, number);
            leave(seqlock);
        }
        nap();
    }
}

static void move_for_ever(int32_t mover)
{
    const int32_t first = MADE_UP_PIDS + mover * PIDS_PER_MOVER;
    int32_t coming[COMING], next = first;
    take();
    for (int32_t i = 0; i < STAYING; i++, next++)
        append(next, number_of_pid(next));
    for (int32_t i = 0; i < COMING; i++, next++) {
        coming[i] = next;
        append(next, number_of_pid(next));
    }
    give();
    say_ready(first, STAYING);

    while (!stopping) {
        /* Some go in one hold, some in several; then as many come. */
        const uint32_t going = 1 + random_below(COMING);
        const bool at_once = random_below(2) == 0;
        for (uint32_t i = 0; i < going; i++) {
            if (i == 0 || !at_once)
                take();
            remove_by_moving(coming[i]);
            if (i + 1 == going || !at_once) {
                give();
                nap();
            }
        }
        for (uint32_t i = 0; i < going; i++) {
            take();
            coming[i] = next;
            append(next, number_of_pid(next));
            give();
            nap();
            if (++next == first + PIDS_PER_MOVER)
                next = first + STAYING + COMING;
        }
        /* The next ones to go are others. */
        const int32_t swapped = coming[0];
        const uint32_t with = random_below(COMING);
        coming[0] = coming[with];
        coming[with] = swapped;
    }
}

static void sleep_for_ever(const char *mode)
{
    unsigned char *slot = attach();
    if (strcmp(mode, "odd") == 0) {
        if (layout->slot_seqlock == HR_ABSENT) {
            fprintf(stderr, "layout %s has no seqlock\n", layout->name);
            exit(2);
        }
        enter((void *)(slot + layout->slot_seqlock));
        store_devices(slot, 0, HR_DEVICES / 2, 2);
    } else if (strcmp(mode, "hold") == 0) {
        take();
        store_devices(slot, 0, HR_DEVICES / 2, 2);
    }
    say_ready(getpid(), 1);
    signal(SIGTERM, SIG_DFL);
    for (;;)
        pause();
}

static void map(const char *path, const char *name)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++)
        if (strcmp(hr_layouts[id].name, name) == 0)
            layout = &hr_layouts[id];
    if (layout == NULL) {
        fprintf(stderr, "no layout \"%s\"\n", name);
        exit(2);
    }
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        die(path);
    base = mmap(NULL, layout->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        die("mmap");
    close(fd);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 3 ? argv[3] : "";
    const bool moves = strcmp(mode, "move") == 0;
    const bool sleeps =
        strcmp(mode, "still") == 0 || strcmp(mode, "odd") == 0 || strcmp(mode, "hold") == 0;
    if ((!moves && !sleeps && strcmp(mode, "write") != 0) || (moves && argc < 5)) {
        fprintf(stderr, "usage: %s FILE LAYOUT write|move INDEX|still|odd|hold [PAUSE]\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sigaction action = {.sa_handler = stop};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    map(argv[1], argv[2]);
    if (argc > (moves ? 5 : 4))
        longest_pause = strtoul(argv[moves ? 5 : 4], NULL, 10);

    if (sleeps)
        sleep_for_ever(mode);
    else if (moves)
        move_for_ever((int32_t)(strtoul(argv[4], NULL, 10) % MOVERS));
    else
        write_for_ever();
    return 0;
}
