"""Starting a program under a budget: as a child process, or in the place of this one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import cleaner
from .environment import Budget, environment, prepared
from .errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .environment import Launch

_MUSL_LOADER = b"/ld-musl-"
# Linkers put the loader's name behind the headers.
_START_BYTES = 4096


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    keep: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program within a GPU budget, wait for it, and remove its region.

    Args:
        command: The program with its arguments.
        keep: As `environment`.
        options: The budget, from ``memory_limit`` to ``env``, as `environment` takes it; and
            arguments of `subprocess.run`, such as ``check``, ``cwd`` or ``capture_output``.

    Returns:
        The result of `subprocess.run`: ``returncode`` is negative if a signal ended the program.

    Raises:
        LaunchError, ValueError, TypeError, RegionError: As `environment`.
        OSError: The program cannot be started.
        subprocess.CalledProcessError, subprocess.TimeoutExpired: As `subprocess.run`.

    Shell: ``hamiregion run --memory 4GiB -- python train.py``.
    """
    if isinstance(command, str | bytes | os.PathLike):
        raise TypeError(
            'a program is a list of its words, such as ["python", "train.py"],'
            f" not {type(command).__name__}"
        )
    names = Budget.__annotations__.keys() & options.keys()
    budget = {name: options.pop(name) for name in names}
    with environment(keep=keep, **budget) as variables:
        find_program(os.fspath(command[0]), variables)
        return subprocess.run(command, env=variables, **options)  # noqa: PLW1510 (the caller's)


def replace_process(
    program: str,
    command: Sequence[str],
    launch: Launch,
    kept: Callable[[str], None],
) -> NoReturn:
    """Become the program.

    Pid, parent, terminal, signals and exit status are then the program's.  A small process outside
    its session cleans up when the program has ended.

    Args:
        program: Its file, by `find_program`.
        command: Its name and arguments.
        launch: The plan of its start.
        kept: Called with the path of a region that is kept, just before.

    Raises:
        LaunchError: There is no place for its region.
        OSError: It cannot be started.
    """
    with prepared(launch) as (directory, variables):
        if launch.keep:
            kept(launch.region(directory))
        # The first process of a container takes all others with it when it ends.
        if directory is not None and not launch.keep and os.getpid() != 1:
            _leave_cleaner(directory, launch.before)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The interpreter ignores them, and what is ignored stays so in the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, list(command), variables)  # noqa: S606


def _leave_cleaner(directory: str, environment: Mapping[str, str]) -> None:
    """Start the process that removes the directory when this one, by whatever name, has ended."""
    pid = os.getpid()
    script = str(Path(cleaner.__file__).resolve())
    words = [directory, str(pid), str(cleaner.start_time(pid))]
    # It forks at once: a program that waits for all its children must not wait for it.
    command = [sys.executable, "-I", "-S", script, *words]
    null = subprocess.DEVNULL
    # Where it cannot be started, the user's next run removes the directory.
    with contextlib.suppress(OSError):
        subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
            check=False,
        )


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """The file of a program, as a shell with this environment finds it.

    Raises:
        FileNotFoundError, PermissionError: There is none, or it is not executable.
        LaunchError: It is built for musl, with which the NVIDIA driver does not work.
    """
    path = environment.get("PATH", os.defpath)
    found = shutil.which(name, path=path)
    if found is None:
        there = shutil.which(name, mode=os.F_OK, path=path)
        code = errno.ENOENT if there is None else errno.EACCES
        raise OSError(code, os.strerror(code), name)
    # An executable file need not be readable.
    with contextlib.suppress(OSError), Path(found).open("rb") as file:
        if _MUSL_LOADER in file.read(_START_BYTES):
            raise LaunchError(f"{found} is built for musl, and the driver works with glibc only")
    return found
