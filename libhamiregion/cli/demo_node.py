"""`hamiregion demo --node`: a node of fake containers, with the exporter on it."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from libhamiregion.exporter import ListenError, MetricsServer, NodeExporter
from libhamiregion.node import Node, NodeNames
from libhamiregion.testing import FakeNode

from .failures import Failure, bad_arguments
from .output import write, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEP_S = 1.0


def run_node(listen: Sequence[str], seconds: float | None, as_json: bool) -> None:
    """Make the node, and keep it busy until the time is over, or Ctrl-C."""
    with FakeNode() as fake:
        _fill(fake)
        with (
            Node(fake.root, names=NodeNames(fake.pod_logs)) as node,
            _server(NodeExporter(node), listen) as server,
        ):
            _say(fake, server.urls, as_json)
            end = None if seconds is None else time.monotonic() + seconds
            try:
                while end is None or time.monotonic() < end:
                    fake.step()
                    time.sleep(_STEP_S)
            except KeyboardInterrupt:
                # That is how it ends, not how it fails.
                return


def _fill(fake: FakeNode) -> None:
    """Containers of each kind that a dashboard should show."""
    fake.add(
        "train",
        pod="bert-0",
        namespace="research",
        memory_limits=("8GiB", "4GiB"),
        sm_limits=(50, 30),
        processes=3,
    )
    fake.add("serve", pod="whisper-0", namespace="inference", memory_limits=("2GiB",))
    crowded = fake.add(pod="etl-7", namespace="batch", memory_limits=("3GiB",), processes=2)
    # Its memory counts on: the doctor finds it, and an alert should.
    crowded.processes[1].kill()
    fake.add(pod="llama-0", namespace="inference", region=False)


def _server(exporter: NodeExporter, listen: Sequence[str]) -> MetricsServer:
    try:
        with bad_arguments():
            return MetricsServer(exporter, listen)
    except ListenError as error:
        raise Failure(str(error)) from None


def _say(fake: FakeNode, urls: Sequence[str], as_json: bool) -> None:
    if as_json:
        places = {"root": str(fake.root), "pod_logs": str(fake.pod_logs), "urls": list(urls)}
        write_json("demo-node/1", places)
        return
    options = shlex.join(["--root", str(fake.root), "--pod-logs", str(fake.pod_logs)])
    write(
        f"A node of {len(fake.containers)} containers. Its metrics:\n"
        + "".join(f"  {url}/metrics\n" for url in urls)
        + "Look at it from another terminal:\n"
        + "".join(f"  hamiregion {verb} {options}\n" for verb in ("top", "containers", "doctor"))
        + "Ctrl-C ends it and removes it.\n"
    )
