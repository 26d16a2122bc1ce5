/* Identification, opening and creation: each kind of file gets its own answer. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "call_error.h"
#include "check.h"
#include "region_file.h"

/* The layout is found, by name and without one, and a handle tells it. */
static void test_identifies_every_layout(void)
{
    for (uint32_t layout = 0; layout < HR_LAYOUTS; layout++) {
        struct region_file file;
        region_file_make(&file, layout);
        CHECK_EQ(file.size, hr_layouts[layout].size + 1);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), layout);
        CHECK_EQ(hr_identify(file.path, layout, &call_error), layout);

        for (uint32_t flags = HR_READ; flags <= HR_WRITE; flags++) {
            hr_region *region = NULL;
            CHECK_EQ(hr_open(file.path, flags, HR_LAYOUTS, 0, &region, &call_error), layout);
            struct hr_info info;
            struct stat status;
            hr_get_info(region, &info);
            NEED(stat(file.path, &status) == 0);
            CHECK_EQ(info.layout, layout);
            CHECK_EQ(info.writable, flags == HR_WRITE);
            CHECK_EQ(info.inode, status.st_ino);
            CHECK_EQ(info.device_id, status.st_dev);
            CHECK(info.mapped_bytes >= hr_layouts[layout].size);
            CHECK(info.address != 0);
            CHECK_EQ(hr_is_stale(region, &call_error), 0);
            hr_close(region, &call_error);
            close_and_free(region);
        }
        region_file_remove(&file);
    }
}

/* What stands in a new file is what libvgpu expects: semaphores free, a magic, versions, mode 0666.
 */
static void test_creates_what_libvgpu_accepts(void)
{
    const mode_t mask = umask(077);
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        const struct hr_layout *layout = &hr_layouts[id];
        struct region_file file;
        region_file_make(&file, id);
        struct stat status;
        NEED(fstat(file.fd, &status) == 0);
        CHECK_EQ(status.st_mode & 07777, 0666);
        CHECK_EQ(status.st_size, layout->size + 1);
        CHECK_EQ(status.st_nlink, 1);
        CHECK_EQ(peek32(&file, 0), HR_MAGIC);
        if (layout->major_version != 0) {
            CHECK_EQ(peek32(&file, 4), layout->major_version);
            CHECK_EQ(peek32(&file, 8), layout->minor_version);
        }
        /* Value 1, no waiters; process-shared. */
        CHECK_EQ(peek64(&file, layout->sem), 1);
        CHECK_EQ(peek32(&file, layout->sem + 8), 128);
        if (layout->sem_postinit != HR_ABSENT) {
            CHECK_EQ(peek64(&file, layout->sem_postinit), 1);
            CHECK_EQ(peek32(&file, layout->sem_postinit + 8), 128);
        }
        CHECK_EQ(peek64(&file, layout->owner_pid), 0);
        CHECK_EQ(peek64(&file, layout->device_num), 2);
        CHECK_EQ(peek32(&file, layout->proc_num), 0);
        CHECK_EQ(peek64(&file, layout->limit), 4 * GIB);
        CHECK_EQ(peek64(&file, layout->limit + 8), 8 * GIB);
        CHECK_EQ(peek64(&file, layout->limit + 16), 0);
        CHECK_EQ(peek64(&file, layout->sm_limit), 50);
        CHECK_EQ(peek64(&file, layout->sm_limit + 8), 60);
        CHECK_EQ(peek64(&file, layout->sm_limit + 15 * 8), 100);
        CHECK_EQ(peek32(&file, layout->priority), 1);
        CHECK_STR((const char *)file.bytes + layout->uuids,
                  "GPU-00000000-aaaa-bbbb-cccc-000000000001");
        CHECK_STR((const char *)file.bytes + layout->uuids + HR_UUID_BYTES,
                  "MIG-00000000-aaaa-bbbb-cccc-000000000002");
        region_file_remove(&file);
    }
    umask(mask);
}

