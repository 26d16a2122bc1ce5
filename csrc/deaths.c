#define _GNU_SOURCE
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "slots.h"
#include "testpoint.h"

/* ---- Gathering ----------------------------------------------------------------------- */

static int note_slots(void *argument)
{
    struct hr_deaths *deaths = argument;
    const struct hr_evidence *evidence = deaths->search.evidence;
    int code = hr_checked_table(deaths->region, &deaths->slots);
    if (evidence != NULL)
        deaths->slots = evidence->slots;
    for (int32_t index = 0; code == HR_OK && index < deaths->slots; index++) {
        deaths->seen[index] =
            evidence != NULL ? evidence->seen[index] : hr_look_at_slot(deaths->region, index);
        deaths->by_byte[index] = HR_LIVENESS_UNKNOWN;
    }
    return code;
}

static bool is_odd(const struct hr_seen_slot *slot)
{
    return (slot->seqlock & 1) != 0;
}

static bool is_of_interest(const struct hr_deaths *deaths, int32_t index)
{
    return !deaths->only_odd || is_odd(&deaths->seen[index]);
}

/* If the file cannot be opened, nothing is known. */
static void ask_bytes(struct hr_deaths *deaths)
{
    off_t bytes[HR_SLOTS];
    int32_t of[HR_SLOTS];
    bool is_locked[HR_SLOTS];
    uint32_t count = 0;
    for (int32_t index = 0; deaths->region->has_own_pages && index < deaths->slots; index++) {
        if (deaths->seen[index].mark == 0 || !is_of_interest(deaths, index))
            continue;
        of[count] = index;
        bytes[count++] = HR_PID_BYTE + deaths->seen[index].pid;
    }
    if (count == 0 || hr_ask_bytes(deaths->region, bytes, count, is_locked) != HR_OK)
        return;
    for (uint32_t i = 0; i < count; i++)
        deaths->by_byte[of[i]] = is_locked[i] ? HR_ALIVE : HR_DEAD;
}

static int search(struct hr_deaths *deaths, int32_t owner, uint64_t deadline_ns)
{
    struct hr_slot_pids *names = &deaths->names;
    bool has_pidless = false;
    names->count = 0;
    for (int32_t index = 0; index < deaths->slots; index++) {
        const int32_t pid = deaths->seen[index].pid;
        if (!is_of_interest(deaths, index))
            continue;
        if (pid != 0 && deaths->by_byte[index] == HR_LIVENESS_UNKNOWN)
            names->pids[names->count++] = pid;
        has_pidless = has_pidless || pid == 0;
    }
    if (owner != 0 && names->count < HR_SLOTS)
        names->pids[names->count++] = owner;
    if (names->count == 0 && !has_pidless)
        return HR_OK;
    /* A process that has stored pid 0 has no name to be found by: all are searched. */
    deaths->search.only = has_pidless ? NULL : names;
    deaths->search.deadline_ns = deadline_ns;
    return hr_find_mappers(deaths->region, &deaths->search, &deaths->mappers);
}

static int gather(struct hr_deaths *deaths, int32_t owner, uint64_t deadline_ns)
{
    hr_free_mappers(&deaths->mappers);
    int code = hr_run_entered(deaths->region, note_slots, deaths);
    if (code != HR_OK)
        return code;
    ask_bytes(deaths);
    return search(deaths, owner, deadline_ns);
}

int hr_gather_deaths(struct hr_deaths *deaths, uint64_t deadline_ns)
{
    return gather(deaths, 0, deadline_ns);
}

enum hr_liveness hr_judge_slot(const struct hr_deaths *deaths, int32_t index)
{
    const struct hr_seen_slot *before = &deaths->seen[index];
    /* It is a newcomer's, which was not searched for, or may be by now. */
    if (index >= deaths->slots || !hr_is_as_seen(deaths->region, before, index))
        return HR_LIVENESS_UNKNOWN;
    if (deaths->by_byte[index] != HR_LIVENESS_UNKNOWN)
        return deaths->by_byte[index];
    if (before->pid != 0)
        return hr_liveness_of_slot(&deaths->mappers, before->pid);
    return hr_may_be_ending(deaths->region, &deaths->mappers) ? HR_LIVENESS_UNKNOWN : HR_DEAD;
}

/* ---- Seqlocks that the dead have left odd ---------------------------------------------- */

