"""Run a command that stands still again and again, as programs do on a machine that others use up.

    tools/harmless .venv/bin/python tools/hiccups.py --seed 7 make test
    python tools/hiccups.py --seed 7 make test

The command has a cgroup of its own, below this program's own one. It is frozen for a moment up to
about once a second, all processes at once, when and for how long the seed says. However this
program ends, also by SIGKILL, a process beside it thaws that cgroup, ends what is left in it, and
removes it. Needs root, and a cgroup of version 2, or the freezer of version 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from types import FrameType

# Between two times that it stands still, and how long it does then.
RUNS_S: Final = (0.2, 0.8)
STANDS_S: Final = (0.05, 1.2)
SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Kind(NamedTuple):
    """How a version of cgroups freezes."""

    file_system: str
    # In the mount's options, and in /proc/self/cgroup.
    controller: str
    file: str
    frozen: str
    thawed: str


KINDS: Final = (
    Kind("cgroup2", "", "cgroup.freeze", "1", "0"),
    Kind("cgroup", "freezer", "freezer.state", "FROZEN", "THAWED"),
)


def own_cgroup(kind: Kind) -> Path | None:
    """This program's cgroup of that kind; None where it has none."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        file_system, _, options = source.split(" ", 2)
        if file_system == kind.file_system and kind.controller in (*options.split(","), ""):
            found = Path(mount.split()[4] + own.get(kind.controller, "/absent"))
            if (found / "cgroup.procs").exists():
                return found
    return None


class Freezer:
    """A new cgroup that can be frozen.

    Raises:
        OSError: No cgroup of that kind can be made here, or it cannot be frozen.
    """

    def __init__(self, kind: Kind) -> None:
        own = own_cgroup(kind)
        if own is None:
            raise FileNotFoundError(f"no cgroup of the kind that has {kind.file}")
        self._kind = kind
        # Not by its pid, which other pid namespaces have too.
        self.cgroup = Path(tempfile.mkdtemp(prefix="hiccups-", dir=own))
        try:
            self.thaw()
        except OSError:
            self.cgroup.rmdir()
            raise

    def freeze(self) -> None:
        """Let all processes in it stand still; they do within a moment."""
        self._write(self._kind.frozen)

    def thaw(self) -> None:
        """Let them go on."""
        self._write(self._kind.thawed)

    def _write(self, state: str) -> None:
        # Without O_CREAT: what the kernel has not made is no switch.
        with (self.cgroup / self._kind.file).open("r+") as file:
            file.write(state)

    def remove(self) -> None:
        """Thaw it, end what is in it and in those below, and take it away."""
        while self.cgroup.exists():
            self.thaw()
            for directory, _, _ in os.walk(self.cgroup, topdown=False):
                # What has ended meanwhile, or has not yet: the next time.
                with contextlib.suppress(OSError):
                    for pid in map(int, (Path(directory) / "cgroup.procs").read_text().split()):
                        # 0 is what another pid namespace has, and would be this process's group.
                        if pid != 0:
                            os.kill(pid, signal.SIGKILL)
                    Path(directory).rmdir()
            time.sleep(0.01)


def a_freezer() -> Freezer:
    """One of the first kind there is.

    Raises:
        OSError: There is none.
    """
    refused = []
    for kind in KINDS:
        try:
            return Freezer(kind)
        except OSError as error:
            refused.append(str(error))
    raise OSError("; ".join(refused))


def remove_at_the_end(freezer: Freezer) -> tuple[int, int]:
    """Start the process that removes the cgroup once nobody has the descriptor open any more."""
    reader, writer = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(writer)
        # Ctrl-C, and a terminal that goes away, are for the others.
        os.setsid()
        os.read(reader, 1)
        freezer.remove()
        os._exit(0)
    os.close(reader)
    return guard, writer


def stop(number: int, _: FrameType | None) -> NoReturn:
    """End the program by its exception."""
    raise SystemExit(128 + number)


def run(command: list[str], freezer: Freezer, seed: int) -> int:
    """Run the command in the cgroup, and freeze it now and then; returns its exit status."""
    moments = random.Random(seed)
    times, stood_s, began = 0, 0.0, time.monotonic()
    # A session of its own: a signal comes to it from here, once.
    enter = ("sh", "-c", 'echo 0 > "$0" && exec "$@"', str(freezer.cgroup / "cgroup.procs"))
    process = subprocess.Popen([*enter, *command], start_new_session=True)
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(moments.uniform(*RUNS_S))
                return status if status >= 0 else 128 - status
            freezer.freeze()
            stands_s = moments.uniform(*STANDS_S)
            time.sleep(stands_s)
            freezer.thaw()
            times, stood_s = times + 1, stood_s + stands_s
    except SystemExit as asked:
        freezer.thaw()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, int(str(asked)) - 128)
        process.wait()
        raise
    finally:
        took_s = time.monotonic() - began
        say(f"it stood still {times} times, {stood_s:.0f} s of {took_s:.0f} s")


def say(words: str) -> None:
    """Say it beside what the command says."""
    print(f"hiccups: {words}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the command, and return its exit status; 128 and more after a signal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default: 1)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    asked = parser.parse_args()
    if not asked.command:
        parser.error("which command?")
    try:
        freezer = a_freezer()
    except OSError as error:
        say(f"no cgroup can be frozen here, which needs root: {error}")
        return 2
    guard, writer = remove_at_the_end(freezer)
    for each in SIGNALS:
        signal.signal(each, stop)
    say(f"seed {asked.seed}, {freezer.cgroup}")
    try:
        return run(asked.command, freezer, asked.seed)
    finally:
        os.close(writer)
        os.waitpid(guard, 0)


if __name__ == "__main__":
    sys.exit(main())
