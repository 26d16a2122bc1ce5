/*
 * Every moment at which a writer could act, between any two loads of a reader.
 *
 * Real writers (tests/integration/test_torn_reads.py) hit the common windows
 * millions of times and the rare ones never: a holder that is descheduled in the
 * middle of its stores and goes on just between two of the reader's loads.  Here
 * the core calls back before each load (load_hook.h), and the writer's stores
 * happen in bursts at chosen ones, the rare as likely as the common.
 */
#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

enum { PROCESSES = 3, DEVICES = 2, TRIALS = 30000, MAX_STORES = 1024, MAX_BURSTS = 4 };

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

static void judge(const struct hr_snapshot *snapshot, const struct hr_layout *layout,
                  struct outcome *outcome)
{
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

/* The plan of one trial: at load at[i], the stores up to to[i]. */
static struct {
    const struct script *script;
    uint32_t loads, burst, bursts, done;
    uint32_t at[MAX_BURSTS], to[MAX_BURSTS];
} plan;

static void do_stores_up_to(uint32_t to)
{
    do_stores(plan.script, plan.done, to);
    plan.done = to;
}

void before_load(void)
{
    while (plan.burst < plan.bursts && plan.at[plan.burst] <= plan.loads)
        do_stores_up_to(plan.to[plan.burst++]);
    plan.loads++;
}

/* The writer always comes to its end, if only while the reader tries again. */
static void make_plan(uint32_t trial, uint32_t length)
{
    const uint32_t bursts = 2 + trial % (MAX_BURSTS - 1);
    for (uint32_t i = 0; i < bursts; i++) {
        plan.at[i] = random_below(length + 1);
        plan.to[i] = random_below(plan.script->count + 1);
    }
    sort(plan.at, bursts);
    sort(plan.to, bursts);
    if (trial % 2 == 0)
        plan.at[bursts - 1] = length + random_below(length);
    plan.to[bursts - 1] = plan.script->count;
    plan.done = plan.burst = plan.loads = 0;
    plan.bursts = bursts;
}

static uint64_t buffer[2048];

static void run_trials(struct region_file *file, void (*write)(struct script *), const char *name)
{
    static struct script script;
    script.file = file;
    plan.script = &script;
    plan.bursts = 0;
    begin(&script);
    hr_region *region = NULL;
    NEED(hr_open(file->path, HR_READ, file->layout->id, &region) >= 0);
    plan.loads = 0;
    CHECK_EQ(hr_snapshot(region, buffer, sizeof buffer), HR_OK);
    const uint32_t length = plan.loads;

    struct outcome outcome = {0};
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        plan.bursts = 0;
        begin(&script);
        write(&script);
        make_plan(trial, length);
        const int code = hr_snapshot(region, buffer, sizeof buffer);
        CHECK_EQ(code, HR_OK);
        if (code == HR_OK)
            judge((const struct hr_snapshot *)(const void *)buffer, file->layout, &outcome);
    }
    plan.bursts = 0;
    hr_close(region);
    hr_free(region);
    printf("%s, %s: %u loads, %u of %u settled, %u mixed, %u wrong\n", file->layout->name, name,
           length, outcome.settled, (uint32_t)TRIALS, outcome.mixed, outcome.wrong);
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
