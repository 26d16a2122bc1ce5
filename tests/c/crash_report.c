#include "crash_report.h"

#include <stdio.h>
#include <stdlib.h>

const char *const row_names[ROWS] = {
#define CRASH_NAME(name) #name,
    HR_TESTPOINT_NAMES(CRASH_NAME)
#undef CRASH_NAME
        [AT_RANDOM] = "at random moments",
};

static struct row {
    uint32_t kills, passed, failed;
    uint64_t ns[MOST_ROUNDS]; /* from death to a free lock, of the rounds that passed */
} rows[ROWS];

void count_kill(int row)
{
    rows[row].kills++;
}

bool count_round(int row, bool passed, uint64_t took_ns)
{
    if (passed)
        rows[row].ns[rows[row].passed++] = took_ns;
    else
        rows[row].failed++;
    return rows[row].passed < MOST_ROUNDS;
}

static int compare(const void *a, const void *b)
{
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return first < second ? -1 : first > second;
}

static double ms_at(const struct row *row, double share)
{
    if (row->passed == 0)
        return 0;
    return (double)row->ns[(uint32_t)((row->passed - 1) * share)] / 1e6;
}

static void report_table(void)
{
    printf("%-24s %6s %7s  %s\n%-24s %6s %7s %9s %9s\n", "killed", "", "", "ms to a free lock", "",
           "kills", "failed", "median", "worst");
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].kills + rows[i].failed > 0)
            printf("%-24s %6u %7u %9.1f %9.1f\n", row_names[i], rows[i].kills, rows[i].failed,
                   ms_at(&rows[i], 0.5), ms_at(&rows[i], 1));
    }
}

static void report_json(void)
{
    for (int i = 0; i < ROWS; i++)
        printf("%s{\"name\": \"%s\", \"kills\": %u, \"failed\": %u, \"median_ms\": %.3f, "
               "\"worst_ms\": %.3f}",
               i == 0 ? "" : ", ", row_names[i], rows[i].kills, rows[i].failed,
               ms_at(&rows[i], 0.5), ms_at(&rows[i], 1));
}

uint32_t report_rows(bool json, uint64_t seed)
{
    uint32_t kills = 0, passed = 0, failed = 0;
    for (int i = 0; i < ROWS; i++) {
        qsort(rows[i].ns, rows[i].passed, sizeof rows[i].ns[0], compare);
        kills += rows[i].kills;
        passed += rows[i].passed;
        failed += rows[i].failed;
    }
    if (json) {
        printf("{\"seed\": %llu, \"points\": [", (unsigned long long)seed);
        report_json();
        printf("], \"kills\": %u, \"passed\": %u, \"failed\": %u}\n", kills, passed, failed);
    } else {
        report_table();
        printf("%u processes killed, seed %llu\n%u passed, %u failed\n", kills,
               (unsigned long long)seed, passed, failed);
    }
    return failed;
}
