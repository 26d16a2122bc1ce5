"""Operations, each again and again, with each of its calls of libc failing in its turn.

Run with the library of tests/c/failing_calls.c preloaded: failing_calls.py SHARE OPERATION... It
prints JSON: of each operation the number of calls, and what went wrong, a line each.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import libhamiregion as hami
from libhamiregion import cli  # noqa: F401 (what it imports is there before a call fails)
from libhamiregion.cli import doctor
from libhamiregion.cli.verbs import hamiregion
from libhamiregion.doctor import examine
from libhamiregion.node import Node, Observer, ProcessTable
from libhamiregion.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Operation = Callable[["Scene"], Iterator[None]]

ERRORS = (errno.EIO, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.EINTR)
POD = "0b5cf3a4-3a3c-4b5f-9d6e-2f7d0c1e8a11"


class Scene:
    """A node of one container, whose region has a limit and a dead process."""

    def __init__(self, root: Path) -> None:
        self.root = root / "containers"
        self.directory = self.root / f"{POD}_train"
        self.directory.mkdir(parents=True)
        self.path = str(self.directory / "usage.cache")
        self.new = str(root / "new.cache")
        hami.create_region(self.path, memory_limits=["8GiB", "4GiB"], sm_limits=[50, None])
        self.dead_pid = os.fork()
        if self.dead_pid == 0:
            hami.open_region(self.path, writable=True).attach().charge(0, GIB)
            os._exit(0)
        os.waitpid(self.dead_pid, 0)
        self._sound = Path(self.path).read_bytes()

    def reset(self) -> None:
        """Make it what it was."""
        Path(self.path).write_bytes(self._sound)
        Path(self.new).unlink(missing_ok=True)

    def problems(self) -> Iterator[str]:
        """What is wrong with what an operation has left."""
        with hami.open_region(self.path) as region:
            limits = [region.memory_limit(device) for device in (0, 1)]
            if limits not in ([8 * GIB, 4 * GIB], [6 * GIB, 3 * GIB]):
                yield f"half of an edit: {limits}"
            if region.lock_state().held:
                yield "the lock is held"
            if region.memory_used(0) not in {0, GIB}:
                yield f"{region.memory_used(0)} bytes used"
        left = sorted(
            each.name for each in [*self.root.parent.iterdir(), *self.directory.iterdir()]
        )
        if left not in (["containers", "usage.cache"], ["containers", "new.cache", "usage.cache"]):
            yield f"files are left: {left}"
        if Path(self.new).exists():
            with hami.open_region(self.new) as region:
                if region.memory_limit(0) != GIB:
                    yield "a region is half made"


def opening(scene: Scene) -> Iterator[None]:
    yield
    with hami.open_region(scene.path, writable=True) as region:
        region.snapshot()


def creating(scene: Scene) -> Iterator[None]:
    yield
    hami.create_region(scene.new, memory_limits=["1GiB"])


def identifying(scene: Scene) -> Iterator[None]:
    yield
    hami.identify(scene.path)


def of_region(act: Callable[[hami.Region], object]) -> Operation:
    """An operation of a region that is open already."""

    def run(scene: Scene) -> Iterator[None]:
        with hami.open_region(scene.path, writable=True) as region:
            yield
            act(region)

    return run


def edit(region: hami.Region) -> None:
    limits = ("6GiB", "3GiB")
    region.edit_limits(
        [hami.LimitEdit(memory_limit=each, device=n) for n, each in enumerate(limits)]
    )


def lock(region: hami.Region) -> None:
    with region.lock():
        pass


def attach(region: hami.Region) -> None:
    with region.attach() as slot:
        slot.charge(1, 1)
        slot.release(1, 1)


def reading_a_set(scene: Scene) -> Iterator[None]:
    yield
    with hami.RegionSet([scene.path]) as regions:
        regions.read()


def looking_at_a_node(scene: Scene) -> Iterator[None]:
    yield
    with Node(scene.root) as node:
        node.refresh(processes=False)
        node.snapshot()


def looking_at_processes(_: Scene) -> Iterator[None]:
    table = ProcessTable(f"/proc/{os.getpid()}/task")
    yield
    table.refresh()


def diagnosing(scene: Scene) -> Iterator[None]:
    with Node(scene.root, proc=f"/proc/{os.getpid()}/task") as node:
        yield
        node.refresh()
        examine(Observer.for_command(node), settle_s=0.01)


class VerbFailed(Exception):
    """A verb ended with an exit code, or with words, that it may not end with."""


def verb(*words: str) -> Operation:
    def run(scene: Scene) -> Iterator[None]:
        known = {
            "FILE": scene.path,
            "NEW": scene.new,
            "ROOT": str(scene.root),
            "PROC": "/proc/self/task",
            "PID": str(scene.dead_pid),
        }
        yield
        out, err = io.StringIO(), io.StringIO()
        sys.argv = ["hamiregion", *(known.get(word, word) for word in words)]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                hamiregion.run()
        except SystemExit as ended:
            code = ended.code or 0
        if code not in {0, 1, 3} or "Traceback" in err.getvalue():
            raise VerbFailed(f"exit code {code}: {err.getvalue()}")
        if code == 1 and not err.getvalue():
            raise VerbFailed("exit code 1 without a word")

    return run


OPERATIONS: dict[str, Operation] = {
    "open_region": opening,
    "create_region": creating,
    "identify": identifying,
    "edit_limits": of_region(edit),
    "lock": of_region(lock),
    "attach": of_region(attach),
    "reap": of_region(hami.Region.reap),
    "repair_slots": of_region(hami.Region.repair_slots),
    "recover_lock": of_region(lambda region: region.recover_lock(watch_s=0)),
    "RegionSet.read": reading_a_set,
    "Node.refresh": looking_at_a_node,
    "ProcessTable.refresh": looking_at_processes,
    "diagnose": diagnosing,
    "hamiregion show": verb("show", "FILE"),
    "hamiregion create": verb("create", "NEW", "--memory", "1GiB"),
    "hamiregion limits get": verb("limits", "get", "FILE"),
    "hamiregion limits set": verb("limits", "set", "FILE", "--device", "0", "--sm", "30"),
    "hamiregion lock status": verb("lock", "status", "FILE"),
    "hamiregion reap": verb("reap", "FILE"),
    "hamiregion suspend": verb("suspend", "FILE", "PID", "--dry-run"),
    "hamiregion containers": verb("containers", "--root", "ROOT", "--proc", "PROC"),
    "hamiregion ps": verb("ps", "--root", "ROOT", "--proc", "PROC", "--json"),
    "hamiregion doctor": verb("doctor", "--root", "ROOT", "--proc", "PROC"),
}
ALLOWED = (hami.RegionError, OSError, MemoryError)


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def preloaded() -> ctypes.CDLL:
    """The library of tests/c/failing_calls.c."""
    shim = ctypes.CDLL(None)
    shim.failing_calls_arm.argtypes = [ctypes.c_long, ctypes.c_int]
    shim.failing_calls_disarm.restype = ctypes.c_char_p
    return shim


def attempt(
    shim: ctypes.CDLL, operation: Operation, scene: Scene, nth: int, error: int
) -> tuple[str | None, str]:
    """The call that failed, None where there were not so many; and what is wrong then."""
    steps = operation(scene)
    next(steps)
    shim.failing_calls_arm(nth, error)
    try:
        next(steps, None)
    except ALLOWED:
        wrong = ""
    except Exception:  # noqa: BLE001
        wrong = traceback.format_exc()
    else:
        wrong = ""
    finally:
        failed = shim.failing_calls_disarm()
        steps.close()
    return (failed.decode() if failed else None), wrong


def problems(shim: ctypes.CDLL, operation: Operation, share: float) -> tuple[int, list[str]]:
    """How many calls an operation makes, and what was wrong after one of them had failed."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        scene = Scene(Path(place))
        # What is imported late, and kept, is there before anything fails.
        for _ in range(2):
            failed, wrong = attempt(shim, operation, scene, 0, 0)
            assert (failed, wrong) == (None, ""), wrong
            scene.reset()
        # The collector looks at what comes from here on, not at all modules again and again.
        gc.collect()
        gc.freeze()
        before = descriptors()
        nth = 0
        while nth < 100_000:
            # Of hundreds, most are the same calls for one process after another.
            nth += 1 if share >= 1 or nth < 40 else 29
            errors = ERRORS if share >= 1 else [ERRORS[nth % len(ERRORS)]]
            for error in errors:
                failed, wrong = attempt(shim, operation, scene, nth, error)
                if failed is None:
                    return nth - 1, found
                wrongs = [wrong] if wrong else list(scene.problems())
                if (now := descriptors()) != before:
                    wrongs.append(f"{now - before} descriptors are left open")
                    before = now
                found += [f"{errno.errorcode[error]} of {failed}, call {nth}: {w}" for w in wrongs]
                scene.reset()
    raise AssertionError("it makes calls without end")


def main(share: float, *names: str) -> None:
    # Findings here are there from the start.
    doctor.SETTLE_S = 0.01
    shim = preloaded()
    answer = {name: problems(shim, OPERATIONS[name], share) for name in names}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
