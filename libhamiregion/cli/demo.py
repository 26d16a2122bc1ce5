"""`hamiregion demo`: real processes in a region of their own, and limits edited under them."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

import click

from libhamiregion import LimitBelowUsage, format_size, open_region
from libhamiregion.testing import FakeNode

from . import options
from .failures import Failure
from .help import Verb
from .output import Page, on_terminal, write, write_json
from .show import device_table, process_table
from .tables import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.live import Live

    from libhamiregion import Region
    from libhamiregion.testing import FakeContainer

GIB = 2**30
# Below what the two processes of device 0 hold at their least, so that every step is refused.
_LOW_LIMIT = 2 * GIB
# What the story may take beyond --seconds on a machine that is busy.
_SLOWNESS_S = 6.0
_STEP_S = 0.1


@click.command(
    cls=Verb, examples=["hamiregion demo", "hamiregion demo --node --listen 127.0.0.1:9400"]
)
@click.option(
    "--seconds",
    type=options.Seconds(min=4, max=86_400),
    metavar="SECONDS",
    help="About how long.  [default: 12; with --node until Ctrl-C]",
)
@click.option(
    "--node", is_flag=True, help="Make a whole node of containers, with the exporter on it."
)
@click.option(
    "--listen",
    multiple=True,
    metavar="ADDRESS",
    help="With --node: HOST:PORT or :PORT; repeatable.  [default: 127.0.0.1:9394]",
)
@options.json_option
def demo(seconds: float | None, node: bool, listen: tuple[str, ...], as_json: bool) -> None:
    """Show what a region is: processes, GPUs, and limits edited under them; no GPU needed."""
    if listen and not node:
        raise click.UsageError("--listen goes with --node")
    for number in (signal.SIGTERM, signal.SIGHUP):
        # What nohup ignores stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    if node:
        from .demo_node import run_node

        run_node(listen or ("127.0.0.1:9394",), seconds, as_json)
        return
    with FakeNode() as fake:
        container = fake.add(
            memory_limits=("8GiB", "4GiB"), sm_limits=(50, 30), processes=4, pod="demo"
        )
        assert container.region is not None  # noqa: S101 (it was made with one)
        with (
            open_region(container.region, writable=True) as region,
            _demo_output(as_json) as output,
        ):
            _tell_story(region, container, output, 12 if seconds is None else seconds)


def _leave(number: int, _: object) -> None:
    """End as by Ctrl-C: with everything cleaned up."""
    raise SystemExit(128 + number)


def _tell_story(
    region: Region, container: FakeContainer, output: DemoOutput, seconds: float
) -> None:
    """Tell the story."""
    deadline = time.monotonic() + seconds + _SLOWNESS_S

    def go_on(parts: float, until: Callable[[], bool] = lambda: True) -> None:
        """Show what happens for so many sevenths of the time, and on until `until` holds."""
        end = time.monotonic() + parts * seconds / 7
        shown = 0.0
        while (now := time.monotonic()) < end or not until():
            if now > deadline:
                raise Failure("the processes of the demo are too slow; is the machine busy?")
            container.step()
            if now < end and now >= shown + output.interval_s:
                output.show(region, container)
                shown = now
            time.sleep(_STEP_S)
        output.show(region, container)

    output.say("\nTwo GPUs, 8 GiB and 4 GiB of them for this container: that is a region.")
    output.say(f"  It is a file: {region.path}")
    output.say("  Four processes attach to it and allocate memory, as CUDA programs do.")
    go_on(1.6, until=lambda: _granted(container) > 24)

    output.say(
        "\nThe first GPU shall have 2 GiB: hamiregion limits set FILE --device 0 --memory 2GiB"
    )
    try:
        region.set_memory_limit(_LOW_LIMIT, device=0)
    except LimitBelowUsage as error:
        output.say(
            f"  Refused: {format_size(error.used_bytes or 0)} are in use. Nothing was changed."
        )
    else:
        raise Failure("the limit went below what is used, which it should not without force")
    go_on(0.9)

    output.say("\nThe same with --force: the processes run on, and get no more.")
    before = _refused(container)
    region.set_memory_limit(_LOW_LIMIT, device=0, force=True)
    output.say("  device 0: 8 GiB -> 2 GiB, at once, without a restart")
    go_on(1.2, until=lambda: _refused(container) >= before + 4)
    output.say(f"  {_refused(container) - before} allocations refused since.")

    output.say("\nBack to 8 GiB: the same processes get memory again.")
    region.set_memory_limit(8 * GIB, device=0)
    before = _granted(container)
    go_on(1.2, until=lambda: _granted(container) >= before + 12)
    output.say(f"  {_granted(container) - before} allocations granted since.")

    process = container.processes[0]
    process.kill()
    victim = process.pid
    output.say(
        f"\nkill -9 {victim}: it is dead, and its memory still counts; nobody told the file."
    )
    go_on(1.1)
    reaped = {slot.pid: slot.memory_bytes for slot in region.reap()}
    if victim not in reaped:
        raise Failure(f"process {victim} is dead and was not removed")
    output.say("\nhamiregion reap FILE proves it dead and frees what it held.")
    output.say(f"  {format_size(reaped[victim])} are there for the others again.")
    go_on(1.0)
    output.say("\nThat was a real region. Look into yours: hamiregion show FILE")


def _granted(container: FakeContainer) -> int:
    return sum(process.granted for process in container.processes)


def _refused(container: FakeContainer) -> int:
    return sum(process.refused for process in container.processes)


# ---- how it is shown -----------------------------------------------------------------------------


class DemoOutput:
    """Tells the story: live on a terminal, line by line in a pipe, or as JSON."""

    def __init__(self, as_json: bool, screen: Console | None = None, live: Live | None = None):
        self._as_json = as_json
        self._screen = screen
        self._live = live
        self.interval_s = 0.0 if live is not None else 1.0

    def say(self, sentence: str) -> None:
        """Tell one thing; on a terminal the story scrolls above the region."""
        if self._as_json:
            write_json("demo-sentence/1", {"say": sentence.strip()})
        elif self._screen is not None:
            self._screen.print(sentence, style="" if sentence.startswith(" ") else "bold")
        else:
            write(f"{sentence}\n")

    def show(self, region: Region, container: FakeContainer) -> None:
        """Show the region as it is now."""
        snapshot = region.snapshot()
        granted, refused = _granted(container), _refused(container)
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
def _demo_output(as_json: bool) -> Iterator[DemoOutput]:
    if as_json or not on_terminal():
        yield DemoOutput(as_json)
        return
    from .terminal import console, live

    screen = console()
    with live(screen) as picture:
        yield DemoOutput(as_json, screen, picture)
