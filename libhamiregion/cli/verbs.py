"""The command `hamiregion` with all its verbs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

import click

from libhamiregion import Layout, __version__
from libhamiregion._core import built_from, lib

from .failures import ErrorGroup

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Heading to verb to its module and its line in the help: `hamiregion --help` imports no verb.
VERBS = {
    "One region": {
        "show": ("show", "Show the devices, limits and processes of the region FILE."),
        "mine": ("show", "Show the region of the container that this runs in."),
        "limits": ("limits", "Read and edit the limits of a region, or of a node by a plan."),
        "suspend": ("slots", "Block the CUDA calls of process PID in the region FILE."),
        "resume": ("slots", "Let the suspended process PID in the region FILE go on."),
        "reap": ("slots", "Free the slots of dead processes, whose memory still counts."),
        "lock": ("lock", "Look at the lock of a region, and repair it."),
        "create": ("create", "Make a new region FILE that libvgpu accepts."),
    },
    "A program": {
        "run": ("run", "Run any CUDA program within a GPU budget, in a region of its own."),
    },
    "A node": {
        "ps": ("processes", "Show the processes that use a region or a GPU."),
        "top": ("processes", "Show the GPUs and the processes that use most of them, live."),
        "containers": ("containers", "Show the containers: usage, limits, or why no region."),
        "doctor": ("doctor", "Say what is wrong, and repair it."),
    },
    "What runs for long": {
        "exporter": ("exporter", "Export the metrics of this node's GPU containers."),
        "agent": ("agent", "Keep a node's regions right for as long as it runs."),
        "record": ("record", "Write down what a node's containers use."),
        "report": ("report", "Report what was recorded, or what Prometheus has."),
    },
    "To try things": {
        "demo": ("demo", "Show what a region is, with real processes; no GPU needed."),
    },
}
_MODULES = {verb: module for verbs in VERBS.values() for verb, (module, _) in verbs.items()}


class _Verbs(ErrorGroup):
    """Imports the verb that is asked for, and no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click calls it so)
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _MODULES:
            return None
        module = import_module(f".{_MODULES[cmd_name]}", __package__)
        return cast("click.Command", getattr(module, cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a verb or an option; no verb is imported for it."""
        from click.shell_completion import CompletionItem

        verbs = [
            CompletionItem(verb, help=line)
            for section in VERBS.values()
            for verb, (_, line) in section.items()
            if verb.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(verb, line) for verb, (_, line) in verbs.items()])


_BUILT_FROM = (
    f"reads layouts {', '.join(layout.value for layout in Layout)}; extension {built_from},"
    f" {'with' if lib.HR_HAS_TESTPOINTS else 'without'} test points"
)


@click.group(
    "hamiregion",
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 something is left that is wrong (doctor,"
    " limits diff and apply, agent; their help says what), 130 broken off by Ctrl-C.",
)
@click.version_option(
    __version__, prog_name="hamiregion", message=f"%(prog)s, version %(version)s\n{_BUILT_FROM}"
)
def hamiregion() -> None:
    """Look into HAMi's shared regions, and change them under running GPU containers.

    Every verb that answers takes --json; verbs that write take --dry-run.  Tables and colours
    appear on a terminal only; FORCE_COLOR asks for them elsewhere, NO_COLOR forbids colours.
    """
