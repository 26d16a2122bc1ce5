/*
 * The lock of a region: libvgpu's waiters of both generations, this library's writers with each
 * signature, and its recovery.  `make models` checks it; protocol.md says what that proves.
 *
 *   A1 A2 A3  the actors: OLD (libvgpu up to 2.8.0), NEW (from 2.8.1 on), PID, FOREIGN, MARKED
 *             (ours, by signature: a pid, a number, a pid whose byte is locked) or NONE.  Each opens
 *             the file when it likes, so each is a newcomer too.  Those that are MARKED have the same
 *             pid, one after the other, and differ in the upper half of the signature.
 *   LAYOUT    12: owner_pid and semaphore change in one 16-byte compare-and-swap; 11: also, and
 *             taking over excludes libvgpu's repair by its range
 *   STOPS     who may be stopped for longer than recovery watches an unsigned lock:
 *             1: processes of this library; 2: libvgpu's too, which recovery cannot tell from dead
 *   UNEXCUSED what libvgpu may not break either (0: what it does alone is excused)
 *   FAULT     a fault put in, to show that the model finds it (0: none)
 *
 * A kill can come before each statement.  What is atomic is one load, one compare-and-swap or
 * one system call, with notes (broken_by and the like) that no actor acts on.
 */
#define NONE 0
#define OLD 1
#define NEW 2
#define PID 3
#define FOREIGN 4
#define MARKED 5

#define FRESH_REFERENCE 1 /* the watch compares with what stands at its start, not the judged */
#define ALONE_AT_ONCE 2   /* no watch where nobody mapped the file at the scan */
#define NO_RANGE 3        /* a writer takes over without libvgpu's range */
#define SECOND_LOOK 4     /* two steps, with a look at value after signing, at owner before posting */
#define BYTE_ASKED 5      /* the byte of a number is asked for, not kept over the swap */
#define NUMBER_REUSED 6   /* a number is drawn that owner_pid is signed with */
#define BYTE_FIRST 7      /* who detaches lets its byte go before it has given the lock back */
#define BYTE_SHARED 8     /* two processes with one pid are attached at once */
#define PID_ALONE 9       /* the upper half is the same in each life of a pid */

#if FAULT == SECOND_LOOK
#define IN_TWO_STEPS
#endif
#ifdef IN_TWO_STEPS
#define looks_free (value > 0)
#define lower_value() value = (got -> 0 : value)
#else
#define looks_free (value > 0 && owner == 0)
#define lower_value() skip
#endif

#define needs_range (LAYOUT != 12 && FAULT != NO_RANGE)

#define me _pid /* actors are 1 to 3; 0 is the world, which kills */
/* Signatures from 9 on have a byte: 9 and 10 are numbers, from 12 on there is one for each actor
 * that is MARKED, with the byte of their pid. */
#define FOREIGN_OWNER 8
#define MARKED_OWNER 11
#define PID_BYTE 3
#define has_byte(o) (o > FOREIGN_OWNER)
#define has_pid_byte(o) (o > MARKED_OWNER)
#define is_foreign(o) (o > FOREIGN_OWNER && o < MARKED_OWNER)
#define number_of(o) (o > MARKED_OWNER -> PID_BYTE : o - FOREIGN_OWNER)
#if FAULT == PID_ALONE
#define marked_with(i) (MARKED_OWNER + 1)
#else
#define marked_with(i) (MARKED_OWNER + i)
#endif
#define has_number(k) (k == FOREIGN || k == MARKED)
#define is_ours(k) (k == PID || has_number(k))

/* The file: the semaphore's value; owner_pid, an actor or FOREIGN_OWNER + a number. */
byte value = 1, owner = 0;

/* The kernel: who holds which lock (0: nobody), who lives, who maps the file. */
byte host_lock, range_lock, byte_lock[4];
bool alive[4], mapped[4];
byte kind[4], drawn[4]; /* drawn: the number of a handle's signature, 0 before it has one */

