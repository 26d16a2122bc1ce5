/*
 * Whether this process shares a pid namespace with the region's.  Internal to the core.
 */
#ifndef HR_NAMESPACES_H
#define HR_NAMESPACES_H

#include "mappers.h"

/*
 * Whether this process has its pids in the namespace of the region's processes:
 * some with slots are seen here, and all of those under the pids in their slots.
 */
bool hr_shares_namespace(hr_region *region);

#endif
