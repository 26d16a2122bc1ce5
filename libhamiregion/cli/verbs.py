"""The command `hamiregion` with all its verbs."""

from __future__ import annotations

import click

from libhamiregion import __version__

from .failures import ErrorGroup

# Heading to verb to its module and its line in the help: `hamiregion --help` imports no verb.
VERBS = {
    "A container, by name or by its region's FILE": {
        "show": ("show", "Show the devices, limits and processes of a container."),
        "mine": ("show", "Show the region of the container that this runs in."),
        "limits": ("limits", "Read and edit the limits of a container, or of a node by plan."),
        "suspend": ("slots_and_lock", "Block the CUDA calls of a process."),
        "resume": ("slots_and_lock", "Resume a suspended process."),
        "reap": ("slots_and_lock", "Free the slots of dead processes, whose memory still counts."),
        "lock": ("slots_and_lock", "Show the lock of a region, and repair it."),
        "create": ("create", "Make a new region FILE for libvgpu."),
    },
    "A node": {
        "ps": ("processes", "Show the processes that use a region or a GPU."),
        "top": ("processes", "Show the GPUs and the processes that use most of them, live."),
        "containers": ("containers", "Show the containers: usage, limits, or why no region."),
        "observe": ("observe", "Write down what is seen of this node, for --from."),
        "doctor": ("doctor", "Find what is wrong, and repair it."),
    },
    "Services and programs": {
        "exporter": ("exporter", "Export the metrics of this node's GPU containers."),
        "agent": ("agent", "Steer and repair a node's regions."),
        "record": ("record", "Record the use of a node's containers."),
        "report": ("report", "Report from recordings or a Prometheus."),
        "run": ("run", "Run any CUDA program within a GPU budget, in a region of its own."),
        "demo": ("demo", "Show what a region is, with real processes; no GPU needed."),
    },
}


class _Verbs(ErrorGroup):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, verbs in VERBS.items():
            with formatter.section(heading):
                formatter.write_dl([(verb, line) for verb, (_, line) in verbs.items()])


@click.group(
    "hamiregion",
    cls=_Verbs,
    modules={verb: module for verbs in VERBS.values() for verb, (module, _) in verbs.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused or problems remain,"
    " 130 ended by Ctrl-C.",
)
@click.version_option(__version__, prog_name="hamiregion")
def hamiregion() -> None:
    """See, change and repair the GPU limits of HAMi containers while they run.

    A container is [NAMESPACE/]POD[/CONTAINER], or a region's FILE.  -o json gives one object per
    answer, -o wide more columns.  Verbs that write take --dry-run.
    """
