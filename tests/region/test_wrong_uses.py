"""Calls that people get wrong: each raises one line of at most 500 characters."""

from __future__ import annotations

import os
import pickle
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import libhamiregion as hami
from libhamiregion import (
    LimitEdit,
    RegionSet,
    create_region,
    format_size,
    launch,
    open_region,
    own_region,
    parse_size,
)
from libhamiregion.node import Node, Selector
from libhamiregion.plan import load_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
MOST_CHARACTERS = 500


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A directory with a region and what is none, and the region opened in several ways."""
    at = tmp_path_factory.mktemp("wrong")
    region = at / "a.cache"
    create_region(region, memory_limits=["8GiB", "4GiB"], uuids=[UUID, f"{UUID[:-1]}1"])
    (at / "empty.cache").touch()
    (at / "notes.txt").write_text("no region " * 100)
    (at / "link.cache").symlink_to(region)
    os.mkfifo(at / "fifo")
    with (
        open_region(region) as reading,
        open_region(region, writable=True) as writing,
        RegionSet([region]) as regions,
        open_region(region) as closed,
    ):
        closed.close()
        yield SimpleNamespace(
            at=at,
            region=region,
            reading=reading,
            writing=writing,
            closed=closed,
            regions=regions,
            table=regions.read(),
        )


def with_lock(region: hami.Region) -> None:
    with region.lock():
        pytest.fail("the lock was given")


CALLS: list[tuple[type[BaseException], Callable[[Any], Any]]] = [
    (hami.RegionNotFound, lambda it: open_region(it.at / "none.cache")),
    (hami.NotARegion, lambda it: open_region(it.at)),
    (hami.NotARegion, lambda it: open_region(it.at / "link.cache")),
    (hami.NotARegion, lambda it: open_region(it.at / "fifo")),
    (hami.RegionNotReady, lambda it: open_region(it.at / "empty.cache")),
    (hami.NotARegion, lambda it: open_region(it.at / "notes.txt")),
    (TypeError, lambda it: open_region(os.fsencode(it.region))),
    (TypeError, lambda _: open_region(None)),
    (TypeError, lambda _: open_region(sys.stdin)),
    (TypeError, lambda _: open_region(3)),
    (ValueError, lambda _: open_region("a\x00b")),
    (TypeError, lambda it: open_region(it.region, "r+")),
    (TypeError, lambda it: open_region(it.region, layout="1.2")),
    (hami.NotARegion, lambda it: open_region(it.region, layout=hami.Layout.UNVERSIONED)),
    (TypeError, lambda it: open_region(it.region, timeout_s="1s")),
    (ValueError, lambda it: open_region(it.region, timeout_s=-1)),
    (
        hami.RegionNotFound,
        lambda _: own_region({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/none"}),
    ),
    (FileExistsError, lambda it: create_region(it.region)),
    (hami.RegionNotFound, lambda it: create_region(it.at / "none" / "a.cache")),
    (ValueError, lambda it: create_region(it.at / "n", memory_limits=["1GiB"] * 17)),
    (ValueError, lambda it: create_region(it.at / "n", memory_limits=["80%"])),
    (ValueError, lambda it: create_region(it.at / "n", uuids=["0"])),
    (TypeError, lambda it: create_region(it.at / "n", priority="high")),
    (hami.RegionReadOnly, lambda it: it.reading.set_memory_limit("6GiB")),
    (hami.RegionReadOnly, lambda it: it.reading.set_priority(0)),
    (hami.RegionReadOnly, lambda it: it.reading.attach()),
    (hami.RegionReadOnly, lambda it: with_lock(it.reading)),
    (hami.RegionClosed, lambda it: it.closed.snapshot()),
    (hami.RegionClosed, lambda it: it.closed.memory_limit(0)),
    (TypeError, lambda it: pickle.dumps(it.reading)),
    (ValueError, lambda it: it.writing.set_memory_limit("6GB")),
    (ValueError, lambda it: it.writing.set_memory_limit("6 gigs")),
    (ValueError, lambda it: it.writing.set_memory_limit("")),
    (ValueError, lambda it: it.writing.set_memory_limit(0)),
    (ValueError, lambda it: it.writing.set_memory_limit(-1)),
    (TypeError, lambda it: it.writing.set_memory_limit(6.5 * 2**30)),
    (TypeError, lambda it: it.writing.set_memory_limit(True)),
    (TypeError, lambda it: it.writing.set_memory_limit(["6GiB", "3GiB"])),
    (TypeError, lambda it: it.writing.set_memory_limit(0, "6GiB")),
    (ValueError, lambda it: it.writing.set_memory_limit("0%")),
    (TypeError, lambda it: it.writing.set_sm_limit(0.5)),
    (ValueError, lambda it: it.writing.set_sm_limit(0)),
    (ValueError, lambda it: it.writing.set_sm_limit(150)),
    (ValueError, lambda it: it.writing.set_sm_limit("6GiB")),
    (hami.LimitConflict, lambda it: it.writing.set_memory_limit("6GiB", device=0, expected="1GiB")),
    (hami.NoSuchDevice, lambda it: it.writing.set_memory_limit("6GiB", device=2)),
    (hami.NoSuchDevice, lambda it: it.writing.set_memory_limit("6GiB", device=99)),
    (hami.NoSuchDevice, lambda it: it.writing.set_memory_limit("6GiB", device=-1)),
    (hami.NoSuchDevice, lambda it: it.writing.set_memory_limit("6GiB", device="cuda:0")),
    (TypeError, lambda it: it.writing.set_sm_limit(50, device=[0, 1])),
    (TypeError, lambda it: it.writing.edit_limits([("memory", "6GiB", 0)])),
    (ValueError, lambda it: it.writing.edit_limits([LimitEdit(device=0)])),
    (TypeError, lambda it: it.writing.set_utilization_switch("off")),
    (TypeError, lambda it: it.writing.set_burst("on")),
    (TypeError, lambda it: it.writing.set_priority(None)),
    (hami.ProcessNotInRegion, lambda it: it.writing.suspend(2**22 + 1)),
    (TypeError, lambda it: it.writing.suspend("python")),
    (FileNotFoundError, lambda it: it.writing.reap(proc=it.at / "none")),
    (hami.NoSuchDevice, lambda it: it.reading.snapshot().device(5)),
    (hami.NoSuchDevice, lambda it: it.reading.memory_limit("0")),
    (TypeError, lambda it: RegionSet(it.region)),
    (TypeError, lambda it: RegionSet([it.reading])),
    (AttributeError, lambda it: it.table.devices.memory_used),
    (ValueError, lambda it: it.table.with_identity(team=["a", "b"])),
    (ValueError, lambda _: parse_size("6,5GiB")),
    (TypeError, lambda _: parse_size(6.5)),
    (ValueError, lambda _: parse_size("0.3B")),
    (TypeError, lambda _: format_size("6GiB")),
    (TypeError, lambda _: Selector(namspace="a")),
    (TypeError, lambda _: Node(3)),
    (FileNotFoundError, lambda it: load_plan(it.at / "none.yaml")),
    (OSError, lambda it: load_plan(it.at)),
    (TypeError, lambda _: launch.run("python train.py", memory_limit="6GiB")),
    (ValueError, lambda _: launch.run(["true"], inject="ptrace")),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_wrong_call_raises_one_short_sentence_and_prints_nothing(
    number: int, place: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    error, call = CALLS[number]
    with pytest.raises(error) as raised:
        call(place)
    message = str(raised.value)
    assert len(message) <= MOST_CHARACTERS
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_none_of_them_has_changed_anything(place: SimpleNamespace) -> None:
    assert not (place.at / "n").exists()
    limits = [device.memory_limit_bytes for device in place.reading.snapshot().devices]
    assert limits == [8 * 2**30, 4 * 2**30]
