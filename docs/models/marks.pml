/*
 * The marks of slots: how it is proved that a process of this library is dead without /proc.
 * `make models` checks it; protocol.md says what that proves.
 *
 * An attached process keeps the byte of its pid locked.  Its slot has a mark, which is another one
 * each time a process attaches, beside a flag in the seqlock.  Who finds the byte free, and then,
 * under the lock, the slot as it was before that, knows that its process is dead.
 *
 *   A B   OURS or NONE: two processes of this library that have the same pid, each in a pid
 *         namespace of its own; after a kill the next process there has it again
 *   L     libvgpu's newcomer in A's namespace, with A's pid, once A is dead: OLD (up to 2.8.0:
 *         clears the usage with all that is unused in it), NEW (from 2.8.1 on: makes the seqlock
 *         0, and clears field by field), NONE
 *   MOVES  how often a process of libvgpu removes slots of whom it takes for dead, in A's
 *         namespace: the last one is copied into the hole, with its mark
 *   KILLS LIVES  kills of A and B together, and how many lives after the first
 *   FAULT  a fault put in, to show that the model finds it (0: none)
 *
 * The tool sees nothing of /proc: it frees what it can prove by the bytes.  The lock is sound here,
 * and a death gives it back: lock.pml is about that.  What the slots go through otherwise is in
 * slots.pml.
 */
#define NONE 0
#define OURS 1
#define OLD 2
#define NEW 3

#define NO_FLAG 1     /* a mark holds without the flag */
#define FLAG_ALONE 2  /* the mark is where OLD does not clear it */
#define TAKE_LIVE 3   /* no byte: start time and namespace say nothing of another namespace, and a
                         newcomer there takes the slot that has its pid, as libvgpu does */
#define LATE_BYTE 4   /* the byte is locked after the mark was stored */
#define UNCOMPARED 5  /* the slot is not compared with what it was when the byte was free */
#define SAME_MARK 6   /* each process with a pid has the same mark */

#define N 3        /* slots */
#define THE_PID 1
#define NOBODY 9   /* a name */
#define THE_TOOL 4
#define LIBVGPU 3  /* L, as an owner */
#define NO_SLOT 15

/* The file. */
typedef slot { byte name; byte mark; bool flag; byte used; byte whose }
slot s[N]; /* `whose` is a note that travels with the slot: who has filled it */
byte count, lock;

byte held;  /* the kernel: who keeps the byte of the pid locked */
byte marks; /* how many there were */

/* The processes: 1 and 2 are ours, 3 is L. */
bool alive[5], in[5];
byte my[5], mine[5]; /* slot and mark */
byte kills = KILLS, lives = LIVES, moves = MOVES;

#define IF(condition, store) if :: condition -> store :: else fi
#define LOCK(who) atomic { lock == 0 -> lock = who }
#define UNLOCK(who) atomic { assert(lock == who); lock = 0 }

#if FAULT == NO_FLAG
#define MARK(i) (s[i].name == THE_PID -> s[i].mark : 0)
#else
#define MARK(i) (s[i].flag && s[i].name == THE_PID -> s[i].mark : 0)
#endif
/* What is behind the last one counts nothing: its process looks for it again. */
#define IS_IN_USE(i) (i < count && s[i].whose != 0 && alive[s[i].whose] && in[s[i].whose] && \
                  (s[i].whose == LIBVGPU || my[s[i].whose] == i))

/* Empty a slot: what is unused in it, too.  No step of ours takes a live process's. */
#define EMPTY(i, by) \
    atomic { assert(s[i].whose == by || !IS_IN_USE(i)); \
             s[i].used = 0; s[i].mark = 0; s[i].whose = 0 }

#define DIE(p) \
    d_step { \
        IF(lock == p, lock = 0); \
        IF(held == p, held = 0); \
        alive[p] = false; in[p] = false; my[p] = NO_SLOT; mine[p] = 0 \
    }

/* ---- A process of this library ------------------------------------------------------- */

/* Under the lock: the slot that has our pid, else an emptied one, else the next one. */
inline take(p)
{
    d_step {
        to = NO_SLOT;
        for (at : 0 .. N - 1) { IF(at < count && s[at].name == THE_PID, to = at) }
        for (at : 0 .. N - 1) { IF(to == NO_SLOT && at < count && s[at].name == NOBODY, to = at) }
        IF(to == NO_SLOT && count < N, to = count);
        at = 0
    }
    if
    :: to == NO_SLOT
    :: else ->
        EMPTY(to, p);
        d_step { s[to].mark = mine[p]; s[to].whose = p; my[p] = to; in[p] = true };
        s[to].flag = true;
        s[to].name = THE_PID;
        /* A removal beside the lock can have lowered the number. */
        IF(to >= count, count = to + 1);
        give_up_others(p, to)
    fi;
    skip;
    d_step { to = 0; at = 0 }
}

inline give_up_others(p, but)
{
    at = 0;
    do
    :: at < N ->
        if
        :: at < count && at != but && s[at].name == THE_PID -> EMPTY(at, p); s[at].name = NOBODY
        :: else
        fi;
        at++
    :: else -> break
    od
}

#define IS_MINE(i) (i < count && s[i].name == THE_PID)
inline find_mine(p)
{
    d_step {
        to = NO_SLOT;
        for (at : 0 .. N - 1) { IF(IS_MINE(at), to = at) }
        at = 0
    }
}

