/* A whole snapshot of a region, of whatever size it has. */
#ifndef HR_SNAPSHOTS_H
#define HR_SNAPSHOTS_H

#include "../region.h"

/* The caller frees it.  NULL: the region cannot be read, or there is no memory; hr_last_detail()
 * tells which. */
struct hr_snapshot *hr_new_snapshot(hr_region *region);

#endif
