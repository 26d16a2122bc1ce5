/*
 * The slots of a region: libvgpu's processes of both generations, a process of this library that
 * is attached, and its tool that reaps and repairs.  `make models` checks it.
 *
 *   K1 K2 K3   the processes: OLD (libvgpu up to 2.8.0: searches its slot by pid, accounts under
 *              the lock), NEW (2.8.1 to 2.9: remembers its slot, accounts without), NEWER (from
 *              2.10 on: remembers it, and searches by pid where that is not its own any more; clears
 *              what it moves from, under the lock), OURS, NONE.
 *              All share one file, as an old file that newer processes use is shared.
 *   LOCKLESS   a refused allocation cleans without the lock, as it does in 2.7.1 to 2.9
 *   LAYOUT_12  OLD cannot be in the file
 *   TORN       begins with slots that libvgpu has moved: process 1, NEW, writes behind proc_num;
 *              below it is its frozen copy and a dead process's slot or, where K2 is OLD, that
 *              one's slot and a stale one of its pid
 *   TOOL       runs of the tool; KILLS, LIVES, ACCOUNTS: kills, lives after the first (with the
 *              same pid), changes of each process's accounting
 *   FAULT      a fault that earlier code had, to show that the model finds it (0: none)
 *
 * The lock is sound here: lock.pml is about it.  A death gives it back at once.
 *
 * What is proved, at each store of ours: a process that was counted once, in the slot where its
 * next accounting goes, still is; and no slot that a live process writes to, counted or not, loses what
 * stands there.  At the end of each work: the tool has changed nobody's count, but to become
 * right, and an attaching process has made none smaller.
 */
#define NONE 0
#define OLD 1
#define NEW 2
#define OURS 3
#define NEWER 4

#define CUT 1         /* lowers proc_num past dead slots while others live */
#define PID_0_DEAD 2  /* a slot with pid 0 is nobody's at once */
#define MOVE 3        /* reaping moves the last slot into the hole */
#define TAKE_LIVE 4   /* takes the slot at proc_num whoever's pid it has */
#define EMPTY_FIRST 5 /* copies are emptied before proc_num is raised */
#define OVER_IDLE 6   /* takes in what is above an undecided slot */
#define KEEP_NAME 7   /* a stale slot that is taken in keeps the pid of a live process */
#define ANY_CHANGE 8  /* any change of a seqlock is a process at work */
#define TAKE_UNUSED 9 /* in 1.1, takes a slot that a live process has not accounted in yet */
#define KEEP_UNUSED 10 /* in 1.1, steps over such a slot and leaves its copy the name as well */
#define UNCOMPARED 11 /* reaping does not compare a slot with what it was when its process was dead */

#define N 3 /* slots */
#define P 3 /* processes, by their pids 1 to 3 */
#define THE_TOOL 4
#define NOBODY 5 /* a pid that no process has: INT32_MAX in a file */
#define NO_SLOT 15
#define ODD(x) ((x) & 1)

/* The file.  Of `used`, below zero is 255. */
typedef slot { byte name; byte used; byte seq }
slot s[N];
byte count; /* proc_num */
byte lock;
byte cleaning;  /* who cleans without the lock; alone of libvgpu, or that breaks things by itself */
bool disturbed; /* somebody has, since the lock was taken */

/* The processes. */
byte kind[6], real[6]; /* what each has allocated in truth */
byte my[6];            /* NEW, NEWER: my_slot; OURS: the slot it remembers */
byte in_slot[6];       /* NEWER: where its accounting is under way, or NO_SLOT */
bool alive[6], in[6];  /* maps the file; has taken a slot */
bool leaving[6];       /* NEW, NEWER: after exit_handler() */
byte accounts[6];
byte kills = KILLS, lives = LIVES;

/* What the tool has seen before it takes the lock: its watch, or the slots of the dead. */
typedef look { byte name; byte seq; byte used }
look w[N];
/* Taken or moved since reaping has looked.  Assumed: no process has made the same figures again. */
bool has_looked, taken[N];
#define NOTE_TAKEN(i) taken[i] = has_looked

