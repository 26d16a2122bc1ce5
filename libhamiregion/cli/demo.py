"""`hamiregion demo`: real processes in a region of their own, and limits edited under them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import attrs
import click

from libhamiregion import LimitBelowUsage, create_region, format_size, open_region

from . import options
from .failures import Failure
from .output import Page, on_terminal, write, write_json
from .show import device_table, process_table
from .tables import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.live import Live

    from libhamiregion import Region

GIB = 2**30
MIB = 2**20
# Below what the two processes of device 0 hold at their least, so that every step is refused.
_LOW_LIMIT = 2 * GIB
# What the story may take beyond --seconds on a machine that is slow to start processes.
_SLOWNESS_S = 6.0

# Device, base, ceiling and step in bytes, SM percent and pause in seconds of each process.
_WORKERS = (
    (0, 1536 * MIB, 3584 * MIB, 256 * MIB, 27, 0.11),
    (0, 1280 * MIB, 3072 * MIB, 128 * MIB, 20, 0.07),
    (1, 1024 * MIB, 2048 * MIB, 64 * MIB, 19, 0.06),
    (1, 512 * MIB, 1536 * MIB, 128 * MIB, 8, 0.13),
)
_UUIDS = ("GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30", "GPU-4b7d8e12-6a9f-4f01-b3c5-7e8d9a0b1c2d")


@click.command()
@click.option(
    "--seconds",
    type=options.Seconds(min=4, max=600),
    default=12,
    show_default=True,
    help="About how long.",
)
@options.json_option
def demo(seconds: float, as_json: bool) -> None:
    """Show what a region is: four processes, two GPUs, and limits edited under them.

    Needs no GPU and no HAMi: the region is a real one, in a temporary directory, and the
    processes account for their memory in it by the same protocol as libvgpu.  Ends by itself and
    leaves nothing behind.

    JSON: objects with either say, or snapshot (as `hamiregion show --json`), granted and refused
    (steps of all processes since the start).
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # What nohup ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    with (
        tempfile.TemporaryDirectory(prefix="hamiregion-demo-") as directory,
        crew(f"{directory}/demo.cache") as workers,
        open_region(workers.path, writable=True) as region,
        _stage(as_json) as stage,
    ):
        _tell(region, workers, stage, seconds)


def _leave(number: int, _: object) -> None:
    """End as by Ctrl-C: with everything cleaned up."""
    raise SystemExit(128 + number)


def _tell(region: Region, workers: Crew, stage: Stage, seconds: float) -> None:
    """Tell the story."""
    deadline = time.monotonic() + seconds + _SLOWNESS_S

    def go_on(parts: float, until: Callable[[], bool] = lambda: True) -> None:
        """Show what happens for so many sevenths of the time, and on until `until` holds."""
        end = time.monotonic() + parts * seconds / 7
        while (now := time.monotonic()) < end or not until():
            if now > deadline:
                raise Failure("the processes of the demo are too slow; is the machine busy?")
            workers.check()
            if now < end:
                stage.show(region, workers)
            time.sleep(min(stage.interval_s, max(0.05, end - now)))
        workers.check()
        stage.show(region, workers)

    stage.say("\nTwo GPUs, 8 GiB and 4 GiB of them for this container: that is a region.")
    stage.say(f"  It is a file: {region.path}")
    stage.say("  Four processes attach to it and allocate memory, as CUDA programs do.")
    go_on(1.6, until=lambda: workers.granted > 24)

    stage.say(
        "\nThe first GPU shall have 2 GiB: hamiregion limits set FILE --device 0 --memory 2GiB"
    )
    try:
        region.set_memory_limit(_LOW_LIMIT, device=0)
    except LimitBelowUsage as error:
        stage.say(
            f"  Refused: {format_size(error.used_bytes or 0)} are in use. Nothing was changed."
        )
    else:
        raise Failure("the limit went below what is used, which it should not without force")
    go_on(0.9)

    stage.say("\nThe same with --force: the processes run on, and get no more.")
    before = workers.refused
    region.set_memory_limit(_LOW_LIMIT, device=0, force=True)
    stage.say("  device 0: 8 GiB -> 2 GiB, at once, without a restart")
    go_on(1.2, until=lambda: workers.refused >= before + 4)
    stage.say(f"  {workers.refused - before} allocations refused since.")

    stage.say("\nBack to 8 GiB: the same processes get memory again.")
    region.set_memory_limit(8 * GIB, device=0)
    before = workers.granted
    go_on(1.2, until=lambda: workers.granted >= before + 12)
    stage.say(f"  {workers.granted - before} allocations granted since.")

    victim = workers.kill()
    stage.say(f"\nkill -9 {victim}: it is dead, and its memory still counts; nobody told the file.")
    go_on(1.1)
    reaped = {slot.pid: slot.memory_bytes for slot in region.reap()}
    if victim not in reaped:
        raise Failure(f"process {victim} is dead and was not removed")
    stage.say("\nhamiregion reap FILE proves it dead and frees what it held.")
    stage.say(f"  {format_size(reaped[victim])} are there for the others again.")
    go_on(1.0)
    stage.say("\nThat was a real region. Look into yours: hamiregion show FILE")


