"""A SIGBUS that is not ours goes to whoever had it, as if this library were not there."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.wait import PATIENCE_S

# A mapping of the program's own, cut under it: the fault is its own mistake.
OWN_MAPPING = """
    import mmap, os
    own_path = sys.argv[1] + ".own"
    with open(own_path, "wb+") as stream:
        stream.truncate(8192)
        own = mmap.mmap(stream.fileno(), 8192)

    def fault():
        os.truncate(own_path, 0)
        return own[4096]
"""
REGION = """
    import libhamiregion
    libhamiregion.create_region(sys.argv[1], memory_limits=(5,))
    region = libhamiregion.open_region(sys.argv[1], writable=True)
    assert region.memory_limit(0) == 5

    def stale():
        os.truncate(sys.argv[1], 0)
        try:
            region.snapshot()
        except libhamiregion.RegionStale:
            return True
"""
DUMP = "Fatal Python error: Bus error"


def run(path: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    program = "import os, signal, sys\n" + "\n".join(textwrap.dedent(part) for part in parts)
    return subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


ENABLE = "import faulthandler; faulthandler.enable()"


@pytest.mark.parametrize(
    "parts",
    [
        (ENABLE, OWN_MAPPING, REGION),
        (OWN_MAPPING, REGION, ENABLE),
        (ENABLE, OWN_MAPPING, REGION, "assert stale()"),
    ],
    ids=["enabled before", "enabled after", "enabled before, with one of ours caught"],
)
def test_a_fault_of_the_programs_own_ends_it_with_faulthandlers_dump(
    parts: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(tmp_path / "a.cache", *parts, "print('still here', flush=True)", "fault()")
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "still here\n"
    assert DUMP in done.stderr
    assert "in fault" in done.stderr


def test_with_faulthandler_in_front_our_own_fault_is_dumped_and_survived(tmp_path: Path) -> None:
    """It cannot know that the signal will be caught behind it."""
    done = run(
        tmp_path / "a.cache", REGION, ENABLE, "for _ in range(3): assert stale()", "print('alive')"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alive\n"


@pytest.mark.parametrize("caught", ["", "assert stale()"], ids=["at once", "after one of ours"])
def test_without_faulthandler_the_program_dies_by_sigbus(caught: str, tmp_path: Path) -> None:
    done = run(
        tmp_path / "a.cache", OWN_MAPPING, REGION, caught, "print('here', flush=True)", "fault()"
    )
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "here\n"


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_sigbus_that_was_sent_reaches_the_programs_handler(order: str, tmp_path: Path) -> None:
    handler = """
    seen = []
    signal.signal(signal.SIGBUS, lambda number, frame: seen.append(number))
    """
    parts = (handler, REGION) if order == "before" else (REGION, handler)
    done = run(
        tmp_path / "a.cache",
        *parts,
        """
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGBUS)
    assert seen == [signal.SIGBUS] * 3, seen
    assert region.memory_limit(0) == 5
    print("alive")
    """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alive\n"


def test_a_sigbus_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    done = run(
        tmp_path / "a.cache",
        "signal.signal(signal.SIGBUS, signal.SIG_IGN)",
        REGION,
        "os.kill(os.getpid(), signal.SIGBUS)",
        "assert stale()",
        "print('alive')",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alive\n"


def test_a_fault_in_one_thread_while_another_one_reads_ends_the_program(tmp_path: Path) -> None:
    """The guard of a thread covers that thread only."""
    done = run(
        tmp_path / "a.cache",
        ENABLE,
        OWN_MAPPING,
        REGION,
        """
    import threading

    def read():
        while True:
            region.snapshot()

    threading.Thread(target=read, daemon=True).start()
    print("here", flush=True)
    fault()
    """,
    )
    assert done.returncode == -signal.SIGBUS
    assert done.stdout == "here\n"
    assert DUMP in done.stderr


def test_importing_the_library_takes_no_signal(tmp_path: Path) -> None:
    """Only reading a region does."""
    done = run(
        tmp_path / "a.cache",
        """
    def caught():
        status = open("/proc/self/status").read()
        return int(status.split("SigCgt:")[1].split()[0], 16) >> signal.SIGBUS - 1 & 1

    before = caught()
    import libhamiregion
    print(before, caught())
    libhamiregion.create_region(sys.argv[1])
    libhamiregion.identify(sys.argv[1])
    print(caught())
    region = libhamiregion.open_region(sys.argv[1])
    region.snapshot()
    print(caught())
    """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "0", "1"]
