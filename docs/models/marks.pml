/*
 * The marks of slots: how it is proved that a process of this library is dead without /proc.
 * `make models` checks it; protocol.md says what that proves.
 *
 * A slot of ours has a mark: a number, whose byte in the file its process keeps locked, beside a
 * flag in the seqlock.  Whoever can lock that byte knows that the process is dead.
 *
 *   A B   OURS or NONE: two processes of this library that have the same pid, each in a pid
 *         namespace of its own; after a kill the next process there has it again
 *   L     libvgpu's newcomer in A's namespace, with A's pid, once A is dead: OLD (up to 2.8.0:
 *         clears the usage with all that is unused in it), NEW (from 2.8.1 on: makes the seqlock
 *         0, and clears field by field), NONE
 *   MOVES  how often a process of libvgpu removes slots of whom it takes for dead, in A's
 *         namespace: the last one is copied into the hole, with its mark
 *   PIDS   2: B has another pid
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

#define BYTE_OF_INDEX 1  /* the byte belongs to the slot's index */
#define NO_FLAG 2        /* a mark holds without the flag */
#define FLAG_ALONE 3     /* the number is where OLD does not clear it */
#define NUMBER_REUSED 4  /* a number is drawn that stands in a slot */
#define TAKE_LIVE 5      /* a newcomer takes the slot that has its pid, whoever's it is */
#define BY_PID 6         /* a process takes the slot that has its pid for its own */
#define BYTE_ASKED 7     /* whether the byte is locked is asked, and not kept while the slot goes */
#define LATE_BYTE 8      /* the byte is locked after the mark was stored */

#define N 3        /* slots */
#define NUMBERS 3
#define NOBODY 9   /* a name */
#define THE_TOOL 4
#define LIBVGPU 3  /* L, as an owner */
#define NO_SLOT 15
#define NAME(p) (p == 2 -> PIDS : 1)

/* The file.  All that count name one of the pids, NOBODY, or 0. */
typedef slot { byte name; byte mark; bool flag; byte used; byte whose }
slot s[N]; /* `whose` is a note that travels with the slot: who has filled it */
byte count, lock;

/* The kernel: who keeps the byte of a number locked; and who keeps others from locking it, as a set:
 * several may, who have proved that its process is dead. */
byte held[NUMBERS + 1], kept[NUMBERS + 1];
#define IS_FREE(n) (held[n] == 0 && kept[n] == 0)
#define KEEP(n, p) kept[n] = kept[n] | (1 << p)
#define LET_GO(n, p) kept[n] = kept[n] & ~(1 << p)

/* The processes: 1 and 2 are ours, 3 is L. */
bool alive[5], in[5];
byte my[5], mine[5]; /* slot and number */
byte kills = KILLS, lives = LIVES, moves = MOVES;

#define IF(condition, store) if :: condition -> store :: else fi
#define LOCK(who) atomic { lock == 0 -> lock = who }
#define UNLOCK(who) atomic { assert(lock == who); lock = 0 }

#if FAULT == NO_FLAG
#define MARK(i) s[i].mark
#elif FAULT == BYTE_OF_INDEX
#define MARK(i) (s[i].mark != 0 -> i + 1 : 0)
#else
#define MARK(i) (s[i].flag -> s[i].mark : 0)
#endif
#define STANDS(n, i) (i < count && s[i].mark == n)
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
        alive[p] = false; in[p] = false; my[p] = NO_SLOT; \
        IF(mine[p] != 0, held[mine[p]] = (held[mine[p]] == p -> 0 : held[mine[p]])); \
        mine[p] = 0 \
    }

/* ---- A process of this library ------------------------------------------------------- */

inline draw(p)
{
    do
    :: atomic { IS_FREE(1) && mine[p] == 0 -> mine[p] = 1; IF(FAULT != LATE_BYTE, held[1] = p) }
    :: atomic { IS_FREE(2) && mine[p] == 0 -> mine[p] = 2; IF(FAULT != LATE_BYTE, held[2] = p) }
    :: atomic { IS_FREE(3) && mine[p] == 0 -> mine[p] = 3; IF(FAULT != LATE_BYTE, held[3] = p) }
    :: mine[p] != 0 ->
        at = N; /* from the end, as libvgpu moves slots towards the beginning */
        do
        :: at > 0 && !STANDS(mine[p], at - 1) -> at--
        :: else -> break
        od;
        if
        :: at == 0 || FAULT == NUMBER_REUSED -> break
        :: else -> atomic { held[mine[p]] = 0; mine[p] = 0 } /* a dead one's stands there */
        fi
    od
}

/* Of the slots with our pid: whether a mark that is not ours is a live process's; the others'
 * bytes are kept until the end.  Before the lock is taken. */
#define FOREIGN(i, p) (i < count && s[i].name == NAME(p) && MARK(i) != 0 && MARK(i) != mine[p])
inline judge(p)
{
    d_step { judged[1] = 0; judged[2] = 0; judged[3] = 0; judged[0] = 1 }
    at = 0;
    do
    :: at < N ->
        atomic {
            IF(FOREIGN(at, p) && judged[MARK(at)] == 0,
               n = MARK(at);
               if
               :: held[n] == 0 -> judged[n] = 1; KEEP(n, p)
               :: else -> judged[n] = 2
               fi);
            n = 0
        }
        at++
    :: else -> break
    od
}
inline forget(p)
{
    d_step {
        for (at : 1 .. NUMBERS) { LET_GO(at, p); judged[at] = 0 }
        at = 0
    }
}

