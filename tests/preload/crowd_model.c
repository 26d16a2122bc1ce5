/*
 * How busy a GPU is believed to be for the processes of a region, by what they, the device and
 * others show: `crowd_model`. It ends the program if something is wrong.
 */
#include <math.h>

#include "../../csrc/preload/crowd.h"

#define MUST_SHOW                                                                                  \
    "%.1f s, own %.2f + %.2f, all %.2f, users %.2f", now_s, view.own, view.missing, view.all,      \
        view.users
#include "must.h"

#define PASS_S 0.1
#define LIMIT 20

static struct hr_crowd crowd;
static struct hr_pace_view view;
static double now_s = 1000;
static bool has_stopped;

static bool is_about(double value, double wanted)
{
    return fabs(value - wanted) < 0.01;
}

/* Some passes with these figures. */
static void see(int passes, uint32_t device, uint32_t beside, uint32_t processes, double own,
                double all, double users)
{
    for (int pass = 0; pass < passes; pass++) {
        now_s += PASS_S;
        view = (struct hr_pace_view){
            .now_s = now_s, .limit = LIMIT, .own = own, .all = all, .users = users};
        hr_note_crowd(&crowd, now_s, device, beside);
        hr_complete_view(&crowd, processes, has_stopped, &view);
    }
}

static void begin(void)
{
    hr_forget_crowd(&crowd);
    has_stopped = false;
    now_s += 100;
}

static void check_few(void)
{
    begin();
    see(10, 90, 0, HR_CROWD - 1, 10, 30, 3);
    MUST(!view.is_crowded && !view.has_device && view.missing == 0);
    MUST(view.own == 10 && view.all == 30 && view.users == 3);
}

static void check_missing(void)
{
    /* Forty of which none shows anything. */
    begin();
    see(10, 12, 0, 40, 0, 0, 1);
    MUST(view.is_crowded && view.has_device && view.device == 12);
    MUST(is_about(view.all, 12) && view.own == 0);
    MUST(view.users > 30 && view.users <= 40 && is_about(view.missing * view.users, 12));
    /* Four that show all but a little; the others do nothing. */
    begin();
    see(10, 50, 0, 40, 12, 48, 4);
    MUST(is_about(view.all, 50) && is_about(view.users, 4) && is_about(view.missing, 0.5));
    /* One that works among many that do not is as it shows. */
    see(200, 50, 0, 40, 49, 49, 1);
    MUST(!view.is_crowded && view.own == 49 && view.all == 49 && view.missing == 0);
    MUST(view.users == 1);
    /* A process that shows nothing for a moment still counts for some seconds. */
    begin();
    see(10, 0, 0, 16, 0, 8, 9);
    double before = view.users;
    see(10, 0, 0, 16, 0, 1, 2);
    MUST(view.users > before / 2 && view.users < before);
    see(300, 0, 0, 16, 0, 1, 2);
    MUST(view.users < 3);
    /* The figure is a mean of the last half second. */
    begin();
    see(5, 4, 0, 16, 0, 0, 1);
    see(2, 9, 0, 16, 0, 0, 1);
    MUST(view.all > 5 && view.all < 7 && view.device == 9);
}

/* A device that shows anything at all moves what is believed by no more than can be rounded off. */
static void check_bounds(void)
{
    static const uint32_t counts[] = {4, 10, 40, 1000};
    for (size_t at = 0; at < sizeof counts / sizeof *counts; at++) {
        uint32_t processes = counts[at];
        for (uint32_t shown = 1; shown <= processes && shown <= 40; shown++) {
            for (uint32_t device = 0; device <= 100; device += 10) {
                double all = 2 * shown;
                begin();
                see(10, device, 0, processes, 2, all, shown);
                MUST(view.all >= all - 0.5 * shown && view.all <= 100);
                MUST(view.all <= all + 2 * shown + (processes - shown));
                MUST(view.own + view.missing >= 1.5 && view.users >= shown);
                MUST(view.users <= processes);
            }
        }
    }
    /* What is shown for others is not the region's, also where it is more than the device does. */
    begin();
    see(10, 60, 50, 40, 0, 0, 1);
    MUST(is_about(view.all, 10));
    see(10, 40, 100, 40, 0, 0, 1);
    MUST(view.all == 0 && view.missing == 0 && view.device == 0);
    /* More processes than there are slots for them, or fewer than have a figure. */
    begin();
    see(10, 50, 0, 4, 10, 60, 6);
    MUST(view.users >= 6 && view.all >= 57 && view.all <= 60);
}

static void check_silence(void)
{
    begin();
    view = (struct hr_pace_view){.now_s = now_s, .limit = LIMIT, .all = 9, .users = 3};
    hr_complete_view(&crowd, 12, false, &view);
    MUST(view.is_crowded && !view.has_device && view.users == 12 && view.all == 9);
    MUST(view.missing == 0);
    /* A figure that is old is none. */
    see(10, 50, 0, 12, 0, 0, 1);
    MUST(view.has_device);
    now_s += 1;
    view = (struct hr_pace_view){.now_s = now_s, .limit = LIMIT, .users = 1};
    hr_complete_view(&crowd, 12, false, &view);
    MUST(!view.has_device && view.users == 12);
    /* More passes than it keeps figures. */
    begin();
    for (int pass = 0; pass < 200; pass++) {
        now_s += 0.001;
        hr_note_crowd(&crowd, now_s, 7, 0);
    }
    see(1, 7, 0, 12, 0, 0, 1);
    MUST(is_about(view.all, 7));
}

/* What goes on while nothing is launched is somebody else's. */
static void check_hidden(void)
{
    begin();
    has_stopped = true;
    see(15, 35, 0, 40, 0, 0, 1);
    MUST(is_about(view.all, 35));
    see(10, 31, 0, 40, 0, 0, 1);
    MUST(view.all < 5);
    has_stopped = false;
    see(10, 41, 0, 40, 0, 0, 1);
    MUST(is_about(view.all, 10));
    /* It is believed for ten seconds. */
    see(100, 41, 0, 40, 0, 0, 1);
    MUST(view.all > 39);
    /* What the device did before the region stopped does not matter. */
    begin();
    see(1, 0, 0, 40, 0, 0, 1);
    has_stopped = true;
    see(25, 35, 0, 40, 0, 0, 1);
    MUST(view.all < 5);
    /* It is not where processes of the region show something, or there is room below the limit. */
    begin();
    has_stopped = true;
    see(50, 35, 0, 40, 1, 1, 1);
    MUST(view.all > 30);
    begin();
    has_stopped = true;
    see(50, LIMIT - 1, 0, 40, 0, 0, 1);
    MUST(is_about(view.all, LIMIT - 1));
    /* Nor where this process may launch now and then. */
    begin();
    for (int round = 0; round < 10; round++) {
        has_stopped = true;
        see(15, 35, 0, 40, 0, 0, 1);
        has_stopped = false;
        see(1, 35, 0, 40, 0, 0, 1);
    }
    MUST(is_about(view.all, 35));
}

int main(void)
{
    check_few();
    check_missing();
    check_bounds();
    check_silence();
    check_hidden();
    return 0;
}
