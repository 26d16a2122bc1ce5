"""`hamiregion top --from`: the processes of all nodes, out of a Prometheus."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from libhamiregion.report import PrometheusError, PrometheusFleet

from .failures import Failure
from .format import count
from .keyboard import key_hint
from .output import Page
from .tables import NAME, NUMBER, PERCENT, QUIET, ROOMY, SIZE, Column, Lines, Table

if TYPE_CHECKING:
    from libhamiregion.node import Selector
    from libhamiregion.report.fleet import FleetOrder, FleetProcess


def _percent(name: str) -> Any:
    def value(row: FleetProcess) -> int | None:
        ratio: float | None = getattr(row, name)
        return None if ratio is None else round(100 * ratio)

    return value


_COLUMNS = (
    Column("NODE", "node", NAME),
    Column("NAMESPACE", "namespace", NAME, from_width=ROOMY),
    Column("POD", "pod", NAME),
    Column("CONTAINER", "container", NAME, from_width=ROOMY),
    Column("DEVICE", "index", NUMBER, title="dev"),
    Column("PID", "pid", NUMBER, title="PID", from_width=ROOMY),
    Column("HOST-PID", "host_pid", NUMBER, title="host PID"),
    Column("MEM-USED", "memory_used_bytes", SIZE, title="used"),
    Column("MEM-DRIVER", "memory_driver_bytes", SIZE, title="driver"),
    Column("SM", _percent("sm_util_ratio"), PERCENT, title="SM"),
    Column("SM-DRIVER", _percent("driver_sm_ratio"), PERCENT, title="SM drv"),
)
_UUID = Column("UUID", "uuid", NAME, style=QUIET)


def open_fleet(url: str) -> PrometheusFleet:
    """What asks a Prometheus, signed in by the environment.

    Raises:
        UsageError: This is no address, or there are two ways to sign in.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--from is the http:// or https:// address of a Prometheus: {url}")
    try:
        return PrometheusFleet(url, **sign_in())
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def sign_in() -> dict[str, Any]:
    """Token, or user and password, for a Prometheus.

    Not as options: what is on a command line, everybody on the machine can read.

    Raises:
        UsageError: Both are given.
    """
    secrets = {
        name: os.environ.get(f"HAMIREGION_PROMETHEUS_{name.upper()}")
        for name in ("token", "user", "password")
    }
    if secrets["token"] is not None and secrets["user"] is not None:
        raise click.UsageError("sign in with a token or with a user, not with both")
    return secrets


def fleet_page(
    fleet: PrometheusFleet,
    selector: Selector,
    *,
    node: str | None,
    most: int,
    sort: FleetOrder,
    wide: bool,
    live: bool = False,
) -> Page:
    """Ask for the processes now.

    Args:
        fleet: Whom to ask.
        selector: What to show.
        node: Pattern of the nodes to show; None means all.
        most: How many rows.
        sort: What they are sorted by.
        wide: Whether to show uuids too.
        live: Whether it is for a terminal that shows it again and again, with the keys.

    Raises:
        Failure: Prometheus cannot be asked.
    """
    chosen = {
        "node": node,
        "namespace": selector.namespace,
        "pod": selector.pod,
        "container": selector.container,
        "device": selector.device,
    }
    taken_at_ns = time.time_ns()
    try:
        rows, warnings = fleet.processes(sort=sort, most=most, **chosen)
    except PrometheusError as error:
        raise Failure(str(error)) from None
    nodes = len({row.node for row in rows})
    words = f"{count(len(rows), 'row')} of {count(nodes, 'node')}"
    if not rows:
        words = "No process of any node that was chosen uses a GPU."
    elif len(rows) == most:
        words += f", the first {most} by {sort}; -n shows more"
    return Page(
        "fleet/1",
        {"taken_at_ns": taken_at_ns, "warnings": warnings, "processes": rows},
        [
            Table((*_COLUMNS, _UUID) if wide else _COLUMNS, rows),
            Lines([(words, QUIET)], on="terminal"),
            *([Lines([key_hint(sort)])] if live else []),
        ],
        warnings=tuple(warnings),
    )