/* Nothing is overwritten, whatever stands there, and nothing is left behind. */
static void test_create_never_overwrites(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    struct hr_create_spec spec;
    region_file_spec(&spec, HR_V1_1);
    CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_EEXISTS);
    CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_V1_2);

    NEED(unlink(file.path) == 0 && symlink("/nowhere/at/all", file.path) == 0);
    CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_EEXISTS);
    NEED(unlink(file.path) == 0 && mkdir(file.path, 0700) == 0);
    CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_EEXISTS);
    NEED(rmdir(file.path) == 0);

    char path[320];
    snprintf(path, sizeof path, "%s/missing/region.cache", file.directory);
    CHECK_EQ(hr_create(path, &spec, &call_error), HR_ENOTFOUND);
    snprintf(path, sizeof path, "%s/", file.directory);
    CHECK(hr_create(path, &spec, &call_error) < 0);
    CHECK(hr_create("", &spec, &call_error) < 0);
    region_file_remove(&file);
}

static void test_create_refuses_what_is_no_region(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    NEED(unlink(file.path) == 0);
    struct hr_create_spec spec;

    region_file_spec(&spec, HR_LAYOUTS);
    CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_EINVAL);
    region_file_spec(&spec, HR_V1_2);
    spec.device_num = HR_DEVICES + 1;
    CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_EINVAL);
    region_file_spec(&spec, HR_V1_2);
    memset(spec.uuids[0], 'x', HR_UUID_BYTES);
    CHECK_EQ(hr_create(file.path, &spec, &call_error), HR_EINVAL);
    CHECK_EQ(access(file.path, F_OK), -1);
    region_file_remove(&file);
}

/* What hr_identify() and hr_open() say about a path, which must agree. */
static void check_refused(const char *path, int code, int reason)
{
    hr_region *region = NULL;
    CHECK_EQ(hr_open(path, HR_READ, HR_LAYOUTS, 0, &region, &call_error), code);
    CHECK(region == NULL);
    CHECK_EQ(last_detail().reason, reason);
    CHECK_EQ(hr_identify(path, HR_LAYOUTS, &call_error), code);
    const struct hr_error detail = last_detail();
    CHECK_EQ(detail.code, code);
    CHECK_EQ(detail.reason, reason);
}

/* Only regular files are opened, and nothing is followed or waited for. */
static void test_refuses_what_is_no_file(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    char path[320];

    snprintf(path, sizeof path, "%s/missing", file.directory);
    check_refused(path, HR_ENOTFOUND, HR_REASON_NONE);
    snprintf(path, sizeof path, "%s/missing/region.cache", file.directory);
    check_refused(path, HR_ENOTFOUND, HR_REASON_NONE);
    snprintf(path, sizeof path, "%s/other", file.directory);

    NEED(symlink(file.path, path) == 0);
    check_refused(path, HR_ENOTREGION, HR_REASON_SYMLINK);
    unlink(path);
    NEED(symlink("/nowhere/at/all", path) == 0);
    check_refused(path, HR_ENOTREGION, HR_REASON_SYMLINK);
    unlink(path);
    NEED(mkdir(path, 0700) == 0);
    check_refused(path, HR_ENOTREGION, HR_REASON_DIRECTORY);
    rmdir(path);
    NEED(mkfifo(path, 0600) == 0);
    check_refused(path, HR_ENOTREGION, HR_REASON_FIFO);
    unlink(path);

    /* A socket's name has to fit in 108 bytes, which a long TMPDIR does not. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) < sizeof address.sun_path) {
        memcpy(address.sun_path, path, strlen(path));
        const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        NEED(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
        check_refused(path, HR_ENOTREGION, HR_REASON_SOCKET);
        close(listener);
        unlink(path);
    }
    check_refused("/dev/zero", HR_ENOTREGION, HR_REASON_DEVICE);

    /* A link on the way there is the caller's own business. */
    char behind[400];
    NEED(symlink(".", path) == 0);
    snprintf(behind, sizeof behind, "%s/region.cache", path);
    CHECK_EQ(hr_identify(behind, HR_LAYOUTS, &call_error), HR_V1_2);
    unlink(path);
    region_file_remove(&file);
}

