/*
 * Locks on bytes of a region's file.  Internal to the core.
 *
 * They are locks of an open file (F_OFD_SETLK), which the kernel releases when the last
 * reference to that open file is gone.  The reference is a one-page mapping that no child
 * inherits (MADV_DONTFORK), and nothing else: the descriptor is closed at once.  So neither
 * a child with a memory of its own (fork(), clone() without CLONE_VM) nor exec() keeps the
 * lock of a dead process, and a program that closes all descriptors does not lose its
 * locks.  The page cannot be accessed and does not count as mapping the region for writing.
 *
 * Caveat: a child that shares the memory (CLONE_VM, as vfork() has it until it executes)
 * keeps the lock of a killed holder for as long as it lives.
 */
#ifndef HR_BYTE_LOCK_H
#define HR_BYTE_LOCK_H

#include <sys/types.h>

#include "handle.h"

/*
 * A descriptor of the region's file, by its path.  HR_ESTALE where that leads to another file by
 * now, HR_EACCESS, HR_ESYSTEM.  Closing it drops what POSIX locks the process has on the file.
 */
int hr_open_again(const hr_region *region, uint32_t flags, int *fd);

/* Where the lock of the handle lies that signs so. */
static inline off_t hr_number_byte(uint64_t signature)
{
    return HR_NUMBER_BYTE + (off_t)(signature - HR_FOREIGN_OWNER);
}

/* Signed with a number, whose byte tells whether its writer lives. */
static inline bool hr_is_number(uint64_t owner)
{
    return owner >= HR_FOREIGN_OWNER && owner < HR_FOREIGN_END;
}

/* What an attached process signs with whose mark has this byte (marks.h). */
static inline uint64_t hr_marked_signature(int32_t pid, off_t byte)
{
    return (uint64_t)byte << 32 | (uint32_t)pid;
}

static inline bool hr_is_marked(uint64_t owner)
{
    return owner >> 32 >= HR_SLOT_BYTE && owner >> 32 < HR_SLOT_BYTE + HR_SLOT_BYTES &&
           (uint32_t)owner - 1 < INT32_MAX;
}

/* What libvgpu sees of a signature: a pid, or a number; anything else as it stands. */
static inline uint64_t hr_owner_pid(uint64_t owner)
{
    return hr_is_marked(owner) ? (uint32_t)owner : owner;
}

/* The byte that tells whether the signature's writer lives; 0: /proc has to. */
static inline off_t hr_owner_byte(uint64_t owner)
{
    if (hr_is_number(owner))
        return hr_number_byte(owner);
    return hr_is_marked(owner) ? (off_t)(owner >> 32) : 0;
}

/*
 * Lock a range for others' writing (F_WRLCK), or against such a lock (F_RDLCK: of these
 * there may be several).  HR_EBUSY without a detail: somebody has a lock in the way.
 * HR_ESTALE where the region's path leads to another file by now, HR_EACCESS, HR_ESYSTEM.
 */
int hr_lock_bytes(const hr_region *region, short type, off_t start, off_t length,
                  struct hr_byte_lock *out);

/*
 * Lock those of these bytes against writing that nobody has locked for it, and keep them all.
 * `is_locked` tells which they are.
 */
int hr_lock_free_bytes(const hr_region *region, const off_t *bytes, uint32_t count, bool *is_locked,
                       struct hr_byte_lock *out);

/*
 * Lock, against writing, every byte behind HR_HOST_LOCK_BYTE but the numbers of this
 * process's own handles: then no other handle that has a number is there, and none can
 * draw one.
 */
int hr_lock_foreign_bytes(const hr_region *region, struct hr_byte_lock *out);

/* May be called again, and of a lock that was never taken. */
void hr_unlock_bytes(const hr_region *region, struct hr_byte_lock *lock);

#endif
