/*
 * The slots of a region: libvgpu's processes of both generations, a process of this library that
 * is attached, and its tool that reaps and repairs.  `run` beside this file checks it.
 *
 *   K1 K2 K3   the processes: OLD (libvgpu up to 2.8.0: searches its slot by pid, accounts under
 *              the lock), NEW (from 2.8.1 on: remembers its slot, accounts without), OURS, NONE.
 *              All share one file, as an old file that newer processes use is shared.
 *   FOLLOW     NEW's own slot is followed when NEW itself moves it (HAMi 2.8.2 and later)
 *   LOCKLESS   a refused allocation cleans without the lock, as it does in 2.7.1 to 2.10
 *   LAYOUT_12  OLD cannot be in the file
 *   TOOL       runs of the tool; KILLS, LIVES, ACCOUNTS: kills, lives after the first (with the
 *              same pid), changes of each process's accounting
 *   FAULT      a fault that earlier code had, to show that the model finds it
 *
 * The lock is sound here: lock.pml is about it.  Who dies with it gives it back at once.
 *
 * What is proved, at each store of ours: whoever was counted once, in the slot where its next
 * accounting goes, still is; and no slot that a live process writes to, counted or not, loses what
 * stands there.  At the end of each work of ours: nobody's count has changed, but to become right.
 */
#define NONE 0
#define OLD 1
#define NEW 2
#define OURS 3

#define FAULT_NONE 0
#define FAULT_CUT 1         /* lowers proc_num past dead slots while others live */
#define FAULT_PID_0_DEAD 2  /* a slot with pid 0 is nobody's at once */
#define FAULT_MOVE 3        /* reaping moves the last slot into the hole */
#define FAULT_TAKE_LIVE 4   /* takes the slot at proc_num whoever's pid it has */
#define FAULT_ANY_CHANGE 5  /* any change of a seqlock is a process at work */
#define FAULT_EMPTY_FIRST 6 /* copies are emptied before proc_num is raised */
#define FAULT_PLAIN_RAISE 7 /* a store where a compare-and-swap belongs */
#define FAULT_OVER_IDLE 8   /* takes in what is above an undecided slot */
#define FAULT_KEEP_NAME 9   /* a stale slot that is taken in keeps the pid of a live process */

#ifndef FAULT
#define FAULT FAULT_NONE
#endif
#ifndef K3
#define K3 NONE
#endif
#ifndef FOLLOW
#define FOLLOW 0
#endif
#ifndef LOCKLESS
#define LOCKLESS 0
#endif
#ifndef LAYOUT_12
#define LAYOUT_12 0
#endif
#ifndef TOOL
#define TOOL 2
#endif
#ifndef KILLS
#define KILLS 2
#endif
#ifndef LIVES
#define LIVES 0
#endif
#ifndef ACCOUNTS
#define ACCOUNTS 2
#endif
#ifndef N
#define N 3 /* slots */
#endif

#define P 3           /* processes, by their pids 1 to 3 */
#define THE_TOOL 4
#define NOBODY 5      /* a pid that no process has: INT32_MAX in a file */
#define NO_SLOT 15
#define ODD(x) ((x) & 1)

/* The file. */
typedef slot { byte name; byte used; byte seq } /* used: below zero is 255 */
slot s[N];
byte count; /* proc_num */
byte lock;
byte cleaning; /* who cleans without the lock; alone of libvgpu, or that breaks things by itself */

/* The processes. */
byte kind[6], real[6]; /* what each has allocated in truth */
byte my[6];            /* NEW: my_slot; OURS: the slot it remembers */
bool alive[6], in[6];  /* maps the file; has taken a slot */
bool leaving[6];       /* NEW: after exit_handler() */
byte accounts[6];
byte kills = KILLS, lives = LIVES;

/* What the tool's watch has seen first. */
typedef look { byte name; byte seq }
look w[N];

hidden byte a, b, c, d, healthy, kept, healthy_before, kept_before;
hidden byte counted[4];
byte net[4]; /* by how much the work of ours that is under way has changed what counts of each */

#define FIRST(at, top, pid_) \
    at = 0; do :: at < top && s[at].name != pid_ -> at++ :: else -> break od