/* A file that another user closed is told as such. */
static void test_no_permission(void)
{
    if (geteuid() != 0) {
        fprintf(stderr, "skipped %s: needs root to become somebody else\n", __func__);
        return;
    }
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    NEED(chmod(file.directory, 0755) == 0 && chmod(file.path, 0600) == 0);
    const pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(setuid(65534) == 0);
        hr_region *region = NULL;
        CHECK_EQ(hr_open(file.path, HR_READ, HR_LAYOUTS, 0, &region, &call_error), HR_EACCESS);
        CHECK_EQ(last_detail().sys_errno, EACCES);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_EACCESS);
        _exit(atomic_load(&check_failures) != 0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);

    /* Readable is not writable. */
    NEED(chmod(file.path, 0644) == 0);
    const pid_t other = fork();
    NEED(other >= 0);
    if (other == 0) {
        NEED(setuid(65534) == 0);
        hr_region *region = NULL;
        CHECK_EQ(hr_open(file.path, HR_WRITE, HR_LAYOUTS, 0, &region, &call_error), HR_EACCESS);
        CHECK_EQ(hr_open(file.path, HR_READ, HR_LAYOUTS, 0, &region, &call_error), HR_V1_2);
        close_and_free(region);
        _exit(atomic_load(&check_failures) != 0);
    }
    NEED(waitpid(other, &status, 0) == other);
    CHECK_EQ(status, 0);
    region_file_remove(&file);
}

/* A file on its way to being a region is worth another try; one of another kind is not. */
static void test_short_and_foreign_files(void)
{
    for (uint32_t layout = 0; layout < HR_LAYOUTS; layout++) {
        struct region_file file;
        region_file_make(&file, layout);
        poke32(&file, 0, 0);
        check_refused(file.path, HR_ENOTREADY, HR_REASON_MAGIC_ZERO);
        poke32(&file, 0, HR_MAGIC + 1);
        check_refused(file.path, HR_ENOTREGION, HR_REASON_MAGIC);
        CHECK_EQ(last_detail().found, HR_MAGIC + 1);
        poke32(&file, 0, HR_MAGIC);

        const off_t shorts[] = {804679, 4096, 100, 4, 3, 1};
        for (size_t i = 0; i < sizeof shorts / sizeof shorts[0]; i++) {
            NEED(ftruncate(file.fd, shorts[i]) == 0);
            check_refused(file.path, HR_ENOTREADY, HR_REASON_SHORT);
            CHECK_EQ(last_detail().file_size, shorts[i]);
        }
        NEED(ftruncate(file.fd, 0) == 0);
        check_refused(file.path, HR_ENOTREADY, HR_REASON_EMPTY);
        region_file_remove(&file);
    }
}

/* Naming a layout is a way out of ambiguity, and no way to take a file for another. */
static void test_a_named_layout_contradicts_nothing(void)
{
    for (uint32_t layout = 0; layout < HR_LAYOUTS; layout++) {
        struct region_file file;
        struct hr_create_spec spec;
        region_file_make(&file, layout);
        /* As new, without device and limit: much of it is zeros, which are plausible anywhere. */
        char fresh[sizeof file.path + 8];
        snprintf(fresh, sizeof fresh, "%s.fresh", file.path);
        spec = (struct hr_create_spec){.layout = layout};
        NEED(hr_create(fresh, &spec, &call_error) == HR_OK);
        const char *paths[] = {file.path, fresh};
        for (size_t i = 0; i < 2; i++) {
            CHECK_EQ(hr_identify(paths[i], HR_LAYOUTS, &call_error), layout);
            for (uint32_t named = 0; named < HR_LAYOUTS; named++) {
                hr_region *region = NULL;
                const int code = hr_open(paths[i], HR_WRITE, named, 0, &region, &call_error);
                const struct hr_error detail = last_detail();
                CHECK_EQ(code, named == layout ? (int)layout : HR_ENOTREGION);
                CHECK_EQ(hr_identify(paths[i], named, &call_error), code);
                if (code < 0) {
                    CHECK_EQ(detail.reason, HR_REASON_LAYOUT);
                    CHECK_EQ(detail.layout, named);
                    CHECK_EQ(detail.found, layout);
                }
                hr_free(&region);
            }
        }
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS + 1, &call_error), HR_EINVAL);
        CHECK_EQ(hr_identify(file.path, UINT32_MAX, &call_error), HR_EINVAL);
        hr_region *region = NULL;
        CHECK_EQ(hr_open(file.path, HR_READ, HR_LAYOUTS + 1, 0, &region, &call_error), HR_EINVAL);
        CHECK_EQ(hr_open(file.path, 1u << 20, HR_LAYOUTS, 0, &region, &call_error), HR_EINVAL);
        NEED(unlink(fresh) == 0);
        region_file_remove(&file);
    }
}