/* Notes. */
bool unsigned_[4];  /* has the semaphore, and nothing in the file says so */
bool inside[4];     /* was told that the lock is its own */
bool home[4];       /* wants nothing */
bool fixing;        /* fix_lock_shrreg() is between judging and storing */
bool killed, calm;  /* somebody was killed; nobody begins anything any more, */
bool ending;        /* nor do those that wait for their pid's byte: the last one has begun */
byte broken_by = 0; /* libvgpu's first step that robbed somebody; what follows is its own doing: */
#define FORCED 1    /* up to 2.8.0: owner was 0 at one look, so it enters */
#define JUDGED 2    /* no such pid here, so it is dead: a live holder of another namespace */
#define BOTH 3      /* 2.8.1 frees what 2.8.0 is just taking over */

#define any(what) (what(1) || what(2) || what(3))
#define signature(i) \
    (kind[i] == FOREIGN -> FOREIGN_OWNER + drawn[i] : (kind[i] == MARKED -> marked_with(i) : i))
#define mine signature(me)
/* Of our pid, while we have not the lock: a former process's. */
#define is_own(o) (kind[me] == MARKED && has_pid_byte(o))
#define lives_as(o, i) (alive[i] && mapped[i] && signature(i) == o && !(is_former(o, i)))
#define is_former(o, i) (has_pid_byte(o) && drawn[i] == 0)
#define signer_lives(o) (lives_as(o, 1) || lives_as(o, 2) || lives_as(o, 3))
#define other_inside(i) (inside[i] && i != me)
#define other_unsigned(i) (unsigned_[i] && i != me)
#define other_maps(i) (mapped[i] && i != me)
#define is_coming(i) (kind[i] == MARKED && drawn[i] == 0 && byte_lock[PID_BYTE] == 0)
#define other_busy(i) (i != me && alive[i] && (!home[i] || is_coming(i)))
#define blame_if(yes, what) broken_by = (yes && broken_by == 0 -> what : broken_by)
#define excused (broken_by != 0 && broken_by != UNEXCUSED)

/* Never two inside, and never a value above 1, by a step of ours. */
#define enter_if(yes) \
    inside[me] = inside[me] || yes; unsigned_[me] = unsigned_[me] && !yes; \
    assert(!yes || excused || !any(other_inside))
#define check_value() assert(excused || value <= 1)

/* ---- libvgpu ------------------------------------------------------------------------------ */

inline libvgpu_post() /* sem_post(); 3 stands for more */
{
    atomic { value = (value < 3 -> value + 1 : 3); unsigned_[me] = false; check_value() }
}

inline libvgpu_unlock() /* unlock_shrreg() */
{
    atomic { inside[me] = false; unsigned_[me] = true; owner = 0 }
    libvgpu_post()
}

/* proc_alive() in the container: a foreign signature is nobody's pid. */
#define has_the_pid(i) (alive[i] && mapped[i] && kind[i] == MARKED)
#define looks_dead(o) \
    (is_foreign(o) || (has_pid_byte(o) -> !any(has_the_pid) : !signer_lives(o)))
#define kicks(o) (o == me || (o != 0 && looks_dead(o)))

/*
 * lock_shrreg() and fix_lock_shrreg() up to 2.8.0.  A time-out can come whenever the value is 0:
 * the deadline counts from the waiter's own beginning, and is not renewed once it has passed.
 */
