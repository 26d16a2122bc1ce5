/*
 * How fast a pace lets a program launch at most, whatever the figures were before:
 * `pace_bounds_model`. It ends the program if that is more.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/preload/pace.h"

#define MUST_SHOW "limit %u, users %.0f: %.1f percent", view.limit, view.users, percent
#include "must.h"

#define PASS_S 0.1
#define UNIT_S 0.001 /* what one unit takes */

static struct hr_pace pace;
static struct hr_pace_view view;
static double percent; /* of the GPU's time, by which launches are let through */

/* Some passes with these figures; what was launched is what the GPU did. */
static void step(int passes, uint32_t own, uint32_t all, bool has_waited)
{
    view.own = own;
    view.all = all;
    view.has_waited = has_waited;
    for (int pass = 0; pass < passes; pass++) {
        view.now_s += PASS_S;
        view.launched += own / 100.0 * PASS_S / UNIT_S;
        percent = 100 * UNIT_S * hr_step_pace(&pace, &view);
    }
}

static void begin(uint32_t limit, uint32_t users)
{
    view = (struct hr_pace_view){.limit = limit, .users = users};
    hr_start_pace(&pace, 0);
    step(30, limit / users, limit, true);
}

/* One of many that has shown nothing yet, while all together are now above the limit and now below
 * it: it comes to launch more than it began with. */
static void check_unseen(void)
{
    double rate = 0;
    view = (struct hr_pace_view){.limit = 50,
                                 .users = 24,
                                 .launched = 1,
                                 .has_waited = true,
                                 .is_crowded = true,
                                 .has_device = true};
    hr_start_pace(&pace, 0);
    for (int pass = 0; pass < 300; pass++) {
        view.now_s += PASS_S;
        view.launched += rate * PASS_S;
        view.all = view.device = pass % 20 < 10 ? 70 : 30;
        rate = hr_step_pace(&pace, &view);
    }
    MUST(view.launched > 100);
}

int main(void)
{
    check_unseen();
    for (uint32_t limit = 30; limit <= 70; limit += 20) {
        for (uint32_t users = 1; users <= 3; users++) {
            begin(limit, users);
            MUST(percent > 0.8 * limit / users && percent < 1.1 * limit / users);
            /* It was kept from its work for long, and wants to catch up: by a tenth of the limit,
             * and by what the others leave. */
            step(100, 10, 10, true);
            MUST(percent > 0.95 * limit && percent < 1.11 * limit);
            /* The GPU was busier than allowed for long: launches stop, */
            begin(limit, users);
            step(100, 100 / users, 96, true);
            MUST(percent == 0);
            /* and go on within seconds when it is not. */
            step(40, 10, 10, true);
            MUST(percent > 0);
            /* What a program does not want is not saved for later, nor what it once fell short. */
            begin(limit, users);
            step(100, 10, 10, true);
            step(50, 0, 0, false);
            step(1, limit / users, limit, false);
            MUST(percent < 1.05 * limit / users + 1);
        }
    }
    return 0;
}
