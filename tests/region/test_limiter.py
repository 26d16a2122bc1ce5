"""The core limiter: libvgpu's arithmetic step by step, and launches from many threads."""

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.alarm import Interrupted, alarm
from support.forked import in_child
from support.region_file import truncate
from support.wait import PATIENCE_S

from libhamiregion import Region, RegionClosed, RegionStale, create_region, open_region
from libhamiregion.limiter import CoreLimiter

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "core-limiter.json").read_text(encoding="utf-8")
)


def make_limiter(**changes: Any) -> CoreLimiter:
    arguments: dict[str, Any] = {"sm_count": 16, "max_threads_per_sm": 1536, "sm_limit": 50}
    return CoreLimiter(**(arguments | changes))


def state(limiter: CoreLimiter) -> tuple[int, int, int]:
    return limiter.share, limiter.tokens, limiter.total


# ---- The arithmetic ----


@pytest.mark.parametrize("device", GOLDEN, ids=lambda device: f"sm{device['sm_count']}")
def test_every_golden_tick_gives_libvgpus_numbers(device):
    limiter = CoreLimiter(
        sm_count=device["sm_count"],
        max_threads_per_sm=device["max_threads_per_sm"],
        sm_limit=device["sm_limit"],
    )
    assert state(limiter) == (0, 0, device["total"])
    assert len(device["steps"]) == 60
    for util, spent, *expected in device["steps"]:
        if spent:
            limiter.acquire(spent, timeout_s=0)
        limiter.tick(util)
        assert list(state(limiter)) == expected


@given(
    sm_count=st.integers(1, 65536),
    threads=st.integers(1, 65536),
    limit=st.integers(1, 99),
    steps=st.lists(
        st.tuples(st.integers(0, 100), st.just(0) | st.integers(0, 2**63 - 1)), max_size=80
    ),
)
def test_any_run_of_ticks_and_launches_follows_the_rules(sm_count, threads, limit, steps):
    """The rules in Python's unbounded integers; C agrees, also at the ends of its ranges."""
    limiter = CoreLimiter(sm_count=sm_count, max_threads_per_sm=threads, sm_limit=limit)
    share, tokens, total = 0, 0, threads * sm_count * 32
    for util, blocks in steps:
        if tokens >= 0:
            limiter.acquire(blocks, timeout_s=0)
            tokens -= blocks
        else:
            with pytest.raises(TimeoutError):
                limiter.acquire(blocks, timeout_s=0)
        if share == total and tokens < 0 and total <= 2**60:
            total *= 2
            share = total
        diff = max(5, abs(limit - util))
        increment = sm_count**2 * threads * diff // 2560
        if diff > limit // 2:
            increment = increment * diff * 2 // (limit + 1)
        share = min(total, share + increment) if util <= limit else max(0, share - increment)
        tokens = min(total, tokens + share)
        limiter.tick(util)
        assert state(limiter) == (share, tokens, total)


def test_a_utilisation_outside_0_to_100_changes_nothing():
    limiter = make_limiter()
    limiter.acquire(1000)
    limiter.tick(10)
    before = state(limiter)
    for util in (-1, -(2**70), 101, 2**31, 2**70):
        limiter.tick(util)
        assert state(limiter) == before


# ---- Launches ----


def test_a_launch_may_take_the_bucket_below_zero_and_the_next_one_waits():
    limiter = make_limiter()
    limiter.acquire(1000, timeout_s=0)
    assert limiter.tokens == -1000
    with pytest.raises(TimeoutError, match=r"1 blocks within 0\.05 s: the bucket is at -1000"):
        limiter.acquire(1, timeout_s=0.05)
    assert limiter.tokens == -1000


@pytest.mark.parametrize("timeout_s", [None, float("inf"), 30, 10**9])
def test_a_waiting_launch_goes_on_when_a_tick_fills_the_bucket(timeout_s):
    limiter = make_limiter()
    limiter.acquire(1)
    with ThreadPoolExecutor(1) as pool:
        launch = pool.submit(limiter.acquire, 5, timeout_s)
        while not launch.done():
            limiter.tick(0)
        launch.result()


@pytest.mark.parametrize("limit", [None, 0, 100, 101, 2**32 - 1])
def test_without_a_limit_launches_pass_and_take_nothing(limit):
    limiter = make_limiter(sm_limit=limit)
    for _ in range(3):
        limiter.acquire(2**40, timeout_s=0)
    limiter.tick(50)
    assert state(limiter) == (0, 0, 16 * 1536 * 32)


def test_ctrl_c_ends_a_wait_without_a_timeout():
    limiter = make_limiter()
    limiter.acquire(1)
    with pytest.raises(Interrupted), alarm(0.05):
        limiter.acquire(1)
    assert limiter.tokens == -1


# ---- Threads ----