/* Any number from 100 on is unlimited; libvgpu takes it from the environment as it is. */
static void test_large_sm_limits_are_no_fault(void)
{
    const uint64_t limits[] = {101, 1001, 100000, UINT64_C(1) << 31, UINT64_C(1) << 63, UINT64_MAX};
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
            struct region_file file;
            region_file_make(&file, id);
            for (uint32_t device = 0; device < HR_DEVICES; device++)
                poke64(&file, file.layout->sm_limit + device * 8, limits[i]);
            CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), id);
            region_file_remove(&file);
        }
    }
    /* Between two layouts, SM limits still tell: without uuids nothing else does here. */
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    poke64(&file, file.layout->device_num, 0);
    memset(file.bytes + file.layout->uuids, 0, HR_DEVICES * HR_UUID_BYTES);
    memset(file.bytes + file.layout->limit, 0, HR_DEVICES * 8);
    for (uint32_t device = 0; device < HR_DEVICES; device++)
        poke64(&file, file.layout->sm_limit + device * 8, 100000);
    fill_slot(&file, 0, 7, 1, 1);
    poke_usage(&file, 0, 0, &(struct hr_usage){.data = GIB, .total = GIB});
    poke32(&file, file.layout->proc_num, 1);
    NEED(ftruncate(file.fd, 2008985) == 0);
    CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_V1_1);
    region_file_remove(&file);
}

/* An older 1.1 file that a newer process made longer: its content decides, or the caller. */
static void test_lengthened_files(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_1);
    NEED(ftruncate(file.fd, 2008985) == 0);
    CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_V1_1);

    /* Without a device and without a limit both readings are of zeros. */
    struct region_file empty;
    region_file_make(&empty, HR_V1_1);
    memset(empty.bytes + empty.layout->limit, 0, 8 * HR_DEVICES);
    poke64(&empty, empty.layout->device_num, 0);
    memset(empty.bytes + empty.layout->uuids, 0, HR_DEVICES * HR_UUID_BYTES);
    CHECK_EQ(hr_identify(empty.path, HR_LAYOUTS, &call_error), HR_V1_1);
    NEED(ftruncate(empty.fd, 2008985) == 0);
    hr_region *region = NULL;
    CHECK_EQ(hr_open(empty.path, HR_READ, HR_LAYOUTS, 0, &region, &call_error), HR_EAMBIGUOUS);
    CHECK_EQ(hr_identify(empty.path, HR_LAYOUTS, &call_error), HR_EAMBIGUOUS);
    CHECK_EQ(last_detail().candidates, 1u << HR_V1_1 | 1u << HR_V1_1_POSTINIT);
    for (uint32_t layout = HR_V1_1; layout <= HR_V1_1_POSTINIT; layout++) {
        CHECK_EQ(hr_identify(empty.path, layout, &call_error), layout);
        CHECK_EQ(hr_open(empty.path, HR_READ, layout, 0, &region, &call_error), layout);
        close_and_free(region);
    }
    region_file_remove(&empty);
    region_file_remove(&file);

    for (uint32_t layout = 0; layout < HR_LAYOUTS; layout++) {
        region_file_make(&file, layout);
        NEED(ftruncate(file.fd, (off_t)file.layout->size) == 0);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), layout);
        /* One byte short it is not that layout any more. */
        NEED(ftruncate(file.fd, (off_t)file.layout->size - 1) == 0);
        CHECK(hr_identify(file.path, HR_LAYOUTS, &call_error) != (int)layout);
        CHECK(hr_identify(file.path, layout, &call_error) < 0);
        NEED(ftruncate(file.fd, 1 << 24) == 0);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), layout);
        region_file_remove(&file);
    }
}

