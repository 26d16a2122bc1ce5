"""Waiting for a region that is not there yet."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.alarm import Interrupted, alarm
from support.wait import PATIENCE_S

from libhamiregion import NotARegion, RegionNotFound, RegionNotReady, create_region, open_region

# Longer than one slice of the waiting, of which there are several.
SHORT_S = 0.25


def test_a_region_is_opened_once_it_has_been_created(tmp_path):
    """Whatever stands there before: nothing, an empty file, a short one, one without its magic."""
    path = tmp_path / "usage.cache"
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_region, path, writable=True, timeout_s=PATIENCE_S)
        assert not opening.done()
        path.touch()
        for size in (0, 1000, 2_008_953):
            # As libvgpu does it: a file that becomes shorter would be stale.
            os.truncate(path, size)
            assert not opening.done()
        create_region(tmp_path / "made", memory_limits=[5])
        (tmp_path / "made").rename(path)
        with opening.result(PATIENCE_S) as region:
            assert region.writable
            assert region.memory_limit(0) == 5


def test_it_ends_at_its_deadline_with_what_is_wrong(tmp_path):
    path = tmp_path / "usage.cache"
    for error in (RegionNotFound, RegionNotReady):
        began = time.monotonic()
        with pytest.raises(error):
            open_region(path, timeout_s=SHORT_S)
        assert SHORT_S <= time.monotonic() - began < PATIENCE_S
        path.touch()


def test_what_waiting_does_not_mend_is_told_at_once(tmp_path, region_file):
    """And nothing is waited for unless it is asked for."""
    link = tmp_path / "link"
    link.symlink_to(region_file().path)
    began = time.monotonic()
    with pytest.raises(NotARegion):
        open_region(link, timeout_s=PATIENCE_S)
    with pytest.raises(RegionNotFound):
        open_region(tmp_path / "missing")
    with open_region(region_file(), timeout_s=PATIENCE_S) as region:
        assert not region.writable
    assert time.monotonic() - began < PATIENCE_S
    for timeout_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="0 or more seconds"):
            open_region(link, timeout_s=timeout_s)


def test_a_signal_ends_the_waiting(tmp_path):
    began = time.monotonic()
    with pytest.raises(Interrupted), alarm(SHORT_S):
        open_region(tmp_path / "missing", timeout_s=PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S
