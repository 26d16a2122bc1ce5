#define _GNU_SOURCE
#include "fuzz_system.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* ---- The clock --------------------------------------------------------------------- */

static uint64_t now_ns = UINT64_C(1000000000000);
static bool (*act_in_naps)(void);

int fuzz_clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    now_ns += 1000; /* who waits by looking at the clock waits too */
    out->tv_sec = (time_t)(now_ns / 1000000000);
    out->tv_nsec = (long)(now_ns % 1000000000);
    return 0;
}

uint64_t system_now_ns(void)
{
    return now_ns;
}

void system_call_in_naps(bool (*act)(void))
{
    act_in_naps = act;
}

/* Longer than asked for, as on a busy machine: ten seconds of short naps must not take long. */
static int nap(const struct timespec *length)
{
    now_ns += 64 * ((uint64_t)length->tv_sec * 1000000000 + (uint64_t)length->tv_nsec);
    if (act_in_naps == NULL || !act_in_naps())
        return 0;
    errno = EINTR;
    return -1;
}

int fuzz_nanosleep(const struct timespec *length, struct timespec *left)
{
    (void)left;
    return nap(length);
}

long fuzz_syscall(long number, ...)
{
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (number != SYS_futex)
        return syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                       arguments[5]);
    /* To wait with a time-out, or to wake somebody: there is nobody. */
    if (arguments[3] != 0)
        return nap((const struct timespec *)arguments[3]);
    return 0;
}

ssize_t fuzz_getrandom(void *out, size_t bytes, unsigned flags)
{
    static uint64_t state = 88172645463325252;
    (void)flags;
    for (size_t i = 0; i < bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((uint8_t *)out)[i] = (uint8_t)state;
    }
    return (ssize_t)bytes;
}

/* ---- /proc ------------------------------------------------------------------------- */

static const int32_t host_pids[SYSTEM_PIDS] = {2, 17, 100, 102, 1000, 4000};

static char root[200];
static struct {
    uint32_t flags;
    struct process processes[SYSTEM_PIDS];
    hr_region *region;
    bool is_attached;
    unsigned major_number, minor_number;
    uint64_t inode;
    size_t bytes;
} machine;

const char *system_proc(void)
{
    return root;
}

uint32_t system_proc_flags(void)
{
    return machine.flags;
}

static const char *path_of(const char *name, const char *below)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/%s%s", root, name, below);
    return path;
}

static const char *name_of(int32_t pid)
{
    static char name[16];
    snprintf(name, sizeof name, "%d", pid);
    return name;
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
    close(fd);
}

static void write_status(int32_t host, const struct process *process)
{
    char text[200];
    int length = snprintf(text, sizeof text, "Name:\tprogram\nPid:\t%d\nNSpid:", host);
    for (uint32_t level = 0; level < process->levels; level++)
        length +=
            snprintf(text + length, sizeof text - (size_t)length, "\t%d", process->pids[level]);
    length += snprintf(text + length, sizeof text - (size_t)length, "\nThreads:\t1\n");
    write_file(path_of(name_of(host), "/status"), text, (size_t)length);
}

static int map_line(char *out, size_t room, const char *permissions, unsigned minor_more)
{
    return snprintf(out, room, "7f0000000000-%zx %s 00000000 %02x:%02x %ju /region.cache\n",
                    (size_t)0x7f0000000000 + machine.bytes, permissions, machine.major_number,
                    machine.minor_number + minor_more, (uintmax_t)machine.inode);
}

static void write_maps(const char *path, const struct process *process)
{
    char text[700] = "55d000000000-55d000002000 r-xp 00000000 08:01 77 /usr/bin/program\n";
    size_t length = strlen(text);
    const size_t room = sizeof text - length;
    switch (process->maps) {
    case FUZZ_MAPS_REGION_AND_LIBVGPU:
        strcat(text, "7e0000000000-7e0000200000 r-xp 00000000 08:01 78 /usr/lib/libvgpu.so\n");
        length = strlen(text);
        length += (size_t)map_line(text + length, sizeof text - length, "rw-s", 0);
        break;
    case FUZZ_MAPS_READ_ONLY:
        length += (size_t)map_line(text + length, room, "r--s", 0);
        break;
    case FUZZ_MAPS_OTHER_FILE:
        break;
    case FUZZ_MAPS_OTHER_DEVICE:
        length += (size_t)map_line(text + length, room, "rw-s", 1);
        break;
    case FUZZ_MAPS_NOTHING:
        length = 0;
        break;
    case FUZZ_MAPS_NAME:
        length += (size_t)snprintf(text + length, room,
                                   "7e0000000000-7e0000200000 rw-s 0 0:0 1 %s\n", process->text);
        length += (size_t)map_line(text + length, sizeof text - length, "rw-s", 0);
        break;
    default:
        length += (size_t)map_line(text + length, room, "rw-s", 0);
    }
    write_file(path, text, length);
}

/* No two processes start at one time: who was ruled out in a search is told from who follows it. */
static void write_stat(int32_t host)
{
    static uint64_t starts;
    char text[128];
    int length = snprintf(text, sizeof text,
                          "%d (x) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 %" PRIu64 " 0 0 0 0 0 0\n",
                          host, ++starts);
    write_file(path_of(name_of(host), "/stat"), text, (size_t)length);
}