struct poke {
    size_t offset;
    uint64_t value;
    uint32_t bytes;
    int reason;
    int device;
};

static void check_corrupt(const struct region_file *file, const struct poke *poke)
{
    uint64_t before;
    memcpy(&before, file->bytes + poke->offset, 8);
    memcpy(file->bytes + poke->offset, &poke->value, poke->bytes);
    hr_region *region = NULL;
    CHECK_EQ(hr_identify(file->path, HR_LAYOUTS, &call_error), HR_ECORRUPT);
    /* By its name: a file with two candidates has two explanations. */
    CHECK_EQ(hr_identify(file->path, file->layout->id, &call_error), HR_ECORRUPT);
    const int code = hr_open(file->path, HR_READ, file->layout->id, 0, &region, &call_error);
    const struct hr_error detail = last_detail();
    CHECK_EQ(code, HR_ECORRUPT);
    CHECK_EQ(detail.code, HR_ECORRUPT);
    CHECK_EQ(detail.reason, poke->reason);
    CHECK_EQ(detail.device, poke->device);
    if (poke->reason == HR_REASON_DEVICE_NUM)
        CHECK_EQ(detail.found, poke->value);
    if (poke->reason == HR_REASON_PROC_NUM)
        CHECK_EQ(detail.found, (int64_t)(int32_t)poke->value);
    memcpy(file->bytes + poke->offset, &before, 8);
    CHECK_EQ(hr_identify(file->path, HR_LAYOUTS, &call_error), file->layout->id);
}

/* Each count and each text is bounded, and the answer says which one was not. */
static void test_implausible_files(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        const struct hr_layout *layout = file.layout;
        const struct poke pokes[] = {
            {layout->device_num, 17, 8, HR_REASON_DEVICE_NUM, -1},
            {layout->device_num, UINT64_MAX, 8, HR_REASON_DEVICE_NUM, -1},
            {layout->device_num, UINT64_C(1) << 32, 8, HR_REASON_DEVICE_NUM, -1},
            {layout->proc_num, 1025, 4, HR_REASON_PROC_NUM, -1},
            {layout->proc_num, (uint32_t)-1, 4, HR_REASON_PROC_NUM, -1},
            {layout->proc_num, (uint32_t)INT32_MIN, 4, HR_REASON_PROC_NUM, -1},
            {layout->uuids, 0x9f8e7d6c5b4a3928, 8, HR_REASON_UUID, 0},
            {layout->uuids + HR_UUID_BYTES + 4, '\n', 1, HR_REASON_UUID, 1},
            {layout->uuids + HR_UUID_BYTES + 4, 0x80, 1, HR_REASON_UUID, 1},
            {layout->uuids + HR_UUID_BYTES, 'X', 1, HR_REASON_UUID, 1},
        };
        for (size_t i = 0; i < sizeof pokes / sizeof pokes[0]; i++)
            check_corrupt(&file, &pokes[i]);

        /* 96 bytes without a NUL. */
        uint8_t *uuid = file.bytes + layout->uuids + 15 * HR_UUID_BYTES;
        memcpy(uuid, "GPU-", 4);
        memset(uuid + 4, 'f', HR_UUID_BYTES - 4);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_ECORRUPT);
        CHECK_EQ(hr_identify(file.path, id, &call_error), HR_ECORRUPT);
        CHECK_EQ(last_detail().reason, HR_REASON_UUID);
        CHECK_EQ(last_detail().device, 15);
        uuid[HR_UUID_BYTES - 1] = '\0';
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), id);
        region_file_remove(&file);
    }
}

static void test_unknown_versions(void)
{
    for (uint32_t id = HR_V1_1; id < HR_V1_2; id++) {
        struct region_file file;
        region_file_make(&file, id);
        poke32(&file, 8, 99);
        hr_region *region = NULL;
        CHECK_EQ(hr_open(file.path, HR_READ, HR_LAYOUTS, 0, &region, &call_error), HR_ECORRUPT);
        CHECK_EQ(last_detail().reason, HR_REASON_VERSION);
        CHECK_EQ(last_detail().found, UINT64_C(1) << 32 | 99);
        region_file_remove(&file);
    }
}

