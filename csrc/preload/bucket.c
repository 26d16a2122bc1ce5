#include "bucket.h"

/* What comes in a longer pause is lost, so that a program cannot save up for a burst. */
#define LONGEST_REFILL_NS 100000000u
/* The bucket is full when it holds what comes in that time. */
#define FULL_NS 50000000u

#define SHORTEST_NAP_NS 200000u
#define LONGEST_NAP_NS 10000000u

/* Tokens for less than 2^31 blocks a launch and 2^32 launches a second stay within int64. */
#define HIGHEST_RATE 1e17

static int64_t load(_Atomic int64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void store(_Atomic int64_t *word, int64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

void hr_reset_bucket(struct hr_bucket *bucket, uint64_t now_ns)
{
    store(&bucket->rate, 0);
    store(&bucket->refilled, 0);
    store(&bucket->tokens, 0);
    atomic_store_explicit(&bucket->refilled_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&bucket->has_waited, false, memory_order_relaxed);
}

static int64_t tokens_in(int64_t rate, uint64_t ns)
{
    return (int64_t)((double)rate * (double)ns / 1e9);
}

/* Bring the tokens to a number, as if time had brought or taken the difference. */
static void move_tokens(struct hr_bucket *bucket, int64_t to, bool is_less)
{
    int64_t tokens = load(&bucket->tokens);
    while ((is_less ? tokens > to : tokens < to) &&
           !atomic_compare_exchange_weak_explicit(&bucket->tokens, &tokens, to,
                                                  memory_order_relaxed, memory_order_relaxed))
        continue;
    if (is_less ? tokens > to : tokens < to)
        atomic_fetch_add_explicit(&bucket->refilled, to - tokens, memory_order_relaxed);
}

void hr_set_rate(struct hr_bucket *bucket, double per_second)
{
    int64_t rate = (int64_t)(per_second < HIGHEST_RATE ? per_second : HIGHEST_RATE);
    store(&bucket->rate, rate);
    /* A debt stays. */
    move_tokens(bucket, tokens_in(rate, FULL_NS), true);
}

void hr_grant_launch(struct hr_bucket *bucket)
{
    move_tokens(bucket, 0, false);
}

int64_t hr_taken_tokens(struct hr_bucket *bucket)
{
    return load(&bucket->refilled) - load(&bucket->tokens);
}

static void refill(struct hr_bucket *bucket, int64_t rate, uint64_t now_ns)
{
    uint64_t since_ns = atomic_load_explicit(&bucket->refilled_ns, memory_order_relaxed);
    if (now_ns <= since_ns)
        return;
    bool is_late = now_ns - since_ns > LONGEST_REFILL_NS;
    int64_t due = tokens_in(rate, is_late ? LONGEST_REFILL_NS : now_ns - since_ns);
    if (due == 0 && !is_late)
        return;
    /* What is not yet a whole token comes the next time. */
    uint64_t until_ns = is_late ? now_ns : since_ns + (uint64_t)((double)due * 1e9 / (double)rate);
    if (!atomic_compare_exchange_strong_explicit(&bucket->refilled_ns, &since_ns, until_ns,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    /* Others only take meanwhile, so that the bucket does not run over. */
    int64_t room = tokens_in(rate, FULL_NS) - load(&bucket->tokens);
    if (due > room)
        due = room;
    if (due <= 0)
        return;
    atomic_fetch_add_explicit(&bucket->refilled, due, memory_order_relaxed);
    atomic_fetch_add_explicit(&bucket->tokens, due, memory_order_relaxed);
}

static uint64_t time_to_pay(int64_t debt, int64_t rate)
{
    if (rate <= 0)
        return LONGEST_NAP_NS;
    double ns = (double)debt * 1e9 / (double)rate;
    if (ns < SHORTEST_NAP_NS)
        return SHORTEST_NAP_NS;
    return ns < LONGEST_NAP_NS ? (uint64_t)ns : LONGEST_NAP_NS;
}

bool hr_refill_and_take(struct hr_bucket *bucket, int64_t count, uint64_t now_ns,
                        uint64_t *patience_ns)
{
    int64_t rate = load(&bucket->rate);
    refill(bucket, rate, now_ns);
    /* In one step, unlike hr_take_tokens(): many may have waited for the same tokens. */
    int64_t tokens = load(&bucket->tokens);
    while (tokens >= 0) {
        if (atomic_compare_exchange_weak_explicit(&bucket->tokens, &tokens, tokens - count,
                                                  memory_order_relaxed, memory_order_relaxed))
            return true;
    }
    atomic_store_explicit(&bucket->has_waited, true, memory_order_relaxed);
    *patience_ns = time_to_pay(-tokens, rate);
    return false;
}
