"""Failures of a command on stderr, and its exit codes."""

from __future__ import annotations

import contextlib
import io
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from libhamiregion import (
    LaunchesWouldStop,
    LimitBelowUsage,
    LimitConflict,
    LockNotRecoverable,
    NoSuchDevice,
    ReapRefused,
    RegionError,
)
from libhamiregion.text import error_text, printable

from .help import Verb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Exit codes of all verbs but `run`, which has its program's.
DONE = 0
FAILED = 1
USAGE = 2
#: Refused; or done, and problems remain.
PROBLEMS = 3
INTERRUPTED = 130


# Phrases of the library in the terms of the command line. Whole phrases: a path may hold single
# words of them.
_PHRASES = {
    "; force=True sets": "; --force sets",
    "; name the right one with layout=": "; name the right one with --layout",
    "; snapshot().processes lists": "; `hamiregion show FILE` lists",
    "hami_version ": "--hami-version ",
    "lock_state() tells more, and recover_lock()": "`hamiregion lock status` tells more, and"
    " `hamiregion lock recover`",
}


def in_command_words(text: str) -> str:
    """Put a message of the library into the terms of the command line.

    >>> in_command_words("Nothing was changed; force=True sets it all the same")
    'Nothing was changed; --force sets it all the same'
    """
    for phrase, words in _PHRASES.items():
        text = text.replace(phrase, words)
    return text


class Failure(click.ClickException):
    """The command failed: one paragraph on stderr, exit code 1."""

    exit_code = FAILED


class Refused(Failure):
    """The command was refused for safety, and nothing was changed: exit code 3."""

    exit_code = PROBLEMS


_REFUSALS = (LimitBelowUsage, LaunchesWouldStop, LimitConflict, LockNotRecoverable, ReapRefused)


def failure(error: RegionError | OSError) -> Failure:
    """Make the failure of an error."""
    kind = Refused if isinstance(error, _REFUSALS) else Failure
    return kind(in_command_words(error_text(error)))


@contextlib.contextmanager
def bad_arguments() -> Iterator[None]:
    """Turn errors of the library about an argument into usage errors, exit code 2."""
    try:
        yield
    except (NoSuchDevice, TypeError, ValueError) as error:
        if isinstance(error, RegionError) and not isinstance(error, NoSuchDevice):
            raise
        raise click.UsageError(in_command_words(str(error))) from None


@contextlib.contextmanager
def failures_of(*kinds: type[Exception], about: str = "") -> Iterator[None]:
    """Turn errors into failures, whose sentences begin with what they are about."""
    try:
        yield
    except kinds as error:
        raise Failure(f"{about}{error}") from None


class ErrorGroup(click.Group):
    """A group of verbs; a verb's module is imported when the verb is called.

    Args:
        modules: Verbs in modules of their own, by the module's name.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str] | None = None, **settings: Any):
        super().__init__(*args, **settings)
        self._modules = modules or {}
        # Names for click's list and its suggestions.
        self.commands = {**self.commands, **{name: click.Command(name) for name in self._modules}}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb; see click."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module = import_module(f".{self._modules[cmd_name]}", __package__)
        return cast("click.Command", getattr(module, cmd_name))

    def verb(self, name: str, *examples: str) -> Callable[[Callable[..., Any]], click.Command]:
        """Make a verb of the group, with command lines as examples."""
        return self.command(name, cls=Verb, examples=examples)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; errors of the library become failures."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (RegionError, OSError) as error:
            raise failure(error) from None

    def run(self) -> NoReturn:
        """Do what the command line says and exit."""
        try:
            # click would print a file name as it is.
            result = self.main(standalone_mode=False)
        except click.ClickException as error:
            _fail(error)
        except OSError as error:
            # Of --help and --version, which are no verbs.
            _fail(failure(error))
        except click.Abort:
            raise SystemExit(INTERRUPTED) from None
        raise SystemExit(result if isinstance(result, int) else DONE)


def _fail(error: click.ClickException) -> NoReturn:
    # click quotes arguments as they are, and `hamiregion show *` passes hostile file names.
    text = io.StringIO()
    error.show(file=text)
    sys.stderr.write("".join(f"{printable(line)}\n" for line in text.getvalue().splitlines()))
    raise SystemExit(error.exit_code) from None
