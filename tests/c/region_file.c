#include "region_file.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "internal.h"
#include "region.h"

static void make_file(struct region_file *file)
{
    struct hr_create_spec spec = {.layout = file->layout->id,
                                  .priority = 1,
                                  .device_num = 2,
                                  .limit = {4 * GIB, 8 * GIB},
                                  .uuids = {"GPU-00000000-aaaa-bbbb-cccc-000000000001",
                                            "MIG-00000000-aaaa-bbbb-cccc-000000000002"}};
    for (uint32_t device = 0; device < HR_DEVICES; device++)
        spec.sm_limit[device] = device < 2 ? 50 + 10 * device : 100;
    NEED(hr_create(file->path, &spec, &call_error) == HR_OK);

    file->fd = open(file->path, O_RDWR | O_CLOEXEC);
    NEED(file->fd >= 0);
    struct stat status;
    NEED(fstat(file->fd, &status) == 0);
    file->size = (size_t)status.st_size;
    file->bytes = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    NEED(file->bytes != MAP_FAILED);
    file->disguise = calloc(1, sizeof *file->disguise);
    NEED(file->disguise != NULL);
    file->disguise->base = file->bytes;
    hr_fork_lock();
    hr_link_writable(file->disguise);
    hr_fork_unlock();
}

void make_directory(char path[DIRECTORY_ROOM])
{
    const char *parent = getenv("TMPDIR");
    snprintf(path, DIRECTORY_ROOM, "%s/hr-test-XXXXXX",
             parent != NULL && *parent != '\0' ? parent : "/tmp");
    NEED(mkdtemp(path) != NULL);
}

void region_file_make(struct region_file *file, uint32_t layout)
{
    memset(file, 0, sizeof *file);
    file->layout = &hr_layouts[layout];
    make_directory(file->directory);
    snprintf(file->path, sizeof file->path, "%s/region.cache", file->directory);
    make_file(file);
}

void region_file_remove(struct region_file *file)
{
    hr_fork_lock();
    hr_unlink_writable(file->disguise);
    hr_fork_unlock();
    free(file->disguise);
    munmap(file->bytes, file->size);
    close(file->fd);
    unlink(file->path);
    if (rmdir(file->directory) != 0)
        CHECK_FAILED("%s is not empty: something was left behind", file->directory);
}

void in_layouts(uint32_t first, uint32_t last, void (*test)(struct region_file *file))
{
    for (uint32_t layout = first; layout <= last; layout++) {
        struct region_file file;
        region_file_make(&file, layout);
        test(&file);
        region_file_remove(&file);
    }
}

void poke32(const struct region_file *file, size_t offset, uint32_t value)
{
    atomic_store((_Atomic uint32_t *)(file->bytes + offset), value);
}

void poke64(const struct region_file *file, size_t offset, uint64_t value)
{
    atomic_store((_Atomic uint64_t *)(file->bytes + offset), value);
}

uint32_t peek32(const struct region_file *file, size_t offset)
{
    return atomic_load((_Atomic uint32_t *)(file->bytes + offset));
}

uint64_t peek64(const struct region_file *file, size_t offset)
{
    return atomic_load((_Atomic uint64_t *)(file->bytes + offset));
}

size_t slot_at(const struct region_file *file, uint32_t slot, uint32_t field)
{
    return file->layout->procs + (size_t)slot * file->layout->slot_stride + field;
}

void usage_of_number(const struct hr_layout *layout, uint64_t number, uint32_t device,
                     struct hr_usage *out)
{
    const uint64_t base = number * 1000 + device * 10;
    *out = (struct hr_usage){.context = base + 1,
                             .module = base + 2,
                             .data = base + 3,
                             .offset = base + 4,
                             .total = 3 * base + 6, /* the sum of its kinds, as libvgpu keeps it */
                             .monitor = base + 6};
    if (layout->slot_util != HR_ABSENT) {
        out->dec = base + 7;
        out->enc = base + 8;
        out->sm = base + 9;
    }
}

void poke_usage(const struct region_file *file, uint32_t slot, uint32_t device,
                const struct hr_usage *usage)
{
    const struct hr_layout *layout = file->layout;
    const size_t used =
        slot_at(file, slot, layout->slot_used) + (size_t)device * layout->slot_used_stride;
    poke64(file, used, usage->context);
    poke64(file, used + 8, usage->module);
    poke64(file, used + 16, usage->data);
    poke64(file, used + 24, usage->offset);
    poke64(file, used + 32, usage->total);
    poke64(file, slot_at(file, slot, layout->slot_monitorused) + (size_t)device * 8,
           usage->monitor);
    if (layout->slot_util == HR_ABSENT)
        return;
    const size_t util =
        slot_at(file, slot, layout->slot_util) + (size_t)device * layout->slot_util_stride;
    poke64(file, util, usage->dec);
    poke64(file, util + 8, usage->enc);
    poke64(file, util + 16, usage->sm);
}

void fill_slot(const struct region_file *file, uint32_t slot, int32_t pid, uint64_t number,
               uint32_t devices)
{
    for (uint32_t device = 0; device < devices; device++) {
        struct hr_usage usage;
        usage_of_number(file->layout, number, device, &usage);
        poke_usage(file, slot, device, &usage);
    }
    poke32(file, slot_at(file, slot, file->layout->slot_hostpid), (uint32_t)pid + 1000000);
    poke32(file, slot_at(file, slot, file->layout->slot_status), 1);
    poke32(file, slot_at(file, slot, file->layout->slot_pid), (uint32_t)pid);
}

hr_region *open_or_fail(const char *path, uint32_t flags)
{
    hr_region *region = NULL;
    NEED(hr_open(path, flags, HR_LAYOUTS, 0, &region, &call_error) >= 0);
    return region;
}

void close_and_free(hr_region *region)
{
    hr_close(region, &call_error);
    hr_free(&region);
}

int set_limits(hr_region *region, uint32_t kind, int32_t device, uint64_t value, uint64_t expected,
               uint32_t flags, struct hr_edit *edits)
{
    const uint32_t own = HR_EXPECT | HR_PERCENT;
    edits[0] = (struct hr_edit){
        .kind = kind, .device = device, .flags = flags & own, .value = value, .expected = expected};
    return hr_edit(region, edits, 1, HR_DEVICES, flags & ~own, &call_error);
}

int set_value(hr_region *region, uint32_t kind, int32_t to, int32_t expected, uint32_t flags,
              int32_t *before)
{
    struct hr_edit edit = {.kind = kind,
                           .flags = flags & HR_EXPECT,
                           .value = (uint64_t)(int64_t)to,
                           .expected = (uint64_t)(int64_t)expected};
    const int code = hr_edit(region, &edit, 1, 1, flags & ~(uint32_t)HR_EXPECT, &call_error);
    *before = (int32_t)edit.before;
    return code == 1 ? HR_OK : code;
}

int recover_lock(hr_region *region, const char *proc, uint64_t watch_ns)
{
    struct hr_recovery recovery = {0};
    int code;
    do {
        code = hr_recover_lock(region, proc, watch_ns, &recovery, &call_error);
    } while (code == HR_EINTERRUPTED);
    return code == HR_OK ? (int)recovery.done : code;
}

uint8_t *region_file_copy(const struct region_file *file)
{
    uint8_t *copy = malloc(file->size);
    NEED(copy != NULL);
    memcpy(copy, file->bytes, file->size);
    return copy;
}
