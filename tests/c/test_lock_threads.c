/*
 * Threads: many on one handle, and many handles in one process.  Quick by itself;
 * its point is to be clean under the thread and address sanitizers.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "call_error.h"
#include "check.h"
#include "region.h"
#include "region_file.h"

enum { THREADS = 6, HANDLES = 3, KINDS = 3 };

#define ONE_SECOND UINT64_C(1000000000)
/* For how long each crowd goes on; sanitizers make it fewer turns, not more time. */
#define CROWD_NS (ONE_SECOND / 5 / SHARE_OF_WORK)
#define PATIENCE (60 * ONE_SECOND)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * ONE_SECOND + (uint64_t)now.tv_nsec;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005 + 1442695040888963407;
    return *state >> 33;
}

struct crowd {
    const struct region_file *file;
    hr_region *handles[HANDLES];
    uint32_t handle_count;
    uint64_t until_ns;
    uint64_t turns;         /* plain: only the lock makes it right, where all share a handle */
    _Atomic uint64_t taken; /* how often it was */
    atomic_int inside;
};

struct member {
    struct crowd *crowd;
    hr_region *region;
    uint64_t random;
    uint32_t number;
    uint64_t held[KINDS];
};

static bool goes_on(const struct member *member)
{
    return now_ns() < member->crowd->until_ns;
}

static void start_crowd(struct crowd *crowd, const struct region_file *file, uint32_t handles)
{
    memset(crowd, 0, sizeof *crowd);
    crowd->file = file;
    crowd->handle_count = handles;
    for (uint32_t i = 0; i < handles; i++) {
        NEED(hr_open(file->path, HR_WRITE, HR_LAYOUTS, 0, &crowd->handles[i], &call_error) >= 0);
        /* The first time takes long: a handle looks around in /proc for how to sign. */
        NEED(hr_lock(crowd->handles[i], PATIENCE, &call_error) == HR_OK);
        NEED(hr_unlock(crowd->handles[i], &call_error) == HR_OK);
    }
    crowd->until_ns = now_ns() + CROWD_NS;
}

