/*
 * The preload's dlsym(): which function a call of it leads to.  Called by dlsym.c only.
 */
#ifndef HR_OVERRIDE_H
#define HR_OVERRIDE_H

/* Jump to `real` with the caller's arguments; where that is NULL, return `found`. */
struct hr_choice {
    void *real;
    void *found;
};

struct hr_choice hr_choose_symbol(void *handle, const char *name);

#endif
