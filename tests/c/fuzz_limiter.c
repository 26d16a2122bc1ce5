#include "call_error.h"
#include "fuzz_limiter.h"

#include "region.h"

static struct {
    hr_limiter *limiter;
    bool has_region;
} made;

static void require_bounds(void)
{
    const int64_t total = hr_limiter_total(made.limiter), share = hr_limiter_share(made.limiter);
    REQUIRE(total > 0 && total <= INT64_C(1) << 61);
    REQUIRE(share >= 0 && share <= total);
    REQUIRE(hr_limiter_tokens(made.limiter) <= total);
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
    REQUIRE(hr_limiter_share(made.limiter) == 0 && hr_limiter_tokens(made.limiter) == 0);
    require_bounds();
}

static void acquire(int64_t blocks, int64_t timeout_ns)
{
    const int64_t tokens = hr_limiter_tokens(made.limiter);
    const int code = hr_limiter_acquire(made.limiter, blocks, timeout_ns, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_EINVAL, HR_ETIMEOUT);
    REQUIRE((code == HR_EINVAL) == (blocks < 0));
    REQUIRE(code != HR_ETIMEOUT || tokens < 0);
    const int64_t after = hr_limiter_tokens(made.limiter);
    REQUIRE(after == tokens || (code == HR_OK && after == tokens - blocks));
    require_bounds();
}

static void tick(int32_t utilisation)
{
    const int64_t share = hr_limiter_share(made.limiter);
    const int64_t tokens = hr_limiter_tokens(made.limiter);
    const int code = hr_limiter_tick(made.limiter, utilisation, &call_error);
    if (code != HR_OK)
        REQUIRE_ONE_OF(code, HR_ESTALE, HR_ECORRUPT, HR_ECLOSED);
    REQUIRE(code == HR_OK || made.has_region);
    if (utilisation < 0 || utilisation > 100)
        REQUIRE(hr_limiter_share(made.limiter) == share);
    /* The bucket is filled, never emptied. */
    REQUIRE(hr_limiter_tokens(made.limiter) >= tokens);
    require_bounds();
}

bool limiter_step(uint8_t step, struct input *input)
{
    if (step == FUZZ_LIMITER) {
        make_limiter(input);
    } else if (step == FUZZ_ACQUIRE) {
        const int64_t blocks = (int64_t)take_value(input);
        const int64_t timeout_ns = (int64_t)take_ms(input);
        if (made.limiter != NULL)
            acquire(blocks, timeout_ns);
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