static void run_crowd(struct crowd *crowd, void *(*const *roles)(void *), uint32_t role_count,
                      struct member *members)
{
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        members[i] = (struct member){.crowd = crowd,
                                     .region = crowd->handles[i % crowd->handle_count],
                                     .random = i + 1,
                                     .number = i};
        NEED(pthread_create(&threads[i], NULL, roles[i % role_count], &members[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void end_crowd(struct crowd *crowd)
{
    for (uint32_t i = 0; i < crowd->handle_count; i++)
        hr_free(&crowd->handles[i]);
    const struct hr_layout *layout = crowd->file->layout;
    CHECK_EQ(peek64(crowd->file, layout->sem), 1);
    CHECK_EQ(peek64(crowd->file, layout->owner_pid), 0);
}

/* ---- One holder at a time --------------------------------------------------------- */

static void *take_turns(void *argument)
{
    struct member *member = argument;
    struct crowd *crowd = member->crowd;
    /* On a busy machine the time may be over before all have begun. */
    while (goes_on(member) || atomic_load(&crowd->taken) <= THREADS) {
        int code = hr_lock(member->region, PATIENCE, &call_error);
        CHECK_EQ(code, HR_OK);
        if (code != HR_OK)
            continue;
        CHECK_EQ(atomic_fetch_add(&crowd->inside, 1), 0);
        /* Another handle is another mapping, in which the sanitizer sees no order. */
        if (crowd->handle_count == 1)
            crowd->turns++;
        atomic_fetch_add(&crowd->taken, 1);
        CHECK_EQ(hr_lock(member->region, 0, &call_error), HR_EBUSY);
        atomic_fetch_sub(&crowd->inside, 1);
        CHECK_EQ(hr_unlock(member->region, &call_error), HR_OK);
    }
    return NULL;
}

static void test_one_holder_at_a_time(void)
{
    void *(*const roles[])(void *) = {take_turns};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        for (uint32_t handles = 1; handles <= HANDLES; handles += HANDLES - 1) {
            struct region_file file;
            struct crowd crowd;
            struct member members[THREADS];
            region_file_make(&file, id);
            start_crowd(&crowd, &file, handles);
            run_crowd(&crowd, roles, 1, members);
            if (handles == 1)
                CHECK_EQ(crowd.turns, crowd.taken);
            CHECK(crowd.taken > THREADS);
            end_crowd(&crowd);
            region_file_remove(&file);
        }
    }
}

/* ---- Accounting -------------------------------------------------------------------- */

static void charge_or_release(struct member *member, bool may_be_gone)
{
    uint32_t kind = next_random(&member->random) % KINDS;
    uint64_t bytes = next_random(&member->random) % 100000;
    bool releases = member->held[kind] >= bytes && bytes > 0;
    int code = releases ? hr_release(member->region, 0, kind, bytes, PATIENCE, &call_error)
                        : hr_charge(member->region, 0, kind, bytes, 0, PATIENCE, &call_error);
    if (code == HR_OK)
        member->held[kind] = releases ? member->held[kind] - bytes : member->held[kind] + bytes;
    else if (may_be_gone && (code == HR_EDETACHED || code == HR_EINVAL))
        member->held[kind] = 0;
    else
        CHECK_EQ(code, HR_OK);
}

static void *account(void *argument)
{
    struct member *member = argument;
    while (goes_on(member))
        charge_or_release(member, false);
    return NULL;
}

static void *look_on(void *argument)
{
    struct member *member = argument;
    static const uint32_t bytes = 64 * 1024;
    struct hr_snapshot *snapshot = malloc(bytes);
    NEED(snapshot != NULL);
    while (goes_on(member)) {
        CHECK_EQ(hr_snapshot(member->region, snapshot, bytes, &call_error), HR_OK);
        struct hr_slot_edit edit = {.value = HR_SLOT_MONITOR_USED, .to = 1000};
        int code = hr_edit_slot(member->region, getpid(), &edit, 1, 0, PATIENCE, &call_error);
        CHECK(code == HR_OK || code == HR_ENOPROCESS);
        struct hr_lock_state state;
        CHECK_EQ(hr_get_lock_state(member->region, NULL, &state, &call_error), HR_OK);
        CHECK(state.owner_liveness != HR_DEAD || state.owner_pid == 0);
    }
    free(snapshot);
    return NULL;
}

static void *take_turns_too(void *argument)
{
    return take_turns(argument);
}

/* All threads of a process account in one slot: no charge is lost, none is counted twice. */
static void test_threads_account_in_one_slot(void)
{
    void *(*const roles[])(void *) = {account, account, look_on, account, take_turns_too, account};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct crowd crowd;
        struct member members[THREADS];
        region_file_make(&file, id);
        start_crowd(&crowd, &file, 1);
        CHECK_EQ(hr_attach(crowd.handles[0], PATIENCE, &call_error), HR_OK);
        run_crowd(&crowd, roles, THREADS, members);
        uint64_t total = 0;
        for (uint32_t i = 0; i < THREADS; i++) {
            for (uint32_t kind = 0; kind < KINDS; kind++)
                total += members[i].held[kind];
        }
        CHECK_EQ(live_value(crowd.handles[0], HR_VALUE_MEMORY_USED, 0), total);
        for (uint32_t i = 0; i < THREADS; i++) {
            for (uint32_t kind = 0; kind < KINDS; kind++)
                CHECK_EQ(hr_release(crowd.handles[0], 0, kind, members[i].held[kind], PATIENCE,
                                    &call_error),
                         HR_OK);
        }
        CHECK_EQ(live_value(crowd.handles[0], HR_VALUE_MEMORY_USED, 0), 0);
        CHECK_EQ(hr_detach(crowd.handles[0], PATIENCE, &call_error), HR_OK);
        CHECK_EQ(peek32(&file, file.layout->proc_num), 0);
        end_crowd(&crowd);
        region_file_remove(&file);
    }
}

static void *come_and_leave(void *argument)
{
    struct member *member = argument;
    while (goes_on(member)) {
        int code = next_random(&member->random) % 2 == 0
                       ? hr_attach(member->region, PATIENCE, &call_error)
                       : hr_detach(member->region, PATIENCE, &call_error);
        CHECK(code == HR_OK || code == HR_EATTACHED || code == HR_EDETACHED);
    }
    return NULL;
}

static void *account_at_times(void *argument)
{
    struct member *member = argument;
    while (goes_on(member))
        charge_or_release(member, true);
    return NULL;
}

/* Two threads attach and detach the slot in which others account and take the lock. */
static void test_a_slot_that_comes_and_goes(void)
{
    void *(*const roles[])(void *) = {come_and_leave, account_at_times, take_turns,
                                      come_and_leave, account_at_times, look_on};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct crowd crowd;
        struct member members[THREADS];
        region_file_make(&file, id);
        start_crowd(&crowd, &file, 1);
        run_crowd(&crowd, roles, THREADS, members);
        int code = hr_detach(crowd.handles[0], PATIENCE, &call_error);
        CHECK(code == HR_OK || code == HR_EATTACHED || code == HR_EDETACHED);
        CHECK_EQ(peek32(&file, file.layout->proc_num), 0);
        end_crowd(&crowd);
        region_file_remove(&file);
    }
}

/* ---- Nothing to mend among the living ----------------------------------------------- */

/* On a machine that stands still now and then, a search can be cut short. */
static void reap_nobody(hr_region *region, struct hr_slot_result *reaped)
{
    int found = hr_reap(region, NULL, NULL, 0, NULL, 0, 0, PATIENCE, reaped, &call_error);
    CHECK(found >= 0);
    for (int i = 0; i < found; i++)
        CHECK_EQ(reaped[i].what, HR_SLOT_CUT_SHORT);
}

static void *mend(void *argument)
{
    struct member *member = argument;
    struct hr_slot_result *reaped = calloc(HR_SLOTS, sizeof *reaped);
    NEED(reaped != NULL);
    while (goes_on(member)) {
        int code = recover_lock(member->region, NULL, ONE_SECOND / 1000);
        CHECK(code == 0 || code == HR_ENOTRECOVERABLE);
        reap_nobody(member->region, reaped);
    }
    free(reaped);
    return NULL;
}

/* One handle accounts and holds the lock, others recover and reap: this process is alive. */
static void test_a_process_does_not_mend_itself(void)
{
    void *(*const roles[])(void *) = {account, mend, take_turns};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct crowd crowd;
        struct member members[THREADS];
        region_file_make(&file, id);
        start_crowd(&crowd, &file, HANDLES);
        CHECK_EQ(hr_attach(crowd.handles[0], PATIENCE, &call_error), HR_OK);
        run_crowd(&crowd, roles, HANDLES, members);
        CHECK_EQ(hr_detach(crowd.handles[0], PATIENCE, &call_error), HR_OK);
        end_crowd(&crowd);
        region_file_remove(&file);
    }
}

