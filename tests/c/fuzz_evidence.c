/* Evidence: noted, gathered in parts, and used by the calls that judge, also when it is out of
 * date. */
#include <fcntl.h>

#include "fuzz_evidence.h"

/* The processes that can be asked: those of the machine, the first one, and this one. */
enum { ASKED = SYSTEM_PIDS + 2 };

static struct {
    hr_evidence *evidence;
    uint64_t at_ns;
    uint64_t owner;
    uint32_t value;
    int32_t pids[HR_SLOTS];
    struct hr_wanted wanted;
    uint32_t asked; /* a bit each */
    uint32_t claims;
    bool was_cut_short, was_gathered;
    bool is_changed; /* the region, since it was noted */
} noted;

static int32_t pid_of(uint32_t number)
{
    return number < SYSTEM_PIDS ? system_host_pid(number) : number == SYSTEM_PIDS ? 1 : getpid();
}

void evidence_drop(void)
{
    hr_free_evidence(noted.evidence);
    memset(&noted, 0, sizeof noted);
}

hr_evidence *evidence_noted(void)
{
    return noted.evidence;
}

void evidence_region_changes(void)
{
    noted.is_changed = true;
}

void evidence_machine_changes(void)
{
    if (noted.was_gathered)
        evidence_drop();
}

/* ---- What it proves ---------------------------------------------------------------- */

static bool is_fresh(void)
{
    return system_now_ns() - noted.at_ns < HR_EVIDENCE_NS;
}

bool evidence_may_prove(bool of_all)
{
    const uint32_t needed = of_all ? HR_GATHERED_ALL : HR_GATHERED_ALL | HR_GATHERED_WANTED;
    return (noted.claims & needed) != 0 && !noted.was_cut_short;
}

bool evidence_must_prove(void)
{
    return evidence_may_prove(noted.wanted.all != 0) && is_fresh() && !noted.is_changed;
}

bool evidence_is_of_lock(uint64_t owner, uint32_t value)
{
    return noted.owner == owner && noted.value == value;
}

void evidence_require_as_noted(void)
{
    const struct view before = was();
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++) {
        if (!is_slot_used(slot) || !is_slot_changed(slot))
            continue;
        const int32_t pid = pid_at(&before, slot);
        /* Bytes prove a process of this library dead, whatever is known of others. */
        if (is_own(pid) || (seqlock_at(&before, slot) >> 62 & 1) != 0)
            continue;
        REQUIRE(pid == noted.pids[slot]);
        REQUIRE(evidence_may_prove(pid == 0 && bytes_at(&before, slot) != 0));
    }
}

/* ---- Noting ------------------------------------------------------------------------ */

static bool is_wanted(int32_t pid)
{
    for (uint32_t i = 0; i < noted.wanted.count; i++)
        if (noted.wanted.pids[i] == pid)
            return true;
    return false;
}

/* Each slot that counts, and the lock's owner, can be asked for. */
static void require_wanted(const struct view *view)
{
    const bool is_taken = noted.value != 1 || noted.owner != 0;
    const uint64_t owner = hr_owner_pid(noted.owner);
    const bool has_pid = owner != 0 && owner < HR_PIDS;
    REQUIRE(noted.wanted.count <= sizeof noted.wanted.pids / sizeof noted.wanted.pids[0]);
    REQUIRE(!has_pid || is_wanted((int32_t)owner));
    REQUIRE(noted.wanted.all != 0 || !is_taken || has_pid);
    if (view->layout->major_version == 0)
        return;
    for (uint32_t slot = 0; (int32_t)slot < count_of(view); slot++) {
        const int32_t pid = noted.pids[slot];
        REQUIRE(pid < 0 || pid == HR_NOBODY || (pid == 0 ? noted.wanted.all != 0 : is_wanted(pid)));
    }
}