proctype ours(byte p)
{
    byte at, to;
again:
    {
        atomic { held == 0 || FAULT == TAKE_LIVE || FAULT == LATE_BYTE -> /* else it is refused */
            marks = (FAULT == SAME_MARK -> 1 : marks + 1); mine[p] = marks;
            IF(FAULT != LATE_BYTE, held = p) }
        LOCK(p);
        take(p);
        UNLOCK(p);
        if :: FAULT == LATE_BYTE && held == 0 -> held = p :: else fi;
        do
        :: my[p] == NO_SLOT -> goto gone /* the table is full */
        :: my[p] != NO_SLOT && IS_MINE(my[p]) ->
            /* charges or releases; moved from here on, it goes astray until it looks again */
            atomic {
                if
                :: IS_MINE(my[p]) ->
                    assert(s[my[p]].whose == p);
                    s[my[p]].used = 1
                :: else
                fi
            }
        :: my[p] != NO_SLOT && !IS_MINE(my[p]) -> /* moved, or removed */
            LOCK(p);
            find_mine(p);
            if
            :: to != NO_SLOT ->
                atomic { my[p] = to; assert(s[to].whose == p); s[to].used = 1; to = 0 }
                give_up_others(p, my[p]);
                at = 0
            :: else -> my[p] = NO_SLOT; take(p)
            fi;
            UNLOCK(p)
        :: my[p] != NO_SLOT -> /* detaches */
            LOCK(p);
            find_mine(p);
            if :: to != NO_SLOT -> EMPTY(to, p); s[to].name = NOBODY :: else fi;
            d_step { in[p] = false; my[p] = NO_SLOT; to = 0 };
            give_up_others(p, NO_SLOT);
            at = 0;
            UNLOCK(p);
            goto gone
        od;
gone:   skip
    } unless { !alive[p] };
    skip;
    d_step { at = 0; to = 0 };
    DIE(p);
end_dead:
    atomic { lives > 0 && !(p == 1 && alive[LIBVGPU]) -> lives--; alive[p] = true };
    goto again
}

/* ---- libvgpu --------------------------------------------------------------------------- */

#if L != NONE
proctype newcomer()
{
    byte at, to;
    atomic { !alive[1] -> alive[LIBVGPU] = true };
    LOCK(LIBVGPU);
    d_step {
        to = count;
        for (at : 0 .. N - 1) { IF(at < count && s[at].name == THE_PID && to == count, to = at) }
        at = 0
    }
    if
    :: to == N -> UNLOCK(LIBVGPU)
    :: else ->
        if
        :: L == NEW -> s[to].flag = false
        :: else
        fi;
        s[to].name = THE_PID;
        d_step {
            IF(L == OLD && FAULT != FLAG_ALONE, s[to].mark = 0);
            s[to].used = 1; s[to].whose = LIBVGPU; in[LIBVGPU] = true
        };
        IF(to == count, count++);
        UNLOCK(LIBVGPU)
    fi
}
#endif

/* A process of libvgpu in A's namespace removes whom it does not see there. */
#define ALIVE_THERE(i) (s[i].name == THE_PID && (alive[1] || alive[LIBVGPU]))
proctype mover()
{
    byte at;
end_moves:
    do
    :: atomic { moves > 0 -> moves-- };
        LOCK(5);
        at = 0;
        do
        :: at < count && ALIVE_THERE(at) -> at++
        :: at < count && !ALIVE_THERE(at) ->
            d_step {
                count--;
                s[at].name = s[count].name; s[at].mark = s[count].mark; s[at].flag = s[count].flag;
                s[at].used = s[count].used; s[at].whose = s[count].whose
            }
        :: at >= count -> break
        od;
        at = 0;
        UNLOCK(5)
    od
}

/* ---- The tool ---------------------------------------------------------------------------- */

/* The proof is gathered before the lock is taken, and compared under it: each slot that is as it
 * was, of a process that was dead, counts nothing afterwards. */
#define IS_LEFT(i) (i < count && s[i].used != 0 && MARK(i) != 0 && !alive[s[i].whose])
#if FAULT == UNCOMPARED
#define IS_AS_SEEN(i) (MARK(i) != 0)
#else
#define IS_AS_SEEN(i) (MARK(i) == seen[i].mark && s[i].used == seen[i].used)
#endif
typedef look { byte mark; byte used }
proctype tool()
{
    byte i;
    look seen[N];
end_runs:
    do
    :: d_step {
            for (i : 0 .. N - 1) {
                IF(i < count, seen[i].mark = MARK(i); seen[i].used = s[i].used)
            }
            i = 0
        }
        if
        :: held == 0 ->
            LOCK(THE_TOOL);
            do
            :: i < N ->
                if
                :: i < count && seen[i].mark != 0 && IS_AS_SEEN(i) ->
                    EMPTY(i, THE_TOOL);
                    s[i].name = NOBODY;
                    assert(!IS_LEFT(i))
                :: else
                fi;
                i++
            :: else -> break
            od;
            UNLOCK(THE_TOOL)
        :: held != 0
        fi;
        d_step { for (i : 0 .. N - 1) { seen[i].mark = 0; seen[i].used = 0 } i = 0 }
    od
}

proctype death()
{
end_kills:
    do
    :: atomic { kills > 0 && alive[1] -> kills--; DIE(1) }
    :: atomic { kills > 0 && alive[2] -> kills--; DIE(2) }
    od
}

init {
    atomic {
        my[1] = NO_SLOT; my[2] = NO_SLOT;
#if A == OURS
        alive[1] = true; run ours(1);
#endif
#if B == OURS
        alive[2] = true; run ours(2);
#endif
#if L != NONE
        run newcomer();
#endif
        run mover(); run tool(); run death()
    }
}