hidden byte a, b, c, d, e, healthy, kept, healthy_before, kept_before;
hidden byte counted[4];
byte net[4]; /* by how much the work of ours that is under way has changed what counts of each */

#define IF(condition, store) if :: condition -> store :: else fi

/* For each slot, or any of them. */
#define SUM(of, x) (of(0, x) + of(1, x) + of(2, x))
#define IS_OF(i, pid) (s[i].name == pid)
#define COUNTS_FOR(i, pid) (i < count && s[i].name == pid)
#define FIRST(at, top, pid) \
    at = 0; do :: at < top && s[at].name != pid -> at++ :: else -> break od

/*
 * Which processes are counted once, where their next accounting goes (healthy), and which have
 * their figures where they go on from them, counted or not (kept).  OURS has its own books, and may be moved.
 */
#define IS_STILL(p, i) (s[i].name == p || (leaving[p] && s[i].name == 0))
#define IS_STILL_ITS(p) IS_STILL(p, my[p])
#define HAS_LEFT(p, i) (leaving[p] && real[p] == 0 && !ODD(s[i].seq))
/* Two slots of OLD, while a newcomer of ours that has taken the upper one in has not taken the name
 * from the lower one yet: both have never been used, and OLD waits for the lock. */
#define UNUSED_SLOT(i, p) (COUNTS_FOR(i, p) && s[i].used == 0)
#define BY_A_NEWCOMER (lock != 0 && lock <= P && kind[lock] == OURS)
#define HAS_TWO_UNUSED(p) (real[p] == 0 && SUM(COUNTS_FOR, p) == 2 && SUM(UNUSED_SLOT, p) == 2)
#define IS_BEING_SETTLED(p) (BY_A_NEWCOMER && HAS_TWO_UNUSED(p))
/* An idle NEWER, whose slot an older process has moved, may be a NEW, which goes on where it was: a
 * newcomer steps over that, and it counts twice, until it is repaired. */
#define IS_STEPPED_OVER(p) (kind[p] == NEWER && BY_A_NEWCOMER && counted[p] == 2 * real[p])
/* get_current_proc_slot(): NO_SLOT or above where there is none. */
#define MY_OWN(p) (my[p] < count && s[my[p]].name == p)
inline find_place(p, at) {
    at = my[p];
    IF(kind[p] == NEWER && in_slot[p] != NO_SLOT, at = in_slot[p]);
    IF(kind[p] == NEWER && in_slot[p] == NO_SLOT && !MY_OWN(p),
       FIRST(at, count, p); IF(at == count, at = NO_SLOT))
}
inline look_at_all() {
    healthy = 0; kept = 0;
    for (a : 1 .. P) {
        counted[a] = 0;
        for (b : 0 .. N - 1) {
            counted[a] = counted[a] + (COUNTS_FOR(b, a) -> s[b].used : 0)
        }
        c = alive[a] && in[a] && (counted[a] == real[a] || IS_STEPPED_OVER(a));
        find_place(a, e);
        d = alive[a] && in[a] && kind[a] != OLD && e != NO_SLOT;
        d = (d -> IS_STILL(a, e) && !HAS_LEFT(a, e) && s[e].used == real[a] : 0);
        kept = kept | ((d && (kind[a] == NEW || kind[a] == NEWER)) << a);
        c = (kind[a] == OLD -> c && (SUM(COUNTS_FOR, a) == 1 || IS_BEING_SETTLED(a)) :
                               c && d && COUNTS_FOR(e, a));
        healthy = healthy | (c << a)
    }
}

/* A store of ours. */
#define BY_US(store) \
    d_step { \
        look_at_all(); healthy_before = healthy; kept_before = kept; \
        net[1] = net[1] - counted[1]; net[2] = net[2] - counted[2]; net[3] = net[3] - counted[3]; \
        store; \
        look_at_all(); \
        net[1] = net[1] + counted[1]; net[2] = net[2] + counted[2]; net[3] = net[3] + counted[3]; \
        assert((healthy_before & ~healthy) == 0); \
        assert((kept_before & ~kept) == 0) \
    }
