/*
 * Being a process of the region: its slot, and our own books about it.  Internal to the core.
 */
#ifndef HR_ATTACH_H
#define HR_ATTACH_H

#include "lock_word.h"
#include "slot_table.h"

/* For hr_close(): give this process's slot back.  HR_ETIMEOUT where the lock cannot be had: the
 * slot stays (detail.found = owner_pid, detail.wanted = the bytes that it counts). */
int hr_leave_region(hr_region *region, uint64_t deadline_ns);

#endif
