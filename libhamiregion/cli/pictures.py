"""Showing a picture of the node once, or again and again: as JSON, on a terminal, in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from libhamiregion.text import printable

from .failures import Failure
from .output import on_terminal, terminal, write, write_json
from .render import NEAR, QUIET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType


class Picture(Protocol):
    """One look at the node, in the three forms in which it can be asked for."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know beside it: one sentence each, raw text."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be looked at: one sentence each, raw text."""

    @property
    def failure(self) -> str | None:
        """Why there is nothing to see, if that is a failure of the command."""

    def as_object(self) -> dict[str, Any]:
        """The picture for programs."""

    def as_text(self) -> str:
        """The picture for a pipe."""

    def as_view(self, width: int) -> RenderableType:
        """The picture for a terminal of that many columns."""


def show(pictures: Iterator[Picture], interval_s: float | None, as_json: bool) -> None:
    """Show one picture, or with an interval all of them until Ctrl-C.

    Raises:
        Failure: The one picture says that the command has failed; one of many is shown as it is.
    """
    if interval_s is None:
        _show_once(next(pictures), as_json=as_json)
        return
    try:
        _show_again(pictures, as_json=as_json)
    except KeyboardInterrupt:
        # Ctrl-C is how a watch ends, not how it fails.
        return


def _show_once(picture: Picture, *, as_json: bool) -> None:
    live = on_terminal() and not as_json
    if as_json:
        write_json(picture.as_object())
    elif live:
        console = terminal()
        console.print(_with_notes(picture, console))
    else:
        write(picture.as_text())
    if not live:
        _Aside().say(picture, notes=not as_json)
    if picture.failure is not None:
        raise Failure(printable(picture.failure))


def _show_again(pictures: Iterator[Picture], *, as_json: bool) -> None:
    if on_terminal() and not as_json:
        console = terminal()
        # No refreshing thread and one write per picture: nothing to flicker.
        with Live(console=console, auto_refresh=False) as live:
            for picture in pictures:
                live.update(_with_notes(picture, console), refresh=True)
        return
    aside = _Aside()
    for number, picture in enumerate(pictures):
        if as_json:
            write_json(picture.as_object())
        else:
            write(("\n" if number else "") + picture.as_text())
        aside.say(picture, notes=not as_json, again=True)


class _Aside:
    """Says on stderr what is new."""

    def __init__(self) -> None:
        self._said: tuple[str, ...] = ()

    def say(self, picture: Picture, *, notes: bool, again: bool = False) -> None:
        sentences = tuple(f"Warning: {each}" for each in picture.warnings)
        if again and picture.failure is not None:
            sentences += (f"Warning: {picture.failure}",)
        if notes:
            sentences += tuple(f"Note: {each}" for each in picture.notes)
        for sentence in sentences:
            if sentence not in self._said:
                click.echo(printable(sentence), err=True)
        self._said = sentences


def _with_notes(picture: Picture, console: Console) -> RenderableType:
    lines = [Text(printable(each), style=NEAR) for each in picture.warnings]
    lines += [Text(printable(each), style=QUIET) for each in picture.notes]
    view = picture.as_view(console.width)
    return Group(view, *([Text()] if lines else []), *lines)
