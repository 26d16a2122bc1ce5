#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mappers.h"
#include "marks.h"

/* What the bytes prove of the pids in slots: several slots can name one. */
struct judge_call {
    const hr_region *region;
    const struct hr_judged_marks *marks;
    const int32_t *pids;
    uint32_t count;
    uint32_t *lives; /* HR_LIVENESS_UNKNOWN: /proc has to be asked */
};

/* Dead is a pid whose slots are all dead processes'. */
static uint32_t liveness_of_pid(const struct judge_call *call, int32_t pid, int32_t count)
{
    bool all_dead = true, is_there = false;
    for (int32_t index = 0; index < count; index++) {
        const unsigned char *slot = hr_slot(call->region, (uint32_t)index);
        if (hr_slot_pid(call->region, slot) != pid)
            continue;
        uint64_t mark = hr_slot_mark(call->region, slot);
        enum hr_liveness liveness =
            mark == 0 ? HR_LIVENESS_UNKNOWN : hr_liveness_of_mark(call->marks, mark);
        if (liveness == HR_ALIVE)
            return HR_ALIVE;
        is_there = true;
        all_dead = all_dead && liveness == HR_DEAD;
    }
    return is_there && all_dead ? HR_DEAD : HR_LIVENESS_UNKNOWN;
}

static int judge_by_marks(void *argument)
{
    const struct judge_call *call = argument;
    int32_t count;
    int code = hr_checked_proc_num(call->region, &count);
    for (uint32_t i = 0; code == HR_OK && i < call->count; i++)
        call->lives[i] = liveness_of_pid(call, call->pids[i], count);
    return code;
}

struct hr_process_list {
    uint64_t limit_ns;
    char proc[];
};

int hr_list_processes(const char *proc, uint64_t cpu_ns, struct hr_process_list **out)
{
    proc = proc == NULL ? "/proc" : proc;
    *out = malloc(sizeof **out + strlen(proc) + 1);
    if (*out == NULL)
        return hr_fail_errno(HR_ESYSTEM, ENOMEM);
    (*out)->limit_ns = cpu_ns;
    strcpy((*out)->proc, proc);
    return HR_OK;
}

void hr_free_process_list(struct hr_process_list *list)
{
    free(list);
}

static int search_slots(hr_region *region, struct hr_process_list *list,
                        const struct hr_strangers *strangers, const struct hr_slot_pids *asked,
                        uint64_t limit_ns, uint32_t *lives)
{
    struct hr_mappers mappers;
    int code = hr_find_mappers(region, list->proc, HR_WITH_OWN_HANDLE, asked, strangers, limit_ns,
                               &mappers);
    for (int32_t i = 0; code == HR_OK && i < asked->count; i++)
        lives[i] = asked->pids[i] == 0 ? HR_DEAD /* no process has that pid */
                                       : hr_liveness_of_slot(&mappers, asked->pids[i]);
    if (code == HR_OK)
        hr_free_mappers(&mappers);
    return code;
}

/* Those that the bytes have not told of. */
static int ask_proc(hr_region *region, struct hr_process_list *list,
                    const struct hr_strangers *strangers, const int32_t *pids, uint32_t count,
                    uint64_t cpu_ns, uint32_t *lives)
{
    struct hr_slot_pids asked = {.count = 0};
    uint32_t found[HR_SLOTS];
    for (uint32_t i = 0; i < count; i++) {
        if (lives[i] == HR_LIVENESS_UNKNOWN)
            asked.pids[asked.count++] = pids[i];
    }
    int code =
        asked.count == 0 ? HR_OK : search_slots(region, list, strangers, &asked, cpu_ns, found);
    for (uint32_t i = 0, at = 0; code == HR_OK && i < count; i++) {
        if (lives[i] == HR_LIVENESS_UNKNOWN)
            lives[i] = found[at++];
    }
    return code;
}

int hr_judge_slots_without(hr_region *region, struct hr_process_list *list,
                           const struct hr_stranger *strangers, uint32_t stranger_count,
                           const int32_t *pids, uint32_t count, uint64_t cpu_ns, uint32_t *lives)
{
    if (count > HR_SLOTS)
        return hr_fail_code(HR_EINVAL);
    const struct hr_strangers left_out = {.list = strangers, .count = stranger_count};
    struct hr_judged_marks marks;
    struct judge_call call = {
        .region = region, .marks = &marks, .pids = pids, .count = count, .lives = lives};
    int code = hr_enter(region);
    if (code != HR_OK)
        return code;
    hr_judge_marks(region, 0, &marks);
    code = hr_run_entered(region, judge_by_marks, &call);
    hr_forget_marks(region, &marks);
    if (code == HR_OK)
        code = ask_proc(region, list, &left_out, pids, count, cpu_ns, lives);
    hr_leave(region);
    return code;
}

int hr_judge_slots(hr_region *region, struct hr_process_list *list, const int32_t *pids,
                   uint32_t count, uint64_t cpu_ns, uint32_t *lives)
{
    return hr_judge_slots_without(region, list, NULL, 0, pids, count, cpu_ns, lives);
}