/* By compare-and-swap, or after a look that nothing can make one step with the store: it changes
 * only what was judged, beside a cleaning without the lock. */
#define BY_US_IF(condition, store) BY_US(IF(condition, store))

/* What a process of libvgpu that our work has touched counts, at its end and where it is killed.  A
 * cleaning without the lock can have lowered proc_num again. */
#define IS_RIGHT(p) (!(kept & (1 << p)) || (healthy & (1 << p)) || leaving[p])
#define NOT_LESS(p) (net[p] < 128 || IS_RIGHT(p))
#define AS_BEFORE(p) (net[p] == 0 || IS_RIGHT(p))
#define NEW_WORK() net[1] = 0; net[2] = 0; net[3] = 0
#define WORK_DONE(holds) \
    d_step { \
        look_at_all(); \
        assert(disturbed || (holds(1) && holds(2) && holds(3))); \
        NEW_WORK() \
    }

#define LOCK(who) atomic { lock == 0 -> lock = who; disturbed = cleaning != 0 }
#define LOCK_LIBVGPU(who) atomic { lock == 0 && cleaning == 0 -> lock = who }
#define UNLOCK(who) atomic { assert(lock == who); lock = 0; disturbed = false }

/* A death, of whatever kind, frees the lock: lock.pml is about how. */
#define DIE(p) \
    d_step { \
        IF(lock == p, NEW_WORK(); lock = 0; disturbed = false); \
        IF(cleaning == p, cleaning = 0); \
        alive[p] = false; in[p] = false; leaving[p] = false; real[p] = 0; my[p] = NO_SLOT; \
        in_slot[p] = NO_SLOT \
    }
/* Another process gets the pid: the container has started again. */
#define BE_BORN(p) atomic { lives > 0 -> lives--; alive[p] = true; accounts[p] = ACCOUNTS }

/* ---- libvgpu ------------------------------------------------------------------------- */

/* clear_proc_slot_nolock(): by a newcomer under the lock, and by oom_check(). */
inline clean(p) {
    i = 0;
    do
    :: i >= count -> break
    :: else ->
        q = s[i].name;
        if
        :: q == 0 && kind[p] == OLD -> goto end_hangs
        :: q != 0 && alive[q] -> i++
        :: else -> /* proc_alive() opens /proc: time passes */
            d_step { assert(count > 0); count--; last = count };
            d_step { IF(kind[p] != OLD && count < N, last = count) }; /* a second load of proc_num */
            /* Not interrupted for as long as the tool watches: assumed. */
            d_step {
                s[i].name = s[last].name; s[i].used = s[last].used; s[i].seq = s[last].seq;
                NOTE_TAKEN(i)
            };
            if
            :: kind[p] == NEWER ->
                d_step {
                    IF(my[p] == last, my[p] = i);
                    s[last].name = 0; s[last].used = 0; s[last].seq = 0
                }
            :: else
            fi
        fi
    od;
    skip;
    d_step { i = 0; q = 0; last = 0 }
}

/* add_, rm_gpu_device_memory_usage(). */
inline account_old(p, by) {
    LOCK_LIBVGPU(p);
    d_step { /* each slot with the pid, without a break */
        for (i : 0 .. N - 1) { IF(COUNTS_FOR(i, p), s[i].used = s[i].used + by) }
        i = 0; real[p] = real[p] + by
    };
    UNLOCK(p)
}

/* A process that goes on in a slot that libvgpu has given to another breaks that one's figures:
 * libvgpu's own doing, and not followed further. */
inline account_new(p, by) {
    atomic { IS_STILL_ITS(p) -> s[my[p]].seq++ };
    atomic { IS_STILL_ITS(p) -> s[my[p]].used = s[my[p]].used + by; real[p] = real[p] + by };
    atomic { IS_STILL_ITS(p) -> s[my[p]].seq++ }
}

/* To find the slot and to make its seqlock odd is one step here: some nanoseconds pass in between, in
 * which nobody can see that it is about to be used.  Where there is none, nothing is counted. */
