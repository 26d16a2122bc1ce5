"""How the demo is shown: live on a terminal, line by line in a pipe, or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Group
from rich.live import Live
from rich.text import Text

from .output import as_plain, on_terminal, terminal, write, write_json
from .plain import size_word
from .render import GOOD, OVER, QUIET, Bar, columns, device_table
from .wording import NOTHING, memory_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.table import Table
    from typing_extensions import Self

    from libhamiregion import RegionSnapshot

    from .demo_crew import Worker

STILL_COUNTED = "dead, still counted"


class Scene(Protocol):
    """Where the demo tells its story."""

    interval_s: float

    def say(self, sentence: str, *, heading: bool = False) -> None:
        """Tell one thing; a heading opens a part of the story."""

    def show(self, snapshot: RegionSnapshot, workers: Sequence[Worker]) -> None:
        """Show the region and its workers as they are now."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def open_scene(*, as_json: bool) -> Scene:
    """Pick the scene that fits stdout."""
    if as_json:
        return JsonScene()
    return TerminalScene() if on_terminal() else PlainScene()


class PlainScene:
    """A line per second."""

    interval_s = 1.0

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, sentence: str, *, heading: bool = False) -> None:
        """See `Scene`."""
        write(f"\n{sentence}\n" if heading else f"  {sentence}\n")

    def show(self, snapshot: RegionSnapshot, workers: Sequence[Worker]) -> None:
        """See `Scene`."""
        devices = "  ".join(
            f"gpu{device.index} {size_word(device.memory_used_bytes)}"
            f"/{size_word(device.memory_limit_bytes)}"
            for device in snapshot.devices
        )
        refused = " ".join(str(worker.refused) for worker in workers)
        elapsed_s = time.monotonic() - self.started
        write(f"  {elapsed_s:4.1f} s  {devices}  refused {refused}\n")


class JsonScene:
    """An object per second and per sentence."""

    interval_s = 1.0

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, sentence: str, *, heading: bool = False) -> None:
        """See `Scene`."""
        self._write({"say": sentence, "heading": heading})

    def show(self, snapshot: RegionSnapshot, workers: Sequence[Worker]) -> None:
        """See `Scene`."""
        listed = [
            {
                "name": worker.role.name,
                "pid": worker.pid,
                "device": worker.role.device,
                "alive": worker.alive,
                "held_bytes": worker.held_bytes,
                "granted": worker.granted,
                "refused": worker.refused,
            }
            for worker in workers
        ]
        self._write({"snapshot": as_plain(snapshot), "workers": listed})

    def _write(self, answer: dict[str, Any]) -> None:
        write_json({"elapsed_s": round(time.monotonic() - self.started, 3), **answer})


class TerminalScene:
    """The story scrolls; the region and its workers stay under it and move."""

    interval_s = 0.1

    def __init__(self) -> None:
        self.console = terminal()
        self.live = Live(console=self.console, auto_refresh=False)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, sentence: str, *, heading: bool = False) -> None:
        """See `Scene`."""
        if heading:
            self.console.print(Text.assemble("\n", (sentence, "bold")))
        else:
            self.console.print(Text.assemble(("  > ", "cyan"), sentence))

    def show(self, snapshot: RegionSnapshot, workers: Sequence[Worker]) -> None:
        """See `Scene`."""
        picture = Group(
            "",
            device_table(snapshot, self.console.width),
            "",
            worker_table(snapshot, workers, self.console.width),
        )
        self.live.update(picture, refresh=True)


def worker_table(snapshot: RegionSnapshot, workers: Sequence[Worker], width: int) -> Table:
    """One row per worker: what the region counts for it, and what it was given and refused."""
    table = columns()
    table.add_column("process")
    table.add_column("PID", justify="right")
    table.add_column("GPU", justify="right", style="bold")
    table.add_column("share")
    table.add_column("counted", justify="right", no_wrap=True, min_width=8)
    table.add_column("granted", justify="right")
    table.add_column("refused", justify="right")
    table.add_column("", no_wrap=True, min_width=len(STILL_COUNTED))
    counted = {
        process.pid: sum(usage.memory_used_bytes for usage in process.devices)
        for process in snapshot.processes
    }
    limits = {device.index: device.memory_limit_bytes for device in snapshot.devices}
    for worker in workers:
        nbytes = counted.get(worker.pid)
        limit = limits.get(worker.role.device)
        ratio = 0.0 if not limit else (nbytes or 0) / limit
        if worker.alive:
            state = Text("running", style=GOOD)
        elif nbytes:
            state = Text(STILL_COUNTED, style=OVER)
        else:
            state = Text("dead", style=QUIET)
        table.add_row(
            worker.role.name,
            str(worker.pid),
            str(worker.role.device),
            Bar(ratio, "cyan" if worker.alive else OVER, width=14 if width >= 80 else 8),
            memory_words(nbytes) if nbytes else NOTHING,
            str(worker.granted),
            Text(str(worker.refused), style=OVER if worker.refused else QUIET),
            state,
        )
    return table