def test_launches_from_many_threads_lose_no_tokens():
    """Each block is subtracted once."""
    limiter = make_limiter(sm_count=132, max_threads_per_sm=2048)
    while limiter.tokens < limiter.total:
        limiter.tick(0)
    start, threads, launches = limiter.tokens, 8, 20_000
    barrier = threading.Barrier(threads)

    def launch(blocks: int) -> None:
        barrier.wait(PATIENCE_S)
        for _ in range(launches):
            limiter.acquire(blocks, timeout_s=0)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(launch, range(1, threads + 1)))
    assert limiter.tokens == start - launches * sum(range(1, threads + 1))


# ---- With a region ----


@pytest.fixture
def region(tmp_path) -> Iterator[Region]:
    path = tmp_path / "limited.cache"
    create_region(path, sm_limits=[50, 100])
    with open_region(path, writable=True) as opened:
        yield opened


def test_the_regions_limit_rules_from_the_start(region):
    limiter = make_limiter(sm_limit=None, region=region)
    limiter.acquire(10)
    assert limiter.tokens == -10
    other = make_limiter(sm_limit=50, region=region, device=1)
    other.acquire(10)
    assert other.tokens == 0


def test_a_limit_that_changes_in_the_region_is_seen_at_the_next_tick(region):
    limiter, reference = make_limiter(region=region), make_limiter(sm_limit=20)
    region.set_sm_limit(20, device=0)
    for util in (10, 30, 15, 20):
        limiter.tick(util)
        reference.tick(util)
        assert state(limiter) == state(reference)


def test_the_switch_off_lets_launches_through_and_on_holds_them_again(region):
    limiter = make_limiter(region=region)
    limiter.acquire(2**50)
    region.set_utilization_switch(False)
    limiter.tick(-1)
    limiter.acquire(1, timeout_s=0)
    assert limiter.tokens == -(2**50)
    region.set_utilization_switch(True)
    limiter.tick(-1)
    with pytest.raises(TimeoutError):
        limiter.acquire(1, timeout_s=0)


def test_a_region_that_closes_is_an_error_of_tick_and_the_last_limit_stays(region):
    limiter, reference = make_limiter(region=region), make_limiter(sm_limit=50)
    limiter.acquire(1000)
    reference.acquire(1000)
    region.close()
    for util in (10, 60):
        with pytest.raises(RegionClosed):
            limiter.tick(util)
        reference.tick(util)
        assert state(limiter) == state(reference)


def test_a_region_that_shrinks_is_an_error_of_tick_and_launches_go_on(region):
    limiter = make_limiter(region=region)
    limiter.acquire(1)
    truncate(region.path, 0)
    with pytest.raises(RegionStale):
        limiter.tick(0)
    limiter.acquire(1, timeout_s=0)


def test_the_limiter_keeps_its_region_alive(tmp_path):
    path = tmp_path / "kept.cache"
    create_region(path, sm_limits=[50])
    region = open_region(path)
    limiter = make_limiter(region=region)
    del region
    gc.collect()
    limiter.tick(10)
    assert limiter.share > 0


def test_after_fork_the_child_reports_the_region_and_keeps_the_limit(region):
    limiter = make_limiter(region=region)
    limiter.acquire(1000)

    def child() -> tuple[int, int, int]:
        with pytest.raises(RegionClosed):
            limiter.tick(10)
        return state(limiter)

    share, tokens, _ = in_child(child)
    assert share > 0
    assert tokens > limiter.tokens == -1000


# ---- Arguments ----


def test_a_number_out_of_range_is_a_value_error_that_names_it():
    for name, values in (
        ("sm_count", (0, -1, 65537)),
        ("max_threads_per_sm", (0, 65537)),
        ("sm_limit", (-1, 2**32)),
        ("device", (-1, 16)),
    ):
        for value in values:
            with pytest.raises(ValueError, match=rf"{name} is .* to .*, not {value}"):
                make_limiter(**{name: value})
    limiter = make_limiter()
    for blocks in (-1, -(2**70), 2**63):
        with pytest.raises(ValueError, match="blocks is 0 to"):
            limiter.acquire(blocks)
    for timeout_s in (-1, -0.001, float("nan"), float("-inf")):
        with pytest.raises(ValueError, match="a timeout is 0 or more seconds"):
            limiter.acquire(1, timeout_s=timeout_s)


def test_what_is_no_integer_or_no_region_is_a_type_error_that_names_it():
    values: tuple[Any, ...] = (1.5, "1", True, b"1")
    for value in values:
        for name in ("sm_count", "max_threads_per_sm", "sm_limit", "device"):
            with pytest.raises(TypeError, match=name):
                make_limiter(**{name: value})
        with pytest.raises(TypeError, match="blocks"):
            make_limiter().acquire(value)
        with pytest.raises(TypeError, match="util_percent"):
            make_limiter().tick(value)
