#include "samples.h"

#include <string.h>

/* A process counts as a user for so long after it was seen to work. */
#define USER_US 5000000u
/* NVML's usual period, its longest with some to spare, and how late its answers are taken to be
 * before any was seen.  Source of the first two: its documentation, 1/6 to 1 s.  Guess: the last.
 */
#define USUAL_PERIOD_US 166667u
#define LONGEST_PERIOD_US 1500000u
#define UNKNOWN_LATE_US 500000u
/* Questions come every tenth of a second: with samples as frequent as that, none is one of work
 * that was not; and the lateness is known with about that error. */
#define FREQUENT_US 200000u
#define QUESTION_US 50000u
/* The clock was set back: stamps begin anew. */
#define SET_BACK_US 1000000u

enum { MOST_PERCENT = 100 };

void hr_start_samples(struct hr_samples *samples, uint64_t now_us)
{
    memset(samples, 0, sizeof *samples);
    samples->newest_us = now_us;
    samples->period_us = LONGEST_PERIOD_US;
    samples->late_us = UNKNOWN_LATE_US;
}

void hr_note_units(struct hr_samples *samples, uint64_t now_us, double units)
{
    if (samples->point_count == HR_POINTS) {
        memmove(samples->points, samples->points + 1,
                sizeof samples->points - sizeof samples->points[0]);
        samples->point_count--;
    }
    samples->points[samples->point_count].at_us = now_us;
    samples->points[samples->point_count].units = units;
    samples->point_count++;
}

static double units_at(const struct hr_samples *samples, uint64_t at_us)
{
    unsigned after = 0;
    while (after < samples->point_count && samples->points[after].at_us < at_us)
        after++;
    if (after == 0)
        return samples->point_count == 0 ? 0 : samples->points[0].units;
    if (after == samples->point_count)
        return samples->points[after - 1].units;
    double from_us = (double)samples->points[after - 1].at_us;
    double from = samples->points[after - 1].units;
    double part = ((double)at_us - from_us) / ((double)samples->points[after].at_us - from_us);
    return from + (samples->points[after].units - from) * part;
}

bool hr_is_sample_due(const struct hr_samples *samples, uint64_t now_us)
{
    return now_us >= samples->newest_us + USUAL_PERIOD_US / 2 ||
           now_us + SET_BACK_US < samples->newest_us;
}

bool hr_has_pid(const unsigned *pids, unsigned count, unsigned pid)
{
    for (unsigned at = 0; at < count; at++) {
        if (pids[at] == pid)
            return true;
    }
    return false;
}

unsigned hr_busy_percent(const struct hr_figures *figures, unsigned pid)
{
    unsigned percent = 0;
    for (unsigned at = 0; at < figures->count; at++) {
        if (figures->list[at].pid == pid && figures->list[at].smUtil <= MOST_PERCENT)
            percent += figures->list[at].smUtil;
    }
    return percent < MOST_PERCENT ? percent : MOST_PERCENT;
}

static void note_user(struct hr_samples *samples, unsigned pid, uint64_t now_us)
{
    int place = -1;
    for (int at = 0; at < HR_SLOTS; at++) {
        if (samples->users[at].pid == pid || samples->users[at].until_us <= now_us)
            place = place < 0 || samples->users[at].pid == pid ? at : place;
        if (samples->users[at].pid == pid || samples->users[at].pid == 0)
            break;
    }
    if (place < 0)
        return;
    samples->users[place].pid = pid;
    samples->users[place].until_us = now_us + USER_US;
}

/* This process included.  Each pid counts once, also if it is in two places for a moment. */
static double count_users(const struct hr_samples *samples, unsigned own, uint64_t now_us)
{
    double count = 1;
    for (int at = 0; at < HR_SLOTS && samples->users[at].pid != 0; at++)
        count += samples->users[at].pid != own && samples->users[at].until_us > now_us;
    return count;
}

/* The newest stamp; one far in the future is none. */
static uint64_t newest_stamp(const struct hr_figures *figures, uint64_t now_us)
{
    uint64_t newest = 0;
    for (unsigned at = 0; at < figures->count; at++) {
        uint64_t stamp = figures->list[at].timeStamp;
        if (stamp > newest && stamp <= now_us + SET_BACK_US)
            newest = stamp;
    }
    return newest;
}

/* How long after a window no newer sample means that the GPU was idle.  Its own figure is as old as
 * a sample may be. */
static uint64_t quiet_us(const struct hr_samples *samples, bool shows_nothing)
{
    if (!shows_nothing)
        return LONGEST_PERIOD_US;
    if (samples->period_us <= FREQUENT_US)
        return 0;
    return samples->period_us < LONGEST_PERIOD_US ? samples->period_us : USUAL_PERIOD_US;
}

/* The end of the window that this answer is of; 0: there is no new one. */
static uint64_t window_end(struct hr_samples *samples, const struct hr_figures *figures,
                           uint64_t now_us, bool shows_nothing)
{
    uint64_t newest = newest_stamp(figures, now_us);
    if (now_us + SET_BACK_US < samples->newest_us)
        hr_start_samples(samples, now_us);
    if (newest > samples->newest_us) {
        uint64_t late = now_us > newest ? now_us - newest : 0;
        uint64_t span = samples->stamp_us == 0 ? LONGEST_PERIOD_US : newest - samples->stamp_us;
        samples->late_us = late < samples->late_us ? late : samples->late_us;
        samples->period_us = span < samples->period_us ? span : samples->period_us;
        samples->stamp_us = newest;
        return newest;
    }
    /* A sample that is on its way ends later than that. */
    uint64_t late = samples->late_us + QUESTION_US;
    uint64_t quiet = quiet_us(samples, shows_nothing);
    return now_us > samples->newest_us + late + quiet ? now_us - late : 0;
}

bool hr_take_sample(struct hr_samples *samples, const struct hr_figures *figures, uint64_t now_us,
                    struct hr_law_view *out)
{
    unsigned all = 0, others = 0;
    for (unsigned at = 0; at < figures->count; at++) {
        const nvmlProcessUtilizationSample_t *one = &figures->list[at];
        unsigned percent = one->smUtil <= MOST_PERCENT ? one->smUtil : 0;
        if (!hr_has_pid(figures->pids, figures->pid_count, one->pid)) {
            others += percent;
            continue;
        }
        all += percent;
        if (percent > 0)
            note_user(samples, one->pid, now_us);
    }
    unsigned device = figures->device_percent > others ? figures->device_percent - others : 0;
    uint64_t from_us = samples->newest_us;
    uint64_t to_us = window_end(samples, figures, now_us, device == 0);
    if (to_us == 0)
        return false;
    samples->newest_us = to_us;
    out->now_s = (double)now_us / 1e6;
    out->from_s = (double)from_us / 1e6;
    out->to_s = (double)to_us / 1e6;
    out->own = hr_busy_percent(figures, figures->own) / 100.0;
    out->all = (all < MOST_PERCENT ? all : MOST_PERCENT) / 100.0;
    out->device = device / 100.0;
    out->users = count_users(samples, figures->own, now_us);
    out->units = units_at(samples, to_us) - units_at(samples, from_us);
    return true;
}
