#define _GNU_SOURCE
#include "fuzz_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS_IN_USE = 3 };

static struct file files[HR_LAYOUTS];
static struct {
    char path[256];
    int fd;
} raw;
static char directory[128];

static void remove_files(void)
{
    for (int i = 0; i < HR_LAYOUTS; i++)
        unlink(files[i].path);
    unlink(raw.path);
    rmdir(directory);
}

static void put64(const struct file *file, size_t offset, uint64_t value)
{
    memcpy(file->view.bytes + offset, &value, sizeof value);
}

static void make_file(struct file *file, uint32_t id)
{
    const struct hr_layout *layout = &hr_layouts[id];
    file->view.layout = layout;
    struct hr_create_spec spec = {.layout = id, .priority = 1, .device_num = 2};
    for (uint32_t device = 0; device < HR_DEVICES; device++)
        spec.sm_limit[device] = 100;
    spec.limit[0] = 0x200000000;
    spec.limit[1] = 0x100000000;
    strcpy(spec.uuids[0], "GPU-00000000-aaaa-bbbb-cccc-000000000001");
    strcpy(spec.uuids[1], "MIG-1");
    REQUIRE(hr_create(file->path, &spec) == HR_OK);
    file->fd = open(file->path, O_RDWR | O_CLOEXEC);
    REQUIRE(file->fd >= 0);
    file->whole = file->size = layout->size + 1;
    file->view.bytes = mmap(NULL, MAX_FILE, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    REQUIRE(file->view.bytes != MAP_FAILED);
    for (uint32_t slot = 0; slot < SLOTS_IN_USE; slot++) {
        const size_t at = slot_at(&file->view, slot);
        put64(file, at, slot + 100 + ((uint64_t)(slot + 4000) << 32));
        for (uint32_t device = 0; device < 2; device++) {
            const size_t used = at + layout->slot_used + (size_t)device * layout->slot_used_stride;
            for (uint32_t part = 0; part < 5; part++)
                put64(file, used + part * 8, (slot + 1) * 0x1000000 + device * 0x1000 + part);
            put64(file, at + layout->slot_monitorused + device * 8, slot * 3 + device);
        }
        file->view.bytes[at + layout->slot_status] = 1;
    }
    file->view.bytes[layout->proc_num] = SLOTS_IN_USE;
    REQUIRE(slot_at(&file->view, SLOTS_IN_USE) <= HOT_BYTES);
    memcpy(file->hot, file->view.bytes, HOT_BYTES);
    memcpy(file->tail, file->view.bytes + layout->proc_num, layout->size - layout->proc_num);
}

void files_make(void)
{
    /* In memory where there is such a place: a disk would be the slowest part by far. */
    snprintf(directory, sizeof directory, "%s/hr-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    REQUIRE(mkdtemp(directory) != NULL);
    atexit(remove_files);
    for (uint32_t id = 0; id < HR_LAYOUTS; id++) {
        snprintf(files[id].path, sizeof files[id].path, "%s/%u.cache", directory, id);
        make_file(&files[id], id);
    }
    snprintf(raw.path, sizeof raw.path, "%s/raw.cache", directory);
    raw.fd = open(raw.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(raw.fd >= 0);
}

struct file *file_of_layout(uint32_t layout)
{
    return &files[layout];
}

void file_poke(struct file *file, size_t offset, uint64_t value, uint32_t bytes)
{
    if (file->pokes == MAX_POKES || offset + 8 > file->size)
        return;
    file->undo[file->pokes].offset = offset;
    file->undo[file->pokes++].before = get64(&file->view, offset);
    memcpy(file->view.bytes + offset, &value, bytes);
}

void file_resize(struct file *file, size_t size)
{
    file->size = size;
    file->was_cut = file->was_cut || size < file->whole;
    REQUIRE(ftruncate(file->fd, (off_t)size) == 0);
}

void file_mend(struct file *file)
{
    if (file->size != file->whole)
        REQUIRE(ftruncate(file->fd, (off_t)file->whole) == 0);
    while (file->pokes > 0) {
        file->pokes--;
        /* What was cut off is zero below, and what lay behind the end is gone. */
        if (!file->was_cut && file->undo[file->pokes].offset + 8 <= file->whole)
            put64(file, file->undo[file->pokes].offset, file->undo[file->pokes].before);
    }
    if (file->was_cut) {
        REQUIRE(ftruncate(file->fd, 0) == 0);
        REQUIRE(ftruncate(file->fd, (off_t)file->whole) == 0);
    }
    memcpy(file->view.bytes, file->hot, HOT_BYTES);
    memcpy(file->view.bytes + file->view.layout->proc_num, file->tail,
           file->view.layout->size - file->view.layout->proc_num);
    file->size = file->whole;
    file->was_cut = false;
}

const char *raw_file(const uint8_t *data, size_t size)
{
    REQUIRE(ftruncate(raw.fd, 0) == 0);
    REQUIRE(pwrite(raw.fd, data, size, 0) == (ssize_t)size);
    return raw.path;
}
