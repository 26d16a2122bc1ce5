#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "fields.h"
#include "identify.h"

static bool is_directory_as_it_was(const struct hr_watch_entry *entry)
{
    struct stat status;
    if (fstatat(AT_FDCWD, entry->directory, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    /* The time of the last change, which nobody can set, unlike that of the last modification. */
    int64_t changed_ns = (int64_t)status.st_ctim.tv_sec * 1000000000 + status.st_ctim.tv_nsec;
    return S_ISDIR(status.st_mode) && status.st_ino == entry->inode &&
           status.st_dev == entry->device_id && changed_ns == entry->changed_ns;
}

/*
 * Whether the region's name leads to it.  Its directory has just been seen to be no link, so that
 * the path needs no descriptor.
 */
static bool is_file_as_it_was(const struct hr_watch_entry *entry)
{
    const hr_region *region = entry->region;
    struct stat status;
    return region == NULL || (fstatat(AT_FDCWD, region->path, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                              hr_is_whole(region, &status));
}

static bool has_bad_uuid(const hr_region *region)
{
    const unsigned char *at = region->base + region->layout->uuids;
    for (uint32_t device = 0; device < HR_DEVICES; device++, at += HR_UUID_BYTES) {
        uint64_t text[HR_UUID_WORDS], any = 0;
        for (uint32_t word = 0; word < HR_UUID_WORDS; word++)
            any |= text[word] = hr_load_u64(at + word * 8, memory_order_relaxed);
        if (any != 0 && !hr_uuid_is_plausible((const unsigned char *)text))
            return true;
    }
    return false;
}

/* What hr_snapshot() would refuse. */
static int check_work(void *argument)
{
    const hr_region *region = argument;
    int32_t proc_num;
    uint32_t device_num;
    int code = hr_check_header(region);
    if (code == HR_OK)
        code = hr_checked_proc_num(region, &proc_num);
    if (code == HR_OK)
        code = hr_checked_device_num(region, &device_num);
    if (code == HR_OK && has_bad_uuid(region))
        code = hr_fail_reason(HR_ECORRUPT, HR_REASON_UUID);
    return code;
}

uint32_t hr_find_changed(const struct hr_watch_entry *entries, uint32_t count,
                         unsigned char *changed)
{
    for (uint32_t i = 0; i < count; i++)
        changed[i] = entries[i].directory != NULL &&
                     !(is_directory_as_it_was(&entries[i]) && is_file_as_it_was(&entries[i]));
    /* By themselves: runs of the guard that follow each other at once need no system calls. */
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        hr_region *region = entries[i].region;
        if (changed[i] == 0 && region != NULL)
            changed[i] = hr_run(region, check_work, region) != HR_OK;
        found += changed[i];
    }
    return found;
}
