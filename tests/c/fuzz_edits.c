#include "fuzz_changes.h"

enum { MAX_GIVEN = 4 };

static bool is_narrow(const struct hr_edit *edit)
{
    return edit->kind > HR_SM;
}

static size_t place_of(const struct hr_edit *edit)
{
    const struct hr_layout *layout = &hr_layouts[run.open_as];
    const uint32_t places[HR_EDIT_KINDS] = {[HR_MEMORY] =
                                                layout->limit + (uint32_t)edit->device * 8,
                                            [HR_SM] = layout->sm_limit + (uint32_t)edit->device * 8,
                                            [HR_PRIORITY] = layout->priority,
                                            [HR_SWITCH] = layout->utilization_switch,
                                            [HR_RECENT_KERNEL] = layout->recent_kernel};
    return places[edit->kind];
}

static bool is_unlimited(uint64_t percent)
{
    return percent == 0 || percent >= 100;
}

/* The edit was allowed where it was made. */
static void require_allowed(const struct hr_edit *edit, uint32_t call_flags)
{
    const struct view before = was();
    const size_t place = place_of(edit);
    REQUIRE(is_narrow(edit) || (edit->device >= 0 && edit->device < HR_DEVICES));
    REQUIRE(edit->before ==
            (is_narrow(edit) ? (uint64_t)(int64_t)get32(&before, place) : get64(&before, place)));
    if ((edit->flags & HR_PERCENT) == 0)
        REQUIRE(edit->after == edit->value);
    const bool are_both_unlimited =
        edit->kind == HR_SM && is_unlimited(edit->before) && is_unlimited(edit->expected);
    if ((edit->flags & HR_EXPECT) != 0)
        REQUIRE(edit->before == edit->expected || are_both_unlimited);
    if (edit->kind != HR_MEMORY || edit->after == 0 || (call_flags & HR_FORCE) != 0)
        return;
    uint64_t used = 0;
    REQUIRE(oracle_value(&before, HR_VALUE_MEMORY_USED, (uint32_t)edit->device, &used) == HR_OK);
    REQUIRE(used <= edit->after);
}

static void edit(struct hr_edit *edits, uint32_t count, uint32_t room, uint32_t flags)
{
    changes_begin();
    const int code = hr_edit(run.region, edits, count, room, flags, &call_error);
    if (code < 0)
        REQUIRE_ONE_OF(code, HR_ECONFLICT, HR_EBELOWUSE, HR_EUNWATCHED, HR_ENODEVICE, HR_ENOSPACE,
                       HR_EREADONLY, HR_EINVAL, HR_ESTALE, HR_ECORRUPT);
    else
        REQUIRE((uint32_t)code >= count && code <= HR_EDITS_MAX &&
                (run.writable || (flags & HR_DRY_RUN) != 0));
    if (!is_whole())
        return;
    for (int i = 0; i < code; i++) {
        require_allowed(&edits[i], flags);
        if ((flags & HR_DRY_RUN) == 0)
            memcpy(run.file->shadow + place_of(&edits[i]), &edits[i].after,
                   is_narrow(&edits[i]) ? 4 : 8);
    }
    changes_require_none();
}

bool edit_step(uint8_t step, struct input *input)
{
    if (step != FUZZ_EDIT)
        return false;
    const uint32_t flags = take8(input) & (HR_FORCE | HR_DRY_RUN);
    const uint8_t shape = take8(input);
    const uint32_t count = shape % (MAX_GIVEN + 1);
    struct hr_edit edits[HR_EDITS_MAX] = {0};
    for (uint32_t i = 0; i < count; i++) {
        edits[i].kind = take8(input) % (HR_EDIT_KINDS + 1);
        edits[i].device = (int8_t)take8(input);
        edits[i].flags = take8(input) & (HR_EXPECT | HR_PERCENT);
        take8(input); /* not used */
        edits[i].value = take_value(input);
        edits[i].expected = take_value(input);
    }
    if (run.region != NULL)
        edit(edits, count, shape > 127 ? HR_EDITS_MAX : count, flags);
    return true;
}
