"""`hamiregion containers`: the containers of a node, limits and usage, or why there is none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from . import node_options, options
from .container_tables import ContainerPicture, named_containers
from .intervals import ticks
from .node_words import node_notes, root_failure, root_warnings
from .pictures import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libhamiregion.node import Node, Selector


@click.command()
@node_options.root_option
@node_options.selector_options
@click.option("--wide", "-w", is_flag=True, help="With uuids and the regions' files.")
@options.watch_option
@options.proc_option
@node_options.pod_logs_option
@options.json_option
@options.no_color_option
def containers(
    roots: tuple[str, ...],
    namespace: str | None,
    pod: str | None,
    container: str | None,
    device: str | None,
    wide: bool,
    interval_s: float | None,
    proc: str,
    pod_logs: str,
    as_json: bool,
) -> None:
    """Show the containers of this node: usage, limits, processes, or why there is no region.

    One line per container and device, then the containers that have a directory and no region,
    each with the reason.  Without --root, regions elsewhere count too, such as
    /tmp/cudevshr.cache in a container without the device plugin; they are found through the
    processes that map them.

    SM is the sum over the processes, so it can pass 100.  ALIVE, DEAD and UNKNOWN count slots, as
    /proc proves it; a dead process's memory still counts (hamiregion reap).  LOCK is free,
    pid:N or dead:N (who has signed for it, of the container's namespace), or tool (a program with
    libhamiregion).  PATTERNs are those of the shell.

    \b
    hamiregion containers --namespace research --watch 2

    Exit code 1 if none of the DIRs given by --root could be listed.

    JSON: taken_at_ns, complete (all processes could be seen), warnings, and containers, a list of
    objects with the keys namespace, pod, pod_uid, container, container_id, directory, region_path,
    other_files, reason (no_file, not_ready, not_a_region, unknown_layout, no_permission, stale,
    failed, or null), message, the fields of RegionSnapshot but path and taken_at_ns, processes
    (alive, dead, unknown, unlisted: how many) and devices, with the fields of DeviceUsage.  null is
    unlimited, or not known.
    """  # noqa: D301 (click looks for the character itself)
    chosen = node_options.selector(namespace, pod, container, device)
    with node_options.open_node(roots, proc, pod_logs) as node:
        pictures = container_pictures(node, chosen, interval_s, wide=wide, roots=roots)
        show(pictures, interval_s, as_json)


def container_pictures(
    node: Node, selector: Selector, interval_s: float | None, *, wide: bool, roots: tuple[str, ...]
) -> Iterator[ContainerPicture]:
    """Look at the node, once or every so many seconds; as `process_pictures`."""
    for _ in ticks(interval_s):
        taken_at_ns = time.time_ns()
        views = node.view()
        yield ContainerPicture(
            taken_at_ns,
            named_containers(node, views, selector),
            complete=node.processes.is_complete,
            wide=wide,
            notes=node_notes(node),
            warnings=root_warnings(node),
            failure=root_failure(node, roots),
        )
