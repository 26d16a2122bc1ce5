"""All verbs of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from libhamiregion.cli.verbs import hamiregion

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(
    group: click.Group = hamiregion, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command
