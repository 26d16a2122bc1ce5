/*
 * Print what regions hold, one JSON object a line.
 *
 *   cc read_region.c $(pkg-config --cflags --libs libhamiregion) -o read_region
 *   ./read_region FILE...
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <region.h>

/* The core has found it plausible: printable ASCII, NUL-terminated. */
static void print_uuid(const char *uuid)
{
    if (uuid[0] == '\0') {
        printf("null");
        return;
    }
    putchar('"');
    for (; *uuid != '\0'; uuid++)
        printf(*uuid == '"' || *uuid == '\\' ? "\\%c" : "%c", *uuid);
    putchar('"');
}

static void print_or_null(const char *key, int is_there, uint64_t value)
{
    if (is_there)
        printf("\"%s\": %" PRIu64 ", ", key, value);
    else
        printf("\"%s\": null, ", key);
}

static void print_device(const struct hr_device *device, uint32_t index)
{
    printf("{\"index\": %" PRIu32 ", \"uuid\": ", index);
    print_uuid(device->uuid);
    printf(", ");
    print_or_null("memory_limit_bytes", device->limit != 0, device->limit);
    printf("\"memory_used_bytes\": %" PRIu64 ", ", device->sums.total);
    print_or_null("sm_limit_percent", device->sm_limit > 0 && device->sm_limit < 100,
                  device->sm_limit);
    printf("\"sm_util_percent\": %" PRIu64 "}", device->sums.sm);
}

static void print_process(const struct hr_snapshot *snapshot, uint32_t index)
{
    const struct hr_process *process = hr_snapshot_process(snapshot, index);
    printf("{\"pid\": %" PRId32 ", ", process->pid);
    if (process->host_pid != 0)
        printf("\"host_pid\": %" PRId32 ", ", process->host_pid);
    else
        printf("\"host_pid\": null, ");
    printf("\"status\": %" PRId32 ", \"memory_used_bytes\": [", process->status);
    const char *separator = "";
    for (uint32_t device = 0; device < snapshot->span; device++) {
        /* Below span, but no device of the region. */
        if ((snapshot->shown >> device & 1) == 0)
            continue;
        printf("%s%" PRIu64, separator, hr_snapshot_usage(snapshot, index, device)->total);
        separator = ", ";
    }
    printf("]}");
}

static void print_snapshot(const struct hr_snapshot *snapshot)
{
    printf("{\"layout\": \"%s\", \"settled\": %s, ", hr_layouts[snapshot->layout].name,
           snapshot->settled ? "true" : "false");
    printf("\"priority\": %" PRId32 ", \"owner_pid\": %" PRIu64 ", \"devices\": [",
           snapshot->priority, snapshot->owner_pid);
    const char *separator = "";
    for (uint32_t device = 0; device < snapshot->span; device++) {
        if ((snapshot->shown >> device & 1) == 0)
            continue;
        printf("%s", separator);
        print_device(hr_snapshot_device(snapshot, device), device);
        separator = ", ";
    }
    printf("], \"processes\": [");
    for (int32_t index = 0; index < snapshot->proc_num; index++) {
        printf("%s", index == 0 ? "" : ", ");
        print_process(snapshot, (uint32_t)index);
    }
    printf("]}\n");
}

static int print_region(const char *path, void *buffer)
{
    hr_region *region = NULL;
    int code = hr_open(path, HR_READ, HR_LAYOUTS, &region);
    if (code >= 0)
        code = hr_snapshot(region, buffer, HR_SNAPSHOT_MAX_BYTES);
    if (code >= 0)
        print_snapshot(buffer);
    else
        fprintf(stderr, "%s: error %d (enum hr_code)\n", path, code);
    hr_free(region);
    return code < 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    /* The largest snapshot there is fits. A few KiB do for most; HR_ENOSPACE says how many. */
    void *buffer = malloc(HR_SNAPSHOT_MAX_BYTES);
    if (buffer == NULL)
        return 1;
    for (int i = 1; i < argc; i++)
        failed |= print_region(argv[i], buffer);
    free(buffer);
    return failed;
}
