#include "burst.h"

#include <string.h>

/* A process with less works for no program: a desktop, or one that waits.  Guess. */
#define WORKING_PERCENT 3u
/* How long a new process counts: from its context to its first kernel.  Guess. */
#define NEWCOMER_S 5.0
/* A GPU that is so much busier than all processes that are shown works for hidden ones.  Guess. */
#define HIDDEN_PERCENT 25u

void hr_start_burst(struct hr_burst *burst)
{
    memset(burst, 0, sizeof *burst);
}

/* Those that were there before this process show by their work. */
static void note_newcomers(struct hr_burst *burst, const struct hr_figures *figures,
                           const nvmlProcessInfo_t *contexts, unsigned count, double now_s)
{
    unsigned now[HR_BURST_PIDS], found = 0;
    for (unsigned at = 0; at < count && found < HR_BURST_PIDS; at++) {
        unsigned pid = contexts[at].pid;
        if (pid == figures->own || hr_has_pid(figures->pids, figures->pid_count, pid))
            continue;
        now[found++] = pid;
        if (burst->has_begun && !hr_has_pid(burst->known, burst->count, pid))
            burst->newcomer_until_s = now_s + NEWCOMER_S;
    }
    memcpy(burst->known, now, found * sizeof now[0]);
    burst->count = found;
    burst->has_begun = true;
}

bool hr_is_unwanted(struct hr_burst *burst, const struct hr_figures *figures,
                    const nvmlProcessInfo_t *contexts, unsigned count, double now_s)
{
    unsigned shown = 0;
    bool is_wanted = false;
    note_newcomers(burst, figures, contexts, count, now_s);
    for (unsigned at = 0; at < figures->count; at++) {
        unsigned pid = figures->list[at].pid, percent = hr_busy_percent(figures, pid);
        shown += percent;
        if (!hr_has_pid(figures->pids, figures->pid_count, pid) && percent >= WORKING_PERCENT)
            is_wanted = true;
    }
    return !is_wanted && now_s >= burst->newcomer_until_s &&
           figures->device_percent < shown + HIDDEN_PERCENT;
}
