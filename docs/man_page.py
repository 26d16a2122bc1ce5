"""The manual page, share/man/man1/hamiregion.1, from the text of ``hamiregion --help``.

python docs/man_page.py
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import click

from libhamiregion.cli.verbs import hamiregion

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).parents[1] / "share" / "man" / "man1" / "hamiregion.1"
SITE = "https://libhamiregion.readthedocs.io"


def escaped(text: str) -> str:
    """A line of text as roff takes it."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    # At the beginning of a line these would begin a request.
    return f"\\&{text}" if text.startswith((".", "'")) else text


def paragraphs(text: str) -> Iterator[str]:
    """A help's paragraphs; those that begin with \\b keep their lines."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0].strip() == "\b":
            yield from (".PP", ".nf", ".RS 4", *map(escaped, lines[1:]), ".RE", ".fi")
        else:
            yield from (".PP", *(escaped(line.strip()) for line in lines))


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """What each option is, but --help, which is said once."""
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None and "--help" not in option.opts:
            yield from (".TP", f"\\fB{escaped(record[0])}\\fR", escaped(record[1]))


def commands(command: click.Command, parent: click.Context) -> Iterator[str]:
    """A verb with its options, and the verbs below it."""
    settings = command.context_settings
    context = click.Context(command, info_name=command.name, parent=parent, **settings)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f'.SS "{escaped(f"{context.command_path} {usage}".strip())}"'
    yield from paragraphs(command.help or "")
    yield from options(command, context)
    if command.epilog:
        yield from paragraphs(command.epilog)
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            child = command.get_command(context, verb)
            if child is not None:
                yield from commands(child, context)


def text() -> str:
    """The whole page."""
    context = click.Context(hamiregion, info_name="hamiregion", **hamiregion.context_settings)
    verbs = [hamiregion.get_command(context, verb) for verb in hamiregion.list_commands(context)]
    lines = [
        '.TH HAMIREGION 1 "" "libhamiregion" "User Commands"',
        ".SH NAME",
        "hamiregion \\- read, edit and repair the shared regions of HAMi's GPU containers",
        ".SH SYNOPSIS",
        "\\fBhamiregion\\fR \\fIVERB\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...",
        ".SH DESCRIPTION",
        *paragraphs(hamiregion.help or ""),
        ".PP",
        "Each verb says by \\-h or \\-\\-help what stands here of it.",
        ".SH VERBS",
        *(line for verb in verbs if verb is not None for line in commands(verb, context)),
        ".SH EXIT STATUS",
        *paragraphs(hamiregion.epilog or ""),
        ".SH SEE ALSO",
        SITE,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
