"""Options and kinds of values that several verbs share."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from libhamiregion import Layout, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any]")

UNLIMITED = "unlimited"
LAST_DEVICE = 15

# Whoever opens the file says what the system refuses: a failure, where click's own look at it would
# call the command wrong.
PATH = click.Path(path_type=str, readable=False)
NO_DIRECTORY = click.Path(path_type=str, readable=False, dir_okay=False)


@attrs.frozen
class Limit:
    """A limit as typed; None is `unlimited`, which an option not given is not."""

    value: int | None


if TYPE_CHECKING:
    LimitType = click.ParamType[Limit]
    LayoutType = click.ParamType[Layout]
else:
    # Generic for type checkers; at run time only since click 8.2.
    LimitType = LayoutType = click.ParamType


class MemoryLimit(LimitType):
    """6GiB, 3000m, 512MiB, plain bytes, or `unlimited`."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Limit:
        """Read one value; see click."""
        if isinstance(value, Limit):
            return value
        if value.strip().lower() == UNLIMITED:
            return Limit(None)
        try:
            nbytes = parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if nbytes == 0:
            self.fail("0 is how a region spells no limit; say `unlimited`", param, ctx)
        return Limit(nbytes)


class SmLimit(LimitType):
    """1 to 100, with or without `%`, or `unlimited`."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Limit:
        """Read one value; see click."""
        if isinstance(value, Limit):
            return value
        text = value.strip().lower()
        if text == UNLIMITED:
            return Limit(None)
        digits = text.removesuffix("%").rstrip()
        if not (re.fullmatch("[0-9]{1,3}", digits) and 1 <= int(digits) <= 100):
            self.fail(f"{value!r} is neither 1 to 100 nor `unlimited`", param, ctx)
        return Limit(int(digits))


class Seconds(click.FloatRange):
    """A length of time; click's range lets `nan` through."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read one value; see click."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no length of time", param, ctx)
        return seconds


MEMORY = MemoryLimit()
SM = SmLimit()


class LayoutName(LayoutType):
    """One of the five layouts, by its name in the documentation."""

    name = "layout"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Layout:
        """Read one value; see click."""
        try:
            return Layout(value)
        except ValueError:
            self.fail(f"{value!r} is none of {LAYOUT_NAMES}", param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 (click calls it so)
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[click.shell_completion.CompletionItem]:
        """Offer the layouts' names."""
        return [
            click.shell_completion.CompletionItem(layout.value)
            for layout in Layout
            if layout.value.startswith(incomplete)
        ]


def _remember_no_color(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[NO_COLOR] = True


NO_COLOR = "libhamiregion.no_color"

file_argument = click.argument("path", metavar="FILE", type=PATH)
pid_argument = click.argument("pid", metavar="PID", type=click.IntRange(1, 2**31 - 1))
pids_argument = click.argument(
    "pids", metavar="[PID]...", type=click.IntRange(1, 2**31 - 1), nargs=-1
)
json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per answer.")
LAYOUT_NAMES = ", ".join(layout.value for layout in reversed(Layout))
layout_option = click.option(
    "--layout",
    type=LayoutName(),
    metavar="NAME",
    help=f"The file's layout, where it can be read as several; else refused. {LAYOUT_NAMES}.",
)
device_option = click.option(
    "--device",
    type=click.IntRange(0, LAST_DEVICE),
    metavar="N",
    help="Only this device (CUDA ordinal); without it, every device of the region.",
)


def interval_option(
    name: str, seconds: float, what: str, *, least_s: float = 0.01
) -> Callable[[Command], Command]:
    """An option ``--<name>-interval`` of a verb that does several things again and again."""
    return click.option(
        f"--{name}-interval",
        f"{name}_interval_s",
        type=Seconds(min=least_s, max=86_400),
        default=seconds,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


watch_option = click.option(
    "--watch",
    "-i",
    "interval_s",
    type=Seconds(min=0.05, max=86_400),
    metavar="SECONDS",
    help="Again every so many seconds, until Ctrl-C.",
)
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(min=0, max=86_400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the region's lock.",
)
proc_option = click.option(
    "--proc",
    type=PATH,
    default="/proc",
    show_default=True,
    metavar="DIR",
    help="Where the /proc of the processes is mounted.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Check everything, say what would change, change nothing."
)
no_color_option = click.option(
    "--no-color",
    is_flag=True,
    expose_value=False,
    callback=_remember_no_color,
    help="No colours; the environment variable NO_COLOR does the same.",
)
