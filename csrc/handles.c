#include "internal.h"

static hr_region *writable_handles; /* under the fork lock */

void hr_link_writable(hr_region *region)
{
    region->next_writable = writable_handles;
    writable_handles = region;
}

void hr_unlink_writable(hr_region *region)
{
    hr_region **at = &writable_handles;
    while (*at != region)
        at = &(*at)->next_writable;
    *at = region->next_writable;
}

#define EACH_WRITABLE(region)                                                                      \
    hr_region *region = writable_handles;                                                          \
    region != NULL;                                                                                \
    region = region->next_writable

bool hr_is_mapped_by_handle(uint64_t start)
{
    for (EACH_WRITABLE(region)) {
        if (start == (uint64_t)(uintptr_t)region->base)
            return true;
    }
    return false;
}

/* Handles from before a fork() are the parent's. */
static bool is_same_region(const hr_region *one, const hr_region *other)
{
    return one->fork_generation == other->fork_generation && one->inode == other->inode &&
           one->device_id == other->device_id;
}

bool hr_is_used_by_process(const hr_region *region, bool by_another)
{
    bool used = false;
    hr_fork_lock();
    for (EACH_WRITABLE(other)) {
        if (is_same_region(region, other) && !(by_another && other == region))
            used = used || other->own.is_claimed || other->lock.held;
    }
    hr_fork_unlock();
    return used;
}

bool hr_claim_attachment(hr_region *region)
{
    bool is_free = true;
    hr_fork_lock();
    for (EACH_WRITABLE(other))
        is_free = is_free && !(is_same_region(region, other) && other->own.is_claimed);
    if (is_free)
        region->own.is_claimed = true;
    hr_fork_unlock();
    return is_free;
}
