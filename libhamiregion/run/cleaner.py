"""Remove the directory of a run when its program has ended and no process uses it.

Also a program: ``python -I -S cleaner.py DIRECTORY PID START``, which `hamiregion run` leaves
behind before it becomes the program itself.  Standard library only, so that it starts in
milliseconds and stays small for as long as the program runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from pathlib import Path

#: The process that a directory is for.  Removed last: the other files are judged by it.
RECORD = "owner.json"

# Of the environment and of the maps of one process.
_MOST_BYTES = 8 << 20
# Where the kernel has no pidfd_open (before 5.3), or a sandbox forbids it.
_POLL_S = 0.5
# A process that starts a program has its environment after microseconds, on a busy machine later:
# it is asked for a second.
_STARTING_READS, _STARTING_S = 1000, 0.001


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold blanks and parentheses.
    state, *fields = stat[stat.rindex(b")") + 2 :].split()
    # The first thread may have ended before the others.
    threads = int(fields[16])
    return None if state in b"ZX" and threads <= 1 else int(fields[18])


def read_start(path: str) -> bytes:
    """The beginning of a file whose length another process decides."""
    with Path(path).open("rb") as file:
        return file.read(_MOST_BYTES)


def _environment_of(name: str) -> bytes:
    """Read a process's environment; the kernel shows none while it starts a program."""
    environment, command, maps = (f"/proc/{name}/{each}" for each in ("environ", "cmdline", "maps"))
    for _ in range(_STARTING_READS):
        # Kernel threads and processes that have ended have no mappings.
        if read_start(environment) or read_start(command) or not read_start(maps):
            break
        time.sleep(_STARTING_S)
    return read_start(environment)


def users(directory: str) -> list[int]:
    """The other processes that may need a run's directory.

    Those that were started with it in their environment; and, as a program can overwrite what /proc
    shows of that, CUDA programs that map the region for writing, or whose maps are too long to be
    read to their end.  Monitors map it too.
    """
    path = re.escape(os.fsencode(directory))
    named = re.compile(path + rb"(?![^/:;\s\0])")
    mapped = re.compile(rb"^\S+ rw-s .*" + path + rb"/", re.MULTILINE)
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 (hundreds of names)
        if name.isdecimal() and int(name) != os.getpid():
            # Gone, or of a user who cannot enter the directory.
            with contextlib.suppress(OSError):
                is_named = named.search(_environment_of(name))
                maps = read_start(f"/proc/{name}/maps")
                is_cut = len(maps) == _MOST_BYTES
                if is_named or (b"/libcuda" in maps and (is_cut or mapped.search(maps))):
                    found.append(int(name))
    return found


def remove(directory: str) -> None:
    """Remove the directory of a run; another process may be doing the same."""
    with contextlib.suppress(OSError):
        names = os.listdir(directory)  # noqa: PTH208
        for name in sorted(names, key=RECORD.__eq__):
            with contextlib.suppress(OSError):
                os.unlink(f"{directory}/{name}")  # noqa: PTH108
        os.rmdir(directory)  # noqa: PTH106


def wait_for_end(pid: int, started: int) -> None:
    """Return when that process has ended."""
    descriptor = None
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
    try:
        # Only after opening is it certain that the pid means the same process.
        while start_time(pid) == started:
            if descriptor is None:
                time.sleep(_POLL_S)
            else:
                select.select([descriptor], [], [])
                return
    finally:
        if descriptor is not None:
            os.close(descriptor)


def main(directory: str, pid: int, started: int) -> None:
    """Wait for the program, then for those that it has left behind, and clean up."""
    # Service managers signal all that they have started; this one ends after the program.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() != 0:
        os._exit(0)
    wait_for_end(pid, started)
    while left := users(directory):
        for each in left:
            since = start_time(each)
            if since is not None:
                wait_for_end(each, since)
    remove(directory)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
