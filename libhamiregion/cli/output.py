"""Where answers go: a terminal, a pipe, or JSON; once, or again and again."""

from __future__ import annotations

import enum
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import attrs

from libhamiregion.text import printable

from .failures import Failure
from .tables import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libhamiregion import Region

    from .tables import Block

DRY_RUN = "dry run: nothing was written"


@attrs.frozen
class Page:
    """One answer in all its forms.

    Attributes:
        schema: Name and version of what --json answers, such as ``containers/1``; docs, JSON.
        data: For --json: a dictionary of what json takes, or an attrs class, with attrs classes
            and enums anywhere in it.
        blocks: For people; an empty line stands between two of them.
        notes: What a person should know beside it: one sentence each, raw text.
        warnings: What could not be looked at: one sentence each, raw text.
        failure: Why the command has failed all the same, if it has.
    """

    schema: str
    data: Any
    blocks: Sequence[Block]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: str | None = None


def show_done(
    schema: str, region: Region, lines: Sequence[str], as_json: bool, *, dry_run: bool, **data: Any
) -> None:
    """Show what a command has done in one region, or would have done."""
    about = {"path": region.path, "layout": region.layout, "dry_run": dry_run}
    show(Page(schema, about | data, [Lines([*lines, DRY_RUN] if dry_run else lines)]), as_json)


def show(page: Page, as_json: bool) -> None:
    """Show one answer.

    Raises:
        Failure: The page says that the command has failed.
    """
    if not as_json and (on_terminal() or colours_forced()):
        from .terminal import console, draw_page

        screen = console()
        screen.print(draw_page(page, screen.width))
    else:
        _Pipe(as_json).show(page)
    if page.failure is not None:
        raise Failure(page.failure)


def show_all(pages: Iterator[Page], interval_s: float | None, as_json: bool) -> None:
    """Show the first answer, or with an interval each of them until Ctrl-C.

    A failure of one among many is shown as a warning.
    """
    if interval_s is None:
        show(next(pages), as_json)
        return
    try:
        if on_terminal() and not as_json:
            from .terminal import console, fit_page, live

            screen = console()
            with live(screen) as picture:
                for page in pages:
                    picture.update(fit_page(page, screen), refresh=True)
        else:
            pipe = _Pipe(as_json, watch=True)
            for page in pages:
                pipe.show(page)
    except KeyboardInterrupt:
        # Ctrl-C is how a watch ends, not how it fails.
        return


def ticks(interval_s: float | None) -> Iterator[None]:
    """Yield once, or with an interval again and again; a slow tick skips those that it missed."""
    yield
    due = time.monotonic()
    while interval_s is not None:
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        yield


class _Pipe:
    """Writes pages one after the other; what stands beside them goes to stderr when it is new."""

    def __init__(self, as_json: bool, *, watch: bool = False) -> None:
        self._as_json = as_json
        self._watch = watch
        self._shown = 0
        self._said: tuple[str, ...] = ()

    def show(self, page: Page) -> None:
        if self._as_json:
            write_json(page.schema, page.data)
        else:
            text = "\n".join(filter(None, (block.text() for block in page.blocks)))
            write(("\n" if self._shown else "") + text)
        self._shown += 1
        sentences = tuple(f"Warning: {each}" for each in page.warnings)
        if self._watch and page.failure is not None:
            sentences += (f"Warning: {page.failure}",)
        if not self._as_json:
            sentences += tuple(f"Note: {each}" for each in page.notes)
        for sentence in sentences:
            if sentence not in self._said:
                sys.stderr.write(f"{printable(sentence)}\n")
        self._said = sentences


def on_terminal() -> bool:
    """Whether a person looks at stdout, so that a picture can be repainted there."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def colours_forced() -> bool:
    """Whether a pipe gets what a terminal would, as for ``less -R``; NO_COLOR counts for more."""
    return bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")


def write(text: str) -> None:
    """Write to stdout at once: the reader of a `--watch` waits for whole pictures."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(schema: str, answer: Any) -> None:
    """Write one object on one line.  ASCII only, so no path and no uuid steers a terminal."""
    fields = answer if isinstance(answer, dict) else _as_plain(answer)
    write(json.dumps({"schema": f"hamiregion/{schema}", **fields}, default=_as_plain) + "\n")


def _as_plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def as_plain(instance: attrs.AttrsInstance) -> dict[str, Any]:
    """Return attrs classes as dictionaries, keys as their fields, enums by value."""
    plain: dict[str, Any] = json.loads(json.dumps(instance, default=_as_plain))
    return plain
