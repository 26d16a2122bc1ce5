/*
 * Charging against a limit: two processes that add up, compare and add.  `make models` checks it.
 *
 *   A B   who they are: LOCKED (HAMi-core from September 2026 on, and this library) does all of it
 *         under the lock; BESIDE (HAMi-core from 2.8.1 to 2.10) takes no lock
 *   FAULT  CONFIRM: this library without the lock, as it was: it adds, adds up again, and takes its
 *         charge back if the limit is passed
 *
 * What is proved: what was granted never passes the limit, which is one unit.  A death gives the
 * lock back, and what a dead process has added counts on: lock.pml and slots.pml are about that.
 */
#define LOCKED 1
#define BESIDE 2
#define CONFIRM 3
#define LIMIT 1

byte used[3], granted, lock, kills = 1;
bool alive[3];

#define SUM (used[1] + used[2])
#define TAKE(p) atomic { lock == 0 -> lock = p }

/* Read one after the other, as no single step reads both. */
inline add_up(p) {
    seen = used[1]; seen = seen + used[2]
}

proctype process(byte p; byte kind) {
    byte seen;
    {
        if :: kind == LOCKED -> TAKE(p) :: else fi;
        add_up(p);
        if
        :: seen + 1 <= LIMIT ->
            used[p] = 1;
            if
            :: kind == CONFIRM ->
                add_up(p);
                if
                :: seen <= LIMIT -> granted++
                :: else -> used[p] = 0
                fi
            :: else -> granted++
            fi
        :: else
        fi;
        if :: kind == LOCKED -> lock = 0 :: else fi;
        assert(granted <= LIMIT)
    } unless { !alive[p] };
    d_step { seen = 0; if :: lock == p -> lock = 0 :: else fi }
}

init {
    atomic { alive[1] = true; alive[2] = true; run process(1, A); run process(2, B) };
    do
    :: atomic { kills > 0 -> kills--; alive[1] = false }
    :: atomic { kills > 0 -> kills--; alive[2] = false }
    :: break
    od
}
