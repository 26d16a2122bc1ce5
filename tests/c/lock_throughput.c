#define _GNU_SOURCE
#include "call_error.h"
#include "lock_throughput.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "check.h"
#include "glibc_lock.h"
#include "region.h"
#include "region_file.h"

#define ONE_SECOND UINT64_C(1000000000)
enum { REPEATS = 5, MANY = 4 };

typedef uint64_t run_turns(const struct region_file *file, uint64_t until_ns);

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * ONE_SECOND + (uint64_t)now.tv_nsec;
}

static uint64_t run_ours(const struct region_file *file, uint64_t until_ns)
{
    hr_region *region;
    NEED(hr_open(file->path, HR_WRITE, HR_LAYOUTS, 0, &region, &call_error) ==
         (int)file->layout->id);
    uint64_t turns = 0;
    for (; now_ns() < until_ns; turns++) {
        NEED(hr_lock(region, 10 * ONE_SECOND, &call_error) == HR_OK);
        NEED(hr_unlock(region, &call_error) == HR_OK);
    }
    hr_free(&region);
    return turns;
}

static uint64_t run_glibc(const struct region_file *file, uint64_t until_ns)
{
    struct glibc_lock lock =
        glibc_lock_in(file->bytes, file->layout->sem, file->layout->owner_pid, false);
    uint64_t turns = 0;
    for (; now_ns() < until_ns; turns++) {
        NEED(glibc_lock_take(&lock, 10) == 0);
        glibc_lock_drop(&lock);
    }
    return turns;
}

/* Turns a second of all processes together. */
static double measure(run_turns *run, uint32_t processes, double seconds)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    struct glibc_lock lock =
        glibc_lock_in(file.bytes, file.layout->sem, file.layout->owner_pid, false);
    NEED(glibc_lock_init(&lock) == 0);
    _Atomic uint64_t *turns =
        mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(turns != MAP_FAILED);
    uint64_t until_ns = now_ns() + (uint64_t)(seconds * 1e9);
    for (uint32_t i = 0; i < processes; i++) {
        pid_t pid = fork();
        NEED(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            atomic_fetch_add(turns, run(&file, until_ns));
            _exit(0);
        }
    }
    int status;
    while (waitpid(-1, &status, 0) > 0)
        CHECK_EQ(status, 0);
    CHECK_EQ(peek64(&file, file.layout->sem), 1);
    double a_second = (double)atomic_load(turns) / seconds;
    munmap((void *)turns, sizeof *turns);
    region_file_remove(&file);
    return a_second;
}

static int compare(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return first < second ? -1 : first > second;
}

/* Medians of turns taken in alternation: what disturbs one disturbs the other. */
static void compare_both(uint32_t processes, double seconds, double *ours, double *glibc)
{
    double of_ours[REPEATS], of_glibc[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        of_ours[i] = measure(run_ours, processes, seconds);
        of_glibc[i] = measure(run_glibc, processes, seconds);
    }
    qsort(of_ours, REPEATS, sizeof of_ours[0], compare);
    qsort(of_glibc, REPEATS, sizeof of_glibc[0], compare);
    *ours = of_ours[REPEATS / 2];
    *glibc = of_glibc[REPEATS / 2];
}

void report_throughput(double seconds, bool json)
{
    double ours, glibc, ours_of_many, glibc_of_many;
    compare_both(1, seconds, &ours, &glibc);
    compare_both(MANY, seconds, &ours_of_many, &glibc_of_many);
    if (json)
        printf("{\"ours\": %.0f, \"glibc\": %.0f, \"processes\": %d, \"ours_contended\": %.0f, "
               "\"glibc_contended\": %.0f}",
               ours, glibc, MANY, ours_of_many, glibc_of_many);
    else
        printf("lock and unlock, a second: %9.0f ours, %9.0f glibc's (%.2f us, %.2f us)\n"
               "     %d processes together: %9.0f ours, %9.0f glibc's\n",
               ours, glibc, 1e6 / ours, 1e6 / glibc, MANY, ours_of_many, glibc_of_many);
}
