"""The command `hamiregion` with all its verbs."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import click

from libhamiregion import __version__

from . import options
from .failures import SpeakingGroup

# One module per verb, with a command of the same name.
VERBS = (
    "agent",
    "containers",
    "create",
    "demo",
    "doctor",
    "exporter",
    "limits",
    "lock",
    "ps",
    "reap",
    "record",
    "report",
    "resume",
    "show",
    "suspend",
    "top",
)


class _Verbs(SpeakingGroup):
    """Imports the verb that is asked for, and no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click calls it so)
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = import_module(f".{cmd_name}", __package__)
        return cast("click.Command", getattr(module, cmd_name))


@click.group(
    "hamiregion",
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 not as it should be (doctor, limits diff"
    " and apply, agent; their help says what), 130 broken off by Ctrl-C.",
)
@options.no_color_option
@click.version_option(__version__, prog_name="hamiregion")
def hamiregion() -> None:
    """Look into HAMi's shared regions, and change them under running GPU containers.

    Every verb takes --json; verbs that write take --dry-run.  Tables and colours appear on a
    terminal only.

    Completion for bash (or zsh, fish), in the shell's start-up file:

    \b
    eval "$(_HAMIREGION_COMPLETE=bash_source hamiregion)"
    """  # noqa: D301 (click looks for the character itself)
