"""`hamiregion exporter`: the node's metrics, for Prometheus."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any

import click

from libhamiregion import __version__
from libhamiregion.units import parse_duration

from . import options
from .failures import Failure, bad_arguments, failures_of
from .help import verb
from .output import write
from .service import LEVELS, ServiceLog, collect_rarely, serve_documents
from .views import replay

if TYPE_CHECKING:
    from libhamiregion.exporter import MetricsServer, NodeExporter

DEFAULT_ADDRESS = "127.0.0.1:9394"

_log = logging.getLogger("libhamiregion.exporter")


def _address(typed: str) -> str:
    # The exporter takes 8 MiB that an agent without metrics does not need.
    from libhamiregion.exporter.listening import parse_listen

    parse_listen(typed)
    return typed


_metrics = functools.partial(options.option, group="Metrics")
#: How the metrics are served; the agent has these options too.
metrics_options = options.all_of(
    click.option(
        "--listen",
        multiple=True,
        type=options.Parsed("address", _address),
        metavar="ADDRESS",
        help=f"HOST:PORT or :PORT, else {DEFAULT_ADDRESS}; repeatable.",
    ),
    _metrics("--web-config", type=options.PATH, metavar="FILE"),
    _metrics("--legacy-metrics", is_flag=True),
    _metrics("--hami-version", type=click.Choice(("2.10", "2.11")), default="2.11"),
    _metrics(
        "--resync-interval",
        "gone_after_s",
        envvar="HAMI_RESYNC_INTERVAL",
        type=options.Parsed("duration", options.none_or("never", parse_duration)),
        default="5m",
        metavar="DURATION",
    ),
)


@verb("hamiregion exporter --listen :9394", "hamiregion exporter --once > hamiregion.prom")
@metrics_options
@_metrics("--collector", "collectors", multiple=True, metavar="NAME")
@options.node_options
@options.library_option
@options.from_option
@click.option("--once", is_flag=True, help="Print the metrics once and exit.")
@options.option("--log-level", group="Output", type=click.Choice(LEVELS), default="info")
@options.json_option
def exporter(
    listen: tuple[str, ...],
    web_config: str | None,
    collectors: tuple[str, ...],
    node_choice: options.NodeChoice,
    library: str | None,
    document: str | None,
    once: bool,
    log_level: str,
    as_json: bool,
    legacy_metrics: bool,
    **settings: Any,
) -> None:
    """Export the metrics of this node's GPU containers, in place of HAMi's monitor."""
    from libhamiregion.exporter import COLLECTORS, NodeExporter
    from libhamiregion.node import NvmlSampler, Observer

    if document is not None and not once:
        raise click.UsageError("--from goes with --once: a document does not change.")
    ServiceLog(as_json=as_json).capture_logging(log_level)
    chosen = collectors or COLLECTORS
    observer: Observer | None = None
    if document is None:
        # Neither is closed: waiting for a driver that does not answer would never end.
        sampler = None
        if "nvml" in chosen:
            by_process = any(
                each.needs_slots for name, each in COLLECTORS.items() if name in chosen
            )
            sampler = NvmlSampler(library, sensors=True, processes=by_process)
        observer = Observer(node_choice.open(), sampler=sampler)
    with bad_arguments():
        exported = NodeExporter(
            observer=observer or replay(document or "", "listen", "web_config"),
            node_name=node_choice.node_name,
            legacy=legacy_metrics,
            collectors=chosen,
            **settings,
        )
    if once or observer is None:
        write(exported.render().decode())
        reason = exported.not_ready()
        if reason is not None:
            raise Failure(reason)
        return
    server = metrics_server(exported, listen, web_config=web_config, healthy=exported.stuck)
    serve_documents(observer)
    _log.info("hamiregion %s, process %d", __version__, os.getpid())
    for url in server.urls:
        _log.info("listening on %s", url)
    collect_rarely()
    server.run()
    _log.info("ended in order")


def metrics_server(
    exported: NodeExporter, listen: tuple[str, ...], **settings: Any
) -> MetricsServer:
    """Make the server of an exporter; it listens from now on."""
    from libhamiregion.exporter import ListenError, MetricsServer, WebConfigError

    with bad_arguments(), failures_of(ListenError, WebConfigError):
        return MetricsServer(exported, listen or (DEFAULT_ADDRESS,), **settings)
