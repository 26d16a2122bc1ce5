#define _GNU_SOURCE
#include "map_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base.h"

/* File systems that the kernel serves itself: an operation waits for a disk at most. */
static const char *const LOCAL[] = {"ext4", "xfs", "btrfs", "tmpfs", "overlay"};

bool hr_is_in_map_files(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char directory[] = "/map_files";
    const size_t length = sizeof directory - 1;
    return slash != NULL && (size_t)(slash - path) > length &&
           strncmp(slash - length, directory, length) == 0;
}

/* A process can have 100,000 mounts with names of 16 KiB; a container has a hundred. */
#define MOUNTINFO_LIMIT ((size_t)8 << 20)

struct mount {
    unsigned major_number, minor_number;
};

/* A line of mountinfo: id parent major:minor root point options [tags] - type source options. */
static bool is_local(const char *line)
{
    const char *type = strstr(line, " - ");
    size_t length = type == NULL ? 0 : strcspn(type += 3, " \n");
    for (size_t i = 0; i < sizeof LOCAL / sizeof *LOCAL; i++) {
        if (strlen(LOCAL[i]) == length && strncmp(type, LOCAL[i], length) == 0)
            return true;
    }
    return false;
}

/*
 * Find a local mount: by its number if that is not negative, else by its device.  What stands
 * behind so many bytes is not found.
 */
static bool find_mount(int directory, const char *name, size_t most, int number,
                       struct mount *mount)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "re");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    ssize_t length;
    while (file != NULL && !found && (length = getline(&line, &room, file)) > 0) {
        struct mount seen;
        int id;
        if ((size_t)length > most)
            break;
        most -= (size_t)length;
        if (sscanf(line, "%d %*d %u:%u", &id, &seen.major_number, &seen.minor_number) != 3)
            continue;
        found = (number >= 0 ? id == number
                             : seen.major_number == mount->major_number &&
                                   seen.minor_number == mount->minor_number) &&
                is_local(line);
        if (found)
            *mount = seen;
    }
    free(line);
    if (file != NULL)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return found;
}

/* The kernel's number of the mount that a descriptor was opened through, or -1. */
static int mount_number(int fd)
{
    char name[48], line[128];
    int number = -1;
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(name, "re");
    while (file != NULL && number < 0 && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "mnt_id: %d", &number) != 1)
            number = -1;
    }
    if (file != NULL)
        fclose(file);
    return number;
}

int hr_hold_mapped_file(int directory, const char *name)
{
    struct statfs system;
    if (fstatfs(directory, &system) != 0 || system.f_type != PROC_SUPER_MAGIC)
        return hr_fail_errno(HR_ENOTFOUND, ENOENT);
    int held = openat(directory, name, O_PATH | O_CLOEXEC);
    if (held < 0)
        return hr_fail_errno(errno == EPERM || errno == EACCES ? HR_EACCESS
                             : errno == ENOENT                 ? HR_ENOTFOUND
                                                               : HR_ESYSTEM,
                             errno);
    /*
     * The file is not looked at before its mount is known: a stat of a file in a FUSE that nobody
     * serves does not return.  What the process has mounted itself stands in its own mountinfo
     * only, not in that of the first process.
     */
    struct mount mount;
    int number = mount_number(held);
    int error = number < 0 ? errno : EREMOTE;
    if (number >= 0 && find_mount(directory, "../mountinfo", MOUNTINFO_LIMIT, number, &mount) &&
        find_mount(directory, "../../1/mountinfo", SIZE_MAX, -1, &mount))
        return held;
    close(held);
    return hr_fail_errno(HR_ESYSTEM, error);
}