#define IN_SLOT(p) (IS_STILL(p, in_slot[p]))
inline account_newer(p, by) {
    d_step {
        find_place(p, in_slot[p]);
        if
        :: in_slot[p] != NO_SLOT -> s[in_slot[p]].seq++
        :: else -> real[p] = real[p] + by
        fi
    };
    if
    :: in_slot[p] != NO_SLOT ->
        atomic { IN_SLOT(p) ->
            s[in_slot[p]].used = s[in_slot[p]].used + by; real[p] = real[p] + by };
        atomic { IN_SLOT(p) -> s[in_slot[p]].seq++; in_slot[p] = NO_SLOT }
    :: else
    fi
}

proctype libvgpu(byte p) {
    byte i, q, last;
again:
    {
        if :: in[p] -> goto accounting :: else fi;
        LOCK_LIBVGPU(p); /* init_proc_slot_withlock() */
        d_step { FIRST(i, count, p) };
        if
        :: i == N -> UNLOCK(p); goto gone /* exit(-1) */
        :: else
        fi;
        d_step { /* only the last store admits it */
            s[i].name = p; s[i].used = 0; NOTE_TAKEN(i);
            IF(kind[p] != OLD, s[i].seq = 0; my[p] = i)
        };
        d_step { IF(i == count, count++); i = 0; in[p] = true };
        clean(p);
        UNLOCK(p);
accounting:
        do
        :: accounts[p] > 0 ->
            accounts[p]--;
            if
            :: kind[p] == OLD && real[p] == 0 -> account_old(p, 1)
            :: kind[p] == OLD && real[p] == 1 -> account_old(p, 255)
            :: kind[p] == NEW && real[p] == 0 -> account_new(p, 1)
            :: kind[p] == NEW && real[p] == 1 -> account_new(p, 255)
            :: kind[p] == NEWER && real[p] == 0 -> account_newer(p, 1)
            :: kind[p] == NEWER && real[p] == 1 -> account_newer(p, 255)
            fi
#if LOCKLESS
        :: atomic {
               kind[p] != NEWER && cleaning == 0 && !(lock != 0 && lock <= P && kind[lock] != OURS) ->
               cleaning = p; disturbed = lock != 0
           };
            clean(p);
            cleaning = 0
#endif
        :: atomic { kills > 0 -> kills-- }; /* exit_handler() */
            if
            :: kind[p] == NEW ->
                d_step { FIRST(i, N, p); IF(i < N, s[i].name = 0); i = 0; leaving[p] = true };
                if :: real[p] == 1 -> account_new(p, 255) :: true fi /* a destructor that frees */
            :: kind[p] == NEWER ->
                d_step { FIRST(i, N, p); IF(i < N, s[i].name = 0); i = 0; leaving[p] = true };
                if :: real[p] == 1 -> account_newer(p, 255) :: true fi
            :: kind[p] == OLD ->
                LOCK_LIBVGPU(p);
                d_step { FIRST(i, count, p) };
                if
                :: i < count ->
                    s[i].used = 0;
                    count--;
                    d_step {
                        s[i].name = s[count].name; s[i].used = s[count].used; s[i].seq = s[count].seq;
                        NOTE_TAKEN(i)
                    }
                :: else
                fi;
                i = 0
            fi;
            goto gone
        od;
end_hangs: /* 2.8.0 and before, at a slot with pid 0: for ever */
        false;
gone:   i = 0; DIE(p)
    } unless { !alive[p] };
    d_step { i = 0; q = 0; last = 0 };
end_dead: BE_BORN(p);
    goto again
}

/* ---- What this library judges by ----------------------------------------------------- */

/* /proc: whether no live process can be writing to the slot, by its pid alone.  Each live process
 * that maps the file has a slot; else one may have given its pid up in exit_handler(), and still
 * free. */
#define LIVES_HERE(i) (s[i].name != 0 && alive[s[i].name])
#define HAS_SLOT(pid, me) (pid == me || !alive[pid] || SUM(IS_OF, pid) != 0)
#define NOBODY_LEAVES(me) \
    (FAULT == PID_0_DEAD || (HAS_SLOT(1, me) && HAS_SLOT(2, me) && HAS_SLOT(3, me)))
