/*
 * What this library says: at most three lines on standard error in a process's life; a forked child
 * goes on with its parent's count.  It is a guest in a program whose output may be read.
 */
#ifndef HR_COMPLAIN_H
#define HR_COMPLAIN_H

/* One line, without its newline.  Leaves errno as it is. */
__attribute__((format(printf, 1, 2))) void hr_complain(const char *format, ...);

/* What a code of the core means, in a few words. */
const char *hr_code_text(int code);

#endif
