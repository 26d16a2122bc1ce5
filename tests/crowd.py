"""Many processes with many mappings, as CUDA programs have them.

`tests/crowd.py COUNT MAPS private|shared` is run by `crowd`: shared ones are for writing too, and a
search of /proc looks at each of them.

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
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def crowd(count: int, mappings: int, *, shared: bool = False) -> Iterator[list[int]]:
    """The pids of that many processes, of which each has at least that many mappings."""
    kind = "shared" if shared else "private"
    command = [sys.executable, "-I", "-S", __file__, str(count), str(mappings), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.stdin.close()


def make_mappings(file: BinaryIO, mappings: int, flags: int, protection: int) -> None:
    """Mappings of a file's first page; they keep no descriptor, as `mmap.mmap` does."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    for _ in range(mappings):
        at = libc.mmap(None, mmap.PAGESIZE, protection, flags, file.fileno(), 0)
        assert at != ctypes.c_void_p(-1).value


def main() -> None:
    count, mappings = map(int, sys.argv[1:3])
    libc = ctypes.CDLL(None)
    if sys.argv[3] == "shared":
        with tempfile.TemporaryFile() as file:
            file.truncate(mmap.PAGESIZE)
            make_mappings(file, mappings, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    else:
        with Path(sys.executable).open("rb") as file:
            make_mappings(file, mappings, mmap.MAP_PRIVATE, mmap.PROT_READ)
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
