"""`hamiregion observe`: one observation of a node as a file, which other verbs show again."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import click

from . import options
from .help import verb
from .output import end_by_sigterm, ticks, write
from .views import service

if TYPE_CHECKING:
    from collections.abc import Callable


# In a pod a reader that has gone may leave a stream that is never closed, nor read.
_STALLED_S = 60


@verb("hamiregion observe > node.json", "hamiregion ps --from node.json")
@click.option(
    "--redact",
    is_flag=True,
    help="Replace names, UIDs, uuids, ids, paths, users and commands by numbers.",
)
@options.watch_option
@options.node_options
@options.driver_options
def observe(
    redact: bool,
    interval_s: float | None,
    node_choice: options.NodeChoice,
    driver: options.DriverChoice,
) -> None:
    """Write one observation of this node as JSON; other verbs read it with --from.

    The file has the names and command lines of the node's GPU processes. With --redact it can be
    attached to a public report. In a pod, the observation is the service's.
    """
    from libhamiregion.observation.json import to_json

    asked = service()
    if asked is None:
        with driver.observe(node_choice, sensors=True) as observer:
            _write(lambda: to_json(observer.observe(), redact=redact) + "\n", interval_s)
    elif redact:
        _write(lambda: to_json(asked.observe(), redact=True) + "\n", interval_s, _STALLED_S)
    else:
        _write(lambda: asked.document().decode(), interval_s, _STALLED_S)


def _write(
    document: Callable[[], str], interval_s: float | None, stalled_s: float | None = None
) -> None:
    """Write a document once, or at an interval until Ctrl-C, a line each."""
    if interval_s is None:
        write(document())
        return
    end_by_sigterm()
    with contextlib.suppress(KeyboardInterrupt):
        for _ in ticks(interval_s):
            if stalled_s is not None:
                signal.alarm(int(stalled_s + interval_s))
            write(document())