/* Under the lock.  `ok` is 0 where the pid is another live process's. */
#define REFUSES(i, p) (FOREIGN(i, p) && judged[MARK(i)] != 1 && FAULT != TAKE_LIVE)
inline take(p)
{
    ok = 1;
    d_step { for (at : 0 .. N - 1) { IF(REFUSES(at, p), ok = 0) } at = 0 }
    if
    :: ok == 0
    :: else ->
        d_step {
            to = NO_SLOT;
            for (at : 0 .. N - 1) { IF(at < count && s[at].name == NAME(p), to = at) }
            for (at : 0 .. N - 1) { IF(to == NO_SLOT && at < count && s[at].name == NOBODY, to = at) }
            IF(to == NO_SLOT && count < N, to = count);
            at = 0
        }
        if
        :: to == NO_SLOT -> ok = 0
        :: else ->
            EMPTY(to, p);
            d_step { s[to].mark = mine[p]; s[to].whose = p; my[p] = to; in[p] = true };
            s[to].flag = true;
            s[to].name = NAME(p);
            /* A removal beside the lock can have lowered the number. */
            IF(to >= count, count = to + 1);
            at = 0;
            do
            :: at < N ->
                if
                :: at < count && at != to && s[at].name == NAME(p) ->
                    EMPTY(at, p);
                    s[at].name = NOBODY
                :: else
                fi;
                at++
            :: else -> break
            od
        fi
    fi;
    skip;
    d_step { to = 0; at = 0 }
}

#if FAULT == BY_PID
#define IS_MINE(i, p) (i < count && s[i].name == NAME(p))
#else
#define IS_MINE(i, p) (i < count && s[i].name == NAME(p) && MARK(i) == mine[p])
#endif
inline find_mine(p)
{
    d_step {
        to = NO_SLOT;
        for (at : 0 .. N - 1) { IF(IS_MINE(at, p), to = at) }
        at = 0
    }
}

proctype ours(byte p)
{
    byte at, to, ok, n;
    byte judged[NUMBERS + 1];
again:
    {
        draw(p);
        judge(p);
        LOCK(p);
        take(p);
        UNLOCK(p);
        forget(p);
        if :: FAULT == LATE_BYTE && held[mine[p]] == 0 -> held[mine[p]] = p :: else fi;
        do
        :: ok == 0 -> goto gone /* refused */
        :: ok != 0 && my[p] != NO_SLOT && IS_MINE(my[p], p) ->
            /* charges or releases; moved from here on, it goes astray until it looks again */
            atomic {
                if
                :: IS_MINE(my[p], p) ->
                    assert(s[my[p]].whose == p);
                    s[my[p]].used = 1
                :: else
                fi
            }
        :: ok != 0 && (my[p] == NO_SLOT || !IS_MINE(my[p], p)) -> /* moved, or removed */
            judge(p);
            LOCK(p);
            find_mine(p);
            if
            :: to != NO_SLOT -> atomic { my[p] = to; assert(s[to].whose == p); s[to].used = 1; to = 0 }
            :: else -> my[p] = NO_SLOT; take(p)
            fi;
            UNLOCK(p);
            forget(p)
        :: ok != 0 -> /* detaches */
            LOCK(p);
            find_mine(p);
            if :: to != NO_SLOT -> EMPTY(to, p); s[to].name = NOBODY :: else fi;
            d_step { in[p] = false; my[p] = NO_SLOT; to = 0 };
            UNLOCK(p);
            goto gone
        od;
gone:   skip
    } unless { !alive[p] };
    skip;
    d_step {
        at = 0; to = 0; ok = 0; n = 0;
        for (at : 0 .. NUMBERS) { judged[at] = 0; LET_GO(at, p) }
        at = 0
    };
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
        for (at : 0 .. N - 1) { IF(at < count && s[at].name == 1 && to == count, to = at) }
        at = 0
    }
    if
    :: to == N -> UNLOCK(LIBVGPU)
    :: else ->
        if
        :: L == NEW -> s[to].flag = false
        :: else
        fi;
        s[to].name = 1;
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
#define ALIVE_THERE(i) (s[i].name == 1 && (alive[1] || alive[LIBVGPU]))
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

/* Each slot of ours whose process is dead counts nothing afterwards. */
#define IS_LEFT(i) (i < count && s[i].used != 0 && s[i].whose != 0 && s[i].whose != LIBVGPU && \
                    !alive[s[i].whose] && MARK(i) != 0)
proctype tool()
{
    byte i, n;
    bool was_dead[N];
end_runs:
    do
    :: LOCK(THE_TOOL);
        d_step { for (i : 0 .. N - 1) { was_dead[i] = IS_LEFT(i) } i = 0 }
        do
        :: i < N ->
            n = (i < count -> MARK(i) : 0);
            if
            :: n != 0 && FAULT == BYTE_ASKED && held[n] == 0 ->
                UNLOCK(THE_TOOL); /* asked long before */
                LOCK(THE_TOOL);
                EMPTY(i, THE_TOOL)
            :: atomic { n != 0 && FAULT != BYTE_ASKED && held[n] == 0 -> KEEP(n, THE_TOOL) };
                if :: MARK(i) == n -> EMPTY(i, THE_TOOL); s[i].name = NOBODY :: else fi;
                LET_GO(n, THE_TOOL)
            :: atomic { n == 0 || held[n] != 0 ->
                /* One that has just drawn it gives it back when it finds it in a slot. */
                IF(n != 0 && !in[held[n]], was_dead[i] = false) }
            fi;
            n = 0;
            i++
        :: else -> break
        od;
        skip;
        d_step {
            for (i : 0 .. N - 1) { assert(!was_dead[i] || !IS_LEFT(i)); was_dead[i] = false }
            i = 0
        }
        UNLOCK(THE_TOOL)
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
