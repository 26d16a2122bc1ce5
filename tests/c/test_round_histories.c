/*
 * Rounds of a search (search_round.h) against a model of them, in histories by chance: calls that
 * are cut short and gone on with, while processes come, fork, map files and end, slots change, and
 * files are made anew under the same inode number.
 *
 * Above all: a process that may still write to a slot that a call is about is never ruled out.  It
 * mapped the file when the slot became as it stands, or was forked by one that did.  That holds too
 * where a slot is left as it was before it was taken, if each search has seen its name meanwhile.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "handle.h"
#include "process_stats.h"
#include "search_round.h"

enum {
    PROCS = 2, /* each with processes of its own, under the same pids */
    PIDS = 7,
    SLOTS = 4,
    FILES = 3,   /* all have one inode number */
    PLACES = 16, /* for rounds that are kept */
    HISTORIES = 400 / SHARE_OF_WORK,
    STEPS = 250
};

static char directories[PROCS][4200];
static int descriptors[PROCS];
static unsigned seed;
static long now;

static int chance(int of)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return (int)(seed % (unsigned)of);
}

/* ---- The world ------------------------------------------------------------------------- */

static struct process {
    uint64_t start; /* 0: there is none */
    long mapped_since[FILES];
} processes[PROCS][PIDS];

static struct slot {
    bool is_nameless;
    uint64_t seqlock, bytes;
    long since; /* it stands so */
    /* With a name: as it stood when it was taken, and whose searches have seen the name. */
    uint64_t former_seqlock, former_bytes;
    bool is_seen[PROCS];
} slots[FILES][SLOTS];

static uint64_t born_ns[FILES];
static uint64_t last_start, last_bytes, last_birth;

/* Not in the order in which they are made, and with names of several lengths. */
static uint32_t number_of(int pid)
{
    return (uint32_t)(pid % 2 == 0 ? 9 - pid : 100 * (pid + 1));
}

static const char *name_of(int pid)
{
    static char name[12];
    snprintf(name, sizeof name, "%u", number_of(pid));
    return name;
}

static void write_stat(int proc, int pid)
{
    char path[sizeof directories[0] + 32], text[160];
    snprintf(path, sizeof path, "%s/%s/stat", directories[proc], name_of(pid));
    if (processes[proc][pid].start == 0) {
        unlink(path);
        return;
    }
    int length =
        snprintf(text, sizeof text, "%s (a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 %llu 0 0 0 0 0 0",
                 name_of(pid), (unsigned long long)processes[proc][pid].start);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    NEED(file >= 0 && write(file, text, (size_t)length) == length && close(file) == 0);
}

/* Its pid is another process's from now on, or nobody's. */
static void replace_process(int proc, int pid)
{
    struct process *process = &processes[proc][pid];
    const struct process *parent = &processes[proc][chance(PIDS)];
    const bool is_forked = parent->start != 0 && parent != process && chance(2) == 0;
    *process = is_forked ? *parent : (struct process){.start = 0};
    process->start = is_forked || chance(4) != 0 ? ++last_start : 0;
    write_stat(proc, pid);
}

static bool is_seen_by_all(const struct slot *slot)
{
    bool by_all = true;
    for (int proc = 0; proc < PROCS; proc++)
        by_all = by_all && slot->is_seen[proc];
    return by_all;
}

/* Its process has a name there, or has taken it away; and writes. */
static void change_slot(int file)
{
    struct slot *slot = &slots[file][chance(SLOTS)];
    const bool is_left = !slot->is_nameless && chance(3) == 0;
    const bool is_taken = slot->is_nameless && chance(3) == 0;
    slot->since = now;
    slot->is_nameless = is_left || (slot->is_nameless && !is_taken);
    if (is_taken) {
        slot->former_seqlock = slot->seqlock;
        slot->former_bytes = slot->bytes;
        memset(slot->is_seen, 0, sizeof slot->is_seen);
    }
    if (is_left && is_seen_by_all(slot) && chance(2) == 0) {
        slot->seqlock = slot->former_seqlock;
        slot->bytes = slot->former_bytes;
    } else if (chance(2) == 0) {
        slot->seqlock += 2;
    } else {
        slot->bytes = ++last_bytes;
    }
}

/* Another file in its place, which looks the same. */
static void remake_file(int file)
{
    memmove(slots[file], slots[chance(FILES)], sizeof slots[file]);
    for (int slot = 0; slot < SLOTS; slot++)
        slots[file][slot].since = now;
    for (int process = 0; process < PROCS * PIDS; process++)
        processes[process / PIDS][process % PIDS].mapped_since[file] = 0;
    born_ns[file] = ++last_birth;
}

