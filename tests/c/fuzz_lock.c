#define _GNU_SOURCE
#include <fcntl.h>

#include "lock.h"
#include "fuzz_evidence.h"

static void lock(uint64_t timeout_ns)
{
    begin_call();
    const int code = hr_lock(run.region, timeout_ns, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, LOCK_CODES);
    if (require_refused(code))
        return;
    REQUIRE((code == HR_EBUSY) == (writers.has_lock && run.writable));
    REQUIRE(code != HR_OK || run.writable);
    if (changes_require(MAY_LOCK | MAY_COUNT, NULL) && code == HR_OK && !changes_are_disturbed()) {
        const struct view before = was(), after = now();
        REQUIRE(was_to_be_had());
        REQUIRE(owner_of(&after) != 0 && is_lock(&after, owner_of(&after), 0));
        REQUIRE(sem_of(&after) >> 32 == sem_of(&before) >> 32);
    } else if (is_whole() && code != HR_OK) {
        require_lock_given_back();
    }
    writers.has_lock = writers.has_lock || code == HR_OK;
}

static void unlock(void)
{
    begin_call();
    const int code = hr_unlock(run.region, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EBUSY, HR_ELOST, HR_ESTALE);
    REQUIRE((code == HR_EBUSY) == !writers.has_lock);
    writers.has_lock = writers.has_lock && code == HR_EBUSY;
    if (code != HR_OK) {
        changes_require_none();
    } else if (changes_require(MAY_LOCK, NULL)) {
        const struct view after = now();
        REQUIRE(is_lock(&after, 0, 1));
    }
}

/* By evidence, no more than that proves. */
static void require_life(uint32_t life, uint64_t owner, uint32_t value, const hr_evidence *by)
{
    const enum hr_liveness truth = system_life((int32_t)owner, false);
    if (by == NULL || (evidence_must_prove() && system_is_plain()))
        REQUIRE(life == (uint32_t)truth);
    else
        REQUIRE(life == HR_LIVENESS_UNKNOWN ||
                (life == (uint32_t)truth && evidence_is_of_lock(owner, value)));
    REQUIRE(by == NULL || life != HR_DEAD || evidence_may_prove(false));
}

static void lock_state(hr_evidence *by)
{
    struct hr_lock_state found;
    begin_call();
    const int code = by == NULL ? hr_get_lock_state(run.region, system_proc(), &found, &call_error)
                                : hr_get_lock_state_by(by, &found, &call_error);
    if (run.is_kept)
        REQUIRE(code == HR_EREADONLY);
    else if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ESTALE, HR_ESYSTEM, HR_ECORRUPT);
    /* What another process stores meanwhile may be later than the state. */
    if (!changes_require_none() || code != HR_OK || changes_are_disturbed())
        return;
    const struct view view = now();
    const uint64_t owner = owner_of(&view);
    REQUIRE(found.value == (uint32_t)sem_of(&view) && found.waiters == sem_of(&view) >> 32);
    REQUIRE(found.signature == owner && found.owner_pid == hr_owner_pid(owner));
    REQUIRE(found.owner_liveness <= HR_LIVENESS_UNKNOWN);
    if (owner == 0)
        REQUIRE(found.owner_liveness == HR_DEAD);
    else if (owner < HR_FOREIGN_OWNER && !is_own((int32_t)owner) && system_proc_flags() == 0)
        require_life(found.owner_liveness, owner, found.value, by);
}

/* What is given back is dead as far as the evidence shows, or taken by no one. */
static void require_recovered_by_proof(void)
{
    const struct view before = was(), after = now();
    const uint64_t owner = owner_of(&before);
    const uint32_t value = (uint32_t)sem_of(&before);
    if (is_lock(&after, owner, value) || is_dead_number(owner) || is_own((int32_t)owner))
        return;
    if (owner == 0 && value == 0)
        return;
    REQUIRE(is_lock(&after, owner, 0) || evidence_may_prove(owner >= HR_FOREIGN_OWNER) ||
            (owner == 0 && value > 1));
    if (owner != 0 && owner < HR_FOREIGN_OWNER)
        REQUIRE(evidence_is_of_lock(owner, value) &&
                system_life((int32_t)owner, false) == (is_lock(&after, 0, 1) ? HR_DEAD : HR_ALIVE));
}

