/*
 * The region's semaphore: taking it, telling who has it, breaking it with proof.
 *
 * CONCEPT
 *
 * libvgpu guards the slot table with an unnamed process-shared POSIX semaphore
 * and signs in owner_pid.  Its protocol is: wait; store the own pid in
 * owner_pid; work; store 0 in owner_pid; post.  This module speaks it without
 * libc's semaphores, because the bytes belong to the container's libc:
 *
 *   take   compare-and-swap of the 64-bit word, value - 1 where it is above 0
 *   post   add 1 to the word, then always FUTEX_WAKE on its low half
 *
 * Old and new glibc agree on that much: the value is the low half of the word.
 * The high half counts waiters in new glibc; we never register there, but look
 * again after short futex waits.  Who dies while waiting leaves nothing behind.
 *
 * Writers of this library exclude each other first, by an open-file-description
 * lock on one byte far behind the struct (HR_HOST_LOCK_BYTE).  The kernel
 * releases it when its holder dies, in whatever namespace.  So whoever has it
 * and finds the semaphore signed by this library knows that the signer is dead.
 *
 * WHO SIGNS HOW
 *
 * owner_pid is judged by libvgpu's waiters in the container's pid namespace: a
 * pid that does not exist there loses the lock after 10 s.  A process that is seen to
 * be of the same namespace signs with its pid.  Any other signs with
 * HR_FOREIGN_OWNER + its pid, which can be no live pid, and must hold the lock
 * for milliseconds only.
 *
 * CAVEATS
 *
 * - Not re-entrant: a second hr_lock() by the thread that holds it is HR_EBUSY.
 * - Lock order: the handle's gate (threads), the host lock (processes of this
 *   library), the semaphore (everybody).
 * - A child of fork() must not keep the host lock alive after its parent's
 *   death: locks are on an open file that is not mapped, and handles close it in
 *   the child.
 */
#ifndef HR_LOCK_H
#define HR_LOCK_H

#include "region.h"

/* Clear of HAMi's lockf on [0, sizeof) and of its record lock on 0x40000000. */
#define HR_HOST_LOCK_BYTE 0x50000000

/* Above every pid_max (2^22), below 2^31: libvgpu keeps owners in an int. */
#define HR_FOREIGN_OWNER 0x40000000u

/* Longer than any holder can need between taking the semaphore and signing. */
#define HR_OWNERLESS_NS 10000000000u

/*
 * Take the semaphore within `timeout_ns`, 0 = look once.
 *
 * HR_ETIMEOUT (detail.found = owner_pid), HR_EBUSY (this thread has it already),
 * HR_EREADONLY, HR_ESTALE, HR_ECLOSED, HR_EFORKED, HR_ESYSTEM.
 */
int hr_lock(hr_region *region, uint64_t timeout_ns);

/*
 * Give it back.  HR_EBUSY: this handle does not hold it.  HR_ELOST: it was taken
 * away meanwhile, because it was held for longer than others wait.
 */
int hr_unlock(hr_region *region);

/* The same, if this thread has it; HR_EBUSY otherwise.  For who does not know whether hr_lock()
 * has succeeded. */
int hr_unlock_own(hr_region *region);

enum hr_life { HR_DEAD, HR_ALIVE, HR_LIFE_UNKNOWN };

struct hr_lock_state {
    uint32_t value;         /* of the semaphore: 1 free, 0 taken */
    uint32_t waiters;       /* as new glibc counts them */
    uint32_t postinit;      /* value of sem_postinit; 1 where the layout has none */
    uint32_t is_ours;       /* signed by this library from another namespace */
    uint64_t owner_pid;     /* as stored */
    int32_t owner_pid_here; /* the owner's pid in this process's /proc, or 0 */
    uint32_t owner_life;    /* enum hr_life; HR_DEAD where owner_pid is 0 */
};

/* Works on a read-only handle too.  `proc` is the root of /proc, NULL = "/proc". */
int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out);

enum hr_recovered {
    HR_RECOVERED_OWNER = 1,     /* a dead owner's lock was given back */
    HR_RECOVERED_OWNERLESS = 2, /* nobody had signed for it */
    HR_RECOVERED_VALUE = 4,     /* the semaphore stood above 1 */
    HR_RECOVERED_POSTINIT = 8   /* sem_postinit was given back */
};

/*
 * Repair the lock where there is proof that nobody holds it: the owner is dead;
 * nobody has signed and nobody else maps the file, or that state stood unchanged
 * for HR_OWNERLESS_NS; or the value is above 1.  sem_postinit, which nobody
 * signs, the same way, after HR_POSTINIT_NS.
 *
 * The call watches an unsigned lock for `watch_ns` at most.  A dead holder's lock
 * is taken over and then given back: being killed meanwhile leaves the next dead holder.
 *
 * Returns a set of enum hr_recovered, 0 where nothing was wrong.
 * HR_ENOTRECOVERABLE with detail.why HR_WHY_ALIVE, HR_WHY_UNKNOWN or
 * HR_WHY_BUSY, detail.found = owner_pid, detail.wanted = its pid here.
 */
#define HR_POSTINIT_NS 60000000000u
int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns);

#endif