static void note(void)
{
    evidence_drop();
    begin_call();
    const int code = hr_note(run.region, &noted.evidence, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ESTALE, HR_ECORRUPT, HR_ESYSTEM);
    REQUIRE((code == HR_OK) == (noted.evidence != NULL));
    if (!changes_require_none() || code != HR_OK) {
        evidence_drop();
        return;
    }
    const struct view view = now();
    noted.at_ns = system_now_ns();
    noted.owner = owner_of(&view);
    noted.value = (uint32_t)sem_of(&view);
    for (uint32_t slot = 0; slot < HR_SLOTS; slot++)
        noted.pids[slot] = pid_at(&view, slot);
    hr_get_wanted(noted.evidence, &noted.wanted);
    require_wanted(&view);
}

/* ---- Gathering --------------------------------------------------------------------- */

static void ask(int proc, uint32_t number)
{
    struct hr_asked_file files[2] = {noted.wanted.file, noted.wanted.file};
    struct hr_answer answer;
    files[1].file.inode++;
    hr_ask_process(proc, (uint32_t)pid_of(number), files, 2, 1000000000, &answer);
    REQUIRE(files[0].seen <= HR_GONE && files[1].seen != HR_MAPS);
    REQUIRE(answer.levels <= HR_PID_LEVELS);
    REQUIRE((answer.is_self != 0) == (number == ASKED - 1 && system_lists_self()));
    REQUIRE(hr_add_process(noted.evidence, &answer, files[0].seen, &call_error) == HR_OK);
}

/* Whether every process was asked that has to be. */
static bool has_asked(bool all)
{
    for (uint32_t number = 0; number < ASKED; number++) {
        if ((noted.asked >> number & 1) != 0)
            continue;
        if (number == ASKED - 1 || (all && number == SYSTEM_PIDS) || is_wanted(pid_of(number)))
            return false;
        if (number < SYSTEM_PIDS &&
            (all ? system_has(number)
                 : system_may_be_any_of(number, noted.wanted.pids, noted.wanted.count)))
            return false;
    }
    return true;
}

/* Claims only the truth: a caller knows which processes it has asked. */
static void gather(uint32_t mask, uint32_t claims)
{
    const int proc = open(system_proc(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(proc >= 0);
    for (uint32_t number = 0; number < ASKED; number++)
        if ((mask >> number & 1) != 0)
            ask(proc, number);
    close(proc);
    const uint32_t hides = FUZZ_PROC_HIDES | FUZZ_PROC_NOT_FIRST | FUZZ_PROC_NO_SELF;
    const bool sees_all = (system_proc_flags() & hides) == 0;
    noted.asked |= mask;
    if (!sees_all || !has_asked(false))
        claims &= ~(uint32_t)HR_GATHERED_WANTED;
    if (!sees_all || !has_asked(true))
        claims &= ~(uint32_t)HR_GATHERED_ALL;
    hr_end_evidence(noted.evidence, claims);
    noted.claims = claims;
    noted.was_gathered = true;
    noted.was_cut_short = noted.was_cut_short || (claims & HR_GATHERED_CUT_SHORT) != 0;
}

bool evidence_step(uint8_t step, struct input *input)
{
    if (step != FUZZ_NOTE && step != FUZZ_GATHER && step != FUZZ_BY)
        return false;
    const uint8_t first = step == FUZZ_NOTE ? 0 : take8(input);
    const uint8_t second = step == FUZZ_GATHER ? take8(input) : 0;
    if (run.region == NULL)
        return true;
    if (step == FUZZ_NOTE)
        note();
    else if (step == FUZZ_GATHER && noted.evidence != NULL)
        gather(first, second % 8);
    else if (step == FUZZ_BY && noted.evidence != NULL) {
        if (first % 2 == 0)
            lock_step_by(first / 2 % 2 == 0, input);
        else
            slot_step_by(first / 2 % 2 == 0, input);
        noted.is_changed = true;
    }
    return true;
}
