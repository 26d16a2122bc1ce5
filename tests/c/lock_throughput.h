/* Lock and unlock a second, ours and glibc's side by side. */
#ifndef LOCK_THROUGHPUT_H
#define LOCK_THROUGHPUT_H

#include <stdbool.h>

void report_throughput(double seconds, bool json);

#endif