static bool even_up(const struct hr_deaths *deaths, int32_t index)
{
    const struct hr_seen_slot *seen = &deaths->seen[index];
    if (!is_odd(seen) || hr_judge_slot(deaths, index) != HR_DEAD ||
        !hr_end_seqlock(deaths->region, index, seen->seqlock))
        return false;
    HR_POINT(SEQLOCK_ENDED);
    return true;
}

void hr_even_up(const struct hr_deaths *deaths)
{
    for (int32_t index = 0; index < deaths->slots && hr_lock_is_kept(deaths->region); index++)
        even_up(deaths, index);
}

/* The process that has had the lock all the time. */
struct owner {
    struct hr_deaths *deaths;
    const struct hr_evidence *evidence; /* or NULL */
    uint64_t word;       /* its signature; 0: the lock is free, or signed with what is no pid */
    int64_t noted_ticks; /* since boot, as start times are */
    uint64_t began_ns;
    int32_t pid_here;
};

/* A proof is valid for so long: pids do not wrap around in it. */
#define PROOF_NS 250000000

static bool has_lock(const struct owner *owner)
{
    const struct hr_lock_words words = hr_load_lock(owner->deaths->region);
    return words.owner == owner->word && hr_sem_value(words.sem) == 0;
}

static int note_owner(void *argument)
{
    struct owner *owner = argument;
    const struct hr_lock_words words = hr_load_lock(owner->deaths->region);
    const uint64_t pid = hr_owner_pid(words.owner);
    owner->word = pid < HR_FOREIGN_OWNER && hr_sem_value(words.sem) == 0 ? words.owner : 0;
    return HR_OK;
}

/* Whether the owner that was found lives, and started before its signature was read. */
static bool is_same_process(const struct owner *owner)
{
    const struct hr_mappers *mappers = &owner->deaths->mappers;
    for (uint32_t i = 0; owner->evidence != NULL && i < mappers->count; i++) {
        const int64_t start = mappers->list[i].start_time_ticks;
        if (mappers->list[i].pids[0] == owner->pid_here)
            return start > 0 && start < owner->noted_ticks;
    }
    if (owner->evidence != NULL)
        return false;
    const char *root = owner->deaths->search.proc;
    const int proc = open(root == NULL ? "/proc" : root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0)
        return false;
    const int64_t start = hr_read_start_time(proc, (uint32_t)owner->pid_here);
    close(proc);
    return start >= 0 && start < owner->noted_ticks;
}

/*
 * The check of lock and slot and the swap are two steps.  A thread that is stopped between them
 * makes a live process's seqlock even too early if meanwhile the owner is killed, the container
 * starts again, and a new process with the dead one's pid is in its first accounting.
 */
static int even_up_work(void *argument)
{
    struct owner *owner = argument;
    for (int32_t index = 0; index < owner->deaths->slots; index++) {
        const uint64_t age_ns = hr_clock_ns(CLOCK_MONOTONIC) - owner->began_ns;
        if (age_ns > PROOF_NS || !has_lock(owner))
            break;
        if (even_up(owner->deaths, index))
            owner->deaths->is_ended[index] = true;
    }
    return HR_OK;
}

int hr_even_up_beside_owner(struct hr_deaths *deaths)
{
    struct owner owner = {.deaths = deaths, .evidence = deaths->search.evidence};
    int code = hr_run_entered(deaths->region, note_owner, &owner);
    if (code != HR_OK || owner.word == 0)
        return code;
    owner.noted_ticks = hr_clock_ticks();
    owner.began_ns = hr_clock_ns(CLOCK_MONOTONIC);
    if (owner.evidence != NULL) {
        owner.noted_ticks = owner.evidence->noted_ticks;
        owner.began_ns = owner.evidence->noted_ns;
        const struct hr_lock_words noted = owner.evidence->words;
        if (noted.owner != owner.word || hr_sem_value(noted.sem) != 0)
            return HR_OK;
    }
    const int32_t pid = (int32_t)hr_owner_pid(owner.word);
    code = gather(deaths, pid, owner.began_ns + PROOF_NS);
    if (code != HR_OK ||
        hr_liveness_of(&deaths->mappers, pid, false, &owner.pid_here) != HR_ALIVE ||
        owner.pid_here == 0 || !is_same_process(&owner))
        return code;
    /* The owner goes on at once.  Whether the slots are to be reaped is to be judged anew; by
     * evidence only the next one shows that. */
    return hr_run_entered(deaths->region, even_up_work, &owner);
}
