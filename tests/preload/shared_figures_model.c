/*
 * What the processes of a region tell each other of a device, through a file that each of them maps
 * for itself: `shared_figures_model`.  It ends the program if something is wrong.
 *
 * The file is in memory: of one on a disk the system empties the last page's rest as it writes it.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/internal.h"
#include "../../csrc/region.h"
#include "../../csrc/preload/shared_figures.h"

#include "must.h"

#define MS UINT64_C(1000000)
#define NS_A_SECOND UINT64_C(1000000000)

static uint64_t now_ns = 5000 * MS;

uint64_t hr_clock_ns(int clock)
{
    MUST(clock == CLOCK_MONOTONIC);
    return now_ns;
}

/* ---- The region ----------------------------------------------------------------------- */

uint32_t hr_fork_generation;
static struct hr_layout layout;
static struct hr_region region;
static bool is_cut;

int hr_fail_code(int code)
{
    return code;
}

/* What is touched lies in the page of the structure's last byte, behind what a user of another
 * layout takes for the structure, and behind the mark of soft limits. */
int hr_guard_run(const void *base, size_t bytes, hr_guarded_work *work, void *argument)
{
    MUST(base == region.base && bytes > layout.size + 44);
    MUST((bytes - 1) / 4096 == (layout.size - 1) / 4096);
    return is_cut ? HR_ESTALE : work(argument);
}

static int file;

static void map(uint32_t size)
{
    file = memfd_create("region", 0);
    layout.size = size;
    /* As HAMi's processes make it. */
    MUST(file >= 0 && pwrite(file, "", 1, size) == 1);
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(base != MAP_FAILED);
    region = (struct hr_region){.layout = &layout, .base = base, .writable = true};
}

/* Another mapping of the same file. */
static void map_again(void)
{
    void *base = mmap(NULL, layout.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(base != MAP_FAILED && base != region.base);
    region.base = base;
}

static void unmap(void)
{
    munmap(region.base, layout.size);
    close(file);
}

static void tell(int row, enum hr_figure figure, uint32_t value)
{
    hr_share_figure(&region, row, figure, value);
}

static bool finds(int row, enum hr_figure figure, uint64_t oldest_ns, uint32_t value)
{
    uint32_t found;
    return hr_find_figure(&region, row, figure, oldest_ns, &found) && found == value;
}

static bool finds_any(int row, enum hr_figure figure)
{
    uint32_t found;
    return hr_find_figure(&region, row, figure, 1000 * NS_A_SECOND, &found);
}

/* ---- Checks --------------------------------------------------------------------------- */

static void check_other_processes(void)
{
    static const uint32_t sizes[] = {804680, 1197896, 2008952, 2008984};
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        char *held = calloc(1, sizes[at] + 1);
        int status;
        map(sizes[at]);
        for (int row = 0; row < HR_DEVICES; row++) {
            MUST(!finds_any(row, HR_FIGURE_DEVICE) && !finds_any(row, HR_FIGURE_BESIDE));
            tell(row, HR_FIGURE_DEVICE, (uint32_t)row + 1);
            tell(row, HR_FIGURE_BESIDE, 0xffffff - (uint32_t)row);
            MUST(hr_claim_figure(&region, row, HR_FIGURE_DEVICE, NS_A_SECOND));
        }
        pid_t child = fork();
        if (child == 0) {
            map_again();
            for (int row = 0; row < HR_DEVICES; row++) {
                MUST(finds(row, HR_FIGURE_DEVICE, MS, (uint32_t)row + 1));
                MUST(finds(row, HR_FIGURE_BESIDE, MS, 0xffffff - (uint32_t)row));
                MUST(!hr_claim_figure(&region, row, HR_FIGURE_DEVICE, NS_A_SECOND));
                MUST(hr_claim_figure(&region, row, HR_FIGURE_BESIDE, NS_A_SECOND));
            }
            _exit(0);
        }
        MUST(waitpid(child, &status, 0) == child && status == 0);
        MUST(!hr_claim_figure(&region, 0, HR_FIGURE_BESIDE, NS_A_SECOND));
        /* The file is as it was, and so is what lies just behind it. */
        for (uint32_t byte = 1; byte < 48; byte++)
            MUST(region.base[layout.size + byte] == 0);
        MUST(lseek(file, 0, SEEK_END) == (off_t)sizes[at] + 1);
        MUST(pread(file, held, sizes[at] + 1, 0) == (ssize_t)sizes[at] + 1);
        for (uint32_t byte = 0; byte <= sizes[at]; byte++)
            MUST(held[byte] == 0);
        free(held);
        unmap();
    }
}

