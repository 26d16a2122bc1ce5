/*
 * Details for callers that a signal handler can interrupt between a failed call and the
 * question why it failed.  Python is one: its handlers run between any two of its steps,
 * and may call this core themselves, which overwrites what hr_last_detail() would tell.
 *
 * Included after the public headers, this one makes each call that fails keep its detail
 * before it returns, on a small stack of the thread.  hr_take_detail() takes the newest one
 * of a code.  Handlers run nested, so who takes what his own calls have kept leaves
 * the stack as he found it.
 */
#ifndef HR_DETAILS_H
#define HR_DETAILS_H

#include "region.h"

static inline int hr_keeping(int code)
{
    if (__builtin_expect(code < 0, 0))
        hr_keep_detail(code);
    return code;
}

#define hr_identify(...) hr_keeping(hr_identify(__VA_ARGS__))
#define hr_open_wait(...) hr_keeping(hr_open_wait(__VA_ARGS__))
#define hr_is_stale(...) hr_keeping(hr_is_stale(__VA_ARGS__))
#define hr_read_burst(...) hr_keeping(hr_read_burst(__VA_ARGS__))
#define hr_set_burst(...) hr_keeping(hr_set_burst(__VA_ARGS__))
#define hr_create(...) hr_keeping(hr_create(__VA_ARGS__))
#define hr_snapshot(...) hr_keeping(hr_snapshot(__VA_ARGS__))
#define hr_read_value(...) hr_keeping(hr_read_value(__VA_ARGS__))
#define hr_read_set_capped(...) hr_keeping(hr_read_set_capped(__VA_ARGS__))
#define hr_edit(...) hr_keeping(hr_edit(__VA_ARGS__))
#define hr_limiter_new(...) hr_keeping(hr_limiter_new(__VA_ARGS__))
#define hr_limiter_tick(...) hr_keeping(hr_limiter_tick(__VA_ARGS__))
#define hr_close(...) hr_keeping(hr_close(__VA_ARGS__))
#define hr_lock(...) hr_keeping(hr_lock(__VA_ARGS__))
#define hr_unlock(...) hr_keeping(hr_unlock(__VA_ARGS__))
#define hr_get_lock_state(...) hr_keeping(hr_get_lock_state(__VA_ARGS__))
#define hr_recover_lock(...) hr_keeping(hr_recover_lock(__VA_ARGS__))
#define hr_attach(...) hr_keeping(hr_attach(__VA_ARGS__))
#define hr_detach(...) hr_keeping(hr_detach(__VA_ARGS__))
#define hr_charge(...) hr_keeping(hr_charge(__VA_ARGS__))
#define hr_release(...) hr_keeping(hr_release(__VA_ARGS__))
#define hr_edit_slot(...) hr_keeping(hr_edit_slot(__VA_ARGS__))
#define hr_reap_without(...) hr_keeping(hr_reap_without(__VA_ARGS__))
#define hr_repair_slots(...) hr_keeping(hr_repair_slots(__VA_ARGS__))

#endif
