/*
 * A reader that is stepped through hr_snapshot() one instruction at a time, while
 * the writer's stores happen in bursts at chosen instructions.
 *
 * Real writers (tests/integration/test_torn_reads.py) hit the common windows
 * millions of times and the rare ones never: a holder that is descheduled in the
 * middle of its stores and goes on just between two of the reader's loads.  Here
 * those are as likely as any other.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

enum { PROCESSES = 3, DEVICES = 2, TRIALS = 400, MAX_STORES = 1024, MAX_BURSTS = 4 };

/* ---- The reader, another process ------------------------------------------- */

enum phase { WAITING, READING, DONE };

struct shared {
    volatile int phase;
    volatile int code;
    uint64_t snapshot[2048];
};

static pid_t start_reader(const struct region_file *file, struct shared *shared)
{
    fflush(NULL);
    const pid_t reader = fork();
    NEED(reader >= 0);
    if (reader > 0)
        return reader;
    NEED(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    hr_region *region = NULL;
    NEED(hr_open(file->path, HR_READ, file->layout->id, &region) >= 0);
    for (;;) {
        shared->phase = WAITING;
        raise(SIGSTOP);
        shared->phase = READING;
        shared->code = hr_snapshot(region, shared->snapshot, sizeof shared->snapshot);
        shared->phase = DONE;
    }
}

static void resume(pid_t reader, int request)
{
    int status;
    NEED(ptrace(request, reader, NULL, NULL) == 0);
    NEED(waitpid(reader, &status, 0) == reader && WIFSTOPPED(status));
}

/* ---- The writer: a list of stores, done in bursts --------------------------- */

struct store {
    size_t offset;
    uint64_t value;
    uint32_t bytes;
};

struct script {
    const struct region_file *file;
    struct store stores[MAX_STORES];
    uint32_t count;
};

static void add(struct script *script, size_t offset, uint64_t value, uint32_t bytes)
{
    NEED(script->count < MAX_STORES);
    script->stores[script->count++] = (struct store){offset, value, bytes};
}

static void do_stores(const struct script *script, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const struct store *store = &script->stores[i];
        if (store->bytes == 4)
            poke32(script->file, store->offset, (uint32_t)store->value);
        else
            poke64(script->file, store->offset, store->value);
    }
}

static void take(struct script *script, uint64_t owner)
{
    add(script, script->file->layout->sem, 0, 4);
    add(script, script->file->layout->owner_pid, owner, 8);
}

static void give(struct script *script)
{
    add(script, script->file->layout->owner_pid, 0, 8);
    add(script, script->file->layout->sem, 1, 4);
}

/* One number in every figure of a slot. */
static void put_number(struct script *script, uint32_t slot, uint64_t number)
{
    const struct hr_layout *layout = script->file->layout;
    for (uint32_t device = 0; device < DEVICES; device++) {
        const size_t used = slot_at(script->file, slot, layout->slot_used) +
                            (size_t)device * layout->slot_used_stride;
        for (uint32_t field = 0; field < 5; field++)
            add(script, used + field * 8, number, 8);
        add(script, slot_at(script->file, slot, layout->slot_monitorused) + device * 8, number, 8);
        if (layout->slot_util == HR_ABSENT)
            continue;
        const size_t util = slot_at(script->file, slot, layout->slot_util) +
                            (size_t)device * layout->slot_util_stride;
        for (uint32_t field = 0; field < 3; field++)
            add(script, util + field * 8, number, 8);
    }
}

static void put_process(struct script *script, uint32_t slot, uint32_t pid)
{
    const struct hr_layout *layout = script->file->layout;
    add(script, slot_at(script->file, slot, layout->slot_pid), pid, 4);
    add(script, slot_at(script->file, slot, layout->slot_hostpid), pid, 4);
    if (layout->slot_seqlock != HR_ABSENT)
        add(script, slot_at(script->file, slot, layout->slot_seqlock), 4, 8);
    put_number(script, slot, pid);
    add(script, slot_at(script->file, slot, layout->slot_status), 1, 4);
}

static void put_proc_num(struct script *script, uint32_t count)
{
    add(script, script->file->layout->proc_num, count, 4);
}

/* ---- What writers do --------------------------------------------------------- */

/* Where every trial begins: processes 100, 101, 102, each with its pid for a number. */
static void begin(struct script *script)
{
    script->count = 0;
    for (uint32_t slot = 0; slot < PROCESSES; slot++)
        put_process(script, slot, 100 + slot);
    put_proc_num(script, PROCESSES);
    give(script);
    do_stores(script, 0, script->count);
    script->count = 0;
}

/* Accounting: each process in its turn stores the next number. */
static void account(struct script *script)
{
    const struct hr_layout *layout = script->file->layout;
    for (uint32_t slot = 0; slot < PROCESSES; slot++) {
        const uint32_t pid = 100 + slot;
        if (layout->slot_seqlock == HR_ABSENT) {
            take(script, pid);
            put_number(script, slot, pid + 1000);
            give(script);
        } else {
            const size_t seqlock = slot_at(script->file, slot, layout->slot_seqlock);
            add(script, seqlock, 5, 8);
            put_number(script, slot, pid + 1000);
            add(script, seqlock, 6, 8);
        }
    }
}

/* Process 100 leaves, 102 is copied over its slot, and 103 comes. */
static void move(struct script *script)
{
    take(script, 100);
    put_process(script, 0, 102);
    put_proc_num(script, PROCESSES - 1);
    give(script);
    take(script, 103);
    put_process(script, PROCESSES - 1, 103);
    put_proc_num(script, PROCESSES);
    give(script);
}

