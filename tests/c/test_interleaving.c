/*
 * Every moment at which a writer could act, between any two loads of a reader.
 *
 * Real writers hit the common windows millions of times and the rare ones never: a
 * holder that is descheduled in the middle of its stores and goes on just between
 * two of the reader's loads.  Here the core calls back before each load
 * (load_hook.h), and the writer's stores, by libvgpu's protocol of each layout,
 * happen in bursts at chosen ones, the rare as likely as the common.
 */
#include "check.h"
#include "region_file.h"
#include "snapshot_view.h"

enum {
    PROCESSES = 3,
    DEVICES = 2,
    TRIALS = 30000 / SHARE_OF_WORK,
    MAX_STORES = 1024,
    MAX_BURSTS = 4
};

/* ---- The writer: a list of stores, done in bursts --------------------------- */

struct store {
    size_t offset;
    uint64_t value;
    uint32_t bytes;
};

struct script {
    const struct region_file *file;
    uint64_t seqlock; /* even; every slot's when a trial begins */
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

/* One number in every figure of a slot; the total is the sum of its kinds, as libvgpu keeps it. */
static void put_number(struct script *script, uint32_t slot, uint64_t number)
{
    const struct hr_layout *layout = script->file->layout;
    for (uint32_t device = 0; device < DEVICES; device++) {
        const size_t used = slot_at(script->file, slot, layout->slot_used) +
                            (size_t)device * layout->slot_used_stride;
        for (uint32_t field = 0; field < 5; field++)
            add(script, used + field * 8, field == 4 ? 3 * number : number, 8);
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
        add(script, slot_at(script->file, slot, layout->slot_seqlock), script->seqlock, 8);
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
    /* Never the same again: a reader may remember one that it waited for in vain. */
    script->seqlock += 4;
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
            add(script, seqlock, script->seqlock + 1, 8);
            put_number(script, slot, pid + 1000);
            add(script, seqlock, script->seqlock + 2, 8);
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

struct process {
    int32_t pid, host_pid;
    bool settled;
    uint64_t number; /* the one in all figures, or 0 where there are two */
};

struct picture {
    bool settled;
    uint32_t count;
    struct process processes[PROCESSES + 1];
};

static uint64_t number_of(const struct hr_usage *usages, bool has_util)
{
    const uint64_t number = usages[0].data;
    for (const struct hr_usage *usage = usages; usage < usages + DEVICES; usage++) {
        uint64_t other = (usage->context ^ number) | (usage->module ^ number) |
                         (usage->data ^ number) | (usage->offset ^ number) |
                         (usage->total ^ 3 * number) | (usage->monitor ^ number);
        if (has_util)
            other |= (usage->dec ^ number) | (usage->enc ^ number) | (usage->sm ^ number);
        if (other != 0)
            return 0;
    }
    return number;
}

static uint64_t buffer[2048];

static void read_picture(const struct hr_snapshot *snapshot, bool has_util, struct picture *out)
{
    out->settled = snapshot->settled;
    out->count = (uint32_t)snapshot->process_count;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < out->count; i++) {
        const struct hr_process *process = hr_snapshot_process(snapshot, i);
        const struct hr_usage *usages = hr_snapshot_usage(snapshot, i, 0);
        out->processes[i] = (struct process){process->pid, process->host_pid, process->settled,
                                             number_of(usages, has_util)};
        sum += usages[DEVICES - 1].total;
    }
    CHECK_EQ(hr_snapshot_device(snapshot, DEVICES - 1)->sums.total, sum);
}

static void take_snapshot(hr_region *region, bool has_util, struct picture *out)
{
    NEED(hr_snapshot(region, buffer, sizeof buffer, &call_error) == HR_OK);
    read_picture((const struct hr_snapshot *)(const void *)buffer, has_util, out);
}

/* The same through a set of one region. */
static void take_set(hr_region *region, bool has_util, struct picture *out)
{
    struct hr_set_size size;
    NEED(hr_read_set(&region, 1, buffer, sizeof buffer, UINT32_MAX, &size, &call_error) == 0);
    read_picture(set_snapshot(buffer, 0), has_util, out);
}

struct outcome {
    uint32_t settled, mixed, wrong;
};

static void judge(const struct picture *picture, struct outcome *outcome)
{
    bool changed_before = true;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < picture->count; i++) {
        const struct process *process = &picture->processes[i];
        CHECK(process->settled || !picture->settled);
        if (!process->settled)
            continue;
        const uint64_t number = process->number, pid = (uint64_t)process->pid;
        if ((number != pid && number != pid + 1000) || process->host_pid != process->pid)
            outcome->mixed++;
        if (!picture->settled)
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
    if (!picture->settled)
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

/* A load takes 10 ns, and so does a look at the clock, whatever else the machine does. */
static uint64_t clock_ns;

int hooked_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    clock_ns += 10;
    *now = (struct timespec){(time_t)(clock_ns / 1000000000), (long)(clock_ns % 1000000000)};
    return 0;
}

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
    clock_ns += 10;
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

typedef void take_picture(hr_region *region, bool has_util, struct picture *out);

static void run_trials(struct region_file *file, take_picture *take, void (*write)(struct script *),
                       const char *name)
{
    static struct script script;
    script.file = file;
    plan.script = &script;
    plan.bursts = 0;
    begin(&script);
    hr_region *region = NULL;
    NEED(hr_open(file->path, HR_READ, file->layout->id, 0, &region, &call_error) >= 0);
    const bool has_util = file->layout->slot_util != HR_ABSENT;
    struct picture picture;
    plan.loads = 0;
    take(region, has_util, &picture);
    const uint32_t length = plan.loads;

    struct outcome outcome = {0};
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        plan.bursts = 0;
        begin(&script);
        write(&script);
        make_plan(trial, length);
        take(region, has_util, &picture);
        judge(&picture, &outcome);
    }
    plan.bursts = 0;
    close_and_free(region);
    printf("%s, %s: %u loads, %u of %u settled, %u mixed, %u wrong\n", file->layout->name, name,
           length, outcome.settled, (uint32_t)TRIALS, outcome.mixed, outcome.wrong);
    CHECK(outcome.settled > 0);
    CHECK_EQ(outcome.mixed, 0);
    CHECK_EQ(outcome.wrong, 0);
}

static void test_no_interleaving_gives_a_mixed_slot(struct region_file *file)
{
    random_state = 20 + file->layout->id;
    run_trials(file, take_snapshot, account, "accounting");
    run_trials(file, take_snapshot, move, "moving");
    run_trials(file, take_snapshot, move_and_add_at_once, "moving and adding at once");
    run_trials(file, take_set, account, "accounting, set");
    run_trials(file, take_set, move, "moving, set");
    run_trials(file, take_set, move_and_add_at_once, "moving and adding, set");
}

int main(void)
{
    RUN_FROM(0, test_no_interleaving_gives_a_mixed_slot);
    return check_report("test_interleaving");
}
