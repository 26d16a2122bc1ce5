/* What torn_writer and torn_reader agree on. */
#ifndef TORN_PROTOCOL_H
#define TORN_PROTOCOL_H

#include <stdint.h>

/*
 * A mover's processes are made up.  Their pids start above any pid that Linux
 * gives; a range of them for each mover, and a new one for each process.
 */
#define MADE_UP_PIDS (1 << 22)
#define PIDS_PER_MOVER (1 << 24)
#define MOVERS 100

/* A made-up process has this in all of its figures, and its pid as its host pid. */
static inline uint64_t number_of_pid(int32_t pid)
{
    return (uint64_t)pid * 1000003;
}

#endif
