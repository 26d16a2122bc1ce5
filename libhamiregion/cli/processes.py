"""`hamiregion ps` and `hamiregion top`: the processes of a node, and what they use of its GPUs."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from libhamiregion.node.bounded_call import BoundedCall
from libhamiregion.node.suspended import SuspendedProcesses

from . import options
from .driver import driver_page
from .intervals import ticks
from .keyboard import SORT_KEYS
from .output import Page, on_terminal, show_all
from .process_page import SORTS, process_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from libhamiregion.node import Selector

    from .options import DriverChoice, NodeChoice


def _common_options(sort: str) -> Callable[[options.Command], options.Command]:
    sort_option = click.option(
        "--sort",
        type=click.Choice(SORTS),
        default=sort,
        show_default=True,
        help="By name of pod and container, by what is used, or by host pid.",
    )
    return options.all_of(
        options.node_options,
        options.selector_options,
        options.wide_option,
        sort_option,
        options.driver_options,
        options.watch_option,
        options.json_option,
    )


@click.command()
@_common_options("name")
@click.option(
    "--nvml",
    is_flag=True,
    help="Only what the driver says, without regions; works inside a container too.",
)
def ps(
    node_choice: NodeChoice,
    selector: Selector,
    wide: bool,
    sort: str,
    driver: DriverChoice,
    nvml: bool,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Show the processes of this node that use a region or a GPU.

    One line per process and device: what the region counts, and what the driver says.  Which
    process stands in which slot is proved by /proc; what the region calls host pids is not used.

    \b
    alive      has a slot, and runs
    suspended  the same, blocked by `hamiregion suspend`
    goes-on    suspended, and allocates or launches all the same (HAMi 2.10 without an SM limit)
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
    null with --no-driver), warnings, gaps (what could not be looked at: kind, reason, count, and
    the container's names), and processes, a list of objects with the keys namespace, pod, pod_uid,
    container, container_id, region_path, pid, host_pid, state, status, goes_on (of a suspended
    process: allocating, launching, or null: not seen), uid, user, command, slots (more than 1: a
    sum over what one container has too many of) and devices, whose keys are the fields of
    ProcessDeviceRow.  With --nvml: taken_at_ns, driver, devices, processes
    and samples, with the fields of NvmlDevice and NvmlProcess.  null is not known.
    """  # noqa: D301 (click looks for the character itself)
    if nvml:
        patterns = (selector.namespace, selector.pod, selector.container)
        if any((*patterns, node_choice.roots, node_choice.outside, driver.no_driver, wide)):
            raise click.UsageError(
                "--nvml shows what the driver says, which knows no pods and no regions: it goes"
                " with --device, --library, --watch and --json."
            )
        with driver.open() as sampler:
            assert sampler is not None  # noqa: S101 (--no-driver was refused)
            ask = BoundedCall(sampler.sample, "hamiregion-nvml")
            pages = (driver_page(ask, sampler, selector) for _ in ticks(interval_s))
            show_all(pages, interval_s, as_json)
        return
    with driver.observe(node_choice) as observer:
        look = functools.partial(
            process_page, observer, selector, node_choice, wide=wide, suspended=SuspendedProcesses()
        )
        show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)


@click.command()
@click.option(
    "--from",
    "source",
    metavar="URL",
    help="All nodes, out of the Prometheus of that http(s) address that scrapes their exporters.",
)
@click.option(
    "-n",
    "most",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="With --from: the first N rows.  [default: 50]",
)
@_common_options("memory")
@click.pass_context
def top(
    context: click.Context,
    source: str | None,
    most: int | None,
    node_choice: NodeChoice,
    selector: Selector,
    wide: bool,
    sort: str,
    driver: DriverChoice,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Show the GPUs of this node, its containers and the processes that use most of them, live.

    Containers have a bar for each device: memory in use against the limit, and from 100 columns on
    SM utilisation with a mark at the limit; beside them the driver's figures, where it answers.
    A wide terminal has longer bars and whole names.

    On a terminal again every second, or as --watch says, until q or Ctrl-C; the keys m, s, n and p
    sort by memory, SM utilisation, name and host pid.  In a pipe, and with --json, once unless
    --watch is given.  Columns, states, PATTERNs, JSON and exit codes are those of `hamiregion ps`.

    With --from, the processes of all nodes as a Prometheus has last scraped them, on a terminal
    again every 15 seconds; --node is a PATTERN of the nodes' names then.  It is signed in to as
    `hamiregion report` does.

    \b
    hamiregion top --from http://prometheus:9090 --namespace research -n 20

    JSON with --from: taken_at_ns, warnings, and processes, a list of objects with the fields of
    FleetProcess; null is not known.
    """  # noqa: D301 (click looks for the character itself)
    if source is not None:
        _top_of_fleet(
            context, source, most, node_choice, selector, driver, interval_s, sort, wide, as_json
        )
        return
    if most is not None:
        raise click.UsageError("-n goes with --from")
    with driver.observe(node_choice) as observer:
        look = functools.partial(
            process_page, observer, selector, node_choice, wide=wide, suspended=SuspendedProcesses()
        )
        if as_json or not on_terminal():
            show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _top_live(look, interval_s or 1.0, sort)


def _top_of_fleet(
    context: click.Context,
    source: str,
    most: int | None,
    node_choice: NodeChoice,
    selector: Selector,
    driver: DriverChoice,
    interval_s: float | None,
    sort: str,
    wide: bool,
    as_json: bool,
) -> None:
    # With the report's modules only where they are asked for.
    from .fleet import fleet_page, open_fleet

    if node_choice.roots or node_choice.outside or driver.no_driver or driver.library:
        raise click.UsageError(
            "--from asks a Prometheus, and looks at no node: it goes with --node, --namespace,"
            " --pod, --container, --device, --sort, --wide, --watch, --json and -n."
        )
    # A pod's environment says which node it is on; all of them are meant where nobody says so.
    is_given = context.get_parameter_source("node_name") is ParameterSource.COMMANDLINE
    node = node_choice.node_name if is_given else None
    look = functools.partial(
        fleet_page, open_fleet(source), selector, node=node, most=most or 50, wide=wide
    )
    if as_json or not on_terminal():
        show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)  # type: ignore[arg-type]
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _top_live(look, interval_s or 15.0, sort)


def _top_live(look: Callable[..., Page], interval_s: float, sort: str) -> None:
    from .keyboard import Keyboard
    from .terminal import console, fit_page, live

    screen = console()
    with Keyboard() as keyboard, live(screen) as picture:
        key = ""
        while key != "q":
            due = time.monotonic() + interval_s
            sort = SORT_KEYS.get(key, sort)
            picture.update(fit_page(look(sort=sort, live=True), screen), refresh=True)
            key = keyboard.wait(due - time.monotonic())
