
#include <stdatomic.h>

#include "layout_rows.h"

const struct hr_layout hr_layouts[HR_LAYOUTS] = HR_LAYOUT_ROWS;

/* Lock-free, or the atomics would hide a lock that other processes do not see. */
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "32-bit atomics must be lock-free");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free");
_Static_assert(sizeof(_Atomic int32_t) == 4 && sizeof(_Atomic uint64_t) == 8, "bare atomics");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");
_Static_assert(sizeof(void *) == 8, "the format is that of the 64-bit ABI");

/* The tail that the rows compute, against the published sizes. */
_Static_assert(TAIL(48, 784) == 804664 && TAIL(48, 1168) == 1197880, "unversioned");
_Static_assert(TAIL(56, 1960) == 2008896 && TAIL(88, 1960) == 2008928, "versioned");
