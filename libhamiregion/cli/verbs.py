"""The command `hamiregion` with all its verbs."""

from __future__ import annotations

import click

from libhamiregion import __version__

from . import options
from .create import create
from .demo import demo
from .failures import SpeakingGroup
from .limits import limits
from .lock import lock
from .reap import reap
from .resume import resume
from .show import show
from .suspend import suspend


@click.group(
    "hamiregion",
    cls=SpeakingGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage.",
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


for verb in (create, demo, limits, lock, reap, resume, show, suspend):
    hamiregion.add_command(verb)