static void remove_process(int32_t host)
{
    const char *below[] = {"/task/9/maps", "/maps", "/status", "/stat", "/ns/pid"};
    for (size_t i = 0; i < sizeof below / sizeof below[0]; i++)
        unlink(path_of(name_of(host), below[i]));
    const char *directories[] = {"/task/9", "/task", "/ns", ""};
    for (size_t i = 0; i < sizeof directories / sizeof directories[0]; i++)
        rmdir(path_of(name_of(host), directories[i]));
}

static void make_process(int32_t host, const struct process *process)
{
    REQUIRE(mkdir(path_of(name_of(host), ""), 0700) == 0);
    write_stat(host);
    /* Not to be opened, not even by root: no link is followed. */
    if (process->maps == FUZZ_MAPS_NO_STATUS)
        REQUIRE(symlink("nowhere", path_of(name_of(host), "/status")) == 0);
    else
        write_status(host, process);
    if (process->maps == FUZZ_MAPS_REFUSED) {
        REQUIRE(symlink("nowhere", path_of(name_of(host), "/maps")) == 0);
    } else if (process->maps == FUZZ_MAPS_ONLY_THREAD) {
        write_file(path_of(name_of(host), "/maps"), "", 0);
        REQUIRE(mkdir(path_of(name_of(host), "/task"), 0700) == 0);
        REQUIRE(mkdir(path_of(name_of(host), "/task/9"), 0700) == 0);
        write_maps(path_of(name_of(host), "/task/9/maps"), process);
    } else {
        write_maps(path_of(name_of(host), "/maps"), process);
    }
}

void system_set_process(uint32_t index, struct process *process)
{
    const int32_t host = host_pids[index];
    struct process *known = &machine.processes[index];
    if (known->maps != FUZZ_MAPS_GONE)
        remove_process(host);
    process->pids[0] = host;
    *known = *process;
    if (known->maps != FUZZ_MAPS_GONE)
        make_process(host, known);
}

static void remove_usual_processes(void)
{
    remove_process(1);
    remove_process(getpid());
    unlink(path_of("self", ""));
}

static void make_usual_processes(uint32_t flags)
{
    const char *namespace_link =
        (flags & FUZZ_PROC_NOT_FIRST) != 0 ? "pid:[4026532000]" : "pid:[4026531836]";
    const struct process other = {.maps = FUZZ_MAPS_OTHER_FILE, .levels = 1, .pids = {1}};
    struct process self = {.maps = FUZZ_MAPS_REGION, .levels = 1, .pids = {getpid()}};
    if ((flags & FUZZ_PROC_HIDES) == 0) {
        make_process(1, &other);
        REQUIRE(mkdir(path_of("1", "/ns"), 0700) == 0);
        REQUIRE(symlink(namespace_link, path_of("1", "/ns/pid")) == 0);
    }
    if ((flags & FUZZ_PROC_NO_SELF) == 0) {
        make_process(getpid(), &self);
        REQUIRE(symlink(name_of(getpid()), path_of("self", "")) == 0);
        REQUIRE(mkdir(path_of(name_of(getpid()), "/ns"), 0700) == 0);
        REQUIRE(symlink(namespace_link, path_of(name_of(getpid()), "/ns/pid")) == 0);
    }
}

void system_set_proc(uint32_t flags)
{
    const uint32_t on_disk = FUZZ_PROC_HIDES | FUZZ_PROC_NOT_FIRST | FUZZ_PROC_NO_SELF;
    if (((flags ^ machine.flags) & on_disk) != 0) {
        remove_usual_processes();
        make_usual_processes(flags);
    }
    machine.flags = flags;
}

void system_reset(void)
{
    struct process gone = {.maps = FUZZ_MAPS_GONE};
    for (uint32_t i = 0; i < SYSTEM_PIDS; i++)
        system_set_process(i, &gone);
    system_set_proc(0);
    machine.region = NULL;
    machine.is_attached = false;
}

void system_note_attached(bool is_attached)
{
    machine.is_attached = is_attached;
}

/* This process's maps show the region by number, which is the same for all layouts' files but
 * its inode. */
