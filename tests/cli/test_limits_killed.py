"""`hamiregion limits set` under kill -9: a file is changed wholly or not at all."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from libhamiregion import create_region, edits, open_region
from libhamiregion._core import lib
from libhamiregion.cli.app import main
from libhamiregion.units import GIB

UUIDS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")
OLD = [(8 * GIB, 50), (4 * GIB, None)]
NEW = [(2 * GIB, 30), (2 * GIB, 30)]


def limits(path: str) -> list[tuple[int | None, int | None]]:
    with open_region(path) as opened:
        return [(opened.memory_limit(device), opened.sm_limit(device)) for device in (0, 1)]


def die_around(number: int, *, before: bool) -> Callable[..., int]:
    """The core's edit, that kills its process before or after it has stored for the n-th time."""
    edit: Callable[..., int] = lib.hr_edit
    calls = iter(range(1, number + 1))

    def edited(handle: Any, edits: Any, count: int, room: int, flags: int, error: Any) -> int:
        dies = not flags & lib.HR_DRY_RUN and next(calls) == number
        if dies and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = edit(handle, edits, count, room, flags, error)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return edited


class KillingCore:
    """The core, but for the function that edits."""

    def __init__(self, edit: Callable[..., int]) -> None:
        self.hr_edit = edit

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)


def call(edit: Callable[..., int], *words: str) -> NoReturn:
    """Run the command in this process, which has been forked for it."""
    try:
        edits.lib = KillingCore(edit)
        sys.argv = ["hamiregion", *words]
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    finally:
        os._exit(1)


@pytest.mark.parametrize("before", [True, False], ids=["before a store", "after a store"])
def test_both_limits_of_a_file_are_changed_or_neither(tmp_path, before):
    for number in range(1, 10):
        path = str(tmp_path / f"{number}.cache")
        create_region(path, memory_limits=(8 * GIB, 4 * GIB), sm_limits=(50,), uuids=UUIDS)
        pid = os.fork()
        if pid == 0:
            edit = die_around(number, before=before)
            call(edit, "limits", "set", path, "--memory", "2GiB", "--sm", "30")
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            # It has stored less often: all points have been seen.
            assert (number, os.WEXITSTATUS(status), limits(path)) == (2, 0, NEW)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert limits(path) == (OLD if before else NEW)
    pytest.fail("it never came to its end")