/* The edges of what is allowed stay allowed. */
static void test_plausible_edges(void)
{
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        struct region_file file;
        region_file_make(&file, id);
        poke32(&file, file.layout->proc_num, HR_SLOTS);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), id);
        poke64(&file, file.layout->device_num, HR_DEVICES);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), id);
        poke64(&file, file.layout->sm_limit, 0);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), id);
        region_file_remove(&file);
    }
}

static void test_paths_that_name_no_file(void)
{
    hr_region *region = NULL;
    CHECK(hr_identify("", HR_LAYOUTS, &call_error) < 0);
    CHECK(hr_open("", HR_READ, HR_LAYOUTS, 0, &region, &call_error) < 0);
    CHECK(region == NULL);
    CHECK(hr_identify("/", HR_LAYOUTS, &call_error) < 0);
    CHECK(hr_identify("//", HR_LAYOUTS, &call_error) < 0);
    CHECK(hr_identify("/tmp/", HR_LAYOUTS, &call_error) < 0);
    CHECK(hr_identify("..", HR_LAYOUTS, &call_error) < 0);

    char name[5000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    CHECK(hr_identify(name, HR_LAYOUTS, &call_error) < 0);
    name[0] = '/';
    CHECK(hr_identify(name, HR_LAYOUTS, &call_error) < 0);
    CHECK(hr_create(name, &(struct hr_create_spec){.layout = HR_V1_2}, &call_error) < 0);
    hr_region *none = NULL;
    hr_free(&none);
}

/* A name without a slash is one in the working directory. */
static void test_relative_paths(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    const int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    NEED(before >= 0 && chdir(file.directory) == 0);
    CHECK_EQ(hr_identify("region.cache", HR_LAYOUTS, &call_error), HR_V1_2);
    CHECK_EQ(hr_identify("./region.cache", HR_LAYOUTS, &call_error), HR_V1_2);
    hr_region *region = NULL;
    CHECK_EQ(hr_open("region.cache", HR_READ, HR_LAYOUTS, 0, &region, &call_error), HR_V1_2);
    struct hr_create_spec spec;
    region_file_spec(&spec, HR_V1_1);
    CHECK_EQ(hr_create("second.cache", &spec, &call_error), HR_OK);
    CHECK_EQ(hr_identify("second.cache", HR_LAYOUTS, &call_error), HR_V1_1);
    NEED(unlink("second.cache") == 0);
    NEED(fchdir(before) == 0);
    /* The handle still knows which file it meant. */
    CHECK_EQ(hr_is_stale(region, &call_error), 0);
    close_and_free(region);
    close(before);
    region_file_remove(&file);
}

/* ---- A version to come ------------------------------------------------------------------ */

enum { TO_COME = 3 };

static void check_reads_only(const struct region_file *file, uint32_t minor_version)
{
    const uint8_t *before = region_file_copy(file);
    hr_region *region = NULL;
    CHECK_EQ(hr_identify(file->path, HR_LAYOUTS, &call_error), HR_V1_2);
    CHECK_EQ(hr_open(file->path, HR_WRITE, HR_LAYOUTS, 0, &region, &call_error), HR_EREADONLY);
    CHECK_EQ(last_detail().reason, HR_REASON_VERSION);
    CHECK_EQ(last_detail().found, UINT64_C(1) << 32 | minor_version);
    CHECK(region == NULL);
    CHECK_EQ(hr_open(file->path, HR_WRITE, HR_V1_2, 0, &region, &call_error), HR_EREADONLY);
    CHECK_EQ(hr_open(file->path, HR_READ, HR_V1_1, 0, &region, &call_error), HR_ENOTREGION);
    region = open_or_fail(file->path, HR_READ);
    struct hr_info info;
    hr_get_info(region, &info);
    CHECK_EQ(info.version, UINT64_C(1) << 32 | minor_version);
    CHECK_EQ(live_value(region, HR_MEMORY, 1), 8 * GIB);
    CHECK_EQ(live_value(region, HR_VALUE_PROC_NUM, 0), 1);
    int32_t value;
    CHECK_EQ(set_value(region, HR_PRIORITY, 0, 0, HR_FORCE, &value), HR_EREADONLY);
    CHECK(memcmp(before, file->bytes, file->size) == 0);
    /* What it becomes under the handle is another file. */
    poke32(file, 8, minor_version + 1);
    uint64_t read;
    CHECK_EQ(hr_get(region, HR_PRIORITY, 0, &read, &call_error), HR_ESTALE);
    poke32(file, 8, minor_version);
    CHECK_EQ(hr_get(region, HR_PRIORITY, 0, &read, &call_error), HR_OK);
    close_and_free(region);
    free((void *)before);
}

/* A newer minor version is read in the newest layout, whatever has been added behind it. */
static void test_a_version_to_come_is_read_and_never_written(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    fill_slot(&file, 0, 7, 1, 1);
    poke32(&file, file.layout->proc_num, 1);
    const uint32_t minor_versions[] = {TO_COME, 4, UINT32_MAX - 1};
    for (size_t i = 0; i < sizeof minor_versions / sizeof minor_versions[0]; i++) {
        poke32(&file, 8, minor_versions[i]);
        for (off_t more = 0; more < 8192; more += 4096) {
            NEED(ftruncate(file.fd, (off_t)file.layout->size + more) == 0);
            check_reads_only(&file, minor_versions[i]);
        }
        NEED(ftruncate(file.fd, (off_t)file.layout->size - 1) == 0);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_ECORRUPT);
        NEED(ftruncate(file.fd, (off_t)file.size) == 0);
        poke32(&file, file.layout->sem_postinit + 8, 128);
    }
    poke32(&file, 4, 2);
    CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_ECORRUPT);
    region_file_remove(&file);
}

