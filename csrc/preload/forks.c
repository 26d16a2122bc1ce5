#include "forks.h"

#include <pthread.h>
#include <stddef.h>

#include "../internal.h"

/* Whoever holds one of these locks takes no other of them, so their order does not matter. */
static void (*const files[])(enum hr_fork) = {
    hr_fork_watcher,        hr_fork_session,       hr_fork_throttle,
    hr_fork_context_memory, hr_fork_context_table, hr_fork_physical,
    hr_fork_books,          hr_fork_pools,         hr_fork_charges,
};

static void tell_all(enum hr_fork at)
{
    for (size_t file = 0; file < sizeof files / sizeof *files; file++)
        files[file](at);
}

static void before_fork(void)
{
    tell_all(HR_BEFORE_FORK);
}

static void after_fork_in_parent(void)
{
    tell_all(HR_IN_PARENT);
}

static void after_fork_in_child(void)
{
    tell_all(HR_IN_CHILD);
}

__attribute__((constructor)) static void watch_forks(void)
{
    /* Before ours, so that a fork takes these locks first and the core's after them, in the order
     * in which the region is opened; where this fails, opening it fails too. */
    hr_watch_forks();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
