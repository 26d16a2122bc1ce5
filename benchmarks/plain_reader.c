/*
 * The reader that one writes in an afternoon, to compare with: every field of a region of layout
 * 1.2, as it stands. No consistency, no plausibility, no survival of a file that is truncated.
 *
 * The rows have the names of RegionTable's columns; plain_reader.py knows them by their order.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DEVICES = 16, SLOTS = 1024 };

struct used {
    uint64_t context, module, data, offset, total, unused[3];
};

struct utilization {
    uint64_t dec, enc, sm, unused[3];
};

struct slot {
    int32_t pid, host_pid;
    struct used used[DEVICES];
    uint64_t monitor[DEVICES];
    struct utilization utilization[DEVICES];
    int32_t status;
    uint64_t seqlock, unused[2];
};

struct region {
    int32_t magic;
    uint32_t major_version, minor_version;
    int32_t sm_init_flag;
    uint64_t owner_pid, sem[4], device_num;
    char uuids[DEVICES][96];
    uint64_t limit[DEVICES], sm_limit[DEVICES];
    struct slot slots[SLOTS];
    int32_t proc_num, utilization_switch, recent_kernel, priority;
    uint64_t last_kernel_time, sem_postinit[4];
};
_Static_assert(sizeof(struct slot) == 1960, "");
_Static_assert(offsetof(struct region, proc_num) == 2008896, "");
_Static_assert(sizeof(struct region) == 2008952, "");

struct figures {
    uint64_t total, context, module, data, offset, monitor, sm, enc, dec;
};

struct region_row {
    int64_t device_count, process_count, priority, utilization_switch, recent_kernel;
    uint64_t last_kernel_time, owner_pid, semaphore;
    int64_t first_device, first_process;
};

struct device_row {
    int64_t region, index;
    uint64_t limit, sm_limit;
    struct figures sums;
    char uuid[96];
};

struct process_row {
    int64_t region, pid, host_pid, status, first_usage;
};

struct usage_row {
    int64_t process, device;
    struct figures figures;
};

/* A file mapped for reading, or NULL. */
const struct region *plain_open(const char *path)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return NULL;
    void *mapped = mmap(NULL, sizeof(struct region), PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void plain_close(struct region *region)
{
    munmap(region, sizeof *region);
}

static void add(struct figures *sums, const struct figures *figures)
{
    sums->total += figures->total;
    sums->context += figures->context;
    sums->module += figures->module;
    sums->data += figures->data;
    sums->offset += figures->offset;
    sums->monitor += figures->monitor;
    sums->sm += figures->sm;
    sums->enc += figures->enc;
    sums->dec += figures->dec;
}

/* Read them all; returns the number of usage rows. The caller has room for all rows. */
int64_t plain_read(const struct region *const *regions, int64_t count, struct region_row *rows,
                   struct device_row *devices, struct process_row *processes,
                   struct usage_row *usages)
{
    int64_t device_rows = 0, process_rows = 0, usage_rows = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct region *region = regions[i];
        const int64_t device_count = (int64_t)region->device_num;
        struct device_row *const own = devices + device_rows;
        rows[i] = (struct region_row){
            device_count,          region->proc_num,
            region->priority,      region->utilization_switch,
            region->recent_kernel, region->last_kernel_time,
            region->owner_pid,     region->sem[0] & UINT32_MAX,
            device_rows,           process_rows,
        };
        for (int64_t d = 0; d < device_count; d++) {
            own[d].region = i;
            own[d].index = d;
            own[d].limit = region->limit[d];
            own[d].sm_limit = region->sm_limit[d];
            own[d].sums = (struct figures){0};
            memcpy(own[d].uuid, region->uuids[d], sizeof own[d].uuid);
        }
        for (int64_t p = 0; p < region->proc_num; p++) {
            const struct slot *slot = &region->slots[p];
            processes[process_rows] =
                (struct process_row){i, slot->pid, slot->host_pid, slot->status, usage_rows};
            for (int64_t d = 0; d < device_count; d++) {
                const struct used *used = &slot->used[d];
                const struct utilization *utilization = &slot->utilization[d];
                struct usage_row *row = &usages[usage_rows++];
                row->process = process_rows;
                row->device = d;
                row->figures = (struct figures){
                    used->total,     used->context,    used->module,
                    used->data,      used->offset,     slot->monitor[d],
                    utilization->sm, utilization->enc, utilization->dec,
                };
                add(&own[d].sums, &row->figures);
            }
            process_rows++;
        }
        device_rows += device_count;
    }
    return usage_rows;
}