/* What would be harmless in a known version shows here that the fields lie elsewhere. */
static void test_a_version_to_come_whose_fields_do_not_pass(void)
{
    struct region_file file;
    region_file_make(&file, HR_V1_2);
    const struct hr_layout *layout = file.layout;
    poke32(&file, 8, TO_COME);
    const struct {
        size_t offset;
        uint32_t value;
    } pokes[] = {
        {layout->sem + 8, 0},
        {layout->sem_postinit + 8, 0},
        {layout->sm_limit + 15 * 8, 1u << 21},
        {layout->proc_num, HR_SLOTS + 1},
        {layout->device_num, 17},
        {layout->uuids + 15 * HR_UUID_BYTES, 'x'},
    };
    for (size_t i = 0; i < sizeof pokes / sizeof pokes[0]; i++) {
        const uint32_t before = peek32(&file, pokes[i].offset);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_V1_2);
        poke32(&file, pokes[i].offset, pokes[i].value);
        CHECK_EQ(hr_identify(file.path, HR_LAYOUTS, &call_error), HR_ECORRUPT);
        CHECK_EQ(last_detail().reason, HR_REASON_VERSION);
        poke32(&file, pokes[i].offset, before);
    }
    region_file_remove(&file);
}

int main(void)
{
    CHECK_STR(hr_core_version(), "test");
    RUN(test_identifies_every_layout);
    RUN(test_creates_what_libvgpu_accepts);
    RUN(test_create_never_overwrites);
    RUN(test_create_refuses_what_is_no_region);
    RUN(test_refuses_what_is_no_file);
    RUN(test_no_permission);
    RUN(test_short_and_foreign_files);
    RUN(test_a_named_layout_contradicts_nothing);
    RUN(test_large_sm_limits_are_no_fault);
    RUN(test_lengthened_files);
    RUN(test_implausible_files);
    RUN(test_unknown_versions);
    RUN(test_a_version_to_come_is_read_and_never_written);
    RUN(test_a_version_to_come_whose_fields_do_not_pass);
    RUN(test_plausible_edges);
    RUN(test_paths_that_name_no_file);
    RUN(test_relative_paths);
    return check_report("test_open");
}
