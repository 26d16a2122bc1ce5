/*
 * Take snapshots of a region as fast as possible while torn_writer writes, and
 * count those that lied:
 *
 *     torn_reader FILE snapshots|sets COUNT SECONDS [PID...]
 *
 * COUNT snapshots, and within SECONDS more until a process has settled.  The PIDs are those
 * of processes that stay all the time.  The answer is one JSON object:
 *
 *     snapshots         taken
 *     regions_settled   of them, those settled as a whole
 *     settled           processes reported settled, in all snapshots
 *     unsettled         processes reported otherwise
 *     mixed_settled     settled processes with two different numbers in their figures,
 *                       or another number than their pid's
 *     went_back         settled processes with a smaller number than the time before
 *     twice_settled     settled regions that show a process twice
 *     lost_settled      settled regions that lack a process that stays
 *     errors            calls that failed
 *     seconds, median_ns, slowest_ns    what it took
 */
#include <stdbool.h>

#include "call_error.h"
#include "check.h"
#include "region.h"
#include "snapshot_view.h"
#include "torn_protocol.h"

enum { FIGURES = 9, MAX_STAYING = 64, MAX_PROCESSES = 256, FULL = 0xffff };

static struct {
    unsigned long snapshots, regions_settled, settled, unsettled, mixed_settled, went_back,
        twice_settled, lost_settled, errors;
} count;

static struct {
    int32_t pid;
    uint64_t number;
} staying[MAX_STAYING];
static uint32_t staying_count;

struct process {
    int32_t pid, host_pid;
    bool settled;
    uint32_t figures;
    uint64_t figure[HR_DEVICES * FIGURES];
};

static void judge_process(const struct process *process)
{
    if (!process->settled) {
        count.unsettled++;
        return;
    }
    count.settled++;
    uint64_t number = process->figure[0], other = 0;
    for (uint32_t i = 1; i < process->figures; i++)
        other |= process->figure[i] ^ number;
    if (process->pid >= MADE_UP_PIDS)
        other |= number ^ number_of_pid(process->pid);
    if (other != 0 || number == 0 || process->host_pid != process->pid) {
        count.mixed_settled++;
        return;
    }
    for (uint32_t i = 0; i < staying_count; i++) {
        if (staying[i].pid != process->pid)
            continue;
        count.went_back += number < staying[i].number;
        staying[i].number = number;
    }
}

static void judge_region(const int32_t *pids, uint32_t processes)
{
    count.regions_settled++;
    bool twice = false, lost = false;
    for (uint32_t i = 0; i < processes; i++)
        for (uint32_t j = 0; j < i; j++)
            twice = twice || pids[i] == pids[j];
    for (uint32_t i = 0; i < staying_count; i++) {
        bool found = false;
        for (uint32_t j = 0; j < processes; j++)
            found = found || pids[j] == staying[i].pid;
        lost = lost || !found;
    }
    count.twice_settled += twice;
    count.lost_settled += lost;
}

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(2);
}

static uint64_t buffer[(sizeof(struct hr_member) + HR_SNAPSHOT_MAX_BYTES + 7) / 8];

static void judge_snapshot(const struct hr_snapshot *snapshot, bool has_util)
{
    int32_t pids[MAX_PROCESSES];
    const uint32_t processes = (uint32_t)snapshot->process_count;
    if (processes > MAX_PROCESSES || snapshot->shown != FULL)
        give_up("the writers did not fill the table as they should");
    for (uint32_t index = 0; index < processes; index++) {
        const struct hr_process *from = hr_snapshot_process(snapshot, index);
        struct process process = {
            .pid = from->pid, .host_pid = from->host_pid, .settled = from->settled};
        for (uint32_t device = 0; device < HR_DEVICES; device++) {
            const struct hr_usage *usage = hr_snapshot_usage(snapshot, index, device);
            /* Each kind has the number, so the total has it three times. */
            const uint64_t in_total = usage->total - usage->context - usage->module;
            const uint64_t figures[FIGURES] = {usage->context, usage->module, usage->data,
                                               usage->offset,  in_total,      usage->monitor,
                                               usage->dec,     usage->enc,    usage->sm};
            const uint32_t used = has_util ? FIGURES : FIGURES - 3;
            memcpy(process.figure + process.figures, figures, used * sizeof figures[0]);
            process.figures += used;
        }
        pids[index] = process.pid;
        judge_process(&process);
    }
    if (snapshot->settled)
        judge_region(pids, processes);
}

/* ---- The run --------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: %s FILE snapshots|sets COUNT SECONDS [PID...]\n", argv[0]);
        return 2;
    }
    const bool as_set = strcmp(argv[2], "sets") == 0;
    const unsigned long wanted = strtoul(argv[3], NULL, 10);
    const uint64_t begin = now_ns(), end = begin + strtoul(argv[4], NULL, 10) * ONE_SECOND;
    for (int i = 5; i < argc && staying_count < MAX_STAYING; i++)
        staying[staying_count++].pid = atoi(argv[i]);

    hr_region *region;
    const int layout = hr_open(argv[1], HR_READ, HR_LAYOUTS, 0, &region, &call_error);
    uint32_t *took = malloc(wanted * sizeof *took);
    if (layout < 0 || took == NULL)
        give_up("cannot open the region");
    const bool has_util = hr_layouts[layout].slot_util != HR_ABSENT;

    uint64_t before = begin;
    while (count.snapshots < wanted || (count.settled == 0 && before < end)) {
        struct hr_set_size size;
        before = now_ns();
        int code =
            as_set ? hr_read_set(&region, 1, buffer, sizeof buffer, UINT32_MAX, &size, &call_error)
                   : hr_snapshot(region, buffer, sizeof buffer, &call_error);
        took[count.snapshots++ % wanted] = (uint32_t)(now_ns() - before);
        if (code != HR_OK)
            count.errors++;
        else
            judge_snapshot(as_set ? set_snapshot(buffer, 0) : (const void *)buffer, has_util);
        /* A writer that was preempted inside needs a processor to come out again. */
        if (count.snapshots % 256 == 0)
            nap_us(1000);
    }
    const double seconds = (double)(now_ns() - begin) / 1e9;
    qsort(took, wanted, sizeof *took, ascending);
    printf("{\"snapshots\": %lu, \"regions_settled\": %lu, \"settled\": %lu, \"unsettled\": %lu, "
           "\"mixed_settled\": %lu, \"went_back\": %lu, \"twice_settled\": %lu, "
           "\"lost_settled\": %lu, \"errors\": %lu, \"seconds\": %.3f, \"median_ns\": %u, "
           "\"slowest_ns\": %u}\n",
           count.snapshots, count.regions_settled, count.settled, count.unsettled,
           count.mixed_settled, count.went_back, count.twice_settled, count.lost_settled,
           count.errors, seconds, took[wanted / 2], took[wanted - 1]);
    free(took);
    hr_close(region, &call_error);
    hr_free(&region);
    return 0;
}
