/*
 * A complaint leaves the thread that makes it as it was, also where nobody reads it:
 * `complaints_model`.  It ends the program if something is wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../csrc/preload/complaints.h"

#define MUST_FILE real_stderr
#include "must.h"

static int real_stderr;

static bool is_blocked(int number)
{
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    return sigismember(&now, number) == 1;
}

static bool is_pending(int number)
{
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, number) == 1;
}

static void block(int how, int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(how, &set, NULL);
}

/* Stands in the place of stderr. */
static int open_pipe(void)
{
    int ends[2];
    MUST(pipe2(ends, O_CLOEXEC) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    close(ends[1]);
    return ends[0];
}

static void complain(void)
{
    errno = ERANGE;
    hr_complain("device %d", 7);
    MUST(errno == ERANGE);
    MUST(!is_blocked(SIGTERM) && is_blocked(SIGUSR1));
}

int main(void)
{
    char text[64] = "";
    real_stderr = dup(STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    block(SIG_BLOCK, SIGUSR1);
    /* Somebody reads it. */
    int reader = open_pipe();
    complain();
    MUST(read(reader, text, sizeof text - 1) > 0);
    MUST(strcmp(text, "libhamiregion: device 7\n") == 0);
    MUST(!is_blocked(SIGPIPE));
    close(reader);
    /* Nobody does: the program neither ends nor gets the signal later. */
    complain();
    MUST(!is_blocked(SIGPIPE) && !is_pending(SIGPIPE));
    /* One that the program itself had waiting stays. */
    block(SIG_BLOCK, SIGPIPE);
    raise(SIGPIPE);
    complain();
    MUST(is_blocked(SIGPIPE) && is_pending(SIGPIPE));
    /* That was the third line, and the last. */
    reader = open_pipe();
    complain();
    close(STDERR_FILENO);
    MUST(read(reader, text, sizeof text) == 0);
    close(reader);
    MUST(dup2(real_stderr, STDERR_FILENO) == STDERR_FILENO);
    return 0;
}
