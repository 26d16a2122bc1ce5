"""`hamiregion completion`: what completes its words in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .output import write


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what has SHELL, which is bash, zsh or fish, complete verbs and options.

    \b
    eval "$(hamiregion completion bash)"    # in ~/.bashrc
    eval "$(hamiregion completion zsh)"     # in ~/.zshrc, after compinit
    hamiregion completion fish | source     # in ~/.config/fish/config.fish

    Not needed where the package is installed below /usr/local, or for bash (with the package
    bash-completion) and fish below ~/.local: they find it there by themselves.
    """  # noqa: D301 (click looks for the character itself)
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 (the choice above)
    write(made(ctx.find_root().command, {}, "hamiregion", "_HAMIREGION_COMPLETE").source())