proctype Old() provided(alive[_pid])
{
    byte seen;
    bool robs;
    atomic { mapped[me] = true; home[me] = true }
    do
    :: atomic { !calm -> home[me] = false }
wait:   if
        :: atomic { value > 0 -> value--; unsigned_[me] = true } /* sem_timedwait(): 0 */
            atomic { owner = me; enter_if(true) }
        :: value == 0 -> seen = owner; /* ETIMEDOUT, and then the owner is read */
            if
            :: atomic { !kicks(seen) -> seen = 0; goto wait }
            :: kicks(seen)
            :: atomic { seen == 0 -> /* the 31st: "fix current_owner 0" */
                    blame_if((any(other_inside) || any(other_unsigned) || value > 0 || owner != 0),
                             FORCED);
                    owner = me
                }
            fi;
            atomic { range_lock == 0 -> range_lock = me } /* fix_lock_shrreg(): lockf */
            atomic { fixing = kicks(owner); seen = 0;
                     robs = fixing && owner != me && signer_lives(owner) }
            if
            :: atomic { !fixing -> range_lock = 0; goto wait }
            :: atomic { fixing -> blame_if(robs, JUDGED);
                    owner = me; fixing = false; robs = false; enter_if(true) }
                range_lock = 0
            fi
        fi;
        libvgpu_unlock();
        home[me] = true
    od
}

/* lock_shrreg() from 2.8.1 on.  It exits after 5 minutes; a kill stands for that. */
proctype New() provided(alive[_pid])
{
    byte seen;
    atomic { mapped[me] = true; home[me] = true }
    do
    :: atomic { !calm -> home[me] = false }
wait:   if
        :: atomic { value > 0 -> value--; unsigned_[me] = true }
            atomic { owner = me; enter_if(true) }
        :: value == 0 -> seen = owner; /* ETIMEDOUT, and then the owner is read */
            if
            :: atomic { seen == 0 || !looks_dead(seen) -> seen = 0; goto wait }
            :: seen != 0 && looks_dead(seen)
            fi;
            if
            :: atomic { owner == seen -> /* compare-and-swap to 0, then a post */
                    blame_if(signer_lives(seen), JUDGED);
                    blame_if(fixing, BOTH);
                    owner = 0; seen = 0; unsigned_[me] = true
                }
                libvgpu_post()
            :: atomic { owner != seen -> seen = 0 }
            fi;
            goto wait
        fi;
        libvgpu_unlock();
        home[me] = true
    od
}

/* ---- This library -------------------------------------------------------------------------- */

/* give_back_work(): lost where owner_pid is not ours any more; then nothing is posted. */
inline give_back()
{
    byte_lock[drawn[me]] = (FAULT == BYTE_FIRST && kind[me] == MARKED -> 0 : byte_lock[drawn[me]]);
#ifdef IN_TWO_STEPS
    atomic { inside[me] = false; got = owner == mine; unsigned_[me] = got;
             owner = (got -> 0 : owner) }
    got = got && owner == 0;
    atomic { value = (got && value == 0 -> 1 : value); got = false; unsigned_[me] = false }
#else
    atomic { inside[me] = false; got = owner == mine;
             owner = (got -> 0 : owner); value = (got -> 1 : value); got = false }
#endif
}

/* attempt_work(); `got` says whether the lock is ours. */
inline take()
{
#ifdef IN_TWO_STEPS
    atomic { unsigned_[me] = value > 0; value = (value > 0 -> value - 1 : 0) }
    atomic { got = unsigned_[me] && owner == 0; owner = (got -> mine : owner); unsigned_[me] = false }
#if FAULT == SECOND_LOOK
    got = got && value == 0;
    atomic { owner = (!got && owner == mine -> 0 : owner) }
#endif
    atomic { enter_if(got) }
    lower_value()
#else
    atomic { got = value > 0 && owner == 0; enter_if(got);
             owner = (got -> mine : owner); value = (got -> 0 : value) }
#endif
}

/* hr_swap_lock() that takes over: our signature for `gone`, nobody's or a dead one's. */
inline swap_owner(gone)
{
    atomic {
#ifdef IN_TWO_STEPS
        got = owner == gone;
#else
        got = owner == gone && value == was;
        value = (got -> 0 : value);
#endif
        assert(!got || gone == 0 || !signer_lives(gone) || (is_own(gone) && gone == mine));
        owner = (got -> mine : owner);
        enter_if(got)
    }
}

