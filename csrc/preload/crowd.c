#include "crowd.h"

#include <string.h>

/* The figures of processes are averages of that much time, and so is what is made of these. */
#define WINDOW_S 0.5

/* NVML's figure of a process is a mean of samples, both in whole percents: up to so much below the
 * truth where it shows something, and where it shows nothing; and, if a driver rounds to the
 * nearest, above. */
#define ROUNDED_OFF 2.0
#define ROUNDED_TO_NOTHING 1.0
#define ROUNDED_UP 0.5

/* What a process has that shows something beyond what it shows, and what one has that shows
 * nothing: by these it is guessed how many of the latter work.  The figures of processes and of the
 * device are not of the very same time: a part of what is shown may be missing and nobody has it.
 */
#define MOSTLY_ROUNDED_OFF 1.0
#define MOSTLY_UNSHOWN 0.33
#define UNEQUAL 0.25

/* That guess is a mean of so much time; at first it is rather too high than too low, for all may
 * begin at once. */
#define GUESS_S 2.0
#define BEGIN_S 2.0

/* How long a process counts that shows nothing any more: it may have a kernel now and then.  Where
 * samples are rare, it shows that more seldom. */
#define USERS_S 3.0
#define USERS_SAMPLES 6.0

/* While the region has launched and shown nothing for so long, what the device does beyond the
 * limit is done for somebody who is not shown; and how long that is believed.  Else the region
 * would take it for its own, and stand still for as long as that goes on. */
#define STOPPED_S 2.0
#define HIDDEN_S 10.0

void hr_forget_crowd(struct hr_crowd *crowd)
{
    *crowd = (struct hr_crowd){.count = 0};
}

void hr_note_crowd(struct hr_crowd *crowd, double now_s, uint32_t device, uint32_t beside)
{
    uint32_t old = 0;
    while (old < crowd->count &&
           (crowd->figures[old].at_s <= now_s - WINDOW_S || crowd->count - old == HR_CROWD_FIGURES))
        old++;
    crowd->count -= old;
    memmove(crowd->figures, crowd->figures + old, crowd->count * sizeof crowd->figures[0]);
    crowd->figures[crowd->count].at_s = now_s;
    crowd->figures[crowd->count].percent = device > beside ? (double)device - beside : 0;
    crowd->count++;
}

static bool is_told(const struct hr_crowd *crowd, double now_s)
{
    return crowd->count > 0 && crowd->figures[crowd->count - 1].at_s > now_s - WINDOW_S;
}

static double average(const struct hr_crowd *crowd)
{
    double sum = 0;
    for (uint32_t at = 0; at < crowd->count; at++)
        sum += crowd->figures[at].percent;
    return sum / crowd->count;
}

/* How many of those that show nothing work, where so much of the time is nobody's. */
static double guess_unshown(struct hr_crowd *crowd, double period_s, double left)
{
    crowd->left += (left - crowd->left) * hr_smaller(period_s / GUESS_S, 1);
    double guessed = crowd->age_s < BEGIN_S ? hr_larger(left, crowd->left) : crowd->left;
    return hr_larger(guessed, 0) / MOSTLY_UNSHOWN;
}

static double remember_users(struct hr_crowd *crowd, double period_s, double users,
                             const struct hr_pace_view *view)
{
    double memory_s = hr_larger(USERS_S, USERS_SAMPLES * view->sample_s);
    double fallen = crowd->users + (users - crowd->users) * hr_smaller(period_s / memory_s, 1);
    crowd->users = hr_larger(users, fallen);
    return crowd->users;
}

/* All processes of the region see the same error: when this one may launch nothing, so may none. */
static double look_for_hidden(struct hr_crowd *crowd, double last, bool has_stopped,
                              const struct hr_pace_view *view)
{
    bool is_still = has_stopped && view->all <= 0 && last >= view->limit;
    /* What the device did before is not to be expected of it. */
    if (!is_still || crowd->stopped_s <= 0) {
        crowd->stopped_s = is_still ? view->now_s : 0;
        crowd->least = last;
    }
    crowd->least = hr_smaller(crowd->least, last);
    if (is_still && view->now_s - crowd->stopped_s > STOPPED_S) {
        crowd->hidden = crowd->least;
        crowd->hidden_until_s = view->now_s + HIDDEN_S;
    }
    return view->now_s < crowd->hidden_until_s ? crowd->hidden : 0;
}

void hr_complete_view(struct hr_crowd *crowd, uint32_t processes, bool has_stopped,
                      struct hr_pace_view *view)
{
    if (processes < HR_CROWD)
        return;
    if (!is_told(crowd, view->now_s)) {
        view->is_crowded = true;
        view->users = processes;
        return;
    }
    double shown = view->users - (view->own > 0 ? 0 : 1), silent = hr_larger(processes - shown, 0);
    double least = view->all - ROUNDED_UP * shown;
    double most = view->all + ROUNDED_OFF * shown + ROUNDED_TO_NOTHING * silent;
    double last = crowd->figures[crowd->count - 1].percent;
    double hidden = look_for_hidden(crowd, last, has_stopped, view);
    double all = hr_smaller(hr_larger(average(crowd) - hidden, least), most);
    double missing = all - view->all;
    double left = missing - MOSTLY_ROUNDED_OFF * shown - UNEQUAL * view->all;
    double period_s = crowd->stepped_s > 0 ? hr_larger(view->now_s - crowd->stepped_s, 0) : 0;
    crowd->stepped_s = view->now_s;
    crowd->age_s += period_s;
    double unshown = hr_smaller(guess_unshown(crowd, period_s, left), silent);
    double users = shown + (view->own > 0 ? unshown : hr_larger(unshown, 1));
    double remembered = remember_users(crowd, period_s, users, view);
    /* A few that work among many that do not. */
    if (remembered < HR_CROWD && view->all > 0)
        return;
    view->is_crowded = view->has_device = true;
    view->device = last;
    view->users = remembered;
    view->missing = missing / users;
    view->all = hr_smaller(hr_larger(all, 0), 100);
}
