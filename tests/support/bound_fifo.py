"""Processes whose maps, command line or environment never answer a reader.

A FIFO is bound over these files in a mount namespace of the program that is tested. What an mmap
lock that is held for ever does to all readers before Linux 6.17, this does on any kernel.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

FILES = ("maps", "cmdline", "environ")
_BIND = """
fifo=$1; shift
while [ "$1" != -- ]; do mount --bind "$fifo" "/proc/$1" || exit 99; shift; done
shift; exec "$@"
"""


def _can_bind() -> bool:
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return done.returncode == 0


needs_bound_fifo = pytest.mark.skipif(
    not _can_bind(), reason="needs root, unshare and the right to mount"
)


def behind_fifo(directory: Path, pids: Iterable[int]) -> tuple[str, ...]:
    """The words that start a program for which these processes never answer.

    Args:
        directory: Where the FIFO is made.
        pids: The processes, in this /proc.
    """
    fifo = directory / "never"
    os.mkfifo(fifo)
    files = [f"{pid}/{name}" for pid in pids for name in FILES]
    return ("unshare", "--mount", "sh", "-c", _BIND, "sh", str(fifo), *files, "--")
