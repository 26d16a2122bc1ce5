/*
 * How long this library holds a region's lock while its table is full of dead processes: prints the
 * nanoseconds of each hold, one a line.
 *
 *   lock_holds FILE edit|attach|reap|recover ROUNDS
 *
 * Compiled with the core, and with lock_clock.h before each file of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

enum { SLOTS = 1000, FIRST_PID = 4190000, TOTAL_AT = 32 };
#define NOBODYS_NUMBER (HR_FOREIGN_OWNER + HR_TURNS)
#define PATIENCE_NS UINT64_C(1000000000)

static uint64_t taken_ns;
static struct hr_error error;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void lock_is_taken(void)
{
    taken_ns = now_ns();
}

void lock_is_given_back(void)
{
    printf("%llu\n", (unsigned long long)(now_ns() - taken_ns));
}

static void need(int code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

static void fill(hr_region *region)
{
    const struct hr_layout *layout = region->layout;
    for (uint32_t i = 0; i < SLOTS; i++) {
        unsigned char *slot = hr_slot(region, i);
        hr_store_i32(slot + layout->slot_pid, FIRST_PID + (int32_t)i, memory_order_relaxed);
        hr_store_i32(slot + layout->slot_status, 1, memory_order_relaxed);
        hr_store_u64(slot + layout->slot_used + TOTAL_AT, 1 << 20, memory_order_relaxed);
    }
    hr_store_i32(region->base + layout->proc_num, SLOTS, memory_order_release);
}

static void edit(hr_region *region)
{
    struct hr_slot_edit one = {.value = HR_SLOT_SM, .to = 50};
    const int32_t pid = FIRST_PID + SLOTS / 2;
    need(hr_edit_slot(region, pid, &one, 1, 0, PATIENCE_NS, &error), "edit");
}

static void attach(hr_region *region)
{
    need(hr_attach(region, PATIENCE_NS, &error), "attach");
    need(hr_detach(region, 0, PATIENCE_NS, &error), "detach");
}

static void reap(hr_region *region)
{
    static struct hr_slot_result out[HR_SLOTS];
    fill(region);
    need(hr_reap(region, NULL, NULL, 0, 0, PATIENCE_NS, out, &error), "reap");
}

static void recover(hr_region *region)
{
    struct hr_recovery progress = {.done = 0};
    unsigned char *sem = region->base + region->layout->sem;
    hr_store_u64(sem, 0, memory_order_relaxed);
    hr_store_u64(region->base + region->layout->owner_pid, NOBODYS_NUMBER, memory_order_release);
    need(hr_recover_lock(region, NULL, 0, &progress, &error), "recover");
}

int main(int count, char **arguments)
{
    const struct {
        const char *name;
        void (*run)(hr_region *);
    } work[] = {{"edit", edit}, {"attach", attach}, {"reap", reap}, {"recover", recover}};
    hr_region *region;
    if (count != 4)
        return 2;
    need(hr_open(arguments[1], HR_WRITE, HR_LAYOUTS, 0, &region, &error), "open");
    fill(region);
    for (size_t i = 0; i < sizeof work / sizeof *work; i++) {
        for (int round = atoi(arguments[3]); strcmp(arguments[2], work[i].name) == 0 && round > 0;
             round--)
            work[i].run(region);
    }
    return 0;
}
