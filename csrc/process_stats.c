#define _GNU_SOURCE
#include "process_stats.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As proc(5) counts the fields of stat. */
enum { NAME = 2, START_TIME = 22 };

uint64_t hr_read_start_time(int proc, uint32_t pid)
{
    char name[sizeof "4294967295/stat"], text[4096];
    snprintf(name, sizeof name, "%" PRIu32 "/stat", pid);
    int fd = openat(proc, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    /* The name in parentheses may hold anything, parentheses and newlines too. */
    const char *at = memrchr(text, ')', (size_t)length);
    for (int field = NAME; field < START_TIME && at != NULL; field++) {
        at = strchr(at, ' ');
        if (at != NULL)
            at++;
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}
