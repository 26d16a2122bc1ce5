"""A file cut under a program that has blocked SIGBUS or given it to somebody else: RegionStale.

Each case is a process of its own, because without the guard it dies or hangs.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.wait import PATIENCE_S

# What takes the signal away, and what shows afterwards that the program has it as it wants it.
BLOCKED = (
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})",
    "assert signal.SIGBUS in signal.pthread_sigmask(signal.SIG_BLOCK, ())",
)
ALL_BLOCKED = (
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == signal.valid_signals() - UNBLOCKABLE",
)
TAKEN = {
    "blocked": BLOCKED,
    "everything blocked, as for sigwait": ALL_BLOCKED,
    "faulthandler enabled before and disabled after": (
        "faulthandler.disable()",
        "assert not faulthandler.is_enabled()",
    ),
    "an older handler put back": (
        "libc.signal(signal.SIGBUS, before_us)",
        "assert signal.getsignal(signal.SIGBUS) == signal.SIG_DFL",
    ),
    "a Python handler installed after": (
        "signal.signal(signal.SIGBUS, handler)",
        "assert signal.getsignal(signal.SIGBUS) is handler and is_called(handler)",
    ),
}

PROGRAM = """
    import ctypes, faulthandler, os, signal, sys, threading
    import libhamiregion

    UNBLOCKABLE = {{signal.SIGKILL, signal.SIGSTOP}}
    libc = ctypes.PyDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    before_us = 0  # SIG_DFL
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
            for _ in range(100):
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
IN_MAIN = "check()"
IN_THREAD = """
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
"""


def run(path: Path, *parts: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(textwrap.dedent(part) for part in parts), path],
        capture_output=True,
        text=True,
        # What waits in the program gives up before this, and says what for.
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("taken", TAKEN)
def test_a_cut_is_an_error_whoever_has_the_signal_in_every_thread(
    taken: str, tmp_path: Path
) -> None:
    take, afterwards = TAKEN[taken]
    program = textwrap.dedent(PROGRAM).format(taken=take, afterwards=afterwards)
    enable = "faulthandler.enable()" if "faulthandler" in taken else ""
    run(tmp_path / "a.cache", program, enable, IN_MAIN)
    # signal.signal() works in the main thread only, so others find what that one has done.
    if "Python" not in taken:
        # An exception in a thread is written to stderr, where run() finds it.
        run(tmp_path / "b.cache", program, enable, IN_THREAD)


def test_a_python_handler_installed_after_is_there_for_threads_too(tmp_path: Path) -> None:
    program = textwrap.dedent(PROGRAM).format(
        taken="install.set(); installed.wait()", afterwards=""
    )
    run(
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


@pytest.mark.slow
def test_threads_that_block_the_signal_beside_threads_that_do_not(tmp_path: Path) -> None:
    """All meet cuts by the hundred; each keeps its mask, and a signal that is sent arrives."""
    run(
        tmp_path / "a.cache",
        """
    import os, signal, sys, threading, time
    import libhamiregion

    path, ROUNDS, THREADS = sys.argv[1], 100, 4
    patience_s = int(os.environ["HAMIREGION_TESTS_PATIENCE_S"])
    libhamiregion.create_region(path, memory_limits=(5,))
    with open(path, "rb") as stream:
        content = stream.read()
    over = threading.Event()
    met = [{"data": 0, "stale": 0} for _ in range(THREADS)]
    seen = []
    signal.signal(signal.SIGBUS, lambda number, frame: seen.append(number))
    region = libhamiregion.open_region(path)

    def read(index):
        if index % 2:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        while not over.is_set():
            try:
                region.snapshot()
                met[index]["data"] += 1
            except libhamiregion.RegionStale:
                met[index]["stale"] += 1
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask

    threads = [threading.Thread(target=read, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for number in range(ROUNDS):
        os.truncate(path, 0)
        if number % 10 == 0:
            os.kill(os.getpid(), signal.SIGBUS)
            deadline = time.monotonic() + patience_s
            while len(seen) <= number // 10:
                assert time.monotonic() < deadline
                time.sleep(0.0001)
        with open(path, "rb+") as stream:
            stream.write(content)
    deadline = time.monotonic() + patience_s
    before = [dict(each) for each in met]
    while any(now["data"] == then["data"] for now, then in zip(met, before)):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    over.set()
    for thread in threads:
        thread.join()
    assert all(each["stale"] and each["data"] for each in met), met
    assert len(seen) == ROUNDS // 10
    """,
    )