/*
 * Who is counted once, where its next accounting goes (healthy), and whose figures stand where it
 * goes on from them, counted or not (kept).  OURS has its own books, and may be moved.
 */
inline look_at_all() {
    healthy = 0; kept = 0; a = 1;
    do
    :: a > P -> break
    :: else ->
        counted[a] = 0; b = 0; c = 0; d = 0;
        do
        :: b >= count -> break
        :: else ->
            if
            :: s[b].name == a ->
                counted[a] = counted[a] + s[b].used; c++;
                if :: b == my[a] -> d = 1 :: else fi
            :: else
            fi;
            b++
        od;
        if
        :: !alive[a] || !in[a]
        :: alive[a] && in[a] && kind[a] == OLD ->
            if :: c == 1 && counted[a] == real[a] -> healthy = healthy | (1 << a) :: else fi
        :: alive[a] && in[a] && kind[a] != OLD ->
            if
            :: my[a] != NO_SLOT && s[my[a]].used == real[a] &&
               (s[my[a]].name == a || leaving[a] && s[my[a]].name == 0) ->
                if :: kind[a] == NEW -> kept = kept | (1 << a) :: else fi;
                if :: d && counted[a] == real[a] -> healthy = healthy | (1 << a) :: else fi
            :: else
            fi
        fi;
        a++
    od
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

/* Killed half-way it leaves nobody who counts less than before, but is right. */
#define NOT_LESS(p) (net[p] < 128 || !(kept & (1 << p)) || (healthy & (1 << p)))
/* Whom our work has touched is right now.  (A cleaning without the lock can lower proc_num again
 * at once.) */
#define UNTOUCHED_OR_RIGHT(p) (net[p] == 0 || !(kept & (1 << p)) || (healthy & (1 << p)))
#define WORK_DONE() \
    d_step { \
        look_at_all(); \
        assert(LOCKLESS || (UNTOUCHED_OR_RIGHT(1) && UNTOUCHED_OR_RIGHT(2) && UNTOUCHED_OR_RIGHT(3))); \
        net[1] = 0; net[2] = 0; net[3] = 0 \
    }

#define LOCK(who) atomic { lock == 0 -> lock = who }
#define LOCK_LIBVGPU(who) atomic { lock == 0 && cleaning == 0 -> lock = who }
#define UNLOCK(who) atomic { assert(lock == who); lock = 0 }

/* /proc: whether no live process can be writing to the slot at `at`, by its pid alone. */
#define LIVES_HERE(q) (q != 0 && alive[q])
/* Each live process that maps the file has a slot; else one may have given its pid up in
 * exit_handler(), and still free. */
#define HAS_SLOT(q) (!alive[q] || s[0].name == q || s[1].name == q || s[2].name == q || s[N-1].name == q)
#if FAULT == FAULT_PID_0_DEAD
#define ALL_HAVE_SLOTS(me) true
#else
#define ALL_HAVE_SLOTS(me) ((me == 1 || HAS_SLOT(1)) && (me == 2 || HAS_SLOT(2)) && (me == 3 || HAS_SLOT(3)))
#endif
#define BLANK(at) (s[at].used == 0 && s[at].seq == 0)
#define IS_NOBODYS(at, me) (!LIVES_HERE(s[at].name) && \
    (s[at].name != 0 || ALL_HAVE_SLOTS(me)))

/* hr_empty_slot(): figures, then the seqlock, which a death may have left odd.  Only while the slot
 * still has the pid that was judged: beside a cleaning without the lock a look and a store are not
 * one step in truth, and nothing can make them one.  The pid changes by compare-and-swap. */
inline empty_slot(at, was) {
    BY_US(if :: s[at].name == was -> s[at].used = 0 :: else fi);
    if :: ODD(s[at].seq) -> BY_US(if :: s[at].name == was -> s[at].seq = s[at].seq + 1 :: else fi) :: else fi
}
#define RENAME(at, from, to) BY_US(if :: s[at].name == from -> s[at].name = to :: else fi)

