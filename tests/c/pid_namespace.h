/* Whether everybody can be seen from here: only then does absence prove a death. */
#ifndef PID_NAMESPACE_H
#define PID_NAMESPACE_H

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static inline bool is_first_pid_namespace(void)
{
    char link[64] = "";
    return readlink("/proc/self/ns/pid", link, sizeof link - 1) > 0 &&
           strcmp(link, "pid:[4026531836]") == 0;
}

#endif
