"""An exporter of one's own with HAMi's containers: python own_exporter.py ROOT [PORT]."""

import contextlib
import logging
import os
import signal
import sys

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from libhamiregion.exporter import NodeExporter, RegionCollector
from libhamiregion.node import Node, NvmlSampler

logging.basicConfig()  # a wrong root is a warning, and the exporter waits for it
registry = CollectorRegistry()
load = Gauge("node_jobs_load", "The load average of the last minute.", registry=registry)
load.set_function(lambda: os.getloadavg()[0])

with Node(sys.argv[1]) as node, NvmlSampler() as sampler:
    registry.register(RegionCollector(NodeExporter(node, sampler=sampler)))
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 9400
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        thread.join()
    server.shutdown()
