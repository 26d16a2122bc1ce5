"""SIGBUS: a truncated file is RegionStale, and a fault that is not ours goes where it went before.

Each case is a process of its own, because without the guard it dies or hangs.
"""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.process import finished
from support.stress import scaled
from support.wait import PATIENCE_S

from libhamiregion import create_region

# What takes the signal away, and what shows afterwards that the program has it as it wants it.
# Masks, and handlers that C code puts there, are in tests/c/test_sigbus*.c.
TAKEN = {
    "faulthandler enabled before and disabled after": (
        "faulthandler.disable()",
        "assert not faulthandler.is_enabled()",
    ),
    "a Python handler installed after": (
        "signal.signal(signal.SIGBUS, handler)",
        "assert signal.getsignal(signal.SIGBUS) is handler and is_called(handler)",
    ),
}

PROGRAM = """
    import faulthandler, threading
    import libhamiregion

    seen = []

    def handler(number, frame):
        seen.append(number)

    def is_called(handler):
        signal.raise_signal(signal.SIGBUS)
        return seen == [signal.SIGBUS]

    def stale(call):
        try:
            call()
        except libhamiregion.RegionStale:
            return True

    def check():
        libhamiregion.create_region(sys.argv[1], memory_limits=(5,))
        with open(sys.argv[1], "rb") as stream:
            content = stream.read()
        with (
            libhamiregion.open_region(sys.argv[1], writable=True) as region,
            libhamiregion.RegionSet([sys.argv[1]]) as regions,
        ):
            assert region.memory_limit(0) == 5
            {taken}
            os.truncate(sys.argv[1], 0)
            assert stale(region.snapshot)
            assert stale(lambda: region.memory_limit(0))
            assert stale(lambda: region.set_priority(0))
            assert stale(region.lock(timeout_s=5).__enter__)
            error = regions.read().error(0)
            assert isinstance(error, libhamiregion.RegionStale), error
            with open(sys.argv[1], "rb+") as stream:
                stream.write(content)
            assert region.memory_limit(0) == 5
            {afterwards}
        os.unlink(sys.argv[1])
"""


def run(path: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    program = "import os, signal, sys\n" + "\n".join(textwrap.dedent(part) for part in parts)
    return finished([sys.executable, "-c", program, path], timeout=60 + PATIENCE_S)


def survive(path: Path, *parts: str) -> None:
    done = run(path, *parts)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("taken", TAKEN)
def test_a_cut_is_an_error_whoever_has_the_signal(taken, tmp_path):
    take, afterwards = TAKEN[taken]
    program = textwrap.dedent(PROGRAM).format(taken=take, afterwards=afterwards)
    enable = "faulthandler.enable()" if "faulthandler" in taken else ""
    survive(tmp_path / "a.cache", program, enable, "check()")


def test_a_python_handler_installed_after_is_there_for_threads_too(tmp_path):
    program = textwrap.dedent(PROGRAM).format(
        taken="install.set(); installed.wait()", afterwards=""
    )
    survive(
        tmp_path / "a.cache",
        program,
        """
    install, installed = threading.Event(), threading.Event()
    thread = threading.Thread(target=check)
    thread.start()
    install.wait()
    signal.signal(signal.SIGBUS, handler)
    installed.set()
    thread.join()
    assert is_called(handler), seen
    """,
    )


# ---- between one call and the next ----

CUTTER = """
import os, sys

fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
tail_at = (size - 1) // 4096 * 4096
head, tail = os.pread(fd, 4096, 0), os.pread(fd, 4096, tail_at)
print("cutting", flush=True)
while True:
    os.ftruncate(fd, 0)
    os.ftruncate(fd, size)
    os.pwrite(fd, tail, tail_at)
    os.pwrite(fd, head, 0)
"""
CUT_MEANWHILE = """
    import collections, contextlib, threading, time
    from libhamiregion import RegionError, open_region

    met = collections.Counter()
    region = None
    while region is None:
        with contextlib.suppress(RegionError):
            region = open_region(sys.argv[1], writable=True)
    end = time.monotonic() + SECONDS

    def meet(call):
        try:
            call()
            met["data"] += 1
        except RegionError:
            met["error"] += 1

    def take_signal_away():
        while time.monotonic() < end:
            meet(lambda: region.memory_limit(0))
            {taken}
            meet(lambda: region.set_memory_limit(1 << 30, device=0, force=True))
            meet(region.snapshot)
            {given_back}

    {threads}
    assert met["data"] and met["error"], met
"""
FOUR_THREADS = """threads = [threading.Thread(target=take_signal_away) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]"""
TAKEN_BETWEEN = {
    "blocked": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})",
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGBUS})",
        FOUR_THREADS,
    ),
    # In the main thread only: another thread may be reading while the handler is replaced.
    "another handler": ("signal.signal(signal.SIGBUS, signal.SIG_DFL)", "", "take_signal_away()"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", TAKEN_BETWEEN)
def test_a_program_may_take_the_signal_right_after_a_call_and_make_the_next(how, tmp_path):
    """A container that cuts and restores its file without a pause does not end its readers."""
    path = tmp_path / "a.cache"
    create_region(path, memory_limits=(5,))
    taken, given_back, threads = TAKEN_BETWEEN[how]
    program = textwrap.dedent(CUT_MEANWHILE).format(
        taken=taken, given_back=given_back, threads=threads
    )
    with subprocess.Popen([sys.executable, "-c", CUTTER, path], stdout=subprocess.PIPE) as cutter:
        cutter.stdout.readline()
        try:
            survive(path, f"SECONDS = {scaled(60.0, 1.5)}", program)
        finally:
            cutter.kill()


# ---- faults and signals that are not ours ----

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
ENABLE = "import faulthandler; faulthandler.enable()"
READ_IN_A_THREAD = """
    import threading

    def read():
        while True:
            region.snapshot()

    threading.Thread(target=read, daemon=True).start()
"""


@pytest.mark.parametrize(
    "parts",
    [
        (ENABLE, OWN_MAPPING, REGION),
        (OWN_MAPPING, REGION, ENABLE),
        (ENABLE, OWN_MAPPING, REGION, "assert stale()"),
        (ENABLE, OWN_MAPPING, REGION, READ_IN_A_THREAD),
    ],
    ids=["enabled before", "enabled after", "one of ours caught", "another thread reads"],
)
def test_a_fault_of_the_program_itself_ends_it_with_faulthandlers_dump(parts, tmp_path):
    done = run(tmp_path / "a.cache", *parts, "print('still here', flush=True)", "fault()")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "still here\n")
    assert "Fatal Python error: Bus error" in done.stderr
    assert "in fault" in done.stderr


def test_with_faulthandler_in_front_our_own_fault_is_dumped_and_survived(tmp_path):
    """It cannot know that the signal will be caught behind it."""
    done = run(tmp_path / "a.cache", REGION, ENABLE, "for _ in range(3): assert stale()")
    assert done.returncode == 0, done.stderr


def test_only_reading_a_region_takes_the_signal(tmp_path):
    survive(
        tmp_path / "a.cache",
        """
    def caught():
        status = open("/proc/self/status").read()
        return int(status.split("SigCgt:")[1].split()[0], 16) >> signal.SIGBUS - 1 & 1

    import libhamiregion
    libhamiregion.create_region(sys.argv[1])
    libhamiregion.identify(sys.argv[1])
    assert not caught()
    region = libhamiregion.open_region(sys.argv[1])
    region.snapshot()
    assert caught()
    """,
    )
