"""Pid and mount namespaces: the ones that the tests run in, and new ones."""

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

from libhamiregion.node.procfs import initial_pid_namespace

FOREIGN_OWNER = 0x40000000
FOREIGN_END = 0x50000000

# A command put behind these words runs in a new pid namespace with a /proc of its own.
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def needs_first_namespace() -> pytest.MarkDecorator:
    """Skip tests of a wheel's core in a container: it takes the suite's namespace for no first."""
    is_first = str(Path("/proc/self/ns/pid").readlink()) == initial_pid_namespace()
    reason = "proof needs the first pid namespace, where every process can be seen"
    return pytest.mark.skipif(not is_first, reason=reason)


@lru_cache(maxsize=1)
def why_no_new_namespace() -> str:
    """Empty where namespaces can be made."""
    if os.geteuid() != 0:
        return "needs root to make pid namespaces"
    if shutil.which("unshare") is None:
        return "needs unshare of util-linux"
    made = subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else f"cannot make a pid namespace: {made.stderr.strip()}"


def own_mounts(*mounts: str) -> tuple[str, ...]:
    """Return the start of a command that runs a program where these mounts are.

    Args:
        mounts: The arguments of ``mount``.
    """
    script = " && ".join([*(f"mount {each}" for each in mounts), 'exec "$@"'])
    inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot mount here: {tried.stderr.strip()}")
    return inside


def overlay_mount(directory: Path) -> tuple[tuple[str, ...], Path, Path]:
    """Return `own_mounts` of an overlay, its directory, and the upper one below it."""
    lower, work, upper, merged = (directory / each for each in ("lower", "work", "upper", "merged"))
    for each in (lower, work, upper, merged):
        each.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    return own_mounts(f"-t overlay overlay -o {options} {merged}"), merged, upper


def is_number(owner_pid: int) -> bool:
    """Whether this library has signed so for a process that is not attached."""
    return FOREIGN_OWNER <= owner_pid < FOREIGN_END


def is_own_signature(owner_pid: int, *, attached: bool) -> bool:
    """Whether this process may have signed so in owner_pid."""
    return owner_pid & 0xFFFFFFFF == os.getpid() if attached else is_number(owner_pid)
