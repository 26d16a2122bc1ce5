"""The directory of a run: its region, and the links that the stand-in library needs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cleaner import RECORD, remove, start_time, users
from .errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The region's file in the directory of a run.
REGION = "region.cache"
#: In place of the pod's UID in the name of a run's directory.
RUN_POD = "run"

_PRIVATE = 0o700
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_run_directory(environment: Mapping[str, str], *, keep: bool = False) -> str:
    """Make a directory for a run of this process, and remove those that dead runs have left.

    Args:
        environment: Whose XDG_RUNTIME_DIR counts.
        keep: Only its owner may remove it.

    Returns:
        Its path, ``<base>/run_<pid>``; with ``-1``, ``-2``, … where this process has several.

    Raises:
        LaunchError: There is no place for it, or another user has taken the place.
    """
    base = _base(environment)
    _remove_stale(base)
    pid = os.getpid()
    record = {
        "pid": pid,
        "started": start_time(pid),
        "pid_namespace": _pid_namespace(),
        "boot_id": _boot_id(),
        "host": os.uname().nodename,
        "keep": keep,
    }
    for number in itertools.count():
        # As a container's directory, <pod UID>_<container>: what lists these lists runs.
        path = f"{base}/{RUN_POD}_{pid}" + (f"-{number}" if number else "")
        try:
            os.mkdir(path, _PRIVATE)  # noqa: PTH102
            with Path(path, RECORD).open("x", encoding="ascii") as file:
                json.dump(record, file)
        except (FileExistsError, FileNotFoundError):
            # Taken; or still empty, and removed by another run as nobody's.
            continue
        return path
    raise AssertionError("names do not end")


def run_bases(environment: Mapping[str, str]) -> list[str]:
    """Where the directories of this user's runs may lie, best first."""
    user = os.geteuid()
    # The second is what the first is in a session; sudo and cron leave the variable out.
    sessions = [environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"]
    found = [
        f"{session}/hamiregion"
        for session in dict.fromkeys(sessions)
        if session.startswith("/") and _is_own(session, _OTHERS_WRITE)
    ]
    if user == 0:
        found.append("/run/hamiregion")
    return [*found, f"/tmp/hamiregion-{user}"]  # noqa: S108 (owner and mode are checked)


def _base(environment: Mapping[str, str]) -> str:
    """The first of them that can be had."""
    failure = ""
    for path in run_bases(environment):
        try:
            os.mkdir(path, _PRIVATE)  # noqa: PTH102
        except FileExistsError:
            pass
        except OSError as error:
            failure = f"{path}: {error.strerror}"
            continue
        if not _is_own(path, _OTHERS):
            raise LaunchError(
                f"{path} is not a directory that only this user can enter; remove it, or set "
                "XDG_RUNTIME_DIR to a directory of yours"
            )
        return path
    raise LaunchError(f"there is no place for a region: {failure}")


def _is_own(path: str, forbidden: int) -> bool:
    """Whether a path is a directory of this user, no link, and open to others in no such way."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return mine and not found.st_mode & forbidden


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _remove_stale(base: str) -> None:
    """Remove the directories of this user's dead runs."""
    for entry in os.scandir(base):
        if entry.is_dir(follow_symlinks=False) and _is_own(entry.path, _OTHERS):
            try:
                record = json.loads(Path(entry.path, RECORD).read_bytes())
            except FileNotFoundError:
                # Killed before it was written, or after it was removed.
                with contextlib.suppress(OSError):
                    os.rmdir(entry.path)  # noqa: PTH106
                continue
            except (OSError, ValueError, RecursionError):
                continue
            if _is_dead(record, entry.path):
                remove(entry.path)


def _is_dead(record: Any, path: str) -> bool:
    """Whether it is proved that no process uses a directory any more."""
    if not isinstance(record, dict) or record.get("keep") is not False:
        return False
    if record.get("boot_id") != _boot_id():
        # Another machine, with which this one shares a file system, has another one too.
        mine = record.get("host") == os.uname().nodename
        return mine and isinstance(record.get("boot_id"), str)
    # What a pid means in another namespace cannot be seen from here.
    if record.get("pid_namespace") != _pid_namespace():
        return False
    pid, started = record.get("pid"), record.get("started")
    if not isinstance(pid, int) or not isinstance(started, int):
        return False
    return start_time(pid) != started and not users(path)