#define IS_NOBODYS(i, me) (!LIVES_HERE(i) && (s[i].name != 0 || NOBODY_LEAVES(me)))
#define BLANK(i) (s[i].used == 0 && s[i].seq == 0)

/*
 * Whether the bytes alone say that a slot at or above `top` is no live process's own: figures
 * without a seqlock are OLD's, which writes below proc_num; and a copy that its process left
 * behind, if it is the only one, is never ahead of the original.
 */
#define COPY(i, at) (i < top && i != at && s[i].name == s[at].name)
#define COPY_AHEAD(i, at) (COPY(i, at) && s[i].seq > s[at].seq + 1)
#define STALE_BY_BYTES(at) \
    ((s[at].used != 0 && s[at].seq == 0) || (SUM(COPY, at) == 1 && SUM(COPY_AHEAD, at) == 1))

/* The tool's watch: what has moved in it, stood still, or become another (unclear). */
#define STILL(i) (s[i].name == w[i].name && s[i].seq == w[i].seq)
#if FAULT == ANY_CHANGE
#define MOVES(i) (s[i].seq != w[i].seq)
#else
#define MOVES(i) (s[i].name == w[i].name && s[i].seq >= w[i].seq + 2)
#endif
#define OTHER_MOVES(i, at) (i != at && s[i].name == s[at].name && MOVES(i))
#define OTHER_UNCLEAR(i, at) \
    (i != at && (s[i].name == s[at].name || w[i].name == s[at].name) && !MOVES(i) && !STILL(i))

/* hr_judge_use(); what is free lies at or above `top`. */
#define FREE 1
#define BLANK_ONE 2
#define AT_WORK 3
#define UNDECIDED 4
#define USE(at) \
    (!STILL(at) && !MOVES(at) -> UNDECIDED : \
    (IS_NOBODYS(at, THE_TOOL) || (s[at].name == 0 && s[at].used == 0 && !ODD(s[at].seq)) -> \
        (STILL(at) -> FREE : UNDECIDED) : \
    (s[at].name == 0 || SUM(OTHER_UNCLEAR, at) -> UNDECIDED : \
    (MOVES(at) -> (SUM(OTHER_MOVES, at) -> UNDECIDED : AT_WORK) : \
    (SUM(OTHER_MOVES, at) || STALE_BY_BYTES(at) -> FREE : \
    (LAYOUT_12 && s[at].seq == 0 -> BLANK_ONE : UNDECIDED))))))

/* hr_empty_slot(): figures, then the seqlock, which a death may have left odd. */
inline empty_slot(at, was) {
    BY_US_IF(s[at].name == was, s[at].used = 0);
    IF(ODD(s[at].seq), BY_US_IF(s[at].name == was, s[at].seq++))
}
#define RENAME(at, from, to) BY_US_IF(s[at].name == from, s[at].name = to)

/* ---- A process of this library --------------------------------------------------------- */

/* take_slot(): our own of before or a dead one's with our pid, else one of the dead, else the
 * first above proc_num that no live process may be writing to.  NO_SLOT if there is none. */
#define IS_FREE(i, me) \
    (IS_NOBODYS(i, me) || s[i].name == me || (s[i].name == 0 && BLANK(i)) || STALE_BY_BYTES(i) || \
     (!LAYOUT_12 && s[i].seq == 0 && (!IS_UNUSED(i, top) || FAULT == TAKE_UNUSED)))

/* In 1.1 a slot behind the last one whose process lives and has not accounted yet, in it or in a
 * copy: OLD does not come back to it, NEW does. */
#define USED_COPY(i, at) (i < at && s[i].name == s[at].name && !BLANK(i))
#define USED_COPY_BELOW(i, at, bound) (i < bound && USED_COPY(i, at))
#define IS_UNUSED(at, bound) \
    (BLANK(at) && !(USED_COPY_BELOW(0, at, bound) || USED_COPY_BELOW(1, at, bound) || \
                    USED_COPY_BELOW(2, at, bound)))

