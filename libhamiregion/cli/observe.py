"""`hamiregion observe`: one observation of a node as a file, which other verbs show again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options
from .help import Verb
from .output import write

if TYPE_CHECKING:
    from .options import DriverChoice, NodeChoice


@click.command(
    cls=Verb,
    examples=["hamiregion observe > node.json", "hamiregion ps --from node.json"],
)
@click.option(
    "--redact",
    is_flag=True,
    help="Replace names, UIDs, uuids, ids, paths, users and commands by numbers.",
)
@options.node_options
@options.driver_options
def observe(redact: bool, node_choice: NodeChoice, driver: DriverChoice) -> None:
    """Write one observation of this node as JSON; `ps`, `top` and `containers` read it.

    The file has the names and command lines of the node's GPU processes. With --redact it can be
    attached to a public report.
    """
    from libhamiregion.observation.json import to_json

    with driver.observe(node_choice) as observer:
        write(to_json(observer.observe(), redact=redact) + "\n")
