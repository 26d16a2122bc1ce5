"""Starting a program under a budget: as a child process, or in the place of this one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import cleaner
from .environment import Inject, Launch, OnError, environment
from .errors import LaunchError
from .run_directory import make_run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from libhamiregion.errors import PathLike

    from .limits import Limits

# The kernel follows no more scripts that name each other than this.
_MOST_SCRIPTS = 5
_LINE_BYTES = 256
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_PT_INTERP = 3
_STDERR = 2
_FOR_THE_PROGRAM = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    memory_limit: Limits = None,
    sm_limit: Limits = None,
    burst: bool = False,
    gpus: Sequence[int | str] | None = None,
    priority: int = 1,
    region: PathLike | None = None,
    inject: Inject = "standin",
    on_error: OnError | None = None,
    driver: PathLike | None = None,
    keep: bool = False,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program within a GPU budget, wait for it, and remove its region.

    `command` is the program with its arguments.  The budget, from `memory_limit` to `env`, is that
    of `environment`.  `options` are further arguments of `subprocess.run`, such as ``check``,
    ``cwd``, ``timeout`` or ``capture_output``.

    Returns:
        The result of `subprocess.run`: ``returncode`` is negative if a signal ended the program.

    Raises:
        LaunchError: As `environment`; or the program is built for musl, with which the NVIDIA
            driver does not work.
        ValueError, TypeError, RegionError: As `environment`.
        OSError: The program cannot be started.
        subprocess.CalledProcessError, subprocess.TimeoutExpired: As `subprocess.run`.

    Shell: ``hamiregion run --memory 4GiB -- python train.py``.
    """
    if isinstance(command, str | bytes | os.PathLike):
        raise TypeError(
            'a program is a list of its words, such as ["python", "train.py"],'
            f" not {type(command).__name__}"
        )
    with environment(
        memory_limit=memory_limit,
        sm_limit=sm_limit,
        burst=burst,
        gpus=gpus,
        priority=priority,
        region=region,
        inject=inject,
        on_error=on_error,
        driver=driver,
        keep=keep,
        env=env,
    ) as variables:
        find_program(os.fspath(command[0]), variables)
        return subprocess.run(command, env=variables, **options)  # noqa: PLW1510 (the caller's)


def replace_process(
    program: str,
    command: Sequence[str],
    launch: Launch,
    *,
    keep: bool = False,
    kept: Callable[[str], None] | None = None,
) -> NoReturn:
    """Become the program.

    Pid, parent, terminal, signals and exit status are then the program's.  A small process outside
    its session cleans up when the program has ended.

    Args:
        program: Its file, by `find_program`.
        command: Its name and arguments.
        launch: The plan of its start.
        keep: Keep the region, if the run has one of its own.
        kept: Called with the path of a region that is kept, just before.

    Raises:
        LaunchError: There is no place for its region.
        OSError: It cannot be started.
    """
    before = launch.before
    keep = keep and launch.joined_region is None
    directory = make_run_directory(before, keep=keep) if launch.needs_directory else None
    try:
        if directory is not None:
            launch.fill(directory)
        environment = {**before, **launch.variables(directory)}
        if keep and kept is not None:
            kept(launch.region(directory))
        # The first process of a container takes all others with it when it ends.
        if directory is not None and not keep and os.getpid() != 1:
            _leave_cleaner(directory, before)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The interpreter ignores them, and what is ignored stays so in the program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, list(command), environment)  # noqa: S606
    except BaseException:
        if directory is not None:
            cleaner.remove(directory)
        raise


def _leave_cleaner(directory: str, environment: Mapping[str, str]) -> None:
    """Start the process that removes the directory when this one, by whatever name, has ended."""
    pid = os.getpid()
    script = str(Path(cleaner.__file__).resolve())
    argv = [sys.executable, "-I", "-S", script, directory, str(pid), str(cleaner.start_time(pid))]
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            # Service managers signal all that they have started; this one ends after the program.
            for number in _FOR_THE_PROGRAM:
                signal.signal(number, signal.SIG_IGN)
            # No child of the program's: one that waits for all its children must not wait for it.
            if os.fork() == 0:
                null = os.open(os.devnull, os.O_RDWR)
                for standard in range(3):
                    os.dup2(null, standard)
                # What the program was handed: who waits for it to close one must not wait for us.
                for handed in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
                    if handed > _STDERR:
                        with contextlib.suppress(OSError):
                            os.close(handed)
                os.chdir("/")
                os.execve(argv[0], argv, dict(environment))  # noqa: S606
        finally:
            os._exit(0)
    # Where the caller had SIGCHLD ignored, its end leaves nothing to wait for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def find_program(name: str, environment: Mapping[str, str]) -> str:
    """The file of a program, as a shell with this environment finds it.

    Raises:
        FileNotFoundError, PermissionError: There is none, or it is not executable.
        LaunchError: It is built for musl.
    """
    path = environment.get("PATH", os.defpath)
    found = shutil.which(name, path=path)
    if found is None:
        there = shutil.which(name, mode=os.F_OK, path=path)
        code = errno.ENOENT if there is None else errno.EACCES
        raise OSError(code, os.strerror(code), name)
    if "musl" in _loader(found, path):
        raise LaunchError(f"{found} is built for musl, and the NVIDIA driver works with glibc only")
    return found


def _loader(program: str, path: str) -> str:
    """The file name of the dynamic loader of a program, or of a script's interpreter."""
    for _ in range(_MOST_SCRIPTS):
        try:
            with Path(program).open("rb") as file:
                start = file.read(_LINE_BYTES)
                if not start.startswith(b"#!"):
                    return _elf_loader(file, start)
        except OSError:
            # Executable and not readable: the kernel may know better.
            return ""
        words = os.fsdecode(start[2:].split(b"\n")[0]).split()
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        interpreter = shutil.which(words[0], path=path) if words else None
        if interpreter is None:
            return ""
        program = interpreter
    return ""


def _elf_loader(file: Any, start: bytes) -> str:
    """PT_INTERP of a 64-bit little-endian ELF file; "" where there is none."""
    if not start.startswith(_ELF64_LITTLE) or len(start) < 64:
        return ""
    table, size, count = *struct.unpack_from("<Q", start, 32), *struct.unpack_from("<HH", start, 54)
    for index in range(count):
        file.seek(table + index * size)
        header = file.read(56)
        if len(header) < 56:
            break
        kind, offset, length = struct.unpack_from("<I4xQ16xQ", header)
        if kind == _PT_INTERP:
            file.seek(offset)
            return os.fsdecode(file.read(min(length, _LINE_BYTES)).rstrip(b"\0"))
    return ""