/* hr_settle_stepped_over(): it goes on in that slot, of whichever generation it is. */
inline settle_stepped_over(from, to) {
    for (i : 0 .. N - 1) {
        if
        :: !LAYOUT_12 && FAULT != KEEP_UNUSED && N - 1 - i >= from && N - 1 - i < to &&
           LIVES_HERE(N - 1 - i) && IS_UNUSED(N - 1 - i, N) ->
            for (at : 0 .. N - 1) {
                if
                :: at < N - 1 - i && s[at].name == s[N-1-i].name && BLANK(at) ->
                    RENAME(at, s[N-1-i].name, NOBODY)
                :: else
                fi
            }
        :: else
        fi
    }
    i = 0; at = to
}
inline take(p) {
    do
    :: d_step {
           top = count; at = NO_SLOT;
           for (i : 0 .. N - 1) { IF(i < top && s[i].name == p, at = i) }
           for (i : 0 .. N - 1) { IF(at == NO_SLOT && i < top && s[i].name != 0 && IS_NOBODYS(i, p), at = i) }
           for (i : 0 .. N - 1) { IF(at == NO_SLOT && i >= top && (FAULT == TAKE_LIVE || IS_FREE(i, p)), at = i) }
           i = 0;
           IF(at != NO_SLOT, was = s[at].name)
       };
        if
        :: at == NO_SLOT -> break
        :: else ->
            empty_slot(at, was);
            NOTE_TAKEN(at);
            RENAME(at, was, p);
            if
            :: at < top && s[at].name == p -> my[p] = at; in[p] = true; break
            :: at >= top && s[at].name == p -> /* what lies between counts again */
                was = top;
                BY_US_IF(count == top, count = at + 1; my[p] = at; in[p] = true; top = NO_SLOT);
                if
                :: top == NO_SLOT -> settle_stepped_over(was, my[p]); break
                :: else -> RENAME(at, p, 0)
                fi
            :: else
            fi
        fi
    od;
    top = 0; was = 0
}

/* Slots of our pid below proc_num but the one at `but`: a dead process's with our pid, or copies of
 * ours that libvgpu has made.  We live, so nobody else removes them. */
inline give_up_others(p, but) {
    for (i : 0 .. N - 1) {
        if
        :: i < count && i != but && s[i].name == p -> empty_slot(i, p); RENAME(i, p, NOBODY)
        :: else
        fi
    }
    i = 0
}

#define IS_SETTLED(p) (kind[p] != OLD || !alive[p] || !HAS_TWO_UNUSED(p))
#define IS_MINE(p) (my[p] < count && s[my[p]].name == p && (LAYOUT_12 || SUM(COUNTS_FOR, p) == 1))
#define FORGET_NAME(at, p) IF(at != NO_SLOT && at >= count && s[at].name == p, BY_US(s[at].name = 0))
proctype ours(byte p) {
    byte i, at, top, old, was;
again:
    {
        LOCK(p);
        take(p);
        if :: at == NO_SLOT -> UNLOCK(p); goto gone :: else fi;
        give_up_others(p, at);
        WORK_DONE(NOT_LESS);
        assert(disturbed || (IS_SETTLED(1) && IS_SETTLED(2) && IS_SETTLED(3)));
        UNLOCK(p);
        do
        :: accounts[p] > 0 ->
            accounts[p]--;
            if
            :: LAYOUT_12 && IS_MINE(p)
            :: else -> /* hr_regain_slot(); in older layouts all of the accounting is under the lock */
                LOCK(p);
                old = my[p];
                if
                :: IS_MINE(p) -> at = old
                :: else ->
                    d_step { at = NO_SLOT; for (i : 0 .. N - 1) { IF(COUNTS_FOR(i, p), at = i) } i = 0 };
                    if :: at == NO_SLOT -> take(p) :: else fi;
                    if :: at == NO_SLOT -> UNLOCK(p); goto gone :: else fi;
                    BY_US(my[p] = at; s[at].used = real[p]);
                    IF(ODD(s[at].seq), BY_US(s[at].seq++));
                    give_up_others(p, at)
                fi;
                if :: old != at -> FORGET_NAME(old, p) :: else fi;
                old = 0;
                if :: LAYOUT_12 -> WORK_DONE(NOT_LESS); UNLOCK(p) :: else fi
            fi;
            /* Moved from here on, it goes astray like libvgpu's own: see account_new(). */
            if :: LAYOUT_12 -> atomic { IS_STILL_ITS(p) -> BY_US(s[my[p]].seq++) } :: else fi;
            atomic { IS_STILL_ITS(p) ->
                BY_US(s[my[p]].used = s[my[p]].used + 1 - 2 * real[p]; real[p] = 1 - real[p]) };
            if :: LAYOUT_12 -> atomic { IS_STILL_ITS(p) -> BY_US(s[my[p]].seq++) } :: else fi;
            if :: lock == p -> WORK_DONE(NOT_LESS); UNLOCK(p) :: else fi
        :: real[p] == 0 -> /* detach: the slot stays, empty, with our pid */
            LOCK(p);
            in[p] = false;
            d_step { at = my[p]; my[p] = NO_SLOT };
            FORGET_NAME(at, p);
            give_up_others(p, at);
            UNLOCK(p);
            goto again
        od;
gone:   i = 0; DIE(p)
    } unless { !alive[p] };
    d_step { i = 0; at = 0; top = 0; old = 0; was = 0 };
end_dead: BE_BORN(p);
    goto again
}

