"""All verbs of the command line."""

from collections.abc import Iterator

import click

from libhamiregion.cli.verbs import hamiregion


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
