"""What a failed command says on stderr, and its exit code."""

from __future__ import annotations

import contextlib
import difflib
import io
import sys
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from libhamiregion import NoSuchDevice, RegionError
from libhamiregion.text import error_text, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

# Exit codes of all verbs but `run`, which has its program's.
DONE = 0
FAILED = 1
USAGE = 2
#: Done, and something is left that is wrong.
PROBLEMS = 3
INTERRUPTED = 130


# What the library says to a program, and what stands for it on a command line. Whole phrases: a
# path may hold single words of them.
_PHRASES = {
    "; force=True sets": "; --force sets",
    "; name the right one with layout=": "; name the right one with --layout",
    "; snapshot().processes lists them": "; `hamiregion show FILE` lists them",
}


def in_command_words(text: str) -> str:
    """Put what the library says into the language of the command line.

    >>> in_command_words("Nothing was changed; force=True sets it all the same")
    'Nothing was changed; --force sets it all the same'
    """
    for phrase, words in _PHRASES.items():
        text = text.replace(phrase, words)
    return text


class Failure(click.ClickException):
    """The command failed: one paragraph on stderr, exit code 1."""

    exit_code = FAILED


def sentence(error: RegionError | OSError) -> str:
    """Say what went wrong: the library's own sentence, or the system's with the file."""
    return in_command_words(error_text(error))


@contextlib.contextmanager
def bad_arguments() -> Iterator[None]:
    """Turn what the library says about an argument into a usage error, exit code 2."""
    try:
        yield
    except NoSuchDevice as error:
        raise click.UsageError(in_command_words(str(error))) from None
    except RegionError:
        raise
    except (TypeError, ValueError) as error:
        raise click.UsageError(in_command_words(str(error))) from None


class ErrorGroup(click.Group):
    """A group whose failures are one paragraph, with nothing in it that steers a terminal."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; the error for one that does not exist names those that may be meant."""
        typed = args[0]
        known = typed.startswith("-") or self.get_command(ctx, typed) is not None
        if not known and not ctx.resilient_parsing:
            verbs = self.list_commands(ctx)
            near = difflib.get_close_matches(typed, verbs)
            said = (
                f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(verbs)}."
            )
            ctx.fail(f"No such command {typed!r}. {said}")
        return super().resolve_command(ctx, args)

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
        except OSError as error:
            # Of --help and --version, which no verb has been asked for.
            _show(Failure(sentence(error)), sys.stderr)
            raise SystemExit(FAILED) from None
        except click.Abort:
            raise SystemExit(INTERRUPTED) from None
        raise SystemExit(result if isinstance(result, int) else 0)


def _show(error: click.ClickException, stream: IO[str]) -> None:
    # click quotes arguments as they came, and `hamiregion show *` hands it hostile file names.
    text = io.StringIO()
    error.show(file=text)
    stream.write("".join(f"{printable(line)}\n" for line in text.getvalue().splitlines()))