/* ---- The tool ---------------------------------------------------------------------------- */

#define FORGET_WATCH() \
    d_step { \
        for (i : 0 .. N - 1) { \
            use[i] = 0; w[i].name = 0; w[i].seq = 0; w[i].used = 0; taken[i] = false \
        } \
        i = 0; j = 0; top = 0; end = 0; has_looked = false \
    }

/* hr_reap(): the dead among the slots in use are emptied where they are.  Who is dead is found out
 * before the lock is taken; under it, a slot that is another one by now, or counts nothing, stays. */
#define COUNTS(i) (s[i].used != 0 || ODD(s[i].seq) || s[i].name == 0)
#define IS_AS_SEEN(i) \
    (FAULT == UNCOMPARED || \
     (s[i].name == w[i].name && s[i].seq == w[i].seq && s[i].used == w[i].used && !taken[i]))
#define IS_DEAD_YET(i, unused) (use[i] == FREE && IS_AS_SEEN(i))
inline reap() {
    d_step {
        for (i : 0 .. N - 1) {
            use[i] = (i < count && IS_NOBODYS(i, THE_TOOL) -> FREE : 0);
            w[i].name = s[i].name; w[i].seq = s[i].seq; w[i].used = s[i].used
        }
        i = 0; has_looked = true
    };
    LOCK(THE_TOOL);
    d_step { end = count == N && SUM(IS_DEAD_YET, 0) == N };
    for (i : 0 .. N - 1) {
        if
        :: atomic { i < count && use[i] == FREE && COUNTS(i) && IS_AS_SEEN(i) -> j = s[i].name };
#if FAULT == MOVE
            BY_US(s[i].used = s[count-1].used; s[i].seq = s[count-1].seq);
            BY_US(s[i].name = s[count-1].name; count--)
#else
            empty_slot(i, j);
            if :: j == 0 -> RENAME(i, 0, NOBODY) :: else fi /* or OLD hangs */
#endif
        :: else
        fi
    }
    i = 0; j = 0;
#if FAULT == CUT
    do
    :: count > 0 && IS_NOBODYS(count - 1, THE_TOOL) -> BY_US(count--); BY_US(s[count].name = 0)
    :: else -> break
    od;
#endif
    if
    :: end && count == N -> /* cut_table(): a newcomer of libvgpu ends where it is full */
        BY_US_IF(count == N, count = 0; j = 1);
        for (i : 0 .. N - 1) { IF(j && lock == THE_TOOL, BY_US(s[i].name = 0)) }
    :: else
    fi;
    skip;
    WORK_DONE(AS_BEFORE);
    FORGET_WATCH();
    UNLOCK(THE_TOOL)
}