# ---- the processes -------------------------------------------------------------------------------


@attrs.define
class Crew:
    """The processes of a demo, and how many of their steps were granted and refused."""

    path: str
    processes: list[subprocess.Popen[bytes]]
    steps: int
    granted: int = 0
    refused: int = 0

    def check(self) -> None:
        """Count the steps since the last call; raise if a process ended that should not have."""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self.steps, 65_536)
            self.granted += said.count(b"+")
            self.refused += said.count(b"-")
        for process in self.processes:
            if process.poll() is not None:
                raise Failure(f"process {process.pid} of the demo ended with {process.returncode}")

    def kill(self) -> int:
        """`kill -9` the first process, which cannot clean up, and that is the point; its pid."""
        victim = self.processes.pop(0)
        victim.kill()
        victim.wait()
        return victim.pid


@contextlib.contextmanager
def crew(path: str) -> Iterator[Crew]:
    """Make a region and processes that use it; they end with the `with` block, however it ends."""
    create_region(path, memory_limits=(8 * GIB, 4 * GIB), sm_limits=(50, 30), uuids=_UUIDS)
    # The processes end when nobody has the other end of their input open any more.
    their_input, alive = os.pipe()
    steps, their_output = os.pipe()
    os.set_blocking(steps, False)
    command = [sys.executable, "-m", "libhamiregion.cli.demo_worker", path]
    made = Crew(path, [], steps)
    try:
        for numbers in _WORKERS:
            made.processes.append(
                subprocess.Popen(
                    [*command, *map(str, numbers)],
                    stdin=their_input,
                    stdout=their_output,
                    # Ctrl-C is for the demo alone, which then ends its processes in order.
                    start_new_session=True,
                )
            )
        os.close(their_input)
        os.close(their_output)
        yield made
    finally:
        os.close(alive)
        for process in made.processes:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(steps)


# ---- how it is shown -----------------------------------------------------------------------------


class Stage:
    """Tells the story: live on a terminal, line by line in a pipe, or as JSON."""

    def __init__(self, as_json: bool, screen: Console | None = None, live: Live | None = None):
        self._as_json = as_json
        self._screen = screen
        self._live = live
        self.interval_s = 0.1 if live is not None else 1.0

    def say(self, sentence: str) -> None:
        """Tell one thing; on a terminal the story scrolls above the region."""
        if self._as_json:
            write_json("demo-sentence/1", {"say": sentence.strip()})
        elif self._screen is not None:
            self._screen.print(sentence, style="" if sentence.startswith(" ") else "bold")
        else:
            write(f"{sentence}\n")

    def show(self, region: Region, workers: Crew) -> None:
        """Show the region as it is now."""
        snapshot = region.snapshot()
        granted, refused = workers.granted, workers.refused
        if self._as_json:
            counts = {"granted": granted, "refused": refused}
            write_json("demo-region/1", {"snapshot": snapshot, **counts})
        elif self._screen is not None and self._live is not None:
            from .terminal import fit_page

            above = Lines(["", f"allocations: {granted} granted, {refused} refused"])
            page = Page("", None, [above, device_table(snapshot), process_table(snapshot)])
            self._live.update(fit_page(page, self._screen), refresh=True)
        else:
            devices = "  ".join(
                f"GPU {device.index}: {format_size(device.memory_used_bytes)}"
                f" of {format_size(device.memory_limit_bytes or 0)}"
                for device in snapshot.devices
            )
            write(f"    {devices}  refused: {refused}\n")


@contextlib.contextmanager
def _stage(as_json: bool) -> Iterator[Stage]:
    if as_json or not on_terminal():
        yield Stage(as_json)
        return
    from .terminal import console, live

    screen = console()
    with live(screen) as picture:
        yield Stage(as_json, screen, picture)
