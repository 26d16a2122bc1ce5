"""What a failed command says on stderr, and its exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from libhamiregion import AmbiguousLayout, LimitBelowUsage, RegionError, format_size
from libhamiregion.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED = 1
INTERRUPTED = 130


# What a message of the library has programs call, and what people type instead.
_TYPED = {
    "snapshot().processes lists them": "`hamiregion show FILE` lists them",
    "lock_state() tells more, and recover_lock() frees it": (
        "`hamiregion lock status FILE` tells more, and `hamiregion lock recover FILE` frees it"
    ),
    "force=True": "--force",
    "name a layout": "give --layout",
}


class Failure(click.ClickException):
    """The command failed: one paragraph on stderr, exit code 1."""

    exit_code = FAILED


def sentence(error: RegionError | OSError) -> str:
    """Say what went wrong, in the words of someone who types commands."""
    if (
        isinstance(error, LimitBelowUsage)
        and error.used_bytes is not None
        and error.requested_bytes is not None
    ):
        return (
            f"device {error.device} uses {format_size(error.used_bytes)},"
            f" more than the {format_size(error.requested_bytes)} asked for."
            " Programs in the container would see a huge amount of free memory."
            " Nothing was changed; --force sets the limit all the same."
        )
    if isinstance(error, AmbiguousLayout):
        names = " and ".join(layout.value for layout in error.candidates)
        choices = " or ".join(f"--layout {layout.value}" for layout in error.candidates)
        return f"{error.path} can be read as layout {names}; name the right one: {choices}"
    if isinstance(error, RegionError) or error.strerror is None:
        return _as_typed(str(error))
    if error.filename is None:
        return error.strerror
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def _as_typed(words: str) -> str:
    for called, typed in _TYPED.items():
        words = words.replace(called, typed)
    return words


@contextlib.contextmanager
def bad_arguments() -> Iterator[None]:
    """Turn what the library says about an argument into a usage error, exit code 2."""
    try:
        yield
    except RegionError:
        raise
    except (TypeError, ValueError) as error:
        raise click.UsageError(_as_typed(str(error))) from None


class SpeakingGroup(click.Group):
    """A group whose failures are one paragraph, with nothing in it that steers a terminal."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what the library reports becomes a failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (RegionError, OSError) as error:
            raise Failure(sentence(error)) from None

    def run(self) -> NoReturn:
        """Do what the command line says and exit."""
        try:
            # click's own last words would quote a file name as it came.
            result = self.main(standalone_mode=False)
        except click.ClickException as error:
            _show(error, sys.stderr)
            raise SystemExit(error.exit_code) from None
        except click.Abort:
            raise SystemExit(INTERRUPTED) from None
        raise SystemExit(result if isinstance(result, int) else 0)


def _show(error: click.ClickException, stream: IO[str]) -> None:
    # click quotes arguments as they came, and `hamiregion show *` hands it hostile file names.
    text = io.StringIO()
    error.show(file=text)
    stream.write("".join(f"{printable(line)}\n" for line in text.getvalue().splitlines()))