/* What nobody holds has been given back; what somebody may hold has not. */
static void require_recovered(int code, uint32_t done, uint64_t watch_ns)
{
    const struct view before = was(), after = now();
    const uint64_t owner = owner_of(&before);
    const uint32_t value = (uint32_t)sem_of(&before);
    const bool is_free = is_lock(&after, 0, 1);
    const bool is_same = is_lock(&after, owner, value);
    const uint32_t corrected = value > 0 ? HR_RECOVERED_VALUE : 0;
    REQUIRE(is_free || is_same || (owner != 0 && value > 0 && is_lock(&after, owner, 0)));
    REQUIRE(is_same || (done & ~(uint32_t)HR_RECOVERED_POSTINIT) != 0);
    /* In a later namespace the slots are looked at, too. */
    if (writers.has_lock || code == HR_ECORRUPT)
        REQUIRE(is_same);
    if (writers.has_lock || code == HR_ECORRUPT || writers.is_attached || is_own((int32_t)owner) ||
        writers.other_has_host)
        return;
    if (owner != 0 && owner < HR_FOREIGN_OWNER) {
        const enum hr_liveness life = system_life((int32_t)owner, false);
        if (life == HR_DEAD && system_is_plain())
            REQUIRE(is_free && done == (HR_RECOVERED_OWNER | corrected));
        else if (life == HR_ALIVE && value > 0)
            REQUIRE(is_lock(&after, owner, 0) && done == HR_RECOVERED_VALUE);
        else if (life != HR_DEAD)
            REQUIRE(is_same && code == HR_ENOTRECOVERABLE);
    } else if (is_dead_number(owner)) {
        /* Nothing is taken over where a process may map the file by another inode. */
        if (system_is_plain())
            REQUIRE(is_free && done == (HR_RECOVERED_OWNER | corrected));
        else
            REQUIRE(is_free || code == HR_ENOTRECOVERABLE);
    } else if (owner != 0 && owner == writers.other_number) {
        REQUIRE(value > 0 ? is_lock(&after, owner, 0) : is_same);
    } else if (owner == 0 && value == 0) {
        const bool is_alone = system_is_empty() && writers.other_number == 0;
        if (is_alone || watch_ns >= HR_OWNERLESS_NS)
            REQUIRE(is_free && done == HR_RECOVERED_OWNERLESS);
        else if (system_proc_flags() == 0)
            REQUIRE(is_same && code == HR_ENOTRECOVERABLE);
    }
}

/* The dead have left it odd, and a waiter that comes in would wait for it. */
static bool ended_seqlock(uint32_t slot, uint32_t offset)
{
    const struct view before = was(), after = now();
    const int32_t pid = pid_at(&before, slot);
    const uint32_t at = seqlock_offset(before.layout);
    return at != HR_ABSENT && offset / 8 == at / 8 && seqlock_at(&before, slot) % 2 != 0 &&
           seqlock_at(&after, slot) == seqlock_at(&before, slot) + 1 &&
           (pid <= 0 || is_own(pid) || system_life(pid, true) != HR_ALIVE);
}

static void recover(hr_evidence *by, uint64_t watch_ns)
{
    struct hr_recovery recovery = {0};
    begin_call();
    int code;
    /* Each signal comes once. */
    do {
        code = by == NULL
                   ? hr_recover_lock(run.region, system_proc(), watch_ns, &recovery, &call_error)
                   : hr_recover_lock_by(by, watch_ns, &recovery, &call_error);
    } while (code == HR_EINTERRUPTED);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ENOTRECOVERABLE, LOCK_CODES);
    if (require_refused(code))
        return;
    REQUIRE(recovery.done < 32 && (recovery.done == 0 || run.writable));
    if (!changes_require(MAY_LOCK | MAY_POSTINIT, ended_seqlock) || changes_are_disturbed())
        return;
    const struct view view = was();
    const uint32_t postinit = view.layout->sem_postinit;
    const bool is_usual = postinit == HR_ABSENT || get32(&view, postinit) == 1;
    if (!is_usual || !run.writable || !oracle_good_header(&view) || code == HR_ESYSTEM)
        return;
    if (by != NULL)
        require_recovered_by_proof();
    if (by == NULL || (evidence_must_prove() && system_is_plain()))
        require_recovered(code, recovery.done, watch_ns);
}

/*
 * Another writer of this library ends, or takes the host lock, or the byte of the number that
 * stands in owner_pid.
 */
static void other_lock(bool number)
{
    if (writers.other_fd < 0)
        writers.other_fd = open(run.file->path, O_RDWR | O_CLOEXEC);
    REQUIRE(writers.other_fd >= 0);
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    if (writers.other_has_host || writers.other_number != 0) {
        range.l_type = F_UNLCK;
        range.l_len = 0;
        REQUIRE(fcntl(writers.other_fd, F_OFD_SETLK, &range) == 0);
        writers.other_has_host = false;
        writers.other_number = 0;
        return;
    }
    const struct view view = as_opened();
    const uint64_t owner = is_whole() ? owner_of(&view) : 0;
    if (number && (owner < HR_FOREIGN_OWNER || owner >= HR_FOREIGN_END))
        return;
    range.l_start = HR_HOST_LOCK_BYTE;
    if (number)
        range.l_start = (off_t)(HR_NUMBER_BYTE + (owner - HR_FOREIGN_OWNER));
    if (fcntl(writers.other_fd, F_OFD_SETLK, &range) != 0)
        return;
    writers.other_has_host = !number;
    writers.other_number = number ? owner : 0;
}

bool lock_step(uint8_t step, struct input *input)
{
    if (step < FUZZ_OTHER_LOCK || step > FUZZ_RECOVER)
        return false;
    const uint8_t first = step == FUZZ_LOCK_STATE || step == FUZZ_UNLOCK ? 0 : take8(input);
    if (run.region == NULL)
        return true;
    if (step == FUZZ_OTHER_LOCK)
        other_lock(first % 2 != 0);
    else if (step == FUZZ_LOCK)
        lock(first * UINT64_C(1000000));
    else if (step == FUZZ_UNLOCK)
        unlock();
    else if (step == FUZZ_LOCK_STATE)
        lock_state(NULL);
    else
        recover(NULL, first * UINT64_C(1000000000));
    return true;
}

void lock_step_by(bool is_first, struct input *input)
{
    if (is_first)
        lock_state(evidence_noted());
    else
        recover(evidence_noted(), take8(input) * UINT64_C(1000000000));
}
