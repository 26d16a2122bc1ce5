"""Output of answers: on a terminal, in a pipe, or as JSON; once, or again and again."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.text import printable

from .failures import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from libhamiregion.node import HostProcess

    from .tables import Page


DRY_RUN = "dry run: nothing was written"


@attrs.frozen
class Answer:
    """How a verb answers.

    Attributes:
        as_json: In JSON, an object on a line.
        wide: With more columns.
        interval_s: Again at this interval, until Ctrl-C; None once.
    """

    as_json: bool = False
    wide: bool = False
    interval_s: float | None = None

    def show(self, page: Page) -> None:
        """Show one page.

        Raises:
            Failure: The page says that the command has failed.
        """
        has_colours = os.environ.get("FORCE_COLOR") and not os.environ.get("NO_COLOR")
        if not self.as_json and (on_terminal() or has_colours):
            from .terminal import console, draw_page

            screen = console()
            screen.print(draw_page(page, screen.width))
        else:
            _write_page(page, self.as_json)
        if page.failure is not None:
            raise Failure(page.failure)

    def show_all(self, look: Callable[[], Page]) -> None:
        """Show pages as they are made: one, or one at each interval.

        At an interval, a failure is shown as a warning.
        """
        if self.interval_s is None:
            self.show(look())
            return
        end_by_sigterm()
        pages = (look() for _ in ticks(self.interval_s))
        # Ctrl-C is how a watch ends, not how it fails.
        with contextlib.suppress(KeyboardInterrupt):
            if self.as_json or not on_terminal():
                _write_all(pages, self.as_json)
                return
            from .terminal import console, fit_page, live

            screen = console()
            with live(screen) as picture:
                for page in pages:
                    picture.update(fit_page(page, screen)[0], refresh=True)


def end_by_sigterm() -> None:
    """Let SIGTERM end a watch as Ctrl-C does: the terminal is put back, and the exit code is 0."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def ticks(interval_s: float) -> Iterator[None]:
    """Yield again and again; a slow tick skips those that it missed."""
    due_s = time.monotonic()
    while True:
        yield
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))


def _write_all(pages: Iterator[Page], as_json: bool) -> None:
    """Write pages one after the other; warnings and notes only if they are new."""
    said: list[str] = []
    for number, page in enumerate(pages):
        if number and not as_json:
            write("\n")
        failures = () if page.failure is None else (page.failure,)
        said = _write_page(attrs.evolve(page, warnings=failures + page.warnings), as_json, said)


def _write_page(page: Page, as_json: bool, said: Sequence[str] = ()) -> list[str]:
    """Write a page, and its warnings and notes that have not been said; return all of these."""
    asides = [f"Warning: {each}" for each in page.warnings]
    if as_json:
        write_json(page.schema, page.data)
    else:
        write(page.heading + "\n".join(filter(None, (block.text() for block in page.blocks))))
        asides += [f"Note: {each}" for each in page.notes]
    for aside in asides:
        if aside not in said:
            sys.stderr.write(f"{printable(aside)}\n")
    return asides


def on_terminal() -> bool:
    """Whether stdout is a terminal on which a picture can be repainted."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def write(text: str) -> None:
    """Write to stdout at once: the reader of a `--watch` waits for whole pictures."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(schema: str, answer: Any, *, node: str | None = None) -> None:
    """Write one object on one line.  ASCII only, so no path and no uuid steers a terminal."""
    fields = answer if isinstance(answer, dict) else _as_plain(answer)
    whole = {"schema": f"hamiregion/{schema}", **fields}
    if node is not None:
        whole = {"node": node, "answer": whole}
    write(json.dumps(whole, default=_as_plain) + "\n")


def _as_plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def program(process: HostProcess, pid: int) -> dict[str, Any]:
    """Return a process as an object; `pid` as the answer has it."""
    return {"pid": pid, "user": process.user, "command": process.command}


def as_plain(instance: attrs.AttrsInstance) -> dict[str, Any]:
    """Return attrs classes as dictionaries, keys as their fields, enums by value."""
    plain: dict[str, Any] = json.loads(json.dumps(instance, default=_as_plain))
    return plain