void system_set_region(const struct file *file, hr_region *region)
{
    struct stat status;
    REQUIRE(fstat(file->fd, &status) == 0);
    const bool is_another = machine.inode != status.st_ino;
    machine.major_number = major(status.st_dev);
    machine.minor_number = minor(status.st_dev);
    machine.inode = status.st_ino;
    /* The kernel maps whole pages. */
    machine.bytes = (file->whole + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    machine.region = region;
    if (is_another && (machine.flags & FUZZ_PROC_NO_SELF) == 0) {
        const struct process self = {.maps = FUZZ_MAPS_REGION};
        write_maps(path_of(name_of(getpid()), "/maps"), &self);
    }
}

static void remove_proc(void)
{
    system_reset();
    remove_usual_processes();
    rmdir(root);
}

void system_make(void)
{
    snprintf(root, sizeof root, "%s/proc", files_directory());
    REQUIRE(mkdir(root, 0700) == 0);
    make_usual_processes(0);
    atexit(remove_proc);
}

DIR *fuzz_opendir(const char *path)
{
    return opendir(strcmp(path, "/proc") == 0 ? root : path);
}

static int open_own_maps(void)
{
    char text[1000];
    if ((machine.flags & (FUZZ_PROC_NO_MAPS | FUZZ_PROC_NO_ROOM)) != 0) {
        errno = (machine.flags & FUZZ_PROC_NO_ROOM) != 0 ? EMFILE : EACCES;
        return -1;
    }
    struct hr_info info = {0};
    if (machine.region != NULL)
        hr_get_info(machine.region, &info);
    int length = snprintf(text, sizeof text, "%jx-%jx %s 00000000 %02x:%02x %ju /region.cache\n",
                          (uintmax_t)info.address, (uintmax_t)(info.address + info.mapped_bytes),
                          info.writable != 0 ? "rw-s" : "r--s", machine.major_number,
                          machine.minor_number, (uintmax_t)machine.inode);
    if ((machine.flags & FUZZ_PROC_FOREIGN) != 0)
        length += map_line(text + length, sizeof text - (size_t)length, "rw-s", 0);
    const int fd = memfd_create("maps", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && pwrite(fd, text, (size_t)length, 0) == length);
    return fd;
}

int fuzz_openat(int directory, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    return strcmp(path, "/proc/self/maps") == 0 ? open_own_maps()
                                                : openat(directory, path, flags, mode);
}

/* ---- What it proves ---------------------------------------------------------------- */

static bool maps_region(const struct process *process)
{
    return process->maps == FUZZ_MAPS_REGION || process->maps == FUZZ_MAPS_REGION_AND_LIBVGPU ||
           process->maps == FUZZ_MAPS_ONLY_THREAD || process->maps == FUZZ_MAPS_NAME;
}

static bool leaves_doubt(const struct process *process)
{
    return process->maps == FUZZ_MAPS_OTHER_DEVICE || process->maps == FUZZ_MAPS_REFUSED ||
           process->maps == FUZZ_MAPS_NO_STATUS;
}

static bool has_pid(const struct process *process, int32_t pid, bool innermost)
{
    for (uint32_t level = innermost ? process->levels - 1 : 0; level < process->levels; level++)
        if (process->pids[level] == pid)
            return true;
    return false;
}

/* A later namespace can be that of the slots only if a process of theirs is in it. */
static bool may_have_slots(void)
{
    bool may = (machine.flags & FUZZ_PROC_NOT_FIRST) == 0 || machine.is_attached;
    for (uint32_t i = 0; i < SYSTEM_PIDS; i++) {
        const struct process *process = &machine.processes[i];
        may = may || (process->maps == FUZZ_MAPS_REGION_AND_LIBVGPU && process->levels == 1);
    }
    return may;
}

enum hr_liveness system_life(int32_t pid, bool innermost)
{
    bool doubt = (machine.flags & FUZZ_PROC_HIDES) != 0 || !may_have_slots();
    for (uint32_t i = 0; i < SYSTEM_PIDS; i++) {
        const struct process *process = &machine.processes[i];
        if (process->maps == FUZZ_MAPS_GONE)
            continue;
        if (maps_region(process) && has_pid(process, pid, innermost))
            return HR_ALIVE;
        doubt = doubt || process->maps == FUZZ_MAPS_NO_STATUS ||
                (leaves_doubt(process) && has_pid(process, pid, innermost));
    }
    return doubt ? HR_LIVENESS_UNKNOWN : HR_DEAD;
}

bool system_lists(int32_t pid)
{
    for (uint32_t i = 0; i < SYSTEM_PIDS; i++) {
        const struct process *process = &machine.processes[i];
        if ((maps_region(process) || leaves_doubt(process)) && has_pid(process, pid, true) &&
            process->maps != FUZZ_MAPS_NO_STATUS)
            return true;
    }
    return false;
}

int32_t system_host_pid(uint32_t index)
{
    return host_pids[index];
}

bool system_has(uint32_t index)
{
    return machine.processes[index].maps != FUZZ_MAPS_GONE;
}

bool system_may_be_any_of(uint32_t index, const int32_t *pids, uint32_t count)
{
    const struct process *process = &machine.processes[index];
    bool may = process->maps == FUZZ_MAPS_NO_STATUS;
    for (uint32_t i = 0; i < count; i++)
        may = may || has_pid(process, pids[i], false);
    return may && system_has(index);
}

bool system_lists_self(void)
{
    return (machine.flags & FUZZ_PROC_NO_SELF) == 0;
}

bool system_is_plain(void)
{
    for (uint32_t i = 0; i < SYSTEM_PIDS; i++)
        if (leaves_doubt(&machine.processes[i]))
            return false;
    return machine.flags == 0;
}

bool system_is_empty(void)
{
    for (uint32_t i = 0; i < SYSTEM_PIDS; i++)
        if (maps_region(&machine.processes[i]))
            return false;
    return system_is_plain();
}