/* And it may attach just while another handle of it looks for the dead. */
static void test_a_newcomer_is_not_reaped(void)
{
    void *(*const roles[])(void *) = {come_and_leave, mend, take_turns};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct crowd crowd;
        struct member members[THREADS];
        region_file_make(&file, id);
        start_crowd(&crowd, &file, HANDLES);
        run_crowd(&crowd, roles, HANDLES, members);
        int code = hr_detach(crowd.handles[0], PATIENCE, &call_error);
        CHECK(code == HR_OK || code == HR_EATTACHED || code == HR_EDETACHED);
        end_crowd(&crowd);
        region_file_remove(&file);
    }
}

static void *reap(void *argument)
{
    struct member *member = argument;
    struct hr_slot_result *reaped = calloc(HR_SLOTS, sizeof *reaped);
    NEED(reaped != NULL);
    while (goes_on(member))
        reap_nobody(member->region, reaped);
    free(reaped);
    return NULL;
}

/* Also by the very handle that looks. */
static void test_a_handle_does_not_reap_what_attaches_by_it(void)
{
    void *(*const roles[])(void *) = {come_and_leave, reap};
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct crowd crowd;
        struct member members[THREADS];
        region_file_make(&file, id);
        start_crowd(&crowd, &file, 1);
        run_crowd(&crowd, roles, 2, members);
        int code = hr_detach(crowd.handles[0], PATIENCE, &call_error);
        CHECK(code == HR_OK || code == HR_EDETACHED);
        end_crowd(&crowd);
        region_file_remove(&file);
    }
}

/* ---- The end ----------------------------------------------------------------------- */

static void *work_until_closed(void *argument)
{
    struct member *member = argument;
    int code = HR_OK;
    while (code != HR_ECLOSED) {
        struct hr_info info;
        hr_get_info(member->region, &info);
        CHECK_EQ(info.layout, member->crowd->file->layout->id);
        switch (next_random(&member->random) % 4) {
        case 0:
            code = hr_lock(member->region, PATIENCE, &call_error);
            if (code == HR_OK)
                code = hr_unlock(member->region, &call_error);
            break;
        case 1:
            code = hr_charge(member->region, 0, HR_DATA, 1, 0, PATIENCE, &call_error);
            break;
        case 2:
            code = hr_attach(member->region, PATIENCE, &call_error);
            break;
        default:
            code = hr_detach(member->region, PATIENCE, &call_error);
        }
        CHECK(code == HR_OK || code == HR_EATTACHED || code == HR_EDETACHED || code == HR_ECLOSED);
    }
    return NULL;
}

/* Whatever the threads are doing, the handle closes, and nothing of it stays locked. */
static void test_closing_under_them(void)
{
    for (uint32_t id = HR_V1_1; id < HR_LAYOUTS; id++) {
        struct region_file file;
        struct crowd crowd;
        struct member members[THREADS];
        pthread_t threads[THREADS];
        region_file_make(&file, id);
        start_crowd(&crowd, &file, 1);
        for (uint32_t i = 0; i < THREADS; i++) {
            members[i] =
                (struct member){.crowd = &crowd, .region = crowd.handles[0], .random = i + 1};
            NEED(pthread_create(&threads[i], NULL, work_until_closed, &members[i]) == 0);
        }
        const struct timespec nap = {.tv_nsec = (long)(CROWD_NS / 4)};
        nanosleep(&nap, NULL);
        hr_close(crowd.handles[0], &call_error);
        for (uint32_t i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        end_crowd(&crowd);
        region_file_remove(&file);
    }
}

int main(void)
{
    RUN(test_one_holder_at_a_time);
    RUN(test_threads_account_in_one_slot);
    RUN(test_a_slot_that_comes_and_goes);
    RUN(test_a_process_does_not_mend_itself);
    RUN(test_a_newcomer_is_not_reaped);
    RUN(test_a_handle_does_not_reap_what_attaches_by_it);
    RUN(test_closing_under_them);
    return check_report("test_lock_threads");
}
