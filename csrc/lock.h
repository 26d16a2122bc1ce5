/*
 * The region's semaphore: taking it, telling who has it, breaking it with proof.
 * Layouts `unversioned` and `unversioned-no-util` are refused: HR_EREADONLY, HR_REASON_LAYOUT.
 *
 * docs/protocol.md is the manual, and proves it.  In short: libvgpu guards the slot table with
 * an unnamed process-shared POSIX semaphore and signs in owner_pid.  Its bytes belong to the
 * container's libc, so no function of ours touches it: the value is the low half of its first
 * word, and a futex.  We never register as waiters, so a process that dies while it waits
 * leaves nothing behind.
 *
 * owner_pid and that word are neighbours, and one 16-byte compare-and-swap changes both:
 *
 *   take       (0, value above 0)        -> (our signature, 0)
 *   give back  (our signature, any)      -> (0, 1), then always FUTEX_WAKE
 *   take over  (a dead signature, any)   -> (our signature, 0)
 *
 * Recovery holds the *host lock*, an open file's lock on HR_HOST_LOCK_BYTE.
 *
 * A process that is attached, or is just attaching, signs with its pid, and in the upper half of
 * the word, where libvgpu, which keeps owners in an int, does not look, with the byte that it keeps
 * locked (marks.h): so it can be told dead without /proc.  Where it has no such byte,
 * that half is 0, and /proc has to tell.  Any other handle signs with numbers,
 * HR_FOREIGN_OWNER + n, above any pid.  It draws a random multiple of HR_TURNS, locks the bytes
 * from HR_NUMBER_BYTE + n on for as long as it is open, and counts through these HR_TURNS numbers,
 * one each time.  Whoever can lock the byte of a signature knows that its writer is dead, and while
 * it is locked nobody can draw it.  Signatures from HR_FOREIGN_END on belong to schemes to come:
 * nothing is concluded from their bytes.
 *
 * CAVEATS
 *
 * - A number is no live pid in the container.  A waiter of libvgpu that has waited
 *   for 9 to 10 s takes the lock from the holder that is signed with a number then, however
 *   short that has held it.  Hold it for microseconds.  A lock that was lost is reported when it
 *   is given back (HR_ELOST).  A pid is never taken away.
 * - Not re-entrant: a second hr_lock() by the thread that holds it is HR_EBUSY.
 * - Lock order: the handle's gate (threads), the host lock, the semaphore.
 */
#ifndef HR_LOCK_H
#define HR_LOCK_H

#include "region.h"

/* Clear of HAMi's lockf on [0, sizeof) and of its record lock on 0x40000000. */
#define HR_SLOT_BYTE 0x10000000 /* marks.h */
#define HR_SLOT_BYTES 0x10000000
#define HR_HOST_LOCK_BYTE 0x50000000
#define HR_NUMBER_BYTE 0x60000000

/* Above every pid_max (2^22), below 2^31: libvgpu keeps owners in an int. */
#define HR_FOREIGN_OWNER 0x40000000u
#define HR_FOREIGN_END 0x50000000u
/* A waiter of libvgpu that has judged one signature must not take the next one for it. */
#define HR_TURNS 256u

/* Longer than any holder can need between taking the semaphore and signing. */
#define HR_OWNERLESS_NS 10000000000u
/* How long a watch may be interrupted by a signal and still go on where it was. */
#define HR_UNWATCHED_NS 100000000u
/* For a process that came after a scan of /proc and is about to sign: on a busy machine it may not
 * run for a long while. */
#define HR_NEWCOMER_NS 300000000u

/*
 * A ticket owns what a call has taken, from within the call: it is made before, all
 * zero, and ended by its destructor, from any thread, at any time, and as often as one
 * likes.  What was given back meanwhile stays so, also if the handle has taken it anew.
 */
struct hr_ticket {
    hr_region *region; /* NULL: never used.  The handle's memory stays until the end. */
    uint64_t turn;
};

