/*
 * A seqlock that a killed process has left odd, and the tool that makes it even while another
 * process has the lock.  `make models` checks it; protocol.md says what that proves.
 *
 * From September 2026 on a process of libvgpu that allocates waits for even seqlocks while it has
 * the lock.  At one that stays odd it waits for ever, so nobody can take the lock to mend it.
 *
 *   Process 1 has the slot.  Two of its threads may be inside at once; its first thread may end
 *   before the others.  After its death the next process with its pid takes the slot, under the
 *   lock, and makes the seqlock 0: its first step inside makes that 1, the value at which most die.
 *   Process 2 takes the lock again and again.  WAITS: for an even seqlock while it has it.  It may
 *   remove the slot of a dead process, or put another process's slot there, whose seqlock is odd.
 *   A pid comes again if the container starts again, which ends all of its processes, or if pids
 *   wrap around, which takes longer than a proof is valid.
 *   TOOLS  how many tools there are; RUNS  how often each looks
 *   KILLS  how many processes are killed; ACCOUNTS  of each thread
 *   FAULT  a fault put in, to show that the model finds it (0: none)
 *
 * What is proved: the tool changes no slot that a live process writes to.  If process 2 has the
 * lock from before the proof until after the swap, the seqlock is even in the end.
 *
 * Assumed: the last look and the swap are one step (LATE_SWAP shows what else could happen).
 */
#define NO_OWNER 1     /* the lock's owner is not compared */
#define OWNER_BY_PID 2 /* nor whether it is the same process that has the owner's pid */
#define FIRST_THREAD 3 /* a process whose first thread has ended is taken for dead */
#define NOT_SEEN 4     /* only the word is compared, not the slot */
#define OLD_PROOF 5    /* a proof is valid until its pid comes again by wrapping around */
#define LATE_SWAP 6    /* the tool is stopped between the last look and the swap */

#define NOBODY 0
#define TOOL 3 /* and above: tools as owners of the lock */
#define OTHER 9 /* a live process that is not followed any further */
#define ODD(x) ((x) & 1)

/* The file: the slot, and who has the lock.  `writer` is a note: whose figures these are. */
byte name, seq, used, lock, writer;

/* The lives of processes 1 and 2: which one is the present one, and whether it lives. */
byte life[3];
bool alive[3], leads;
byte kills = KILLS, pending; /* proofs that are valid still */

#define IF(condition, store) if :: condition -> store :: else fi
#define IS_NOW(p, which) (alive[p] && life[p] == which)

/* A thread of process 1, and of the one that has its pid next. */
proctype thread(byte which) {
    byte left = ACCOUNTS;
    do
    :: left > 0 && IS_NOW(1, which) && writer == which ->
        left--;
        if :: atomic { IS_NOW(1, which) -> seq++ } :: !IS_NOW(1, which) -> break fi;
        if :: atomic { IS_NOW(1, which) -> used++; seq++ } :: !IS_NOW(1, which) -> break fi
    :: else -> break
    od
}

/* Life 2 of process 1: it joins under the lock. */
proctype newcomer() {
    if
    :: atomic { lock == NOBODY -> lock = 1 };
        atomic {
            if
            :: name != OTHER -> name = 1; seq = 0; used = 0; writer = 2
            :: else /* it takes another one */
            fi;
            lock = NOBODY
        };
        run thread(2)
    fi
}

proctype holder(byte which) {
    do
    :: atomic { lock == NOBODY && IS_NOW(2, which) -> lock = 2 };
        if
        :: WAITS && IS_NOW(2, which) && !ODD(seq)
        :: !WAITS && IS_NOW(2, which)
        :: !IS_NOW(2, which) -> break
        fi;
        if
        :: IS_NOW(2, which)
        :: atomic { IS_NOW(2, which) && name == 1 && !alive[1] -> name = 0; seq = 0; used = 0 }
        :: atomic { IS_NOW(2, which) && !WAITS && name == 1 && !alive[1] ->
               name = OTHER; writer = OTHER; seq = 1 }
        :: !IS_NOW(2, which) -> break
        fi;
        if :: atomic { IS_NOW(2, which) -> lock = NOBODY } :: !IS_NOW(2, which) -> break fi
    :: !IS_NOW(2, which) -> break
    od
}

