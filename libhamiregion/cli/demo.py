"""`hamiregion demo`: real processes in a region of their own, and limits edited under them."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from libhamiregion import LimitBelowUsage, create_region, format_size, open_region
from libhamiregion.text import printable

from . import options
from .demo_crew import GIB, MIB, Crew, Role, Worker
from .demo_scene import Scene, open_scene
from .failures import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from libhamiregion import Region

LIMIT = 8 * GIB
OTHER_LIMIT = 4 * GIB
# Below what the two workers of device 0 hold at their least, so that every charge is refused.
LOW_LIMIT = 2 * GIB

ROLES = (
    Role("trainer", 0, 1536 * MIB, 3584 * MIB, 256 * MIB, 27, 0.11),
    Role("notebook", 0, 1280 * MIB, 3072 * MIB, 128 * MIB, 20, 0.07),
    Role("server", 1, 1024 * MIB, 2048 * MIB, 64 * MIB, 19, 0.06),
    Role("batch job", 1, 512 * MIB, 1536 * MIB, 128 * MIB, 8, 0.13),
)
UUIDS = (
    "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30",
    "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d",
)

# What the story may take beyond --seconds on a machine that is slow to start processes.
PATIENCE_S = 6.0


@click.command()
@click.option(
    "--seconds",
    type=options.Seconds(min=4, max=600),
    default=12,
    show_default=True,
    help="About how long.",
)
@options.json_option
@options.no_color_option
def demo(seconds: float, as_json: bool) -> None:
    """Show what a region is: four processes, two GPUs, and limits edited under them.

    Needs no GPU and no HAMi: the region is a real one, in a temporary directory, and the
    processes account for their memory in it by the same protocol as libvgpu.  Ends by itself and
    leaves nothing behind.

    JSON: objects with elapsed_s and either say and heading, or snapshot (as `hamiregion show
    --json`) and workers (name, pid, device, alive, held_bytes, granted, refused).
    """
    with (
        _terminated_by_exception(),
        tempfile.TemporaryDirectory(prefix="hamiregion-demo-") as directory,
    ):
        path = f"{directory}/demo.cache"
        create_region(path, memory_limits=(LIMIT, OTHER_LIMIT), sm_limits=(50, 30), uuids=UUIDS)
        with (
            open_region(path, writable=True) as region,
            open_scene(as_json=as_json) as scene,
            Crew(path, ROLES, Path(directory) / "workers.log") as crew,
        ):
            Story(region, scene, crew, seconds).tell()
    scene.say("That was a real region. Look into yours: hamiregion show FILE", heading=True)


class Story:
    """The parts of the demo, in order; `pace` is the length of one part."""

    def __init__(self, region: Region, scene: Scene, crew: Crew, seconds: float) -> None:
        self.region = region
        self.scene = scene
        self.crew = crew
        self.pace_s = seconds / 7
        self.deadline = time.monotonic() + seconds + PATIENCE_S

    def tell(self) -> None:
        """Tell all of it."""
        self._allocate()
        self._lower_without_force()
        self._lower()
        self._raise()
        self._kill_and_reap()

    def _allocate(self) -> None:
        self.scene.say(
            "Two GPUs, 8 GiB and 4 GiB of them for this container: that is a region.",
            heading=True,
        )
        self.scene.say(f"It is a file: {printable(self.region.path)}")
        self.scene.say("Four processes attach to it and allocate memory, as CUDA programs do.")
        self._go_on(1.6, until=lambda: all(worker.granted > 6 for worker in self.crew.workers))

    def _lower_without_force(self) -> None:
        self.scene.say(
            "The first GPU shall have 2 GiB: hamiregion limits set FILE --device 0 --memory 2GiB",
            heading=True,
        )
        try:
            self.region.set_memory_limit(LOW_LIMIT, device=0)
        except LimitBelowUsage as error:
            self.scene.say(
                f"Refused: {format_size(error.used_bytes or 0)} are in use,"
                f" more than {format_size(error.requested_bytes or 0)}. Nothing was changed."
            )
        else:
            raise Failure("the limit went below what is used, which it should not without force")
        self._go_on(0.9)

    def _lower(self) -> None:
        before = self._refused()
        (change,) = self.region.set_memory_limit(LOW_LIMIT, device=0, force=True)
        self.scene.say(
            "The same with --force: the processes run on, and get no more.",
            heading=True,
        )
        self.scene.say(
            f"device {change.device}: {_size(change.before)} -> {_size(change.after)},"
            " at once, without a restart"
        )
        self._go_on(1.2, until=lambda: self._refused() >= before + 4)
        self.scene.say(f"{self._refused() - before} allocations refused since.")

    def _raise(self) -> None:
        (change,) = self.region.set_memory_limit(LIMIT, device=0)
        granted = self._granted(0)
        self.scene.say(
            f"Back to {_size(change.after)}: the same processes get memory again.", heading=True
        )
        self._go_on(1.2, until=lambda: self._granted(0) >= granted + 4)
        self.scene.say(f"{self._granted(0) - granted} allocations granted on device 0 since.")

    def _kill_and_reap(self) -> None:
        victim = self.crew.workers[0]
        self.crew.kill(victim)
        self.scene.say(f"kill -9 {victim.pid}, the {victim.role.name}.", heading=True)
        held = self._counted(victim)
        self.scene.say(
            f"It is dead, and its {format_size(held)} still count: nobody told the file."
        )
        self._go_on(1.1)
        self.scene.say("hamiregion reap FILE proves it dead and frees what it held.", heading=True)
        reaped = {slot.pid: slot.memory_bytes for slot in self.region.reap()}
        if victim.pid not in reaped:
            raise Failure(f"process {victim.pid} is dead and was not removed")
        self.scene.say(f"{format_size(reaped[victim.pid])} are there for the others again.")
        self._go_on(1.0)

    def _go_on(self, parts: float, until: Callable[[], bool] = lambda: True) -> None:
        """Show what happens for `parts` of the pace, and on until `until` holds."""
        end = time.monotonic() + parts * self.pace_s
        while (now := time.monotonic()) < end or not until():
            if now > self.deadline:
                raise Failure("the processes of the demo are too slow; is the machine busy?")
            self.scene.show(self.region.snapshot(), self.crew.workers)
            # Never past the end of the part: a pipe's ticks are long.
            left = end - now if now < end else self.scene.interval_s
            self.crew.listen(min(self.scene.interval_s, left))
        self.scene.show(self.region.snapshot(), self.crew.workers)

    def _refused(self) -> int:
        return sum(worker.refused for worker in self.crew.workers)

    def _granted(self, device: int) -> int:
        return sum(worker.granted for worker in self.crew.workers if worker.role.device == device)

    def _counted(self, worker: Worker) -> int:
        return sum(
            usage.memory_used_bytes
            for process in self.region.snapshot().processes
            if process.pid == worker.pid
            for usage in process.devices
        )


def _size(nbytes: int | None) -> str:
    return "unlimited" if nbytes is None else format_size(nbytes)


@contextlib.contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does: with everything cleaned up."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, leave)
        for number in (signal.SIGTERM, signal.SIGHUP)
        # What nohup ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
