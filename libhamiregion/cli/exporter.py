"""`hamiregion exporter`: the node's metrics, for Prometheus."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from libhamiregion import __version__
from libhamiregion.exporter import (
    COLLECTORS,
    ListenError,
    MetricsServer,
    NodeExporter,
    WebConfigError,
)
from libhamiregion.node.nvml import NvmlSampler

from . import exporter_options, options
from .failures import Failure, bad_arguments
from .help import Verb
from .service_log import LEVELS, ServiceLog

_log = logging.getLogger("libhamiregion.exporter")


@click.command(
    cls=Verb,
    examples=[
        "hamiregion exporter --listen :9394",
        "hamiregion exporter --once > hamiregion.prom",
    ],
    brief={
        "Service": ("web_config", "log_level"),
        "Metrics": ("collectors", "legacy_metrics", "hami_version", "gone_after_s"),
    },
)
@exporter_options.listen_option(exporter_options.DEFAULT_ADDRESS)
@exporter_options.web_config_option
@exporter_options.legacy_metrics_option
@exporter_options.hami_version_option
@options.node_options
@options.library_option
@click.option(
    "--collector",
    "collectors",
    type=click.Choice(COLLECTORS),
    multiple=True,
    default=COLLECTORS,
    help="Only this part of the metrics besides the regions' own; repeatable.  [default: all]",
)
@exporter_options.resync_interval_option
@click.option("--once", is_flag=True, help="Print the metrics and end, without listening.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="Log level.",
)
@options.json_option
def exporter(
    listen: tuple[str, ...],
    web_config: str | None,
    legacy_metrics: bool,
    hami_version: str,
    node_choice: options.NodeChoice,
    library: str | None,
    collectors: tuple[str, ...],
    gone_after_s: float | None,
    once: bool,
    log_level: str,
    as_json: bool,
) -> None:
    """Export the metrics of this node's GPU containers, in place of HAMi's monitor.

    /metrics has every metric of that monitor under its name, and more; / is a page for people, with
    what `hamiregion top` shows; /healthz and /readyz are for probes.  It reads, and changes
    nothing: no region, no file.

    It answers on 127.0.0.1 unless told otherwise.  Whoever can connect can read metrics and page;
    use --web-config for TLS and passwords.

    `--collector nvml` leaves HAMi's own metrics alone.

    \b
    hamiregion exporter --listen :9394
    hamiregion exporter --listen :9394 --web-config /etc/hamiregion/web.yml
    hamiregion exporter --once > hamiregion.prom

    Environment: HOOK_PATH, NODE_NAME and HAMI_RESYNC_INTERVAL, as for HAMi's monitor.

    Told to end (SIGTERM, Ctrl-C), it finishes the scrapes under way.  Exit codes: 0 ended in
    order, 1 failed (with --once: no directory could be read), 2 wrong usage.

    JSON: the log on stderr as objects with the keys time_s (Unix seconds), task, event (the level),
    message, container and detail.  With --once, one object on stdout: metrics, a list of objects
    with the keys name, type, help and samples, which have name, labels and value.
    """  # noqa: D301 (click looks for the character itself)
    ServiceLog(as_json=as_json).capture_logging(log_level)
    # Neither is closed: waiting for a driver that does not answer would never end.
    with bad_arguments():
        node = node_choice.open()
    sampler = None
    if "nvml" in collectors:
        by_process = not {"processes", "unaccounted", "doctor"}.isdisjoint(collectors)
        sampler = NvmlSampler(library, sensors=True, processes=by_process)
    with bad_arguments():
        exported = NodeExporter(
            node,
            sampler=sampler,
            node_name=node_choice.node_name,
            legacy=legacy_metrics,
            hami_version=hami_version,
            collectors=collectors,
            gone_after_s=gone_after_s,
        )
    if once:
        _print(exported, as_json=as_json)
    else:
        _serve(exported, listen, web_config)


def _print(exported: NodeExporter, *, as_json: bool) -> None:
    if as_json:
        from libhamiregion.exporter import RegionCollector

        from .output import write_json

        metrics = [_plain(metric) for metric in RegionCollector(exported).collect()]
        write_json("metrics/1", {"metrics": metrics})
    else:
        sys.stdout.write(exported.render().decode())
        sys.stdout.flush()
    reason = exported.not_ready()
    if reason is not None:
        raise Failure(reason)


def _plain(metric: Any) -> dict[str, Any]:
    return {
        "name": metric.name,
        "type": metric.type,
        "help": metric.documentation,
        "samples": [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for sample in metric.samples
        ],
    }


def _serve(exported: NodeExporter, listen: tuple[str, ...], web_config: str | None) -> None:
    try:
        server = MetricsServer(exported, listen, web_config=web_config)
    except (ListenError, WebConfigError) as error:
        raise Failure(str(error)) from None
    _log.info("hamiregion %s, process %d", __version__, os.getpid())
    for url in server.urls:
        _log.info("listening on %s", url)
    server.run()
    _log.info("ended in order")