/* take_over(): who has the byte of a signature knows that the signer is dead; its own signature,
 * while it has not the lock, is that of a process whose pid it has got. */
#define byte_of(o) byte_lock[number_of(o)]
#define lets_go(o) (FAULT != BYTE_ASKED && !is_own(o))
inline take_over_proved()
{
    if
    :: atomic { byte_of(seen) == 0 || is_own(seen) ->
            byte_of(seen) = (FAULT == BYTE_ASKED -> byte_of(seen) : me) }
        if
        :: atomic { needs_range && range_lock == 0 -> range_lock = me }
            swap_owner(seen);
            range_lock = 0
        :: needs_range && range_lock != 0
        :: !needs_range -> swap_owner(seen)
        fi;
        atomic { byte_of(seen) = (lets_go(seen) -> 0 : byte_of(seen)) }
    :: atomic { byte_of(seen) != 0 && !is_own(seen) -> skip }
    fi
}

/* draw_numbers(): a number is ours once its byte is, and nobody has signed with it.  lock_own_byte():
 * the byte of a pid is; another process that has it locked, for longer than a moment, is attached. */
#define stands(n) (owner == FOREIGN_OWNER + n && kind[me] == FOREIGN && FAULT != NUMBER_REUSED)
#define is_free(n) (byte_lock[n] == 0 || FAULT == BYTE_SHARED)
inline draw()
{
    if
    :: atomic { kind[me] == FOREIGN && is_free(1) -> seen = 1; byte_lock[1] = me }
    :: atomic { kind[me] == FOREIGN && is_free(2) -> seen = 2; byte_lock[2] = me }
    :: atomic { kind[me] == MARKED && is_free(PID_BYTE) && !ending ->
            home[me] = false; seen = PID_BYTE; byte_lock[PID_BYTE] = me }
    fi;
    atomic { drawn[me] = (stands(seen) -> 0 : seen);
             byte_lock[seen] = (drawn[me] != 0 -> me : 0); seen = 0 }
}

/* stands_still(): executable when value and owner stand as they were judged.  That is no proof
 * against one that has run and is unsigned now; such moments are shorter than the watch. */
#define runs_unsigned(i) (unsigned_[i] && STOPS < 2 && !is_ours(kind[i]))
#define stood_still (value == was && owner == seen && !any(runs_unsigned))

/*
 * set_value(): only where the judged state stands.  In two steps only the value is compared; where
 * the owner has gone since it was judged, lowering has taken the semaphore, and we sign for it.
 */
inline set_value(wanted)
{
#ifdef IN_TWO_STEPS
    atomic { got = value == was && was != wanted; value = (got -> wanted : value) }
    atomic { got = got && wanted == 0 && owner == 0; owner = (got -> mine : owner); enter_if(got) }
#else
    atomic { value = (value == was && owner == seen -> wanted : value) }
#endif
}

/* recover_work(); host lock and, up to 1.1, libvgpu's range are held. */
inline recover_held()
{
    was = value;
    seen = owner;
    /* judge_for_recovery(): right about everybody who was there before it. */
    atomic { gone = !signer_lives(seen); alone = !any(other_maps) }
    if
    :: seen == 0 && was == 0 ->
        atomic { was = (FAULT == FRESH_REFERENCE -> value : was);
                 seen = (FAULT == FRESH_REFERENCE -> owner : seen) }
        if
        :: atomic { stood_still || (FAULT == ALONE_AT_ONCE && alone) -> was = 0 }
            swap_owner(0)
        :: !last /* it moves, or the watch is cut short */
        fi
    :: seen == 0 && was > 1 -> set_value(1)
    :: is_own(seen) -> swap_owner(seen); lower_value()
    :: has_byte(seen) && seen != mine && !is_own(seen) ->
        if
        :: atomic { byte_of(seen) == 0 -> byte_of(seen) = me }
            swap_owner(seen);
            lower_value();
            byte_of(seen) = 0
        :: atomic { byte_of(seen) != 0 -> skip }
            set_value(0) /* its holder lives and is inside */
        fi
    :: seen != 0 && !has_byte(seen) && gone -> swap_owner(seen); lower_value()
    :: seen != 0 && !has_byte(seen) && !gone -> set_value(0)
    :: else
    fi;
    if :: got -> give_back() :: else fi
}