/* The same in one go, by somebody who repairs and adds under one lock. */
static void move_and_add_at_once(struct script *script)
{
    take(script, 103);
    put_process(script, 0, 102);
    put_process(script, PROCESSES - 1, 103);
    give(script);
}

/* ---- What a snapshot may say -------------------------------------------------- */

static uint64_t number_of(const struct hr_snapshot *snapshot, uint32_t index, bool has_util)
{
    const uint64_t number = snapshot_usage(snapshot, index, 0)->context;
    for (uint32_t device = 0; device < DEVICES; device++) {
        const struct hr_usage *usage = snapshot_usage(snapshot, index, device);
        uint64_t other = (usage->context ^ number) | (usage->module ^ number) |
                         (usage->data ^ number) | (usage->offset ^ number) |
                         (usage->total ^ number) | (usage->monitor ^ number);
        if (has_util)
            other |= (usage->dec ^ number) | (usage->enc ^ number) | (usage->sm ^ number);
        if (other != 0)
            return 0;
    }
    return number;
}

struct outcome {
    uint32_t settled, mixed, wrong;
};

static void judge(const struct shared *shared, const struct hr_layout *layout,
                  struct outcome *outcome)
{
    CHECK_EQ(shared->code, HR_OK);
    const struct hr_snapshot *snapshot = (const struct hr_snapshot *)shared->snapshot;
    bool changed_before = true;
    uint32_t seen = 0;
    for (uint32_t index = 0; index < (uint32_t)snapshot->proc_num; index++) {
        const struct hr_process *process = snapshot_process(snapshot, index);
        CHECK(process->settled || !snapshot->settled);
        if (!process->settled)
            continue;
        const uint64_t number = number_of(snapshot, index, layout->slot_util != HR_ABSENT);
        const uint64_t pid = (uint64_t)process->pid;
        if ((number != pid && number != pid + 1000) || process->host_pid != process->pid)
            outcome->mixed++;
        if (!snapshot->settled)
            continue;
        /* They change in their order: one that has not changed ends the row. */
        const bool changed = number == pid + 1000;
        if (pid < 100 || pid > 103 || (seen & 1u << (pid - 100)) != 0 ||
            (changed && !changed_before))
            outcome->wrong++;
        else
            seen |= 1u << (pid - 100);
        changed_before = changed;
    }
    if (!snapshot->settled)
        return;
    outcome->settled++;
    /* 101 and 102 were there all the time. */
    if ((seen & 6) != 6)
        outcome->wrong++;
}

/* ---- Trials -------------------------------------------------------------------- */

static uint32_t random_state;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(random_state >> 8) * bound >> 24);
}

static void sort(uint32_t *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && values[j - 1] > values[j]; j--) {
            const uint32_t value = values[j];
            values[j] = values[j - 1];
            values[j - 1] = value;
        }
}

/* Step the reader up to `until` instructions of its call; returns how many it took. */
static uint32_t step(pid_t reader, const struct shared *shared, uint32_t from, uint32_t until)
{
    while (from < until && shared->phase != DONE) {
        resume(reader, PTRACE_SINGLESTEP);
        from += shared->phase == READING;
    }
    return from;
}

static void run_trials(struct region_file *file, void (*write)(struct script *), const char *name)
{
    static struct script script;
    script.file = file;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
    begin(&script);
    const pid_t reader = start_reader(file, shared);
    int status;
    NEED(waitpid(reader, &status, 0) == reader && WIFSTOPPED(status));
    /* Once to warm up what is resolved at the first call, once to count. */
    resume(reader, PTRACE_CONT);
    const uint32_t length = step(reader, shared, 0, UINT32_MAX);
    resume(reader, PTRACE_CONT);

    struct outcome outcome = {0};
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        begin(&script);
        write(&script);
        uint32_t at[MAX_BURSTS], to[MAX_BURSTS];
        const uint32_t bursts = 2 + trial % (MAX_BURSTS - 1);
        for (uint32_t i = 0; i < bursts; i++) {
            at[i] = random_below(length + 1);
            to[i] = random_below(script.count + 1);
        }
        sort(at, bursts);
        sort(to, bursts);
        uint32_t done = 0, now = 0;
        for (uint32_t i = 0; i < bursts; i++) {
            now = step(reader, shared, now, at[i]);
            do_stores(&script, done, to[i]);
            done = to[i];
        }
        if (shared->phase != DONE)
            now = step(reader, shared, now, length + random_below(length));
        /* The last burst may come late, or when the reader has gone. */
        do_stores(&script, done, script.count);
        resume(reader, PTRACE_CONT);
        judge(shared, file->layout, &outcome);
    }
    kill(reader, SIGKILL);
    waitpid(reader, &status, 0);
    munmap(shared, sizeof *shared);

    printf("%s, %s: %u instructions, %u trials, %u settled, %u mixed, %u wrong\n",
           file->layout->name, name, length, (uint32_t)TRIALS, outcome.settled, outcome.mixed,
           outcome.wrong);
    CHECK(outcome.settled > 0);
    CHECK_EQ(outcome.mixed, 0);
    CHECK_EQ(outcome.wrong, 0);
}

static void test_no_interleaving_gives_a_mixed_slot(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        random_state = 20 + id;
        run_trials(&file, account, "accounting");
        run_trials(&file, move, "moving");
        run_trials(&file, move_and_add_at_once, "moving and adding at once");
        region_file_remove(&file);
    }
}

int main(void)
{
    RUN(test_no_interleaving_gives_a_mixed_slot);
    return check_report("test_interleaving");
}