/* A death, of whatever kind, frees the lock: lock.pml is about how. */
#define DIE(p) \
    d_step { \
        if :: lock == p -> net[1] = 0; net[2] = 0; net[3] = 0 :: else fi; \
        alive[p] = false; in[p] = false; leaving[p] = false; real[p] = 0; my[p] = NO_SLOT; \
        if :: lock == p -> lock = 0 :: else fi; \
        if :: cleaning == p -> cleaning = 0 :: else fi \
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
        :: else ->                              /* proc_alive() opens /proc: time passes */
            d_step { assert(count > 0); count--; last = count };
            if :: kind[p] == NEW -> last = count :: else fi; /* a second load of proc_num */
            s[i].name = s[last].name;
            d_step {
                s[i].used = s[last].used; s[i].seq = s[last].seq;
                if
                :: FOLLOW && kind[p] == NEW && my[p] == last ->
                    my[p] = i;
                    if :: i != last -> s[last].name = 0; s[last].used = 0; s[last].seq = 0 :: else fi
                :: else
                fi
            }
        fi
    od;
    skip;
    d_step { i = 0; q = 0; last = 0 }
}

/* add_, rm_gpu_device_memory_usage(). */
inline account_old(p, by) {
    LOCK_LIBVGPU(p);
    d_step { /* each slot with the pid, without a break */
        i = 0;
        do
        :: i >= count -> break
        :: else -> if :: s[i].name == p -> s[i].used = s[i].used + by :: else fi; i++
        od;
        i = 0; real[p] = real[p] + by
    };
    UNLOCK(p)
}

/* Who goes on in a slot that libvgpu has given to another breaks that one's figures: libvgpu's own
 * doing, and not followed further. */
#define IS_STILL_ITS(p) (s[my[p]].name == p || (leaving[p] && s[my[p]].name == 0))
inline account_new(p, by) {
    atomic { IS_STILL_ITS(p) -> s[my[p]].seq = s[my[p]].seq + 1 };
    atomic { IS_STILL_ITS(p) -> s[my[p]].used = s[my[p]].used + by; real[p] = real[p] + by };
    atomic { IS_STILL_ITS(p) -> s[my[p]].seq = s[my[p]].seq + 1 }
}

