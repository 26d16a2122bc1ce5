"""Help of at most 25 lines a verb: one sentence, usage, options in groups, two examples."""

from __future__ import annotations

import itertools
import re
import textwrap
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


#: Names of the option with seconds that may be left out.
WATCH = ["--watch", "-i"]
# With a wrong unit too; UIDs of pods begin with digits.
_NUMBER = r"\.?[0-9][0-9.]*[a-z]*$"


class Option(click.Option):
    """An option that help lists by its name alone, with others of its group.

    Args:
        group: Heading of the group, such as ``Node``.
    """

    def __init__(self, *args: Any, group: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group


class Verb(click.Command):
    """A command with short help; its docstring's first paragraph is the sentence.

    Args:
        examples: Command lines.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; see click, which takes any word after ``--watch`` for its number."""
        for each in self.params:
            if isinstance(each, click.Option) and each.opts == WATCH:
                alone = f"{WATCH[0]}={each.flag_value}"
                args = [
                    alone if word in WATCH and not re.match(_NUMBER, following) else word
                    for word, following in itertools.pairwise([*args, ""])
                ]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help; see click."""
        sentence = " ".join((self.help or "").partition("\n\n")[0].split())
        formatter.write(f"{textwrap.fill(sentence, formatter.width)}\n\n")
        self.format_usage(ctx, formatter)
        explained: list[tuple[str, str]] = []
        brief: dict[str, list[str]] = {}
        for param in self.params:
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            title = param.group if isinstance(param, Option) else None
            if title is None:
                explained.append(record)
            else:
                switches = re.sub(r"--(\S+) / --no-\1$", r"--[no-]\1", record[0])
                brief.setdefault(title, []).append(switches.replace(" ", "\u00a0"))
        if explained:
            with formatter.section("Options"):
                formatter.write_dl(explained)
        elif brief:
            formatter.write("\n")
        indent = max(map(len, brief), default=0) + 4
        for title, names in brief.items():
            lines = textwrap.wrap(
                ", ".join(names),
                formatter.width,
                initial_indent=f"  {title}:".ljust(indent),
                subsequent_indent=" " * indent,
                break_on_hyphens=False,
            )
            formatter.write("\n".join(lines).replace("\u00a0", " ") + "\n")
        formatter.write("\nExamples:\n" + "".join(f"  {each}\n" for each in self._examples))


def verb(*examples: str, **settings: Any) -> Callable[[Callable[..., Any]], Verb]:
    """Make a verb of a function, with command lines as examples."""
    return click.command(cls=Verb, examples=examples, **settings)
