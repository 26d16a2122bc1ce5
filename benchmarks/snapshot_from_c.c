/* One region read again and again from C: nanoseconds a call, the median and the least of all
 * rounds.  `snapshot_from_c FILE ROUNDS` */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "region.h"

enum { CALLS_PER_ROUND = 1000 };

static uint64_t buffer[8192];

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int take_snapshot(hr_region *region)
{
    return hr_snapshot(region, buffer, sizeof buffer, NULL);
}

static int read_live_value(hr_region *region)
{
    uint64_t used;
    return hr_get(region, HR_VALUE_MEMORY_USED, 0, &used, NULL);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(const char *name, int (*call)(hr_region *), hr_region *region, double *times,
                   int rounds)
{
    for (int round = 0; round < rounds; round++) {
        const double began = now_ns();
        for (int i = 0; i < CALLS_PER_ROUND; i++) {
            if (call(region) != HR_OK)
                return 1;
        }
        times[round] = (now_ns() - began) / CALLS_PER_ROUND;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_size);
    printf("%s %.1f %.1f\n", name, times[rounds / 2], times[0]);
    return 0;
}

int main(int argc, char **argv)
{
    hr_region *region;
    const int rounds = argc == 3 ? atoi(argv[2]) : 0;
    double *times = calloc(rounds > 0 ? (size_t)rounds : 1, sizeof *times);
    if (rounds <= 0 || times == NULL || hr_open(argv[1], HR_READ, HR_LAYOUTS, 0, &region, NULL) < 0)
        return 1;
    const int failed = measure("snapshot", take_snapshot, region, times, rounds) ||
                       measure("value", read_live_value, region, times, rounds);
    const struct hr_snapshot *head = (const struct hr_snapshot *)(const void *)buffer;
    printf("processes %d %u\n", head->proc_num, head->settled);
    uint64_t used = 0;
    hr_get(region, HR_VALUE_MEMORY_USED, 0, &used, NULL);
    printf("used %" PRIu64 "\n", used);
    hr_free(&region);
    free(times);
    return failed;
}
