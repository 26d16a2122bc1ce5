/*
 * The tokens of one row: a launch takes some, and time brings new ones at a rate that the control
 * law sets (law.h).  A launch that finds tokens pays with one atomic subtraction and may leave a
 * debt; the next one then waits until that is paid.
 *
 * Nothing refills the bucket by itself: a waiting launch adds what has come since the last refill.
 */
#ifndef HR_BUCKET_H
#define HR_BUCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * All relaxed: no other memory is published through these words, each of them is right by itself.
 * They are words of their own cache line, as all launching threads write the first of them.
 */
struct hr_bucket {
    _Alignas(64) _Atomic int64_t tokens; /* negative: a debt */
    _Atomic int64_t rate;                /* tokens per second */
    _Atomic int64_t refilled;            /* tokens that have come in all */
    _Atomic uint64_t refilled_ns;        /* up to when */
    _Atomic bool has_waited;             /* a launch found a debt; the reader clears it */
};

/* One launch is free; then the bucket waits for a rate. */
void hr_reset_bucket(struct hr_bucket *bucket, uint64_t now_ns);

/* Tokens beyond what a full bucket has at that rate are lost. */
void hr_set_rate(struct hr_bucket *bucket, double per_second);

/* Forgive a debt, so that one launch can be made. */
void hr_grant_launch(struct hr_bucket *bucket);

/* How many tokens were taken in all since the reset. */
int64_t hr_taken_tokens(struct hr_bucket *bucket);

/* Take tokens, whatever debt that leaves. */
static inline void hr_pay_tokens(struct hr_bucket *bucket, int64_t count)
{
    atomic_fetch_sub_explicit(&bucket->tokens, count, memory_order_relaxed);
}

/* Take tokens if there is no debt.  Threads that do this at once may together leave a larger debt
 * than one of them alone would, and pay for it all the same. */
static inline bool hr_take_tokens(struct hr_bucket *bucket, int64_t count)
{
    if (atomic_load_explicit(&bucket->tokens, memory_order_relaxed) < 0)
        return false;
    hr_pay_tokens(bucket, count);
    return true;
}

/* Refill, then take tokens.  If there is a debt, `patience_ns` gets the time until the next try. */
bool hr_refill_and_take(struct hr_bucket *bucket, int64_t count, uint64_t now_ns,
                        uint64_t *patience_ns);

#endif
