#define _GNU_SOURCE
#include "process_stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As proc(5) counts the fields of stat. */
enum {
    FIRST_BEHIND_THE_NAME = 3,
    MINOR_FAULTS = 10,
    MAJOR_FAULTS = 12,
    START_TIME = 22,
    ADDRESS_SPACE = 23,
    STACK = 28,
    FIELDS = STACK + 1
};

static bool parse(const char *text, size_t length, struct hr_process_stat *out)
{
    uint64_t fields[FIELDS] = {0};
    /* The name in parentheses may hold anything, parentheses and newlines too. */
    const char *at = memrchr(text, ')', length);
    for (int field = FIRST_BEHIND_THE_NAME; field < FIELDS; field++) {
        if (at == NULL || (at = strchr(at, ' ')) == NULL)
            return false;
        at++;
        /* The state is a letter and some numbers are signed; those that are kept are neither. */
        if (field == MINOR_FAULTS || field == MAJOR_FAULTS || field >= START_TIME)
            fields[field] = strtoull(at, NULL, 10);
    }
    out->start_time_ticks = fields[START_TIME];
    out->address_space_bytes = fields[ADDRESS_SPACE];
    out->stack = fields[STACK];
    out->minor_faults = fields[MINOR_FAULTS];
    out->major_faults = fields[MAJOR_FAULTS];
    return true;
}

static int read_one(int proc, uint32_t pid, struct hr_process_stat *out)
{
    char name[sizeof "4294967295/stat"], text[4096];
    snprintf(name, sizeof name, "%" PRIu32 "/stat", pid);
    int fd = openat(proc, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno;
    ssize_t length = read(fd, text, sizeof text - 1);
    int error = length < 0 ? errno : 0;
    close(fd);
    if (error != 0)
        return error;
    text[length] = '\0';
    return parse(text, (size_t)length, out) ? 0 : EBADMSG;
}

void hr_read_process_stats(int proc, const uint32_t *pids, uint32_t count,
                           struct hr_process_stat *out)
{
    memset(out, 0, count * sizeof *out);
    for (uint32_t i = 0; i < count; i++)
        out[i].error = read_one(proc, pids[i], &out[i]);
}

uint64_t hr_read_start_time(int proc, uint32_t pid)
{
    struct hr_process_stat found;
    hr_read_process_stats(proc, &pid, 1, &found);
    return found.error == 0 ? found.start_time_ticks : 0;
}