/* hr_recover_lock() */
inline recover()
{
    if
    :: atomic { host_lock == 0 -> host_lock = me; recovering = true }
        if
        :: atomic { LAYOUT == 12 || range_lock == 0 -> range_lock = (LAYOUT == 12 -> 0 : me) }
            recover_held();
            range_lock = (LAYOUT == 12 -> range_lock : 0)
        :: !last
        fi;
        atomic { host_lock = 0; recovering = false }
    :: !last
    fi;
    atomic { seen = 0; was = 0; gone = false; alone = false }
}

/* A writer.  The last one left must find the lock in order, or be able to put it in order. */
proctype Ours() provided(alive[_pid])
{
    byte seen, was;
    bool got, gone, alone, recovering, last, attached;
    mapped[me] = true;
open:
    do
    :: atomic { has_number(kind[me]) && drawn[me] == 0 -> home[me] = kind[me] == MARKED }
        draw()
    :: else -> break
    od;
    if :: kind[me] == MARKED -> goto locking /* attaching takes the lock */ :: else -> home[me] = true fi;
    do
    :: atomic { !calm -> home[me] = false }
locking:
        do /* hr_lock(), and hr_unlock() where that succeeded */
        :: got -> give_back(); attached = kind[me] == MARKED; break
        :: !got && looks_free -> take()
        :: atomic { !got && !looks_free -> was = value }
            seen = owner;
            if :: has_byte(seen) && (seen != mine || is_own(seen)) -> take_over_proved() :: else fi;
            atomic { seen = 0; was = 0 }
        :: !got -> break /* timed out */
        od;
        if
        :: atomic { kind[me] == MARKED && !attached -> byte_lock[PID_BYTE] = 0; drawn[me] = 0 }
            goto open
        :: else
        fi;
        home[me] = true
    :: atomic { !calm -> home[me] = false }
        recover();
        home[me] = true
    :: atomic { !calm && drawn[me] != 0 -> /* another handle, or attached anew: another number */
            byte_lock[drawn[me]] = 0; drawn[me] = 0; attached = false; home[me] = false; goto open }
    :: atomic { calm && !any(other_busy) -> home[me] = false; last = true; ending = true }
        assert(killed || excused || (value == 1 && owner == 0));
        recover();
        assert(value == 1 && owner == 0);
        break
    od
}

/* The world: kills anybody at any time, and at some time wants the end. */
init {
    byte i, j;
    atomic {
        kind[1] = A1; kind[2] = A2; kind[3] = A3;
        for (i : 1 .. 3) {
            alive[i] = kind[i] != NONE;
            if :: kind[i] == NEW -> run New() :: is_ours(kind[i]) -> run Ours()
            :: else -> run Old() fi
        }
    }
end:
    do
    :: atomic {
            if :: alive[1] -> i = 1 :: alive[2] -> i = 2 :: alive[3] -> i = 3 fi;
            alive[i] = false; mapped[i] = false; inside[i] = false; unsigned_[i] = false;
            killed = true;
            fixing = fixing && range_lock != i;
            host_lock = (host_lock == i -> 0 : host_lock);
            range_lock = (range_lock == i -> 0 : range_lock);
            for (j : 1 .. 3) { byte_lock[j] = (byte_lock[j] == i -> 0 : byte_lock[j]) }
            i = 0; j = 0
        }
    :: !calm -> calm = true
    od
}