/* Of each process that was seen at work in one slot that counts: its copies below, which stand
 * still. */
inline empty_copies(end) {
    for (j : 0 .. N - 1) {
        if
        :: j < end && use[j] == AT_WORK ->
            for (i : 0 .. N - 1) {
                if
                :: i < top && i != j && s[i].name == w[j].name && STILL(i) -> empty_slot(i, w[j].name)
                :: else
                fi
            }
        :: else
        fi
    }
    i = 0; j = 0
}

/* hr_repair_slots(). */
inline repair() {
    d_step { for (i : 0 .. N - 1) { w[i].name = s[i].name; w[i].seq = s[i].seq } i = 0 };
    LOCK(THE_TOOL); /* the watch is as long as it takes to get here */
    d_step { /* find_end() */
        top = count; end = top; j = false;
        for (i : 0 .. N - 1) {
            use[i] = USE(i);
            j = j || (i >= top && use[i] == UNDECIDED && FAULT != OVER_IDLE);
            IF(i >= top && use[i] == AT_WORK && !j, end = i + 1)
        }
        i = 0; j = 0
    };
    if :: FAULT == EMPTY_FIRST -> empty_copies(end) :: else fi;
    for (i : 0 .. N - 1) { /* empty_between(): nothing of it counts yet */
        if
        :: i >= top && i < end && use[i] == FREE ->
            empty_slot(i, s[i].name);
            if
            :: FAULT != KEEP_NAME || s[i].name == 0 -> BY_US(s[i].name = NOBODY)
            :: else
            fi
        :: else
        fi
    }
    i = 0;
    if
    :: end == top
    :: end > top && count == top -> BY_US(count = end)
    :: else -> end = 0 /* libvgpu has lowered it: judge again, another time */
    fi;
    if :: end != 0 -> empty_copies(end) :: else fi;
    WORK_DONE(AS_BEFORE);
    FORGET_WATCH();
    UNLOCK(THE_TOOL)
}

proctype tool() {
    byte i, j, top, end, runs = TOOL;
    byte use[N];
again:
    {
        do
        :: runs > 0 -> runs--; reap()
        :: runs > 0 -> runs--; repair()
        od
    } unless { !alive[THE_TOOL] };
    FORGET_WATCH();
    d_step { NEW_WORK(); alive[THE_TOOL] = true };
    goto again
}

proctype death() {
end_kills:
    do
    :: atomic { kills > 0 && alive[1] -> kills--; DIE(1) }
    :: atomic { kills > 0 && alive[2] -> kills--; DIE(2) }
    :: atomic { kills > 0 && alive[3] -> kills--; DIE(3) }
    :: atomic {
           kills > 0 && alive[THE_TOOL] ->
           kills--;
           WORK_DONE(NOT_LESS);
           DIE(THE_TOOL)
       }
    od
}

#define START(p, k) \
    if \
    :: k == NONE -> skip \
    :: else -> \
        kind[p] = k; alive[p] = true; \
        if :: in[p] && (k == NEW || k == NEWER) -> skip :: else -> my[p] = NO_SLOT fi; \
        in_slot[p] = NO_SLOT; \
        accounts[p] = ACCOUNTS; \
        if :: k == OURS -> run ours(p) :: else -> run libvgpu(p) fi \
    fi

#define SLOT(i, pid, bytes, seqlock) s[i].name = pid; s[i].used = bytes; s[i].seq = seqlock

init {
    atomic {
#if TORN
        SLOT(0, 1, 1, 2); SLOT(1, 3, 1, 3); SLOT(2, 1, 1, 2);
        count = 1; my[1] = 2; real[1] = 1; in[1] = true;
        if
        :: K2 == OLD ->
            SLOT(0, 2, 1, 0); real[2] = 1; in[2] = true;
            if :: SLOT(1, 2, 1, 0) :: SLOT(1, 2, 1, 2) fi
        :: else
        fi;
#endif
        START(1, K1); START(2, K2); START(3, K3);
        alive[THE_TOOL] = true; my[THE_TOOL] = NO_SLOT;
        run tool(); run death()
    }
}
