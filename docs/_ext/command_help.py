"""The directive ``command-help``: every verb of ``hamiregion`` with its help, as it prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from libhamiregion.cli.verbs import hamiregion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

WIDTH = 88


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[Any]:
    """Yield (words of the command, its help), depth first."""
    settings = {"terminal_width": WIDTH, **command.context_settings}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            child = command.get_command(context, verb)
            if child is not None and not child.hidden:
                yield from _helps(child, context, verb)


class CommandHelp(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for words, text in _helps(hamiregion, None, "hamiregion"):
            section = nodes.section(ids=[nodes.make_id(words)])
            self.state.document.note_explicit_target(section)
            section += nodes.title(text=words)
            section += nodes.literal_block(text, text, language="none")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
