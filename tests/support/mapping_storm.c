/*
 * A container that makes its own processes expensive to look at, and many.
 *
 *   mapping_storm CGROUP_PROCS HOW PROCESSES LIFETIME_MS MAPPINGS [FILE]
 *
 * Moves itself into a cgroup, then keeps so many processes alive, each of which ends after a while
 * and has another one in its place. HOW is "shared": they share one address space; or "forked". The
 * mappings are anonymous, or those of a file. Says "ready" once, and ends with its standard input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK = 16384 };

static long lifetime_ms;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void enter(const char *cgroup_procs)
{
    int fd = open(cgroup_procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1)
        fail(cgroup_procs);
    close(fd);
}

/* Neighbours differ in their rights, so that the kernel merges none. */
static void map_much(long mappings, const char *path)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (path != NULL && (fd < 0 || ftruncate(fd, mappings * (long)page) != 0))
        fail(path);
    char *all = mmap(NULL, (size_t)mappings * page, PROT_READ | PROT_WRITE,
                     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (all == MAP_FAILED)
        fail("mmap");
    for (long i = 1; i < mappings; i += 2)
        if (mprotect(all + (size_t)i * page, page, PROT_READ) != 0)
            fail("mprotect");
}

/* Shares its memory with all others, so it calls nothing that writes any. */
static int live(void *number)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* They end one after the other, not all at once. */
    long ms = lifetime_ms / 2 + (long)(intptr_t)number * 7 % lifetime_ms;
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&rest, NULL);
    _exit(0);
}

/* 0: not now; it is tried again. */
static pid_t start(long number, char *stack_end, int flags)
{
    pid_t pid = clone(live, stack_end, flags, (void *)(intptr_t)number);
    return pid < 0 ? 0 : pid;
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    int flags = SIGCHLD | (strcmp(argv[2], "shared") == 0 ? CLONE_VM : 0);
    long processes = atol(argv[3]);
    lifetime_ms = atol(argv[4]);
    enter(argv[1]);
    map_much(atol(argv[5]), argc > 6 ? argv[6] : NULL);
    char *stacks = malloc((size_t)processes * STACK);
    pid_t *pids = calloc((size_t)processes, sizeof *pids);
    if (stacks == NULL || pids == NULL)
        fail("malloc");
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int said = 0;; said = 1) {
        for (pid_t ended; (ended = waitpid(-1, NULL, WNOHANG)) > 0;)
            for (long i = 0; i < processes; i++)
                if (pids[i] == ended)
                    pids[i] = 0;
        for (long i = 0; i < processes; i++)
            if (pids[i] == 0)
                pids[i] = start(i, stacks + (size_t)(i + 1) * STACK, flags);
        if (!said && write(STDOUT_FILENO, "ready\n", 6) != 6)
            fail("write");
        if (poll(&input, 1, 20) > 0)
            return 0;
    }
}
