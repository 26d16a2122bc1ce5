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

static void track_usual_pages(struct file *file)
{
    file_track(file, 0, HOT_BYTES);
    file_track(file, file->view.layout->proc_num, file->whole - file->view.layout->proc_num);
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
    REQUIRE(hr_create(file->path, &spec, &call_error) == HR_OK);
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
    file->made = calloc(1, MAX_FILE);
    file->shadow = calloc(1, MAX_FILE);
    REQUIRE(file->made != NULL && file->shadow != NULL);
    memcpy(file->made, file->view.bytes, file->whole);
    memcpy(file->shadow, file->view.bytes, file->whole);
    track_usual_pages(file);
}

void files_make(void)
{
    /* In memory where there is such a place: a disk would be the slowest part by far. */
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || *parent == '\0')
        parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(directory, sizeof directory, "%s/hr-fuzz-XXXXXX", parent);
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

const char *files_directory(void)
{
    return directory;
}

/* The part of a page that the file has, at most up to `end`. */
static size_t bytes_of_page(const struct file *file, uint32_t page, size_t end)
{
    const size_t start = (size_t)page * PAGE_BYTES, last = end < file->size ? end : file->size;
    return start >= last ? 0 : last - start < PAGE_BYTES ? last - start : PAGE_BYTES;
}

static void accept_page(struct file *file, uint32_t page)
{
    const size_t start = (size_t)page * PAGE_BYTES;
    memcpy(file->shadow + start, file->view.bytes + start, bytes_of_page(file, page, MAX_FILE));
}

void file_track(struct file *file, size_t offset, size_t bytes)
{
    REQUIRE(offset + bytes <= MAX_FILE);
    for (size_t page = offset / PAGE_BYTES; page * PAGE_BYTES < offset + bytes; page++) {
        if (file->is_tracked[page])
            continue;
        file->pages[file->page_count++] = (uint32_t)page;
        file->is_tracked[page] = true;
        /* While too little was there to judge them, calls may have written anywhere. */
        if (file->was_cut)
            accept_page(file, (uint32_t)page);
    }
}

bool file_tracks(const struct file *file, size_t offset)
{
    return file->is_tracked[offset / PAGE_BYTES];
}

void file_poke(struct file *file, size_t offset, uint64_t value, uint32_t bytes)
{
    if (offset + 8 > file->size)
        return;
    file_track(file, offset, 8);
    memcpy(file->view.bytes + offset, &value, bytes);
    memcpy(file->shadow + offset, &value, bytes);
}

void file_resize(struct file *file, size_t size)
{
    file->size = size;
    file->was_cut = file->was_cut || size < file->whole;
    REQUIRE(ftruncate(file->fd, (off_t)size) == 0);
    /* What is cut off comes back as zeros. */
    for (uint32_t i = 0; i < file->page_count; i++) {
        const size_t kept = bytes_of_page(file, file->pages[i], MAX_FILE);
        memset(file->shadow + (size_t)file->pages[i] * PAGE_BYTES + kept, 0, PAGE_BYTES - kept);
    }
}

void file_compare(const struct file *file, size_t end, file_report *report, void *argument)
{
    for (uint32_t i = 0; i < file->page_count; i++) {
        const size_t bytes = bytes_of_page(file, file->pages[i], end);
        const size_t start = (size_t)file->pages[i] * PAGE_BYTES;
        if (memcmp(file->shadow + start, file->view.bytes + start, bytes) == 0)
            continue;
        for (size_t at = start; at < start + bytes; at += 4)
            if (memcmp(file->shadow + at, file->view.bytes + at, 4) != 0)
                report(argument, at);
    }
}

void file_accept(struct file *file)
{
    for (uint32_t i = 0; i < file->page_count; i++)
        accept_page(file, file->pages[i]);
}

void file_require_rest(const struct file *file)
{
    static const uint8_t zeros[PAGE_BYTES];
    /* A slot may be taken behind the usual ones while too little is there to judge the call. */
    if (file->was_cut)
        return;
    for (uint32_t page = 0; page < MAX_PAGES; page++) {
        const size_t bytes = bytes_of_page(file, page, file->whole);
        if (!file->is_tracked[page])
            REQUIRE(memcmp(file->view.bytes + (size_t)page * PAGE_BYTES, zeros, bytes) == 0);
    }
}

void file_mend(struct file *file)
{
    if (file->was_cut)
        REQUIRE(ftruncate(file->fd, 0) == 0);
    if (file->was_cut || file->size != file->whole)
        REQUIRE(ftruncate(file->fd, (off_t)file->whole) == 0);
    file->size = file->whole;
    file->was_cut = false;
    while (file->page_count > 0) {
        const uint32_t page = file->pages[--file->page_count];
        const size_t start = (size_t)page * PAGE_BYTES;
        memcpy(file->view.bytes + start, file->made + start,
               bytes_of_page(file, page, file->whole));
        memcpy(file->shadow + start, file->made + start, PAGE_BYTES);
        file->is_tracked[page] = false;
    }
    track_usual_pages(file);
}

const char *raw_file(const uint8_t *data, size_t size)
{
    REQUIRE(ftruncate(raw.fd, 0) == 0);
    REQUIRE(pwrite(raw.fd, data, size, 0) == (ssize_t)size);
    return raw.path;
}