static void happen(void)
{
    const int proc = chance(PROCS), pid = chance(PIDS), file = chance(FILES);
    now++;
    switch (chance(8)) {
    case 0:
        replace_process(proc, pid);
        break;
    case 1:
        change_slot(file);
        break;
    case 2:
    case 3:
        if (processes[proc][pid].start != 0 && processes[proc][pid].mapped_since[file] == 0)
            processes[proc][pid].mapped_since[file] = now;
        break;
    default:
        break;
    }
}

static bool may_write(const struct process *process, int file, int slot)
{
    const long since = process->mapped_since[file];
    return process->start != 0 && since != 0 && since <= slots[file][slot].since;
}

/* ---- Rounds as they should be ---------------------------------------------------------- */

static struct round {
    bool is_kept;
    struct slot slots[SLOTS];
    uint64_t ruled_out[PIDS]; /* the starts */
    bool comes_last[PIDS];
} rounds[PROCS][FILES];

static bool is_same(const struct slot *one, const struct slot *other)
{
    return one->is_nameless && other->is_nameless && one->seqlock == other->seqlock &&
           one->bytes == other->bytes;
}

static void list_slots(int file, unsigned which, struct hr_nameless_slots *out)
{
    out->count = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (slots[file][slot].is_nameless && (which >> slot & 1) != 0)
            out->list[out->count++] = (struct hr_nameless){.index = slot,
                                                           .seqlock = slots[file][slot].seqlock,
                                                           .bytes = slots[file][slot].bytes};
    }
}

/* What is left of those that are asked for. */
static unsigned begin_or_go_on(struct round *round, int file, unsigned asked)
{
    unsigned common = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        common |= (unsigned)is_same(&round->slots[slot], &slots[file][slot]) << slot;
    for (int slot = 0; slot < SLOTS; slot++) /* whatever becomes of them */
        round->slots[slot].is_nameless = (common >> slot & 1) != 0;
    if (round->is_kept && common != 0)
        return asked & common;
    memset(round, 0, sizeof *round);
    memcpy(round->slots, slots[file], sizeof round->slots);
    return asked;
}

/* ---- Calls ----------------------------------------------------------------------------- */

static void check_processes(const struct hr_round *found, const struct round *round, int proc,
                            int file, const struct hr_nameless_slots *asked)
{
    for (int pid = 0; pid < PIDS; pid++) {
        const struct process *process = &processes[proc][pid];
        const bool is_out = hr_is_ruled_out(found, descriptors[proc], number_of(pid));
        CHECK_EQ(is_out, process->start != 0 && round->ruled_out[pid] == process->start);
        CHECK_EQ(hr_comes_last(found, number_of(pid)), round->comes_last[pid]);
        for (int32_t at = 0; at < asked->count; at++)
            CHECK(!is_out || !may_write(process, file, asked->list[at].index));
    }
}

/* Its maps are read; false where that took all that was left. */
static bool look_at(struct hr_round *found, struct round *round, int proc, int file, int pid)
{
    const uint64_t start = hr_read_start_time(descriptors[proc], number_of(pid));
    CHECK_EQ(start, processes[proc][pid].start);
    if (chance(8) == 0)
        happen();
    const struct process *process = &processes[proc][pid];
    enum hr_seen seen = process->start == 0               ? HR_GONE
                        : chance(10) == 0                 ? HR_NO_TIME
                        : process->mapped_since[file] > 0 ? HR_MAPS
                        : chance(10) == 0                 ? HR_REFUSED
                                                          : HR_MAPS_NOT;
    hr_note_seen(found, number_of(pid), start, seen);
    if (seen == HR_MAPS_NOT || seen == HR_NO_TIME) {
        round->ruled_out[pid] = seen == HR_MAPS_NOT ? start : 0;
        round->comes_last[pid] = seen == HR_NO_TIME;
    }
    return seen != HR_NO_TIME;
}

