"""Pid namespaces: the one that the tests run in, and new ones."""

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

# The kernel gives this number to the first one, always. Only there can everybody be seen.
IS_FIRST = Path("/proc/self/ns/pid").readlink() == Path("pid:[4026531836]")
FOREIGN_OWNER = 0x40000000
FOREIGN_END = 0x50000000

needs_first_namespace = pytest.mark.skipif(
    not IS_FIRST, reason="proof needs the first pid namespace, where every process can be seen"
)

# A command put behind these words runs in a new pid namespace with a /proc of its own.
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@lru_cache(maxsize=1)
def why_no_new_namespace() -> str:
    """Empty where namespaces can be made."""
    if os.geteuid() != 0:
        return "needs root to make pid namespaces"
    if shutil.which("unshare") is None:
        return "needs unshare of util-linux"
    made = subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else f"cannot make a pid namespace: {made.stderr.strip()}"


def is_number(owner_pid: int) -> bool:
    """Whether this library has signed so for a process that is not attached."""
    return FOREIGN_OWNER <= owner_pid < FOREIGN_END


def is_own_signature(owner_pid: int, *, attached: bool) -> bool:
    """Whether this process may have signed so in owner_pid."""
    return owner_pid & 0xFFFFFFFF == os.getpid() if attached else is_number(owner_pid)