#define LIVES(owner) (owner == 1 -> alive[1] : (owner == 2 -> alive[2] : false))
#if FAULT == FIRST_THREAD
#define IS_DEAD(p) (!alive[p] || (p == 1 && !leads))
#else
#define IS_DEAD(p) (!alive[p])
#endif
#if FAULT == NO_OWNER
#define IS_SAME_OWNER true
#elif FAULT == OWNER_BY_PID
#define IS_SAME_OWNER (lock == owner)
#else
#define IS_SAME_OWNER (lock == owner && life[owner] == owner_life)
#endif
#if FAULT == NOT_SEEN
#define IS_AS_SEEN (seq == w_seq)
#else
#define IS_AS_SEEN (name == w_name && seq == w_seq && used == w_used)
#endif
#define SWAP(swapped) \
    IF(swapped && seq == w_seq, \
       assert(writer != OTHER && !(writer != 0 && IS_NOW(1, writer))); seq = w_seq + 1)
#define LOOK w_name = name; w_seq = seq; w_used = used
/* From here on the pid comes again only if the container starts again. */
#define PROVE is_dead = IS_DEAD(1); IF(FAULT != OLD_PROOF, pending++)

proctype tool(byte me) {
    byte runs = RUNS, owner, owner_life, w_name, w_seq, w_used;
    bool is_dead, is_last;
    do
    :: runs > 0 ->
        runs--;
        if
        :: atomic { lock == NOBODY -> lock = me };
            /* As reap: the proof is from before, and the slot still is what it was. */
            d_step { IF(ODD(seq) && name == 1 && !alive[1], seq++) };
            lock = NOBODY
        :: atomic { lock != NOBODY && lock < TOOL && LIVES(lock) ->
               owner = lock; owner_life = life[lock] };
            d_step { LOOK };
            d_step { PROVE };
            if
            :: is_dead && w_name == 1 && ODD(w_seq) && FAULT != LATE_SWAP ->
                d_step {
                    is_last = IS_SAME_OWNER && IS_AS_SEEN;
                    SWAP(is_last);
                    /* It has been held for all that time. */
                    assert(!(WAITS && is_last) || !ODD(seq))
                }
            :: is_dead && w_name == 1 && ODD(w_seq) && FAULT == LATE_SWAP ->
                d_step { is_last = IS_SAME_OWNER && IS_AS_SEEN };
                d_step { SWAP(is_last) }
            :: else
            fi;
            d_step {
                IF(FAULT != OLD_PROOF, pending--);
                owner = 0; owner_life = 0; w_name = 0; w_seq = 0; w_used = 0;
                is_dead = false; is_last = false
            }
        fi
    :: else -> break
    od
}

proctype world() {
    do
#if FAULT == FIRST_THREAD
    :: atomic { leads -> leads = false } /* the first thread ends; the others go on */
#endif
    :: atomic { kills > 0 && alive[1] -> kills--; alive[1] = false; IF(lock == 1, lock = NOBODY) }
    :: atomic { kills > 0 && alive[2] -> kills--; alive[2] = false }
    /* A waiter finds out that the owner is dead. */
    :: atomic { lock == 2 && !alive[2] -> lock = NOBODY }
    /* The container starts again: with the same pids. */
    :: atomic { life[1] == 1 && !alive[1] && !alive[2] && life[2] == 1 ->
           life[1] = 2; alive[1] = true; life[2] = 2; alive[2] = true; IF(lock == 2, lock = NOBODY);
           run newcomer(); run holder(2) }
    /* Pids have wrapped around. */
    :: atomic { life[1] == 1 && !alive[1] && pending == 0 ->
           life[1] = 2; alive[1] = true; run newcomer() }
    od
}

init {
    atomic {
        name = 1; writer = 1;
        life[1] = 1; life[2] = 1; alive[1] = true; alive[2] = true; leads = true;
        run thread(1); run thread(1); run holder(1); run world();
        run tool(TOOL);
        if :: TOOLS > 1 -> run tool(TOOL + 1) :: else fi
    }
}
