"""An exporter of one's own that has HAMi's containers beside its own metrics.

    pip install 'libhamiregion[exporter]'
    python own_exporter.py --port 9400
    curl -s http://127.0.0.1:9400/metrics | grep -e hami -e jobs

What it shows: `RegionCollector` goes into any registry of prometheus-client.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from libhamiregion.exporter import NodeExporter, RegionCollector
from libhamiregion.node import Node, NvmlSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", help="where the containers' directories are")
    parser.add_argument("--port", type=int, default=9400)
    arguments = parser.parse_args()
    logging.basicConfig()  # what cannot be looked at, such as a wrong root, is a warning

    registry = CollectorRegistry()
    load = Gauge("node_jobs_load", "The load average of the last minute.", registry=registry)
    load.set_function(lambda: os.getloadavg()[0])

    with (
        Node(arguments.root) as node,
        NvmlSampler(sensors=True) as sampler,  # says why, where there is no driver
    ):
        registry.register(RegionCollector(NodeExporter(node, sampler=sampler)))
        server, thread = start_http_server(arguments.port, addr="127.0.0.1", registry=registry)
        print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            thread.join()
        except KeyboardInterrupt:
            server.shutdown()
            server.server_close()


if __name__ == "__main__":
    main()