/*
 * Take the lock within `timeout_ns`, 0 = look once, for the ticket, if that is not NULL.
 *
 * HR_ETIMEOUT (detail.found = owner_pid), HR_EBUSY (this thread has it already),
 * HR_EREADONLY, HR_ESTALE, HR_ECLOSED, HR_EFORKED, HR_ESYSTEM.  A handle that is not attached
 * opens the file anew the first time: HR_ESTALE if its path leads elsewhere, HR_EACCESS.
 */
int hr_lock(hr_region *region, struct hr_ticket *ticket, uint64_t timeout_ns);
void hr_end_lock(struct hr_ticket *ticket);

/*
 * Give back what hr_lock() has taken, from any thread.  HR_EBUSY: nobody holds it so, though
 * another call of this handle may.  HR_ELOST: it was taken away meanwhile.
 */
int hr_unlock(hr_region *region);

/* Give it back if this thread has it, else HR_EBUSY.  Use when it is unknown whether hr_lock()
 * succeeded, for example after a signal. */
int hr_unlock_own(hr_region *region);

enum hr_liveness { HR_DEAD, HR_ALIVE, HR_LIVENESS_UNKNOWN };

struct hr_lock_state {
    uint32_t value;          /* of the semaphore: 1 free, 0 taken */
    uint32_t waiters;        /* as new glibc counts them */
    uint32_t postinit;       /* value of sem_postinit; 1 where the layout has none */
    uint32_t is_ours;        /* signed with a number of this library */
    uint32_t is_damaged;     /* the value is above 1, or above 0 though somebody has signed */
    uint64_t owner_pid;      /* as libvgpu reads it: a pid, or a number */
    uint64_t signature;      /* as stored: with the byte of an attached process */
    int32_t owner_pid_here;  /* the owner's pid in this process's /proc; 0: none, or a number */
    uint32_t owner_liveness; /* enum hr_liveness; HR_DEAD where owner_pid is 0 */
};

/* Works on a read-only handle too.  `proc` is the root of /proc, NULL = "/proc". */
int hr_get_lock_state(hr_region *region, const char *proc, struct hr_lock_state *out);

enum hr_recovered {
    HR_RECOVERED_OWNER = 1,     /* a dead owner's lock was given back */
    HR_RECOVERED_OWNERLESS = 2, /* nobody had signed for it */
    HR_RECOVERED_VALUE = 4,     /* the semaphore contradicted its owner, or stood above 1 */
    HR_RECOVERED_POSTINIT = 8   /* sem_postinit was given back */
};

/* What a recovery has done and seen so far; all zero for a new one. */
struct hr_recovery {
    uint32_t done;  /* set of enum hr_recovered */
    uint32_t value; /* the state that has been watched, */
    uint64_t signature;
    uint64_t watched_ns; /* and for how long, */
    uint64_t postinit_watched_ns;
    uint64_t interrupted_ns; /* and when a signal last came; on the monotonic clock */
};

/*
 * Repair the lock where there is proof that nobody holds it: the owner is dead;
 * nobody has signed, or something that cannot be judged, and nobody else has the file
 * open; nobody has signed and that stood unchanged for HR_OWNERLESS_NS; or the value
 * contradicts the owner.  sem_postinit, which nobody signs, likewise, after HR_POSTINIT_NS.
 *
 * The call watches an unsigned lock for `watch_ns` at most.  A dead holder's lock
 * is taken over and then given back: being killed meanwhile leaves the next dead holder.
 *
 * HR_OK: recovery->done says what was done; nothing where nothing was wrong.
 * HR_EINTERRUPTED: a signal came; call again with the same `recovery`, which goes on.
 * HR_ENOTRECOVERABLE with detail.reason HR_REASON_ALIVE, HR_REASON_UNKNOWN, HR_REASON_BUSY,
 * HR_REASON_UNWATCHED or HR_REASON_RECOVERING, detail.found = owner_pid, detail.wanted = its pid
 * here.
 */
#define HR_POSTINIT_NS 60000000000u
int hr_recover_lock(hr_region *region, const char *proc, uint64_t watch_ns,
                    struct hr_recovery *recovery);

#endif
