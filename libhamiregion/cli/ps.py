"""`hamiregion ps`: the processes of a node, and what they use of its GPUs."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from libhamiregion.node import NvmlSampler, driver_gap, node_processes

from . import node_options, options
from .driver_tables import driver_picture
from .intervals import ticks
from .node_words import node_notes, root_failure, root_warnings
from .pictures import show
from .process_tables import SORTS, ProcessPicture, named_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node import Node, Selector


@click.command()
@node_options.root_option
@node_options.selector_options
@click.option("--wide", "-w", is_flag=True, help="With users, uuids and command lines.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=SORTS[0],
    show_default=True,
    help="By name of pod and container, by what is used, or by host pid.",
)
@click.option("--no-driver", is_flag=True, help="Do not ask the driver (NVML).")
@click.option(
    "--nvml",
    is_flag=True,
    help="Only what the driver says, without regions; works inside a container too.",
)
@node_options.library_option
@options.watch_option
@options.proc_option
@node_options.pod_logs_option
@options.json_option
@options.no_color_option
def ps(
    roots: tuple[str, ...],
    namespace: str | None,
    pod: str | None,
    container: str | None,
    device: str | None,
    wide: bool,
    sort: str,
    no_driver: bool,
    nvml: bool,
    library: str | None,
    interval_s: float | None,
    proc: str,
    pod_logs: str,
    as_json: bool,
) -> None:
    """Show the processes of this node that use a region or a GPU.

    One line per process and device: what the region counts, and what the driver says.  Which
    process stands in which slot is proved by /proc; what the region calls host pids is not used.

    \b
    alive      has a slot, and runs
    suspended  the same, held up by `hamiregion suspend`
    dead       has a slot whose process is gone; its memory still counts (hamiregion reap)
    unknown    /proc does not show enough to tell
    unlisted   maps a region and has no slot; a forked child is one until it uses CUDA
    escaped    uses a GPU in a container with a region, not counted there
    unmanaged  uses a GPU outside all containers with a region

    DEVICE is the container's own index, GPU the one of nvidia-smi.  PATTERNs are those of the
    shell.  Where the driver cannot be asked, the rest is shown and a note says why.

    \b
    hamiregion ps --pod 'bert-*' --watch 1
    hamiregion ps --nvml

    --nvml shows the driver's two lists instead: processes (pid, name, memory, utilisation), and
    the samples of the last second.

    Exit code 1 if none of the DIRs given by --root could be listed, or, with --nvml, if the
    driver could not be asked.

    JSON: taken_at_ns, complete (all processes could be seen), driver (state, message, version;
    null with --no-driver), warnings, and processes, a list of objects with the keys namespace,
    pod, pod_uid, container, container_id, region_path, pid, host_pid, state, status, uid, user,
    command and devices, whose keys are the fields of ProcessDeviceRow.  With --nvml: taken_at_ns,
    driver, devices, processes and samples, with the fields of NvmlDevice, NvmlProcess and
    NvmlUtilization.  null is not known.
    """  # noqa: D301 (click looks for the character itself)
    if nvml:
        if any((roots, namespace, pod, container, no_driver, wide)):
            raise click.UsageError(
                "--nvml shows what the driver says, which knows no pods and no regions: it goes"
                " with --device, --library, --watch and --json."
            )
        with NvmlSampler(library) as sampler:
            show((driver_picture(sampler, device) for _ in ticks(interval_s)), interval_s, as_json)
        return
    chosen = node_options.selector(namespace, pod, container, device)
    with (
        contextlib.nullcontext() if no_driver else NvmlSampler(library) as driver,
        node_options.open_node(roots, proc, pod_logs) as node,
    ):
        pictures = process_pictures(
            node, driver, chosen, interval_s, sort=sort, wide=wide, roots=roots
        )
        show(pictures, interval_s, as_json)


def process_pictures(
    node: Node,
    sampler: NvmlSampler | None,
    selector: Selector,
    interval_s: float | None,
    **options: Any,
) -> Iterator[ProcessPicture]:
    """Take a `process_picture` once, or every so many seconds."""
    for _ in ticks(interval_s):
        yield process_picture(node, sampler, selector, **options)


def process_picture(
    node: Node,
    sampler: NvmlSampler | None,
    selector: Selector,
    *,
    sort: str,
    wide: bool,
    roots: tuple[str, ...],
) -> ProcessPicture:
    """Look at the node.

    Args:
        node: The node; kept up to date.
        sampler: Asks the driver; None leaves its figures out.
        selector: What to show.
        sort: One of `SORTS`.
        wide: Whether to show users, uuids and commands too.
        roots: As given; it is a failure if there are some and none can be listed.
    """
    # The driver first: what it lists has its slot by the time the regions are read.
    sample = None if sampler is None else sampler.sample()
    taken_at_ns = time.time_ns()
    rows = node_processes(node.view(), node.processes, sample)
    gap = None if sample is None else driver_gap(node.processes, sample)
    notes = node_notes(node)
    if gap is not None:
        notes = (*notes, f"no figures of the driver: {gap}")
    return ProcessPicture(
        taken_at_ns,
        named_processes(node, rows, selector, sort),
        sample,
        complete=node.processes.is_complete,
        wide=wide,
        driver_gap=gap,
        notes=notes,
        warnings=root_warnings(node),
        failure=root_failure(node, roots),
    )
