/*
 * Real processes for regions: for each file, so many children that map it as its users do and wait.
 * Prints "FILE_NUMBER PID" for each once it has mapped the file, then an empty line, and ends with
 * all its children when its standard input does.
 *
 *   mapping_processes CHILDREN_PER_FILE LIST [busy]
 *
 * Busy ones have as many mappings as CUDA programs, and touch a new page ten times a second.
 *
 * LIST is a file with a path per line: command lines are what observers keep of a process, and are
 * short in real life.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

#define MAPPINGS 620

/* As many mappings as a CUDA program has, of which the kernel merges none. */
static char *map_much(size_t page)
{
    char *all =
        mmap(NULL, MAPPINGS * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        fail("mmap");
    for (size_t i = 1; i < MAPPINGS; i += 2)
        if (mprotect(all + i * page, page, PROT_READ) != 0)
            fail("mprotect");
    return all;
}

static void work(char *page, size_t size)
{
    for (;;) {
        usleep(100000);
        madvise(page, size, MADV_DONTNEED);
        *(volatile char *)page = 1;
    }
}

static void be_a_process_of(const char *path, int tell, int is_busy)
{
    struct stat status;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        fail("prctl");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0)
        fail(path);
    void *base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        fail("mmap");
    close(fd);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *own = is_busy ? map_much(page) : NULL;
    if (write(tell, "", 1) != 1)
        fail("write");
    close(tell);
    if (is_busy)
        work(own, page);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    int children = argc >= 3 ? atoi(argv[1]) : 0, pipe_ends[2], number = 0;
    FILE *list = children > 0 ? fopen(argv[2], "re") : NULL;
    char *path = NULL, byte;
    size_t room = 0;
    if (list == NULL || pipe2(pipe_ends, O_CLOEXEC) != 0)
        return 2;
    for (; getline(&path, &room, list) > 0; number++) {
        path[strcspn(path, "\n")] = '\0';
        for (int child = 0; child < children; child++) {
            pid_t pid = fork();
            if (pid < 0)
                fail("fork");
            if (pid == 0)
                be_a_process_of(path, pipe_ends[1], argc > 3);
            if (read(pipe_ends[0], &byte, 1) != 1)
                fail("read");
            printf("%d %d\n", number, (int)pid);
        }
    }
    printf("\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    return 0;
}
