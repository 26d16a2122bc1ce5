/*
 * Counts how often a program begins to list /proc, by whatever library: loaded into it with
 * LD_PRELOAD. The count stands as a 64-bit number at the start of the file that HR_LISTINGS names.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Of the root of each /proc. */
#define PROC_ROOT_INODE 1

static _Atomic uint64_t *count;

__attribute__((constructor)) static void map_count(void)
{
    const char *path = getenv("HR_LISTINGS");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        count = mapped;
}

static DIR *counted(DIR *directory)
{
    struct statfs system;
    struct stat status;
    if (count != NULL && directory != NULL && fstatfs(dirfd(directory), &system) == 0 &&
        system.f_type == PROC_SUPER_MAGIC && fstat(dirfd(directory), &status) == 0 &&
        status.st_ino == PROC_ROOT_INODE)
        atomic_fetch_add(count, 1);
    return directory;
}

DIR *opendir(const char *path)
{
    DIR *(*next)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return counted(next(path));
}

DIR *fdopendir(int descriptor)
{
    DIR *(*next)(int) = (DIR * (*)(int)) dlsym(RTLD_NEXT, "fdopendir");
    return counted(next(descriptor));
}
