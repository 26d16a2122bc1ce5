#include "call_error.h"
#include "fuzz_limiter.h"

#include "region.h"

static struct {
    hr_limiter *limiter;
    bool has_region;
} made;

static struct hr_limiter_state state(void)
{
    struct hr_limiter_state is;
    hr_limiter_read(made.limiter, &is);
    return is;
}

static void require_bounds(void)
{
    const struct hr_limiter_state is = state();
    REQUIRE(is.total > 0 && is.total <= INT64_C(1) << 61);
    REQUIRE(is.share >= 0 && is.share <= is.total);
    REQUIRE(is.tokens <= is.total);
}

static void make_limiter(struct input *input)
{
    limiter_end();
    const uint32_t multiprocessors = (uint32_t)take_value(input);
    const uint32_t threads = (uint32_t)take_value(input);
    const uint32_t limit = take8(input), device = take8(input) % (HR_DEVICES + 1);
    made.has_region = take8(input) % 2 != 0 && run.region != NULL;
    const int code =
        hr_limiter_new(multiprocessors, threads, limit, made.has_region ? run.region : NULL, device,
                       &made.limiter, &call_error);
    REQUIRE((code == HR_OK) == (made.limiter != NULL));
    if (code != HR_OK) {
        REQUIRE_ONE_OF(code, HR_EINVAL, HR_ESTALE, HR_ECORRUPT);
        return;
    }
    REQUIRE(state().share == 0 && state().tokens == 0);
    require_bounds();
}

static void acquire(int64_t blocks)
{
    const int64_t tokens = state().tokens;
    const int taken = hr_limiter_take(made.limiter, blocks);
    REQUIRE(taken || tokens < 0);
    const int64_t after = state().tokens;
    REQUIRE(after == tokens || (taken && after == tokens - blocks));
    require_bounds();
}

static void tick(int32_t utilisation)
{
    const int64_t share = state().share;
    const int64_t tokens = state().tokens;
    const int code = hr_limiter_tick(made.limiter, utilisation, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ESTALE, HR_ECORRUPT, HR_ECLOSED);
    REQUIRE(code == HR_OK || made.has_region);
    if (utilisation < 0 || utilisation > 100)
        REQUIRE(state().share == share);
    /* The bucket is filled, never emptied. */
    REQUIRE(state().tokens >= tokens);
    require_bounds();
}

bool limiter_step(uint8_t step, struct input *input)
{
    if (step == FUZZ_LIMITER) {
        make_limiter(input);
    } else if (step == FUZZ_ACQUIRE) {
        const int64_t blocks = (int64_t)take_value(input);
        take_ms(input); /* of earlier inputs */
        if (made.limiter != NULL && blocks >= 0)
            acquire(blocks);
    } else if (step == FUZZ_TICK) {
        const int32_t utilisation = (int8_t)take8(input);
        if (made.limiter != NULL)
            tick(utilisation);
    } else {
        return false;
    }
    return true;
}

void limiter_end(void)
{
    if (made.limiter != NULL && made.has_region)
        tick(50);
    hr_limiter_free(made.limiter);
    made.limiter = NULL;
    made.has_region = false;
}
