/* A child that stops at a test point, so that something can happen there before it goes on. */
#ifndef STOPPED_CHILD_H
#define STOPPED_CHILD_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "region_file.h"
#include "testpoint.h"

/* What the child's call returned, where its parent sees it. */
static int *result;

typedef int deed(hr_region *region);

/* A child does the deed and stops at the point; after finish() it waits to be killed. */
static inline pid_t start(const struct region_file *file, deed *do_it, int point)
{
    pid_t pid = fork();
    NEED(pid >= 0);
    if (pid == 0) {
        hr_region *region = open_or_fail(file->path, HR_WRITE);
        hr_testpoint_signal = SIGSTOP;
        hr_testpoint_kill_on = hr_testpoint_reached[point] + 1;
        hr_testpoint_kill_at = point;
        *result = do_it(region);
        hr_testpoint_kill_at = -1;
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    NEED(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    return pid;
}

static inline void finish(pid_t pid)
{
    int status;
    kill(pid, SIGCONT);
    NEED(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
}

static inline void end(pid_t pid)
{
    kill(pid, SIGKILL);
    NEED(waitpid(pid, NULL, 0) == pid);
}

/* To be called once, before the first child. */
static inline void share_result(void)
{
    result = share_memory(sizeof *result);
}

#endif