static void check_ages(void)
{
    map(2008952);
    tell(3, HR_FIGURE_DEVICE, 42);
    MUST(finds(3, HR_FIGURE_DEVICE, MS, 42));
    now_ns += 20 * MS - 1;
    MUST(finds(3, HR_FIGURE_DEVICE, 20 * MS, 42));
    now_ns += 1;
    MUST(!finds(3, HR_FIGURE_DEVICE, 20 * MS, 42) && finds(3, HR_FIGURE_DEVICE, 21 * MS, 42));
    /* It was told by one that has looked at the clock after this one. */
    now_ns -= 400 * MS;
    MUST(finds(3, HR_FIGURE_DEVICE, MS, 42));
    /* Further ahead it is not believed: somebody has made it up. */
    now_ns -= 200 * MS;
    MUST(!finds_any(3, HR_FIGURE_DEVICE));
    /* The milliseconds begin anew. */
    now_ns = ((uint64_t)UINT32_MAX - 5) * MS;
    tell(3, HR_FIGURE_DEVICE, 43);
    now_ns += 10 * MS;
    MUST(finds(3, HR_FIGURE_DEVICE, 11 * MS, 43) && !finds(3, HR_FIGURE_DEVICE, 10 * MS, 43));
    /* The system has emptied the page's rest. */
    memset(region.base + layout.size, 0, 1024);
    now_ns = 3 * MS;
    MUST(!finds_any(3, HR_FIGURE_DEVICE));
    MUST(hr_claim_figure(&region, 3, HR_FIGURE_DEVICE, NS_A_SECOND));
    unmap();
}

static void check_claims(void)
{
    map(2008952);
    for (int round = 0; round < 10; round++) {
        MUST(hr_claim_figure(&region, 15, HR_FIGURE_BESIDE, 200 * MS));
        MUST(!hr_claim_figure(&region, 15, HR_FIGURE_BESIDE, 200 * MS));
        now_ns += 200 * MS - 1;
        MUST(!hr_claim_figure(&region, 15, HR_FIGURE_BESIDE, 200 * MS));
        now_ns += 1;
    }
    /* One of many that ask at once. */
    enum { MANY = 8, ROUNDS = 50, PATIENCE_S = 300 };
    struct {
        _Atomic int ready;
        _Atomic int claims;
    } *seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(seen != MAP_FAILED);
    for (int child = 0; child < MANY; child++) {
        if (fork() != 0)
            continue;
        alarm(PATIENCE_S); /* for the others, where one of them has ended */
        map_again();
        seen->ready++;
        for (int round = 0; round < ROUNDS; round++) {
            now_ns += NS_A_SECOND;
            while (seen->ready < MANY * (round + 1))
                sched_yield();
            seen->claims += hr_claim_figure(&region, 0, HR_FIGURE_DEVICE, NS_A_SECOND);
            seen->ready++;
        }
        _exit(0);
    }
    for (int child = 0; child < MANY; child++) {
        int status;
        MUST(wait(&status) > 0 && status == 0);
    }
    MUST(seen->claims == ROUNDS);
    unmap();
}

static void check_no_region(void)
{
    map(2008952);
    tell(0, HR_FIGURE_DEVICE, 5);
    region.writable = false;
    MUST(!finds_any(0, HR_FIGURE_DEVICE));
    MUST(!hr_claim_figure(&region, 0, HR_FIGURE_DEVICE, MS));
    region.writable = true;
    is_cut = true;
    tell(0, HR_FIGURE_DEVICE, 6);
    MUST(!finds_any(0, HR_FIGURE_DEVICE));
    MUST(!hr_claim_figure(&region, 0, HR_FIGURE_DEVICE, MS));
    is_cut = false;
    MUST(finds(0, HR_FIGURE_DEVICE, MS, 5));
    region.users = HR_CLOSING;
    MUST(!finds_any(0, HR_FIGURE_DEVICE) && region.users == HR_CLOSING);
    region.users = 0;
    region.fork_generation++;
    MUST(!finds_any(0, HR_FIGURE_DEVICE) && region.users == 0);
    unmap();
}

static void check_packing(void)
{
    uint32_t packed = hr_pack_beside(37, 166000);
    MUST(hr_beside_percent(packed) == 37 && hr_beside_sample_s(packed) == 0.166);
    packed = hr_pack_beside(100, 1 << 30);
    MUST(packed <= 0xffffff && hr_beside_percent(packed) == 100);
    MUST(hr_beside_sample_s(packed) == 4.095);
    MUST(hr_pack_beside(0, 0) == 0 && hr_beside_percent(0xffffff) == 100);
}

int main(void)
{
    check_other_processes();
    check_ages();
    check_claims();
    check_no_region();
    check_packing();
    return 0;
}