proctype libvgpu(byte p) {
    byte i, q, last;
again:
    {
        /* init_proc_slot_withlock() */
        LOCK_LIBVGPU(p);
        d_step { FIRST(i, count, p) };
        if
        :: i < count -> d_step { s[i].used = 0; if :: kind[p] == NEW -> s[i].seq = 0; my[p] = i :: else fi }
        :: i >= count && count == N -> UNLOCK(p); goto gone /* exit(-1) */
        :: i >= count && count < N ->
            d_step {
                s[count].name = p; s[count].used = 0;
                if :: kind[p] == NEW -> s[count].seq = 0; my[p] = count :: else fi
            };
            count++
        fi;
        d_step { i = 0; in[p] = true };
        clean(p);
        UNLOCK(p);
        do
        :: accounts[p] > 0 ->
            accounts[p]--;
            if
            :: kind[p] == OLD && real[p] == 0 -> account_old(p, 1)
            :: kind[p] == OLD && real[p] == 1 -> account_old(p, 255)
            :: kind[p] == NEW && real[p] == 0 -> account_new(p, 1)
            :: kind[p] == NEW && real[p] == 1 -> account_new(p, 255)
            fi
#if LOCKLESS
        :: atomic { cleaning == 0 && !(lock != 0 && lock <= P && kind[lock] != OURS) -> cleaning = p };
            clean(p);
            cleaning = 0
#endif
        :: atomic { kills > 0 -> kills-- }; /* exit_handler() */
            if
            :: kind[p] == NEW ->
                d_step {
                    FIRST(i, N, p);
                    if :: i < N -> s[i].name = 0 :: else fi;
                    i = 0; leaving[p] = true
                };
                if :: real[p] == 1 -> account_new(p, 255) :: true fi /* a destructor that frees */
            :: kind[p] == OLD ->
                LOCK_LIBVGPU(p);
                d_step { FIRST(i, count, p) };
                if
                :: i < count ->
                    s[i].used = 0;
                    count--;
                    d_step { s[i].name = s[count].name; s[i].used = s[count].used; s[i].seq = s[count].seq }
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

/* ---- This library -------------------------------------------------------------------- */

/*
 * Whether the bytes alone say that the slot at `at`, at or above `top`, is no live process's own:
 * figures without a seqlock are OLD's, and OLD writes below proc_num; and a copy that its process
 * left behind never has a higher seqlock than the original.
 */
inline find_stale_by_bytes(slot_, top_, answer) {
    a = 0; b = 0; c = 1;
    do
    :: a >= top_ -> break
    :: else ->
        if
        :: s[a].name == s[slot_].name && s[a].used != 0 ->
            b = 1; if :: s[a].seq < s[slot_].seq + 2 -> c = 0 :: else fi
        :: else
        fi;
        a++
    od;
    answer = (s[slot_].used != 0 && s[slot_].seq == 0) || (b && c)
}

/* take_slot(): at = NO_SLOT if there is none that can be had. */
inline take(p) {
    do
    :: true ->
        at = NO_SLOT;
        d_step {
            top = count; yes = 0; i = 0;
            do /* our own, which we left, or a dead one's with our pid */
            :: i < top && s[i].name == p -> at = i; break
            :: i < top && s[i].name != p -> i++
            :: else -> break
            od;
            i = 0;
            do /* one of the dead */
            :: at == NO_SLOT && i < top ->
                if :: IS_NOBODYS(i, p) -> at = i :: else fi; i++
            :: else -> break
            od;
            i = 0;
            if
            :: at == NO_SLOT && top < N ->
                find_stale_by_bytes(top, top, yes);
                if
                :: FAULT == FAULT_TAKE_LIVE || yes || s[top].name == p || IS_NOBODYS(top, p) ||
                   (s[top].name == 0 && BLANK(top)) -> at = top
                :: LAYOUT_12 && LIVES_HERE(s[top].name) && s[top].name != p && BLANK(top) -> at = top; yes = 2
                :: else
                fi
            :: else
            fi;
            if :: at != NO_SLOT -> was = s[at].name :: else fi
        };
        if
        :: at == NO_SLOT -> break
        :: at != NO_SLOT && yes == 2 -> /* it holds nothing: let it count, whosever own it is */
            BY_US(if :: count == top -> count = top + 1 :: else fi)
        :: else ->
            empty_slot(at, was);
            if :: real[p] != 0 -> BY_US(s[at].used = real[p]) :: else fi;
            if
            :: at < top && s[at].name == was -> BY_US(s[at].name = p; my[p] = at; in[p] = true); break
            :: at < top && s[at].name != was -> skip
            :: at >= top ->
                BY_US(s[at].name = p);
                BY_US(if :: count == top -> count = top + 1; my[p] = at; in[p] = true; top = NO_SLOT :: else fi);
                if :: top == NO_SLOT -> break :: else fi
            fi
        fi
    od;
    yes = 0; top = 0; was = 0
}

/* Slots of our pid below proc_num but the one at `but`: a dead process's with our pid, or copies of
 * ours that libvgpu has made.  We live, so nobody else removes them. */
inline empty_our_others(p, but) {
    i = 0;
    do
    :: i >= count -> break
    :: else -> if :: i != but && s[i].name == p && s[i].used != 0 -> empty_slot(i, p) :: else fi; i++
    od;
    i = 0
}

#define IS_MINE(p) (my[p] < count && s[my[p]].name == p)
proctype ours(byte p) {
    byte i, at, top, yes, old, was;
again:
    {
        LOCK(p);
        take(p);
        if :: at == NO_SLOT -> UNLOCK(p); goto gone :: else fi;
        empty_our_others(p, at);
        WORK_DONE();
        UNLOCK(p);
        do
        :: accounts[p] > 0 ->
            accounts[p]--;
            if
            :: IS_MINE(p) && LAYOUT_12
            :: else -> /* regain_slot(); in older layouts all of the accounting is under the lock */
                LOCK(p);
                d_step {
                    old = my[p]; at = old;
                    if :: IS_MINE(p) -> skip :: else -> FIRST(at, count, p) fi
                };
                if
                :: at == old && at < count -> skip /* a repair has taken it in meanwhile */
                :: at != old && at < count ->
                    empty_our_others(p, at);
                    BY_US(s[at].used = real[p]; my[p] = at);
                    if :: ODD(s[at].seq) -> BY_US(s[at].seq = s[at].seq + 1) :: else fi
                :: at >= count -> take(p)
                fi;
                if :: at == NO_SLOT -> UNLOCK(p); goto gone :: else fi;
                if :: old >= count && s[old].name == p -> BY_US(s[old].name = 0) :: else fi;
                old = 0;
                if :: LAYOUT_12 -> UNLOCK(p) :: else fi
            fi;
            /* Moved from here on, it goes astray like libvgpu's own: see account_new(). */
            atomic { IS_STILL_ITS(p) -> BY_US(s[my[p]].seq = s[my[p]].seq + 1) };
            atomic { IS_STILL_ITS(p) -> BY_US(s[my[p]].used = s[my[p]].used + 1 - 2 * real[p]; real[p] = 1 - real[p]) };
            atomic { IS_STILL_ITS(p) -> BY_US(s[my[p]].seq = s[my[p]].seq + 1) };
            if :: lock == p -> UNLOCK(p) :: else fi
        :: real[p] == 0 -> /* detach: the slot stays, empty, with our pid */
            LOCK(p);
            in[p] = false;
            empty_our_others(p, NO_SLOT);
            if :: my[p] >= count && s[my[p]].name == p -> BY_US(s[my[p]].name = 0) :: else fi;
            my[p] = NO_SLOT;
            UNLOCK(p);
            goto again
        od;
gone:   i = 0; DIE(p)
    } unless { !alive[p] };
    d_step { i = 0; at = 0; top = 0; yes = 0; old = 0; was = 0 };
end_dead: BE_BORN(p);
    goto again
}

#define SAME_PID(at) (s[at].name == w[at].name)
#define STILL(at) (SAME_PID(at) && s[at].seq == w[at].seq)
#if FAULT == FAULT_ANY_CHANGE
#define MOVES(at) (s[at].seq != w[at].seq)
#else
#define MOVES(at) (SAME_PID(at) && s[at].seq >= w[at].seq + 2)
#endif

/* hr_reap(): the dead among the slots in use are emptied where they are. */
inline reap() {
    LOCK(THE_TOOL);
    i = 0;
    do
    :: i >= count -> break
    :: else ->
        if
#if FAULT == FAULT_MOVE
        :: IS_NOBODYS(i, THE_TOOL) ->
            empty_slot(i, s[i].name);
            BY_US(s[i].used = s[count-1].used; s[i].seq = s[count-1].seq);
            BY_US(s[i].name = s[count-1].name);
            BY_US(count--)
#endif
        :: atomic { IS_NOBODYS(i, THE_TOOL) -> j = s[i].name };
            empty_slot(i, j);
            if :: j == 0 -> RENAME(i, 0, NOBODY) :: else fi; /* or OLD hangs */
            j = 0; i++
        :: else -> i++
        fi
    od;
    i = 0;
    do /* lower proc_num where nobody else maps the file */
    :: count > 0 && ((FAULT == FAULT_CUT && IS_NOBODYS(count - 1, THE_TOOL)) ||
                     !(alive[1] || alive[2] || alive[3])) ->
        BY_US(count--);
        BY_US(s[count].name = 0)
    :: else -> break
    od;
    i = 0;
    WORK_DONE();
    UNLOCK(THE_TOOL)
}

/* How the slot at `at`, at or above `top`, is judged. */
#define FREE 1
#define REAL 2
#define STALE 3
#define UNDECIDED 4
inline judge(at_, top_) {
    find_stale_by_bytes(at_, top_, d);
    a = 0; b = 0; c = 0; /* b: another of its pid is at work; c: one below is neither at work nor still */
    do
    :: a >= N -> break
    :: else ->
        if
        :: a != at_ && s[a].name == s[at_].name && MOVES(a) -> b = 1
        :: a < top_ && s[a].name == s[at_].name && !MOVES(a) && !STILL(a) -> c = 1
        :: else
        fi;
        a++
    od;
    if
    :: IS_NOBODYS(at_, THE_TOOL) -> class[at_] = FREE
    :: s[at_].name == 0 && !IS_NOBODYS(at_, THE_TOOL) -> class[at_] = (BLANK(at_) -> FREE : UNDECIDED)
    :: else ->
        class[at_] = ((MOVES(at_) && !b && !c) -> REAL :
            (((STILL(at_) && b && !MOVES(at_)) || d) -> STALE : UNDECIDED))
    fi
}

/* hr_repair_slots(). */
inline repair() {
    d_step { i = 0; do :: i < N -> w[i].name = s[i].name; w[i].seq = s[i].seq; i++ :: else -> break od; i = 0 };
    LOCK(THE_TOOL); /* the watch is as long as it takes to get here */
    d_step {
        top = count; target = NO_SLOT; i = top;
        do
        :: i >= N -> break
        :: else ->
            judge(i, top);
            if
            :: class[i] == UNDECIDED && FAULT != FAULT_OVER_IDLE -> break
            :: class[i] == REAL -> target = i
            :: else
            fi;
            i++
        od;
        i = 0
    };
    /* Doubles among the slots in use: one is at work, the others stand still. */
    do
    :: i >= top -> break
    :: else ->
        d_step {
            a = 0; yes = false;
            do
            :: a >= top -> break
            :: else -> if :: a != i && s[a].name == s[i].name && MOVES(a) -> yes = true :: else fi; a++
            od;
            yes = yes && STILL(i) && LIVES_HERE(s[i].name)
        };
        if :: yes -> empty_slot(i, s[i].name) :: else fi;
        i++
    od;
    skip;
    d_step { i = top; yes = false };
#if FAULT == FAULT_EMPTY_FIRST
    empty_copies();
#endif
    if
    :: target != NO_SLOT ->
        do /* what will be taken in between: nothing of it counts yet */
        :: i > target -> break
        :: else ->
            if
            :: class[i] == FREE || class[i] == STALE ->
                empty_slot(i, s[i].name);
#if FAULT == FAULT_KEEP_NAME
                if :: class[i] == FREE && s[i].name == 0 -> BY_US(s[i].name = NOBODY) :: else fi
#else
                BY_US(s[i].name = NOBODY)
#endif
            :: else
            fi;
            i++
        od;
        i = 0;
        if
        :: count == top || FAULT == FAULT_PLAIN_RAISE -> BY_US(count = target + 1)
        :: else -> target = NO_SLOT /* libvgpu has lowered it: judge again, another time */
        fi;
        if :: target != NO_SLOT -> empty_copies() :: else fi
    :: else
    fi;
    WORK_DONE();
    d_step {
        i = 0;
        do :: i < N -> class[i] = 0; w[i].name = 0; w[i].seq = 0; i++ :: else -> break od;
        i = 0; top = 0; target = 0
    };
    UNLOCK(THE_TOOL)
}

/* What libvgpu left below of those that are at work above. */
inline empty_copies() {
    j = top;
    do
    :: j > target || j >= N -> break
    :: else ->
        i = 0;
        do
        :: class[j] == REAL && i < top ->
            if :: s[i].name == s[j].name -> empty_slot(i, s[j].name) :: else fi; /* judged: each stands still */
            i++
        :: else -> break
        od;
        j++
    od;
    skip;
    d_step { i = 0; j = 0 }
}

proctype tool() {
    byte i, j, top, target, yes, runs = TOOL;
    byte class[N];
again:
    {
        do
        :: runs > 0 -> runs--; reap()
        :: runs > 0 -> runs--; repair()
        od
    } unless { !alive[THE_TOOL] };
    d_step {
        i = 0;
        do :: i < N -> class[i] = 0; w[i].name = 0; w[i].seq = 0; i++ :: else -> break od;
        net[1] = 0; net[2] = 0; net[3] = 0;
        i = 0; j = 0; top = 0; target = 0; yes = 0; alive[THE_TOOL] = true
    };
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
           d_step { look_at_all(); assert(NOT_LESS(1) && NOT_LESS(2) && NOT_LESS(3)) };
           DIE(THE_TOOL)
       }
    od
}

#define START(p, k) \
    if \
    :: k == NONE -> skip \
    :: else -> \
        kind[p] = k; my[p] = NO_SLOT; alive[p] = true; accounts[p] = ACCOUNTS; \
        if :: k == OURS -> run ours(p) :: else -> run libvgpu(p) fi \
    fi

init {
    atomic {
        START(1, K1); START(2, K2); START(3, K3);
        alive[THE_TOOL] = true; my[THE_TOOL] = NO_SLOT;
        run tool(); run death()
    }
}
