"""`hamiregion ps` and `hamiregion top`: the processes of a node, and what they use of its GPUs."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING

import click

from . import options
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
def ps(
    node_choice: NodeChoice,
    selector: Selector,
    wide: bool,
    sort: str,
    driver: DriverChoice,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Show the processes of this node that use a region or a GPU.

    One line per process and device: what the region counts, and what the driver says.  Which
    process stands in which slot is proved by /proc; what the region calls host pids is not used.

    \b
    alive      has a slot, and runs
    suspended  the same, blocked by `hamiregion suspend`
    dead       has a slot whose process is gone; its memory still counts (hamiregion reap)
    unknown    /proc does not show enough to tell
    unlisted   maps a region and has no slot; a forked child is one until it uses CUDA
    escaped    uses a GPU in a container with a region, not counted there
    unmanaged  uses a GPU outside all containers with a region

    DEVICE is the container's own index, GPU the one of nvidia-smi.  PATTERNs are those of the
    shell.  Where the driver cannot be asked, the rest is shown and a note says why.

    \b
    hamiregion ps --pod 'bert-*' --watch 1

    Exit code 1 if no directory of containers can be listed, or no container is selected.

    JSON: taken_at_ns, complete (all processes could be seen), driver (state, message, version;
    null with --no-driver), warnings, gaps (what could not be looked at: kind, reason, count, and
    the container's names), and processes, a list of objects with the keys namespace, pod, pod_uid,
    container, container_id, region_path, pid, host_pid, state, status, uid, user, command, slots
    (more than 1: a sum over what one container has too many of) and devices, whose keys are the
    fields of ProcessDeviceRow.  null is not known.
    """  # noqa: D301 (click looks for the character itself)
    with driver.observe(node_choice) as observer:
        look = functools.partial(process_page, observer, selector, node_choice, wide=wide)
        show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)


@click.command()
@_common_options("memory")
def top(
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
    """
    with driver.observe(node_choice) as observer:
        look = functools.partial(process_page, observer, selector, node_choice, wide=wide)
        if as_json or not on_terminal():
            show_all((look(sort=sort) for _ in ticks(interval_s)), interval_s, as_json)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _top_live(look, interval_s or 1.0, sort)


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
