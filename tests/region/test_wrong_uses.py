"""Calls that people get wrong: each raises one sentence that names it and says what to do.

Beside the words that each must have, all of them are one line of at most 500 characters, and
nothing is printed. What is wrong on a command line is in `test_wrong_commands`.
"""

from __future__ import annotations

import json
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
    limits_from_environment,
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


# What is called: the class of the error, and words that it must have.
PYTHON: dict[str, tuple[Callable[[Any], Any], type[BaseException], str]] = {
    # ---- files -------------------------------------------------------------------------------
    "a file that is not there": (
        lambda it: open_region(it.at / "none.cache"),
        hami.RegionNotFound,
        "none.cache' does not exist; a container has its region once",
    ),
    "a directory for a file": (
        lambda it: open_region(it.at),
        hami.NotARegion,
        "is a directory, not a region file",
    ),
    "a link": (lambda it: open_region(it.at / "link.cache"), hami.NotARegion, "a symbolic link"),
    "a FIFO": (
        lambda it: open_region(it.at / "fifo"),
        hami.NotARegion,
        "is a FIFO, not a",
    ),
    "an empty file": (
        lambda it: open_region(it.at / "empty.cache"),
        hami.RegionNotReady,
        "is empty; try again",
    ),
    "another file": (
        lambda it: open_region(it.at / "notes.txt"),
        hami.NotARegion,
        "is not a HAMi region: .* give the path of a .cache file",
    ),
    "bytes for a path": (
        lambda it: open_region(os.fsencode(it.region)),
        TypeError,
        "a region's path is text or an os.PathLike of text, not bytes",
    ),
    "None for a path": (lambda _: open_region(None), TypeError, "a region's path .* not NoneType"),
    "an open file for a path": (
        lambda _: open_region(sys.stdin),
        TypeError,
        "a region's path is text .*, not ",
    ),
    "a descriptor for a path": (lambda _: open_region(3), TypeError, "a region's path .*, not int"),
    "a NUL in a path": (lambda _: open_region("a\0b"), ValueError, "a path has no NUL character"),
    "the mode of open()": (
        lambda it: open_region(it.region, "r+"),  # type: ignore[misc]
        TypeError,
        "open_region.. takes 1 positional argument",
    ),
    "a layout as text": (
        lambda it: open_region(it.region, layout="1.2"),
        TypeError,
        "a layout is a Layout, as Layout.V1_2, not str",
    ),
    "another layout": (
        lambda it: open_region(it.region, layout=hami.Layout.UNVERSIONED),
        hami.NotARegion,
        "has layout 1.2, not unversioned; name a layout only if",
    ),
    "a timeout as text": (
        lambda it: open_region(it.region, timeout_s="1s"),
        TypeError,
        "a timeout is a number of seconds, not str",
    ),
    "a negative timeout": (
        lambda it: open_region(it.region, timeout_s=-1),
        ValueError,
        "a timeout is 0 or more seconds, not -1",
    ),
    "no container": (
        lambda _: own_region({"HOME": "/root"} | {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/none"}),
        hami.RegionNotFound,
        "'/none': no such file .CUDA_DEVICE_MEMORY_SHARED_CACHE names it.: nothing here has",
    ),
    "a path for own_region": (
        lambda it: own_region(it.region),
        TypeError,
        "own_region.. takes an environment; open_region.. takes a path",
    ),
    # ---- making ------------------------------------------------------------------------------
    "a region over another": (
        lambda it: create_region(it.region),
        FileExistsError,
        "a region is never created over an existing file; open or remove it: .*a.cache",
    ),
    "a directory that is not there": (
        lambda it: create_region(it.at / "none" / "a.cache"),
        hami.RegionNotFound,
        "the directory of .* does not exist",
    ),
    "one limit for a list": (
        lambda it: create_region(it.at / "n", memory_limits="8GiB"),
        TypeError,
        "memory_limits is a sequence with one entry per device, not str",
    ),
    "one number for a list": (
        lambda it: create_region(it.at / "n", sm_limits=50),
        TypeError,
        "sm_limits is a sequence with one entry per device, not int",
    ),
    "one uuid for a list": (
        lambda it: create_region(it.at / "n", uuids=UUID),
        TypeError,
        "uuids is a sequence with one entry per device, not str",
    ),
    "too many devices": (
        lambda it: create_region(it.at / "n", memory_limits=["1GiB"] * 17),
        ValueError,
        "memory_limits has 17 entries, a region 16 devices",
    ),
    "a percentage of nothing": (
        lambda it: create_region(it.at / "n", memory_limits=["80%"]),
        ValueError,
        '"80%" of what.* give bytes, or "6GiB"',
    ),
    "an index for a uuid": (
        lambda it: create_region(it.at / "n", uuids=["0"]),
        ValueError,
        "'0' is no device uuid: GPU-… or MIG-…",
    ),
    "a word for a priority": (
        lambda it: create_region(it.at / "n", priority="high"),
        TypeError,
        "a priority is an integer, not str",
    ),
    # ---- closed, and read-only ---------------------------------------------------------------
    "a limit through a reader": (
        lambda it: it.reading.set_memory_limit("6GiB"),
        hami.RegionReadOnly,
        "opened for reading; open it with writable=True",
    ),
    "a priority through a reader": (
        lambda it: it.reading.set_priority(0),
        hami.RegionReadOnly,
        "opened for reading; open it with writable=True",
    ),
    "a slot through a reader": (
        lambda it: it.reading.attach(),
        hami.RegionReadOnly,
        "opened for reading; open it with writable=True",
    ),
    "the lock through a reader": (
        lambda it: with_lock(it.reading),
        hami.RegionReadOnly,
        "opened for reading; open it with writable=True",
    ),
    "a snapshot after close": (
        lambda it: it.closed.snapshot(),
        hami.RegionClosed,
        "has been closed; open it again",
    ),
    "a value after close": (
        lambda it: it.closed.memory_limit(0),
        hami.RegionClosed,
        "has been closed; open it again",
    ),
    "a region in a pickle": (
        lambda it: pickle.dumps(it.reading),
        TypeError,
        "a Region cannot be pickled; send its path, or a snapshot",
    ),
    # ---- limits ------------------------------------------------------------------------------
    "a decimal unit": (
        lambda it: it.writing.set_memory_limit("6GB"),
        ValueError,
        'powers of 1000 or of 1024: write "GiB"',
    ),
    "a unit that is none": (
        lambda it: it.writing.set_memory_limit("6 gigs"),
        ValueError,
        '"6 gigs" is not a size: write .* such as "6GiB"',
    ),
    "no text at all": (
        lambda it: it.writing.set_memory_limit(""),
        ValueError,
        '"" is not a size: write .* such as "6GiB"',
    ),
    "0 for no limit": (
        lambda it: it.writing.set_memory_limit(0),
        ValueError,
        '0 would mean unlimited; say "unlimited"',
    ),
    "-1 for no limit": (
        lambda it: it.writing.set_memory_limit(-1),
        ValueError,
        "is 0 to .*, not -1",
    ),
    "a fraction of bytes": (
        lambda it: it.writing.set_memory_limit(6.5 * 2**30),
        TypeError,
        "is an integer, not float",
    ),
    "True for a limit": (
        lambda it: it.writing.set_memory_limit(True),
        TypeError,
        "is an integer, not bool",
    ),
    "a list of limits": (
        lambda it: it.writing.set_memory_limit(["6GiB", "3GiB"]),
        TypeError,
        "is an integer, not list",
    ),
    "the device before the limit": (
        lambda it: it.writing.set_memory_limit(0, "6GiB"),
        TypeError,
        "set_memory_limit.. takes 2 positional arguments",
    ),
    "0 % of what there is": (
        lambda it: it.writing.set_memory_limit("0%"),
        ValueError,
        '0 would mean unlimited; say "unlimited"',
    ),
    "half of the cores": (
        lambda it: it.writing.set_sm_limit(0.5),
        TypeError,
        "is an integer, not float",
    ),
    "0 % of the cores": (
        lambda it: it.writing.set_sm_limit(0),
        ValueError,
        'an SM limit is 1 to 100 percent, or "unlimited", not 0',
    ),
    "more than all cores": (
        lambda it: it.writing.set_sm_limit(150),
        ValueError,
        'an SM limit is 1 to 100 percent, or "unlimited", not 150',
    ),
    "bytes of cores": (
        lambda it: it.writing.set_sm_limit("6GiB"),
        ValueError,
        "an SM limit is 1 to 100 percent, .* not '6GiB'",
    ),
    "another value than expected": (
        lambda it: it.writing.set_memory_limit("6GiB", device=0, expected="1GiB"),
        hami.LimitConflict,
        "device 0 is 8 GiB .*, not 1 GiB .* as expected; nothing was changed",
    ),
    "a device beyond the last": (
        lambda it: it.writing.set_memory_limit("6GiB", device=2),
        hami.NoSuchDevice,
        f"has no device 2, only 0 .{UUID}., 1",
    ),
    "a device that no layout has": (
        lambda it: it.writing.set_memory_limit("6GiB", device=99),
        hami.NoSuchDevice,
        "a device is 0 to 15, not 99",
    ),
    "the last device as in a list": (
        lambda it: it.writing.set_memory_limit("6GiB", device=-1),
        hami.NoSuchDevice,
        "a device is 0 to 15, not -1",
    ),
    "a device as PyTorch has it": (
        lambda it: it.writing.set_memory_limit("6GiB", device="cuda:0"),
        hami.NoSuchDevice,
        "has no device 'cuda:0', only 0",
    ),
    "several devices": (
        lambda it: it.writing.set_sm_limit(50, device=[0, 1]),
        TypeError,
        "a device is an integer, not list",
    ),
    "edits as tuples": (
        lambda it: it.writing.edit_limits([("memory", "6GiB", 0)]),
        TypeError,
        "an edit is a LimitEdit.*, not tuple",
    ),
    "an edit of nothing known": (
        lambda it: it.writing.edit_limits([LimitEdit(device=0)]),
        ValueError,
        "one of memory_limit, sm_limit and priority",
    ),
    "a word for a switch": (
        lambda it: it.writing.set_utilization_switch("off"),
        TypeError,
        "the utilisation switch is True or False, not str",
    ),
    "a word for burst": (
        lambda it: it.writing.set_burst("on"),
        TypeError,
        "burst is True or False, not str",
    ),
    "None for a priority": (
        lambda it: it.writing.set_priority(None),
        TypeError,
        "a priority is an integer, not NoneType",
    ),
    # ---- processes ---------------------------------------------------------------------------
    "a process of another container": (
        lambda it: it.writing.suspend(2**22 + 1),
        hami.ProcessNotInRegion,
        r"has no slot of a process \d+; snapshot..\.processes lists them",
    ),
    "a name for a pid": (
        lambda it: it.writing.suspend("python"),
        TypeError,
        "a pid is an integer, not str",
    ),
    "a /proc that is not there": (
        lambda it: it.writing.reap(proc=it.at / "none"),
        FileNotFoundError,
        "no such directory to look for processes in: .*none",
    ),
    # ---- reading -----------------------------------------------------------------------------
    "a device of a snapshot": (
        lambda it: it.reading.snapshot().device(5),
        hami.NoSuchDevice,
        "has no device 5, only 0, 1",
    ),
    "a device by text": (
        lambda it: it.reading.memory_limit("0"),
        hami.NoSuchDevice,
        "has no device '0', only 0",
    ),
    "a set of one path": (
        lambda it: RegionSet(it.region),
        TypeError,
        "takes several paths; put a single one into a list",
    ),
    "a set of regions": (
        lambda it: RegionSet([it.reading]),  # type: ignore[list-item]
        TypeError,
        "a region's path is text .*, not Region",
    ),
    "a column that is none": (
        lambda it: it.table.devices.memory_used,
        AttributeError,
        "no column 'memory_used'; there are .*memory_used_bytes",
    ),
    "an identity for another number of regions": (
        lambda it: it.table.with_identity(team=["a", "b"]),
        ValueError,
        "team has 2 cells for 1 regions",
    ),
    "an identity as text": (
        lambda it: it.table.with_identity(team="a"),
        TypeError,
        "team is a list with one text per region, not str",
    ),
    # ---- values ------------------------------------------------------------------------------
    "a decimal comma": (
        lambda _: parse_size("6,5GiB"),
        ValueError,
        '"6,5GiB" is not a size: write .* such as "6GiB", "1.5g"',
    ),
    "a float for a size": (
        lambda _: parse_size(6.5),
        TypeError,
        'no text such as "6GiB" is an integer, not float',
    ),
    "a part of a byte": (lambda _: parse_size("0.3B"), ValueError, "use a smaller unit"),
    "text to show as a size": (
        lambda _: format_size("6GiB"),
        TypeError,
        "a number of bytes is an integer, not str",
    ),
    "numbers in an environment": (
        lambda _: limits_from_environment({"CUDA_DEVICE_MEMORY_LIMIT": 3000}),
        TypeError,
        "CUDA_DEVICE_MEMORY_LIMIT is int, not text",
    ),
    "no environment": (
        lambda _: limits_from_environment(None),
        TypeError,
        "an environment is a mapping such as os.environ, not NoneType",
    ),
    # ---- nodes, plans and programs -----------------------------------------------------------
    "a misspelled pattern": (
        lambda _: Selector(namspace="a"),  # type: ignore[call-arg]
        TypeError,
        "unexpected keyword argument 'namspace'",
    ),
    "a number for a root": (
        lambda _: Node(3),
        TypeError,
        "a root is a path, or several in a list, not int",
    ),
    "a plan that is not there": (
        lambda it: load_plan(it.at / "none.yaml"),
        FileNotFoundError,
        "No such file or directory: .*none.yaml",
    ),
    "a directory for a plan": (lambda it: load_plan(it.at), OSError, "not a regular file"),
    "a program as one text": (
        lambda _: launch.run("python train.py", memory_limit="6GiB"),
        TypeError,
        "a program is a list of its words, such as .*, not str",
    ),
    "another way to inject": (
        lambda _: launch.run(["true"], inject="ptrace"),  # type: ignore[arg-type]
        ValueError,
        "inject is one of .*standin.*preload.*, not 'ptrace'",
    ),
}


@pytest.mark.parametrize("use", PYTHON)
def test_a_wrong_call_raises_one_sentence_that_says_what_to_do(
    use: str, place: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    do, error, words = PYTHON[use]
    with pytest.raises(error, match=words) as raised:
        do(place)
    assert raised.type is error or error is OSError
    message = str(raised.value)
    assert len(message) <= MOST_CHARACTERS
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_a_snapshot_is_no_json_and_its_dictionary_is(place: SimpleNamespace) -> None:
    snapshot = place.reading.snapshot()
    with pytest.raises(TypeError, match="RegionSnapshot is not JSON serializable"):
        json.dumps(snapshot)
    assert json.loads(json.dumps(snapshot.to_dict()))["path"] == str(place.region)


def test_none_of_them_has_changed_anything(place: SimpleNamespace) -> None:
    assert not (place.at / "n").exists()
    limits = [device.memory_limit_bytes for device in place.reading.snapshot().devices]
    assert limits == [8 * 2**30, 4 * 2**30]