static void call(int proc, int file)
{
    /* The region is asked for nothing else. */
    static char path[8];
    const hr_region region = {.path = path, .device_id = 5, .inode = 40, .born_ns = born_ns[file]};
    snprintf(path, sizeof path, "/%d", file);
    struct round *round = &rounds[proc][file];
    for (int slot = 0; slot < SLOTS; slot++)
        slots[file][slot].is_seen[proc] = !slots[file][slot].is_nameless;
    struct hr_nameless_slots standing, asked, wanted;
    const unsigned all = (1u << SLOTS) - 1;
    const unsigned which = chance(2) == 0 ? all : (unsigned)chance((int)all + 1);
    list_slots(file, all, &standing);
    list_slots(file, which, &asked);
    list_slots(file, begin_or_go_on(round, file, which), &wanted);
    struct hr_round *found = hr_take_round(&region, directories[proc], &standing, &asked);
    NEED(found != NULL);
    CHECK_EQ(asked.count, wanted.count);
    CHECK(memcmp(asked.list, wanted.list, (size_t)wanted.count * sizeof *wanted.list) == 0);
    check_processes(found, round, proc, file, &asked);
    bool goes_on = true;
    const int first = chance(PIDS), looks = chance(PIDS + 1);
    for (int look = 0; look < looks && goes_on; look++) {
        const int pid = (first + look) % PIDS;
        if (!hr_is_ruled_out(found, descriptors[proc], number_of(pid)))
            goes_on = look_at(found, round, proc, file, pid);
        if (chance(4) == 0)
            happen();
    }
    goes_on = !goes_on || chance(6) != 0;
    round->is_kept = goes_on;
    hr_end_round(found, goes_on);
}

/* ---- Histories ------------------------------------------------------------------------- */

static void play(void)
{
    memset(rounds, 0, sizeof rounds);
    for (int file = 0; file < FILES; file++)
        remake_file(file);
    for (int step = 0; step < STEPS; step++) {
        happen();
        const int file = chance(FILES);
        if (chance(40) == 0) {
            remake_file(file);
            for (int proc = 0; proc < PROCS; proc++)
                rounds[proc][file].is_kept = false;
        }
        if (chance(3) == 0)
            call(chance(PROCS), file);
    }
}

static void rounds_are_as_their_model_in_all_histories(void)
{
    for (unsigned number = 1; number <= HISTORIES; number++) {
        const unsigned long before = atomic_load(&check_failures);
        seed = number * 2654435761u;
        play();
        if (atomic_load(&check_failures) != before) {
            fprintf(stderr, "in history %u\n", number);
            return;
        }
    }
}

/* More than there are places for: those that are kept stay, whoever comes behind them. */
static void rounds_that_find_no_place_begin_anew(void)
{
    char path[32];
    const struct hr_nameless_slots standing = {.count = 1};
    hr_region region = {.path = path, .device_id = 6};
    for (int turn = 0; turn < 2; turn++) {
        int known = 0;
        for (int file = 0; file < 2 * PLACES; file++) {
            snprintf(path, sizeof path, "/other/%d", file);
            region.inode = (uint64_t)file;
            struct hr_nameless_slots asked = standing;
            struct hr_round *round = hr_take_round(&region, directories[0], &standing, &asked);
            NEED(round != NULL);
            known += hr_comes_last(round, 7);
            hr_note_seen(round, 7, 0, HR_NO_TIME);
            hr_end_round(round, turn == 0);
        }
        /* Some places are taken by the histories. */
        CHECK(turn == 0 ? known == 0 : known >= PLACES - PROCS * FILES && known <= PLACES);
    }
}

int main(void)
{
    const char *parent = getenv("TMPDIR");
    char path[sizeof directories[0] + 32];
    for (int proc = 0; proc < PROCS; proc++) {
        snprintf(directories[proc], sizeof directories[proc], "%s/hr-test-XXXXXX",
                 parent != NULL && *parent != '\0' ? parent : "/tmp");
        NEED(mkdtemp(directories[proc]) != NULL);
        descriptors[proc] = open(directories[proc], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        NEED(descriptors[proc] >= 0);
        for (int pid = 0; pid < PIDS; pid++)
            NEED(mkdirat(descriptors[proc], name_of(pid), 0700) == 0);
    }
    RUN(rounds_are_as_their_model_in_all_histories);
    RUN(rounds_that_find_no_place_begin_anew);
    for (int proc = 0; proc < PROCS; proc++) {
        for (int pid = 0; pid < PIDS; pid++) {
            snprintf(path, sizeof path, "%s/stat", name_of(pid));
            unlinkat(descriptors[proc], path, 0);
            NEED(unlinkat(descriptors[proc], name_of(pid), AT_REMOVEDIR) == 0);
        }
        close(descriptors[proc]);
        NEED(rmdir(directories[proc]) == 0);
    }
    return check_report("test_round_histories");
}
