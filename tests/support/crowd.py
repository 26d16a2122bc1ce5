"""Many processes with many mappings, as CUDA programs have them.

`tests/support/crowd.py COUNT MAPS` is run by `crowd`.

It writes a line when all of them are there, and they end with it. The processes map one
file again and again, so that no two of the mappings become one.
"""

import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def crowd(count: int, mappings: int) -> Iterator[list[int]]:
    """The pids of that many processes, of which each has at least that many mappings."""
    command = [sys.executable, "-I", "-S", __file__, str(count), str(mappings)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.stdin.close()


def make_mappings(file: BinaryIO, mappings: int) -> None:
    """Mappings of a file's first page; they keep no descriptor, as `mmap.mmap` does."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for _ in range(mappings):
        at = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
        assert at != ctypes.c_void_p(-1).value


def main() -> None:
    count, mappings = map(int, sys.argv[1:3])
    libc = ctypes.CDLL(None)
    with Path(sys.executable).open("rb") as file:
        make_mappings(file, mappings)
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(0)
            os.close(1)
            while True:
                signal.pause()
        children.append(child)
    print(*children, flush=True)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
