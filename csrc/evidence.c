#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "slots.h"

/* ---- The region -------------------------------------------------------------------- */

static void want(struct hr_evidence *evidence, int32_t pid)
{
    if (pid > 0 && pid != HR_NOBODY)
        evidence->wanted.pids[evidence->wanted.count++] = pid;
}

static int note_work(void *argument)
{
    struct hr_evidence *evidence = argument;
    const hr_region *region = evidence->region;
    evidence->words = hr_load_lock(region);
    /* Slots of layouts without a version are not repaired, and lack what is noted of them. */
    if (region->layout->major_version == 0)
        return HR_OK;
    int code = hr_checked_table(region, &evidence->slots);
    for (int32_t index = 0; code == HR_OK && index < HR_SLOTS; index++) {
        evidence->seen[index] = hr_look_at_slot(region, index);
        want(evidence, evidence->seen[index].pid);
        if (evidence->seen[index].pid == 0)
            evidence->has_pidless =
                evidence->has_pidless || index < evidence->slots || hr_is_in_use(region, index);
    }
    return code;
}

static int note(hr_region *region, struct hr_evidence *evidence)
{
    evidence->region = region;
    evidence->noted_ns = hr_clock_ns(CLOCK_MONOTONIC);
    evidence->noted_ticks = hr_clock_ticks();
    int code = hr_run_entered(region, note_work, evidence);
    return code == HR_OK ? hr_prepare_search(region, &evidence->search) : code;
}

int hr_note(hr_region *region, hr_evidence **out, struct hr_error *error)
{
    *out = NULL;
    int code = hr_enter(region);
    if (code != HR_OK)
        return hr_report(error, code);
    struct hr_evidence *evidence = calloc(1, sizeof *evidence);
    code = evidence == NULL ? hr_fail_errno(HR_ESYSTEM, ENOMEM) : note(region, evidence);
    if (code == HR_OK)
        *out = evidence;
    else
        free(evidence);
    return hr_report(error, hr_leave_after(region, code));
}

void hr_free_evidence(hr_evidence *evidence)
{
    if (evidence != NULL)
        hr_free_mappers(&evidence->mappers);
    free(evidence);
}

/* 0: none that a process in /proc could have. */
static int32_t owner_of(const struct hr_evidence *evidence)
{
    const uint64_t pid = hr_owner_pid(evidence->words.owner);
    return pid < HR_PIDS ? (int32_t)pid : 0;
}

/* A lock that is taken and not signed with a pid may be any process's. */
static bool needs_all(const struct hr_evidence *evidence)
{
    const bool is_taken = hr_sem_value(evidence->words.sem) != 1 || evidence->words.owner != 0;
    return evidence->has_pidless || (is_taken && owner_of(evidence) == 0);
}

void hr_get_wanted(const hr_evidence *evidence, struct hr_wanted *out)
{
    *out = (struct hr_wanted){.file = evidence->search.file,
                              .all = needs_all(evidence),
                              .count = (uint32_t)evidence->wanted.count};
    memcpy(out->pids, evidence->wanted.pids, out->count * sizeof out->pids[0]);
    if (owner_of(evidence) != 0)
        out->pids[out->count++] = owner_of(evidence);
}

/* ---- Its processes ----------------------------------------------------------------- */

int hr_add_process(hr_evidence *evidence, const struct hr_answer *answer, uint32_t seen,
                   struct hr_error *error)
{
    if (answer->is_self != 0 && !evidence->search.counts_self)
        return hr_report(error, HR_OK);
    struct hr_mapper mapper = {.levels = answer->levels,
                               .start_time_ticks = answer->start_time_ticks,
                               .has_libvgpu = answer->has_libvgpu != 0,
                               .is_cut = answer->is_cut != 0,
                               .is_too_long = answer->is_too_long != 0};
    memcpy(mapper.pids, answer->pids, sizeof mapper.pids);
    return hr_report(error, hr_add_answer(&evidence->mappers, &mapper, seen));
}

void hr_end_evidence(hr_evidence *evidence, uint32_t flags)
{
    struct hr_mappers *mappers = &evidence->mappers;
    mappers->filtered = (flags & HR_GATHERED_ALL) == 0;
    mappers->cut_short = mappers->cut_short || (flags & HR_GATHERED_CUT_SHORT) != 0;
    mappers->incomplete = mappers->incomplete || mappers->cut_short;
    mappers->complete =
        (flags & (HR_GATHERED_WANTED | HR_GATHERED_ALL)) != 0 && !mappers->incomplete;
}

/* ---- Where a call has its processes from ------------------------------------------ */

/* A copy of what was gathered; by old evidence nothing is known. */
static int copy_mappers(const hr_evidence *evidence, struct hr_mappers *out)
{
    const size_t bytes = evidence->mappers.count * sizeof evidence->mappers.list[0];
    *out = (struct hr_mappers){.cut_short = true, .incomplete = true, .filtered = true};
    if (hr_is_past(evidence->noted_ns + HR_EVIDENCE_NS))
        return HR_OK;
    *out = evidence->mappers;
    out->list = malloc(bytes + 1);
    if (out->list == NULL) {
        out->count = 0;
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    }
    if (bytes > 0)
        memcpy(out->list, evidence->mappers.list, bytes);
    return HR_OK;
}

int hr_find_mappers(hr_region *region, struct hr_search *search, struct hr_mappers *out)
{
    *out = (struct hr_mappers){.list = NULL};
    if (search->evidence != NULL)
        return copy_mappers(search->evidence, out);
    int code = hr_prepare_search(region, search);
    return code == HR_OK ? hr_search_proc(search, out) : code;
}

int hr_look_for_mappers(hr_region *region, const struct hr_source *source,
                        const struct hr_slot_pids *only, struct hr_mappers *out)
{
    struct hr_search search = {.proc = source->proc,
                               .evidence = source->evidence,
                               .only = only,
                               .deadline_ns = hr_deadline_ns(HR_PROC_NS)};
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    return hr_leave_after(region, hr_find_mappers(region, &search, out));
}
